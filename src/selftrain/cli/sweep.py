"""``selftrain sweep``: search for good settings on held-out labels.

Knows nothing of how settings are searched; it turns options into a ``Sweep`` and prints the result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from selftrain.cli.options import (
    Backbone,
    Labels,
    LabelsPerClass,
    MethodFiles,
    Quiet,
    Regime,
    Root,
    Settings,
    Steps,
    make_reporter,
    settings_from,
)

Data = Annotated[str, typer.Argument(help="A folder of images, or the name of a dataset, as for 'selftrain train'.")]
Method = Annotated[str, typer.Option(help="Method to train. See 'selftrain list methods'.")]
Trials = Annotated[int, typer.Option(min=1, help="Number of trials, of all processes together.")]
Storage = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Database of the study, e.g. sqlite:///study.db or postgresql://...; processes and machines with the "
        "same database share the work.",
        show_default="an SQLite file in --out",
    ),
]
Study = Annotated[str, typer.Option(help="Name of the study in its database.")]
Search = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUES",
        help="Search this instead of the paper's grid; can be repeated: 'method.tau=0.7,0.8,0.9' or "
        "'optim.lr=0.001..0.03 log'.",
    ),
]
SpaceFile = Annotated[Path | None, typer.Option(help="YAML file with the search space.", metavar="FILE.yaml")]
Folds = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="Cut the labels of each class into this many parts, and hold out each of them once.",
        show_default="2, unless data.validation_per_class is set",
    ),
]
Out = Annotated[Path, typer.Option(help="Folder for the run folders, best.yaml and the trials.")]
Prune = Annotated[bool, typer.Option(help="End a trial early that is worse than half of the others.")]
Grace = Annotated[
    int,
    typer.Option(min=2, help="Seconds of silence after which a process counts as dead and its trial is tried again."),
]


def sweep(
    context: typer.Context,
    data: Data,
    method: Method = "dst(fixmatch)",
    trials: Trials = 20,
    storage: Storage = None,
    study: Study = "selftrain",
    search: Search = None,
    space: SpaceFile = None,
    folds: Folds = None,
    labels: Labels = None,
    labels_per_class: LabelsPerClass = None,
    regime: Regime = None,
    backbone: Backbone = None,
    steps: Steps = None,
    root: Root = None,
    set_: Settings = None,
    out: Out = Path("runs/sweep"),
    prune: Prune = True,
    grace: Grace = 60,
    method_file: MethodFiles = None,
    quiet: Quiet = False,
) -> None:
    """Search for good settings, measured on held-out labels and never on the test set.

    The same command resumes where it was stopped, and can run several times at once, on several machines. It writes
    best.yaml (for 'selftrain train --config best.yaml'), trials.csv and trials.md.
    """
    from selftrain.methods import allow_method_file, name_files
    from selftrain.sweep.search import Sweep
    from selftrain.sweep.space import parse_search, read_space

    for file in method_file or []:
        allow_method_file(file)
    method = name_files(method)
    given = _settings(data, labels, root)
    options = {
        "data.labels_per_class": labels_per_class,
        "network.backbone": backbone,
        "method": method,
        "regime": regime,
        "train.steps": steps,
    }
    given |= {name: value for name, value in options.items() if value is not None} | settings_from(set_)
    whole = {**(read_space(space) if space else {}), **parse_search(search or [])}
    parts = folds or (0 if "data.validation_per_class" in given else 2)
    result = Sweep(given, out, whole, trials, parts, storage, study, prune, grace).run(make_reporter(context, quiet))
    if not quiet:
        typer.echo(result.markdown())
    best = "  ".join(f"{key}={value}" for key, value in result.best.items())
    typer.echo(f"best: trial {result.number} with {100 * result.value:.1f} on held-out labels: {best}")
    typer.echo(f"train with it: selftrain train --config {out / 'best.yaml'} --out RUN")


def _settings(data: str, labels: Path | None, root: Path | None) -> dict[str, Any]:
    """Return the settings that say where the data is, understood from any folder."""
    from selftrain.data.paths import absolute_path
    from selftrain.data.source import Source

    places = {
        "data.path": Source.parse(data, root=root, labels=labels).absolute(),
        "data.labels": absolute_path(labels, "labels"),
        "data.root": absolute_path(root, "root"),
    }
    return {name: value for name, value in places.items() if value is not None}
