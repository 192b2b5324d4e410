"""Views of cached features, and of features that the user brings."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from selftrain.batch import Views
from selftrain.data.features.extract import view_names
from selftrain.data.features.rows import FeatureRows
from selftrain.data.features.views import FeatureSpaceViews, FeatureViews, VectorFile, gaussian
from selftrain.data.images import ArrayImages, FileImages, fingerprint
from selftrain.data.views.image_views import ViewMaker
from selftrain.data.views.stream import Stream
from selftrain.errors import UserError
from tests.folders import layout_2

NAMES = view_names(2, 3)


def marked(n: int = 10) -> np.ndarray:
    """Features that say which row and view they are."""
    rows, views = np.meshgrid(np.arange(n), np.arange(len(NAMES)), indexing="ij")
    return np.stack([rows, views], axis=2).astype(np.float16)


def test_view_names() -> None:
    assert NAMES == ("clean", "weak_1", "weak_2", "strong_1", "strong_2", "strong_3")


def test_each_kind_is_drawn_from_its_own_views() -> None:
    views = FeatureViews(marked(), NAMES, np.arange(10))
    rng = np.random.default_rng(0)
    seen: dict[str, set[float]] = {"weak": set(), "strong": set(), "clean": set()}
    rows = np.array([3, 3, 7, 0])
    for _ in range(50):
        made = views.make(rows, ("weak", "strong", "clean"), rng)
        for name, values in made.items():
            assert values.dtype == torch.float32
            assert values[:, 0].tolist() == rows.tolist()
            seen[name] |= set(values[:, 1].tolist())
    assert seen == {"weak": {1, 2}, "strong": {3, 4, 5}, "clean": {0}}


def test_a_second_view_differs_from_the_first() -> None:
    views = FeatureViews(marked(), NAMES, np.arange(10))
    rows = np.arange(10)
    for seed in range(10):
        made = views.make(rows, ("weak", "weak_2", "strong", "strong_2"), np.random.default_rng(seed))
        assert (made["weak"][:, 1] != made["weak_2"][:, 1]).all()
        assert (made["strong"][:, 1] != made["strong_2"][:, 1]).all()


def test_rows_are_places_in_a_part_of_the_pool() -> None:
    views = FeatureViews(marked(), NAMES, np.array([8, 2]))
    made = views.make(np.array([1, 0]), ("weak",), np.random.default_rng(0))
    assert made["weak"][:, 0].tolist() == [2, 8]


@pytest.mark.parametrize("kind", ["cached", "made"])
def test_two_ranks_share_the_batch_of_one(kind: str) -> None:
    def stream(**ranks: Any) -> Stream:
        if kind == "cached":
            features = np.random.default_rng(0).normal(size=(20, len(NAMES), 5)).astype(np.float16)
            views: ViewMaker = FeatureViews(features, NAMES, np.arange(20))
        else:
            values = np.random.default_rng(0).normal(size=(20, 5))
            views = FeatureSpaceViews.compute(values, np.arange(20), noise=0.1, dropout=0.2, mixup=0.3)
        labels = np.arange(20) % 2
        wanted = Views(unlabeled=("weak", "strong"), gradient=("strong",))
        return Stream(views, labels, views, wanted, batch=4, unlabeled_batch=6, seed=0, **ranks)

    _, whole = stream()[3]
    halves = [stream(rank=rank, ranks=2)[3][1] for rank in range(2)]
    assert torch.equal(torch.cat([half.strong for half in halves]), whole.strong)
    assert torch.equal(torch.cat([half.index for half in halves]), whole.index)


def test_strong_views_in_feature_space() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(30, 200)) + np.repeat(np.eye(2, 200) * 40, 15, axis=0)
    rows = np.arange(30)

    def strong(**options: float) -> torch.Tensor:
        views = FeatureSpaceViews.compute(values, rows, **{"noise": 0.0, "dropout": 0.0, "mixup": 0.0, **options})
        made = views.make(rows, ("weak", "strong"), np.random.default_rng(1))
        assert torch.equal(made["weak"], torch.from_numpy(values).float())
        return made["strong"]

    x = torch.from_numpy(values).float()
    assert torch.equal(strong(), x)
    dropped = strong(dropout=0.25)
    assert 0.2 < float((dropped == 0).float().mean()) < 0.3
    torch.testing.assert_close(dropped[dropped != 0], (x / 0.75)[dropped != 0])
    noise = strong(noise=0.5) - x
    assert float((noise.std(dim=0) / x.std(dim=0)).mean()) == pytest.approx(0.5, rel=0.1)
    moved = strong(mixup=0.4)
    assert not torch.equal(moved, x)
    assert (moved[:15, 0] > 20).all()  # towards neighbours of the same cluster, not across
    assert (moved[15:, 0] < 20).all()


def test_nobody_is_their_own_neighbour() -> None:
    values = np.random.default_rng(0).normal(size=(9, 4))
    near = FeatureSpaceViews.compute(values, np.arange(9), noise=0, dropout=0, mixup=0.3).near(np.arange(9))
    assert near.shape == (9, 8)
    assert not (near == np.arange(9)[:, None]).any()


def test_arrays_and_memory_maps_are_not_copied(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    np.save(tmp_path / "x.npy", values)

    def views_of(array: np.ndarray, rows: np.ndarray) -> FeatureSpaceViews:
        return FeatureSpaceViews.compute(array, rows, noise=0.1, dropout=0.2, mixup=0.0)

    def made(views: FeatureSpaceViews) -> dict[str, torch.Tensor]:
        return views.make(np.array([4, 0, 9]), ("weak", "strong"), np.random.default_rng(1))

    in_memory = views_of(values, np.arange(20, 40))
    assert np.shares_memory(in_memory.features, values)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for array, rows in ((mapped, np.arange(20, 40)), (np.asarray(mapped)[10:], np.arange(10, 30))):
        from_file = views_of(array, rows)
        assert isinstance(from_file.features, VectorFile)
        for name, view in made(from_file).items():
            assert torch.equal(view, made(in_memory)[name])
    private = np.load(tmp_path / "x.npy", mmap_mode="c")
    private[24] = 7
    assert (made(views_of(private, np.arange(20, 40)))["weak"][0] == 7).all()  # changed in memory alone
    assert not isinstance(views_of(mapped[:, ::2], np.arange(20, 40)).features, VectorFile)
    (tmp_path / "x.npy").unlink()
    assert torch.equal(made(views_of(mapped, np.arange(20, 40)))["weak"], made(in_memory)["weak"])


def test_noise_is_gaussian() -> None:
    drawn = gaussian(np.random.default_rng(0).integers(0, 1 << 16, 200_000, np.uint16)).astype(np.float64)
    every = gaussian(np.arange(1 << 16)).astype(np.float64)
    assert abs(every.mean()) < 1e-6
    assert every.std() == pytest.approx(1, abs=1e-3)
    assert (np.abs(drawn) < 1.959964).mean() == pytest.approx(0.95, abs=0.003)
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.01


def test_fingerprint_changes_with_the_images(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data", per_class=2)
    names = ["ant/ant000.png", "bee/bee000.png"]
    before = fingerprint(FileImages(data / "train", names))
    assert fingerprint(FileImages(data / "train", names)) == before
    assert fingerprint(FileImages(data / "train", names[:1])) != before
    as_copied = fingerprint(FileImages(data / "train", names), times=False)
    os.utime(data / "train" / names[0], ns=(1, 1))
    assert fingerprint(FileImages(data / "train", names)) != before
    assert fingerprint(FileImages(data / "train", names), times=False) == as_copied
    with pytest.raises(UserError, match=r"gone.png: cannot be read \(no such file"):
        fingerprint(FileImages(data / "train", ["gone.png"]))
    pixels = np.zeros((2, 8, 8), np.uint8)
    one = fingerprint(ArrayImages(pixels))
    pixels[0, 0, 0] = 1
    assert fingerprint(ArrayImages(pixels)) != one


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((2, 3, 4, 5)), r"\(2, 3, 4, 5\)"),
        (np.array([["a"], ["b"]]), "expected numbers"),
        (np.array([[1.0], [np.nan]]), "1 of 2 rows are not finite, the first is row 1"),
    ],
)
def test_bad_features_are_named(array: np.ndarray, words: str) -> None:
    with pytest.raises(UserError, match=words):
        FeatureRows(array)


def test_features_in_a_file_are_read_as_if_they_were_in_memory(tmp_path: Path) -> None:
    features = np.random.default_rng(0).standard_normal((50, len(NAMES), 8)).astype(np.float16)
    features.tofile(tmp_path / "array.bin")
    mapped = np.memmap(tmp_path / "array.bin", np.float16, mode="r", shape=features.shape)
    part = np.arange(49, 9, -1)
    rows, names = np.array([3, 0, 39, 3]), ("weak", "weak_2", "strong", "clean")
    expected = FeatureViews(features, NAMES, part).make(rows, names, np.random.default_rng(1))
    in_file = FeatureViews(mapped, NAMES, part)
    assert isinstance(in_file.features, VectorFile)
    for views in (in_file, pickle.loads(pickle.dumps(in_file)), FeatureViews(mapped[:], NAMES, part)):
        found = views.make(rows, names, np.random.default_rng(1))
        assert all(torch.equal(found[name], expected[name]) for name in names)


def test_a_file_cut_short_while_in_use_is_told(tmp_path: Path) -> None:
    np.zeros((10, len(NAMES), 8), np.float16).tofile(tmp_path / "array.bin")
    mapped = np.memmap(tmp_path / "array.bin", np.float16, mode="r", shape=(10, len(NAMES), 8))
    views = FeatureViews(mapped, NAMES, np.arange(10))
    os.truncate(tmp_path / "array.bin", 100)
    with pytest.raises(UserError, match="truncated"):
        views.make(np.array([9]), ("weak",), np.random.default_rng(0))
