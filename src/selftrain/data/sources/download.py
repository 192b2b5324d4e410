"""Files from the network: fetched in pieces that survive a break, checked, unpacked, and only then in their place.

Knows nothing of datasets: a file has an address, a checksum and a place. What is half done never has its final name.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout

from selftrain.console import Reporter
from selftrain.errors import UserError

CHUNK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte until a server counts as gone
ATTEMPTS = 3  # a connection that breaks is taken up again where it broke
MB = 1_000_000


@dataclass(frozen=True)
class RemoteFile:
    """A file to fetch, and what it becomes under a root folder."""

    url: str
    checksum: str
    """``md5:...`` or ``sha256:...``, of the file as it is fetched"""
    bytes: int
    """its size"""
    gives: tuple[str, ...]
    """the files or folders that are there once it is unpacked, relative to the root"""
    into: str = ""
    """the folder it is put into and unpacked in, relative to the root"""
    inner: str = ""
    """an archive inside this one that is to be unpacked too"""

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def is_archive(self) -> bool:
        return self.name.endswith((".tar.gz", ".tgz", ".tar", ".zip"))

    def place(self, root: Path) -> Path:
        """Where the file itself is put."""
        return root / self.into / self.name

    def is_ready(self, root: Path) -> bool:
        """Whether all that it gives is there; a file that is used as it is must be whole, too."""
        there = all((root / path).exists() for path in self.gives)
        return there and (self.is_archive or _checksum(self.place(root), _kind(self)) == _digits(self))


def size_in_words(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{max(1, round(count / 1e6))} MB"


def make_ready(files: Sequence[RemoteFile], root: Path, what: str, reporter: Reporter) -> None:
    """Fetch and unpack those of the files that are not there yet; other processes wait for the one that does it."""
    missing = [file for file in files if not file.is_ready(root)]
    if not missing:
        return
    lock = FileLock(root / f".{what}.lock")
    try:
        root.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0.2)
        except Timeout:
            reporter.say(f"waiting for another process that fetches {what} to {root}")
            lock.acquire()
        for file in missing:
            if not file.is_ready(root):
                _make_one_ready(file, root, what, reporter)
    except OSError as error:
        raise UserError(f"--root {root}: {what} can't be put there ({_words(error)}).") from None
    finally:
        lock.release()


def _make_one_ready(file: RemoteFile, root: Path, what: str, reporter: Reporter) -> None:
    place = file.place(root)
    place.parent.mkdir(parents=True, exist_ok=True)
    brought = place.exists() and _is_whole(place, file, reporter)
    if not brought:
        _fetch(file, root, what, reporter)
    if file.is_archive:
        _unpack(file, root, reporter)
        if not brought:  # the user's own file stays
            place.unlink(missing_ok=True)


# --- fetching ----------------------------------------------------------------------------------------------------


def _fetch(file: RemoteFile, root: Path, what: str, reporter: Reporter) -> None:
    """The file in its place, whole and checked; what a break leaves is a ``.part``, gone on with next time."""
    place = file.place(root)
    part = place.with_name(f"{place.name}.part")
    state = ""
    if place.exists():
        # Not ours, or cut short by another program; it stays until what takes its place is whole.
        state = f"{place} is there, but it is cut short or another file. "
        reporter.warn(f"{place}: its {_kind(file)} is not {_digits(file)}; it is fetched anew")
    _check_room(file, root, part)
    reporter.say(f"fetching {what}: {file.url} ({size_in_words(file.bytes)}) to {place}")
    failure = ""
    for attempt in range(ATTEMPTS):
        begun = part.stat().st_size if part.exists() else 0
        try:
            with reporter.progress(f"fetching {file.name}", file.bytes // MB, "MB", start=begun // MB) as bar:
                _receive(file.url, part, begun, lambda done, bar=bar: bar.reach(done // MB))  # type: ignore[misc]
        except urllib.error.HTTPError as error:
            failure = f"the server answers {error.code} {error.reason}"
            error.close()
            break
        except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
            failure = f"no connection ({_words(getattr(error, 'reason', error))})"
        else:
            if part.stat().st_size >= file.bytes:
                failure = ""
                break
            failure = f"the connection broke after {size_in_words(part.stat().st_size)}"
        if attempt and (part.stat().st_size if part.exists() else 0) == begun:
            break  # nothing came this time either
    if not failure and _is_whole(part, file, reporter):
        os.replace(part, place)
        return
    if not failure:
        found = _checksum(part, _kind(file))
        part.unlink()
        failure = f"what came has the {_kind(file)} {found} instead of {_digits(file)}, and was deleted"
    raise UserError(
        f"{what}: {file.url} can't be fetched: {failure}. {state}Run again to go on, or fetch it elsewhere "
        f"({size_in_words(file.bytes)}, {_kind(file)} {_digits(file)}) and put it at {place}."
    )


def _receive(url: str, part: Path, begun: int, progress: Callable[[int], None]) -> None:
    """Append to ``part`` what the server has beyond its first ``begun`` bytes; all of it if it can't do that."""
    headers = {"User-Agent": "selftrain"} | ({"Range": f"bytes={begun}-"} if begun else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not begun:  # 416: there is nothing beyond what is here
            raise
        error.close()
        return
    with response, part.open("ab" if response.status == 206 else "wb") as file:
        done = begun if response.status == 206 else 0
        while chunk := response.read(CHUNK):
            file.write(chunk)
            done += len(chunk)
            progress(done)


def _check_room(file: RemoteFile, root: Path, part: Path) -> None:
    needed = file.bytes * (2 if file.is_archive else 1) - (part.stat().st_size if part.exists() else 0)
    free = shutil.disk_usage(root).free
    if free < needed:
        raise UserError(
            f"--root {root}: about {size_in_words(needed)} are needed for {file.name} and what is in it, and "
            f"{size_in_words(free)} are free. Make room, or give another --root."
        )


def _kind(file: RemoteFile) -> str:
    return file.checksum.partition(":")[0]


def _digits(file: RemoteFile) -> str:
    return file.checksum.partition(":")[2]


def _is_whole(path: Path, file: RemoteFile, reporter: Reporter) -> bool:
    with reporter.progress(f"checking {file.name}", file.bytes // MB, "MB") as bar:
        return _checksum(path, _kind(file), lambda done: bar.reach(done // MB)) == _digits(file)


def _checksum(path: Path, kind: str, progress: Callable[[int], None] | None = None) -> str:
    digest = hashlib.new(kind, usedforsecurity=False)
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done)
    return digest.hexdigest()


def _words(error: object) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__).lower()


# --- unpacking ---------------------------------------------------------------------------------------------------


def _unpack(file: RemoteFile, root: Path, reporter: Reporter) -> None:
    """What the archive gives, in its place all at once: it is unpacked beside it and moved when it is whole."""
    place = file.place(root)
    staging = place.with_name(f".{file.name}.unpacking")
    shutil.rmtree(staging, ignore_errors=True)  # what a kill left
    try:
        with reporter.progress(f"unpacking {file.name}", file.bytes // MB, "MB") as bar:
            _extract(place, staging, lambda done: bar.reach(done // MB))
            if file.inner:
                _extract(staging / file.inner, staging, lambda done: None)
        for path in file.gives:
            unpacked = staging / (root / path).relative_to(place.parent)
            if not unpacked.exists():
                raise UserError(f"{place}: there is no {unpacked.relative_to(staging)} in it; is it another version?")
            if not (root / path).exists():
                os.replace(unpacked, root / path)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{place}: can't be unpacked ({reason}). Delete it and run again.") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _extract(archive: Path, folder: Path, progress: Callable[[int], None]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with archive.open("rb") as raw:
        if archive.name.endswith(".zip"):
            _extract_zip(raw, folder, progress)
            return
        with tarfile.open(fileobj=raw) as tar:
            if hasattr(tarfile, "data_filter"):  # nothing may land outside the folder
                tar.extraction_filter = tarfile.data_filter
            for member in tar:
                tar.extract(member, folder)
                progress(raw.tell())


def _extract_zip(raw: IO[bytes], folder: Path, progress: Callable[[int], None]) -> None:
    done = 0
    with zipfile.ZipFile(raw) as archive:
        for member in archive.infolist():
            archive.extract(member, folder)
            done += member.compress_size
            progress(done)
