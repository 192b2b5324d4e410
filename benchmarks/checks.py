"""The cost of all checks: a warm run on frozen features and a step from scratch, with them and without.

    python -m benchmarks --only checks --clock cpu

Knows nothing of what the checks are good for. Without them, nothing is hashed, verified, watched for numbers that are
not finite, compared with a schema, or synced to the disk.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.problems import image_problem
from benchmarks.ratios import CLOCK, Row, take_turns
from benchmarks.store import photos

BAR = 1.02
PHOTOS = 300
CHECKS: dict[str, Any] = {
    "selftrain.engine.finite.FiniteWatch.note": None,
    "selftrain.engine.finite.FiniteWatch.first": None,
    "selftrain.engine.loop.state_not_finite": "",
    "selftrain.nn.tensor_file.first_not_finite": "",
    "selftrain.nn.tensor_file.file_checksum": "",
    "selftrain.nn.backbones.is_published": True,
    "selftrain.checksums.record_checksum": "",
    "selftrain.runs.extractor.weights_hash": "0" * 64,
    "selftrain.runs.network_inputs.weights_hash": "0" * 64,
    "selftrain.data.features.collection.Collection.is_whole": True,
    "selftrain.config.schema._check": None,
    "selftrain.files.refuse_links": None,
    "selftrain.regular_files._check_regular": None,
    "selftrain.data.images.decode.check_pixels": None,
    "os.fsync": None,
}
"""functions that check, and what they return if they find nothing"""


@contextmanager
def without_checks() -> Iterator[None]:
    with ExitStack() as stack:
        for name, found in CHECKS.items():
            stack.enter_context(mock.patch(name, lambda *_, found=found, **__: found))
        yield


def unchecked(work: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        with without_checks():
            work()

    return run


def warm_run() -> Row:
    """Time whole runs of the usual length, from reading the folder to the written model, whose features are stored."""
    from selftrain import train

    with tempfile.TemporaryDirectory() as name, mock.patch.dict(os.environ, {"SELFTRAIN_CACHE": f"{name}/cache"}):
        photos(Path(name, "data"), PHOTOS)
        time.sleep(3)  # a file that was just written is read again

        def run() -> None:
            train(
                f"{name}/data", out=f"{name}/run", regime="frozen", size=32, labels_per_class=4,
                overwrite=True, quiet=True, settings={"train.threads": 1, "data.workers": 0},
            )  # fmt: skip

        times = take_turns({"ours": run, "without": unchecked(run)}, CLOCK.rounds(8, 4))
    return times.cost("a warm run on frozen features, against one without checks", "ours", "without", BAR)


def scratch_step() -> Row:
    step = image_problem("dst(fixmatch)").step
    times = take_turns({"ours": step, "without": unchecked(step)}, CLOCK.rounds(16, 8), warm_up=1)
    return times.cost("a step from scratch, against one without checks", "ours", "without", BAR)


def rows() -> list[Row]:
    return [scratch_step(), warm_run()]
