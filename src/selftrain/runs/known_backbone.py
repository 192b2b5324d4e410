"""What stored features depend on, remembered, so that they are found again without building the backbone.

Building one takes as long as loading torch. What is remembered holds for the same settings, device, file of weights,
libraries and code of ours; otherwise the backbone is built. Knows nothing of what features are used for.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from selftrain import nn, runs
from selftrain.config.settings import Settings
from selftrain.console import Reporter
from selftrain.data.blocks import append_block, read_blocks
from selftrain.data.cache_folder import cache_root
from selftrain.data.features.collection import Collection
from selftrain.data.features.store import FEATURES, find_all
from selftrain.data.features.stored import StoredFeatures
from selftrain.data.images import Images
from selftrain.data.images.content import file_mark
from selftrain.data.images.memory import FOLDER, Memory
from selftrain.errors import UserError
from selftrain.files import expanded
from selftrain.nn.backbones import KEYWORDS
from selftrain.nn.offline import OFFLINE, offline_file
from selftrain.nn.preprocessing import Preprocessing
from selftrain.runs.extractor import Extractor, Features, content_views
from selftrain.runs.network_inputs import make_extractor, warn_of_size

LOG, KIND, MOST = "backbones.log", b"b", 256
LIBRARIES = ("torch", "timm", "onnxruntime", "openvino", "onnx")


def clean_features(settings: Settings, images: Images, device: torch.device, reporter: Reporter) -> Features:
    """Return the clean features (n, 1, dim) of images; the backbone is built only if some are not stored."""
    mark = _mark(settings, device)
    log = cache_root(settings.data.cache) / FOLDER / LOG
    if mark is not None and (known := _recalled(log, mark)) is not None:
        with suppress(KeyError, TypeError, ValueError):  # written by another version
            if (found := _stored(settings, images, known, reporter)) is not None:
                return found
    extractor = make_extractor(settings, None, device, reporter)
    features = extractor.features(images, ("clean",))
    if mark is not None:
        _remember(log, mark, extractor)
    return features


def _stored(settings: Settings, images: Images, known: dict[str, Any], reporter: Reporter) -> StoredFeatures | None:
    """Return the features if all are stored, by what is known of the backbone."""
    like, root = dict(known["preprocessing"]), cache_root(settings.data.cache)
    like |= {"mean": tuple(like["mean"]), "std": tuple(like["std"])}
    views = content_views(images, ("clean",), settings.data, Preprocessing(**like), int(known["channels"]))
    collection = Collection(root / FEATURES, known["about"], int(known["dim"]), np.dtype(settings.data.cache_dtype))
    if not collection.folder.is_dir():
        return None
    with reporter.progress("reading contents", len(images), "images") as bar:
        contents = Memory(root).contents(images, progress=bar.reach)
    found = find_all(collection, contents, [views.spec("clean")])
    if found is not None:
        warn_of_size(str(known["backbone"]), int(known["native"]), views.side, reporter)
    return found


def _mark(settings: Settings, device: torch.device) -> str | None:
    """Return a hash of everything that what is remembered depends on; None if that cannot be told."""
    network, data = settings.network, settings.data
    names, files = network.backbone.split("+"), []
    if data.extract_on == "ray" or any(name not in OFFLINE for name in names):
        return None
    if network.weights not in KEYWORDS:
        files = [expanded(network.weights)]
    elif network.weights != "none":
        files = [file for name in names if (file := offline_file(name)) is not None]
    marks = [file_mark(str(file)).hex() for file in (*files, *_code())]
    if not files or len(files) not in (1, len(names)) or not all(marks):
        return None
    facts = {
        "libraries": {name: _version(name) for name in LIBRARIES}, "files": marks, "device": str(device),
        "cpu": torch.backends.cpu.get_cpu_capability(), "network": asdict(network), "data": asdict(data),
        "cores": os.cpu_count(),
    }  # fmt: skip
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _code() -> list[Path]:
    """Return our files that say how a backbone computes."""
    folders = [Path(folder) for package in (nn, runs) for folder in package.__path__]
    return sorted(file for folder in folders for file in folder.glob("*.py"))


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


def _recalled(log: Path, mark: str) -> dict[str, Any] | None:
    found = None
    for block in read_blocks(log):
        with suppress(ValueError, KeyError, TypeError):
            if block[:1] == KIND and (record := json.loads(block[1:]))["mark"] == mark:
                found = dict(record["backbone"])
    return found


def _remember(log: Path, mark: str, extractor: Extractor) -> None:
    card = extractor.card
    record = {
        "about": extractor.about, "dim": extractor.dim, "channels": card.channels, "backbone": card.backbone,
        "native": extractor.native_size, "preprocessing": asdict(card.preprocessing),
    }  # fmt: skip
    record = json.loads(json.dumps(record))
    if _recalled(log, mark) == record:
        return
    with suppress(OSError, UserError):  # the backbone is built again next time
        log.parent.mkdir(parents=True, exist_ok=True)
        if sum(1 for _ in read_blocks(log)) >= MOST:
            log.unlink(missing_ok=True)
        append_block(log, KIND + json.dumps({"mark": mark, "backbone": record}).encode())
