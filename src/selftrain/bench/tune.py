"""Benches behind the defaults of the frozen regime: one setting at a time, on held-out labels.

Knows nothing of what they found. The ``study/`` benches that follow compare defaults with the paper's on test images.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from selftrain.bench.cpu import DIGITS, FOLDERS, FROZEN
from selftrain.bench.paper import DST, NO_WORST
from selftrain.bench.spec import Bench, Row, option_of_base, vary
from selftrain.methods import METHODS, FixMatch, Wrapper
from selftrain.methods.spelling import usual_values

# Held-out labels come on top of those that are trained on, as many as a class can spare; no test image is used.
HELD_OUT = {"data.validation_per_class": 20, "data.evaluate_on": "validation"}
MORE_HELD_OUT = {"cifar10-mini": {"data.validation_per_class": 200}}
SHARED: dict[str, tuple[Any, ...]] = {
    "data.crop_scale": (0.2, 0.5),
    "data.clean_crop": (0.75, 0.875, 1.0),
    "data.clean_zoom": (0.0, 0.75),
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
"""settings that all methods share, and the values that were tried"""
FIXMATCH_OPTIONS: dict[str, tuple[Any, ...]] = {"w_strong": (0.0, 0.5, 1.0), "tau": (0.7, 0.8, 0.9)}
"""options of FixMatch, alone and inside DST"""
DST_OPTIONS: dict[str, tuple[Any, ...]] = {
    "reversal": (0.3, 0.5, 1.0),
    "warmup": (0.1, 0.3, 1000.0),
    "width": (256, 512, 1024),
    "worst_view": ("weak", "strong"),
    "worst_layers": (2, 3),
    "dropout": (0.0, 0.5),
    "eta": (0.3, 1.0, 3.0),
    "eta_prime": (1.0, 2.0),
    "worst_labels": ("predicted", "true"),
    "worst_threshold": (False, True),
}
"""options that only DST has"""
VIEWS = ((1, 2), (2, 4), (4, 8))
"""weak and strong views"""


def _grid_rows() -> Iterator[Row]:
    for name, method in METHODS.items():
        if not method.grid:
            continue
        usual = usual_values(method, "frozen")
        text = f"{name}(fixmatch)" if issubclass(method, Wrapper) else name
        yield Row(text)
        for option, values in method.grid.items():
            for value in values:
                if value != usual[option]:
                    yield Row(text, {f"method.{option}": value}, f"{text}, {option} {value}")


def _shared_rows() -> Iterator[Row]:
    for option, values in FIXMATCH_OPTIONS.items():
        for value in values:
            for method in ("fixmatch", DST):
                yield Row(method, {option_of_base(method, option): value}, f"{method}, {option} {value}")
    for setting, values in SHARED.items():
        for value in values:
            yield from vary(["fixmatch", DST], setting, [value])
    yield from vary(
        [NO_WORST, "flexmatch", "mean_teacher", "dash", "pseudo_label"], "optim.weight_decay", (0.0005, 0.02)
    )
    yield from vary([NO_WORST], "network.bn_apart", SHARED["network.bn_apart"])
    for weak, strong in VIEWS:
        kept = {"data.weak_views": weak, "data.strong_views": strong}
        yield from (Row(method, kept, f"{method}, {weak} weak, {strong} strong") for method in ("fixmatch", DST))
    for method in ("dividemix", "dst(dividemix)"):
        yield from vary([method], option_of_base(method, "mix_labeled"), (True, False))


def _dst_rows() -> Iterator[Row]:
    for option, values in DST_OPTIONS.items():
        yield from vary([DST], f"method.{option}", values)


def _held_out(about: str, rows: Iterator[Row]) -> Bench:
    settings = {**FROZEN, **HELD_OUT}
    return Bench(f"{about}, on held-out labels", FOLDERS, tuple(rows), settings, by_dataset=MORE_HELD_OUT, draws="each")


def _thresholds(**options: Any) -> Iterator[Row]:
    """Yield FixMatch and DST at each threshold; ``options`` are further options of FixMatch, alone and inside DST."""
    for tau in (0.7, 0.8, 0.9, 0.95):
        for method in ("fixmatch", NO_WORST, DST):
            threshold = {} if tau == usual_values(FixMatch, "frozen")["tau"] else {"tau": tau}
            settings = {option_of_base(method, name): value for name, value in {**threshold, **options}.items()}
            yield Row(method, settings, f"{method}, tau {tau}")


def _study(about: str, *rows: Row) -> Bench:
    return Bench(f"defaults of the frozen regime: {about}", FOLDERS, rows, FROZEN)


TUNE: dict[str, Bench] = {
    "tune/methods": _held_out("each method over the paper's grid, one option at a time", _grid_rows()),
    "tune/shared": _held_out("settings that all methods share in the frozen regime, one at a time", _shared_rows()),
    "tune/dst": _held_out("options that only DST has in the frozen regime, one at a time", _dst_rows()),
    "tune/dst-digits": Bench(
        "the view that h' sees when training from random weights, on held-out labels",
        ("digits",),
        vary([DST], "method.worst_view", DST_OPTIONS["worst_view"]),
        {**DIGITS, **HELD_OUT},
        draws="each",
    ),
}
STUDIES: dict[str, Bench] = {
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
}
