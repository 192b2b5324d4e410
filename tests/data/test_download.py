"""Fetching from a real server that answers, breaks off, sends nonsense, or is not there."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from selftrain.console import Reporter
from selftrain.data.sources import download
from selftrain.data.sources.download import RemoteFile, make_ready
from selftrain.errors import UserError
from tests.processes import DEADLINE


class Server:
    """Files by their path; ``cut`` ends every answer after so many bytes, ``ranges`` is whether it can go on."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut: int | None = None
        self.ranges = True
        self.asked: list[tuple[str, str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.path, self.headers["Range"]))
                content = outer.files.get(self.path)
                if content is None:
                    self.send_error(404)
                    return
                start = 0
                if outer.ranges and self.headers["Range"]:
                    start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
                    if start >= len(content):
                        self.send_error(416)
                        return
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(content) - start))
                self.end_headers()
                stop = len(content) if outer.cut is None else min(len(content), start + outer.cut)
                self.wfile.write(content[start:stop])

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join(DEADLINE)
        assert not self.thread.is_alive()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


def tar_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def remote(server: Server, name: str, content: bytes, *gives: str, into: str = "", inner: str = "") -> RemoteFile:
    server.files[f"/{name}"] = content
    checksum = "md5:" + hashlib.md5(content).hexdigest()
    return RemoteFile(f"{server.url}/{name}", checksum, len(content), gives, into, inner)


def ready(file: RemoteFile, root: Path) -> None:
    make_ready([file], root, "things", Reporter(quiet=True))


def error_of(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def left_in(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.suffix != ".lock")


NOISE = bytes(range(256)) * 4000  # about a megabyte, which gzip makes small; files that are to break are plain


def test_a_file_and_an_archive(server: Server, tmp_path: Path) -> None:
    plain = remote(server, "a.mat", b"matrix", "sub/a.mat", into="sub")
    archive = remote(server, "b.tar.gz", tar_of({"b/1.txt": b"one", "b/2.txt": b"two", "other": b""}), "b")
    make_ready([plain, archive], tmp_path, "things", Reporter(quiet=True))
    assert left_in(tmp_path) == ["b/1.txt", "b/2.txt", "sub/a.mat"]  # neither the archive nor what nobody wants
    assert (tmp_path / "b/1.txt").read_bytes() == b"one"
    asked = len(server.asked)
    make_ready([plain, archive], tmp_path, "things", Reporter(quiet=True))
    assert len(server.asked) == asked


def test_a_zip_with_an_archive_in_it(server: Server, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("outer/inner.tar.gz", tar_of({"images/1.txt": b"one"}))
        archive.writestr("outer/notes.tar", b"not even a tar")
    file = remote(server, "c.zip", buffer.getvalue(), "c/images", into="c", inner="outer/inner.tar.gz")
    ready(file, tmp_path)
    assert left_in(tmp_path) == ["c/images/1.txt"]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_connection_is_resumed(server: Server, tmp_path: Path, ranges: bool) -> None:
    file = remote(server, "a.mat", NOISE, "a.mat")
    server.cut, server.ranges = 300_000, ranges
    message = error_of(lambda: ready(file, tmp_path))
    assert "the connection broke after" in message or "no connection" in message
    assert f"save it as {tmp_path / 'a.mat'}" in message
    assert left_in(tmp_path) == ["a.mat.part"]  # never under its own name
    came = (tmp_path / "a.mat.part").stat().st_size
    assert came == (900_000 if ranges else 300_000)  # three attempts, each from where the last one broke
    server.cut = None
    ready(file, tmp_path)
    assert left_in(tmp_path) == ["a.mat"]
    assert (tmp_path / "a.mat").read_bytes() == NOISE
    assert server.asked[-1][1] == f"bytes={came}-"


def test_what_is_whole_but_was_not_put_in_its_place(server: Server, tmp_path: Path) -> None:
    file = remote(server, "a.mat", NOISE, "a.mat")
    (tmp_path / "a.mat.part").write_bytes(NOISE)  # a kill between the last byte and the checksum
    ready(file, tmp_path)
    assert left_in(tmp_path) == ["a.mat"]


def test_a_wrong_checksum(server: Server, tmp_path: Path) -> None:
    file = remote(server, "a.mat", NOISE, "a.mat")
    server.files["/a.mat"] = NOISE[:-1] + b"x"
    message = error_of(lambda: ready(file, tmp_path))
    wrong = hashlib.md5(NOISE[:-1] + b"x").hexdigest()
    assert (
        f"the downloaded file has the md5 {wrong} instead of {hashlib.md5(NOISE).hexdigest()} and was deleted"
        in message
    )
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("kept", [NOISE[:500_000], NOISE[:-1] + b"x"])
def test_an_archive_that_another_program_left_half(server: Server, tmp_path: Path, kept: bytes) -> None:
    file = remote(server, "a.mat", NOISE, "a.mat")
    (tmp_path / "a.mat").write_bytes(kept)
    assert not file.is_ready(tmp_path)
    ready(file, tmp_path)
    assert (tmp_path / "a.mat").read_bytes() == NOISE
    assert left_in(tmp_path) == ["a.mat"]


def test_an_archive_brought_by_hand(server: Server, tmp_path: Path) -> None:
    content = tar_of({"b/1.txt": b"one"})
    file = remote(server, "b.tar.gz", content, "b")
    (tmp_path / "b.tar.gz").write_bytes(content)
    ready(file, tmp_path)
    assert server.asked == []
    assert left_in(tmp_path) == ["b.tar.gz", "b/1.txt"]  # it is the user's, and stays


def test_no_network(server: Server, tmp_path: Path) -> None:
    file = RemoteFile("http://127.0.0.1:9/a.tar.gz", "md5:0123", 170_000_000, ("a",))
    message = error_of(lambda: ready(file, tmp_path))
    assert "http://127.0.0.1:9/a.tar.gz cannot be downloaded: no connection (" in message
    assert f"download it elsewhere (170 MB, md5 0123) and save it as {tmp_path / 'a.tar.gz'}" in message
    (tmp_path / "a.tar.gz").write_bytes(b"something else")
    assert "exists, but it is truncated or another file" in error_of(lambda: ready(file, tmp_path))
    assert not (tmp_path / "a").exists()
    gone = RemoteFile(f"{server.url}/gone.mat", "md5:0123", 1, ("gone.mat",))
    assert "the server answered 404 Not Found" in error_of(lambda: ready(gone, tmp_path))


def test_a_kill_while_unpacking(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = tar_of({f"b/{i}.txt": b"x" for i in range(20)})
    file = remote(server, "b.tar.gz", content, "b")
    whole = download._extract

    def killed(archive: Path, folder: Path, progress: Callable[[int], None]) -> None:
        (folder / "b").mkdir(parents=True)
        (folder / "b/0.txt").write_bytes(b"x")
        raise KeyboardInterrupt

    monkeypatch.setattr(download, "_extract", killed)
    with pytest.raises(KeyboardInterrupt):
        ready(file, tmp_path)
    assert not file.is_ready(tmp_path)
    (tmp_path / ".b.tar.gz.unpacking/b").mkdir(parents=True)  # what a real kill leaves
    monkeypatch.setattr(download, "_extract", whole)
    ready(file, tmp_path)
    assert len(list((tmp_path / "b").iterdir())) == 20
    assert not (tmp_path / ".b.tar.gz.unpacking").exists()


def test_an_archive_of_another_shape(server: Server, tmp_path: Path) -> None:
    file = remote(server, "b.tar.gz", tar_of({"c/1.txt": b"one"}), "b")
    assert "does not contain b" in error_of(lambda: ready(file, tmp_path))
    broken = remote(server, "d.tar.gz", b"no archive at all", "d")
    assert "cannot be unpacked" in error_of(lambda: ready(broken, tmp_path))


def test_an_archive_that_would_leave_its_folder(server: Server, tmp_path: Path) -> None:
    file = remote(server, "b.tar.gz", tar_of({"../../evil.txt": b"x", "b/1.txt": b"one"}), "deep/b", into="deep")
    assert "cannot be unpacked" in error_of(lambda: ready(file, tmp_path / "root"))
    assert not (tmp_path / "evil.txt").exists()


def test_where_nothing_can_be_put(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = remote(server, "a.mat", NOISE, "a.mat")
    (tmp_path / "file").write_text("x")
    assert "things cannot be saved there" in error_of(lambda: ready(file, tmp_path / "file"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    assert "needs about 1 MB" in error_of(lambda: ready(file, tmp_path))
