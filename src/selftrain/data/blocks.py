"""Append-only files of blocks with checksums: several processes may write, any may be killed, damage is noticed.

Knows nothing of what is in a block. A block that was cut off or damaged is skipped, and the blocks after it are found.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from selftrain.files import cannot_write

MAGIC = b"\xf5stb"
HEADER = struct.Struct("<4sII")  # magic, bytes of the content, checksum of both


def append_block(path: Path, content: bytes) -> None:
    """Add a block at the end of a file, which is created if there is none."""
    block = HEADER.pack(MAGIC, len(content), _checksum(content)) + content
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            while block:  # usually at once, so that blocks of several processes do not mix
                block = block[os.write(descriptor, block) :]
        finally:
            os.close(descriptor)
    except OSError as error:
        raise cannot_write(path, error) from None


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the content of every whole block of a file, in order; nothing if there is no such file."""
    try:
        data = path.read_bytes()
    except OSError:
        return
    place = 0
    while place + HEADER.size <= len(data):
        magic, size, checksum = HEADER.unpack_from(data, place)
        end = place + HEADER.size + size
        if magic == MAGIC and end <= len(data):
            content = data[place + HEADER.size : end]
            if _checksum(content) == checksum:
                yield content
                place = end
                continue
        place = data.find(MAGIC, place + 1)
        if place < 0:
            return


def _checksum(content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(struct.pack("<I", len(content))))
