"""The paper's tables: their datasets, methods and settings, and the results printed in them.

Knows nothing of our own results. Chen et al., "Debiased Self-Training for Semi-Supervised Learning", NeurIPS 2022.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from selftrain.bench.spec import Bench, Row, Variant, pairs, rows_against_base, rows_of

Table = Mapping[str, Sequence[float]]
"""a printed table: results in percent by row, one per column"""
DST, NO_WORST = "dst(fixmatch)", "dst(fixmatch, worst=false)"
LINEAR = "dst(fixmatch, worst=false, pseudo_head=linear)"
SUPERVISED, MOCO = "supervised pre-training", "MoCo v2"

# Top-1 accuracy, 4 labels per class, from random weights.
SCRATCH_DATASETS = ("cifar10", "cifar100", "svhn", "stl10")
TABLE_1: Table = {
    "pseudo_label": (25.4, 12.6, 25.3, 25.3),
    "vat": (25.3, 15.1, 26.1, 25.5),
    "ali": (25.9, 12.4, 28.5, 24.1),
    "rat": (33.2, 20.5, 52.6, 30.7),
    "mixmatch": (52.6, 32.4, 57.5, 45.1),
    "uda": (71.0, 40.7, 47.4, 62.6),
    "remixmatch": (80.9, 55.7, 96.6, 64.0),
    "dash": (86.8, 55.2, 97.0, 64.5),
    "fixmatch": (87.2, 50.6, 96.5, 67.1),
    "dst(fixmatch)": (89.3, 56.1, 96.7, 71.0),
    "flexmatch": (94.7, 59.5, 89.6, 71.3),
    "dst(flexmatch)": (95.0, 65.4, 94.2, 79.6),
}

# ResNet-50, 4 labels per class; mean per class on Caltech, Aircraft, Flowers and Pets, top-1 on the others.
TRANSFER_DATASETS = (
    "caltech101", "cifar10", "cifar100", "sun397", "dtd", "aircraft", "cub200", "flowers102", "pets", "cars", "food101",
)  # fmt: skip
TABLE_2: Mapping[str, Table] = {
    SUPERVISED: {
        "supervised": (81.4, 65.2, 48.2, 39.9, 47.7, 25.4, 46.5, 85.2, 78.1, 33.3, 33.8),
        "pseudo_label": (86.3, 83.3, 54.7, 41.0, 50.2, 27.2, 54.3, 92.3, 87.8, 41.4, 38.0),
        "pi_model": (83.5, 73.1, 49.2, 39.7, 50.3, 24.3, 47.1, 90.7, 82.2, 30.9, 33.9),
        "mean_teacher": (83.7, 82.1, 56.0, 37.9, 51.6, 30.7, 49.6, 91.0, 82.8, 39.1, 40.3),
        "vat": (84.1, 72.2, 48.8, 39.5, 50.6, 25.9, 48.1, 89.4, 81.8, 32.4, 36.7),
        "ali": (82.2, 69.5, 46.3, 36.4, 50.5, 21.3, 42.5, 82.9, 77.4, 29.8, 31.7),
        "rat": (84.0, 81.8, 55.4, 39.0, 49.1, 31.6, 50.0, 89.9, 84.1, 37.9, 38.4),
        "mixmatch": (85.4, 82.8, 53.5, 41.8, 50.1, 24.7, 51.7, 91.5, 83.3, 42.5, 38.2),
        "uda": (85.8, 83.6, 54.7, 41.3, 49.0, 27.1, 52.1, 92.0, 83.1, 45.6, 41.7),
        "fixmatch": (86.3, 84.6, 53.1, 41.3, 48.6, 25.2, 52.3, 93.2, 83.7, 46.4, 37.1),
        "self_tuning": (87.2, 76.0, 57.1, 41.8, 50.7, 35.2, 58.9, 92.6, 86.6, 58.3, 41.9),
        "flexmatch": (87.1, 89.0, 63.4, 48.3, 52.5, 34.0, 54.9, 94.5, 88.3, 57.5, 49.5),
        "debiasmatch": (88.6, 91.0, 65.7, 46.6, 52.4, 37.5, 58.6, 95.6, 86.4, 60.5, 53.5),
        "dst(fixmatch)": (89.6, 94.9, 70.4, 48.1, 53.5, 43.2, 68.7, 94.8, 89.8, 71.0, 58.5),
        "dst(flexmatch)": (90.6, 95.9, 71.2, 49.8, 56.2, 44.5, 70.5, 95.8, 90.4, 72.7, 57.1),
    },
    MOCO: {
        "supervised": (79.5, 66.6, 46.5, 38.1, 47.9, 28.7, 37.5, 87.7, 60.0, 38.1, 32.9),
        "pseudo_label": (86.2, 70.8, 49.8, 38.6, 50.0, 26.6, 41.8, 93.0, 68.4, 37.3, 32.8),
        "pi_model": (80.1, 76.2, 44.8, 37.8, 50.0, 23.5, 31.6, 93.1, 62.8, 25.6, 30.4),
        "mean_teacher": (80.4, 80.8, 51.3, 34.2, 48.8, 33.8, 41.6, 92.9, 67.0, 50.5, 39.1),
        "vat": (79.9, 73.8, 45.1, 38.3, 49.2, 24.2, 36.4, 92.4, 61.7, 29.9, 33.1),
        "ali": (76.4, 69.2, 44.4, 34.9, 50.1, 22.2, 33.8, 84.9, 59.6, 33.1, 31.0),
        "rat": (80.9, 79.5, 52.4, 37.0, 50.4, 30.1, 40.7, 91.8, 70.5, 47.9, 35.6),
        "mixmatch": (84.1, 81.5, 51.7, 38.4, 47.0, 31.7, 39.8, 93.5, 66.4, 47.1, 34.6),
        "uda": (85.0, 87.4, 53.6, 42.3, 46.2, 35.7, 41.4, 94.1, 69.3, 51.5, 39.3),
        "fixmatch": (83.1, 82.2, 51.4, 39.2, 43.9, 30.1, 36.8, 94.3, 65.7, 48.6, 36.8),
        "self_tuning": (81.6, 63.6, 47.8, 38.8, 45.5, 31.4, 41.6, 91.0, 66.9, 52.0, 34.0),
        "flexmatch": (86.4, 96.7, 60.2, 45.3, 53.9, 42.0, 49.2, 95.8, 72.9, 69.0, 37.5),
        "debiasmatch": (86.4, 96.3, 66.3, 44.5, 53.9, 44.8, 51.2, 95.4, 70.9, 72.5, 53.6),
        "dst(fixmatch)": (90.1, 95.0, 68.2, 46.8, 54.2, 47.7, 53.6, 95.6, 75.4, 72.0, 57.1),
        "dst(flexmatch)": (90.4, 96.9, 68.9, 48.8, 55.9, 47.3, 55.2, 96.4, 75.1, 74.6, 56.9),
    },
}

# CIFAR-100 from here on. Supervised pre-training, MoCo v2; 400 labels.
ABLATION: Table = {
    "fixmatch": (53.1, 51.4),
    "mutual_learning": (53.4, 52.5),
    LINEAR: (58.2, 59.0),
    NO_WORST: (60.6, 60.9),
    DST: (70.4, 68.2),
}

# Table 5. Supervised pre-training with 400 and 1,000 labels, then MoCo v2 with 400 and 1,000.
ADDON: Table = {
    "mean_teacher": (56.0, 67.0, 51.3, 63.5),
    "dst(mean_teacher)": (62.7, 70.7, 60.7, 69.3),
    "noisy_student": (52.8, 64.3, 55.6, 65.8),
    "dst(noisy_student)": (68.9, 74.8, 66.6, 75.2),
    "dividemix": (55.8, 67.5, 53.6, 64.9),
    "dst(dividemix)": (69.1, 75.1, 65.0, 74.2),
    "fixmatch": (53.1, 67.8, 51.4, 64.2),
    "dst(fixmatch)": (70.4, 75.6, 68.2, 76.8),
    "flexmatch": (63.4, 71.2, 60.2, 71.1),
    "dst(flexmatch)": (71.2, 77.3, 68.9, 77.5),
}

# Appendix: 1,000 labels, supervised pre-training and MoCo v2.
THOUSAND: Table = {
    "supervised": (61.5, 56.2),
    "pseudo_label": (67.4, 57.3),
    "pi_model": (63.3, 55.5),
    "mean_teacher": (67.0, 63.5),
    "uda": (65.1, 67.5),
    "fixmatch": (67.8, 64.2),
    "self_tuning": (66.0, 60.2),
    "flexmatch": (71.2, 71.1),
    "debiasmatch": (73.5, 73.9),
    "dst(fixmatch)": (75.6, 76.8),
}

# Appendix: the main head of FixMatch; columns as in Table 5.
MAIN_HEAD: Table = {"linear": (53.1, 67.8, 51.4, 64.2), "nonlinear": (54.1, 67.2, 50.4, 64.0)}

# Appendix: methods that improve the quality of pseudo labels; supervised pre-training, 400 labels.
QUALITY: Mapping[str, float] = {
    "supervised": 48.2,
    "fixmatch": 53.1,
    "dash": 55.4,
    "flexmatch": 63.4,
    "co_training": 54.4,
    "tri_training": 54.4,
    "dst(fixmatch)": 70.4,
}

# From 1 to 25 labels per class: the paper shows a curve; other tables of it print these points.
AMOUNTS = (1, 2, 4, 10, 25)
LABELS: Mapping[int, Mapping[str, float]] = {
    4: {"supervised": 48.2, "fixmatch": 53.1, DST: 70.4},
    10: {"supervised": 61.5, "fixmatch": 67.8, DST: 75.6},
}

FROM_SCRATCH = {
    "regime": "scratch", "data.labels_per_class": 4, "train.steps": 1_000_000, "optim.lr": 0.03, "train.batch": 64,
    "train.unlabeled_batch": 448,
}  # fmt: skip
BACKBONES = {"cifar10": "wrn-28-2", "cifar100": "wrn-28-8", "svhn": "wrn-28-2", "stl10": "wrn-37-2"}
# torchvision's ImageNet weights, as in the authors' code; timm's default weights for this name are stronger.
FINETUNE = {
    "regime": "finetune", "network.backbone": "resnet50.tv_in1k", "data.size": 224, "data.labels_per_class": 4,
    "train.steps": 40_000, "train.batch": 32, "train.unlabeled_batch": 32,
}  # fmt: skip
MOCO_WEIGHTS = "{root}/moco_v2_800ep_pretrain.pth.tar"
PRETRAININGS = (Variant(SUPERVISED), Variant(MOCO, {"network.weights": MOCO_WEIGHTS}))


def columns(table: Table, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], dict[str, float]]:
    """Return the columns of a printed table, each under its (variant, dataset)."""
    return {key: {row: results[i] for row, results in table.items()} for i, key in enumerate(keys)}


def amount(labels: int) -> str:
    """Return the name of a row or variant with that many labels: ``4 labels per class``."""
    return f"{labels} label per class" if labels == 1 else f"{labels} labels per class"


def by_amount(*amounts: int) -> tuple[Variant, ...]:
    return tuple(Variant(amount(n), {"data.labels_per_class": n}) for n in amounts)


def _amounts_and_pretrainings() -> tuple[Variant, ...]:
    return tuple(
        Variant(f"{pretraining.name}, {labels.name}", {**pretraining.settings, **labels.settings})
        for pretraining in PRETRAININGS
        for labels in by_amount(4, 10)
    )


ABLATION_ROWS = (
    Row("fixmatch"),
    Row("mutual_learning", against="fixmatch"),
    Row(LINEAR, against="fixmatch"),
    Row(NO_WORST, against="fixmatch"),
    Row(DST, against="fixmatch"),
)
MAIN_HEAD_ROWS = (
    Row("fixmatch", {"network.head": "linear"}, "linear"),
    Row("fixmatch", {"network.head": "mlp"}, "nonlinear", against="linear"),
)
ADDON_BASES = ("mean_teacher", "noisy_student", "dividemix", "fixmatch", "flexmatch")
QUALITY_MEASURES = ("pseudo_label_quantity", "pseudo_label_quality", "worst20_percent")


def _cifar100(
    about: str, rows: tuple[Row, ...], variants: tuple[Variant, ...], table: Table, settings: Mapping[str, Any]
) -> Bench:
    paper = columns(table, [(variant.name, "cifar100") for variant in variants])
    return Bench(about, ("cifar100",), rows, settings, variants=variants, paper=paper)


PAPER: dict[str, Bench] = {
    "paper/table1": Bench(
        "Table 1: standard benchmarks, 4 labels per class, from random weights",
        SCRATCH_DATASETS,
        rows_against_base(TABLE_1),
        FROM_SCRATCH,
        by_dataset={
            dataset: {
                "network.backbone": backbone,
                # The paper gives two values; this is the one FixMatch uses.
                **({"optim.weight_decay": 0.001} if dataset == "cifar100" else {}),
            }
            for dataset, backbone in BACKBONES.items()
        },
        paper=columns(TABLE_1, [("", dataset) for dataset in SCRATCH_DATASETS]),
    ),
    "paper/table2": Bench(
        "Table 2: ResNet-50 fine-tuned on eleven datasets, supervised and MoCo v2 pre-training, 4 labels per class",
        TRANSFER_DATASETS,
        rows_of(TABLE_2[SUPERVISED]),
        FINETUNE,
        variants=PRETRAININGS,
        paper={
            key: results
            for name, table in TABLE_2.items()
            for key, results in columns(table, [(name, dataset) for dataset in TRANSFER_DATASETS]).items()
        },
    ),
    "paper/ablation": _cifar100(
        "the ablation: what each part of DST adds, on CIFAR-100", ABLATION_ROWS, PRETRAININGS, ABLATION, FINETUNE
    ),
    "paper/addon": _cifar100(
        "Table 5: DST around five methods, on CIFAR-100, 400 and 1,000 labels",
        pairs(ADDON_BASES),
        _amounts_and_pretrainings(),
        ADDON,
        FINETUNE,
    ),
    "paper/labels": Bench(
        "1 to 25 labels per class on CIFAR-100, supervised pre-training",
        ("cifar100",),
        rows_of(("supervised", "fixmatch", DST)),
        FINETUNE,
        variants=by_amount(*AMOUNTS),
        paper={(amount(n), "cifar100"): results for n, results in LABELS.items()},
    ),
    "paper/labels-1000": _cifar100(
        "ten methods on CIFAR-100 with 1,000 labels",
        rows_of(THOUSAND),
        PRETRAININGS,
        THOUSAND,
        {**FINETUNE, "data.labels_per_class": 10},
    ),
    "paper/main-head": _cifar100(
        "FixMatch with a linear or a nonlinear main head h, on CIFAR-100",
        MAIN_HEAD_ROWS,
        _amounts_and_pretrainings(),
        MAIN_HEAD,
        FINETUNE,
    ),
    "paper/quality": Bench(
        "methods that improve the quality of pseudo labels, on CIFAR-100, supervised pre-training",
        ("cifar100",),
        rows_of(QUALITY),
        FINETUNE,
        paper={("", "cifar100"): QUALITY},
        measures=QUALITY_MEASURES,
    ),
}
