"""Images in object stores, by URL: ``s3://bucket/photos``, ``gs://...``, ``https://...``, through fsspec.

Knows nothing of labels or classes. fsspec and its package for a store (s3fs, gcsfs, ...) are imported on first use.
"""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, BinaryIO, TypeVar

from numpy.typing import ArrayLike

from selftrain.data.images import IMAGE_SUFFIXES, EncodedImages, UnreadableImage, is_hidden
from selftrain.data.images.content import SETTLED, Digests, digest, digests
from selftrain.data.sources.store_errors import why_unreadable
from selftrain.errors import UserError
from selftrain.network_access import check_online
from selftrain.regular_files import open_regular
from selftrain.text import first_line

T = TypeVar("T")

REMOTE = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "http", "https", "hf", "oss")
"""schemes that tables, which may come from anybody, may name: never files or the memory of this machine"""
HERE = ("file://", "local://", "memory://")
VERSIONS = ("ETag", "etag", "md5Hash", "generation", "version_id")
"""what stores call numbers that change with the content of an object"""
ATTEMPTS = 3
"""times that an object is read before a failing store is an error"""
AT_ONCE = 16
"""requests"""
MOST_BYTES = 256 << 20
"""bytes of one object that are read"""
TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")


def is_url(text: str) -> bool:
    """Return whether text is a URL."""
    return re.match(r"[a-z][a-z0-9+.-]*://", text) is not None


def filesystem(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    if "::" in url:  # fsspec would open what follows through another file system
        raise UserError(f"{url}: URLs with '::' are not opened.")
    if not url.startswith(HERE):
        check_online(url)
    try:
        import fsspec
    except ImportError:
        raise UserError(f"{url}: needs the package 'fsspec'; run pip install fsspec.") from None
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:  # the package of this store, an unknown scheme
        raise UserError(f"{url}: cannot be opened ({first_line(error)}).") from None
    return found


def open_url(url: str) -> BinaryIO:
    """Open an object to read; of files of this machine, only regular ones."""
    files, path = filesystem(url)
    from fsspec.implementations.local import LocalFileSystem

    opened: BinaryIO = open_regular(path) if isinstance(files, LocalFileSystem) else files.open(path, "rb")
    return opened


def read_url(url: str) -> bytes:
    """Return the bytes of an object that is not larger than an image may be."""
    if "::" in url:  # in a listing
        raise UnreadableImage(url, "URLs with '::' are not opened")
    content = bytearray()
    with open_url(url) as file:
        if (getattr(file, "size", None) or 0) <= MOST_BYTES:
            while part := file.read(MOST_BYTES + 1 - len(content)):  # a stream returns what has arrived
                content += part
            if len(content) <= MOST_BYTES:
                return bytes(content)
    raise UnreadableImage(url, f"it has more than {MOST_BYTES >> 20} MB")


def patiently(url: str, read: Callable[[], T]) -> T:
    """Return what ``read`` returns. A store that fails is tried again, and is an error after the last attempt."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return read()
        except (MemoryError, UserError):
            raise
        except Exception as error:  # every store has its own errors
            if reason := why_unreadable(error):
                raise UnreadableImage(url, reason) from None
            if attempt == ATTEMPTS:
                raise UserError(f"{url}: cannot be read ({first_line(error)}).") from None
            time.sleep(2.0**attempt)
    raise AssertionError


def find_urls(pattern: str, suffixes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what a store says of each object that a pattern, an object or a folder stands for, by URL, sorted."""
    files, path = filesystem(pattern)
    try:
        found = files.glob(path, detail=True) if "*" in path else files.find(path, detail=True)
    except Exception as error:  # every store has its own errors
        raise UserError(f"{pattern}: cannot be listed ({first_line(error)}).") from None
    by_url = {str(files.unstrip_protocol(name)): info for name, info in found.items()}
    chosen = [url for url in by_url if url.lower().endswith(tuple(suffixes)) and not is_hidden(posixpath.basename(url))]
    return {url: by_url[url] for url in sorted(chosen)}


def url_mark(url: str) -> bytes:
    """Return 16 bytes that change when an object does; empty if only reading it can tell."""
    files, path = filesystem(url)
    try:
        return _mark(url, files.info(path))
    except Exception:
        return b""


def _mark(url: str, info: dict[str, Any]) -> bytes:
    version = [str(info[key]) for key in VERSIONS if info.get(key)]
    times = [info[key] for key in TIMES if info.get(key)]
    latest = max((one.timestamp() if isinstance(one, datetime) else _number(one) for one in times), default=0.0)
    if not version and (not latest or time.time() - latest < SETTLED):
        return b""
    return digest("\0".join([url, str(info.get("size")), *version, *map(str, times)]).encode())


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return time.time()  # a time in words: not comparable


class UrlImages(EncodedImages):
    """Images that are objects of a store, read on demand."""

    def __init__(self, urls: Sequence[str], names: Sequence[str], marks: Digests | None = None) -> None:
        self.urls, self.names = list(urls), list(names)
        self.known = marks
        """marks, from a listing or from an earlier call; None: the store has not been asked yet"""

    @classmethod
    def below(cls, url: str) -> UrlImages:
        """Return every image below a folder of a store, or a single one."""
        found = find_urls(url, IMAGE_SUFFIXES)
        if url.endswith(".tar"):
            raise UserError(f"{url}: tar files are read from this machine only. Copy them, or give a folder of images.")
        if not found:
            raise UserError(f"{url}: there is no image here.")
        files, path = filesystem(url)
        top, urls = str(files.unstrip_protocol(path)).rstrip("/"), list(found)
        folder = top.rpartition("/")[0] if urls == [top] else top
        inside = all(one.startswith(folder + "/") for one in urls)
        names = [one[len(folder) + 1 :] for one in urls] if inside else urls
        return cls(urls, names, digests([_mark(one, info) for one, info in found.items()]))

    def source(self, i: int) -> bytes:
        """Return the bytes of an image. A store that fails stops the work: its images are not unreadable."""
        return patiently(self.urls[i], lambda: read_url(self.urls[i]))

    def where(self, i: int) -> str:
        return self.urls[i]

    def subset(self, indices: ArrayLike) -> UrlImages:
        rows = self._positions(indices)
        known = None if self.known is None else self.known[rows]
        return UrlImages([self.urls[i] for i in rows.tolist()], [self.names[i] for i in rows.tolist()], known)

    @property
    def home(self) -> str:
        scheme, _, rest = (self.urls[0] if self.urls else "").partition("://")
        return f"{scheme}://{rest.partition('/')[0]}"

    def marks(self) -> Digests:
        if self.known is None:
            with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="url-marks") as pool:
                self.known = digests(list(pool.map(url_mark, self.urls)))
        return self.known

    def stamps(self, times: bool = True) -> Iterator[bytes]:
        yield "\0".join(self.names).encode("utf-8", "surrogateescape") + self.marks().tobytes()
