"""Benches: datasets x methods x seeds, run once each and shown as a table. Which ones there are, as data.

Knows nothing of training beyond the names of methods and settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from selftrain.bench.cpu import CPU, DIGITS, FOLDERS, FROZEN, quick
from selftrain.bench.from_yaml import read_bench
from selftrain.bench.paper import DST, NO_WORST, PAPER
from selftrain.bench.spec import Bench, Row, Variant, changes, rows_of
from selftrain.errors import UserError, nearest
from selftrain.methods import METHODS, FixMatch
from selftrain.methods.spelling import usual_values

__all__ = [
    "BENCHES",
    "DIGITS",
    "DST",
    "FOLDERS",
    "FROZEN",
    "GRIDS",
    "NO_WORST",
    "Bench",
    "Row",
    "Variant",
    "changes",
    "find_bench",
    "rows_of",
]

BASES = ("fixmatch", "flexmatch", "mean_teacher", "noisy_student", "dividemix")
MORE_BASES = ("uda", "dash", "debiasmatch", "pseudo_label")
OTHERS = (
    "pi_model", "vat", "ali", "mixmatch", "remixmatch", "self_tuning", "co_training", "tri_training", "mutual_learning",
)  # fmt: skip

ALL_METHODS = rows_of(
    ("supervised", *(m for base in (*BASES, *MORE_BASES) for m in (base, f"dst({base})")), *OTHERS),
)


def _study(about: str, *rows: Row) -> Bench:
    return Bench(f"defaults of the frozen regime: {about}", FOLDERS, rows, FROZEN)


def _thresholds(**same: Any) -> Iterator[Row]:
    """FixMatch and DST at each threshold; ``same``: further options of FixMatch, alone and inside DST."""
    for tau in (0.7, 0.8, 0.9, 0.95):
        for method in ("fixmatch", NO_WORST, DST):
            own = {} if tau == usual_values(FixMatch, "frozen")["tau"] else {"tau": tau}
            inside = "method." if method == "fixmatch" else "method.base."
            options = {inside + name: value for name, value in {**own, **same}.items()}
            yield Row(method, options, f"{method}, tau {tau}")


# Held-out labels come on top of those that are trained on, as many as a class can spare; no test image is looked at.
HELD_OUT = {"data.validation_per_class": 20, "data.evaluate_on": "validation"}
MORE_HELD_OUT = {"cifar10-mini": {"data.validation_per_class": 200}}
LAMBDAS, TAUS, TEMPERATURES = (0.1, 0.3, 1.0, 3.0), (0.7, 0.8, 0.9, 0.95), (0.1, 0.5, 1.0, 2.0)
# What the paper searched for fine-tuning; for methods it is silent about, what they depend on most.
GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "pseudo_label": {"tau": TAUS, "lam": LAMBDAS},
    "pi_model": {"lam": LAMBDAS, "ramp": (0.125, 0.25)},
    "mean_teacher": {"lam": LAMBDAS, "ramp": (0.125, 0.25), "m": (0.99, 0.999)},
    "vat": {"eps": (0.3, 1.0, 3.0), "lam": (0.3, 1.0)},
    "ali": {"lam": (0.1, 0.3, 1.0)},
    "uda": {"T": TEMPERATURES, "lam": LAMBDAS},
    "mixmatch": {"lam": (5.0, 25.0, 75.0)},
    "remixmatch": {"lam": (0.5, 1.5)},
    "fixmatch": {"tau": TAUS, "lam": LAMBDAS},
    "dash": {"lam": LAMBDAS},
    "flexmatch": {"tau": TAUS, "lam": LAMBDAS},
    "debiasmatch": {"kappa": (0.1, 0.3, 1.0, 3.0), "tau": TAUS, "lam": LAMBDAS},
    "self_tuning": {"D": (24, 32), "lam": (0.1, 0.3, 1.0)},
    "noisy_student": {"T": TEMPERATURES, "lam": LAMBDAS},
    "dividemix": {"lam_u": (1.0, 5.0, 25.0)},
    "co_training": {"tau": TAUS, "lam": LAMBDAS},
    "tri_training": {"tau": (0.0, 0.7, 0.95), "lam": LAMBDAS},
    "mutual_learning": {"tau": TAUS, "lam": LAMBDAS},
}


def _grid_rows() -> Iterator[Row]:
    for method, grid in GRIDS.items():
        usual = usual_values(METHODS[method], "frozen")
        yield Row(method)
        for option, values in grid.items():
            for value in values:
                if value != usual[option]:
                    yield Row(method, {f"method.{option}": value}, f"{method}, {option} {value}")


# Of the frozen regime: what every method has, and what only DST has.
SHARED: dict[str, tuple[Any, ...]] = {
    "base.w_strong": (0.0, 0.5, 1.0),
    "base.tau": (0.7, 0.8, 0.9),
    "data.crop_scale": (0.2, 0.5),
    "data.clean_crop": (0.75, 0.875, 1.0),
    "optim.lr": (0.003, 0.01, 0.03),
    "optim.weight_decay": (0.0005, 0.005, 0.01, 0.02),
    "optim.ema": (0.0, 0.99, 0.995),
    "network.bottleneck": (256, 512, 1024),
    "network.dropout": (0.0, 0.2, 0.5),
    "network.unit_features": (True, False),
    "network.bn_apart": (False, True),
    "train.batch": (32, 64),
    "train.unlabeled_batch": (64, 128),
    "train.steps": (1000, 2000),
}
OWN: dict[str, tuple[Any, ...]] = {
    "reversal": (0.3, 0.5, 1.0),
    "warmup": (100.0, 300.0, 1000.0),
    "width": (256, 512, 1024),
    "worst_view": ("weak", "strong"),
    "worst_layers": (2, 3),
    "dropout": (0.0, 0.5),
    "eta": (0.3, 1.0, 3.0),
    "eta_prime": (1.0, 2.0),
    "worst_labels": ("predicted", "true"),
    "worst_threshold": (False, True),
}
VIEWS = ((1, 2), (2, 4), (4, 8))


def _shared_rows() -> Iterator[Row]:
    for setting, values in SHARED.items():
        for value in values:
            for method in ("fixmatch", DST):
                own = setting.partition("base.")[2]
                name = setting if not own else f"method.{own}" if method == "fixmatch" else f"method.{setting}"
                yield Row(method, {name: value}, f"{method}, {name.rpartition('.')[2]} {value}")
    yield from changes(
        [NO_WORST, "flexmatch", "mean_teacher", "dash", "pseudo_label"], "optim.weight_decay", (0.0005, 0.02)
    )
    yield from changes([NO_WORST], "network.bn_apart", SHARED["network.bn_apart"])
    for weak, strong in VIEWS:
        kept = {"data.weak_views": weak, "data.strong_views": strong}
        yield from (Row(method, kept, f"{method}, {weak} weak, {strong} strong") for method in ("fixmatch", DST))
    for method, option in (("dividemix", "method.mix_labeled"), ("dst(dividemix)", "method.base.mix_labeled")):
        yield from changes([method], option, (True, False))


def _own_rows() -> Iterator[Row]:
    for option, values in OWN.items():
        yield from changes([DST], f"method.{option}", values)


BENCHES: dict[str, Bench] = {
    "cpu/methods": Bench(
        "every method and every DST combination on frozen features",
        FOLDERS,
        (
            *ALL_METHODS,
            Row("fixmatch", {"method.tau": 0.8}, "fixmatch(tau=0.8)"),
            Row(DST, {"method.base.tau": 0.8}, "dst(fixmatch(tau=0.8))"),
        ),
        FROZEN,
    ),
    "cpu/digits": Bench(
        "every method on handwritten digits, from random weights",
        ("digits",),
        tuple(Row(quick(row.method)) for row in (*ALL_METHODS, Row("rat"))),
        DIGITS,
    ),
    "tune/methods": Bench(
        "each method over the paper's grid, one option at a time, on held-out labels",
        FOLDERS,
        tuple(_grid_rows()),
        {**FROZEN, **HELD_OUT},
        by_dataset=MORE_HELD_OUT,
        draws="each",
    ),
    "tune/shared": Bench(
        "what all methods share in the frozen regime, one setting at a time, on held-out labels",
        FOLDERS,
        tuple(_shared_rows()),
        {**FROZEN, **HELD_OUT},
        by_dataset=MORE_HELD_OUT,
        draws="each",
    ),
    "tune/dst": Bench(
        "what DST alone has in the frozen regime, one option at a time, on held-out labels",
        FOLDERS,
        tuple(_own_rows()),
        {**FROZEN, **HELD_OUT},
        by_dataset=MORE_HELD_OUT,
        draws="each",
    ),
    "tune/dst-digits": Bench(
        "the view h' sees when training from random weights, on held-out labels",
        ("digits",),
        tuple(changes([DST], "method.worst_view", OWN["worst_view"])),
        {**DIGITS, **HELD_OUT},
        draws="each",
    ),
    **PAPER,
    **CPU,
    "study/tau": _study("the threshold", Row("supervised"), *_thresholds()),
    "study/tau-plain": _study("the threshold, without a labeled loss on strong views", *_thresholds(w_strong=0.0)),
    "study/preset": _study(
        "the paper's equations and its authors' released code",
        Row(DST, label="released"),
        Row("dst(fixmatch, preset=paper)", label="paper"),
        Row("dst(fixmatch, preset=paper, optimiser=grl, reversal=0.5, warmup=300)", label="paper, grl 0.5 / 300"),
        Row("dst(fixmatch, preset=paper, ce_cap=5)", label="paper, cap 5"),
        Row("dst(fixmatch, worst=false, pseudo_head=linear)", label="linear pseudo head, no worst case"),
        Row(NO_WORST, label="nonlinear pseudo head, no worst case"),
    ),
}  # fmt: skip


# The runs of the paper's figures (selftrain list figures), few and short, on one seed; equal cells are run once.
# Where bias is looked at, the threshold is that of FixMatch's paper: at the frozen regime's own 0.7 it is milder.
CURVES = {**FROZEN, "train.eval_every": 50}
FIXMATCH_AND_DST = (
    Row("fixmatch", {"method.tau": 0.95}, "FixMatch"),
    Row(DST, {"method.base.tau": 0.95}, "DST(FixMatch)"),
)
SHORT: dict[str, Any] = {"train.steps": 300, "train.eval_every": 300}
PLAIN = (Row("fixmatch", label="FixMatch"), Row(DST, label="DST(FixMatch)"), Row("flexmatch", label="FlexMatch"))
WITHOUT_WORST = Row(NO_WORST, {"method.base.tau": 0.95}, "DST without worst case")
THREE = (FIXMATCH_AND_DST[0], WITHOUT_WORST, FIXMATCH_AND_DST[1])
LABELS_ONLY = Row("supervised", label="labels only")


def _figure(about: str, *rows: Row, data: tuple[str, ...] = FOLDERS[:1], **settings: Any) -> Bench:
    return Bench(f"runs of a figure: {about}", data, rows, {**CURVES, **settings})


BENCHES |= {
    "figure/data-sampling": _figure(
        "different draws of the labels",
        *(Row("supervised", {"data.split_seed": draw}, f"draw {draw + 1}") for draw in range(4)),
        **SHORT,
    ),
    "figure/pretrained": _figure(
        "different features",
        Row("supervised", {"data.size": 128}, "lite0 at 128 px"),
        Row("supervised", {"data.size": 96}, "lite0 at 96 px"),
        Row("supervised", {"data.size": 64}, "lite0 at 64 px"),
        data=FOLDERS[1:],
        **SHORT,
    ),
    "figure/algorithm": _figure("labels only, FixMatch and DST", LABELS_ONLY, *FIXMATCH_AND_DST),
    "figure/per-class-error": _figure("labels only, FixMatch and DST", LABELS_ONLY, *FIXMATCH_AND_DST),
    "figure/accuracy": Bench(
        "runs of a figure: two methods, and DST on them",
        FOLDERS[:1],
        (*PLAIN, Row("dst(flexmatch)", label="DST(FlexMatch)")),
        FROZEN,
    ),
    "figure/pseudo-labels": _figure("FixMatch and DST, with and without worst case", *THREE),
    "figure/worst-case": _figure("DST alone", FIXMATCH_AND_DST[1]),
    "figure/stability": _figure("FixMatch and DST on two datasets", *FIXMATCH_AND_DST, data=FOLDERS),
    "figure/per-category": _figure("FixMatch and DST, with and without worst case", *THREE, data=FOLDERS[1:]),
    "figure/label-amount": _figure(
        "1 to 25 labels a class, narrow heads and 500 steps",
        *(
            Row(row.method, {**row.settings, **width, "data.labels_per_class": n}, f"{row.label}, {n}")
            for row, width in zip(FIXMATCH_AND_DST, ({}, {"method.width": 256}), strict=True)
            for n in (1, 4, 25)
        ),
        data=FOLDERS[1:],
        **{"train.steps": 500, "train.eval_every": 500},
    ),
    "figure/pseudo-labels-other": _figure(
        "FixMatch and DST, with and without worst case, on other data", *THREE, data=FOLDERS[1:]
    ),
    "figure/dynamic-thresholds": Bench(
        "runs of a figure: methods with dynamic thresholds, and DST",
        FOLDERS[:1],
        (PLAIN[0], Row("dash", label="Dash"), *PLAIN[:0:-1]),
        FROZEN,
    ),
    "figure/multi-head": Bench(
        "runs of a figure: methods with several heads or views, and DST",
        FOLDERS[:1],
        (
            PLAIN[0],
            Row("co_training", label="Co-training"),
            Row("tri_training", label="Tri-training"),
            PLAIN[1],
        ),
        FROZEN,
    ),
}


def find_bench(name: str) -> Bench:
    """A bench by its name, or one of the user's own in a YAML file."""
    if name.endswith((".yaml", ".yml")):
        return read_bench(Path(name))
    if name not in BENCHES:
        raise UserError(
            f"bench {name}: there is none of that name.{nearest(name, BENCHES)} See 'selftrain list benches'."
        )
    return BENCHES[name]
