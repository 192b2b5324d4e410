"""Junk against naive references: one image, one class, one pair at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from selftrain.methods.junk import LEAST_SCALE, Novelty, auroc, fit_novelty, screen
from selftrain.neighbours import nearest_rows

DIM = 16


LABELS = 1000  # so many that the threshold is known


def around(centres: Tensor, n: int, *, noise: float = 0.3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return n features around the centres in turn, and the number of the centre of each."""
    y = torch.arange(n) % len(centres)
    return centres[y] + noise * torch.randn(n, DIM, generator=torch.Generator().manual_seed(seed)), y


def directions(n: int, first: int = 0) -> Tensor:
    return 3 * torch.eye(DIM)[first : first + n] + 1


def make_pile(K: int = 4, labels: int = 32, members: int = 200, junk: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return labeled features, their classes, and a pool whose last images belong to other directions."""
    x, y = around(directions(K), labels, seed=1)
    pool = [around(directions(K), members, seed=2)[0]]
    if junk:
        pool.append(around(directions(4, first=K + 1), junk, seed=3)[0])
    return x, y, torch.cat(pool)


def near(novelty: Novelty, pool: Tensor) -> Tensor:
    return nearest_rows(novelty.prepare(pool), 10).rows


def unit(v: list[float]) -> list[float]:
    norm = math.sqrt(sum(a * a for a in v))
    return [a / norm for a in v]


def mean(rows: list[list[float]]) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def naive_centre(x: list[list[float]], y: list[int], pool: list[list[float]]) -> list[float]:
    """The mean of the class means; an image of the pool belongs to the class whose mean lies in its direction."""
    members = {k: [row for row, label in zip(x, y, strict=True) if label == k] for k in sorted(set(y))}
    means = {k: mean(rows) for k, rows in members.items()}
    start = mean(list(means.values()))

    def cosine(row: list[float], k: int) -> float:
        a = [v - s for v, s in zip(row, start, strict=True)]
        b = unit([v - s for v, s in zip(means[k], start, strict=True)])
        return sum(v * w for v, w in zip(a, b, strict=True))

    for row in pool:
        members[max(means, key=lambda k: cosine(row, k))].append(row)
    return mean([mean(rows) for rows in members.values()])


def naive_likeness(x: list[list[float]], y: list[int], K: int) -> list[float]:
    """Likeness of each prepared image: prototypes are made again without it, and a class without images has none."""
    found = []
    for i, image in enumerate(x):
        best = -1.0
        for k in range(K):
            others = [x[j] for j in range(len(x)) if y[j] == k and j != i]
            if others:
                prototype = unit([sum(column) for column in zip(*others, strict=True)])
                best = max(best, sum(a * b for a, b in zip(image, prototype, strict=True)))
        found.append(best)
    return found


@pytest.mark.parametrize(("K", "labels"), [(4, 32), (4, 13), (4, 4), (2, 2), (2, 7), (5, 4)])
@pytest.mark.parametrize("q", [0.05, 0.5])
def test_threshold_and_scale_are_quantiles_of_likeness_to_prototypes_without_the_image(
    K: int, labels: int, q: float
) -> None:
    x, y, pool = make_pile(min(K, 4), labels, members=30)
    novelty = fit_novelty(x, y, pool, K, q)
    units = [unit(row) for row in torch.cat([x, pool]).double().tolist()]
    centre = naive_centre(units[: len(x)], y.tolist(), units[len(x) :])
    prepared = [unit([a - c for a, c in zip(row, centre, strict=True)]) for row in units[: len(x)]]
    s = naive_likeness(prepared, y.tolist(), K)
    assert novelty.centre.tolist() == pytest.approx(centre, abs=1e-6)
    assert float(novelty.threshold) == pytest.approx(np.quantile(s, q), abs=1e-5)
    half = (np.quantile(s, 0.75) - np.quantile(s, 0.25)) / 2
    assert float(novelty.scale) == pytest.approx(max(half, LEAST_SCALE), abs=1e-5)
    for k in range(K):
        rows = [row for row, label in zip(prepared, y.tolist(), strict=True) if label == k]
        expected = unit([sum(column) for column in zip(*rows, strict=True)]) if rows else [0.0] * DIM
        assert novelty.prototypes[k].tolist() == pytest.approx(expected, abs=1e-5)


def test_novelty_is_a_sigmoid_of_the_likeness_and_half_at_the_threshold() -> None:
    x, y, pool = make_pile(junk=100)
    novelty = fit_novelty(x, y, pool, 4)
    s = (novelty.prepare(pool) @ novelty.prototypes.T).max(dim=1).values
    assert torch.allclose(novelty.likeness(pool), s, atol=1e-6)
    t, scale = float(novelty.threshold), float(novelty.scale)
    expected = [1 / (1 + math.exp(-(t - value) / scale)) for value in s.tolist()]
    assert novelty(pool).tolist() == pytest.approx(expected, abs=1e-4)
    assert torch.equal(novelty.is_novel(pool), novelty(pool) > 0.5)
    assert not torch.is_tensor(novelty.likeness(pool).grad_fn)
    assert set(novelty.state_dict()) == {"centre", "prototypes", "threshold", "scale", "quartile"}


def test_likeness_ignores_the_length_of_features_and_classes_without_labels() -> None:
    x, y, pool = make_pile()
    first = y == 0
    novelty, more = (fit_novelty(x[first], y[first], pool, K) for K in (1, 6))
    assert torch.allclose(novelty.likeness(pool), novelty.likeness(5 * pool), atol=1e-5)
    assert float(novelty.likeness(pool).min()) < -0.2  # a prototype of zeros would be more like it
    assert torch.allclose(more.likeness(pool), novelty.likeness(pool), atol=1e-6)
    assert torch.allclose(more.threshold, novelty.threshold, atol=1e-6)


def test_without_junk_all_weights_are_exactly_one() -> None:
    x, y, pool = make_pile()
    novelty = fit_novelty(x, y, pool, 4)
    found = screen(novelty, novelty.likeness(pool), LABELS, near(novelty, pool))
    assert found.share == 0
    assert (found.weight == 1).all()


@pytest.mark.parametrize("junk", [60, 200, 400])
@pytest.mark.parametrize("smooth", [True, False])
def test_junk_far_away_gets_no_weight_and_members_keep_theirs(junk: int, smooth: bool) -> None:
    x, y, pool = make_pile(junk=junk)
    novelty = fit_novelty(x, y, pool, 4)
    found = screen(novelty, novelty.likeness(pool), LABELS, near(novelty, pool) if smooth else None)
    assert found.weight[:200].mean() > 0.95
    assert found.weight[200:].mean() < 0.05
    assert found.share == pytest.approx(junk / (200 + junk), abs=0.1)
    assert ((found.weight >= 0) & (found.weight <= 1)).all()
    order = np.argsort(found.likeness)
    assert (np.diff(found.weight[order]) >= 0).all()
    is_junk = np.arange(len(pool)) >= 200
    score = auroc(1 - found.likeness, is_junk)
    assert score is not None
    assert score > 0.98


def test_likeness_is_half_the_own_and_half_that_of_the_neighbours() -> None:
    x, y, pool = make_pile(junk=20)
    novelty = fit_novelty(x, y, pool, 4)
    rows = near(novelty, pool)
    s = novelty.likeness(pool).tolist()
    expected = [0.5 * s[i] + 0.5 * sum(s[j] for j in rows[i].tolist()) / 10 for i in range(len(pool))]
    assert screen(novelty, novelty.likeness(pool), LABELS, rows).likeness.tolist() == pytest.approx(expected, abs=1e-6)
    assert screen(novelty, novelty.likeness(pool), LABELS).likeness.tolist() == pytest.approx(s, abs=1e-6)


def test_permuting_the_pool_permutes_the_weights() -> None:
    x, y, pool = make_pile(junk=100)
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(5))
    found = []
    for some in (pool, pool[order]):
        novelty = fit_novelty(x, y, some, 4)
        found.append(screen(novelty, novelty.likeness(some), LABELS, near(novelty, some)))
    assert found[1].weight == pytest.approx(found[0].weight[order.numpy()], abs=1e-3)
    assert found[1].likeness == pytest.approx(found[0].likeness[order.numpy()], abs=1e-5)
    again = screen(novelty, novelty.likeness(some), LABELS, near(novelty, some))
    assert np.array_equal(again.weight, found[1].weight)


@pytest.mark.parametrize(("K", "labels"), [(4, 4), (2, 2), (2, 20), (1, 8), (1, 1)])
def test_few_labels_and_few_classes(K: int, labels: int) -> None:
    x, y, pool = make_pile(K, labels, members=50, junk=50)
    novelty = fit_novelty(x, y, pool, K)
    found = screen(novelty, novelty.likeness(pool), LABELS, near(novelty, pool))
    assert np.isfinite(found.weight).all()
    assert (found.weight > 0).any()
    assert torch.isfinite(novelty(pool)).all()


@pytest.mark.parametrize("threshold", [-0.9, 0.0, 0.95, 1.1])
def test_equal_images_and_a_pool_of_junk_alone_do_not_crash(threshold: float) -> None:
    x, y, _ = make_pile()
    novelty = fit_novelty(x, y, x, 4)
    novelty.threshold.fill_(threshold)
    same = x[:1].repeat(30, 1)
    two = torch.cat([same, -same])
    for pool in (same, two, around(directions(3, 8), 40)[0], x[:1], x[:2]):
        found = screen(novelty, novelty.likeness(pool), LABELS, near(novelty, pool))
        assert np.isfinite(found.weight).all()
        assert (found.weight > 0).any()
    empty = screen(novelty, torch.empty(0), LABELS)
    assert len(empty.weight) == 0
    assert empty.share == 0


def test_auroc_counts_pairs() -> None:
    rng = np.random.default_rng(0)
    score, is_junk = rng.integers(0, 6, 60).astype(float), rng.random(60) < 0.3
    pairs = [(a > b) + 0.5 * (a == b) for a in score[is_junk] for b in score[~is_junk]]
    assert auroc(score, is_junk) == pytest.approx(sum(pairs) / len(pairs))
    assert auroc(np.ones(60), is_junk) == 0.5
    assert auroc(score, np.zeros(60, bool)) is None
    assert auroc(score, np.ones(60, bool)) is None


def test_a_threshold_of_few_labels_proves_no_junk() -> None:
    one = torch.tensor([[1.0, 0.0]])
    novelty = Novelty(torch.zeros(2), one, torch.tensor(0.5), torch.tensor(0.05))
    own = torch.cat([torch.linspace(0.3, 0.49, 14), torch.linspace(0.51, 0.9, 86)])
    assert screen(novelty, own, 40).share == 0
    assert screen(novelty, own, 400).share > 0.05
