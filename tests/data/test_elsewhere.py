"""Images to predict in Parquet files and in object stores."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selftrain.data.images import Images, UnreadableImage, check_images
from selftrain.data.images.content import SETTLED, is_known
from selftrain.data.images.memory import Memory
from selftrain.data.source import Source
from selftrain.data.sources import urls
from selftrain.errors import UserError
from selftrain.network_access import NetworkForbiddenError
from tests.folders import CLASSES, class_files, write

pyarrow = pytest.importorskip("pyarrow")
fsspec = pytest.importorskip("fsspec")
FILES = class_files(dict.fromkeys(CLASSES, 3))


def images(given: object) -> Images:
    return Source.parse(given, argument="images").images()


def contents(some: Images) -> list[bytes]:
    return [some.content(i) for i in range(len(some))]


def table(path: Path, /, **columns: Any) -> Path:
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=4)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Images:
    return images(write(tmp_path / "photos", FILES))


def test_parquet_files_with_bytes_or_with_paths(tmp_path: Path, photos: Images) -> None:
    expected = contents(photos)
    values, names = [FILES[name] for name in photos.names], list(photos.names)
    plain = images(table(tmp_path / "a.parquet", label=[1] * 9, content=values))
    assert (contents(plain), plain.names[5]) == (expected, "a.parquet/0000005")
    assert contents(plain.subset([8, 0])) == [expected[8], expected[0]]
    hub = [{"bytes": value, "path": None} for value in values]
    table(tmp_path / "b.parquet", content=hub)
    both = images(tmp_path / "[ab].parquet")
    assert contents(both) == [*expected, *contents(images(tmp_path / "b.parquet"))] == expected * 2
    assert len(np.unique(both.marks(), axis=0)) in (1, 18)  # just written: unknown
    named = images(table(tmp_path / "photos" / "c.parquet", path=names))
    assert (contents(named), list(named.names)) == (expected, names)
    elsewhere = images(table(tmp_path / "d.parquet", url=[f"file://{tmp_path}/photos/{name}" for name in names]))
    assert contents(elsewhere) == expected
    assert Source.parse(tmp_path / "d.parquet", argument="images").kind == "parquet"


def test_mistakes_in_parquet_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected one column with the bytes .* or .* path; a is int64, b is double"):
        images(table(tmp_path / "a.parquet", a=[1], b=[0.5]))
    with pytest.raises(UserError, match="expected one column"):
        images(table(tmp_path / "b.parquet", a=[b"1"], b=[b"2"]))
    with pytest.raises(UserError, match="names the same image twice in the column 'file'"):
        images(table(tmp_path / "c.parquet", file=["x.png", "x.png"]))
    (tmp_path / "d.parquet").write_bytes(b"no table")
    with pytest.raises(UserError, match=r"d\.parquet: not a readable Parquet file"):
        images(tmp_path / "d.parquet")
    with pytest.raises(UserError, match="there is no such file"):
        images(tmp_path / "none*.parquet")
    found = images(table(tmp_path / "e.parquet", image=[b"no image", None, next(iter(FILES.values()))]))
    assert [error.index for error in check_images(found, strict=False)] == [0, 1]


def test_a_folder_of_a_store(photos: Images) -> None:
    files = fsspec.filesystem("memory")
    for name, content in {**FILES, "ant/.hidden.png": b"", "notes.txt": b""}.items():
        files.pipe_file(f"/bucket/new/{name}", content)
    found = images("memory://bucket/new")
    assert (list(found.names), contents(found)) == (list(photos.names), contents(photos))
    assert images("memory://bucket/new/ant/ant000.png").names == ["ant000.png"]
    assert len(images("memory://bucket/new/ant/*1.png")) == 1
    assert isinstance(found, urls.UrlImages)
    assert found.where(0) == "memory:///bucket/new/ant/ant000.png"
    assert Source.parse("memory://bucket/new", argument="images").kind == "url"
    files.rm("/bucket/new/ant/ant000.png")
    with pytest.raises(UnreadableImage, match="there is no such object"):
        found.load(0)
    for url, message in {
        "memory://bucket/none": "there is no image here",
        "memory://bucket/new.tar": "tar files are read from this machine only",
        "nonsense://x": r"nonsense://x: cannot be opened \(Protocol not known: nonsense",
    }.items():
        with pytest.raises(UserError, match=message):
            images(url)


def test_objects_that_did_not_change_are_not_read_again(tmp_path: Path, photos: Images) -> None:
    time.sleep(SETTLED + 0.1)
    memory, url = Memory(tmp_path / "cache"), f"file://{tmp_path}/photos"
    first = images(url)
    assert is_known(first.marks()).all()
    expected = memory.contents(first)
    assert (memory.contents(images(url), read=False) == expected).all()
    path = tmp_path / "photos" / first.names[0]
    path.write_bytes(path.read_bytes() + b" ")
    os.utime(path, (1e9, 1e9))
    now = memory.contents(images(url), read=False)
    assert (now[1:] == expected[1:]).all()
    assert not is_known(now[:1]).any()


def test_versions_of_objects() -> None:
    info = {"size": 3, "ETag": "a"}
    mark = urls._mark("s3://b/x", info)
    assert len(mark) == 16
    assert urls._mark("s3://b/x", info) == mark != urls._mark("s3://b/x", {**info, "ETag": "b"})
    assert urls._mark("s3://b/x", {"size": 3}) == b""
    assert urls._mark("s3://b/x", {"size": 3, "updated": "some day"}) == b""


def test_a_store_that_fails_is_an_error_and_its_images_are_not_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.filesystem("memory").pipe_file("/b/x.png", b"1")
    found = images("memory://b")
    tried: list[float] = []
    monkeypatch.setattr(time, "sleep", tried.append)

    def fail(url: str) -> Any:
        raise ConnectionError("try later")

    monkeypatch.setattr(urls, "open_url", fail)
    with pytest.raises(UserError, match=r"x\.png: cannot be read \(try later\)") as raised:
        check_images(found, strict=False)
    assert not isinstance(raised.value, UnreadableImage)
    assert len(tried) == 2


def test_stores_are_not_asked_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFTRAIN_OFFLINE", "1")
    with pytest.raises(NetworkForbiddenError, match="s3://bucket/new"):
        images("s3://bucket/new")
