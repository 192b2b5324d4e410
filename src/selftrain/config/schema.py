"""Check what was read from a file against a type: the one schema for every JSON and YAML record.

Knows nothing of files or records. The types are those that the code uses anyway: ``TypedDict``, dataclasses, unions,
``Literal``, lists, and ``Annotated`` with the bounds of ``config.options``. A field that a type does not name may hold
anything: newer versions may have written it.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Literal, Union

from selftrain.config.options import Above, AtLeast, Below, Between, Bound
from selftrain.errors import UserError

LONGEST_TEXT = 1 << 16
LONGEST_LIST = 1 << 22
LARGEST_NUMBER = 1e18
WORDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number", type(None): "null"}


class _Wrong(Exception):  # noqa: N818 - never leaves this module
    def __init__(self, where: str, expected: str, found: Any):
        super().__init__(where, expected, found)


def check(value: Any, kind: Any, what: str) -> Any:
    """Return the value if it is of this kind; a UserError says which field is wrong, what it is, and what is right.

    ``what`` begins the error: the name of the file.
    """
    try:
        _check(value, kind, "")
    except _Wrong as error:
        where, expected, found = error.args
        raise UserError(f"{what}: {where and f'field {where}: '}expected {expected}, found {_shown(found)}.") from None
    except RecursionError:
        raise UserError(f"{what}: nested too deeply.") from None
    return value


def _shown(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return f"a {'list' if isinstance(value, list) else 'record'} of {len(value):,}"
    if value == "nothing":
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _check(value: Any, kind: Any, where: str) -> None:
    if kind is Any:
        return
    kind, bounds = _bounded(kind)
    options = typing.get_args(kind) if typing.get_origin(kind) in (Union, types.UnionType) else (kind,)
    wrong: _Wrong | None = None
    for option in options:
        try:
            plain, own = _bounded(option)
            _check_one(value, plain, [*bounds, *own], where)
            return
        except _Wrong as error:
            wrong = error if wrong is None or len(error.args[0]) > len(wrong.args[0]) else wrong
    assert wrong is not None
    if len(options) > 1 and wrong.args[0] == where:
        raise _Wrong(where, " or ".join(_words(option) for option in options), value)
    raise wrong


def _bounded(kind: Any) -> tuple[Any, list[Bound]]:
    if typing.get_origin(kind) is Annotated:
        plain, *markers = typing.get_args(kind)
        return plain, [marker for marker in markers if isinstance(marker, (Above, AtLeast, Below, Between))]
    return kind, []


def _words(kind: Any) -> str:
    plain, bounds = _bounded(kind)
    if typing.get_origin(plain) is Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(plain)))
    if typing.get_origin(plain) in (list, tuple):
        return "a list"
    return " ".join([WORDS.get(plain, "a record"), *map(str, bounds)])


def _check_one(value: Any, kind: Any, bounds: list[Bound], where: str) -> None:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return
    if origin is Literal:
        if not any(value == choice and type(value) is type(choice) for choice in arguments):
            raise _Wrong(where, _words(kind), value)
    elif origin in (list, tuple):
        _check_list(value, arguments, where)
    elif origin is dict:
        _check_names(value, where)
        for name, item in value.items():
            _check(item, arguments[1], _inside(where, name))
    elif typing.is_typeddict(kind) or is_dataclass(kind):
        _check_record(value, kind, where)
    else:
        _check_scalar(value, kind, bounds, where)


def _check_scalar(value: Any, kind: Any, bounds: list[Bound], where: str) -> None:
    expected = " ".join([WORDS.get(kind, "null"), *map(str, bounds)])
    right = {
        str: isinstance(value, str) and len(value) <= LONGEST_TEXT,
        bool: isinstance(value, bool),
        int: isinstance(value, int) and not isinstance(value, bool),
        float: isinstance(value, (int, float)) and not isinstance(value, bool),
    }.get(kind, value is None)
    if not right:
        raise _Wrong(where, expected, value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        small = -LARGEST_NUMBER <= value <= LARGEST_NUMBER and math.isfinite(value)
        if not small or not all(bound.allows(value) for bound in bounds):
            raise _Wrong(where, expected, value)


def _check_list(value: Any, arguments: tuple[Any, ...], where: str) -> None:
    if not isinstance(value, (list, tuple)) or len(value) > LONGEST_LIST:
        raise _Wrong(where, f"a list of at most {LONGEST_LIST:,}", value)
    for i, item in enumerate(value):
        _check(item, arguments[0], f"{where}[{i}]")


def _check_names(value: Any, where: str) -> None:
    if not isinstance(value, Mapping):
        raise _Wrong(where, "a record", value)
    for name in value:
        if not isinstance(name, str) or len(name) > LONGEST_TEXT:
            raise _Wrong(where, "names of fields as text", name)


def _check_record(value: Any, kind: Any, where: str) -> None:
    _check_names(value, where)
    hints = typing.get_type_hints(kind, include_extras=True)
    if is_dataclass(kind):
        required = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    else:
        required = set(kind.__required_keys__)
    for name, inner in hints.items():
        if name in value:
            _check(value[name], inner, _inside(where, name))
        elif name in required and type(None) not in typing.get_args(inner):  # older files lack some fields
            raise _Wrong(_inside(where, name), _words(inner), "nothing")


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
