"""The paper's tables at a scale for two cores: frozen features of local image folders, and digits from random weights.

Knows nothing of results. The figures beside them are the paper's, of its own datasets and backbones.
"""

from __future__ import annotations

from collections.abc import Mapping

from selftrain.bench import paper
from selftrain.bench.paper import DST, SUPERVISED, TABLE_1, TABLE_2, amount, by_amount
from selftrain.bench.spec import Bench, Row, pairs, rows_of

FOLDERS = ("cifar10-mini", "ucmerced")
FROZEN = {"regime": "frozen", "network.backbone": "lite0", "data.size": 128, "data.labels_per_class": 4}
# Short runs want a quicker average than the 0.999 of a million steps.
DIGITS = {
    "regime": "scratch", "data.labels_per_class": 4, "train.steps": 1000, "train.batch": 32,
    "train.unlabeled_batch": 64, "optim.ema": 0.99,
}  # fmt: skip


def quick(method: str) -> str:
    """Mean Teacher with an average that a thousand steps can fill."""
    return method.replace("mean_teacher", "mean_teacher(m=0.99)")


def _labels_rows() -> tuple[Row, ...]:
    return tuple(
        Row(method, {"data.labels_per_class": n}, f"{method}, {amount(n)}", against=f"supervised, {amount(n)}")
        for n in paper.AMOUNTS
        for method in ("supervised", "fixmatch", DST)
    )


def _column(table: paper.Figures, column: int) -> Mapping[str, float]:
    return {row: figures[column] for row, figures in table.items()}


CIFAR_100 = "CIFAR-100, supervised"
AVERAGE = "average of eleven"


def _addon(labels: int, column: int) -> Bench:
    return Bench(
        f"Table 5 in small: DST around five methods, on frozen features, {amount(labels)}",
        FOLDERS,
        pairs(paper.ADDON_BASES),
        {**FROZEN, "data.labels_per_class": labels},
        paper={("", CIFAR_100): _column(paper.ADDON, column)},
    )


CPU: dict[str, Bench] = {
    "cpu/table1": Bench(
        "Table 1 in small: its methods on handwritten digits, from random weights",
        ("digits",),
        tuple(Row(m, against=m[4:-1] if m.startswith("dst(") else "") for m in TABLE_1),
        DIGITS,
        paper={("", "CIFAR-10, scratch"): _column(TABLE_1, 0)},
    ),
    "cpu/table2": Bench(
        "Table 2 in small: its methods on frozen features",
        FOLDERS,
        rows_of(m for m in TABLE_2[SUPERVISED] if m != "rat"),  # which moves pixels, and there are none
        FROZEN,
        paper={
            ("", AVERAGE): {m: round(sum(row) / len(row), 1) for m, row in TABLE_2[SUPERVISED].items() if m != "rat"}
        },
    ),
    "cpu/ablation": Bench(
        "the ablation in small: what each part of DST adds, on frozen features",
        FOLDERS,
        paper.ABLATION_ROWS,
        FROZEN,
        paper={("", CIFAR_100): _column(paper.ABLATION, 0)},
    ),
    "cpu/addon": _addon(4, column=0),
    "cpu/addon-10": _addon(10, column=1),
    "cpu/labels": Bench(
        "1 to 25 labels a class, on frozen features",
        FOLDERS,
        _labels_rows(),
        FROZEN,
        paper={
            ("", CIFAR_100): {
                f"{row}, {amount(n)}": figure for n, known in paper.LABELS.items() for row, figure in known.items()
            }
        },
    ),
    "cpu/main-head": Bench(
        "a linear or a nonlinear main head h of FixMatch, on frozen features",
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
