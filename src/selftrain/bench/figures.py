"""Benches with the runs of the paper's figures (``selftrain list figures``): few, short, with one seed.

Knows nothing of how a figure is drawn. Equal cells of several benches are run once.
"""

from __future__ import annotations

from typing import Any

from selftrain.bench.cpu import FOLDERS, FROZEN
from selftrain.bench.paper import DST, NO_WORST
from selftrain.bench.spec import Bench, Row

CURVES = {**FROZEN, "train.eval_every": 50}
SHORT: dict[str, Any] = {"train.steps": 300, "train.eval_every": 300}
# Figures about bias use the threshold of FixMatch's paper; at the frozen regime's default of 0.7 the bias is milder.
FIXMATCH = Row("fixmatch", {"method.tau": 0.95}, "FixMatch")
DST_FIXMATCH = Row(DST, {"method.base.tau": 0.95}, "DST(FixMatch)")
WITHOUT_WORST = Row(NO_WORST, {"method.base.tau": 0.95}, "DST without worst case")
LABELS_ONLY = Row("supervised", label="labels only")
# With the defaults of the frozen regime:
USUAL_FIXMATCH = Row("fixmatch", label="FixMatch")
USUAL_DST = Row(DST, label="DST(FixMatch)")
USUAL_FLEXMATCH = Row("flexmatch", label="FlexMatch")


def _figure(about: str, *rows: Row, data: tuple[str, ...] = FOLDERS[:1], **settings: Any) -> Bench:
    return Bench(f"runs of a figure: {about}", data, rows, {**CURVES, **settings})


def _usual(about: str, *rows: Row) -> Bench:
    return Bench(f"runs of a figure: {about}", FOLDERS[:1], rows, FROZEN)


FIGURES: dict[str, Bench] = {
    "figure/data-sampling": _figure(
        "different draws of the labels",
        *(Row("supervised", {"data.split_seed": draw}, f"draw {draw + 1}") for draw in range(4)),
        **SHORT,
    ),
    "figure/pretrained": _figure(
        "different features",
        *(Row("supervised", {"data.size": size}, f"lite0 at {size} px") for size in (128, 96, 64)),
        data=FOLDERS[1:],
        **SHORT,
    ),
    "figure/algorithm": _figure("labels only, FixMatch and DST", LABELS_ONLY, FIXMATCH, DST_FIXMATCH),
    "figure/per-class-error": _figure("labels only, FixMatch and DST", LABELS_ONLY, FIXMATCH, DST_FIXMATCH),
    "figure/accuracy": _usual(
        "two methods, and DST on them",
        USUAL_FIXMATCH,
        USUAL_DST,
        USUAL_FLEXMATCH,
        Row("dst(flexmatch)", label="DST(FlexMatch)"),
    ),
    "figure/pseudo-labels": _figure(
        "FixMatch and DST, with and without worst case", FIXMATCH, WITHOUT_WORST, DST_FIXMATCH
    ),
    "figure/worst-case": _figure("DST alone", DST_FIXMATCH),
    "figure/stability": _figure("FixMatch and DST on two datasets", FIXMATCH, DST_FIXMATCH, data=FOLDERS),
    "figure/per-category": _figure(
        "FixMatch and DST, with and without worst case", FIXMATCH, WITHOUT_WORST, DST_FIXMATCH, data=FOLDERS[1:]
    ),
    "figure/label-amount": _figure(
        "1 to 25 labels per class, narrow heads and 500 steps",
        *(
            Row(row.method, {**row.settings, **width, "data.labels_per_class": n}, f"{row.label}, {n}")
            for row, width in ((FIXMATCH, {}), (DST_FIXMATCH, {"method.width": 256}))
            for n in (1, 4, 25)
        ),
        data=FOLDERS[1:],
        **{"train.steps": 500, "train.eval_every": 500},
    ),
    "figure/pseudo-labels-other": _figure(
        "FixMatch and DST, with and without worst case, on other data",
        FIXMATCH,
        WITHOUT_WORST,
        DST_FIXMATCH,
        data=FOLDERS[1:],
    ),
    "figure/dynamic-thresholds": _usual(
        "methods with dynamic thresholds, and DST",
        USUAL_FIXMATCH,
        Row("dash", label="Dash"),
        USUAL_FLEXMATCH,
        USUAL_DST,
    ),
    "figure/multi-head": _usual(
        "methods with several heads or views, and DST",
        USUAL_FIXMATCH,
        Row("co_training", label="Co-training"),
        Row("tri_training", label="Tri-training"),
        USUAL_DST,
    ),
}
