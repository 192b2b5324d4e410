"""The search space of a sweep: values of a setting, or a range; the paper's grids by default.

Knows nothing of Optuna.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from selftrain.config.options import spell
from selftrain.errors import UserError
from selftrain.files import read_yaml
from selftrain.methods import method_info


@dataclass(frozen=True)
class Range:
    low: float
    high: float
    log: bool = False
    """search on a logarithmic scale"""

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def __str__(self) -> str:
        return f"{spell(self.low)}..{spell(self.high)}" + (" log" if self.log else "")


Space = Mapping[str, tuple[Any, ...] | Range]
EXAMPLE = "Write it as 'method.tau=0.7,0.8,0.9', 'optim.lr=0.001..0.03' or 'optim.lr=0.001..0.03 log'."
# The paper's search for every method; from random weights it uses FixMatch's learning rate.
LEARNING_RATES, WEIGHT_DECAYS = (0.001, 0.003, 0.01, 0.03), (0.0005, 0.001)


def usual_space(method: str, regime: str, fixed: Mapping[str, Any]) -> Space:
    """Return the paper's grid for a method, or for the method it wraps, without what the user has fixed."""
    info, prefix = method_info(method), "method."
    while info.base is not None:
        info, prefix = info.base, f"{prefix}base."
    grid = {f"{prefix}{name}": values for name, values in info.grid.items()}
    rates = {} if regime == "scratch" else {"optim.lr": LEARNING_RATES}
    common = {} if info.fitted else {**rates, "optim.weight_decay": WEIGHT_DECAYS}
    given = {*fixed, *(f"{prefix}{name}" for name in info.options)}
    whole = {**grid, **common}
    return {name: values for name, values in whole.items() if name not in given}


def parse_search(texts: Sequence[str]) -> Space:
    """Return the space that texts such as ``method.tau=0.7,0.8`` and ``optim.lr=0.001..0.03 log`` describe."""
    space: dict[str, tuple[Any, ...] | Range] = {}
    for text in texts:
        where = f"`search` {text}"
        name, equals, values = (part.strip() for part in text.partition("="))
        if not (name and equals and values):
            raise UserError(f"{where}: a name or its values are missing. {EXAMPLE}")
        if match := re.fullmatch(r"([^\s,]+?)\.\.([^\s,]+)(\s+log)?", values):
            low, high = _value(match[1]), _value(match[2])
            space[name] = _range(low, high, bool(match[3]), where)
        else:
            space[name] = _each_once([_value(word) for word in values.split(",") if word.strip()], where)
    return space


def read_space(path: Path) -> Space:
    """Return the space in a YAML file: a list of values per setting, or ``{low: 0.001, high: 0.03, log: true}``."""
    tree = read_yaml(path, "`space`")
    if not isinstance(tree, dict) or not tree:
        raise UserError(f"`space` {path}: expected lines such as 'method.tau: [0.7, 0.8]'.")
    space: dict[str, tuple[Any, ...] | Range] = {}
    for name, values in tree.items():
        where = f"`space` {path}: {name}"
        if isinstance(values, list) and values and not any(isinstance(value, (list, dict)) for value in values):
            space[str(name)] = _each_once([_value(value) for value in values], where)
        elif isinstance(values, dict) and {"low", "high"} <= set(values) <= {"low", "high", "log"}:
            low, high = _value(values["low"]), _value(values["high"])
            space[str(name)] = _range(low, high, bool(values.get("log")), where)
        else:
            raise UserError(f"{where}={values}: expected a list of values, or {{low: 0.001, high: 0.03, log: true}}.")
    return space


def _each_once(values: list[Any], where: str) -> tuple[Any, ...]:
    if not values:
        raise UserError(f"{where}: no values. {EXAMPLE}")
    if len(set(map(str, values))) < len(values):
        raise UserError(f"{where}: the same value is given twice.")
    return tuple(values)


def _value(word: Any) -> Any:
    """Return a number, true, false, none or a word; ``1e-3`` is a number, unlike in YAML."""
    if not isinstance(word, str):
        return word
    try:
        return float(word) if re.search(r"[.eE]", word) else int(word)
    except ValueError:
        value = yaml.safe_load(word) if word.strip().lower() in ("true", "false", "null") else word.strip()
        return value


def _range(low: Any, high: Any, log: bool, where: str) -> Range:
    numbers = all(isinstance(end, (int, float)) and not isinstance(end, bool) for end in (low, high))
    if not numbers or not math.isfinite(low) or not low < high or not math.isfinite(high):
        raise UserError(f"{where}: a range goes from a smaller number to a larger one. {EXAMPLE}")
    if log and low <= 0:
        raise UserError(f"{where}: a logarithmic range must start above 0, not at {low}.")
    return Range(low, high, log)


def size(space: Space) -> float:
    """Return the number of points, infinite with a range."""
    return math.prod(math.inf if isinstance(values, Range) else len(values) for values in space.values())
