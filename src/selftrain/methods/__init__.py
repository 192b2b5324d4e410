"""The methods by name, and method strings.

Knows nothing of training: see ``selftrain.engine`` for the loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selftrain.methods.base import Losses, Method, SelfTraining
from selftrain.methods.dst import DST
from selftrain.methods.fixmatch import FixMatch
from selftrain.methods.pseudo_label import PseudoLabel
from selftrain.methods.spelling import build, override, parse, write
from selftrain.methods.supervised import Supervised

METHODS: dict[str, type[Method]] = {cls.name: cls for cls in (Supervised, PseudoLabel, FixMatch, DST)}


def make_method(text: str, regime: str = "scratch", overrides: Mapping[str, Any] | None = None) -> Method:
    """The method ``text`` spells, with the regime's defaults; ``overrides`` as ``{"base.tau": 0.9}``."""
    spelling = parse(text)
    for path, value in (overrides or {}).items():
        override(spelling, path.split("."), value, f"method.{path}={value}")
    return build(spelling, METHODS, regime)


def spell_method(method: Method, regime: str | None = None) -> str:
    """``make_method`` in reverse: every field, or with a regime only what differs from its defaults."""
    return write(method, regime)


__all__ = [
    "DST",
    "METHODS",
    "FixMatch",
    "Losses",
    "Method",
    "PseudoLabel",
    "SelfTraining",
    "Supervised",
    "make_method",
    "spell_method",
]
