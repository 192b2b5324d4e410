"""The run folder: the names of its files, and typed records of what is in them.

Knows nothing of how a run is made. Everybody who reads or writes a run folder does it through this module. Records are
read as they are: older runs lack some fields, and a value that was not known is None.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, cast

from numpy.typing import NDArray

from selftrain.config.resolve import dump_settings, read_config
from selftrain.config.schema import check
from selftrain.config.settings import Settings
from selftrain.data.features.npy import read_arrays, write_arrays
from selftrain.engine.metrics import as_json
from selftrain.errors import UserError
from selftrain.files import append_text, is_part, read_bytes, read_json, replacing, write_json, write_text
from selftrain.runs.records import Calibrated as Calibrated
from selftrain.runs.records import Compared as Compared
from selftrain.runs.records import CrossValidated as CrossValidated
from selftrain.runs.records import Estimated as Estimated
from selftrain.runs.records import GuardRecord as GuardRecord
from selftrain.runs.records import JunkScreening as JunkScreening
from selftrain.runs.records import PerClass as PerClass
from selftrain.runs.records import PoolPrior as PoolPrior
from selftrain.runs.records import Share

Confusion = list[list[int]]
Arrays = dict[str, NDArray[Any]]
FOLDS, REFERENCE = BESIDE = ("folds", "reference")
"""folders of further runs that belong to a run"""
LARGEST_OUTPUTS = 1 << 28  # bytes of the arrays of ``outputs.npz``
LARGEST_THUMBNAILS = 1 << 24  # and of ``thumbnails.npz``
LARGEST_SEEN = 1 << 28  # and of ``seen.npz``


class Measures(TypedDict, total=False):
    """Measures of the evaluated set and of pseudo labels, the same in ``metrics.jsonl`` and ``results.json``."""

    accuracy: Share | None
    mean_per_class: Share | None
    per_class: list[Share | None] | None
    worst10: Share | None
    worst20: Share | None
    worst20_percent: Share | None
    imbalance_ratio: float | Literal["inf"] | None
    """``"inf"`` if a class is never predicted"""
    pseudo_label_quantity: float | None
    pseudo_label_quality: float | None
    ece: float | None
    calibration: list[list[float | None]] | None
    """15 bins of confidence: count, mean confidence, accuracy"""


class MetricsRow(Measures, total=False):
    """One line of ``metrics.jsonl``, with ``loss_<term>`` for each term of the loss as well."""

    step: int
    seconds: float
    lr: float | None
    loss: float
    predicted: list[int] | None
    pseudo_predicted: list[int] | None
    pseudo_kept: list[float] | None
    pseudo_seen_true: list[int] | None
    pseudo_kept_true: list[float] | None
    pseudo_right: list[float] | None
    pseudo_churn: float | None
    worst_error: float | None
    worst_loss: float | None
    head_agreement: float | None
    alarms: list[str]
    """classes that are no longer predicted since the row before"""


class Results(Measures, total=False):
    """``results.json``, written when a run is finished."""

    method: str
    dataset: str
    seed: int
    steps: int
    seconds: float
    steps_per_second: float
    evaluated_on: Literal["test", "validation"] | None
    metric: str
    """the measure that is reported for the dataset: ``accuracy`` or ``mean_per_class``"""
    regime: str
    backbone: str
    size: int | None
    """side of the images in pixels; None for features"""
    flip: bool | None
    """whether images were mirrored at random; None for features"""
    labels_per_class: int | None
    labeled: int
    unlabeled: int
    split_hash: str
    classes: list[str]
    selftrain: str
    torch: str
    settings_hash: str
    environment: dict[str, Any]
    pool_predicted: list[int] | None
    pool_truth: list[int] | None
    """images of each class in the unlabeled pool, without those of no class; None unless all are known"""
    junk: int | None
    """images in the unlabeled pool that are known to be of no class"""
    confusion: Confusion | None
    """``[true, predicted, count]`` of each pair of classes that occurs"""
    alarms: list[str]
    """classes that the final model never predicts"""
    labeled_prior: list[float]
    cross_validated: CrossValidated | None
    prior: PoolPrior | None
    screening: JunkScreening | None
    guard: GuardRecord | None
    calibrated: Calibrated | None
    risk_coverage: list[list[float]] | None
    """``[coverage, accuracy, lowest confidence]`` of the surest evaluated images"""
    estimated: Estimated | None


MEASURES = tuple(Measures.__annotations__)
SHARES = (
    "accuracy", "mean_per_class", "worst10", "worst20", "worst20_percent", "ece", "pseudo_label_quantity",
    "pseudo_label_quality",
)  # fmt: skip
"""measures between 0 and 1, which are shown in percent"""
AMOUNTS = ("imbalance_ratio", "seconds", "steps", "steps_per_second", "labeled", "unlabeled")
"""measures that are shown as they are"""


class LabelsOnly(TypedDict):
    """A run on true labels alone, to compare with."""

    accuracy: Share | None
    per_class: list[Share | None]


class Reference(TypedDict, total=False):
    """``reference.json``: data bias and training bias of each class."""

    labels_only: LabelsOnly
    all_labels: LabelsOnly | None
    data_bias: PerClass | None
    training_bias: PerClass
    evaluated_on: str | None


class LabeledEntry(TypedDict):
    path: str
    label: str


class SplitRecord(TypedDict, total=False):
    """The fields of ``split.json`` that are read for display; ``selftrain.data.split`` writes and checks the file."""

    dataset: str
    classes: list[str]
    counts: dict[str, int]
    labeled: list[LabeledEntry]
    hash: str


class Rows(NamedTuple):
    """The rows of ``metrics.jsonl``, and whether the last line was cut short by a kill."""

    rows: list[MetricsRow]
    cut_short: bool


@dataclass(frozen=True)
class RunLayout:
    """The paths of a run folder's files, and readers and writers for them."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    @property
    def split(self) -> Path:
        return self.folder / "split.json"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def results(self) -> Path:
        return self.folder / "results.json"

    @property
    def outputs(self) -> Path:
        """Predictions of the final model, image by image."""
        return self.folder / "outputs.npz"

    @property
    def thumbnails(self) -> Path:
        """Small copies of the images that the report shows; absent in older runs and for features."""
        return self.folder / "thumbnails.npz"

    @property
    def seen(self) -> Path:
        """Projected features of the training images; absent in older runs and in regimes without fixed features."""
        return self.folder / "seen.npz"

    @property
    def reference(self) -> Path:
        return self.folder / "reference.json"

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def lock(self) -> Path:
        """Held while a process trains in the folder."""
        return self.folder / ".lock"

    @property
    def model(self) -> Path:
        """The folder of the trained model, which may have been copied elsewhere by itself."""
        return self.folder if ModelLayout(self.folder).card.exists() else self.folder / "model"

    def beside(self, name: str) -> RunLayout:
        """Return the layout of a further run inside this folder, such as ``reference/labels_only``."""
        return RunLayout(self.folder / name)

    @property
    def origin(self) -> RunLayout:
        """The run that this one belongs to, if it is one of its folds or its reference; else this one."""
        origin = RunLayout(self.folder.parent.parent)
        return origin if self.folder.parent.name in BESIDE and origin.exists else self

    @property
    def exists(self) -> bool:
        return self.config.exists()

    @property
    def finished(self) -> bool:
        return self.results.exists()

    def check(self) -> None:
        """Raise a UserError if the folder is not a run folder."""
        if not self.exists:
            missing = f"no {self.config.name} in it" if self.folder.exists() else "the folder does not exist"
            raise UserError(f"{self.folder}: not a run folder ({missing}). Make one with 'selftrain train'.")

    def read_settings(self) -> dict[str, Any]:
        """Return the settings in ``config.yaml`` by their dotted names."""
        return read_config(self.config)

    def write_settings(self, settings: Settings) -> None:
        write_text(self.config, dump_settings(settings), within=self.folder)

    def read_metrics(self) -> Rows:
        """Return the evaluations, oldest first; none if the file does not exist."""
        if not self.metrics.exists():
            return Rows([], cut_short=False)
        try:
            text = read_bytes(self.metrics).decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{self.metrics}: cannot be read ({error}).") from None
        rows: list[MetricsRow] = []
        lines = text.splitlines()
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                if not isinstance(row, dict) or "step" not in row:
                    raise ValueError("expected an object with a 'step'")
            except (ValueError, RecursionError) as error:
                if number == len(lines) and not text.endswith("\n"):
                    return Rows(rows, cut_short=True)
                raise UserError(f"{self.metrics}, line {number}: not a row of metrics ({error}).") from None
            rows.append(check(row, MetricsRow, f"{self.metrics}, line {number}"))
        return Rows(rows, cut_short=False)

    def write_metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        write_text(self.metrics, "".join(map(_line, rows)), within=self.folder)

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        append_text(self.metrics, _line(row))

    def read_results(self) -> Results:
        """Return ``results.json``; an empty record if the run is not finished."""
        return cast(Results, _read_object(self.results, Results))

    def write_results(self, results: Mapping[str, Any]) -> None:
        write_json(self.results, as_json(results), within=self.folder)

    def read_split(self) -> SplitRecord:
        return cast(SplitRecord, _read_object(self.split, SplitRecord))

    def read_reference(self) -> Reference | None:
        return cast(Reference, _read_object(self.reference, Reference)) or None

    def write_reference(self, reference: Reference) -> None:
        write_json(self.reference, reference, within=self.folder)

    def read_outputs(self) -> Arrays:
        """Return the arrays of ``outputs.npz`` by name; none in older runs."""
        return read_arrays(self.outputs, most=LARGEST_OUTPUTS) if self.outputs.exists() else {}

    def write_outputs(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._write_arrays(self.outputs, arrays)

    def read_thumbnails(self) -> Arrays:
        """Return the arrays of ``thumbnails.npz``; none if there is no such file."""
        return read_arrays(self.thumbnails, most=LARGEST_THUMBNAILS) if self.thumbnails.exists() else {}

    def write_thumbnails(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write ``thumbnails.npz``, unless there is nothing to write."""
        if arrays:
            self._write_arrays(self.thumbnails, arrays)

    def read_seen(self) -> Arrays:
        """Return the arrays of ``seen.npz``; none if there is no such file."""
        return read_arrays(self.seen, most=LARGEST_SEEN) if self.seen.exists() else {}

    def write_seen(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write ``seen.npz``."""
        self._write_arrays(self.seen, arrays)

    def _write_arrays(self, path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
        with replacing(path, within=self.folder) as temporary, temporary.open("wb") as file:
            write_arrays(file, arrays)

    def contents(self) -> set[str]:
        """Return the names of the files in the folder, apart from the lock and what a killed process was writing."""
        names = {entry.name for entry in os.scandir(self.folder)}
        return {name for name in names if not is_part(name)} - {self.lock.name}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of everything that a run, its folds, its reference and its report write."""
        files = (
            self.config, self.split, self.metrics, self.results, self.outputs, self.thumbnails, self.seen,
            self.reference, self.log, self.report, self.checkpoints,
        )  # fmt: skip
        return (*(file.name for file in files), "model", *BESIDE)

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders that a run writes to."""
        return self.folder, self.checkpoints, self.folder / "model"


@dataclass(frozen=True)
class ModelLayout:
    """The paths of a trained model's files."""

    folder: Path

    @property
    def weights(self) -> Path:
        return self.folder / "model.safetensors"

    @property
    def card(self) -> Path:
        """Classes, preprocessing and architecture; a folder that has it is complete."""
        return self.folder / "model.json"

    @property
    def readme(self) -> Path:
        """The model card for people; absent in older models."""
        return self.folder / "README.md"

    @property
    def novelty(self) -> Path:
        """What tells images of no class from members of classes; absent in older models."""
        return self.folder / "novelty.safetensors"


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(as_json(dict(row)), allow_nan=False) + "\n"


def _read_object(path: Path, kind: Any) -> dict[str, Any]:
    found: dict[str, Any] = check(read_json(path), kind, str(path)) if path.exists() else {}
    return found
