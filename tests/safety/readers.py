"""Small valid files, changed at random from a seed, and the readers that have to refuse or accept them.

Knows nothing of how many cases are run, or of what became of them.
"""

from __future__ import annotations

import io
import json
import random
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image

from selftrain.config.resolve import make_settings, read_config
from selftrain.data.features.collection import Collection, Writer
from selftrain.data.features.feature_file import is_feature_path
from selftrain.data.features.npy import NpzFile, map_npy
from selftrain.data.images import FileImages, read_image
from selftrain.data.sources.answer_file import Answer
from selftrain.data.sources.label_file import read_rows
from selftrain.data.sources.shards import _index, find_shards
from selftrain.engine.checkpoint import load_checkpoint, save_checkpoint
from selftrain.export.description import Description
from selftrain.export.exported import ExportedModel
from selftrain.methods import make_method
from selftrain.nn.tensor_file import read_tensors, write_tensors
from selftrain.report import write_report
from selftrain.runs.layout import RunLayout
from selftrain.runs.model import load_model
from selftrain.web.label.exchange import from_text, to_label_studio
from selftrain.web.label.session import Session
from tests.report.made import make_run
from tests.safety.made import frozen_model

Case = Callable[[Path, random.Random], None]
JUNK: list[Any] = [
    None, True, -1, 0, 1, 2**40, 10**30, 1e308, -0.5, "", "x" * 1000, "inf", "nan", "\x1b[2J", "../../etc", [], [[]],
    {}, {"a": 1}, [None], [1, "a"], "é\u202e", -(2**63),
]  # fmt: skip


def flipped(content: bytes, rng: random.Random) -> bytes:
    """Return bytes with a few changes: bits, runs of zeros, cuts, copies and insertions."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data) + 1)
        kind = rng.randrange(6)
        if kind == 0 and place < len(data):
            data[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[place : place + rng.randint(1, 64)] = bytes(rng.randint(0, 64))
        elif kind == 2:
            del data[place:]
        elif kind == 3:
            data[place:place] = data[: rng.randint(0, 200)]
        elif kind == 4:
            data[place : place + 4] = rng.randbytes(4)
        else:
            data[place : place + 4] = b"\xff\xff\xff\xff"
    return bytes(data)


def mutated(value: Any, rng: random.Random) -> Any:
    """Return a JSON value with one part replaced, removed, doubled or moved."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        name = rng.choice(list(value))
        kind = rng.random()
        if kind < 0.15:
            return {key: item for key, item in value.items() if key != name}
        if kind < 0.25:
            return {**value, rng.choice(["x", "", "__proto__", name.upper()]): value[name]}
        return {**value, name: mutated(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        i = rng.randrange(len(value))
        if rng.random() < 0.2:
            return value[:i]
        return [*value[:i], mutated(value[i], rng), *value[i + 1 :]]
    return rng.choice(JUNK)


class Seeds:
    """Valid files, made once."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.run = make_run(folder / "run", "dst(fixmatch)", reference=True)
        self.model = frozen_model(folder / "model")
        save_checkpoint(folder / "checkpoints", {"step": 3, "x": torch.randn(4, 3), "rows": [{"a": 1.5}]})
        write_tensors(folder / "t.safetensors", {"a": torch.randn(3, 4), "b": torch.zeros(2, dtype=torch.int64)})
        self.images = {}
        for suffix, kind in (
            ("png", "PNG"),
            ("jpg", "JPEG"),
            ("gif", "GIF"),
            ("bmp", "BMP"),
            ("tif", "TIFF"),
            ("webp", "WEBP"),
        ):
            file = io.BytesIO()
            Image.effect_noise((24, 20), 40).convert("RGB").save(file, kind)
            self.images[suffix] = file.getvalue()
        with tarfile.open(folder / "s.tar", "w") as tar:
            for name, content in (("a.png", self.images["png"]), ("a.cls", b"1"), ("b.jpg", self.images["jpg"])):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        np.savez(folder / "f.npz", features=np.zeros((4, 3), np.float32), names=np.array(list("abcd")))
        np.save(folder / "f.npy", np.zeros((4, 3), np.float32))
        (folder / "labels.csv").write_text("path,label\na.jpg,cat\nb.jpg,dog\n")
        (folder / "config.yaml").write_text((self.run / "config.yaml").read_text())
        (folder / "m.onnx").write_bytes(small_onnx(self.about()).SerializeToString())
        Image.new("RGB", (4, 4)).save(folder / "a.png")
        self.collection = Collection(folder, {"backbone": "made"}, 4, np.dtype("float32"))
        self.contents = np.arange(12, dtype=np.uint64).reshape(-1, 2) + 1
        self.collection.open()
        with Writer(self.collection) as writer:
            writer.add(self.contents, [b"12345678"], np.ones((6, 1, 4), np.float32))

    def about(self) -> dict[str, str]:
        card = {"prior": [0.5, 0.25, 0.25]}
        return Description(("ant", "bee", "cat"), "features", dim=3, novelty=False, card=card).metadata()


def _bytes_of(name: str, read: Callable[[Path], Any]) -> Callable[[Seeds], Case]:
    def make(seeds: Seeds) -> Case:
        whole = (seeds.folder / name).read_bytes()

        def case(folder: Path, rng: random.Random) -> None:
            path = folder / name
            path.write_bytes(flipped(whole, rng))
            read(path)

        return case

    return make


def _image(seeds: Seeds) -> Case:
    def case(folder: Path, rng: random.Random) -> None:
        suffix = rng.choice(sorted(seeds.images))
        path = folder / f"x.{suffix}"
        path.write_bytes(flipped(seeds.images[suffix], rng))
        read_image(path, rng.choice(["RGB", "L"]), rng.choice([None, 8]))

    return case


def _json_of(home: str, name: str, read: Callable[[Path], Any]) -> Callable[[Seeds], Case]:
    """A record of a run or model folder with its structure changed; read with everything that belongs to it."""

    def make(seeds: Seeds) -> Case:
        source = getattr(seeds, home)
        text = (source / name).read_text()

        def case(folder: Path, rng: random.Random) -> None:
            place = folder / home
            if not place.exists():
                shutil.copytree(source, place)
            if name.endswith(".jsonl"):
                lines = text.splitlines()
                i = rng.randrange(len(lines))
                lines[i] = json.dumps(mutated(json.loads(lines[i]), rng))
                changed = "\n".join(lines) + "\n"
            elif name.endswith(".yaml"):
                changed = yaml.safe_dump(mutated(yaml.safe_load(text), rng))
            else:
                value = {key: item for key, item in json.loads(text).items() if key not in ("checksum", "checksums")}
                changed = json.dumps(mutated(value, rng))
            (place / name).write_text(changed)
            try:
                read(place)
            finally:
                (place / name).write_text(text)

        return case

    return make


def _outputs(seeds: Seeds) -> Case:
    arrays = RunLayout(seeds.run).read_outputs()

    def case(folder: Path, rng: random.Random) -> None:
        place = folder / "run"
        if not place.exists():
            shutil.copytree(seeds.run, place)
        name = rng.choice(sorted(arrays))
        value = arrays[name]
        change = rng.randrange(5)
        others = {
            0: value[: rng.randrange(len(value))], 1: np.full_like(value, 7) if value.dtype.kind != "U" else value[:1],
            2: np.zeros((3, 3)), 3: np.array("text"), 4: np.full(len(value), rng.choice([-5, 999, np.nan])),
        }  # fmt: skip
        RunLayout(place).write_outputs({**arrays, name: others[change]})
        try:
            write_report([place], folder / "page.html")
        finally:
            shutil.copy(seeds.run / "outputs.npz", place / "outputs.npz")

    return case


def small_onnx(metadata: dict[str, str]) -> Any:
    """Return a model on features of three numbers."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.eye(3, dtype=np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Softmax", ["y"], ["probabilities"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("x", "probabilities")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, metadata)
    onnx.checker.check_model(model)
    return model


def _predict(path: Path) -> None:
    ExportedModel(path).predict(np.zeros((2, 3), np.float32))


def _metadata(seeds: Seeds) -> Case:
    """The description in an exported model with its structure changed."""

    def case(folder: Path, rng: random.Random) -> None:
        about = seeds.about()
        name = rng.choice(sorted(about))
        about[name] = json.dumps(mutated(json.loads(about[name]), rng))
        (folder / "m.onnx").write_bytes(small_onnx(about).SerializeToString())
        _predict(folder / "m.onnx")

    return case


def _store(seeds: Seeds) -> Case:
    """A file of the feature store with bytes changed: what is found must be what was stored."""
    files = sorted(path for path in seeds.collection.folder.iterdir() if path.suffix in (".rows", ".index"))

    def case(folder: Path, rng: random.Random) -> None:
        copy = Collection(folder, seeds.collection.about, 4, np.dtype("float32"))
        copy.folder.mkdir(exist_ok=True)
        for file in files:
            shutil.copy(file, copy.folder)
        changed = copy.folder / rng.choice(files).name
        changed.write_bytes(flipped(changed.read_bytes(), rng))
        files_found, places = copy.find(seeds.contents, [b"12345678"])
        if (places >= 0).all():
            assert (copy.stored(files_found, places)[:] == 1).all(), "damaged features were served"

    return case


def _answers(path: Path) -> None:
    """The label file of a labeling session."""
    session = Session(FileImages(path.parent, ["a.png"]), path)
    session.summary()
    session.answer({0: "dog"})


def _exchange(seeds: Seeds) -> Case:
    """Labels of another program that are dropped on the labeling page."""
    text = to_label_studio({"a.jpg": Answer("cat"), "b.jpg": Answer("dog")})

    def case(folder: Path, rng: random.Random) -> None:
        changed = json.dumps(mutated(json.loads(text), rng)) if rng.random() < 0.7 else flipped(text.encode(), rng)
        from_text(changed if isinstance(changed, str) else changed.decode("utf-8", "replace"), ["a.jpg", "b.jpg"])

    return case


def _words(seeds: Seeds) -> Case:
    parts = [
        "dst",
        "fixmatch",
        "(",
        ")",
        ",",
        "tau",
        "=",
        "0.9",
        "1e999",
        "base",
        "'",
        "\x00",
        " ",
        "[",
        "é",
        "-1",
        "none",
    ]

    def case(folder: Path, rng: random.Random) -> None:
        text = "".join(rng.choice(parts) for _ in range(rng.randint(0, 12)))
        make_method(text, "frozen")
        find_shards(
            f"{folder}/{{{rng.choice(['0..9', '9..0', 'a,b', '', '0..99999999'])}}}{rng.choice(['*', '?', '['])}.tar"
        )

    return case


def _settings(seeds: Seeds) -> Case:
    names = sorted(read_config(seeds.folder / "config.yaml"))

    def case(folder: Path, rng: random.Random) -> None:
        make_settings("frozen", {rng.choice(names): rng.choice(JUNK)})

    return case


def _read_npz(path: Path) -> None:
    file = NpzFile(path)
    for name in file.names:
        np.asarray(file[name]).sum() if file[name].dtype.kind in "biuf" else None
    is_feature_path(str(path))


BYTES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "tar": ("s.tar", lambda path: _index(str(path))),
    "npz": ("f.npz", _read_npz),
    "npy": ("f.npy", map_npy),
    "csv": ("labels.csv", read_rows),
    "yaml": ("config.yaml", read_config),
    "safetensors": ("t.safetensors", read_tensors),
    "checkpoint": ("checkpoints/last.json", lambda path: load_checkpoint(path.parent)),
    "onnx": ("m.onnx", _predict),
    "answers": ("labels.csv", _answers),
}
"""a valid file among the seeds, and what reads it"""
READERS: dict[str, Callable[[Seeds], Case]] = {
    "image": _image,
    **{name: _bytes_of(*both) for name, both in BYTES.items()},
    "model.json": _json_of("model", "model.json", load_model),
    "results.json": _json_of("run", "results.json", lambda run: write_report([run])),
    "metrics.jsonl": _json_of("run", "metrics.jsonl", lambda run: write_report([run])),
    "split.json": _json_of("run", "split.json", lambda run: write_report([run])),
    "reference.json": _json_of("run", "reference.json", lambda run: write_report([run])),
    "config.yaml": _json_of("run", "config.yaml", lambda run: write_report([run])),
    "outputs.npz": _outputs,
    "onnx metadata": _metadata,
    "feature store": _store,
    "label studio": _exchange,
    "words": _words,
    "settings": _settings,
}
SLOW = ("model.json", "results.json", "metrics.jsonl", "split.json", "reference.json", "config.yaml", "outputs.npz")
"""readers that render a page or build a network; they get fewer cases"""
