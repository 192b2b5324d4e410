"""Method strings: ``dst(fixmatch(tau=0.9), worst=false)`` to a method and back.

Knows nothing of what a method does: it reads a name, options and their types.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from selftrain.config.options import field_types, spell, unknown_option
from selftrain.errors import UserError, nearest
from selftrain.methods.base import Method
from selftrain.methods.own import full_reference, is_reference

_FILE = r"[^\s(),='\"]+\.py:[A-Za-z_]\w*(?:@[0-9a-f]{12})?"
_TOKEN = re.compile(rf"\s*({_FILE}|[A-Za-z_][\w.-]*|[-+]?[\d.][\w.+-]*|'[^']*'|\"[^\"]*\"|[(),=])")


@dataclass
class Spelling:
    """A parsed method string: a name, and the values given for its options (a Spelling where one is a method)."""

    name: str
    given: dict[str, Any] = field(default_factory=dict)


def parse(text: str) -> Spelling:
    """Parse a method string; an error shows where it cannot be read."""
    tokens: list[tuple[str, int]] = []
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if not match:
            raise UserError(f"`method={text!r}`: cannot read {text[position:].strip()!r}. {_EXAMPLE}")
        tokens.append((match[1], match.start(1)))
        position = match.end()
    if sum(token == "(" for token, _ in tokens) > 20:
        raise UserError(f"`method` starts with {text[:60]!r}: more than 20 brackets. {_EXAMPLE}")
    spelling, rest = _parse_method(text, tokens, 0)
    if rest < len(tokens):
        raise UserError(f"`method={text!r}`: {tokens[rest][0]!r} follows the closing bracket. {_EXAMPLE}")
    return spelling


_EXAMPLE = "Write it as in 'dst(fixmatch(tau=0.9), worst=false)'."


def _parse_method(text: str, tokens: list[tuple[str, int]], i: int) -> tuple[Spelling, int]:
    def token(k: int) -> str:
        if k >= len(tokens):
            raise UserError(
                f"`method={text!r}`: it ends too early; a bracket is open or a value is missing. {_EXAMPLE}"
            )
        return tokens[k][0]

    name = token(i).strip("'\"")
    if is_reference(name):
        spelling = Spelling(name)
    elif not name[:1].isalpha():
        raise UserError(f"`method={text!r}`: expected a method's name, found {name!r}. {_EXAMPLE}")
    else:
        spelling = Spelling(name.lower().replace("-", "_"))
    i += 1
    if i >= len(tokens) or tokens[i][0] != "(":
        return spelling, i
    i += 1
    while token(i) != ")":
        if i + 1 < len(tokens) and token(i + 1) == "=":
            key = token(i)
            i += 2
        else:
            key = "base"
        if key in spelling.given:
            raise UserError(f"`method={text!r}`: {key!r} is given twice. Keep one of them.")
        if token(i) in ("(", ")", ",", "="):
            raise UserError(f"`method={text!r}`: a value is missing before {token(i)!r}. {_EXAMPLE}")
        if key == "base":
            spelling.given[key], i = _parse_method(text, tokens, i)
        else:
            spelling.given[key] = token(i).strip("'\"")
            i += 1
        if token(i) == ",":
            i += 1
        elif token(i) != ")":
            raise UserError(f"`method={text!r}`: expected ',' or ')' before {token(i)!r}. {_EXAMPLE}")
    return spelling, i + 1


def override(spelling: Spelling, path: list[str], value: Any) -> None:
    """Give an option another value: ``["base", "tau"]`` reaches into the wrapped method."""
    option = f"`method.{'.'.join(path)}={value}`"
    for step in path[:-1]:
        inner = spelling.given.get(step)
        if not isinstance(inner, Spelling):
            raise UserError(f"{option}: {spelling.name} wraps no method. Leave out {step!r}.")
        spelling = inner
    spelling.given[path[-1]] = parse(value) if path[-1] == "base" and isinstance(value, str) else value


def respell(spelling: Spelling) -> str:
    """Return the string that ``parse`` reads as this spelling: options that are not given stay out of it."""
    given = {
        key: respell(value) if isinstance(value, Spelling) else spell(value) for key, value in spelling.given.items()
    }
    parts = [value if key == "base" else f"{key}={value}" for key, value in given.items()]
    return f"{_quoted(spelling.name)}({', '.join(parts)})" if parts else _quoted(spelling.name)


def references(spelling: Spelling) -> list[str]:
    """Return the classes in files that a spelling names."""
    inner = spelling.given.get("base")
    return [
        *([spelling.name] if is_reference(spelling.name) else []),
        *(references(inner) if isinstance(inner, Spelling) else []),
    ]


def with_full_references(spelling: Spelling) -> Spelling:
    """Return the same spelling with absolute paths and hashes of the files that it names."""
    given = {
        key: with_full_references(value) if isinstance(value, Spelling) else value
        for key, value in spelling.given.items()
    }
    return Spelling(full_reference(spelling.name) if is_reference(spelling.name) else spelling.name, given)


def _quoted(name: str) -> str:
    """Return a name as a method string has it: a path with spaces or brackets needs quotes."""
    return f"'{name}'" if is_reference(name) and not re.fullmatch(_FILE, name) else name


def _check_owner_of_options(spelling: Spelling, methods: Mapping[str, type[Method]]) -> None:
    """Refuse options of the base that are given to its wrapper: ``dst(fixmatch, tau=0.9)``."""
    inner = spelling.given.get("base")
    inside = methods.get(inner.name) if isinstance(inner, Spelling) else None
    if inner is None or inside is None:
        return
    for key in spelling.given:
        if key not in field_types(methods[spelling.name]) and key in field_types(inside):
            value = spell(spelling.given[key])
            raise UserError(
                f"{spelling.name} has no option {key!r}, but {inner.name} has: write "
                f"{spelling.name}({inner.name}({key}={value})) or pass `method.base.{key}={value}`."
            )


def build(spelling: Spelling, methods: Mapping[str, type[Method]], regime: str) -> Method:
    """Build the method that is spelled; the regime's defaults fill in the options that are not given."""
    if spelling.name not in methods:
        raise UserError(
            f"`method`: there is no method {spelling.name!r}.{nearest(spelling.name, methods)} "
            f"The methods: {', '.join(sorted(methods))}."
        )
    cls = methods[spelling.name]
    inner = spelling.given.get("base")
    if isinstance(inner, Spelling) and "base" not in field_types(cls):
        option = f"write {inner.name}=VALUE" if inner.name in field_types(cls) else "it wraps no other method"
        raise UserError(f"`method`: {inner.name!r} within {spelling.name}(...): {option}.")
    _check_owner_of_options(spelling, methods)
    given = {}
    for key, value in spelling.given.items():
        if key not in field_types(cls):
            raise unknown_option(key, field_types(cls), spelling.name)
        given[key] = build(value, methods, regime) if isinstance(value, Spelling) else value
    if "base" in field_types(cls) and "base" not in given:
        raise UserError(f"`method`: {cls.name} wraps another method; write for example '{cls.name}(fixmatch)'.")
    return cls(**{**cls.regime_defaults(regime, given), **given})


def write(method: Method, regime: str | None = None) -> str:
    """Return the string from which ``parse`` reads the method; with a regime, without its default values there."""
    cls = type(method)
    own = {key: getattr(method, key) for key in field_types(cls)}
    usual = usual_values(cls, regime, own) if regime else {}
    parts = [write(value, regime) for value in own.values() if isinstance(value, Method)]
    for key, value in own.items():
        if not isinstance(value, Method) and (key not in usual or usual[key] != value):
            parts.append(f"{key}={spell(value)}")
    name = _quoted(vars(cls).get("spelled_as", method.name))
    return f"{name}({', '.join(parts)})" if parts else name


def usual_values(cls: type[Method], regime: str, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the default values of a method's options in a regime; ``given`` may hold a base and a preset."""
    given = given or {}
    declared = {f.name: f.default for f in fields(cls) if f.name != "base"}
    chosen = {"preset": given["preset"]} if "preset" in given else {}
    presets: Mapping[str, Any] = cls.preset_values(str(given.get("preset", declared.get("preset"))))
    return {**declared, **presets, **cls.regime_defaults(regime, chosen)}
