"""Facts about the method that a string spells: its title, its options, and what can be done with it.

Knows nothing of training, and never raises: run folders also hold the methods of their users, which are not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from selftrain.config.options import convert, field_kinds
from selftrain.errors import UserError
from selftrain.methods.base import Method, Wrapper
from selftrain.methods.own import title_of
from selftrain.methods.spelling import Spelling, parse


@dataclass(frozen=True)
class MethodInfo:
    """What a report, a table or a search needs to know about a method without building it."""

    title: str
    """as people write it: DST(FixMatch), FlexMatch(tau=0.9); the string itself where the method is not known"""
    short: str = ""
    """the same without options: DST(FixMatch), FlexMatch"""
    labels_only: bool = False
    """it trains on labeled data alone"""
    fitted: bool = False
    """it is fitted once, instead of trained step by step"""
    regimes: tuple[str, ...] = Method.regimes
    """regimes in which it can be trained"""
    is_wrapper: bool = False
    """it is an add-on around a base, as DST is"""
    can_be_base: bool = False
    """DST can wrap it"""
    base: MethodInfo | None = None
    """the method that it wraps"""
    options: Mapping[str, Any] = field(default_factory=dict)
    """the options that the string gives; those of the base are in ``base``"""
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """the values that a search tries"""


def read_info(text: str, methods: Mapping[str, type[Method]]) -> MethodInfo:
    """Return the facts about the method that ``text`` spells, where it is one of ``methods``."""
    try:
        return _info(parse(text), methods)
    except UserError:
        return MethodInfo(text, text)


def _info(spelling: Spelling, methods: Mapping[str, type[Method]]) -> MethodInfo:
    inner = spelling.given.get("base")
    base = _info(inner, methods) if isinstance(inner, Spelling) else None
    given = {name: value for name, value in spelling.given.items() if name != "base"}
    cls = methods.get(spelling.name)
    if cls is None:
        own = title_of(spelling.name)
        return MethodInfo(_written(own, base, given), _short(own, base), base=base, options=given)
    kinds = field_kinds(cls)
    options = {name: _read(value, kinds.get(name, str)) for name, value in given.items()}
    title, words = _written(cls.title, base, given), cls.in_words(options)
    if base is not None and not base.options and words:
        title = f"{cls.title}({base.title}) {words}"
    is_wrapper = issubclass(cls, Wrapper)
    return MethodInfo(
        title=title,
        short=f"{_short(cls.title, base)} {words}".strip(),
        labels_only=not is_wrapper and not cls().views.unlabeled,
        fitted=cls.fitted,
        regimes=cls.regimes,
        is_wrapper=is_wrapper,
        can_be_base=cls.can_be_base(),
        base=base,
        options=options,
        grid=cls.grid,
    )


def _read(value: Any, kind: Any) -> Any:
    try:
        return convert(value, kind)
    except ValueError:
        return value


def _short(title: str, base: MethodInfo | None) -> str:
    return title if base is None else f"{title}({base.short})"


def _written(title: str, base: MethodInfo | None, given: Mapping[str, Any]) -> str:
    parts = [base.title] if base is not None else []
    parts += [f"{name}={value}" for name, value in given.items()]
    return f"{title}({', '.join(parts)})" if parts else title
