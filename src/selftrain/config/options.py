"""Typed options: a dataclass field says its type, its range, its help text and whether it changes results.

Knows nothing of which options exist: settings and methods declare them as dataclass fields, with a string below each
field as its help text and, where needed, a range::

    tau: Annotated[float, Between(0, 1)] = 0.95
    "confidence that a pseudo label needs to be kept"

These are dataclasses and not pydantic models because methods must stay frozen, picklable, free of dependencies and
readable beside their equations; the few checks that settings need fit into this file.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Union

from selftrain.errors import UserError, nearest

UNSET: Any = None
"""the default of a field whose value is filled in later (by a preset, a regime, or another field)"""


@dataclass(frozen=True)
class Between:
    """From ``low`` to ``high``, both included."""

    low: float
    high: float

    def allows(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"from {self.low} to {self.high}"


@dataclass(frozen=True)
class AtLeast:
    """``low`` or more."""

    low: float

    def allows(self, value: float) -> bool:
        return value >= self.low

    def __str__(self) -> str:
        return f"of at least {self.low}"


@dataclass(frozen=True)
class Above:
    """More than ``low``."""

    low: float

    def allows(self, value: float) -> bool:
        return value > self.low

    def __str__(self) -> str:
        return f"greater than {self.low}"


@dataclass(frozen=True)
class Below:
    """Less than ``high``."""

    high: float

    def allows(self, value: float) -> bool:
        return value < self.high

    def __str__(self) -> str:
        return f"less than {self.high}"


Bound = Between | AtLeast | Above | Below
NonNegative = Annotated[float, AtLeast(0)]
Positive = Annotated[float, Above(0)]
ZeroToOne = Annotated[float, Between(0, 1)]
Count = Annotated[int, AtLeast(0)]


@dataclass(frozen=True)
class Neutral:
    """Marks a setting that changes no result: where files are, or how fast a run is."""


NEUTRAL = Neutral()


@dataclass(frozen=True)
class Added:
    """Marks a setting that is younger than hashes of settings: at its default it is left out of them."""


ADDED = Added()


def field_types(cls: Any) -> Mapping[str, Any]:
    """Return the type of each field of a dataclass, without ranges and markers."""
    return _declared(cls).types


def field_kinds(cls: Any) -> Mapping[str, Any]:
    """Return the type of each field of a dataclass with its ranges and markers, as ``Annotated`` has them."""
    return _declared(cls).kinds


def field_help(cls: Any) -> Mapping[str, str]:
    """Return the string literal below each field of a dataclass, inherited fields included."""
    return _help_texts(cls)


class _Declared(NamedTuple):
    types: Mapping[str, Any]
    kinds: Mapping[str, Any]


@cache
def _declared(cls: Any) -> _Declared:
    plain, annotated = typing.get_type_hints(cls), typing.get_type_hints(cls, include_extras=True)
    names = [f.name for f in fields(cls)]
    return _Declared(
        types.MappingProxyType({name: plain[name] for name in names}),
        types.MappingProxyType({name: annotated[name] for name in names}),
    )


@cache
def _help_texts(cls: Any) -> Mapping[str, str]:
    texts: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if not is_dataclass(owner):
            continue
        source: Any = owner  # is_dataclass has narrowed it to a type that getsource does not accept
        body = ast.parse(textwrap.dedent(inspect.getsource(source))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, following in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
            ):
                texts[statement.target.id] = " ".join(str(following.value.value).split())
    return types.MappingProxyType({name: texts.get(name, "") for name in field_types(cls)})


def _plain(kind: Any) -> Any:
    return typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind


def _markers(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind)[1:] if typing.get_origin(kind) is Annotated else ()


def _bounds(kind: Any) -> list[Bound]:
    return [marker for marker in _markers(kind) if isinstance(marker, Bound)]


def is_neutral(kind: Any) -> bool:
    """Tell whether a field of this kind is marked as changing no result."""
    return NEUTRAL in _markers(kind)


def is_added(kind: Any) -> bool:
    """Tell whether a field of this kind is left out of hashes at its default."""
    return ADDED in _markers(kind)


def _alternatives(kind: Any) -> tuple[Any, ...]:
    kind = _plain(kind)
    return typing.get_args(kind) if typing.get_origin(kind) in (Union, types.UnionType) else (kind,)


def describe(kind: Any) -> str:
    """Return a kind in words: ``Annotated[float | None, AtLeast(0)]`` is ``a number of at least 0 or none``."""
    known = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
    bounds = " and ".join(map(str, _bounds(kind)))
    words = []
    for option in _alternatives(kind):
        if typing.get_origin(option) is Literal:
            words.append("one of " + ", ".join(map(str, typing.get_args(option))))
        else:
            limited = f" {bounds}" if bounds and option in (int, float) else ""
            words.append(known.get(option, "none") + limited)
    return " or ".join(words)


def convert(value: Any, kind: Any) -> Any:
    """Return ``value`` (text, or a Python value) as ``kind``; a ValueError says what was expected instead."""
    for candidate in _alternatives(kind):
        try:
            converted = _convert(value, candidate)
        except ValueError:
            continue
        if not isinstance(converted, (int, float)) or all(b.allows(converted) for b in _bounds(kind)):
            return converted
    hint = ""
    for candidate in _alternatives(kind):
        if typing.get_origin(candidate) is Literal and isinstance(value, str):
            hint = nearest(value, map(str, typing.get_args(candidate)))
    raise ValueError(f"expected {describe(kind)}.{hint}")


def _convert(value: Any, kind: Any) -> Any:
    text = value.strip() if isinstance(value, str) else value
    if kind is type(None):
        if text is None or (isinstance(text, str) and text.lower() in ("none", "null", "")):
            return None
    elif kind is bool:
        if isinstance(text, bool):
            return text
        if isinstance(text, str) and text.lower() in ("true", "false", "yes", "no", "on", "off"):
            return text.lower() in ("true", "yes", "on")
    elif typing.get_origin(kind) is Literal:
        for choice in typing.get_args(kind):
            if text == choice or str(text) == str(choice):
                return choice
    elif kind is str:
        if isinstance(text, str):
            return text
    elif kind in (int, float):
        if isinstance(text, bool) or not isinstance(text, (int, float, str)) or not math.isfinite(float(text)):
            raise ValueError
        if kind is float:
            return float(text)
        if float(text) == int(float(text)):
            return int(float(text))
    elif isinstance(kind, type) and not isinstance(text, str) and isinstance(text, kind):
        return value
    raise ValueError


def check_fields(instance: Any, written: Callable[[str], str]) -> None:
    """Convert every field of a frozen dataclass to its declared type, and check its range.

    ``written`` turns ``name=value`` into the form in which an error shows it.
    """
    for name, kind in field_kinds(type(instance)).items():
        value = getattr(instance, name)
        try:
            object.__setattr__(instance, name, convert(value, kind))
        except ValueError as error:
            raise UserError(f"{written(f'{name}={spell(value)}')}: {error}") from None


def unknown_option(name: str, known: Iterable[str], owner: str) -> UserError:
    """Return the error for an option that ``owner`` does not have, with the nearest one."""
    known = list(known)
    options = ", ".join(known) or "none"
    return UserError(f"{owner} has no option {name!r}.{nearest(name, known)} Its options: {options}.")


def spell(value: Any) -> str:
    """Return a value as method strings and config files write it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as dotted names: ``{"optim": {"lr": 1}}`` becomes ``{"optim.lr": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
