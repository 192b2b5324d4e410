"""Download files: resumable, verified by checksum, and unpacked before they appear under their final names.

Knows nothing of datasets: a file has a URL, a checksum and a destination.
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
from selftrain.network_access import check_online

CHUNK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte until a server counts as unreachable
ATTEMPTS = 3  # a broken connection is resumed where it stopped
MB = 1_000_000


@dataclass(frozen=True)
class RemoteFile:
    """A file to download, and the files that it provides under a root folder."""

    url: str
    checksum: str
    """``md5:...`` or ``sha256:...``, of the downloaded file"""
    bytes: int
    """size of the download"""
    gives: tuple[str, ...]
    """the files or folders that exist once it is unpacked, relative to the root"""
    into: str = ""
    """the folder that it is saved and unpacked in, relative to the root"""
    inner: str = ""
    """an archive inside this one to unpack as well"""

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def is_archive(self) -> bool:
        return self.name.endswith((".tar.gz", ".tgz", ".tar", ".zip"))

    def place(self, root: Path) -> Path:
        """Return the path of the downloaded file."""
        return root / self.into / self.name

    def is_ready(self, root: Path) -> bool:
        """Return whether everything it provides exists; a file that is not an archive must have the right checksum."""
        there = all((root / path).exists() for path in self.gives)
        return there and (self.is_archive or _checksum(self.place(root), _kind(self)) == _digits(self))


def size_in_words(count: int) -> str:
    """Return a number of bytes as ``39.1 GB`` or ``170 MB``."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{max(1, round(count / 1e6))} MB"


def make_ready(files: Sequence[RemoteFile], root: Path, what: str, reporter: Reporter) -> None:
    """Download and unpack the missing files; other processes wait for the one that does it."""
    missing = [file for file in files if not file.is_ready(root)]
    if not missing:
        return
    lock = FileLock(root / f".{what}.lock")
    try:
        root.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0.2)
        except Timeout:
            reporter.say(f"waiting for another process that downloads {what} to {root}")
            lock.acquire()
        for file in missing:
            if not file.is_ready(root):
                _make_one_ready(file, root, what, reporter)
    except OSError as error:
        raise UserError(f"`root` {root}: {what} cannot be saved there ({_words(error)}).") from None
    finally:
        lock.release()


def _make_one_ready(file: RemoteFile, root: Path, what: str, reporter: Reporter) -> None:
    place = file.place(root)
    place.parent.mkdir(parents=True, exist_ok=True)
    provided = place.exists() and _is_complete(place, file, reporter)
    if not provided:
        _fetch(file, root, what, reporter)
    if file.is_archive:
        _unpack(file, root, reporter)
        if not provided:  # keep a file that the user provided
            place.unlink(missing_ok=True)


# --- downloading -------------------------------------------------------------------------------------------------


def _fetch(file: RemoteFile, root: Path, what: str, reporter: Reporter) -> None:
    """Download a file and verify it; an interrupted download leaves a ``.part`` file that the next one resumes."""
    place = file.place(root)
    part = place.with_name(f"{place.name}.part")
    state = ""
    if place.exists():
        # Truncated or another file; it stays until its replacement is complete.
        state = f"{place} exists, but it is truncated or another file. "
        reporter.warn(f"{place}: its {_kind(file)} is not {_digits(file)}; downloading it again")
    _check_room(file, root, part)
    reporter.say(f"downloading {what}: {file.url} ({size_in_words(file.bytes)}) to {place}")
    failure = ""
    for attempt in range(ATTEMPTS):
        begun = part.stat().st_size if part.exists() else 0
        try:
            with reporter.progress(f"downloading {file.name}", file.bytes // MB, "MB", start=begun // MB) as bar:
                _receive(file.url, part, begun, lambda done, bar=bar: bar.reach(done // MB))  # type: ignore[misc]
        except urllib.error.HTTPError as error:
            failure = f"the server answered {error.code} {error.reason}"
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
            break  # no progress in two attempts
    if not failure and _is_complete(part, file, reporter):
        os.replace(part, place)
        return
    if not failure:
        found = _checksum(part, _kind(file))
        part.unlink()
        failure = f"the downloaded file has the {_kind(file)} {found} instead of {_digits(file)} and was deleted"
    raise UserError(
        f"{what}: {file.url} cannot be downloaded: {failure}. {state}Run again to resume, or download it elsewhere "
        f"({size_in_words(file.bytes)}, {_kind(file)} {_digits(file)}) and save it as {place}."
    )


def _receive(url: str, part: Path, begun: int, progress: Callable[[int], None]) -> None:
    """Append the file beyond its first ``begun`` bytes to ``part``; if the server does not support that, all of it."""
    check_online(url)
    headers = {"User-Agent": "selftrain"} | ({"Range": f"bytes={begun}-"} if begun else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not begun:  # 416: nothing follows the bytes received so far
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
            f"`root` {root}: {file.name} needs about {size_in_words(needed)} including its content, but only "
            f"{size_in_words(free)} are free. Free some space, or choose another `root`."
        )


def _kind(file: RemoteFile) -> str:
    return file.checksum.partition(":")[0]


def _digits(file: RemoteFile) -> str:
    return file.checksum.partition(":")[2]


def _is_complete(path: Path, file: RemoteFile, reporter: Reporter) -> bool:
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
    """Unpack an archive into a temporary folder, and move its content into place once it is complete."""
    place = file.place(root)
    staging = place.with_name(f".{file.name}.unpacking")
    shutil.rmtree(staging, ignore_errors=True)  # left by a killed process
    try:
        with reporter.progress(f"unpacking {file.name}", file.bytes // MB, "MB") as bar:
            _extract(place, staging, lambda done: bar.reach(done // MB))
            if file.inner:
                _extract(staging / file.inner, staging, lambda done: None)
        for path in file.gives:
            unpacked = staging / (root / path).relative_to(place.parent)
            if not unpacked.exists():
                raise UserError(f"{place}: does not contain {unpacked.relative_to(staging)}; is it another version?")
            if not (root / path).exists():
                os.replace(unpacked, root / path)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{place}: cannot be unpacked ({reason}). Delete it and run again.") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _extract(archive: Path, folder: Path, progress: Callable[[int], None]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with archive.open("rb") as raw:
        if archive.name.endswith(".zip"):
            _extract_zip(raw, folder, progress)
            return
        with tarfile.open(fileobj=raw) as tar:
            if hasattr(tarfile, "data_filter"):  # nothing may be written outside the folder
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
