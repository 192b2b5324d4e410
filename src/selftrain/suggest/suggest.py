"""``suggest``: which images to label next, as a list, a CSV file and a page of thumbnails.

Knows nothing of how images are ranked.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from selftrain.console import Reporter
from selftrain.data.images import Images
from selftrain.data.source import Source
from selftrain.errors import UserError
from selftrain.files import replacing
from selftrain.runs.arguments import joined
from selftrain.runs.layout import RunLayout
from selftrain.suggest.choose import choose
from selftrain.suggest.pool import Pool
from selftrain.suggest.problem import SuggestionProblem, problem_of_features, problem_of_photos, problem_of_run

COLUMNS = ("path", "label", "kind", "why", "score", "guess", "confidence", "same")
MOST = 100_000


@dataclass(frozen=True)
class Suggestion:
    """One image that is worth a label."""

    path: str
    kind: str
    """typical, doubtful, disagreement, rare or new"""
    why: str
    score: float
    guess: str | None
    """what the model says; None before there are labels"""
    confidence: float | None
    same: tuple[str, ...]
    """images that are nearly the same, which the answer may also hold for"""


@dataclass(frozen=True)
class Suggestions:
    """Images to label, the most useful first."""

    items: tuple[Suggestion, ...]
    images: Images
    """the whole pool"""
    labeled: int
    """images of the pool that have a label"""

    def __iter__(self) -> Iterator[Suggestion]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def paths(self) -> list[str]:
        return [item.path for item in self.items]

    def save(self, path: str | Path) -> Path:
        """Write a CSV file with an empty column ``label`` to fill in, and return its path."""
        path = Path(path)
        with (
            replacing(path) as temporary,
            temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
        ):
            self.write(file)
        return path

    def write(self, file: TextIO) -> None:
        """Write the same CSV to an open file."""
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for item in self.items:
            confidence = "" if item.confidence is None else f"{item.confidence:.4f}"
            guess, same = item.guess or "", "|".join(item.same)
            writer.writerow([item.path, "", item.kind, item.why, f"{item.score:.4f}", guess, confidence, same])

    def save_page(self, path: str | Path) -> Path:
        """Write an HTML page with a thumbnail of each image, and return its path."""
        from selftrain.suggest.page import write_page

        return write_page(self.items, self.images, self.labeled, Path(path))


def suggest(
    data: str | Path,
    n: int = 20,
    *,
    labels: str | Path | None = None,
    backbone: str | None = None,
    size: int | None = None,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    strict: bool = False,
    reporter: Reporter | None = None,
) -> Suggestions:
    """Return the images that are most worth a label.

    Before there are labels, these are typical images that cover the pile. With labels or a run, they are images that
    models disagree on or are unsure of, of classes with few labels, and images that look like none of the classes.

    Parameters
    ----------
    data
        A folder of images, a run folder, or a file of features (``selftrain embed``).
    n
        Number of suggestions; fewer if there are not so many images without a label.
    labels
        A CSV file ``path,label`` of the images that have a label; a run has its own.
    backbone, size, settings
        As ``train`` takes them, for the features of a folder of images.
    seed
        Of the clusters over which suggestions are spread.
    strict
        Stop at an unreadable image instead of leaving it out.
    """
    if not 1 <= n <= MOST:
        raise UserError(f"`n={n}`: must be from 1 to {MOST:,}.")
    reporter = reporter or Reporter(quiet=True)
    named = {"network.backbone": backbone, "data.size": size}
    given = joined({name: value for name, value in named.items() if value is not None}, settings)
    problem = _problem(Path(data), None if labels is None else Path(labels), given, strict, reporter)
    return suggestions_of(problem, n, seed)


def _problem(
    data: Path, labels: Path | None, given: Mapping[str, Any], strict: bool, reporter: Reporter
) -> SuggestionProblem:
    if RunLayout(data).exists:
        for name, value in (("labels", labels), ("settings", given)):
            if value:
                raise UserError(f"`{name}`: {data} is a run folder, which has its own. Leave it out.")
        return problem_of_run(data, reporter)
    kind = Source.parse(str(data), argument="images").kind
    if kind == "features":
        return problem_of_features(data, labels)
    if not data.is_dir():
        raise UserError(f"`data` {data}: expected a folder of images, a run folder or a file of features (.npz).")
    return problem_of_photos(data, labels, given, reporter, strict=strict)


def suggestions_of(problem: SuggestionProblem, n: int, seed: int = 0) -> Suggestions:
    """Return n suggestions for a pool."""
    pool, names = Pool.of(problem.features), problem.images.names
    chosen = choose(pool, problem.labels, n, classes=problem.classes, answers=problem.answers, seed=seed)
    items = []
    for choice in chosen:
        guess, confidence = None, None
        if problem.answers is not None:
            p = problem.answers.p[choice.row]
            guess, confidence = problem.classes[int(p.argmax())], float(p.max())
        same = tuple(names[row] for row in choice.same)
        items.append(Suggestion(names[choice.row], choice.kind, choice.why, choice.score, guess, confidence, same))
    return Suggestions(tuple(items), problem.images, int((problem.labels >= 0).sum()))
