"""FrozenFeatures: images of any kind to features, alone and in a pipeline."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from selftrain import FrozenFeatures
from tests.estimator.small import Array, quick


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFTRAIN_CACHE", str(tmp_path / "cache"))


def photos(n: int = 12) -> tuple[Array, Array]:
    """Return images of 40 x 40 pixels that are reddish, greenish or bluish, and which of the three."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % 3
    x = rng.integers(0, 120, (n, 40, 40, 3))
    x[np.arange(n), :, :, y] += 130
    return x.astype(np.uint8), y


def files(x: Array, folder: Path) -> list[Path]:
    folder.mkdir()
    for i, image in enumerate(x):
        Image.fromarray(image).save(folder / f"{i:02d}.png")
    return sorted(folder.iterdir())


def test_kinds_of_images(tmp_path: Path) -> None:
    x, _ = photos()
    paths = files(x, tmp_path / "photos")
    small = FrozenFeatures(size=32)
    expected = small.fit_transform(x)
    assert expected.shape == (12, 1280)
    assert expected.dtype == np.float32
    kinds: list[Any] = [
        [Image.fromarray(image) for image in x], list(x), torch.from_numpy(x), x / 255,
        paths, [str(path) for path in paths], np.array([str(path) for path in paths]), pd.Series(paths),
    ]  # fmt: skip
    for images in kinds:
        assert np.allclose(small.transform(images), expected, atol=0.02), type(images)


def test_images_of_different_sizes_and_modes() -> None:
    x, _ = photos(3)
    grey = Image.fromarray(x[1]).convert("L").resize((50, 30))
    clear = Image.fromarray(x[2]).convert("RGBA")
    found = FrozenFeatures(size=32).transform([x[0], grey, clear])
    assert np.allclose(found[[0, 2]], FrozenFeatures(size=32).transform(x[[0, 2]]), atol=1e-3)


def test_only_features_of_files_are_stored(tmp_path: Path) -> None:
    x, _ = photos(4)
    FrozenFeatures(size=32).transform(x)
    FrozenFeatures(size=32).transform(list(x))
    assert not (tmp_path / "cache").exists()
    paths = files(x, tmp_path / "photos")
    first = FrozenFeatures(size=32).transform(paths)
    assert (tmp_path / "cache" / "features").is_dir()
    assert (FrozenFeatures(size=32).transform(paths) == first).all()
    FrozenFeatures(size=32, cache=tmp_path / "elsewhere").transform(paths)
    assert (tmp_path / "elsewhere" / "features").is_dir()


def test_several_views() -> None:
    x, _ = photos(6)
    views = FrozenFeatures(size=32, views=3).transform(x)
    assert views.shape == (6, 3, 1280)
    assert np.allclose(views[:, 0], FrozenFeatures(size=32).transform(x), atol=0.02)
    assert not np.allclose(views[:, 1], views[:, 2], atol=0.02)
    assert (FrozenFeatures(size=32, views=3).transform(x) == views).all()


def test_a_pipeline_from_paths_to_labels(tmp_path: Path) -> None:
    x, truth = photos(30)
    y = np.where(np.arange(len(x)) < 9, truth, -1)
    paths = files(x, tmp_path / "photos")
    for views in (1, 3):
        pipe = make_pipeline(FrozenFeatures("lite0", size=32, views=views), quick(steps=40))
        assert pipe.fit(paths, y).score(paths, truth) > 0.9
        again = pickle.loads(pickle.dumps(pipe))
        assert (again.predict(paths) == pipe.predict(paths)).all()


def test_names_of_features_and_tables() -> None:
    x, _ = photos(2)
    names = FrozenFeatures(size=32).get_feature_names_out()
    assert names[:2].tolist() == ["lite0_0", "lite0_1"]
    table = FrozenFeatures(size=32).set_output(transform="pandas").fit_transform(x)
    assert isinstance(table, pd.DataFrame)
    assert table.columns.tolist() == names.tolist()
    assert clone(FrozenFeatures(size=64, views=2)).get_params()["views"] == 2


def test_the_process_is_left_as_it_was() -> None:
    x, _ = photos(2)
    torch.manual_seed(5)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    FrozenFeatures(size=32, views=2).fit_transform(x)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_what_images_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    for images, words in (
        ("photos", "expected a list of images, got the path 'photos'"),
        ([], "0 samples"),
        ([3, 4], "image 0 is of type int"),
        ([tmp_path / "broken.jpg"], "1 of 1 images cannot be read; the first is .*broken.jpg"),
        ([tmp_path / "gone.jpg"], "cannot be read"),
        (np.zeros((2, 3)), "images must be"),
    ):
        with pytest.raises(ValueError, match=words):
            FrozenFeatures(size=32).transform(images)
    with pytest.raises(ValueError, match="`views=0`"):
        FrozenFeatures(views=0).fit([])
    with pytest.raises(ValueError, match="lite00"):
        FrozenFeatures("lite00").fit([])
