"""Benches for two CPU cores: the paper's tables at a small scale, and every method once.

They run on frozen features of local image folders, and on digits from random weights. Knows nothing of our results;
the numbers here are the paper's, on its own datasets and backbones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from selftrain.bench import paper
from selftrain.bench.paper import DST, SUPERVISED, TABLE_1, TABLE_2, amount, by_amount
from selftrain.bench.spec import Bench, Row, pairs, rows_against_base, rows_of
from selftrain.methods import METHODS, AddOn, Wrapper, method_info
from selftrain.methods.spelling import parse

FOLDERS = ("cifar10-mini", "ucmerced")
# Methods by themselves, as their papers have them: no guard, no search for junk, a pool with the labels' frequencies.
PLAIN = {"train.guard": "none", "data.screen": False, "data.prior": "labels"}
# Mirroring is not left to a test on the labels, so that all rows and draws see the same views.
FEATURES = {"regime": "frozen", "network.backbone": "lite0", "data.labels_per_class": 4, "data.flip": True}
FROZEN = {**FEATURES, **PLAIN, "data.size": 128}  # as the tables have it; less than the default
# A decay of 0.999 suits a million steps; an average over a thousand steps needs a faster one.
DIGITS = {
    "regime": "scratch", "data.labels_per_class": 4, "train.steps": 1000, "train.batch": 32,
    "train.unlabeled_batch": 64, "optim.ema": 0.99,
}  # fmt: skip
DIGITS_METHODS = {"mean_teacher": "mean_teacher(m=0.99)"}
"""methods that are spelled differently on digits, for the same reason"""

FIRST_BASES = ("fixmatch", "flexmatch", "mean_teacher", "noisy_student", "dividemix", "uda", "dash", "debiasmatch")
_BASES = (name for name, method in METHODS.items() if method.can_be_base() and not issubclass(method, Wrapper))
BASES = tuple(dict.fromkeys((*FIRST_BASES, *_BASES)))
"""every method that DST can wrap, those of the paper first; add-ons around others are left out"""


def runs_frozen(method: str) -> bool:
    """Return whether a method runs on features; RAT, for one, changes pixels."""
    return "frozen" in METHODS[parse(method).name].regimes


def every_method(spelled: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield all methods that train a network on features: labels only, each base alone and in DST, then the others.

    Add-ons are around FixMatch.
    """
    spelled = spelled or {}
    yield "supervised"
    for base in BASES:
        name = spelled.get(base, base)
        yield from (name, f"dst({name})")
    for name in METHODS:
        info = method_info(name)
        if not (info.labels_only or info.can_be_base or info.is_wrapper or info.fitted) and runs_frozen(name):
            yield spelled.get(name, name)
    yield from (f"{name}(fixmatch)" for name, method in METHODS.items() if issubclass(method, AddOn))


FITTED = tuple(name for name, method in METHODS.items() if method.fitted)
"""the methods that train no network: what people would try instead on the same features"""


def _labels_rows() -> tuple[Row, ...]:
    return tuple(
        Row(method, {"data.labels_per_class": n}, f"{method}, {amount(n)}", against=f"supervised, {amount(n)}")
        for n in paper.AMOUNTS
        for method in ("supervised", "fixmatch", DST)
    )


def _column(table: paper.Table, column: int) -> Mapping[str, float]:
    return {row: results[column] for row, results in table.items()}


CIFAR_100 = "CIFAR-100, supervised"
AVERAGE = "average of eleven"


def _addon(labels: int, column: int) -> Bench:
    return Bench(
        f"Table 5 at a small scale: DST around five methods, on frozen features, {amount(labels)}",
        FOLDERS,
        pairs(paper.ADDON_BASES),
        {**FROZEN, "data.labels_per_class": labels},
        paper={("", CIFAR_100): _column(paper.ADDON, column)},
    )


_FROZEN_TABLE_2 = {method: results for method, results in TABLE_2[SUPERVISED].items() if runs_frozen(method)}

CPU: dict[str, Bench] = {
    "cpu/methods": Bench(
        "every method and every DST combination on frozen features",
        FOLDERS,
        (
            *rows_of(every_method()),
            Row("fixmatch", {"method.tau": 0.8}, "fixmatch(tau=0.8)"),
            Row(DST, {"method.base.tau": 0.8}, "dst(fixmatch(tau=0.8))"),
        ),
        FROZEN,
    ),
    "cpu/baselines": Bench(
        "what people would try instead on the same frozen features: methods that are fitted at once",
        FOLDERS,
        rows_of(("supervised", *FITTED, "fixmatch", DST)),
        FROZEN,
    ),
    "cpu/digits": Bench(
        "every method on handwritten digits, from random weights",
        ("digits",),
        rows_of((*every_method(DIGITS_METHODS), "rat")),
        DIGITS,
    ),
    "cpu/table1": Bench(
        "Table 1 at a small scale: its methods on handwritten digits, from random weights",
        ("digits",),
        rows_against_base(TABLE_1),
        DIGITS,
        paper={("", "CIFAR-10, scratch"): _column(TABLE_1, 0)},
    ),
    "cpu/table2": Bench(
        "Table 2 at a small scale: its methods on frozen features",
        FOLDERS,
        rows_of(_FROZEN_TABLE_2),
        FROZEN,
        paper={("", AVERAGE): {m: round(sum(row) / len(row), 1) for m, row in _FROZEN_TABLE_2.items()}},
    ),
    "cpu/ablation": Bench(
        "the ablation at a small scale: what each part of DST adds, on frozen features",
        FOLDERS,
        paper.ABLATION_ROWS,
        FROZEN,
        paper={("", CIFAR_100): _column(paper.ABLATION, 0)},
    ),
    "cpu/addon": _addon(4, column=0),
    "cpu/addon-10": _addon(10, column=1),
    "cpu/labels": Bench(
        "1 to 25 labels per class, on frozen features",
        FOLDERS,
        _labels_rows(),
        FROZEN,
        paper={
            ("", CIFAR_100): {
                f"{row}, {amount(n)}": result for n, known in paper.LABELS.items() for row, result in known.items()
            }
        },
    ),
    "cpu/main-head": Bench(
        "FixMatch with a linear or a nonlinear main head h, on frozen features",
        FOLDERS,
        paper.MAIN_HEAD_ROWS,
        FROZEN,
        variants=by_amount(4, 10),
        paper={
            (amount(4), CIFAR_100): _column(paper.MAIN_HEAD, 0),
            (amount(10), CIFAR_100): _column(paper.MAIN_HEAD, 1),
        },
    ),
    "cpu/quality": Bench(
        "methods that improve the quality of pseudo labels, on frozen features",
        FOLDERS,
        rows_of(paper.QUALITY),
        FROZEN,
        paper={("", CIFAR_100): paper.QUALITY},
        measures=paper.QUALITY_MEASURES,
    ),
}
