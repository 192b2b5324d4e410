"""``selftrain train``: from images and labels to a run folder.

Knows nothing of training: it turns options into the arguments of one call.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selftrain.cli.options import (
    Backbone,
    Labels,
    LabelsPerClass,
    MethodFiles,
    Quality,
    Quiet,
    Regime,
    Root,
    Settings,
    Size,
    Steps,
    Strict,
    make_reporter,
    settings_from,
)

Data = Annotated[
    str | None,
    typer.Argument(
        help="A folder of images, the name of a dataset such as 'cifar10' (see 'selftrain list datasets'), 'hf:NAME' "
        "from Hugging Face, tar files ('shards/{000..099}.tar'), or features: a .npz or .npy file, or a folder made by "
        "'selftrain embed', with --labels FILE.csv. A folder of images has one of three layouts: "
        "(1) labeled/<class>/*, unlabeled/** and optionally test/<class>/*; "
        "(2) train/<class>/*, test/<class>/* with --labels-per-class, a benchmark; "
        "(3) any tree with --labels FILE.csv.",
        show_default=False,
    ),
]
Test = Annotated[
    Path | None,
    typer.Option(
        help="Folder of test images with one subfolder per class; with --labels, also a CSV file with the columns "
        "path,label. With features, a second file of features, labeled in --labels or in an array y."
    ),
]
Unlabeled = Annotated[
    str | None,
    typer.Option(help="More unlabeled images: a folder, tar files ('shards/{000..099}.tar') or hf:NAME."),
]
Method = Annotated[
    str | None,
    typer.Option(
        help="Method to train, with its options in brackets: fixmatch, 'dst(fixmatch(tau=0.9), worst=false)', "
        "'dst(fixmatch, preset=paper)'. See 'selftrain list methods'. A method of your own is a class in a file: "
        "path/file.py:MyMethod, 'dst(path/file.py:MyMethod)'.",
        show_default="dst(fixmatch)",
    ),
]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the initial weights, batches and augmentation.")]
Out = Annotated[Path | None, typer.Option(help="Run folder.", show_default="runs/<data>-<method>-seed<n>")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Resume the run in --out; it ends as if it had never been stopped.")
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Delete the run in --out first, once the data has been read without error.")
]
Yes = Annotated[
    bool,
    typer.Option("--yes", "-y", help="Do not stop at labels that look mistyped; as --set data.keep_odd_labels=true."),
]
Config = Annotated[Path | None, typer.Option(help="The config.yaml of an earlier run, to repeat it.")]
Compile = Annotated[
    bool, typer.Option("--compile", help="Compile the network: a slower start, then somewhat faster training.")
]


def train(
    context: typer.Context,
    data: Data = None,
    labels: Labels = None,
    test: Test = None,
    unlabeled: Unlabeled = None,
    method: Method = None,
    backbone: Backbone = None,
    quality: Quality = None,
    regime: Regime = None,
    labels_per_class: LabelsPerClass = None,
    steps: Steps = None,
    seed: Seed = None,
    size: Size = None,
    root: Root = None,
    set_: Settings = None,
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    yes: Yes = False,
    config: Config = None,
    method_file: MethodFiles = None,
    strict: Strict = False,
    compile_: Compile = False,
    quiet: Quiet = False,
) -> None:
    """Train a classifier on DATA and write a run folder.

    The folder holds config.yaml (repeats the run), split.json (which images are labeled), metrics.jsonl, results.json,
    checkpoints/, model/ and log.txt. Nothing is ever chosen on test data: the final model is the last one.
    """
    from selftrain.cli.measures import print_measures
    from selftrain.engine.distributed import started
    from selftrain.runs.trainer import train as run_training

    main_process = started().rank == 0
    run = run_training(
        data,
        labels=labels,
        test=test,
        unlabeled=unlabeled,
        method=method,
        backbone=backbone,
        quality=quality,
        regime=regime,
        labels_per_class=labels_per_class,
        steps=steps,
        seed=seed,
        size=size,
        root=root,
        settings=({"train.compile": True} if compile_ else {})
        | ({"data.keep_odd_labels": True} if yes else {})
        | settings_from(set_),
        config=config,
        method_files=method_file or (),
        out=out,
        resume=resume,
        overwrite=overwrite,
        strict=True if strict else None,
        reporter=make_reporter(context, quiet or not main_process),
    )
    if main_process and not quiet:
        print_measures(run.results, run.results["evaluated_on"])
