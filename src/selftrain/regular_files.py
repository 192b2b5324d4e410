"""Open files that somebody else may have put there: regular files only, checked after opening, never through a link
where we write.

Knows nothing of formats, and raises ``OSError`` like ``open``. A pipe or a terminal that is named like an image would
block ``open`` or ``read`` for ever; checking before opening would leave time to swap the file.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_NEVER_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file to read; an ``OSError`` if it is a pipe, a device, a socket or a folder."""
    return os.fdopen(descriptor(path), "rb")


def descriptor(path: str | os.PathLike[str]) -> int:
    """Return the same as a file descriptor, which the caller closes."""
    number = os.open(path, _READ | _NEVER_WAIT)
    try:
        _check_regular(number, path)
    except BaseException:
        os.close(number)
        raise
    return number


def append_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Append to a file, which is created if it does not exist; an ``OSError`` if it is a link or not a regular file."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        number = os.open(path, flags | _NEVER_WAIT | _NO_LINKS, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise OSError(
                errno.ELOOP, "it is a link, and files of a run folder are never written through links"
            ) from None
        raise
    try:
        _check_regular(number, path)
        view = memoryview(content)
        while len(view):
            view = view[os.write(number, view) :]
    finally:
        os.close(number)


def _check_regular(number: int, path: str | os.PathLike[str]) -> None:
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        what = next((words for is_kind, words in _KINDS if is_kind(mode)), "it is not a regular file")
        raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, what, os.fspath(path))
    if _NEVER_WAIT:
        os.set_blocking(number, True)


_KINDS = (
    (stat.S_ISDIR, "it is a folder"),
    (stat.S_ISFIFO, "it is a pipe, not a file"),
    (stat.S_ISCHR, "it is a device, not a file"),
    (stat.S_ISBLK, "it is a device, not a file"),
    (stat.S_ISSOCK, "it is a socket, not a file"),
)
