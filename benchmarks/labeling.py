"""A simulated labeler: is a label of a suggested image worth more than one of a random image?

Starts from nothing, with 2 labels per class on average in the first round and 1 in each of the next ones. The labeler
knows the truth; the test images are used for the table only. Finished lines are kept, and the same command resumes.

python -m benchmarks.labeling --root DATA --out labeling.jsonl [--model quick|default] [--draws 5] [--dataset NAME]...
python -m benchmarks.labeling --features FOLDER --model quick
python -m benchmarks.labeling --root DATA --cover
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from selftrain.config.resolve import make_settings
from selftrain.console import Reporter
from selftrain.data.corpus import Corpus
from selftrain.data.features.extract import view_names
from selftrain.data.features.rows import FeatureRows, feature_batches
from selftrain.data.source import Source
from selftrain.engine.metrics import summarise
from selftrain.files import append_text
from selftrain.runs.in_memory import fit_in_memory
from selftrain.runs.network_inputs import make_extractor
from selftrain.suggest.choose import UNLABELED, choose
from selftrain.suggest.pool import Pool
from selftrain.suggest.quick import Answers, quick_answers
from selftrain.suggest.trained import probabilities_of, trained_answers

DATASETS = ("cifar10-mini", "ucmerced", "caltech101", "gtsrb")
ROUNDS = (2, 1, 1, 1)
"""labels per class on average in each round"""
MANY, FEWER = 10, 6
"""random labels per class whose accuracy is to be reached, and suggested ones that should do"""
PLANS = {"suggested": (*ROUNDS, FEWER - sum(ROUNDS)), "random": ROUNDS, "random-many": (MANY,)}
"""labels per class on average in each round of a strategy"""
Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Data:
    """One dataset with the features of all its images."""

    name: str
    corpus: Corpus
    x: Array
    test: Array

    @property
    def classes(self) -> int:
        return len(self.corpus.classes)


def load(root: Path, name: str) -> Data:
    corpus = Source.parse(root / name).corpus(check="none")
    assert corpus.test is not None
    settings = make_settings("frozen", {})
    extractor = make_extractor(settings, None, torch.device("cpu"), Reporter())
    stored = view_names(settings.data.weak_views, settings.data.strong_views)  # those that training reads

    def clean(images: Any, views: tuple[str, ...]) -> Array:
        return np.concatenate([b.numpy() for b in feature_batches(extractor.features(images, views), 4096)])

    return Data(name, corpus, clean(corpus.images, stored), clean(corpus.test, ("clean",)))


def load_files(folder: Path, name: str) -> Data:
    """Read ``NAME-train.npz`` and ``NAME-test.npz``, which 'selftrain embed' wrote for folders of class folders."""
    train, test = (np.load(folder / f"{name}-{part}.npz") for part in ("train", "test"))
    classes = sorted({str(path).split("/")[0] for path in train["names"]})
    truth, tested = (np.array([classes.index(str(p).split("/")[0]) for p in part["names"]]) for part in (train, test))
    x, y = (np.asarray(part["features"], np.float32) for part in (train, test))
    return Data(name, Corpus(name, tuple(classes), FeatureRows(x), truth, truth, FeatureRows(y), tested), x, y)


class Model:
    """The answers of a model of some labels, on the pool and on the test images."""

    def __init__(self, data: Data, pool: Pool, everything: Pool, kind: str):
        self.data, self.pool, self.everything, self.kind = data, pool, everything, kind

    def fit(self, labels: Array, seed: int) -> tuple[Answers, Array]:
        """Return the answers on the pool, and the predicted class of each test image."""
        data = self.data
        quick = quick_answers(self.pool, labels, data.classes)
        if self.kind == "quick":
            more = np.concatenate([labels, np.full(len(data.test), UNLABELED)])
            return quick, quick_answers(self.everything, more, data.classes).p[len(labels) :].argmax(axis=1)
        present = np.unique(labels[labels >= 0])
        place = np.full(data.classes + 1, -1)
        place[present] = np.arange(len(present))
        known, truth = place[labels], place[data.corpus.truth]
        names = tuple(data.corpus.classes[k] for k in present)
        corpus = replace(
            data.corpus, classes=names, labels=known, truth=truth, test=None, test_labels=None, is_benchmark=False
        )
        given = {"data.path": data.name, "regime": "frozen", "seed": seed, "train.threads": 1}
        fitted = fit_in_memory(corpus, given, None, Reporter(quiet=True))
        predicted = present[probabilities_of(fitted, data.test).argmax(axis=1)]
        answers = trained_answers(fitted, data.x, replace(quick, p=quick.p[:, present]))
        whole = np.zeros((len(data.x), data.classes))
        whole[:, present] = answers.p
        return replace(answers, p=whole), predicted


def lines(data: Data, kind: str, draw: int, strategy: str) -> Iterator[dict[str, Any]]:
    """Yield a line per budget."""
    pool = Pool.of(data.x)
    everything = Pool.of(np.concatenate([data.x, data.test])) if kind == "quick" else pool
    model = Model(data, pool, everything, kind)
    truth, labels = data.corpus.truth, np.full(len(data.x), UNLABELED)
    order = np.random.default_rng(draw).permutation(len(labels))
    answers, given = None, 0
    for per_class in PLANS[strategy]:
        count = per_class * data.classes
        if strategy == "suggested":
            rows = np.array([c.row for c in choose(pool, labels, count, answers=answers, seed=draw)])
        else:
            rows = order[given : given + count]
        given += count
        labels[rows] = truth[rows]
        answers, predicted = model.fit(labels, draw)
        confusion = np.zeros((data.classes, data.classes), np.int64)
        assert data.corpus.test_labels is not None
        np.add.at(confusion, (data.corpus.test_labels, predicted), 1)
        measures = summarise(confusion)
        yield {
            "dataset": data.name, "model": kind, "strategy": strategy, "draw": draw, "per_class": given // data.classes,
            "labels": given, "covered": len(np.unique(labels[labels >= 0])), "classes": data.classes,
            **{name: round(float(measures[name]), 4) for name in ("accuracy", "worst20_percent")},
        }  # fmt: skip


def table(found: list[dict[str, Any]]) -> str:
    """Return the results as Markdown: accuracy and worst fifth of classes, suggested and random."""
    text = [
        "| dataset | labels per class | random | suggested | worst fifth, random | worst fifth, suggested "
        "| classes covered | draws |",
        "|---|---|---|---|---|---|---|---|",
    ]

    def mean(name: str, strategy: str, per_class: int, column: str) -> float | None:
        values = [
            line[column]
            for line in found
            if (line["dataset"], line["strategy"], line["per_class"]) == (name, strategy, per_class)
        ]
        return float(np.mean(values)) if values else None

    def shown(value: float | None, scale: float = 100) -> str:
        return "-" if value is None else f"{scale * value:.1f}"

    names = [name for name in DATASETS if any(line["dataset"] == name for line in found)]
    for name in names:
        for budget in np.cumsum(ROUNDS).tolist():
            cells = [
                shown(mean(name, s, budget, c))
                for c in ("accuracy", "worst20_percent")
                for s in ("random", "suggested")
            ]
            covered = " and ".join(shown(mean(name, s, budget, "covered"), 1) for s in ("random", "suggested"))
            draws = len({line["draw"] for line in found if line["dataset"] == name and line["per_class"] == budget})
            text.append(f"| {name} | {budget} | {' | '.join(cells)} | {covered} | {draws} |")
        if (many := mean(name, "random-many", MANY, "accuracy")) is not None:
            fewer = mean(name, "suggested", FEWER, "accuracy")
            text.append(f"| {name} | {FEWER} or {MANY} random | {shown(many)} | {shown(fewer)} | - | - | - | - |")
    return "\n".join(text)


def cover(data: Data, draws: int) -> str:
    """Return how many classes the first round covers on the mean, by suggested and by random training images."""
    pool, truth, count = Pool.of(data.x), data.corpus.truth, ROUNDS[0] * data.classes
    none = np.full(len(truth), UNLABELED)

    def covered(rows: Any) -> int:
        return len(np.unique(truth[rows]))

    suggested = [covered([c.row for c in choose(pool, none, count, seed=draw)]) for draw in range(draws)]
    random = [covered(np.random.default_rng(draw).permutation(len(truth))[:count]) for draw in range(draws)]
    return f"{data.name}: {np.mean(suggested):.1f} of {data.classes} classes suggested, {np.mean(random):.1f} random"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="folder of the datasets")
    parser.add_argument("--features", type=Path, help="folder of NAME-train.npz and NAME-test.npz, for --model quick")
    parser.add_argument("--out", type=Path, default=Path("labeling.jsonl"), help="file with one line per result")
    parser.add_argument("--model", choices=("quick", "default"), default="default")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--dataset", action="append", choices=DATASETS)
    parser.add_argument("--many", action="store_true", help=f"also {MANY} random labels per class")
    parser.add_argument("--cover", action="store_true", help="only count the classes that the first round covers")
    options = parser.parse_args()
    if options.cover:
        for name in options.dataset or DATASETS:
            some = load_files(options.features, name) if options.features else load(options.root, name)
            print(cover(some, options.draws), flush=True)
        return
    found = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    keys = ("dataset", "model", "strategy", "draw")
    done = {tuple(line[k] for k in keys) for line in found if line["per_class"] == sum(PLANS[line["strategy"]])}
    for name in options.dataset or DATASETS:
        data = None
        for draw in range(options.draws):
            for strategy in ("suggested", "random", *(["random-many"] if options.many else [])):
                if (name, options.model, strategy, draw) in done:
                    continue
                data = data or (load_files(options.features, name) if options.features else load(options.root, name))
                new = list(lines(data, options.model, draw, strategy))
                append_text(options.out, "".join(json.dumps(line) + "\n" for line in new))
                found += new
                print(name, strategy, draw, [line["accuracy"] for line in new], flush=True)
    print(table([line for line in found if line["model"] == options.model]))


if __name__ == "__main__":
    main()
