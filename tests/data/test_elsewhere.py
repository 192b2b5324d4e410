"""Images to predict in Parquet files and in object stores."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selftrain.data.images import FileImages, Images, JoinedImages, UnreadableImage, check_images
from selftrain.data.images.content import SETTLED, digest, is_known
from selftrain.data.images.memory import Memory
from selftrain.data.source import Source
from selftrain.data.sources import parquet_file, urls
from selftrain.data.sources.parquet import ParquetImages
from selftrain.data.sources.store_errors import why_unreadable
from selftrain.errors import UserError
from selftrain.network_access import NetworkForbiddenError
from selftrain.runs.ray_extraction import _look
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
    assert contents(images(f"file://{tmp_path}/photos/c.parquet")) == expected
    absolute = images(table(tmp_path / "d.parquet", url=[f"{tmp_path}/photos/{name}" for name in names]))
    assert contents(absolute) == expected
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


@pytest.mark.parametrize("place", ["", "file://"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("file:///etc/hostname", "is not in an object store"),
        ("local:///etc/hostname", "is not in an object store"),
        ("FILE:///etc/hostname", "is not in an object store"),
        ("memory://bucket/x.png", "is not in an object store"),
        ("simplecache::file:///etc/hostname", "URLs with '::' are not opened"),
        ("https://host/x.png::file:///etc/hostname", "URLs with '::' are not opened"),
        ("../secret.png", "lies outside .*/new. Paths must be inside the folder of the table"),
        ("a/../../secret.png", "lies outside"),
        ("/etc/hostname", "lies outside"),
        ("a\0.png", "has no path"),
        ("", "has no path"),
        (None, r"has no path \(None\)"),
    ],
)
def test_a_table_names_files_beside_it_and_object_stores_only(
    tmp_path: Path, place: str, name: str | None, message: str
) -> None:
    (tmp_path / "new").mkdir()
    path = table(tmp_path / "new" / "a.parquet", path=["s3://bucket/x.png", "x.png", name])
    with pytest.raises(UserError, match=rf"a\.parquet, row 2: .*{message}"):
        images(f"{place}{path}")


def test_several_tables_are_one_sequence(tmp_path: Path, photos: Images, server: str) -> None:
    a, b, c = photos.names[:3]
    table(tmp_path / "photos" / "1.parquet", path=[a, f"{server}/1.png"])
    table(tmp_path / "photos" / "2.parquet", path=[b, f"{server}/2.png", c])
    found = images(tmp_path / "photos" / "*.parquet")
    assert list(found.names) == [a, f"{server}/1.png", b, f"{server}/2.png", c]
    assert isinstance(found, JoinedImages)
    assert len(found.parts) == 2
    assert contents(found) == [photos.content(0), digest(b"1"), photos.content(1), digest(b"2"), photos.content(2)]
    table(tmp_path / "photos" / "2.parquet", path=[b, c])
    table(tmp_path / "photos" / "1.parquet", path=[a])
    assert isinstance(images(tmp_path / "photos" / "*.parquet"), FileImages)


def test_all_files_are_checked_at_once(tmp_path: Path) -> None:
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
    table(tmp_path / "1" / "a.parquet", path=["x.png", "y.png"])
    table(tmp_path / "2" / "b.parquet", path=["z.png", "x.png"])
    with pytest.raises(UserError, match=r"b\.parquet, row 1: names an image of .*1/a\.parquet again .* \('x\.png'\)"):
        images(tmp_path / "*" / "*.parquet")
    table(tmp_path / "2" / "b.parquet", path=[1])
    with pytest.raises(UserError, match=r"b\.parquet: the column 'path' is int64; the other files have one with text"):
        images(tmp_path / "*" / "*.parquet")
    table(tmp_path / "1" / "a.parquet", image=[b"1"])
    with pytest.raises(UserError, match=r"b\.parquet: the column 'image' is missing"):
        images(tmp_path / "*" / "*.parquet")
    table(tmp_path / "2" / "a.parquet", image=[b"1"])
    with pytest.raises(UserError, match=r"2/a\.parquet: has the same name as .*1/a\.parquet"):
        images(tmp_path / "*" / "a.parquet")


def test_row_groups_are_limited_and_shared_by_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path / "a.parquet", image=[bytes([k]) * 1000 for k in range(16)])
    read: list[int] = []
    whole = parquet_file._read_group

    def recorded(file: str, group: int, column: str) -> Any:
        read.append(group)
        time.sleep(0.05)
        return whole(file, group, column)

    monkeypatch.setattr(parquet_file, "_read_group", recorded)
    found = images(path)
    with ThreadPoolExecutor(8) as pool:
        every = list(pool.map(found.content, range(16)))
    assert every == [digest(bytes([k]) * 1000) for k in range(16)]
    assert sorted(read) == [0, 1, 2, 3]
    assert found.subset([3]).content(0) == every[3]
    assert pickle.loads(pickle.dumps(found)).content(15) == every[15]
    assert read[4:] == [3]
    monkeypatch.setattr(parquet_file, "MOST_BYTES", 12000)
    found = images(path)
    for k in range(16):
        found.content(k)
    assert isinstance(found, ParquetImages)
    assert len(found.groups._kept) == 2
    monkeypatch.setattr(parquet_file, "MOST_BYTES", 3000)
    with pytest.raises(UserError, match=r"a\.parquet: row group 0 has .* write the file again with smaller row groups"):
        images(path)


def test_repeated_values_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = pytest.importorskip("pyarrow.parquet")
    same = {"bytes": [b"x" * 100_000] * 1000, "path": ["y" * 100_000] * 1000}
    for name, values in same.items():
        tables.write_table(pyarrow.table({name: values}), tmp_path / f"{name}.parquet")
    monkeypatch.setattr(parquet_file, "MOST_BYTES", 1_000_000)
    with pytest.raises(UnreadableImage, match="row group 0 is too large"):
        images(tmp_path / "bytes.parquet").load(0)
    with pytest.raises(UserError, match=r"row 1: names the same image twice"):
        images(tmp_path / "path.parquet")


def test_a_broken_row_group_makes_its_images_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    path = table(tmp_path / "a.parquet", image=[rng.bytes(1000) for _ in range(12)])
    found = images(path)
    before = contents(found)
    damaged = bytearray(path.read_bytes())
    with pytest.importorskip("pyarrow.parquet").ParquetFile(path) as opened:
        column = opened.metadata.row_group(1).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    damaged[start : start + column.total_compressed_size] = bytes(column.total_compressed_size)
    path.write_bytes(damaged)
    found = images(path)
    assert contents(found) == [*before[:4], b"", b"", b"", b"", *before[8:]]
    errors = check_images(found, strict=False)
    assert [error.index for error in errors if "row group 1 is broken" in error.reason] == [4, 5, 6, 7]

    def no_memory(file: str) -> Any:
        raise MemoryError

    monkeypatch.setattr(parquet_file, "open_regular", no_memory)
    with pytest.raises(MemoryError):
        images(path)
    with pytest.raises(MemoryError):
        pickle.loads(pickle.dumps(found)).content(0)
    monkeypatch.undo()
    path.unlink()
    assert contents(pickle.loads(pickle.dumps(found))) == [b""] * 12


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


@pytest.fixture
def server() -> Iterator[str]:
    """A server that answers /403 with that status, /slow with a stream, and other paths with their names."""
    pytest.importorskip("aiohttp")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.strip("/").partition(".")[0]
            content = b"slow" * 1000 if name == "slow" else name.encode()
            self.send_response(int(name) if len(name) == 3 else 200)
            if name != "slow":
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with suppress(ConnectionError):  # the client has read enough
                for k in range(0, len(content), 1000):
                    self.wfile.write(content[k : k + 1000])
                    self.wfile.flush()

        def do_HEAD(self) -> None:
            self.send_response(405)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_objects_that_a_store_refuses_are_unreadable(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    names = ["1", "401", "403", "404", "410", "451", "slow"]
    found = images(table(tmp_path / "a.parquet", url=[f"{server}/{name}.png" for name in names]))
    assert contents(found) == [digest(b"1"), *[b""] * 5, digest(b"slow" * 1000)]
    reasons = [error.reason for error in check_images(found.subset(range(1, 6)), strict=False)]
    assert reasons == [
        f"the store answers {k}" if k != 404 else "there is no such object" for k in (401, 403, 404, 410, 451)
    ]
    failing = images(table(tmp_path / "b.parquet", url=[f"{server}/1.png", f"{server}/503.png"]))
    with pytest.raises(UserError, match=r"503\.png: cannot be read") as raised:
        contents(failing)
    assert not isinstance(raised.value, UnreadableImage)
    nobody = images(table(tmp_path / "c.parquet", url=["http://127.0.0.1:9/x.png"]))
    with pytest.raises(UserError, match=r"x\.png: cannot be read") as raised:
        contents(nobody)
    monkeypatch.setattr(urls, "MOST_BYTES", 2000)
    with pytest.raises(UnreadableImage, match="it has more than 0 MB"):
        found.load(6)


def test_errors_of_one_object_and_of_all() -> None:
    class BotoError(Exception):
        def __init__(self, status: int, code: str) -> None:
            self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}

    def translated(error: Exception, status: int, code: str) -> Exception:
        error.__cause__ = BotoError(status, code)
        return error

    assert why_unreadable(translated(PermissionError("no"), 403, "AccessDenied")) == "the store answers 403"
    assert why_unreadable(translated(PermissionError("no"), 400, "ExpiredToken")) == ""
    assert why_unreadable(translated(PermissionError("no"), 403, "SignatureDoesNotMatch")) == ""
    assert why_unreadable(translated(OSError("slow down"), 503, "SlowDown")) == ""
    assert why_unreadable(PermissionError("no")) == "access is denied"
    assert why_unreadable(FileNotFoundError("x")) == "there is no such object"
    assert why_unreadable(ConnectionError("reset")) == ""


def test_memory_that_runs_out_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.filesystem("memory").pipe_file("/b/x.png", b"1")
    found = images("memory://b")

    def fail(url: str) -> Any:
        raise MemoryError

    monkeypatch.setattr(urls, "open_url", fail)
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("tried again"))
    with pytest.raises(MemoryError):
        found.content(0)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_of_files_of_this_machine_only_regular_ones_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    some = urls.UrlImages([f"file://{tmp_path}/pipe.png", f"file://{tmp_path}"], ["a", "b"])
    with pytest.raises(UnreadableImage, match=r"pipe\.png: it is a pipe"):
        some.load(0)
    assert contents(some) == [b"", b""]
    with pytest.raises(UserError, match="URLs with '::' are not opened"):
        images(f"file://{tmp_path}/x::memory://y")


def test_an_object_is_read_once_and_its_mark_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.filesystem("memory").pipe_file("/c/x.png", FILES["ant/ant000.png"])
    fsspec.filesystem("memory").pipe_file("/c/y.png", b"no image")
    asked: list[str] = []

    def recorded(whole: Callable[[str], Any]) -> Callable[[str], Any]:
        def call(url: str) -> Any:
            asked.append(url)
            return whole(url)

        return call

    monkeypatch.setattr(urls, "open_url", recorded(urls.open_url))
    monkeypatch.setattr(urls, "url_mark", recorded(urls.url_mark))
    some = urls.UrlImages(["memory://c/x.png", "memory://c/y.png", "memory://c/z.png"], ["x", "y", "z"])
    found, good = _look(some)
    assert (found, good.tolist()) == ([digest(FILES["ant/ant000.png"]), digest(b"no image"), b""], [True, False, False])
    assert asked == some.urls
    assert (some.marks() == some.marks()).all()
    some.subset([1]).marks()
    assert sorted(asked) == sorted(some.urls * 2)


def test_stores_are_not_asked_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFTRAIN_OFFLINE", "1")
    with pytest.raises(NetworkForbiddenError, match="s3://bucket/new"):
        images("s3://bucket/new")
