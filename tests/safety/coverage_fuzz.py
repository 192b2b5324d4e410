"""Coverage-guided fuzzing of everything that reads bytes of strangers, with atheris.

    pip install atheris
    python -m tests.safety.coverage_fuzz image -max_total_time=60

The words after the reader are options of libFuzzer. Inputs start from ``tests/safety/corpus/READER``, which has small
valid files and those that found something; new ones are kept in a temporary folder. It stops at the first input that
raises anything but a one-line error. Knows nothing of formats.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).with_name("corpus")
SLOWEST = 5
"""seconds for one input"""
MOST = 1024
"""MB of memory"""


INSTRUMENTED = [
    "selftrain.data", "selftrain.nn.tensor_file", "selftrain.engine.checkpoint", "selftrain.export.description",
    "selftrain.nn.onnx_file", "selftrain.files", "PIL",
]  # fmt: skip
"""modules whose branches guide the search"""


def reader(name: str) -> tuple[str, Callable[[Path], Any]]:
    """Return the name of the file that a reader expects, and the reader."""
    from selftrain.data.images import read_image
    from tests.safety.readers import BYTES

    return ("x.png", lambda path: read_image(path, "RGB", 8)) if name == "image" else BYTES[name]


def one_input(name: str, folder: Path) -> Callable[[bytes], None]:
    """Return a function that gives bytes to a reader, and raises what is not an error of one line."""
    from selftrain.errors import UserError

    file, read = reader(name)
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    for state in (CORPUS / name).glob("state-*"):  # what a checkpoint's record refers to
        shutil.copy(state, path.parent)

    def check(data: bytes) -> None:
        path.write_bytes(data)
        try:
            read(path)
        except UserError as error:
            if "\n" in str(error).strip():
                raise RuntimeError("an error of several lines") from error

    return check


def main() -> None:
    atheris: Any = importlib.import_module("atheris")  # not among the packages that tests need
    name = sys.argv.pop(1)
    with atheris.instrument_imports(include=INSTRUMENTED):
        reader(name)
    folder = Path(tempfile.mkdtemp())
    (folder / "new").mkdir()
    limits = [f"-timeout={SLOWEST}", f"-rss_limit_mb={MOST}"]
    atheris.Setup([*sys.argv, *limits, str(folder / "new"), str(CORPUS / name)], one_input(name, folder))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
