"""Checksums of everything that is loaded: of bytes, of files, and of JSON records that carry their own.

Knows nothing of what is protected. A checksum shows damage; it is no signature, and does not tell who wrote a file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, BinaryIO

FIELD = "checksum"
"""the field of a record that holds the checksum of its other fields"""
_BLOCK = 1 << 20


def checksum(*blocks: bytes | memoryview) -> str:
    """Return the SHA-256 of blocks of bytes, one after the other."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()


def file_checksum(file: BinaryIO) -> str:
    """Return the SHA-256 of an open file, from where it stands to its end."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_BLOCK))
    while read := file.readinto(buffer):  # type: ignore[attr-defined]
        digest.update(buffer[:read])
    return digest.hexdigest()


def record_checksum(record: Mapping[str, Any]) -> str:
    """Return the checksum of a JSON record, without its own field; the order of fields does not matter."""
    rest = {name: value for name, value in record.items() if name != FIELD}
    return checksum(json.dumps(rest, sort_keys=True, ensure_ascii=True).encode())


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with its checksum in it."""
    return {**record, FIELD: record_checksum(record)}


def is_damaged(record: Mapping[str, Any]) -> bool:
    """Return whether a record differs from its checksum; records of older versions have none and count as whole."""
    return FIELD in record and record[FIELD] != record_checksum(record)
