"""Benches on unlabeled piles that are not the labeled set without labels: long-tailed, with junk, unlike the labels.

Knows nothing of results, nor of how a pile is drawn: a pile is a group of settings (docs/concepts/piles.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from selftrain.bench.cpu import FEATURES, PLAIN
from selftrain.bench.paper import ADDON_BASES
from selftrain.bench.spec import Bench, Row, Variant
from selftrain.methods import METHODS

PILE_DATASETS = ("cifar10-mini", "ucmerced", "caltech101", "gtsrb")
JUNK_FOLDERS = ("caltech101/junk",)
"""folders of images of no class of any of the datasets"""

PILES: dict[str, dict[str, Any]] = {
    "natural": {},
    "long-tail": {"data.imbalance": 50},
    "reversed": {
        "data.labels_per_class": 8, "data.label_imbalance": 8, "data.imbalance": 20, "data.imbalance_order": "reversed",
    },
    "junk-30": {"data.junk": 0.3},
    "junk-60": {"data.junk": 0.6},
    "uneven-labels": {"data.labels_per_class": 10, "data.label_imbalance": 10},
    "modes": {"data.label_modes": 1},
}  # fmt: skip
"""each pile as settings besides those of the bench"""
ABOUT = {
    "natural": "the train images as they are",
    "long-tail": "a pool whose most frequent class has 50 times the images of the rarest one",
    "reversed": "8 to 1 labels per class, and fewest pool images of the classes with most labels (20 to 1)",
    "junk-30": "30% of the pool are images of no class",
    "junk-60": "60% of the pool are images of no class",
    "uneven-labels": "10 to 1 labels per class",
    "modes": "the labels of a class are one image and those that look most like it",
}
DEFAULT = Row("dst(fixmatch)", label="default")
"""what ``selftrain train`` does: estimated class frequencies, a search for junk, a guard"""
PILE_ROWS = (
    Row("supervised"),
    *(Row(name) for name, method in METHODS.items() if method.fitted),
    Row("fixmatch", PLAIN),
    Row("dst(fixmatch)", PLAIN, "dst(fixmatch), by itself"),
    DEFAULT,
)
"""the methods that every pile is run with, the baselines on the same features among them"""
ESTIMATED: Mapping[str, Any] = {"train.guard": "none", "data.screen": False}
"""DST by itself, with estimated class frequencies"""
ADDON_ROWS = tuple(
    row for base in ADDON_BASES for row in (Row(base, PLAIN), Row(f"dst({base})", ESTIMATED, against=base))
)
RIVALS = ("freematch", "softmatch", "adamatch", "comatch", "simmatch", "flexmatch")
"""methods that were published after FixMatch, each alone and inside DST"""
RIVAL_ROWS = tuple(row for base in RIVALS for row in (Row(base, PLAIN), Row(f"dst({base})", ESTIMATED, against=base)))
HELD_OUT = {"data.validation_per_class": 8, "data.evaluate_on": "validation"}
NOTHING: Mapping[str, Any] = {}
CHOICES: Mapping[str, Mapping[str, Any]] = {
    "reversal 0.5, 0.1 if uneven": {},
    "reversal 0.5": {"method.uneven_reversal": None},
    "reversal 0.1": {"method.reversal": 0.1},
    "no weights": {"method.weighted": False},
    "no logit adjustment": {"method.base.adjust": 0.0},
    "w_strong 0": {"method.base.w_strong": 0.0},
    "one crop": {"data.clean_zoom": 0.0},
    "crop_scale 0.2": {"data.crop_scale": 0.2},
    "128 px": {"data.size": 128},
}
TUNED_ROWS = (
    Row("supervised"),
    Row("fixmatch", PLAIN),
    *(
        Row("dst(fixmatch)", {**settings, **values}, f"{name}, {what}")
        for name, settings in (("default", NOTHING), ("no guard", ESTIMATED))
        for what, values in CHOICES.items()
    ),
)
"""the choices behind the default, one at a time"""


def pile_benches(
    datasets: Sequence[str] = PILE_DATASETS,
    junk_folders: Iterable[str] = JUNK_FOLDERS,
    *,
    rows: tuple[Row, ...] = PILE_ROWS,
    settings: Mapping[str, Any] = FEATURES,
) -> dict[str, Bench]:
    """Return a bench for each pile, and ``pile/all``, which has every pile as a variant; they share their runs.

    Parameters
    ----------
    datasets
        Folders under the root folder, in layout 2. The junk of each of them are the train images of the others.
    junk_folders
        More folders of junk under the root folder.
    settings
        Shared by all runs.
    """
    folders = [*(f"{name}/train" for name in datasets), *junk_folders]
    junk = {
        name: {"data.junk_from": ",".join(f"{{root}}/{folder}" for folder in folders if folder != f"{name}/train")}
        for name in datasets
    }

    def bench(about: str, variants: tuple[Variant, ...], pile: Mapping[str, Any], with_junk: bool) -> Bench:
        return Bench(
            f"{about}, frozen features",
            tuple(datasets),
            rows,
            {**settings, **pile},
            draws="each",
            variants=variants,
            by_dataset=junk if with_junk else {},
            measures=("mean_per_class", "worst20_percent"),
        )

    single = {
        f"pile/{name}": bench(ABOUT[name], (Variant(),), pile, "data.junk" in pile) for name, pile in PILES.items()
    }
    # Without junk no folder of junk is named, so that a cell is the same run in both benches.
    variants = tuple(
        Variant(name, pile if "data.junk" in pile else {**pile, "data.junk_from": None}) for name, pile in PILES.items()
    )
    return {"pile/all": bench("every pile", variants, {}, with_junk=True), **single}


TUNE_PILES = {
    f"tune/{name}": replace(bench, rows=TUNED_ROWS, about=f"{bench.about}, choices of the default on held-out labels")
    for name, bench in pile_benches(settings={**FEATURES, **HELD_OUT}).items()
}
PILE: dict[str, Bench] = {
    **pile_benches(),
    "pile/addon": replace(
        pile_benches()["pile/natural"],
        rows=ADDON_ROWS,
        about="DST around five methods on natural pools, frozen features",
    ),
    "pile/rivals": replace(
        pile_benches()["pile/natural"],
        rows=RIVAL_ROWS,
        about="six methods that followed FixMatch, alone and inside DST, on natural pools, frozen features",
    ),
    **TUNE_PILES,
}
