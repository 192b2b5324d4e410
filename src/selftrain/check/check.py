"""``selftrain check``: problems of a dataset that can be seen before training.

Knows nothing of how each problem is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from selftrain.check.duplicates import find_duplicates
from selftrain.check.findings import TITLES, Finding, counts
from selftrain.check.images import find_odd_images
from selftrain.check.labels import RELIABLE, LeftOut, Suspect, hard_pairs, leave_out, suspects
from selftrain.check.page import write_page
from selftrain.check.pool import Pool, read_pool
from selftrain.config.resolve import make_settings
from selftrain.console import Reporter
from selftrain.errors import UserError
from selftrain.files import write_json
from selftrain.runs.mirror import judge_features, judge_names, sample_labeled
from selftrain.runs.process import restored_afterwards
from selftrain.text import listed, plural
from selftrain.version import __version__

UNEVEN = 5
"""labels of the class with most divided by those of the class with fewest"""
NEAREST_SHOWN = 3


@dataclass(frozen=True, eq=False)
class Checked:
    """What a check has found."""

    findings: tuple[Finding, ...]
    pool: Pool

    @property
    def leaks(self) -> tuple[Finding, ...]:
        """Test images that are also in the training data."""
        return tuple(one for one in self.findings if one.kind == "leak")

    def as_json(self) -> dict[str, Any]:
        """Return the findings as plain values."""
        parts = {part: self.pool.parts.count(part) for part in ("labeled", "unlabeled", "test")}
        return {
            "selftrain": __version__,
            "data": self.pool.name,
            "images": parts,
            "classes": list(self.pool.classes),
            "counts": counts(self.findings),
            "findings": [one.as_json() for one in self.findings],
        }

    def save(self, path: str | Path) -> Path:
        """Write the findings as JSON and return the path of the file."""
        path = Path(path)
        write_json(path, self.as_json())
        return path

    def save_page(self, path: str | Path) -> Path:
        """Write the findings as one HTML page with thumbnails and return its path."""
        return write_page(self.findings, self.pool, Path(path))


def check(
    data: Any,
    *,
    labels: str | Path | None = None,
    test: str | Path | None = None,
    unlabeled: str | Path | None = None,
    labels_per_class: int | None = None,
    backbone: str | None = None,
    size: int | None = None,
    root: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    reporter: Reporter | None = None,
) -> Checked:
    """Look for problems in images and labels, without training; arguments are those of ``train``.

    Backbone and size are those whose features are compared: by default, those of the frozen regime.
    """
    reporter = reporter or Reporter(quiet=True)
    given = {
        "data.path": str(data), "data.labels": labels and str(labels), "data.test": test and str(test),
        "data.unlabeled": unlabeled and str(unlabeled), "data.labels_per_class": labels_per_class,
        "network.backbone": backbone, "data.size": size, "data.root": root and str(root), **(settings or {}),
    }  # fmt: skip
    chosen = make_settings("frozen", {name: value for name, value in given.items() if value is not None})
    with restored_afterwards(threads=chosen.train.threads):
        pool = read_pool(chosen, reporter)
        found = [*_unreadable(pool), *find_duplicates(pool), *_labels(pool), *_mirror(pool), *_uneven(pool)]
        found += find_odd_images(pool, chosen.data.size or 192)
    order = list(TITLES)
    return Checked(tuple(sorted(found, key=lambda one: order.index(one.kind))), pool)


def check_leaks(checked: Checked) -> None:
    """Raise a UserError if test images are also in the training data."""
    if leaks := checked.leaks:
        raise UserError(
            f"`strict`: {plural(len(leaks), 'test image')} or group of them is also in the training data; the first: "
            f"{leaks[0].text}. Remove them from one of the two."
        )


def _unreadable(pool: Pool) -> list[Finding]:
    if not pool.skipped:
        return []
    text = f"{plural(len(pool.skipped), 'image')} cannot be read: {listed(pool.skipped)}"
    return [Finding("unreadable", "warning", text, tuple(pool.skipped), details={"count": len(pool.skipped)})]


def _labels(pool: Pool) -> list[Finding]:
    """Return labels that are likely wrong and classes that cannot be told apart."""
    rows, classes = pool.labeled, pool.classes
    y = pool.labels[rows]
    if len(np.unique(y)) < 2 or np.bincount(y).max() < 2:
        return []
    trained = pool.trained
    place = np.searchsorted(trained, rows)
    left_out = leave_out(pool.features[trained], place, y, len(classes))
    wrong = suspects(left_out, y)
    findings = [_suspicion(pool, one, left_out) for one in wrong]
    for j, k, good, n in hard_pairs(left_out, y, wrong):
        text = (
            f"{classes[j]} and {classes[k]}: {good} of {n} labeled images are nearer to their own class, by their "
            "features. More labels of both help most."
        )
        findings.append(Finding("classes", "warning", text, details={"classes": [classes[j], classes[k]]}))
    return findings


def _suspicion(pool: Pool, suspect: Suspect, left_out: LeftOut) -> Finding:
    i, classes = int(pool.labeled[suspect.row]), pool.classes
    label, instead = classes[pool.labels[i]], classes[suspect.instead]
    same = pool.labeled[pool.labels[pool.labeled] == suspect.instead]
    near = same[np.argsort(-_cosines(pool, i, same), kind="stable")][:NEAREST_SHOWN].tolist()
    weak = left_out.found < RELIABLE
    caution = f" (the features find only {100 * left_out.found:.0f}% of the labels again)" if weak else ""
    return Finding(
        "label",
        "note" if weak else "warning",
        f"{pool.images.names[i]}: labeled {label}, looks like {instead}{caution}",
        (pool.images.names[i], *(pool.images.names[j] for j in near)),
        (i, *near),
        (f"labeled {label}", *[f"labeled {instead}"] * len(near)),
        {"label": label, "instead": instead, "margin": round(suspect.margin, 3)},
    )


def _cosines(pool: Pool, i: int, rows: Any) -> Any:
    x, others = pool.features[i], pool.features[rows]
    return others @ x / np.maximum(np.linalg.norm(others, axis=1), 1e-12)


def _mirror(pool: Pool) -> list[Finding]:
    verdict = judge_names(pool.classes)
    if verdict is None and len(pool.labeled):
        y = pool.labels[pool.labeled]
        chosen = sample_labeled(y, pool.settings.data.split_seed)
        if len(chosen):
            clean, mirrored = pool.mirrored(pool.labeled[chosen])
            verdict = judge_features(clean, mirrored, y[chosen], pool.classes)
    if verdict is None or (verdict.flip and not verdict.doubtful):
        return []
    words = "may change" if verdict.flip else "changes"
    advice = (
        "If left and right matter, train with data.flip=false." if verdict.flip else "Training does not mirror them."
    )
    return [Finding("mirror", "note", f"Mirroring {words} the class of images: {verdict.reason}. {advice}")]


def _uneven(pool: Pool) -> list[Finding]:
    n = np.bincount(pool.labels[pool.labeled], minlength=len(pool.classes))
    if not len(pool.labeled):
        return []
    details = {"labels": {name: int(count) for name, count in zip(pool.classes, n, strict=True)}}
    most, fewest = int(n.argmax()), int(n.argmin())
    findings = []
    if n.max() >= UNEVEN * max(1, n.min()):
        text = f"{pool.classes[most]} has {n[most]} labels, {pool.classes[fewest]} has {n[fewest]}"
        findings.append(Finding("uneven", "warning", text, details=details))
    single = [name for name, count in zip(pool.classes, n, strict=True) if count == 1]
    if single:
        text = (
            f"{plural(len(single), 'class', 'classes')} with a single label, which cannot be checked: {listed(single)}"
        )
        findings.append(Finding("uneven", "note", text, details=details))
    return findings
