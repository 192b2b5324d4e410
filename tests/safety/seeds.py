"""Small valid files, and random changes of bytes and records.

Knows nothing of readers.
"""

from __future__ import annotations

import io
import random
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from selftrain.data.features.collection import Collection, Writer
from selftrain.engine.checkpoint import save_checkpoint
from selftrain.export.description import Description
from selftrain.nn.tensor_file import write_tensors
from tests.report.made import make_run
from tests.safety.made import frozen_model

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
