"""All benches by name, and how one is found.

Knows nothing of how a bench is run or shown.
"""

from __future__ import annotations

from pathlib import Path

from selftrain.bench.backbones import BACKBONES
from selftrain.bench.cpu import CPU
from selftrain.bench.figures import FIGURES
from selftrain.bench.from_yaml import read_bench
from selftrain.bench.paper import PAPER
from selftrain.bench.piles import PILE
from selftrain.bench.spec import Bench
from selftrain.bench.trained import TRAINED
from selftrain.bench.tune import STUDIES, TUNE
from selftrain.errors import UserError, nearest

YAML_SUFFIXES = (".yaml", ".yml")
BENCHES: dict[str, Bench] = {**CPU, **TRAINED, **PILE, **BACKBONES, **TUNE, **PAPER, **STUDIES, **FIGURES}


def find_bench(name: str) -> Bench:
    """Return the bench of that name, or the one in a YAML file."""
    if name.endswith(YAML_SUFFIXES):
        return read_bench(Path(name))
    if name not in BENCHES:
        raise UserError(
            f"bench {name}: there is no bench of that name.{nearest(name, BENCHES)} See 'selftrain list benches'."
        )
    return BENCHES[name]
