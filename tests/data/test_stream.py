"""The stream: a batch is a function of the step alone, whatever the labels, classes, workers or ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from selftrain.batch import Views
from selftrain.config.resolve import make_settings
from selftrain.data.images import ArrayImages, FileImages, find_images
from selftrain.data.views.image_views import ImageViews
from selftrain.data.views.stream import Shuffle, Stream, WeightedShuffle, batches
from tests.folders import layout_2

VIEWS = Views(unlabeled=("weak", "strong", "weak_2"), gradient=("strong",))


def make_stream(
    n_labeled: int = 5, n_unlabeled: int = 40, *, crop: str = "pad", channels: int = 1, side: int = 8, **options: Any
) -> Stream:
    rng = np.random.default_rng(0)
    data = make_settings("scratch", {"data.crop": crop}).data

    def views(n: int) -> ImageViews:
        pixels = rng.integers(0, 256, (n, 11, 11) if channels == 1 else (n, 11, 11, 3), dtype=np.uint8)
        return ImageViews(ArrayImages(pixels), data, side=side, channels=channels, interpolation="bilinear", flip=True)

    labels = np.arange(n_labeled) % 2
    sizes = {"batch": 6, "unlabeled_batch": 10, "seed": 3, **options}
    return Stream(views(n_labeled), labels, views(n_unlabeled), VIEWS, **sizes)


def test_shuffle_sees_everything_once_a_pass() -> None:
    shuffle = Shuffle(7, 4, seed=0, tag=1)
    rows = np.concatenate([shuffle.rows(step) for step in range(7)])
    for start in range(0, 28, 7):
        assert sorted(rows[start : start + 7]) == list(range(7))
    assert not np.array_equal(rows[:7], rows[7:14])


def test_shuffle_with_fewer_rows_than_the_batch() -> None:
    rows = Shuffle(3, 10, seed=0, tag=1).rows(0)
    assert len(rows) == 10
    assert np.bincount(rows, minlength=3).min() >= 3


def test_shuffle_needs_no_history() -> None:
    one, other = Shuffle(9, 4, 0, 1), Shuffle(9, 4, 0, 1)
    for step in range(50):
        one.rows(step)
    assert np.array_equal(one.rows(50), other.rows(50))
    assert not np.array_equal(Shuffle(9, 4, 1, 1).rows(50), other.rows(50))


@pytest.mark.parametrize("crop", ["pad", "resized"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [8, 33])
def test_views_have_the_asked_shape(crop: str, channels: int, side: int) -> None:
    labeled, unlabeled = make_stream(crop=crop, channels=channels, side=side)[0]
    assert set(labeled.views) == {"weak"}
    assert set(unlabeled.views) == {"weak", "strong", "weak_2"}
    assert labeled.weak.shape == (6, channels, side, side)
    assert unlabeled.strong.shape == (10, channels, side, side)
    assert unlabeled.strong.dtype == torch.uint8
    assert not torch.equal(unlabeled.weak, unlabeled["weak_2"])


def test_an_unlabeled_batch_has_no_label_field() -> None:
    _, unlabeled = make_stream()[0]
    assert set(vars(unlabeled)) == {"views", "index"}
    assert not hasattr(unlabeled, "y")
    assert not hasattr(unlabeled, "labels")


def test_labels_belong_to_their_images() -> None:
    stream = make_stream(n_labeled=5)
    labeled, _ = stream[3]
    rows = stream.shuffles[0].rows(3)
    assert labeled.y.tolist() == [row % 2 for row in rows]


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_and_position_change_nothing(workers: int) -> None:
    stream = make_stream()
    for step, (labeled, unlabeled) in enumerate(batches(stream, 5, 9, workers=workers), start=5):
        expected_l, expected_u = make_stream()[step]
        assert torch.equal(labeled.weak, expected_l.weak)
        assert torch.equal(labeled.y, expected_l.y)
        assert torch.equal(unlabeled.index, expected_u.index)
        for name in VIEWS.unlabeled:
            assert torch.equal(unlabeled[name], expected_u[name])


@pytest.mark.parametrize("crop", ["pad", "resized"])
def test_two_ranks_share_the_batch_of_one(crop: str) -> None:
    whole_l, whole_u = make_stream(crop=crop)[4]
    halves = [make_stream(crop=crop, rank=rank, ranks=2)[4] for rank in range(2)]
    assert torch.equal(torch.cat([l.weak for l, _ in halves]), whole_l.weak)
    assert torch.equal(torch.cat([u.index for _, u in halves]), whole_u.index)
    assert torch.equal(torch.cat([u.strong for _, u in halves]), whole_u.strong)


def test_another_seed_gives_other_batches() -> None:
    assert not torch.equal(make_stream()[0][1].weak, make_stream(seed=4)[0][1].weak)


@pytest.mark.long
def test_global_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    for _ in batches(make_stream(), 0, 2, workers=1):
        pass
    assert torch.equal(torch.get_rng_state(), before)


def test_images_held_in_memory_are_those_of_the_files(tmp_path: Path) -> None:
    folder = layout_2(tmp_path)
    images = FileImages(folder, find_images(folder))
    data = make_settings("scratch", {}).data
    held, read = (
        ImageViews(images, data, side=8, channels=3, interpolation="bilinear", flip=True, keep=keep)
        for keep in (True, False)
    )
    assert held.pixels is None  # nothing is read before it is wanted
    for rows in (np.array([3, 0, 3]), np.arange(len(images))):
        views = [maker.make(rows, ("weak", "strong", "clean"), np.random.default_rng(1)) for maker in (held, read)]
        for name in views[0]:
            assert torch.equal(views[0][name], views[1][name]), name
    assert held.pixels is not None
    assert read.pixels is None


WEIGHTS = np.concatenate([np.ones(15), np.linspace(0.1, 0.9, 15), np.zeros(10)])


def test_weights_of_one_change_nothing() -> None:
    for step in (0, 3, 9):
        expected = make_stream()[step][1]
        found = make_stream(weights=np.ones(40))[step][1]
        assert torch.equal(found.index, expected.index)
        assert torch.equal(found.strong, expected.strong)


def test_rows_are_drawn_as_often_as_their_weights_say() -> None:
    shuffle = WeightedShuffle(WEIGHTS, 10, seed=0, tag=2)
    length = int(WEIGHTS.sum())
    passes = 2000
    rows = np.concatenate([shuffle.rows(step) for step in range(passes * length // 10)])
    counts = np.bincount(rows, minlength=40)
    assert (counts[30:] == 0).all()
    expected = WEIGHTS * length / WEIGHTS.sum()
    assert counts / passes == pytest.approx(expected, abs=4 * np.sqrt(0.25 / passes))
    for start in range(0, 50 * length, length):
        one_pass = rows[start : start + length]
        assert len(set(one_pass)) == length  # no row twice in a pass
    together = np.array([np.isin([15 + 7, 15 + 8], rows[i * length : (i + 1) * length]).all() for i in range(passes)])
    assert together.mean() == pytest.approx(expected[22] * expected[23], abs=0.06)  # nearly independent


def test_a_weighted_pass_is_at_least_as_long_as_a_batch() -> None:
    weights = np.array([0.02, 0.01, 0.0, 0.01])
    shuffle = WeightedShuffle(weights, 8, seed=0, tag=2)
    assert shuffle.length == 8
    for step in range(5):
        assert np.bincount(shuffle.rows(step), minlength=4).tolist() == [4, 2, 0, 2]
    assert WeightedShuffle(np.array([0.0, 1e-9]), 3, seed=0, tag=2).rows(7).tolist() == [1, 1, 1]


def test_a_weighted_batch_is_a_function_of_the_step_alone() -> None:
    stream = make_stream(weights=WEIGHTS)
    for step in range(30):
        stream[step]
    for step in (30, 4, 17):
        assert torch.equal(stream[step][1].index, make_stream(weights=WEIGHTS)[step][1].index)
    for step, (labeled, unlabeled) in enumerate(batches(stream, 5, 9, workers=0), start=5):
        assert torch.equal(unlabeled.strong, make_stream(weights=WEIGHTS)[step][1].strong)
        assert torch.equal(labeled.weak, make_stream()[step][0].weak)
    assert not torch.equal(stream[3][1].index, make_stream(weights=WEIGHTS, seed=4)[3][1].index)


def test_ranks_share_a_weighted_batch_and_the_pool_has_all_images() -> None:
    whole = make_stream(weights=WEIGHTS)[4][1]
    halves = [make_stream(weights=WEIGHTS, rank=rank, ranks=2)[4][1] for rank in range(2)]
    assert torch.equal(torch.cat([half.index for half in halves]), whole.index)
    assert torch.equal(torch.cat([half.strong for half in halves]), whole.strong)
    pool = torch.cat([part.index for part in make_stream(weights=WEIGHTS).pool(0, batch=7)])
    assert pool.tolist() == list(range(40))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.zeros(40), "positive weight"),
        (np.full(40, 1.5), "from 0 to 1"),
        (np.full(40, np.nan), "from 0 to 1"),
        (np.ones(39), "39 weights for 40"),
    ],
)
def test_weights_are_checked(weights: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_stream(weights=weights)
