"""A run folder as the report sees it: settings, curves, classes, outputs; what an older run lacks is None.

Knows nothing of pages or pictures, and never guesses a number that is not in the folder.
"""

from __future__ import annotations

import json
import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from selftrain.config.options import flatten
from selftrain.errors import UserError
from selftrain.files import read_json
from selftrain.runs.run import CONFIG, METRICS, OUTPUTS, REFERENCE, RESULTS, SPLIT

Curve = list[tuple[int, float]]
Array = np.ndarray[Any, Any]


@dataclass(eq=False)
class RunData:
    """What one run left behind."""

    folder: Path
    config: dict[str, Any]
    """every setting by its dotted name"""
    rows: list[dict[str, Any]]
    """the evaluations, oldest first"""
    results: dict[str, Any]
    """empty while the run is not finished"""
    split: dict[str, Any]
    outputs: dict[str, Array]
    """predictions picture by picture; empty in older runs"""
    reference: dict[str, Any] | None
    name: str = ""
    """how the page calls it, different for each run on a page"""
    notes: list[str] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return bool(self.results)

    @property
    def last(self) -> dict[str, Any]:
        return self.rows[-1] if self.rows else {}

    def value(self, name: str) -> Any:
        """A figure at the end of the run; None where it is not known."""
        found = self.results.get(name, self.last.get(name))
        return float(found) if found == "inf" else found

    @property
    def method(self) -> str:
        return str(self.results.get("method") or self.config.get("method") or "?")

    @property
    def dataset(self) -> str:
        path = str(self.config.get("data.path") or "?")
        return str(self.results.get("dataset") or self.split.get("dataset") or Path(path).name or path)

    @property
    def seed(self) -> int:
        return int(self.config.get("seed") or 0)

    @cached_property
    def classes(self) -> list[str]:
        names = self.results.get("classes") or self.split.get("classes")
        if names:
            return [str(name) for name in names]
        count = len(self.last.get("per_class") or self.last.get("predicted") or ())
        return [str(k) for k in range(count)]

    @property
    def per_class(self) -> list[float | None] | None:
        return self._per_class("per_class")

    def _per_class(self, name: str) -> list[Any] | None:
        found = self.value(name)
        return list(found) if isinstance(found, list) and len(found) == len(self.classes) else None

    def by_class(self, name: str, at: int = -1) -> Array | None:
        """A row's list of K numbers, NaN where one is not known."""
        found = self.rows[at].get(name) if self.rows else None
        if not isinstance(found, list) or len(found) != len(self.classes):
            return None
        return np.array([math.nan if value is None else float(value) for value in found])

    def curve(self, name: str) -> Curve:
        """(step, value) of every evaluation that knows the figure; infinite ones included."""
        found = []
        for row in self.rows:
            value = row.get(name)
            if value is not None and isinstance(value, (int, float, str)):
                found.append((int(row["step"]), float(value)))
        return found

    @property
    def labels_per_class(self) -> float | None:
        counts = self.split.get("counts") or {}
        if counts.get("labeled") and counts.get("classes"):
            return float(counts["labeled"] / counts["classes"])
        asked = self.config.get("data.labels_per_class")
        return float(asked) if asked else None

    @property
    def labeled_prior(self) -> Array | None:
        """The share of each class among the labeled pictures."""
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
    def pool_share(self) -> Array | None:
        """The share of each class among the predictions on the unlabeled pictures."""
        return _share(self._per_class("pool_predicted"))

    @cached_property
    def confusion(self) -> list[tuple[int, int, int]] | None:
        """(true, predicted, count) where the count is not 0."""
        found = self.results.get("confusion")
        if found is not None:
            return [(int(t), int(p), int(n)) for t, p, n in found if n]
        if "eval_truth" in self.outputs and "eval_predicted" in self.outputs:
            truth, predicted = self.outputs["eval_truth"], self.outputs["eval_predicted"]
            pairs, counts = np.unique(np.stack([truth, predicted]), axis=1, return_counts=True)
            return [(int(t), int(p), int(n)) for (t, p), n in zip(pairs.T, counts, strict=True)]
        return None

    @property
    def alarms(self) -> list[str]:
        return [str(name) for name in self.value("alarms") or ()]

    @property
    def same_split(self) -> str | None:
        return self.results.get("split_hash") or self.split.get("hash")


def _share(counts: Sequence[Any] | None) -> Array | None:
    if counts is None:
        return None
    values = np.array([float(value or 0) for value in counts])
    return values / values.sum() if values.sum() > 0 else None


def read_run(folder: Path) -> RunData:
    """Everything that a run folder holds; a UserError where a file is not what it should be."""
    if not (folder / CONFIG).exists():
        missing = "no such folder" if not folder.exists() else f"no {CONFIG} in it"
        raise UserError(f"{folder}: not a run folder ({missing}). Make one with 'selftrain train'.")
    rows, note = _read_rows(folder / METRICS)
    run = RunData(
        folder=folder,
        config=_read_config(folder / CONFIG),
        rows=rows,
        results=_read_object(folder / RESULTS),
        split=_read_object(folder / SPLIT),
        outputs=_read_arrays(folder / OUTPUTS),
        reference=_read_object(folder / REFERENCE) or None,
    )
    if note:
        run.notes.append(note)
    if not rows and not run.results:
        raise UserError(f"{folder}: nothing to report yet, the run has not been evaluated once. Let it go on first.")
    if not run.finished:
        run.notes.append(f"This run is not finished: figures are those of step {run.last['step']:,}.")
    return run


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read ({' '.join(str(error).split())}).") from None
    if not isinstance(config, dict):
        raise UserError(f"{path}: not the settings of a run (expected names and values).")
    return flatten(config)


def _read_object(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    found = read_json(path)
    if not isinstance(found, dict):
        raise UserError(f"{path}: expected a JSON object, found a {type(found).__name__}.")
    return found


def _read_rows(path: Path) -> tuple[list[dict[str, Any]], str | None]:
    """The rows; and a remark where the last line was cut short, as a kill in the middle of it leaves it."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return [], None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}).") from None
    rows: list[dict[str, Any]] = []
    lines = text.split("\n")[: -1 if text.endswith("\n") else None]
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or not isinstance(row.get("step"), int):
                raise ValueError("expected an object with a 'step'")
        except ValueError as error:
            if number == len(lines) and not text.endswith("\n"):
                return rows, f"The last line of {path.name} was cut short and is left out."
            raise UserError(f"{path}: line {number} is not a row of metrics ({error}).") from None
        rows.append(row)
    return rows, None


def _read_arrays(path: Path) -> dict[str, Array]:
    if not path.exists():
        return {}
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: cannot be read ({error}).") from None


def read_runs(folders: Sequence[Path]) -> list[RunData]:
    """The runs of a page, each with a name of its own."""
    runs = [read_run(folder) for folder in folders]
    for run, name in zip(runs, _names(runs), strict=True):
        run.name = name
    return runs


_WORDS = {
    "supervised": "Labels only", "fixmatch": "FixMatch", "flexmatch": "FlexMatch", "dash": "Dash", "uda": "UDA",
    "debiasmatch": "DebiasMatch", "pseudo_label": "Pseudo Label", "mean_teacher": "Mean Teacher", "vat": "VAT",
    "noisy_student": "Noisy Student", "dividemix": "DivideMix", "dst": "DST", "mixmatch": "MixMatch", "rat": "RAT",
    "remixmatch": "ReMixMatch", "self_tuning": "Self-Tuning", "pi_model": "Pi-Model", "ali": "ALI",
    "co_training": "Co-training", "tri_training": "Tri-training", "mutual_learning": "Mutual learning",
}  # fmt: skip


def spoken(method: str) -> str:
    """``dst(fixmatch, worst=false)`` as people write it: DST(FixMatch, worst=false)."""
    return re.sub(r"\b[a-z_]+\b(?!=)", lambda m: _WORDS.get(m[0], m[0]), method).replace(
        "DST(FixMatch, worst=false)", "DST(FixMatch) without worst case"
    )


def _names(runs: Sequence[RunData]) -> list[str]:
    """Method first; dataset, seed or folder only where runs would have the same name otherwise."""
    parts = [lambda r: spoken(r.method), lambda r: r.dataset, lambda r: f"seed {r.seed}", lambda r: r.folder.name]
    told = [[part(run) for part in parts] for run in runs]
    chosen = [0]
    for column in range(1, len(parts)):
        names = [tuple(words[c] for c in chosen) for words in told]
        if len(set(names)) == len(runs):
            break
        if len({words[column] for words in told}) > 1:
            chosen.append(column)
    names_ = [", ".join(words[c] for c in chosen) for words in told]
    for i, name in enumerate(names_):
        if names_.count(name) > 1:  # the same folder name under other folders, or one folder twice
            names_[i] = f"{name} ({i + 1})"
    return names_


def reference_of(run: RunData, others: Sequence[RunData]) -> tuple[list[float | None], str] | None:
    """Accuracy by class when the same labels are learned without pseudo labels, and where it comes from."""
    if run.reference and isinstance(run.reference.get("labels_only"), Mapping):
        per_class = run.reference["labels_only"].get("per_class")
        if isinstance(per_class, list) and len(per_class) == len(run.classes):
            return per_class, "labels only, same split and backbone"
    for other in others:
        alike = other.same_split == run.same_split and other.same_split is not None
        same = ("network.backbone", "regime", "data.size")
        if (
            other.method.partition("(")[0] == "supervised"
            and alike
            and other.classes == run.classes
            and all(other.config.get(name) == run.config.get(name) for name in same)
            and other.per_class is not None
            and other.value("evaluated_on") == run.value("evaluated_on")
        ):
            return other.per_class, f"the run “{other.name}”"
    return None


def training_bias(run: RunData, others: Sequence[RunData]) -> list[float | None] | None:
    """B(f_pl(P_n, psi_0, S)) - B(f_pl(P_n, psi_0)): the error that training with pseudo labels adds to each class."""
    if run.reference and isinstance(run.reference.get("training_bias"), list):
        found: list[float | None] = run.reference["training_bias"]
        return found if len(found) == len(run.classes) else None
    reference = reference_of(run, others)
    if reference is None or run.per_class is None:
        return None
    pairs = zip(reference[0], run.per_class, strict=True)
    return [None if a is None or b is None else a - b for a, b in pairs]
