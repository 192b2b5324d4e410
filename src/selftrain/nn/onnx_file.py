"""Check an ONNX file before a runtime opens it: no external data, no operators of others, bounded size.

Knows nothing of what the model computes. A model with external data names further files, which may lie anywhere on the
machine; one with other operators may need code of its own. The protobuf encoding is
read here, without the onnx package.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from selftrain.errors import UserError
from selftrain.regular_files import open_regular

MOST_BYTES = 1 << 30
"""size of the largest file that is opened"""
DEEPEST = 32
"""levels of messages inside messages"""
DOMAINS = (b"", b"ai.onnx")
"""operator sets of the ONNX standard"""
# Where messages that may name files or operators lie inside others, by the numbers of onnx.proto.
INSIDE = {
    "model": {7: "graph", 8: "opset", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 9: "opset", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
EXTERNAL_DATA, DATA_LOCATION = 13, 14
"""fields of a tensor"""
NODE_DOMAIN, OPSET_DOMAIN = 7, 1


def read_onnx(path: Path) -> bytes:
    """Return the bytes of an ONNX file that is safe to open; a UserError if it is not."""
    try:
        with open_regular(path) as file:  # a pipe would be waited for
            size = os.fstat(file.fileno()).st_size
            if size > MOST_BYTES:
                raise UserError(
                    f"{path}: {size / 2**30:.1f} GiB; models of more than {MOST_BYTES >> 30} GiB are not opened."
                )
            data = file.read()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({(error.strerror or str(error)).lower()}).") from None
    check_onnx(data, path)
    return data


def check_onnx(data: bytes, path: object) -> None:
    """Raise a UserError if a model names other files or operators, or is not an ONNX model at all."""
    try:
        _check(memoryview(data), "model", path, 0)
    except (ValueError, IndexError):
        raise UserError(f"{path}: not an ONNX model (it cannot be decoded).") from None


def _check(message: memoryview, kind: str, path: object, depth: int) -> None:
    if depth > DEEPEST:
        raise ValueError("too deep")
    inside = INSIDE.get(kind, {})
    for number, value in _fields(message):
        if kind == "tensor" and (number == EXTERNAL_DATA or (number == DATA_LOCATION and value == 1)):
            raise UserError(
                f"{path}: its weights are in other files (external data). Such models are not opened, because they can "
                "name any file of this machine. Save the model as one file."
            )
        domain = {"node": NODE_DOMAIN, "opset": OPSET_DOMAIN}.get(kind)
        if number == domain and isinstance(value, memoryview) and bytes(value) not in DOMAINS:
            name = bytes(value)[:60].decode("utf-8", "replace")
            raise UserError(f"{path}: it uses operators of {name!r}; only those of the ONNX standard are run.")
        if number in inside:
            if not isinstance(value, memoryview):
                raise ValueError("not a message")
            _check(value, inside[number], path, depth + 1)


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number and the value of each field of a protobuf message."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == 2:
            length, at = _varint(message, at)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError("unknown wire type")
        if at + length > len(message):
            raise ValueError("cut short")
        yield number, message[at : at + length]
        at += length


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("number too long")
