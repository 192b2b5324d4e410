"""A run as the report sees it: its settings, curves, classes and outputs. Values that an older run lacks are None.

Knows nothing of pages, charts or file names, and never guesses a value that the run folder does not hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from selftrain.config.schema import check
from selftrain.errors import UserError
from selftrain.methods import MethodInfo, method_info
from selftrain.runs.layout import Arrays, GuardRecord, MetricsRow, PoolPrior, Reference, Results, RunLayout, SplitRecord

CLASS_NUMBERS = ("truth", "predicted", "runner_up", "pseudo", "worst", "label")
"""arrays of ``outputs.npz`` that hold numbers of classes"""
READ_SETTINGS = {
    "seed": int | None, "method": str | None, "data.path": str | None, "data.labels_per_class": int | None,
    "network.backbone": str | None, "train.steps": int | None,
}  # fmt: skip
"""settings that the page reads, and what they may be"""
Curve = list[tuple[int, float]]
Array = np.ndarray[Any, Any]
PerClass = list[float | None]


@dataclass(eq=False)
class RunData:
    """The contents of one run folder."""

    folder: Path
    settings: dict[str, Any]
    """every setting by its dotted name"""
    rows: list[MetricsRow]
    """the evaluations, oldest first"""
    results: Results
    """empty until the run is finished"""
    split: SplitRecord
    outputs: Arrays
    """predictions per image; empty in older runs"""
    thumbnails: Arrays
    """small copies of images; empty in older runs and for features"""
    reference: Reference | None
    name: str = ""
    """the name of the run on the page, different for each run"""
    notes: list[str] = field(default_factory=list)
    """sentences about the run as a whole, shown at the top of the page"""
    images: tuple[str | Path, ...] = ()
    """folders of images that the user named; nothing else outside the run folder is opened"""

    @property
    def finished(self) -> bool:
        return bool(self.results)

    @property
    def last(self) -> Mapping[str, Any]:
        """The last evaluation; empty if there is none."""
        return cast(Mapping[str, Any], self.rows[-1]) if self.rows else {}

    def value(self, name: str) -> Any:
        """Return a result at the end of the run; None where it is not known."""
        found = cast(Mapping[str, Any], self.results).get(name, self.last.get(name))
        return float(found) if found == "inf" else found

    @property
    def method(self) -> str:
        return str(self.results.get("method") or self.settings.get("method") or "?")

    @cached_property
    def info(self) -> MethodInfo:
        """The facts about the method that do not depend on the run."""
        return method_info(self.method)

    @property
    def labels_only(self) -> bool:
        """Whether the run learned from the labels alone."""
        return self.info.labels_only

    @property
    def dataset(self) -> str:
        path = str(self.settings.get("data.path") or "?")
        return str(self.results.get("dataset") or self.split.get("dataset") or Path(path).name or path)

    @property
    def noun(self) -> str:
        """What the run was trained on: images, or rows of features."""
        return "rows" if self.settings.get("network.backbone") == "features" else "images"

    @property
    def evaluated(self) -> str:
        """What the accuracy was measured on: test images, held-out rows, ..."""
        return f"{'held-out' if self.value('evaluated_on') == 'validation' else 'test'} {self.noun}"

    @cached_property
    def support(self) -> list[int] | None:
        """Evaluated images of each class; None if they were not counted."""
        if self.confusion is None:
            return None
        counts = [0] * len(self.classes)
        for true, _, n in self.confusion:
            counts[true] += n
        return counts

    @property
    def labeled_names(self) -> set[str]:
        """The names of the images that have a label."""
        return {str(entry.get("path")) for entry in self.split.get("labeled") or ()}

    @property
    def seed(self) -> int:
        return int(self.settings.get("seed") or 0)

    @property
    def split_hash(self) -> str | None:
        """Equal for runs on the same labeled images."""
        return self.results.get("split_hash") or self.split.get("hash")

    @cached_property
    def classes(self) -> list[str]:
        names = self.results.get("classes") or self.split.get("classes")
        if names:
            return [str(name) for name in names]
        count = len(self.last.get("per_class") or self.last.get("predicted") or ())
        return [str(k) for k in range(count)]

    @property
    def per_class(self) -> PerClass | None:
        """Accuracy of each class; None if there was no labeled set to evaluate on."""
        return self._per_class("per_class")

    def _per_class(self, name: str) -> list[Any] | None:
        found = self.value(name)
        return list(found) if isinstance(found, list) and len(found) == len(self.classes) else None

    def by_class(self, name: str, at: int = -1) -> Array | None:
        """Return the value of each class in one evaluation, NaN where it is not known."""
        found = cast(Mapping[str, Any], self.rows[at]).get(name) if self.rows else None
        if not isinstance(found, list) or len(found) != len(self.classes):
            return None
        if not all(value is None or isinstance(value, (int, float)) for value in found):
            return None
        return np.array([math.nan if value is None else float(value) for value in found])

    def curve(self, name: str) -> Curve:
        """Return (step, value) of every evaluation that has the value, infinite ones included."""
        found = []
        for row in self.rows:
            value = cast(Mapping[str, Any], row).get(name)
            if isinstance(value, (int, float)) or value == "inf":  # JSON has no infinity
                found.append((int(row["step"]), float(value)))
        return found

    def pseudo_imbalance(self) -> Curve:
        """Return, over training, how often the most used class is a pseudo label per use of the least used one."""
        found: Curve = []
        for at, row in enumerate(self.rows):
            kept = self.by_class("pseudo_kept", at)
            if kept is not None and kept.sum() > 0:
                found.append((row["step"], float(kept.max() / kept.min()) if kept.min() > 0 else math.inf))
        return found

    @property
    def labels_per_class(self) -> float | None:
        counts = self.split.get("counts") or {}
        if counts.get("labeled") and counts.get("classes"):
            return float(counts["labeled"] / counts["classes"])
        asked = self.settings.get("data.labels_per_class")
        return float(asked) if asked else None

    @property
    def labeled_share(self) -> Array | None:
        """The share of each class among the labeled images."""
        found = self._per_class("labeled_prior")
        if found is None and self.split.get("labeled"):
            place = {name: k for k, name in enumerate(self.classes)}
            counts = np.zeros(len(self.classes))
            for entry in self.split["labeled"]:
                if entry.get("label") in place:
                    counts[place[entry["label"]]] += 1
            found = counts.tolist() if counts.sum() else None
        return _share(found)

    @property
    def predicted_share(self) -> Array | None:
        """The share of each class among the predictions on the unlabeled images."""
        return _share(self._per_class("pool_predicted"))

    @property
    def pool_prior(self) -> PoolPrior | None:
        """The class frequencies of the unlabeled pool, estimated or given; None if they are taken from the labels."""
        found = self.results.get("prior")
        if found is None or found["source"] == "labels" or len(found["pool"]) != len(self.classes):
            return None
        return found

    @property
    def guard(self) -> GuardRecord | None:
        """The comparison with the labels alone; None in runs without a guard."""
        return self.results.get("guard")

    @property
    def fell_back(self) -> bool:
        """Whether the final model is the one that was trained on the labels alone, because the other was doubtful."""
        return self.guard is not None and self.guard["choice"] == "labels_only"

    @property
    def has_pool_predictions(self) -> bool:
        """Whether the predictions on the unlabeled images were stored."""
        return "pool_predicted" in self.outputs

    @cached_property
    def confusion(self) -> list[tuple[int, int, int]] | None:
        """(true, predicted, count) of every pair of classes that occurs."""
        found = self.results.get("confusion")
        if found is not None:
            return [(int(t), int(p), int(n)) for t, p, n in found if n]
        if "eval_truth" in self.outputs and "eval_predicted" in self.outputs:
            truth, predicted = self.outputs["eval_truth"], self.outputs["eval_predicted"]
            pairs, counts = np.unique(np.stack([truth, predicted]), axis=1, return_counts=True)
            return [(int(t), int(p), int(n)) for (t, p), n in zip(pairs.T, counts, strict=True)]
        return None

    def vanishing_classes(self) -> list[str]:
        """Return the classes that are no longer predicted: the alarms of training, and those without a prediction."""
        names = [str(name) for name in self.value("alarms") or ()]
        for share in (self.predicted_share, self.by_class("predicted")):
            if share is not None:
                names += [self.classes[k] for k in np.flatnonzero(share == 0)]
        return list(dict.fromkeys(names))


def _share(counts: Sequence[Any] | None) -> Array | None:
    if counts is None:
        return None
    values = np.array([float(value or 0) for value in counts])
    return values / values.sum() if values.sum() > 0 else None


def read_run(folder: Path) -> RunData:
    """Read a run folder; raise a UserError if it is none, or if a file in it is broken."""
    layout = RunLayout(folder)
    layout.check()
    rows, cut_short = layout.read_metrics()
    run = RunData(
        folder=folder,
        settings=layout.read_settings(),
        rows=rows,
        results=layout.read_results(),
        split=layout.read_split(),
        outputs=layout.read_outputs(),
        thumbnails=layout.read_thumbnails(),
        reference=layout.read_reference(),
    )
    for name, kind in READ_SETTINGS.items():
        check(run.settings.get(name), kind, f"{layout.config}: {name}")
    for record in (run.results, *run.rows):
        _check_triples(cast(Mapping[str, Any], record), folder)
    _check_outputs(run.outputs, len(run.classes), layout.outputs)
    if cut_short:
        run.notes.append(f"The last line of {layout.metrics.name} is incomplete and was ignored.")
    if not rows and not run.results:
        raise UserError(f"{folder}: the run has not been evaluated yet. Write the report after its first evaluation.")
    if not run.finished:
        run.notes.append(f"This run is not finished. Its results are those of step {run.last['step']:,}.")
    return run


def _check_triples(record: Mapping[str, Any], folder: Path) -> None:
    for name in ("calibration", "confusion"):
        if any(len(entry) != 3 or (entry[0] and None in entry) for entry in record.get(name) or ()):
            raise UserError(f"{folder}: {name}: each entry must hold three numbers.")


def _check_outputs(outputs: Arrays, K: int, path: Path) -> None:
    """Raise a UserError if the arrays of a part differ in length, or name a class that there is not."""
    for part in ("eval", "pool", "map"):
        own = {name: values for name, values in outputs.items() if name.startswith(f"{part}_")}
        lengths = {values.shape for values in own.values()}
        if len(lengths) > 1 or any(len(shape) != 1 for shape in lengths):
            raise UserError(f"{path}: the arrays of {part!r} differ in length or shape.")
        for name, values in own.items():
            what = name.removeprefix(f"{part}_")
            if what in CLASS_NUMBERS and not (values.dtype.kind in "iu" and values.min() >= -1 and values.max() < K):
                raise UserError(f"{path}: the array {name!r} must hold numbers of the {K} classes, or -1.")
            if what not in CLASS_NUMBERS and what != "names" and values.dtype.kind not in "biuf":
                raise UserError(f"{path}: the array {name!r} must hold numbers.")


def noun_of(runs: Sequence[RunData]) -> str:
    """Return what a page is about: images, or rows if no run has images."""
    return "images" if any(run.noun == "images" for run in runs) else "rows"


def read_runs(folders: Sequence[Path], images: Sequence[str | Path] = ()) -> list[RunData]:
    """Read the runs of a page and give each a name of its own; ``images`` are folders that the user named."""
    runs = [read_run(folder) for folder in folders]
    for run, name in zip(runs, _names(runs), strict=True):
        run.name, run.images = name, tuple(images)
    return runs


def _names(runs: Sequence[RunData]) -> list[str]:
    """Name runs by their method, and by its options, dataset, seed or folder only as far as needed to tell them apart.

    The whole method string can be long; it is in the settings.
    """
    methods = [run.info.short for run in runs]
    if len({run.info.title for run in runs}) > len(set(methods)):
        methods = [run.info.title for run in runs]
    parts = [
        (method, run.dataset, f"seed {run.seed}", run.folder.name) for method, run in zip(methods, runs, strict=True)
    ]
    chosen = [0]
    for column in range(1, len(parts[0])):
        if len({tuple(words[c] for c in chosen) for words in parts}) == len(runs):
            break
        if len({words[column] for words in parts}) > 1:
            chosen.append(column)
    names = [", ".join(words[c] for c in chosen) for words in parts]
    # Folders of the same name in different places, or one folder twice, are numbered.
    return [f"{name} ({i})" if names.count(name) > 1 else name for i, name in enumerate(names, 1)]
