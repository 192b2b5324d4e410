"""``selftrain list``: the methods, datasets, backbones, benches, figures and settings to choose from.

Knows nothing of what there is to list.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer
from rich.console import Console


class Kind(str, Enum):
    """What there are lists of."""

    methods = "methods"
    datasets = "datasets"
    backbones = "backbones"
    settings = "settings"
    benches = "benches"
    figures = "figures"


What = Annotated[Kind, typer.Argument(help="What to list.")]
Pattern = Annotated[str | None, typer.Argument(help="Only names that match: 'dst', 'resnet*', 'optim.*'.")]


def list_(what: What, pattern: Pattern = None) -> None:
    """List methods (with every option), datasets, backbones, benches, figures or settings."""
    from selftrain.cli import listing

    console = Console()
    for table in listing.tables(what.value, pattern):
        console.print(table)
