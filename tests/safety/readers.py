"""Small valid files, changed at random from a seed, and the readers that have to refuse or accept them.

Knows nothing of how many cases are run, or of what became of them.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from starlette.testclient import TestClient

from selftrain import train
from selftrain.bench.from_yaml import read_bench
from selftrain.config.resolve import make_settings, read_config
from selftrain.data.features.collection import Collection
from selftrain.data.features.feature_file import FeatureFile, is_feature_path
from selftrain.data.features.housekeeping import list_caches, shrink_cache, verify_cache
from selftrain.data.features.npy import NpzFile, map_npy, write_arrays
from selftrain.data.images import FileImages, read_image
from selftrain.data.sources.answer_file import Answer
from selftrain.data.sources.label_file import read_rows
from selftrain.data.sources.shards import _index, find_shards
from selftrain.engine.checkpoint import load_checkpoint
from selftrain.export.exported import ExportedModel
from selftrain.methods import make_method
from selftrain.nn.tensor_file import read_tensors
from selftrain.report import write_report
from selftrain.runs.layout import RunLayout
from selftrain.runs.model import load_model
from selftrain.runs.seen import WIDTH, read_seen
from selftrain.runs.thumbnails import StoredThumbnails
from selftrain.sweep.space import parse_search, read_space
from selftrain.web.label.app import label_app
from selftrain.web.label.exchange import from_text, to_label_studio
from selftrain.web.label.final import FinalTraining
from selftrain.web.label.session import Session
from selftrain.web.security import Guarded
from selftrain.web.serve.answer import opened_image
from tests.safety.seeds import JUNK, Seeds, flipped, mutated, small_onnx

Case = Callable[[Path, random.Random], None]


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
        if rng.random() < 0.5:
            opened_image(path.read_bytes())  # as the page of a served model does
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


def _other_array(value: np.ndarray[Any, Any], rng: random.Random) -> np.ndarray[Any, Any]:
    others = (
        lambda: value[: rng.randrange(len(value))] if value.ndim else value.reshape(1, 1),
        lambda: np.full_like(value, 7) if value.dtype.kind != "U" else value.reshape(-1)[:1],
        lambda: np.zeros((3, 3)),
        lambda: np.array("text"),
        lambda: np.full(value.shape, rng.choice([-5, 999, np.nan])),
        lambda: value.astype("U") if value.dtype.kind != "U" else np.arange(value.size),
        lambda: np.array(rng.choice([-(2**62), 2**62, 2**31])),
    )
    return np.asarray(rng.choice(others)())


def _outputs(seeds: Seeds) -> Case:
    arrays = RunLayout(seeds.run).read_outputs()

    def case(folder: Path, rng: random.Random) -> None:
        place = folder / "run"
        if not place.exists():
            shutil.copytree(seeds.run, place)
        name = rng.choice(sorted(arrays))
        RunLayout(place).write_outputs({**arrays, name: _other_array(arrays[name], rng)})
        try:
            write_report([place], folder / "page.html")
        finally:
            shutil.copy(seeds.run / "outputs.npz", place / "outputs.npz")

    return case


def _run_arrays(seeds: Seeds) -> Case:
    """What a served model shows beside an answer, and what recognises training images."""
    jpegs = [seeds.images["jpg"]] * 3
    ends = np.cumsum([len(one) for one in jpegs])
    shown = {"names": np.array(list("abc")), "ends": ends, "jpeg": np.frombuffer(b"".join(jpegs), np.uint8)}
    seen = {"names": np.array(list("abc")), "rows": np.eye(3, WIDTH, dtype=np.float16), "dim": np.array(4)}

    def case(folder: Path, rng: random.Random) -> None:
        layout = RunLayout(folder)
        if rng.random() < 0.5:
            name = rng.choice(sorted(seen))
            layout.write_seen({**seen, name: _other_array(seen[name], rng)})
            read_seen(layout.read_seen(), 4)
        else:
            name = rng.choice(sorted(shown))
            layout.write_thumbnails({**shown, name: _other_array(shown[name], rng)})
            found = StoredThumbnails.read(layout.read_thumbnails())
            for i in range(len(found)):
                found.load(i)

    return case


def _features(seeds: Seeds) -> Case:
    """A file or folder of features with an array or its card changed."""
    card = {"views": ["clean", "weak_1"], "backbone": "lite0", "size": 32, "weights": "0" * 64, "mirror": True}
    arrays = {
        "features": np.ones((4, 2, 3), np.float32), "names": np.array(list("abcd")), "y": np.arange(4),
        "views": np.array(card["views"]),
    }  # fmt: skip

    def case(folder: Path, rng: random.Random) -> None:
        made, about = dict(arrays), mutated(card, rng) if rng.random() < 0.5 else card
        if about is card:
            name = rng.choice(sorted(arrays))
            made[name] = _other_array(arrays[name], rng)
        if rng.random() < 0.5:
            path = folder / "x.npz"
            with path.open("wb") as file:
                write_arrays(file, {**made, "card": np.array(json.dumps(about))})
        else:
            path = folder / "x"
            path.mkdir(exist_ok=True)
            np.save(path / "features.npy", made["features"])
            np.save(path / "y.npy", made["y"])
            names = made["names"].tolist() if rng.random() < 0.7 else mutated(list("abcd"), rng)
            (path / "names.json").write_text(json.dumps(names))
            (path / "card.json").write_text(json.dumps(about))
        found = FeatureFile.read(path)
        np.asarray(found.rows.values).sum()

    return case


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


def _cache(seeds: Seeds) -> Case:
    """A cache folder with a file changed: it is listed, verified and shrunk."""
    source = seeds.collection.folder

    def case(folder: Path, rng: random.Random) -> None:
        place = folder / "features" / source.name
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(source, place)
        changed = rng.choice(sorted(path for path in place.iterdir() if path.suffix != ".lock"))
        if changed.suffix == ".json" and rng.random() < 0.7:
            changed.write_text(json.dumps(mutated(json.loads(changed.read_text()), rng)))
        else:
            changed.write_bytes(flipped(changed.read_bytes(), rng))
        for info in list_caches(folder, homes=True):
            verify_cache(info)
            shrink_cache(folder, info)

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


def _label_page(seeds: Seeds) -> Case:
    """Requests to the labeling page."""
    folder = seeds.folder / "page"
    folder.mkdir()
    shutil.copy(seeds.folder / "a.png", folder)
    session = Session(FileImages(folder, ["a.png"]), folder / "labels.csv", ["cat", "dog"])
    app = label_app(session, None, FinalTraining(folder, session.file.path), folder / "runs")
    client = TestClient(Guarded(app, "t", largest=1 << 20, log=lambda line: None), "http://127.0.0.1:8123/t/")
    posted: list[tuple[str, Any]] = [
        ("api/answers", {"answers": [{"id": 0, "label": "cat"}], "kind": "label"}),
        ("api/classes", {"name": "bird"}),
        ("api/import", {"text": "path,label\na.png,cat\n"}),
        ("api/undo", {}),
    ]
    asked = ["api/state?since=0", "api/next?n=3&without=1,2", "api/class?name=cat&kind=labeled&n=2&offset=0",
             "thumb/0", "image/0", "api/export/labels.csv", "static/label.js"]  # fmt: skip

    def case(folder: Path, rng: random.Random) -> None:
        if rng.random() < 0.6:
            path, body = rng.choice(posted)
            content = json.dumps(mutated(body, rng)).encode()
            content = flipped(content, rng) if rng.random() < 0.3 else content
            answer = client.post(path, content=content, headers={"content-type": "application/json"})
        else:
            path, _, query = rng.choice(asked).partition("?")
            values = dict(pair.split("=") for pair in query.split("&") if pair)
            if values and rng.random() < 0.8:
                values[rng.choice(list(values))] = str(rng.choice(JUNK))
            else:
                path = f"{path}/{rng.choice(['..', '%2e%2e', '-1', '9' * 30, 'x' * 300, '%00', '%ff'])}"
            answer = client.get(path, params=values)
        assert answer.status_code < 500, answer.text

    return case


def _yaml_of(tree: dict[str, Any], read: Callable[[Path], Any]) -> Callable[[Seeds], Case]:
    def make(seeds: Seeds) -> Case:
        def case(folder: Path, rng: random.Random) -> None:
            (folder / "x.yaml").write_text(yaml.safe_dump(mutated(tree, rng)))
            read(folder / "x.yaml")

        return case

    return make


BENCH = {
    "about": "a bench", "datasets": ["cifar10"], "rows": ["fixmatch", {"method": "dst", "label": "d", "against": "d"}],
    "settings": {"train.steps": 3}, "draws": "each", "variants": {"a": {"optim.lr": 0.1}}, "measures": ["accuracy"],
    "by_dataset": {"cifar10": {"data.labels_per_class": 4}},
}  # fmt: skip
SPACE = {"method.tau": [0.7, 0.8], "optim.lr": {"low": 0.001, "high": 0.03, "log": True}}


def _resume(seeds: Seeds) -> Case:
    """A run with a record changed, before its last stage is repeated."""
    home = seeds.folder / "half"
    home.mkdir()
    rows, y = np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32), np.arange(12) % 3
    np.savez(home / "x.npz", features=rows, names=[f"{i:02}.png" for i in range(12)])
    (home / "labels.csv").write_text("path,label\n" + "".join(f"{i:02}.png,c{y[i]}\n" for i in range(7)))
    settings = {"train.guard": "none", "data.screen": False, "data.prior": "labels", "train.batch": 2}

    def work(out: Path, resume: bool) -> None:
        train(home / "x.npz", labels=home / "labels.csv", method="pseudo_label", steps=2, seed=5, out=out,
              resume=resume, quiet=True, settings={**settings, "train.threads": 1})  # fmt: skip

    work(home / "run", resume=False)
    for name in ("results.json", "outputs.npz", "seen.npz"):
        (home / "run" / name).unlink(missing_ok=True)
    shutil.rmtree(home / "run/model")

    def case(folder: Path, rng: random.Random) -> None:
        place = folder / "run"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(home / "run", place)
        path = place / rng.choice(["split.json", "metrics.jsonl", "checkpoints/last.json"])
        if path.suffix == ".jsonl":
            lines = path.read_text().splitlines()
            i = rng.randrange(len(lines))
            lines[i] = json.dumps(mutated(json.loads(lines[i]), rng))
            path.write_text("\n".join(lines) + "\n")
        else:
            path.write_text(json.dumps(mutated(json.loads(path.read_text()), rng)))
        work(place, resume=True)

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
        kind = rng.randrange(3)
        if kind == 0:
            make_method(text, "frozen")
        elif kind == 1:
            parse_search([text])
        else:
            inside = rng.choice(["0..9", "9..0", "a,b", "", "0..99999999"])
            find_shards(f"{folder}/{{{inside}}}{rng.choice(['*', '?', '['])}.tar")

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
    "resume": _resume,
    "run arrays": _run_arrays,
    "features": _features,
    "onnx metadata": _metadata,
    "feature store": _store,
    "cache": _cache,
    "label page": _label_page,
    "bench": _yaml_of(BENCH, read_bench),
    "space": _yaml_of(SPACE, read_space),
    "label studio": _exchange,
    "words": _words,
    "settings": _settings,
}
SLOW = (
    "model.json", "results.json", "metrics.jsonl", "split.json", "reference.json", "config.yaml", "outputs.npz",
    "resume",
)  # fmt: skip
"""readers that render a page, build a network or train; they get fewer cases"""
