"""Resolve settings: dotted names, from Python or a ``config.yaml``, to checked settings and back.

Knows nothing of datasets, methods or the command line: their defaults reach it as dotted names like any others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from selftrain.config.options import check_fields, field_types, flatten
from selftrain.config.regimes import REGIMES
from selftrain.config.settings import SECTIONS, Settings, known_settings
from selftrain.errors import UserError, nearest
from selftrain.files import read_yaml


def make_settings(regime: str, given: Mapping[str, Any]) -> Settings:
    """Return settings from dotted names (``{"optim.lr": 0.01, "seed": 3}``); the regime's defaults fill in the rest."""
    if regime not in REGIMES:
        raise UserError(f'`regime="{regime}"`: expected one of {", ".join(REGIMES)}.{nearest(regime, REGIMES)}')
    values: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    top: dict[str, Any] = {"regime": regime}
    known = known_settings()
    for name, value in {**REGIMES[regime], **given}.items():
        if name not in known:
            raise UserError(_unknown(name))
        section, _, key = name.rpartition(".")
        (values[section] if section else top)[key] = value
    sections = {}
    for name, cls in SECTIONS.items():
        sections[name] = cls(**values[name])
        check_fields(sections[name], f"`{name}.{{}}`".format)
    settings = Settings(**top, **sections)
    check_fields(settings, "`{}`".format)
    return settings


def _unknown(name: str) -> str:
    section, _, key = name.partition(".")
    if section in SECTIONS and key:  # compared by the rest of the name: all settings of a section begin alike
        known = field_types(SECTIONS[section])
        near = nearest(key, known).replace("'", f"'{section}.", 1)
        return f"`settings`: there is no setting {name!r}.{near} The settings of {section}: {', '.join(known)}."
    return f"`settings`: there is no setting {name!r}.{nearest(name, known_settings())}"


def with_values(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Return the same settings with the values of some dotted names replaced."""
    for name, value in values.items():
        section, _, key = name.partition(".")
        if key:
            part = getattr(settings, section)
            settings = replace(settings, **{section: replace(part, **{key: value})})
        else:
            settings = replace(settings, **{section: value})
    return settings


def dump_settings(settings: Settings) -> str:
    """Return the text of a ``config.yaml``."""
    tree = asdict(settings)
    return "# Repeats this run: selftrain train --config config.yaml --out ANOTHER\n" + yaml.safe_dump(
        tree, sort_keys=False, allow_unicode=True, width=120
    )


def read_config(path: Path) -> dict[str, Any]:
    """Return the settings in a ``config.yaml`` as dotted names."""
    tree = read_yaml(path, "`config`")
    if not isinstance(tree, dict):
        raise UserError(f"`config` {path}: expected settings such as 'optim: {{lr: 0.01}}'.")
    return flatten(tree)
