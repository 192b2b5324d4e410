"""Typed options: a dataclass field's help text, values read from text, and checks that name what would be right.

Knows nothing of which options there are: methods and settings declare them as dataclass fields with a docstring each.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union

from selftrain.errors import UserError, nearest

UNSET: Any = None
"""the default of a field whose value is settled later (by a preset, a regime, or another field)"""


def field_types(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls)}


def field_help(cls: Any) -> dict[str, str]:
    """The string literal below each field of a dataclass, inherited ones included."""
    texts: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if not is_dataclass(owner):
            continue
        source: Any = owner  # is_dataclass has narrowed it to something getsource would not take
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
    return {name: texts.get(name, "") for name in field_types(cls)}


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (Union, types.UnionType) else (kind,)


def describe(kind: Any) -> str:
    """``float | None`` as words for an error or a help text: ``a number or none``."""
    words = []
    for option in _alternatives(kind):
        if typing.get_origin(option) is Literal:
            words.append("one of " + ", ".join(map(str, typing.get_args(option))))
        else:
            known = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
            words.append(known.get(option, "none"))
    return " or ".join(words)


def convert(value: Any, kind: Any, option: str) -> Any:
    """``value`` (text, or a Python value) as ``kind``, or a UserError that names the option."""
    for candidate in _alternatives(kind):
        try:
            return _convert(value, candidate)
        except ValueError:
            continue
    hint = ""
    for candidate in _alternatives(kind):
        if typing.get_origin(candidate) is Literal and isinstance(value, str):
            hint = nearest(value, map(str, typing.get_args(candidate)))
    raise UserError(f"{option}={value!s}: expected {describe(kind)}.{hint}")


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
    elif kind in (int, float) and not isinstance(text, bool) and isinstance(text, (int, float, str)):
        number = float(text)
        if not math.isfinite(number):
            raise ValueError
        if kind is float:
            return number
        if number == int(number):
            return int(number)
    elif isinstance(kind, type) and not isinstance(text, str) and isinstance(text, kind):
        return value
    raise ValueError


def check_fields(instance: Any, owner: str) -> None:
    """Convert every field of a frozen dataclass to its declared type; fields still UNSET are left alone."""
    for name, kind in field_types(type(instance)).items():
        value = getattr(instance, name)
        if value is not UNSET:
            object.__setattr__(instance, name, convert(value, kind, f"{owner}.{name}"))


def known_field(cls: type, name: str, owner: str) -> str:
    """``name`` if ``cls`` has such a field, else a UserError with the nearest one."""
    known = field_types(cls)
    if name not in known:
        options = ", ".join(known) or "none"
        raise UserError(f"{owner} has no option {name!r}.{nearest(name, known)} Its options: {options}.")
    return name


def spell(value: Any) -> str:
    """A value as method strings and ``--set`` write it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted names: ``{"optim": {"lr": 1}}`` -> ``{"optim.lr": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
