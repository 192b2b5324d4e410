"""Settings and method of a run, from what the user gave, the dataset, the regime and, on resume, the run folder.

Knows nothing of data files or training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from selftrain.config.options import flatten
from selftrain.config.regimes import VECTORS
from selftrain.config.resolve import make_settings, with_values
from selftrain.config.settings import Settings, changes_results
from selftrain.data.source import Source
from selftrain.errors import UserError
from selftrain.methods import Method, make_method, method_info, spell_method
from selftrain.nn.onnx_backbone import is_file_backbone, side_of_file
from selftrain.runs.layout import RunLayout
from selftrain.runs.places import known_cache

PATCHES_SIZE = 224
"""side of the images of a network of patches, a multiple of the usual ones: 8, 14, 16 and 32 pixels"""


def resolve(given: Mapping[str, Any], method: Method | None = None) -> tuple[Settings, Method]:
    """Return the settings and the method that dotted names such as ``{"method.base.tau": 0.9}`` ask for.

    A ``method`` that is given as an object is taken as it is.
    """
    given = _with_features(dict(given))
    options = {name.removeprefix("method."): given.pop(name) for name in list(given) if name.startswith("method.")}
    regimes = method.regimes if method else method_info(str(given.get("method") or Settings.method)).regimes
    regime = str(given.pop("regime", None) or _default_regime(given, regimes))
    spec = _source(given).spec
    of_data = {} if spec is None else spec.defaults.get(regime, {})
    if given.get("network.backbone") == "features":
        of_data = {**VECTORS, **of_data}
    elif regime == "frozen" and given.get("data.size") is None:
        of_data = {**of_data, **_own_size(str(given.get("network.backbone") or ""))}
    settings = make_settings(regime, {**of_data, **given})
    if method is not None and options:
        raise UserError(f"`method.{next(iter(options))}`: set it in the method object, {spell_method(method)}.")
    method = method or make_method(settings.method, settings.regime, options)
    method.check_regime(settings.regime)
    if settings.network.backbone == "features" and settings.regime != "frozen":
        raise UserError(f'`regime="{settings.regime}"`: features train in the frozen regime only. Leave it out.')
    if settings.network.tune != "all" and settings.regime != "finetune":
        raise UserError(
            f"network.tune={settings.network.tune}: part of a backbone is tuned in the finetune regime only, not in "
            f'the {settings.regime} regime. Pass `regime="finetune"`, or leave it out.'
        )
    return with_values(settings, {"method": spell_method(method)}), method


def _own_size(backbone: str) -> dict[str, Any]:
    """Return the size of the images where that of the regime would not do: for files, and networks of patches."""
    if is_file_backbone(backbone):
        return {"data.size": side_of_file(backbone)}
    return {"data.size": PATCHES_SIZE} if "patch" in backbone else {}


def _with_features(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with the backbone "features" if the data is a file of features."""
    if _source(given).kind != "features":
        return given
    if given.get("network.backbone") not in (None, "features"):
        raise UserError(
            f"`backbone` {given['network.backbone']!r}: {given['data.path']} holds features already. Leave `backbone` "
            f"out."
        )
    return {**given, "network.backbone": "features"}


def _default_regime(given: Mapping[str, Any], possible: tuple[str, ...]) -> str:
    """Return scratch for Wide ResNets, arrays and datasets of small images; else frozen, or finetune with a GPU.

    A method that runs in one regime only decides.
    """
    if len(possible) == 1:
        return possible[0]
    backbone = str(given.get("network.backbone") or "")
    if backbone.startswith("wrn") or given.get("network.weights") == "none":
        return "scratch"
    source = _source(given)
    if not backbone and (source.kind == "arrays" or (source.spec is not None and source.spec.regime == "scratch")):
        return "scratch"
    return "finetune" if torch.cuda.is_available() and backbone != "features" else "frozen"


def _source(given: Mapping[str, Any]) -> Source:
    return Source.from_settings(given.get("data.path"), root=given.get("data.root"), labels=given.get("data.labels"))


def resumed(run: RunLayout, given: Mapping[str, Any], method: Method | None) -> dict[str, Any]:
    """Return the settings of a run that is resumed, by their dotted names.

    Raises a UserError if those given now contradict those it was started with.
    """
    saved = {**run.read_settings(), "train.devices": None}  # a run resumes on as many devices as there are now
    saved["data.cache"] = known_cache(saved.get("data.cache"))
    asked, _ = resolve({**saved, **given}, method)
    before, now = (flatten(asdict(settings)) for settings in (make_settings(saved["regime"], saved), asked))
    for name in before:
        if before[name] != now[name] and changes_results(name):
            raise UserError(
                f"`resume=True`: {run.folder} was started with {name}={before[name]}, not {now[name]}. "
                f"Leave {name} out to resume it, or start a new run in another folder."
            )
    if (before["data.test"] is None) != (now["data.test"] is None):  # it may move, but not come or go
        raise UserError(
            f"`resume=True`: {run.folder} was started with data.test={before['data.test']}, not {now['data.test']}. "
            f"Resume it as it was started, or start a new run in another folder."
        )
    return now
