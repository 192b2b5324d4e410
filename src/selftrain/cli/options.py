"""Options that several commands share, each defined once, and what commands make of them.

Knows nothing of what an option does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selftrain.cli.errors import translator_of
from selftrain.errors import UserError

if TYPE_CHECKING:
    from selftrain.console import Reporter
    from selftrain.export.exported import ExportedModel
    from selftrain.runs.run import Run

MOST_NAMED = 20
"""unreadable images that are named; of more, their number is given"""

RunFolder = Annotated[Path, typer.Argument(help="A run folder.")]
RunOrModel = Annotated[
    Path,
    typer.Argument(
        help="A run folder, an .onnx file made by 'selftrain export', or hf:USER/NAME[@REVISION], a model on the hub."
    ),
]
Root = Annotated[Path | None, typer.Option(help="Folder that holds the datasets.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Change any other setting; can be repeated: --set optim.lr=0.01 --set method.base.tau=0.9. "
        "See 'selftrain list settings'.",
    ),
]
Labels = Annotated[
    Path | None, typer.Option(help="CSV file with the columns path,label. Images without a row are unlabeled.")
]
LabelsPerClass = Annotated[int | None, typer.Option(min=1, help="Keep this many labels per class and hide the others.")]
Regime = Annotated[
    str | None,
    typer.Option(
        help="frozen (minutes on a laptop: a pretrained backbone runs once per image, and a small network learns on "
        "its features), finetune (train a pretrained backbone as a whole) or scratch (random weights). Default: the "
        "regime in 'selftrain list datasets'; scratch for wrn-*; otherwise finetune with a GPU and frozen without.",
        metavar="scratch|finetune|frozen",
    ),
]
Backbone = Annotated[
    str | None,
    typer.Option(
        help="lite0, wrn-28-2, any timm model, several (lite0+lite2), or a file (net.onnx). See 'list backbones'."
    ),
]
Quality = Annotated[
    str | None,
    typer.Option(
        help="Instead of a backbone and a size: fast (lite0 at 128 px instead of 192), balanced or best. The last two "
        "take a DINOv2 network if its weights can be downloaded, else the best that is installed, and say which.",
        metavar="fast|balanced|best",
    ),
]
Size = Annotated[int | None, typer.Option(min=8, help="Side in pixels of the images that the network sees.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Number of optimizer steps.")]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at an unreadable image instead of leaving it out.")]
MethodFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--method-file",
        help="Python file whose code may run, because --config, the run in --out or a bench file has a method in it; "
        "can be repeated. A file that is named in a method on the command line need not be named again.",
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="local|ray",
        help="Extract features on this machine, or on a Ray cluster (extra 'ray'): that of $RAY_ADDRESS, whose "
        "machines must share the images and the cache folder, or one on this machine.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress and no messages.")]


def settings_from(texts: list[str] | None) -> dict[str, str]:
    """Return the names and values of ``--set``; of a setting given twice, the last value."""
    return dict(map(_assignment, texts or []))


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UserError(f"--set {text}: write it as name=value, for example --set optim.lr=0.01.")
    return name.strip(), value.strip()


def make_reporter(context: typer.Context, quiet: bool = False) -> Reporter:
    """Return a reporter that names options as the command's user types them."""
    from selftrain.console import Reporter

    return Reporter(quiet, translate=translator_of(context.command))


def report_unreadable(unreadable: Sequence[object], reporter: Reporter) -> None:
    """Warn of the images that were left out."""
    for error in unreadable[:MOST_NAMED]:
        reporter.warn(f"left out {error}")
    if len(unreadable) > MOST_NAMED:
        reporter.warn(f"and {len(unreadable) - MOST_NAMED} more")


def open_model(path: Path, reporter: Reporter) -> Run | ExportedModel:
    """Return the run in a folder or on the hub, or an exported model."""
    if path.suffix.lower() == ".onnx" and not path.is_dir():
        from selftrain.export.exported import ExportedModel

        return ExportedModel(path, reporter)
    from selftrain.runs.run import Run

    if str(path).startswith("hf:") and not path.exists():
        from selftrain.export.hub import pull

        path = pull(str(path), reporter=reporter)
    return Run(path, reporter)
