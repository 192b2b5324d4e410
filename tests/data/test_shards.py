"""Tar files of images: written by webdataset and by tarfile, read at any place, and every way to be broken."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import selftrain
import selftrain.runs.fit
from selftrain.console import Reporter
from selftrain.data.images import Images, JoinedImages, fingerprint
from selftrain.data.source import Source
from selftrain.data.sources import shards
from selftrain.data.sources.shards import ShardImages, find_shards, load_shards
from selftrain.data.split import make_split
from selftrain.data.split_file import load_split, save_split
from selftrain.engine.checkpoint import save_checkpoint
from selftrain.errors import UserError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFTRAIN_CACHE", str(tmp_path / "cache"))


def png(colour: int, side: int = 8) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), (colour, 255 - colour, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def write(path: Path, files: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def write_shards(folder: Path, count: int = 3, each: int = 4, labeled: bool = True) -> str:
    """Images of colour 0, 1, 2, ..., of two classes in turn."""
    for k in range(count):
        files = {}
        for i in range(k * each, (k + 1) * each):
            files[f"{i:04d}.png"] = png(i)
            if labeled:
                files[f"{i:04d}.cls"] = str(i % 2).encode()
            files[f"{i:04d}.json"] = b"{}"
        write(folder / f"s-{k:03d}.tar", files)
    return str(folder / f"s-{{000..{count - 1:03d}}}.tar")


def colours(images: Images) -> list[int]:
    return [np.asarray(images.load(i))[0, 0, 0].item() for i in range(len(images))]


def error_of(pattern: str, labels: str | None = None, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        Source.parse(pattern, labels=labels).corpus(**options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- what is read -----------------------------------------------------------------------------------------------------


def test_shards_of_tarfile(tmp_path: Path) -> None:
    corpus = Source.parse(write_shards(tmp_path / "set")).corpus()
    assert isinstance(corpus.images, ShardImages)
    assert (corpus.name, corpus.classes, corpus.is_benchmark) == ("set", ("0", "1"), True)
    assert corpus.images.names[:2] == ["s-000.tar/0000.png", "s-000.tar/0001.png"]
    assert corpus.labels.tolist() == [0, 1] * 6
    assert colours(corpus.images) == list(range(12))
    assert colours(corpus.images.subset([11, 0, 5])) == [11, 0, 5]
    assert corpus.images.subset([11, 0]).names == ["s-002.tar/0011.png", "s-000.tar/0000.png"]
    assert Source.parse(str(tmp_path / "set/s-*.tar")).corpus().images.names == corpus.images.names


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_shards_of_webdataset(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.ShardWriter(str(tmp_path / "w-%06d.tar"), maxcount=5, verbose=0) as sink:
        for i in range(12):
            sample = {"__key__": f"sub/{i:04d}", "png": Image.new("RGB", (8, 8), (i, 0, 0))}
            sink.write(sample if i % 3 else {**sample, "cls": i % 2})
    corpus = Source.parse(str(tmp_path / "w-{000000..000002}.tar")).corpus()
    assert colours(corpus.images) == list(range(12))
    assert corpus.labels.tolist() == [0, -1, -1, 1, -1, -1, 0, -1, -1, 1, -1, -1]
    assert not corpus.is_benchmark  # the others are unlabeled to begin with
    assert corpus.images.names[0] == "w-000000.tar/sub/0000.png"


def test_labels_that_are_words_and_several_folders(tmp_path: Path) -> None:
    write(tmp_path / "one/a.tar", {"1.png": png(1), "1.cls": b"zebra\n", "2.v2.JPG": png(2), "2.cls": b"ant"})
    write(tmp_path / "two/a.tar", {"x.y/1.png": png(3), "x.y/1.cls": b"-1", "notes.txt": b"", "x.y/2.png": png(4)})
    corpus = Source.parse(str(tmp_path / "{one,two}/a.tar")).corpus()
    assert corpus.classes == ("ant", "zebra")
    assert corpus.labels.tolist() == [1, 0, -1, -1]
    assert corpus.images.names == [
        "one/a.tar/1.png",
        "one/a.tar/2.v2.JPG",
        "two/a.tar/x.y/1.png",
        "two/a.tar/x.y/2.png",
    ]


def test_numbers_are_sorted_as_numbers(tmp_path: Path) -> None:
    files = {f"{k}.{kind}": png(k) if kind == "png" else str(k).encode() for k in (10, 9, 2) for kind in ("png", "cls")}
    assert Source.parse(str(write(tmp_path / "a.tar", files))).corpus().classes == ("2", "9", "10")


def test_patterns(tmp_path: Path) -> None:
    for name in ("a-8.tar", "a-9.tar", "a-10.tar", "b-08.tar", "b-09.tar", "b-10.tar"):
        (tmp_path / name).touch()

    def names(pattern: str) -> list[str]:
        return [Path(path).name for path in find_shards(f"{tmp_path}/{pattern}")]

    assert names("a-{8..10}.tar") == ["a-8.tar", "a-9.tar", "a-10.tar"]
    assert names("b-{08..10}.tar") == ["b-08.tar", "b-09.tar", "b-10.tar"]
    assert names("{b,a}-10.tar") == ["b-10.tar", "a-10.tar"]
    assert names("b-*.tar") == ["b-08.tar", "b-09.tar", "b-10.tar"]
    assert names("{b-0*,b-08}.tar") == ["b-08.tar", "b-09.tar"]  # nothing twice


def test_many_readers_at_once(tmp_path: Path) -> None:
    images = load_shards(write_shards(tmp_path, count=40, each=2)).images  # more shards than stay open
    order = np.random.default_rng(0).permutation(80).tolist() * 3
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: np.asarray(images.load(i))[0, 0, 0].item(), order))
    assert found == order
    copy = pickle.loads(pickle.dumps(images))
    assert copy.names == images.names
    assert colours(copy.subset(order[:5])) == order[:5]


def test_no_more_files_open_than_the_limit(tmp_path: Path) -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("counts open files in /proc")
    images = load_shards(write_shards(tmp_path, count=60, each=1)).images
    before = len(os.listdir("/proc/self/fd"))
    colours(images)
    assert len(os.listdir("/proc/self/fd")) - before <= shards._OpenFiles.KEPT


# --- the index --------------------------------------------------------------------------------------------------------


def test_the_index_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = write_shards(tmp_path / "set")
    Source.parse(pattern).prepare(reporter=Reporter(quiet=True))
    made: list[str] = []
    index = shards._index

    def counted(path: str) -> shards.Index:
        made.append(Path(path).name)
        return index(path)

    monkeypatch.setattr(shards, "_index", counted)
    first = load_shards(pattern)
    assert made == []
    write(tmp_path / "set/s-001.tar", {"new.png": png(99), "new.cls": b"1"})  # one shard is replaced
    assert colours(load_shards(pattern).images) == [0, 1, 2, 3, 99, 8, 9, 10, 11]
    assert made == ["s-001.tar"]
    for kept in (tmp_path / "cache/shards").iterdir():  # a cache that is broken is made again
        kept.write_bytes(kept.read_bytes()[:100])
    assert len(load_shards(pattern).images) == 9
    assert sorted(made) == ["s-000.tar", "s-001.tar", "s-001.tar", "s-002.tar"]
    assert fingerprint(first.images) != fingerprint(load_shards(pattern).images)
    assert fingerprint(load_shards(pattern).images) == fingerprint(load_shards(pattern).images)


def test_images_that_cannot_be_read(tmp_path: Path) -> None:
    files = {
        f"{i}.{kind}": png(i) if kind == "png" else str(i % 2).encode() for i in range(4) for kind in ("png", "cls")
    }
    noise = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(noise, "PNG")
    files["2.png"] = noise.getvalue()[:6000]
    files["3.png"] = b""
    pattern = str(write(tmp_path / "a.tar", files))
    corpus = Source.parse(pattern).corpus()
    assert corpus.skipped == ("a.tar/2.png", "a.tar/3.png")
    assert colours(corpus.images) == [0, 1]
    assert corpus.labels.tolist() == [0, 1]
    assert Source.parse(pattern).corpus(check="header").skipped == ("a.tar/3.png",)
    assert "a.tar, 2.png: it " in error_of(pattern, strict=True)
    unchecked = Source.parse(pattern).corpus(check="none").images
    with pytest.raises(UserError, match=r"a\.tar, 3\.png: it is empty"):
        unchecked.load(3)


# --- what can be wrong ------------------------------------------------------------------------------------------------


def test_a_tar_file_that_was_cut_short(tmp_path: Path) -> None:
    pattern = write_shards(tmp_path, count=2)
    whole = (tmp_path / "s-001.tar").read_bytes()
    last = max(i for i in range(0, len(whole), 512) if any(whole[i : i + 512]))
    # In an image, in the middle of a header, between two members, and just before the end.
    for length in (700, 512 * 6 + 100, 512 * 2, last + 512):
        (tmp_path / "s-001.tar").write_bytes(whole[:length])
        assert "s-001.tar: not a complete tar file" in error_of(pattern)
    (tmp_path / "s-001.tar").write_bytes(b"")
    assert "s-001.tar: not a complete tar file" in error_of(pattern)
    (tmp_path / "s-001.tar").write_bytes(b"something else" * 100)
    assert "s-001.tar: not a complete tar file" in error_of(pattern)
    (tmp_path / "s-001.tar").write_bytes(whole)
    assert len(Source.parse(pattern).corpus().images) == 8


def test_shards_that_are_missing(tmp_path: Path) -> None:
    write_shards(tmp_path, count=2)
    message = error_of(f"{tmp_path}/s-{{000..004}}.tar")
    assert f"the shard {tmp_path}/s-002.tar and 2 others do not exist" in message
    assert f"the shard {tmp_path}/x.tar does not exist" in error_of(f"{tmp_path}/x.tar")
    assert "no file matches this pattern" in error_of(f"{tmp_path}/x-*.tar")
    assert "counts down" in error_of(f"{tmp_path}/s-{{5..1}}.tar")
    (tmp_path / "s.tar.gz").touch()
    assert "is compressed" in error_of(f"{tmp_path}/s.tar.gz")
    assert "only a folder of images can have a label file" in error_of(f"{tmp_path}/s-000.tar", labels="l.csv")


@pytest.mark.parametrize(
    ("files", "match"),
    [
        ({"1.txt": b""}, "contains no image"),
        ({"1.png": png(1)}, "no image has a label (a .cls file beside it)"),
        ({"1.png": png(1), "1.cls": b"a"}, "only one class (a)"),
        ({"1.png": png(1), "1.cls": b"a", "2.png": png(1), "2.cls": b"7"}, "labels mix numbers (7) and words ('a')"),
        ({"1.png": png(1), "1.cls": b""}, "1.cls: not a label"),
        ({"1.png": png(1), "1.cls": b"\xff\xfe"}, "1.cls: not a label"),
        ({"1.png": png(1), "1.jpg": png(1)}, "the sample '1' has two images, 1.png and 1.jpg"),
    ],
)
def test_shards_that_are_wrong(tmp_path: Path, files: dict[str, bytes], match: str) -> None:
    assert match in error_of(str(write(tmp_path / "a.tar", files)))


def test_one_name_twice(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("1.png", "2.png", "1.png"):
            member = tarfile.TarInfo(name)
            member.size = len(png(1))
            tar.addfile(member, io.BytesIO(png(1)))
    assert "contains '1.png' twice" in error_of(str(tmp_path / "a.tar"))


# --- beside labeled images --------------------------------------------------------------------------------------------


def put(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(png(200))
    return root


def test_unlabeled_shards_beside_a_folder(tmp_path: Path) -> None:
    data = put(tmp_path / "photos", "labeled/a/1.png", "labeled/b/1.png", "unlabeled/2.png", "test/a/1.png")
    pattern = write_shards(tmp_path / "more", labeled=True)  # whatever they say, they are unlabeled here
    corpus = Source.parse(data).corpus(unlabeled=pattern)
    assert isinstance(corpus.images, JoinedImages)
    assert corpus.labels.tolist() == [0, 1] + [-1] * 13
    assert corpus.truth.tolist() == corpus.labels.tolist()
    assert corpus.images.names[3] == "unlabeled:s-000.tar/0000.png"
    assert colours(corpus.images) == [200] * 3 + list(range(12))
    assert colours(corpus.images.subset([4, 0, 14])) == [1, 200, 11]
    split = make_split(corpus, labels_per_class=None)
    assert (len(split.labeled), len(split.unlabeled)) == (2, 15)
    save_split(split, corpus, tmp_path / "split.json")
    assert load_split(tmp_path / "split.json", Source.parse(data).corpus(unlabeled=pattern)).hash == split.hash
    assert fingerprint(corpus.images) == fingerprint(Source.parse(data).corpus(unlabeled=pattern).images)


def test_an_unlabeled_folder_beside_a_dataset(tmp_path: Path) -> None:
    put(tmp_path / "more", "x/1.png", "2.png", "held/3/t.png")
    (tmp_path / "more/bad.png").write_bytes(b"x")
    corpus = Source.parse("digits").corpus(unlabeled=tmp_path / "more", test=tmp_path / "more/held")
    assert corpus.images.names[-2:] == ["unlabeled:2.png", "unlabeled:x/1.png"]  # and not what is tested on
    assert corpus.labels[-2:].tolist() == [-1, -1]
    assert corpus.skipped == ("unlabeled:bad.png",)
    assert "no image in this folder" in error_of("digits", unlabeled=put(tmp_path / "bare", "1.txt"))
    assert "there is no such folder; give a folder of images, tar files" in error_of(
        "digits", unlabeled=tmp_path / "none"
    )


def test_a_test_set_of_shards(tmp_path: Path) -> None:
    images, labels, _ = Source.parse(write_shards(tmp_path)).test_set(["1", "0"])
    assert labels.tolist() == [1, 0] * 6
    assert len(images) == 12
    with pytest.raises(UserError, match=r"12 of 12|no image has a label"):
        Source.parse(write_shards(tmp_path / "u", labeled=False)).test_set(["0", "1"])


# --- runs -------------------------------------------------------------------------------------------------------------


def photos(root: Path) -> Path:
    return put(root, *(f"labeled/{c}/{i}.png" for c in "ab" for i in range(3)), "test/a/1.png", "test/b/1.png")


def run(data: Path, out: Path, pattern: str, **more: Any) -> selftrain.Run:
    quick = {"train.batch": 4, "train.unlabeled_batch": 6, "train.checkpoint_every": 2, "train.eval_every": 4}
    options = {"backbone": "wrn-tiny", "steps": 4, "quiet": True, **more}
    return selftrain.train(data, out=out, unlabeled=pattern, settings=quick | options.pop("settings", {}), **options)


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_on_shards_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    """A run that is stopped and resumed gives the same weights as one that was never stopped."""
    data, pattern = photos(tmp_path / "photos"), write_shards(tmp_path / "more", labeled=False)
    settings = {"data.workers": workers}
    whole = run(data, tmp_path / "whole", pattern, settings=settings)
    assert whole.results["unlabeled"] == 6 + 12
    assert whole.results["metric"] == "accuracy"

    def save_and_stop(*args: Any) -> None:
        save_checkpoint(*args)
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(selftrain.runs.fit, "save_checkpoint", save_and_stop)
        with pytest.raises(InterruptedError):
            run(data, tmp_path / "stopped", pattern, settings=settings)
    resumed = run(data, tmp_path / "stopped", pattern, settings=settings, resume=True)
    ours, theirs = ((each.folder / "model/model.safetensors").read_bytes() for each in (resumed, whole))
    assert ours == theirs


@pytest.mark.long
def test_a_frozen_run_on_shards(tmp_path: Path) -> None:
    """Features of images in shards are those of the same images in files."""
    pattern = write_shards(tmp_path / "more", labeled=False)
    folder = tmp_path / "files"
    for shard in find_shards(pattern):
        with tarfile.open(shard) as tar:
            for member in tar:
                content = tar.extractfile(member)
                assert content is not None
                (folder / Path(shard).name / member.name).parent.mkdir(parents=True, exist_ok=True)
                (folder / Path(shard).name / member.name).write_bytes(content.read())
    options: dict[str, Any] = {"backbone": "lite0", "regime": "frozen", "size": 32}
    few = {"data.weak_views": 1, "data.strong_views": 1, "data.workers": 0, "network.save_backbone": False}
    data = photos(tmp_path / "photos")
    runs = [
        run(data, tmp_path / name, unlabeled, settings=few, **options)
        for name, unlabeled in (("shards", pattern), ("folder", str(folder)))
    ]
    ours, theirs = ((each.folder / "model/model.safetensors").read_bytes() for each in runs)
    assert ours == theirs


def test_a_run_on_labeled_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DATA itself is a pattern, relative to where the run began; it goes on from anywhere."""
    pattern = write_shards(tmp_path / "set", each=8)
    monkeypatch.chdir(tmp_path)
    trained = selftrain.train(
        "set/s-{000..002}.tar", labels_per_class=2, backbone="wrn-tiny", steps=2, out=tmp_path / "run", quiet=True,
        settings={"train.batch": 4, "train.unlabeled_batch": 6, "data.workers": 0},
    )  # fmt: skip
    assert trained.results["dataset"] == "set"
    assert (trained.results["labeled"], trained.results["unlabeled"]) == (4, 24)
    assert pattern in (tmp_path / "run/config.yaml").read_text(encoding="utf-8")
    assert trained.evaluate(pattern)["images"] == 24
