"""The methods by name, and method strings.

Knows nothing of training: see ``selftrain.engine`` for the loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selftrain.methods.ali import ALI
from selftrain.methods.base import Losses, Method, SelfTraining
from selftrain.methods.co_training import CoTraining
from selftrain.methods.dash import Dash
from selftrain.methods.debiasmatch import DebiasMatch
from selftrain.methods.dividemix import DivideMix
from selftrain.methods.dst import DST
from selftrain.methods.fixmatch import FixMatch
from selftrain.methods.flexmatch import FlexMatch
from selftrain.methods.mean_teacher import MeanTeacher
from selftrain.methods.mixmatch import MixMatch
from selftrain.methods.mutual_learning import MutualLearning
from selftrain.methods.noisy_student import NoisyStudent
from selftrain.methods.pi_model import PiModel
from selftrain.methods.pseudo_label import PseudoLabel
from selftrain.methods.rat import RAT
from selftrain.methods.remixmatch import ReMixMatch
from selftrain.methods.self_tuning import SelfTuning
from selftrain.methods.spelling import build, override, parse, write
from selftrain.methods.supervised import Supervised
from selftrain.methods.tri_training import TriTraining
from selftrain.methods.uda import UDA
from selftrain.methods.vat import VAT

METHODS: dict[str, type[Method]] = {
    cls.name: cls
    for cls in (
        Supervised, PseudoLabel, PiModel, MeanTeacher, VAT, ALI, RAT, UDA, MixMatch, ReMixMatch, FixMatch, Dash,
        FlexMatch, DebiasMatch, SelfTuning, NoisyStudent, DivideMix, CoTraining, TriTraining, MutualLearning, DST,
    )
}  # fmt: skip


def make_method(text: str, regime: str = "scratch", overrides: Mapping[str, Any] | None = None) -> Method:
    """The method ``text`` spells, with the regime's defaults; ``overrides`` as ``{"base.tau": 0.9}``."""
    spelling = parse(text)
    for path, value in (overrides or {}).items():
        override(spelling, path.split("."), value, f"method.{path}={value}")
    method = build(spelling, METHODS, regime)
    method.check_regime(regime)
    return method


def spell_method(method: Method, regime: str | None = None) -> str:
    """``make_method`` in reverse: every field, or with a regime only what differs from its defaults."""
    return write(method, regime)


__all__ = [
    "ALI",
    "DST",
    "METHODS",
    "RAT",
    "UDA",
    "VAT",
    "CoTraining",
    "Dash",
    "DebiasMatch",
    "DivideMix",
    "FixMatch",
    "FlexMatch",
    "Losses",
    "MeanTeacher",
    "Method",
    "MixMatch",
    "MutualLearning",
    "NoisyStudent",
    "PiModel",
    "PseudoLabel",
    "ReMixMatch",
    "SelfTraining",
    "SelfTuning",
    "Supervised",
    "TriTraining",
    "make_method",
    "spell_method",
]
