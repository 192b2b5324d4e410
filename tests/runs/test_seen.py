"""Near-duplicates of training images among new images: copies are named, other images are not."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

import selftrain
from selftrain.errors import UserError
from selftrain.runs.layout import RunLayout
from selftrain.runs.seen import NEAR_DUPLICATE, WIDTH, Seen, project, read_seen

pytestmark = pytest.mark.long


def blotches(seed: int) -> Image.Image:
    """Return an image of random colours, unlike any other."""
    rng = np.random.default_rng(seed)
    side = int(rng.integers(4, 14))
    coarse = Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8))
    return coarse.resize((96, 96), Image.Resampling.BICUBIC if seed % 2 else Image.Resampling.NEAREST)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> selftrain.Run:
    folder = tmp_path_factory.mktemp("seen")
    for i in range(24):
        part = f"labeled/{'ab'[i % 2]}" if i < 8 else "unlabeled"
        (folder / "data" / part).mkdir(parents=True, exist_ok=True)
        blotches(i).save(folder / "data" / part / f"{i}.png")
    return selftrain.train(
        folder / "data",
        regime="frozen",
        size=64,
        steps=5,
        out=folder / "run",
        quiet=True,
        settings={"train.threads": 1},
    )


def test_copies_are_named_and_other_images_are_not(run: selftrain.Run, tmp_path: Path) -> None:
    new, data = tmp_path / "new", run.folder.parent / "data"
    new.mkdir()
    shutil.copy(data / "labeled/a/0.png", new / "copy.png")
    with Image.open(data / "unlabeled/11.png") as image:
        image.save(new / "encoded.jpg", quality=85)
    with Image.open(data / "unlabeled/15.png") as image:
        image.resize((150, 150)).save(new / "resized.jpg", quality=90)
    for i in range(100, 112):
        blotches(i).save(new / f"other{i}.png")
    found = run.predict(new)
    assert found.duplicate_of is not None
    named = {path: of for path, of in zip(found.paths, found.duplicate_of, strict=True) if of}
    assert {path: Path(of).name for path, of in named.items()} == {
        "copy.png": "0.png",
        "encoded.jpg": "11.png",
        "resized.jpg": "15.png",
    }
    assert found.duplicates == sorted(named)
    with found.save(tmp_path / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["duplicate_of"] for row in rows] == list(found.duplicate_of)
    assert list(rows[0])[:5] == ["path", "label", "confidence", "novelty", "duplicate_of"]


def test_a_model_alone_remembers_no_images(run: selftrain.Run, tmp_path: Path) -> None:
    shutil.copytree(run.model, tmp_path / "model")
    found = selftrain.Run(tmp_path / "model").predict(run.folder.parent / "data/unlabeled")
    assert found.duplicate_of is None
    assert found.duplicates == []


def test_the_projection_keeps_cosines() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 1280, generator=generator)
    y = x + 0.25 * torch.randn(200, 1280, generator=generator)
    exact, kept = F.cosine_similarity(x, y), (project(x) * project(y)).sum(dim=1)
    assert 0.96 < float(exact.mean()) < 0.98
    assert float((exact - kept).abs().max()) < 0.015
    assert float(project(x)[0, :4].sign().sum()) == float(project(3 * x)[0, :4].sign().sum())


def test_a_file_of_a_stranger_is_checked(run: selftrain.Run) -> None:
    arrays = RunLayout(run.folder).read_seen()
    known = read_seen(arrays, int(arrays["dim"]))
    assert isinstance(known, Seen)
    assert len(known.names) == 24
    assert known.rows.shape == (24, WIDTH)
    assert 0.9 < NEAR_DUPLICATE < 1
    assert read_seen(arrays, 7) is None  # of another backbone
    assert read_seen({}, 1280) is None
    for broken in ({"rows": arrays["rows"][:, :3]}, {"rows": arrays["rows"] * np.nan}, {"names": np.arange(24)}):
        with pytest.raises(UserError, match=r"seen\.npz: must hold"):
            read_seen({**arrays, **broken}, int(arrays["dim"]))
