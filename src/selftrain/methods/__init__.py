"""The methods by name, and method strings.

Knows nothing of training: see ``selftrain.engine`` for the loop. Besides the methods, this module has the names that a
method of your own needs: ``Method``, ``SelfTraining``, ``Losses``, ``PseudoLabels`` and some losses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selftrain.methods.base import AddOn as AddOn
from selftrain.methods.base import Losses as Losses
from selftrain.methods.base import Method as Method
from selftrain.methods.base import SelfTraining as SelfTraining
from selftrain.methods.base import Wrapper as Wrapper
from selftrain.methods.base import labeled_loss as labeled_loss
from selftrain.methods.base import labeled_views as labeled_views
from selftrain.methods.fitted import FittedMethod as FittedMethod
from selftrain.methods.functional import PseudoLabels as PseudoLabels
from selftrain.methods.functional import pseudo_cross_entropy as pseudo_cross_entropy
from selftrain.methods.functional import threshold as threshold
from selftrain.methods.info import MethodInfo as MethodInfo
from selftrain.methods.info import read_info
from selftrain.methods.own import KnownMethods, allow_named
from selftrain.methods.own import allow_method_file as allow_method_file
from selftrain.methods.spelling import build, override, parse, references, respell, with_full_references, write

# The table of methods: one import per method, in the order in which lists and tables show them.
# isort: off
from selftrain.methods.supervised import Supervised as Supervised
from selftrain.methods.pseudo_label import PseudoLabel as PseudoLabel
from selftrain.methods.pi_model import PiModel as PiModel
from selftrain.methods.mean_teacher import MeanTeacher as MeanTeacher
from selftrain.methods.vat import VAT as VAT
from selftrain.methods.ali import ALI as ALI
from selftrain.methods.rat import RAT as RAT
from selftrain.methods.uda import UDA as UDA
from selftrain.methods.mixmatch import MixMatch as MixMatch
from selftrain.methods.remixmatch import ReMixMatch as ReMixMatch
from selftrain.methods.fixmatch import FixMatch as FixMatch
from selftrain.methods.dash import Dash as Dash
from selftrain.methods.flexmatch import FlexMatch as FlexMatch
from selftrain.methods.debiasmatch import DebiasMatch as DebiasMatch
from selftrain.methods.freematch import FreeMatch as FreeMatch
from selftrain.methods.softmatch import SoftMatch as SoftMatch
from selftrain.methods.adamatch import AdaMatch as AdaMatch
from selftrain.methods.comatch import CoMatch as CoMatch
from selftrain.methods.simmatch import SimMatch as SimMatch
from selftrain.methods.self_tuning import SelfTuning as SelfTuning
from selftrain.methods.noisy_student import NoisyStudent as NoisyStudent
from selftrain.methods.dividemix import DivideMix as DivideMix
from selftrain.methods.co_training import CoTraining as CoTraining
from selftrain.methods.tri_training import TriTraining as TriTraining
from selftrain.methods.mutual_learning import MutualLearning as MutualLearning
from selftrain.methods.logistic import Logistic as Logistic
from selftrain.methods.prototypes import Prototypes as Prototypes
from selftrain.methods.knn import KNN as KNN
from selftrain.methods.label_spreading import LabelSpreading as LabelSpreading
from selftrain.methods.diffusion import Diffusion as Diffusion
from selftrain.methods.self_logistic import SelfLogistic as SelfLogistic
from selftrain.methods.abc import ABC as ABC
from selftrain.methods.daso import DASO as DASO
from selftrain.methods.crest import CReST as CReST
from selftrain.methods.openmatch import OpenMatch as OpenMatch
from selftrain.methods.dst import DST as DST
# isort: on

METHODS: dict[str, type[Method]] = {
    cls.name: cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, Method) and hasattr(cls, "name")
}


def make_method(text: str, regime: str = "scratch", overrides: Mapping[str, Any] | None = None) -> Method:
    """Return the method that ``text`` spells, with the regime's defaults; ``overrides`` as ``{"base.tau": 0.9}``."""
    spelling = parse(text)
    for path, value in (overrides or {}).items():
        override(spelling, path.split("."), value)
    method = build(spelling, KnownMethods(METHODS), regime)
    method.check_regime(regime)
    return method


def with_options(text: str, options: Mapping[str, Any]) -> str:
    """Return a method string with other values of some options, ``{"base.tau": 0.9}``; the rest stays as it is."""
    spelling = parse(text)
    for path, value in options.items():
        override(spelling, path.split("."), spell_method(value) if isinstance(value, Method) else value)
    return respell(spelling)


def spell_method(method: Method, regime: str | None = None) -> str:
    """Return the string that spells a method: every option, or with a regime those that differ from its defaults."""
    return write(method, regime)


def method_info(text: str) -> MethodInfo:
    """Return the facts about the method that ``text`` spells. Never raises: an unknown method has its text as title."""
    return read_info(text, KnownMethods(METHODS, load=False))


def name_files(text: str) -> str:
    """Let this process run the files that a method string names; return it with absolute paths and hashes.

    Call it with what the user has typed only, never with the content of a file.
    """
    spelling = parse(text)
    if not (named := references(spelling)):
        return text
    allow_named(named)
    return respell(with_full_references(spelling))
