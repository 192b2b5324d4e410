"""The methods that are fitted at once against naive references: loops over samples, dense matrices, plain gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from selftrain import neighbours
from selftrain.methods import KNN, Diffusion, LabelSpreading, Logistic, Prototypes, SelfLogistic
from selftrain.methods.diffusion import diffuse, normalised
from selftrain.methods.fitted import FittedPredictor, LinearPredictor, SoftNeighbours, principal_directions
from selftrain.methods.folds import (
    ABSENT,
    Linear,
    assign_folds,
    choose_c,
    choose_temperature,
    fit_logistic,
    negative_log_likelihood,
    out_of_fold,
)
from selftrain.methods.graph import adjacency
from selftrain.methods.self_logistic import surest
from selftrain.neighbours import candidate_rows, nearest_rows

Array = np.ndarray[Any, Any]


def blobs(n: int = 40, K: int = 4, dim: int = 6, *, noise: float = 0.4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return unit vectors around one direction per class, and their classes, in turn."""
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(K, dim, generator=torch.Generator().manual_seed(9))
    y = torch.arange(n) % K
    x = centres[y] + noise * torch.randn(n, dim, generator=g)
    return torch.nn.functional.normalize(x, dim=1), y


def cos(a: Tensor, b: Tensor) -> float:
    return float((a.double() @ b.double()) / (a.double().norm() * b.double().norm()))


def fill(method: Any, x: Tensor, y: Tensor, pool: Tensor, K: int) -> FittedPredictor:
    predictor: FittedPredictor = method.empty_predictor()
    predictor.hold(method.solve(x, y, pool, K).state)
    return predictor


NO_POOL = torch.empty(0, 6)


def test_features_are_unit_centred_and_unit_again() -> None:
    predictor = LinearPredictor()
    x = torch.randn(5, 3) + 2
    unit = [row / math.sqrt(sum(v * v for v in row.tolist())) for row in x]
    centre = torch.stack(unit).mean(dim=0)
    predictor.hold({"centre": centre})
    expected = [(u - centre) / (u - centre).norm() for u in unit]
    torch.testing.assert_close(predictor.prepare(x), torch.stack(expected))
    torch.testing.assert_close(predictor.prepare(7 * x), torch.stack(expected))


# Logistic regression


def objective(model: Linear, x: Array, y: Array, C: float, weight: Array) -> float:
    """1/2 |W|^2 + C sum_i w_i H(y_i, softmax(W x_i + b)), one sample at a time."""
    total = 0.5 * float((model.weight**2).sum())
    for row, label, w in zip(x, y, weight, strict=True):
        z = [float(row @ v) + float(b) for v, b in zip(model.weight, model.bias, strict=True)]
        total += C * w * (math.log(sum(math.exp(v - max(z)) for v in z)) + max(z) - z[label])
    return total


def test_directions_are_found_where_single_precision_does_not_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on a thousand images that are nearly alike ended in an error of LAPACK."""
    x = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    usual, eigh = principal_directions(x, 4), torch.linalg.eigh

    def fails(matrix: Tensor) -> Any:
        if matrix.dtype == torch.float32:
            raise RuntimeError("the algorithm failed to converge")
        return eigh(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", fails)
    found = principal_directions(x, 4)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found @ found.T, usual @ usual.T, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("K", "n", "dim"), [(3, 30, 6), (2, 20, 6), (4, 12, 40)], ids=["plain", "two", "wide"])
@pytest.mark.parametrize("weighted", [False, True])
def test_logistic_regression_is_at_the_minimum(K: int, n: int, dim: int, weighted: bool) -> None:
    """No small step in any direction lowers the objective. With two classes, scikit-learn penalises one weight only."""
    x, y = (value.numpy().astype(np.float64) for value in blobs(n, K, dim))
    labels = y.astype(np.int64)
    weight = np.linspace(1, 5, n) if weighted else np.ones(n)
    C = 2.0
    found = fit_logistic(x, labels, K, C, weight if weighted else None)
    best = objective(found, x, labels, C, weight)
    rng = np.random.default_rng(0)
    free = np.array([0.0, 1.0]) if K == 2 else np.ones(K)
    for size in (1e-2, 1e-1, 1.0):
        for _ in range(5):
            moved = Linear(
                found.weight + size * free[:, None] * rng.normal(size=found.weight.shape),
                found.bias + size * free * rng.normal(size=K),
            )
            assert objective(moved, x, labels, C, weight) > best - 1e-4


def test_many_classes_do_not_stop_at_zero_weights() -> None:
    """A tolerance of 1e-3 would stop at once: it is compared with the gradient of the mean loss."""
    x, y = (value.numpy() for value in blobs(400, 100, 1280, noise=1.0))
    found = fit_logistic(x, y, 100, choose_c(x, y, 100))
    assert np.abs(found.weight).max() > 0.1
    assert (found.probabilities(x).argmax(axis=1) == y).mean() > 0.99


def test_a_class_without_labels_is_never_predicted() -> None:
    x, y = (value.numpy() for value in blobs(30, 3))
    some = y != 1
    found = fit_logistic(x[some], y[some], 3)
    assert found.bias[1] == ABSENT
    assert found.probabilities(x)[:, 1].max() == 0
    only = fit_logistic(x[y == 2], y[y == 2], 3)
    np.testing.assert_array_equal(only.probabilities(x)[:, 2], 1)


def test_out_of_fold_is_the_prediction_of_a_model_without_the_fold() -> None:
    x, y = (value.numpy() for value in blobs(18, 3, noise=0.8))
    y = np.append(y[:-1], 3)  # the only label of its class
    p, fold = out_of_fold(x, y, 4, folds=3, seed=5, C=1.0)
    assert fold[-1] == -1
    assert np.isnan(p[-1]).all()
    for i in range(len(y) - 1):
        others = fold != fold[i]
        expected = fit_logistic(x[others], y[others], 4, 1.0).probabilities(x[i : i + 1])[0]
        np.testing.assert_allclose(p[i], expected, atol=2e-3)


def test_folds_share_the_labels_of_every_class() -> None:
    y = np.repeat(np.arange(5), 4)
    fold = assign_folds(y, 4)
    for k in range(5):
        assert sorted(fold[y == k]) == [0, 1, 2, 3]
    assert (assign_folds(y, 4, seed=1) != fold).any()
    assert np.array_equal(assign_folds(y, 4), fold)
    assert np.bincount(assign_folds(np.repeat(np.arange(8), 2), 4)).tolist() == [4, 4, 4, 4]
    assert (assign_folds(np.arange(5)) == -1).all()
    with pytest.raises(ValueError, match="at least 2"):
        assign_folds(y, 1)


def test_c_has_the_best_likelihood_out_of_fold() -> None:
    for noise in (0.2, 2.0):
        x, y = (value.numpy() for value in blobs(40, 4, noise=noise))
        losses = {C: negative_log_likelihood(out_of_fold(x, y, 4, C=C)[0], y) for C in (1.0, 10.0, 100.0)}
        assert choose_c(x, y, 4) == min(losses, key=lambda C: losses[C])
    assert choose_c(x[:4], np.arange(4), 4) == 10, "one label per class"
    assert choose_c(np.zeros((8, 3)), np.arange(8) % 2, 2) == 10, "a tie"


def test_the_temperature_undoes_a_scale_of_the_logits() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(4000, 5)) * 2
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    y = np.array([rng.choice(5, p=row) for row in p])
    for scale in (0.5, 1.0, 3.0):
        sharp = np.exp(scale * z) / np.exp(scale * z).sum(axis=1, keepdims=True)
        assert choose_temperature(sharp, y) == pytest.approx(scale, rel=0.08)
    assert choose_temperature(np.full((3, 5), np.nan), y[:3]) == 1
    some = np.where(np.arange(len(y))[:, None] < 10, np.nan, p)
    assert choose_temperature(some, y) == pytest.approx(1, rel=0.08)


def test_logistic_is_the_regression_with_its_c() -> None:
    x, y = blobs(24, 3)
    rows, labels = x.double().numpy(), y.numpy()
    for method, C in ((Logistic(C=3), 3.0), (Logistic(), choose_c(rows, labels, 3))):
        predictor = fill(method, x, y, NO_POOL, 3)
        expected = fit_logistic(rows, labels, 3, C).probabilities(rows)
        np.testing.assert_allclose(predictor.logits(x).softmax(dim=1).numpy(), expected, atol=1e-4)


# Prototypes and neighbours


def test_prototypes_are_class_means() -> None:
    x, y = blobs(22, 3, noise=0.8)
    new, _ = blobs(7, 3, noise=0.8, seed=1)
    p = fill(Prototypes(T=0.3), x, y, NO_POOL, 4).logits(new).softmax(dim=1)
    for row, found in zip(new, p, strict=True):
        weights = []
        for k in range(3):
            mine = [x[i] for i in range(len(y)) if y[i] == k]
            c = sum(mine, torch.zeros(6)) / len(mine)
            weights.append(math.exp(-float(((row - c) ** 2).sum()) / 0.6))
        expected = [w / sum(weights) for w in weights] + [0.0]
        assert found.tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("k", [0, 1, 5])
def test_neighbours_vote_by_similarity(k: int) -> None:
    x, y = blobs(22, 3, noise=0.8)
    new, _ = blobs(7, 3, noise=0.8, seed=1)
    p = fill(KNN(T=0.2, k=k), x, y, NO_POOL, 3).logits(new).softmax(dim=1)
    for row, found in zip(new, p, strict=True):
        votes = sorted(((cos(row, x[i]), int(y[i])) for i in range(len(y))), reverse=True)[: k or len(y)]
        weights = [sum(math.exp(c / 0.2) for c, label in votes if label == j) for j in range(3)]
        assert found.tolist() == pytest.approx([w / sum(weights) for w in weights], abs=1e-4)


def test_a_known_image_keeps_its_answer() -> None:
    x, _ = blobs(30, 3)
    answers = torch.rand(30, 3).softmax(dim=1)
    predictor = SoftNeighbours(T=0.07, k=10)
    predictor.hold({"known": x, "answers": answers})
    torch.testing.assert_close(predictor.logits(x).softmax(dim=1), answers, rtol=1e-4, atol=1e-5)


def test_nearest_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(50, 6)
    monkeypatch.setattr(neighbours, "CHUNK", 16)
    near = nearest_rows(x, 4)
    for i in range(50):
        expected = sorted((j for j in range(50) if j != i), key=lambda j: -cos(x[i], x[j]))[:4]
        assert near.rows[i].tolist() == expected
        assert near.likeness[i].tolist() == pytest.approx([cos(x[i], x[j]) for j in expected], abs=1e-5)
    assert nearest_rows(x[:3], 10).rows.shape == (3, 2)
    monkeypatch.setattr(neighbours, "CANDIDATES", 20)
    among = candidate_rows(50, first=5)
    assert among[:5].tolist() == [0, 1, 2, 3, 4]
    assert len(among) == 25
    assert torch.isin(nearest_rows(x, 4, first=5).rows, among).all()


# Graphs


def dense_graph(x: Tensor, k: int, weight: Any) -> Array:
    """A + A^T of k nearest neighbours, with loops."""
    n = len(x)
    A = np.zeros((n, n))
    for i in range(n):
        for j in sorted((j for j in range(n) if j != i), key=lambda j: -cos(x[i], x[j]))[:k]:
            A[i, j] = weight(cos(x[i], x[j]))
    total: Array = A + A.T
    return total


def dense_normalised(A: Array) -> Array:
    degree = A.sum(axis=1)
    return np.array([[A[i, j] / math.sqrt(degree[i] * degree[j]) for j in range(len(A))] for i in range(len(A))])


def test_the_graph() -> None:
    x, _ = blobs(20)
    expected = dense_graph(x, 3, lambda c: max(c, 0) ** 3)
    graph = adjacency(nearest_rows(x, 3), 3.0)
    np.testing.assert_allclose(graph.toarray(), expected, atol=1e-5)
    np.testing.assert_allclose(normalised(graph).toarray(), dense_normalised(expected), atol=1e-5)


def test_diffusion_solves_its_equation() -> None:
    x, y = blobs(40, 4)
    labels = y[:9]  # class 0 has three labels, the others two
    W = dense_normalised(dense_graph(x, 5, lambda c: max(c, 0) ** 3))
    Y = np.zeros((40, 4))
    for i, k in enumerate(labels.tolist()):
        Y[i, k] = 1 / (3 if k == 0 else 2)
    F = np.linalg.inv(np.eye(40) - 0.7 * W) @ Y
    p = Diffusion(k=5, alpha=0.7).spread(nearest_rows(x, 5), labels.numpy(), 4)
    for i in range(40):
        row = np.eye(4)[labels[i]] if i < 9 else F[i] / F[i].sum()
        assert p[i] == pytest.approx(row, abs=1e-3)


def test_diffusion_with_alpha_0_gives_the_labels() -> None:
    x, y = blobs(30, 3)
    Y = np.eye(3)[y.numpy()]
    np.testing.assert_allclose(diffuse(normalised(adjacency(nearest_rows(x, 5), 3.0)), Y, 0.0), Y)
    p = Diffusion(alpha=0.0).spread(nearest_rows(x, 10), y[:6].numpy(), 3)
    np.testing.assert_allclose(p[:6], Y[:6])
    np.testing.assert_allclose(p[6:], 1 / 3)


def test_labeled_images_keep_their_labels_in_diffusion() -> None:
    x, y = blobs(60, 4, noise=1.5)
    wrong = torch.randint(4, (12,), generator=torch.Generator().manual_seed(1))
    predictor = fill(Diffusion(), x[:12], wrong, x[12:], 4)
    assert torch.equal(predictor.logits(x[:12]).argmax(dim=1), wrong)
    solution = Diffusion().solve(x[:12], y[:12], x[12:], 4)
    assert solution.pseudo is not None
    assert solution.pseudo.keep.all()
    predictor = fill(Diffusion(), x[:12], y[:12], x[12:], 4)
    assert torch.equal(predictor.logits(x[12:]).argmax(dim=1), solution.pseudo.y), "the pool keeps its answers"


def test_an_image_that_no_label_reaches_has_no_opinion() -> None:
    a, b = torch.eye(4)[:2] + 0, torch.eye(4)[2:] + 0
    x = torch.cat([a[:1], b[:1], a[:1], b[:1]])  # two pairs; only the first pair has a label
    p = Diffusion(k=1).spread(nearest_rows(x, 1), np.array([1]), 2)
    np.testing.assert_allclose(p, np.array([[0, 1], [0.5, 0.5], [0, 1], [0.5, 0.5]]), atol=1e-6)


@pytest.mark.parametrize("alpha", [0.2, 0.9])
def test_label_spreading_is_the_fixed_point(alpha: float) -> None:
    x, y = blobs(40, 4)
    A = dense_graph(x, 5, lambda c: 1.0) > 0
    Y = np.zeros((40, 4))
    Y[:8] = np.eye(4)[y[:8]]
    S, F = dense_normalised(A.astype(float)), np.zeros((40, 4))
    for _ in range(500):
        F = alpha * S @ F + (1 - alpha) * Y
    p = LabelSpreading(k=5, alpha=alpha).spread(nearest_rows(x, 5), y[:8].numpy(), 4)
    np.testing.assert_allclose(p, F / F.sum(axis=1, keepdims=True), atol=2e-2)
    assert (p.argmax(axis=1) == F.argmax(axis=1)).all()


def test_a_new_image_asks_its_nearest_images_in_the_graph() -> None:
    x, y = blobs(40, 4)
    new, _ = blobs(5, 4, seed=3)
    near = nearest_rows(x, 6)
    p = Diffusion(k=6).spread(near, y[:8].numpy(), 4)
    found = fill(Diffusion(k=6, T=0.1), x[:8], y[:8], x[8:], 4).logits(new).softmax(dim=1)
    for row, answer in zip(new, found, strict=True):
        nearest = sorted(range(40), key=lambda j: -cos(row, x[j]))[:6]
        weights = [math.exp(cos(row, x[j]) / 0.1) for j in nearest]
        expected = sum(w * p[j] for w, j in zip(weights, nearest, strict=True)) / sum(weights)
        assert answer.tolist() == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_large_pool_is_searched_and_kept_as_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "CANDIDATES", 20)
    x, y = blobs(80, 4)
    predictor = fill(Diffusion(), x[:8], y[:8], x[8:], 4)
    assert isinstance(predictor, SoftNeighbours)
    assert len(predictor.known) == len(predictor.answers) == 28
    assert torch.equal(predictor.known[:8], x[:8])
    assert (predictor.logits(x).argmax(dim=1) == y).float().mean() > 0.9


# Self-trained logistic regression


def test_the_surest_images_of_each_class() -> None:
    p = np.array([[0.9, 0.1, 0], [0.6, 0.4, 0], [0.8, 0.2, 0], [0.3, 0.7, 0], [0.45, 0.55, 0], [0.7, 0.3, 0]])
    assert surest(p, 2).tolist() == [0, 2, 3, 4]
    assert surest(p, 1).tolist() == [0, 3]
    assert surest(p[:0], 2).tolist() == []


def test_self_training_in_rounds() -> None:
    x, y = blobs(12, 3, noise=0.8)
    pool, _ = blobs(60, 3, noise=0.8, seed=2)
    known, others = x.double().numpy(), pool.double().numpy()
    model = fit_logistic(known, y.numpy(), 3, 10.0)
    for each in (5, 10, 20):
        p = model.probabilities(others)
        rows, labels, weights = list(known), y.tolist(), [5.0] * 12
        added = []
        for k in range(3):
            mine = sorted((i for i in range(60) if p[i].argmax() == k), key=lambda i: -p[i].max())[:each]
            rows += [others[i] for i in mine]
            labels += [k] * len(mine)
            weights += [1.0] * len(mine)
            added += mine
        model = fit_logistic(np.array(rows), np.array(labels), 3, 10.0, np.array(weights))
    solution = SelfLogistic(C=10).solve(x, y, pool, 3)
    np.testing.assert_allclose(solution.state["weight"].numpy(), model.weight, atol=2e-2)
    assert solution.pseudo is not None
    assert sorted(added) == torch.nonzero(solution.pseudo.keep)[:, 0].tolist()
    plain = SelfLogistic(C=10, rounds_added=0).solve(x, y, pool, 3)
    torch.testing.assert_close(plain.state["weight"], Logistic(C=10).solve(x, y, pool, 3).state["weight"])
    assert plain.pseudo is not None
    assert not plain.pseudo.keep.any()
