"""The arguments of ``train``, checked and turned into settings, arrays and a folder.

Knows nothing of files in a dataset or of training; nothing is read here but a ``config.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from selftrain.config.resolve import read_config
from selftrain.console import Reporter
from selftrain.data.paths import absolute_path
from selftrain.data.source import ARRAYS, Source
from selftrain.data.sources.junk import canonical
from selftrain.errors import UserError
from selftrain.files import expanded
from selftrain.methods import Method, allow_method_file, name_files, spell_method
from selftrain.nn.onnx_backbone import is_file_backbone
from selftrain.nn.quality import choose
from selftrain.nn.runtimes import why_not_bf16


@dataclass(frozen=True)
class Arguments:
    """What the user asked for. Settings that were not given take their defaults later."""

    given: Mapping[str, Any]
    """settings by their dotted names"""
    arrays: Any = None
    """the data, if it was given as a pair of arrays"""
    test_arrays: Any = None
    method: Method | None = None
    """the method, if it was given as an object"""


def parse_arguments(
    *,
    data: Any,
    labels: Any,
    test: Any,
    unlabeled: Any,
    method: str | Method | None,
    root: Any,
    settings: Mapping[str, Any] | None,
    config: str | Path | None,
    method_files: Sequence[str | Path] = (),
    named: Mapping[str, Any],
) -> Arguments:
    """Check the arguments of ``train`` and join them.

    ``named`` holds the settings that have arguments of their own, by their dotted names, with None for those not given.
    """
    for file in method_files:
        allow_method_file(file)
    source = None if data is None else Source.parse(data, root=root, labels=labels)
    more = None if unlabeled is None else Source.parse(unlabeled, argument="unlabeled")
    test_arrays = test if isinstance(test, (tuple, list)) else None
    if source is not None and source.kind == "arrays" and test is not None and test_arrays is None:
        raise UserError("`test`: `data` is a pair of arrays (x, y), so the test set must also be a pair of arrays.")
    if is_file_backbone(str(named.get("network.backbone"))):
        named = {**named, "network.backbone": absolute_path(named["network.backbone"], "backbone")}
    given: dict[str, Any] = {
        **named,
        "data.path": None if source is None else source.absolute(),
        "data.labels": absolute_path(labels, "labels"),
        "data.test": absolute_path(test, "test") if test_arrays is None else ARRAYS,
        "data.unlabeled": None if more is None else more.absolute(),
        "data.root": absolute_path(root, "root"),
        "method": spell_method(method) if isinstance(method, Method) else method and name_files(method),
    }
    if source is not None and source.kind == "arrays" and source.is_features:
        if given["network.backbone"] not in (None, "features"):
            raise UserError(
                f"`backbone` {given['network.backbone']!r}: these arrays are features already. Leave `backbone` out."
            )
        given["network.backbone"] = "features"
    given = joined({name: value for name, value in given.items() if value is not None}, settings)
    if config is not None:
        given = read_config(Path(config)) | given
    if isinstance(given.get("data.junk_from"), str):
        given["data.junk_from"] = canonical(given["data.junk_from"], given.get("data.root"))
    arrays = data if source is not None and source.kind == "arrays" else None
    return Arguments(given, arrays, test_arrays, method if isinstance(method, Method) else None)


def with_quality(
    level: str | None,
    named: Mapping[str, Any],
    settings: Mapping[str, Any] | None,
    reporter: Reporter,
    config: str | Path | None = None,
) -> dict[str, Any]:
    """Return the settings that have arguments of their own with those of a quality level, which is announced.

    A level takes precedence over ``config``, but for how numbers are computed.
    """
    given = {**(settings or {}), **{name: value for name, value in named.items() if value is not None}}
    if level is None:
        return dict(named)
    for name in ("network.backbone", "network.weights"):
        if name in given:
            raise UserError(f"`quality` {level}: conflicts with {name}={given[name]}, which was also given. Keep one.")
    if given.get("regime", "frozen") != "frozen":
        raise UserError(f'`quality` {level}: levels are for frozen backbones, not for `regime="{given["regime"]}"`.')
    chosen = choose(level)
    reporter.say(chosen.in_words())
    choice = chosen.choice
    computed = {**({} if config is None else read_config(Path(config))), **given}
    fast = not torch.cuda.is_available() and not why_not_bf16(str(computed.get("data.engine", "auto")), "cpu")
    fast = fast and "data.precision" not in computed
    values = {
        "regime": "frozen", "network.backbone": choice.backbone, "data.size": choice.size,
        "data.weak_views": choice.weak, "data.strong_views": choice.strong,
    } | ({"data.precision": "bf16"} if fast else {})  # fmt: skip
    return {**named, **{name: value for name, value in values.items() if name not in given}}


def joined(given: dict[str, Any], settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments together with ``settings``, which may not contradict them."""
    if settings is None:
        settings = {}
    if not isinstance(settings, Mapping):
        raise UserError(f"`settings`: expected names and values such as {{'optim.lr': 0.01}}, got {settings!r}.")
    for name, value in settings.items():
        if not isinstance(name, str):
            raise UserError(f"`settings`: {name!r} is not the name of a setting such as 'optim.lr'.")
        if name in given and str(given[name]) != str(value):
            raise UserError(
                f"`settings`: {name}={value} conflicts with {given[name]}, which was also given. Keep one of them."
            )
    both = {**given, **settings}
    if both.get("data.cache"):
        both["data.cache"] = str(expanded(both["data.cache"]).resolve())  # it need not exist yet
    return both
