"""Suggestions are distinct, unlabeled, seeded and diverse, cover the pile first, and ask about new kinds."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import selftrain
from selftrain import LabelQuery, UserError
from selftrain.suggest import suggest
from selftrain.suggest.choose import LEFT_OUT, UNLABELED, choose, novelty_of
from selftrain.suggest.clusters import apart, near_duplicates
from selftrain.suggest.cold_start import typical_images
from selftrain.suggest.pool import Pool
from selftrain.suggest.quick import Answers, quick_answers
from selftrain.suggest.ranking import class_need, margins, usefulness

K, EACH, DIM = 6, 30, 16


def blobs(sizes: tuple[int, ...] = (EACH,) * K, spread: float = 0.15) -> tuple[np.ndarray, np.ndarray]:
    """Return features around one direction per class, and the classes."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(len(sizes)), sizes)
    return np.eye(DIM)[y] + spread * rng.normal(size=(len(y), DIM)), y


@pytest.fixture(scope="module")
def pool() -> Pool:
    return Pool.of(blobs()[0])


def test_before_the_first_label_every_class_is_covered() -> None:
    x, y = blobs((60, 40, 20, 15, 10, 8))
    labels = np.full(len(x), UNLABELED)
    chosen = choose(Pool.of(x), labels, K)
    assert {int(y[choice.row]) for choice in chosen} == set(range(K))
    assert chosen[0].kind == "typical"
    assert "typical of" in chosen[0].why
    assert len({int(v) for v in y[np.random.default_rng(0).choice(len(y), K)]}) < K  # random labels do not


def test_typical_images_avoid_clusters_that_have_an_answer(pool: Pool) -> None:
    y = blobs()[1]
    answered = np.flatnonzero(y < 3)[::EACH]
    rows, sizes = typical_images(pool, 3, answered)
    assert {int(v) for v in y[rows]} == {3, 4, 5}
    assert (sizes > 5).all()


@pytest.mark.parametrize("labeled", [0, 1, 12])
def test_suggestions_are_distinct_unlabeled_and_seeded(pool: Pool, labeled: int) -> None:
    y = blobs()[1]
    labels = np.full(len(y), UNLABELED)
    known = np.arange(0, len(y), len(y) // max(labeled, 1))[:labeled]
    labels[known] = y[known]
    labels[7] = LEFT_OUT
    rows = [choice.row for choice in choose(pool, labels, 15, seed=1)]
    assert len(set(rows)) == 15
    assert (labels[rows] == UNLABELED).all()
    assert rows == [choice.row for choice in choose(pool, labels, 15, seed=1)]


def test_more_suggestions_than_images_are_all_images(pool: Pool) -> None:
    y = blobs()[1]
    for labels in (np.full(len(y), UNLABELED), np.where(np.arange(len(y)) % 10 == 0, y, UNLABELED)):
        rows = [choice.row for choice in choose(pool, labels, 10 * len(y))]
        assert sorted(rows) == np.flatnonzero(labels == UNLABELED).tolist()
    assert choose(pool, y, 5) == []


def test_near_duplicates_are_asked_once_and_named() -> None:
    x, y = blobs()
    x[EACH : EACH + 8] = x[EACH]  # eight copies of one image
    pool = Pool.of(x)
    labels = np.full(len(x), UNLABELED)
    labels[[0, 2 * EACH]] = y[[0, 2 * EACH]]
    p = np.full((len(x), K), 0.02)
    p[:, 0] = 1 - 0.02 * (K - 1)
    p[EACH : EACH + 8] = 1 / K  # the copies are the most doubtful images
    chosen = choose(pool, labels, 6, answers=Answers(p, np.zeros(len(x)), np.zeros(len(x))))
    copies = [choice for choice in chosen if EACH <= choice.row < EACH + 8]
    assert len(copies) == 1
    assert set(copies[0].same) == set(range(EACH, EACH + 8)) - {copies[0].row}
    assert near_duplicates(pool, np.array([0]))[0] == []
    assert apart(pool, np.arange(EACH, EACH + 9), np.array([0]), 2).tolist() == [EACH, EACH + 8]


def test_doubt_disagreement_and_need_count() -> None:
    x, _ = blobs()
    pool, labels = Pool.of(x), np.full(len(x), UNLABELED)
    labels[:6], labels[EACH] = 0, 1
    p = np.full((len(x), 2), 0.5)
    p[:, 0], p[:, 1] = 0.9, 0.1
    p[40] = 0.5  # in doubt
    p[50] = 0.1, 0.9  # of the class with a single label
    disagree = np.zeros(len(x))
    disagree[60] = 1
    flat = replace(pool, likeness=np.ones_like(pool.likeness))  # all equally dense
    useful = usefulness(flat, labels, Answers(p, disagree))
    assert useful[40] > useful[41]
    assert useful[50] > useful[41]
    assert useful[60] > useful[40]
    assert margins(p)[40] == 0
    assert margins(np.ones((3, 1))).tolist() == [1, 1, 1]
    need = class_need(labels, p)
    assert need[1] / need[0] == pytest.approx(7 / 2)


def test_the_quick_model_learns_from_labels_and_neighbours(pool: Pool) -> None:
    y = blobs()[1]
    labels = np.where(np.arange(len(y)) % EACH == 0, y, UNLABELED)
    answers = quick_answers(pool, labels, K)
    assert (answers.p.argmax(axis=1) == y).mean() > 0.95
    np.testing.assert_allclose(answers.p.sum(axis=1), 1, atol=1e-6)
    assert answers.disagree.mean() < 0.2


def test_possible_new_kinds_are_asked_about() -> None:
    x, y = blobs((60, 60, 60, 60, 40, 40), spread=0.05)
    labels = np.full(len(x), UNLABELED)
    for k in range(4):
        labels[np.flatnonzero(y == k)[:10]] = k
    pool = Pool.of(x)
    novelty = novelty_of(pool, labels, 4)
    assert novelty[y >= 4].mean() > 0.9
    assert novelty[y < 4].mean() < 0.1
    chosen = choose(pool, labels, 10, classes=("a", "b", "c", "d"))
    new = [choice for choice in chosen if choice.kind == "new"]
    assert {int(y[choice.row]) for choice in new} == {4, 5}
    assert new[0].why == "looks like none of the classes so far"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for k, colour in enumerate(((200, 30, 30), (30, 200, 30), (30, 30, 200))):
        for i in range(4):
            pixels = np.clip(np.array(colour) + rng.integers(-30, 30, (24, 24, 3)), 0, 255).astype(np.uint8)
            (folder / f"{'abc'[k]}").mkdir(exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{'abc'[k]}" / f"{i}.png")
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFTRAIN_CACHE", str(tmp_path_factory.getbasetemp() / "suggest-cache"))


def test_a_folder_of_photos(photos: Path, tmp_path: Path) -> None:
    found = suggest(photos, 3, size=32)
    assert {path[0] for path in found.paths} == {"a", "b", "c"}
    rows = list(csv.DictReader(found.save(tmp_path / "s.csv").read_text().splitlines()))
    assert [row["path"] for row in rows] == found.paths
    assert list(rows[0]) == ["path", "label", "kind", "why", "score", "guess", "confidence", "same"]
    page = found.save_page(tmp_path / "s.html").read_text()
    assert page.count("data:image/jpeg") == 3
    labels = tmp_path / "labels.csv"
    labels.write_text("path,label,answer\na/0.png,red,\nb/0.png,green,\nc/0.png,,none\nc/1.png,,skip\n")
    more = suggest(photos, 20, labels=labels, size=32)
    assert len(more) == 8
    assert not {"a/0.png", "b/0.png", "c/0.png", "c/1.png"} & set(more.paths)
    assert more.labeled == 2


def test_hostile_names_do_not_become_markup(photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    for i, name in enumerate(("<script>alert(1)<", "b&amp;", "c")):
        Image.new("RGB", (24, 24), (80 * i, 0, 0)).save(folder / f"{name.replace('/', '')}.png")
    page = suggest(folder, 3, size=32).save_page(tmp_path / "s.html").read_text()
    assert "<script" not in page


def test_errors_say_what_would_be_right(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must be from 1"):
        suggest(photos, 0)
    with pytest.raises(UserError, match="expected a folder of images"):
        suggest(tmp_path / "nothing", 3)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="image"):
        suggest(tmp_path / "empty", 3)


def test_a_run_suggests_unlabeled_images_of_its_pool(tmp_path: Path) -> None:
    x, y = blobs()
    labels = np.full(len(x), -1)
    labels[::10] = y[::10]
    names = [f"{i:03d}" for i in range(len(x))]
    np.savez(tmp_path / "features.npz", features=x.astype(np.float32), names=np.array(names))
    with (tmp_path / "labels.csv").open("w") as file:
        file.write("path,label\n" + "".join(f"{names[i]},k{y[i]}\n" for i in range(0, len(x), 10)))
    run = selftrain.train(
        tmp_path / "features.npz", labels=tmp_path / "labels.csv", steps=20, out=tmp_path / "run", quiet=True
    )
    found = run.suggest(5)
    assert len(found) == 5
    assert not {names[i] for i in range(0, len(x), 10)} & set(found.paths)
    assert all(item.guess in {f"k{k}" for k in range(K)} for item in found)
    assert suggest(tmp_path / "features.npz", 5, labels=tmp_path / "labels.csv").labeled == 18
    assert len(suggest(tmp_path / "features.npz", 5)) == 5
    with pytest.raises(UserError, match="is a run folder"):
        suggest(tmp_path / "run", 5, labels=tmp_path / "labels.csv")


def test_query_is_like_that_of_scikit_activeml() -> None:
    from sklearn.linear_model import LogisticRegression

    x, y = blobs()
    known = np.full(len(x), np.nan)
    rows = LabelQuery(random_state=0).query(x, known, batch_size=K)
    assert set(y[rows].tolist()) == set(range(K))
    known[rows] = y[rows]
    more, utilities = LabelQuery(random_state=0).query(x, known, batch_size=4, return_utilities=True)
    assert utilities.shape == (4, len(x))
    assert np.isnan(utilities[:, rows]).all()
    assert np.isnan(utilities[1, more[0]])
    clf = LogisticRegression().fit(x[rows], y[rows].astype(float))
    only = LabelQuery(random_state=0).query(x, known, clf, candidates=[100, 101, 102], batch_size=10)
    assert sorted(only.tolist()) == [100, 101, 102]
    with pytest.raises(ValueError, match="batch_size=0"):
        LabelQuery().query(x, known, batch_size=0)
    with pytest.raises(ValueError, match="labels and X has"):
        LabelQuery().query(x, known[:5])
    clf.classes_ = np.array([0.0, 1.0])
    with pytest.raises(ValueError, match="was not fitted to"):
        LabelQuery().query(x, known, clf)


def test_features_are_held_once_and_as_they_are_stored() -> None:
    features = np.abs(blobs()[0]).astype(np.float16)
    pool, exact = Pool.of(features), Pool.of(features.astype(np.float32))
    assert pool.features is features
    np.testing.assert_array_equal(pool.z, exact.z)
    np.testing.assert_array_equal(np.concatenate(list(pool.units())), exact.unit(slice(None)))
    assert choose(pool, np.full(len(pool), UNLABELED), 9) == choose(exact, np.full(len(pool), UNLABELED), 9)
