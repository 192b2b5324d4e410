"""Piles: uneven labels and pools, images of no class, labels from few modes; and the splits that record them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selftrain.data.corpus import Corpus
from selftrain.data.images import ArrayImages
from selftrain.data.pile import Pile, class_order, falling, label_counts, mixture, near_duplicates, pool_counts
from selftrain.data.split import Split, fold_splits, make_split, with_all_labels
from selftrain.data.split_file import load_split, save_split
from selftrain.errors import UserError
from tests.data.test_split import corpus_of

CLASSES = tuple("abcdefghij")


def with_junk(corpus: Corpus, count: int) -> Corpus:
    images = ArrayImages(np.zeros((count, 2, 2), np.uint8), [f"x/{i:03d}.png" for i in range(count)])
    return corpus.with_junk(images, [f"junk:{name}" for name in images.names])


def even(per_class: int = 100) -> Corpus:
    return corpus_of(dict.fromkeys(CLASSES, per_class))


def draw(corpus: Corpus, labels: int | None = 4, **options: Any) -> Split:
    split = {name: options.pop(name) for name in ("seed", "include_labeled", "validation_per_class", "say", "looks")
             if name in options}  # fmt: skip
    return make_split(corpus, labels_per_class=labels, pile=Pile(**options), **split)


def hidden_counts(split: Split, corpus: Corpus) -> list[int]:
    """Return the images of each class in the pool whose label is hidden."""
    hidden = np.setdiff1d(split.unlabeled, split.labeled)
    truth = corpus.truth[hidden[~corpus.junk[hidden]]]
    return list(np.bincount(truth, minlength=len(corpus.classes)).tolist())


# --- counts -------------------------------------------------------------------------------------------------------


def test_the_order_of_classes_depends_on_seed_and_names_but_not_on_their_order() -> None:
    orders = {tuple(CLASSES[k] for k in class_order(CLASSES, seed)) for seed in range(8)}
    assert len(orders) == 8
    assert CLASSES not in orders
    backwards = CLASSES[::-1]
    assert [CLASSES[k] for k in class_order(CLASSES, 3)] == [backwards[k] for k in class_order(backwards, 3)]
    renamed = tuple(f"the {name}" for name in CLASSES)
    assert any(class_order(renamed, 3) != class_order(CLASSES, 3))


def test_numbers_fall_exponentially() -> None:
    values = falling(50, 10, 5)
    assert values[0] == 50
    assert values[-1] == pytest.approx(5)
    assert np.diff(np.log(values)) == pytest.approx([-np.log(10) / 4] * 4)


def test_labels_fall_from_the_number_asked_for_to_a_share_of_it() -> None:
    counts = label_counts(CLASSES, 10, 10, seed=1)
    assert counts[class_order(CLASSES, 1)].tolist() == [10, 8, 6, 5, 4, 3, 2, 2, 1, 1]
    assert label_counts(CLASSES, 2, 100, seed=1).min() == 1
    assert label_counts(CLASSES, 4, 1, seed=1).tolist() == [4] * 10


def test_the_pool_of_an_even_set_has_exactly_the_ratio() -> None:
    order = class_order(CLASSES, 0)
    counts = pool_counts(np.full(10, 500), order, 50)[order]
    assert counts[0] == 500
    assert counts[-1] == 10
    assert (np.diff(counts) < 0).all()


def test_the_pool_of_an_uneven_set_starts_at_the_median() -> None:
    available = np.array([20, 40, 60, 1000, 3])
    order = np.array([3, 2, 1, 0, 4])
    assert pool_counts(available, order, 16).tolist() == [5, 10, 20, 40, 3]
    assert pool_counts(available, order[::-1], 16).tolist() == [20, 10, 5, 3, 3]
    assert pool_counts(np.array([10, 0, 10]), np.array([0, 1, 2]), 100).tolist() == [10, 0, 1]


# --- splits -------------------------------------------------------------------------------------------------------


def test_without_a_pile_a_split_is_as_before() -> None:
    corpus = even(12)
    plain = make_split(corpus, labels_per_class=4, seed=3)
    assert plain.hash == draw(corpus, seed=3).hash
    assert (
        plain.hash == "fc98e34a756af89d763e24abb298375f97958d0a21ea40aa9ce0f332ca3b9cd3"
    )  # as drawn before there were piles


def test_a_draw_is_the_same_each_time_and_for_any_order_of_the_images() -> None:
    corpus = with_junk(even(), 300)
    options: dict[str, Any] = {"imbalance": 20, "label_imbalance": 4, "junk": 0.2}
    split = draw(corpus, **options)
    assert split.hash == draw(corpus, **options).hash
    assert split.hash != draw(corpus, **options, seed=1).hash
    assert split.hash != draw(corpus, **{**options, "imbalance_order": "reversed"}).hash
    mixed = np.random.default_rng(0).permutation(len(corpus.images))
    shuffled = replace(
        corpus, images=corpus.images.subset(mixed), labels=corpus.labels[mixed], truth=corpus.truth[mixed],
        junk=corpus.junk[mixed],
    )  # fmt: skip
    assert draw(shuffled, **options).hash == split.hash


@pytest.mark.parametrize("include_labeled", [True, False])
def test_a_long_tail_is_cut_from_the_hidden_images(include_labeled: bool) -> None:
    corpus = even(104)
    split = draw(corpus, imbalance=50, include_labeled=include_labeled)
    counts = np.array(hidden_counts(split, corpus))[class_order(corpus.classes, 0)]
    assert counts[0] == 100
    assert counts[-1] == 2
    assert (np.diff(counts) < 0).all()
    assert np.isin(split.labeled, split.unlabeled).all() == include_labeled
    assert np.array_equal(split.labeled, make_split(corpus, labels_per_class=4).labeled)
    assert np.array_equal(split.unlabeled, np.unique(split.unlabeled))
    smaller = draw(corpus, imbalance=100, include_labeled=include_labeled)
    assert np.isin(smaller.unlabeled, split.unlabeled).all()


def test_the_pool_can_be_ordered_against_the_labels() -> None:
    corpus = even()
    for order, sign in (("same", 1), ("reversed", -1)):
        split = draw(corpus, 8, label_imbalance=8, imbalance=20, imbalance_order=order)
        labels = np.bincount(split.labels)
        counts = hidden_counts(split, corpus)
        assert sorted(labels.tolist())[::9] == [1, 8]
        assert sign * np.corrcoef(labels, counts)[0, 1] > 0.5
        assert (counts[int(labels.argmax())] == max(counts)) == (order == "same")


@pytest.mark.parametrize("include_labeled", [True, False])
def test_junk_is_the_share_asked_for_beside_all_other_images(include_labeled: bool) -> None:
    corpus = with_junk(even(), 3000)
    split = draw(corpus, junk=0.3, include_labeled=include_labeled)
    junk = corpus.junk[split.unlabeled]
    assert (~junk).sum() == (1000 if include_labeled else 960)
    assert junk.mean() == pytest.approx(0.3, abs=0.001)
    assert all(corpus.images.names[i].startswith("junk:") for i in split.unlabeled[junk])
    assert (corpus.truth[split.unlabeled[junk]] == -1).all()
    more = draw(corpus, junk=0.6, include_labeled=include_labeled)
    assert np.isin(split.unlabeled, more.unlabeled).all()


def test_with_too_little_junk_images_of_the_classes_are_left_out_and_the_log_says_so() -> None:
    corpus = with_junk(even(), 300)
    said: list[str] = []
    split = draw(corpus, junk=0.6, say=said.append)
    junk = corpus.junk[split.unlabeled]
    assert junk.sum() == 300
    assert len(split.unlabeled) == 500
    assert np.isin(split.labeled, split.unlabeled).all()
    assert "only 300 images of no class, so 800 of 960 unlabeled" in said[0]
    assert min(hidden_counts(split, corpus)) > 5
    assert draw(corpus, junk=0.1, say=said.append).hash != split.hash
    assert len(said) == 1


def test_a_share_that_cannot_be_reached_is_an_error() -> None:
    assert mixture(0.5, 100, 1000, 40) == (100, 60)
    with pytest.raises(UserError, match=r"`data.junk=0.9`: there are only 20 images .* at most 0.33"):
        draw(with_junk(even(), 20), junk=0.9)


def test_held_out_images_are_never_in_the_pool() -> None:
    corpus = with_junk(even(), 500)
    for options in ({"imbalance": 10}, {"junk": 0.3}, {"imbalance": 10, "junk": 0.3, "label_imbalance": 2}):
        split = draw(corpus, validation_per_class=5, **options)
        plain = make_split(corpus, labels_per_class=4, validation_per_class=5)
        assert np.array_equal(split.validation, plain.validation)
        assert not np.isin(split.validation, split.unlabeled).any()
        assert not np.isin(split.validation, split.labeled).any()
        for fold in fold_splits(draw(corpus, **options), corpus, 2):
            assert not np.isin(fold.validation, fold.unlabeled).any()
            assert np.isin(fold.labeled, fold.unlabeled).all()


def test_all_labels_keep_the_pool_of_a_pile() -> None:
    corpus = with_junk(even(), 500)
    for include_labeled in (True, False):
        split = draw(corpus, imbalance=10, junk=0.3, include_labeled=include_labeled)
        every = with_all_labels(split, corpus)
        assert len(every.labeled) == 1000
        expected = split.unlabeled if include_labeled else split.unlabeled[corpus.junk[split.unlabeled]]
        assert np.array_equal(every.unlabeled, expected)


def test_a_pile_is_saved_and_read_back(tmp_path: Path) -> None:
    corpus = with_junk(even(20), 200)
    split = draw(corpus, imbalance=4, junk=0.3, label_imbalance=2)
    save_split(split, corpus, tmp_path / "split.json")
    again = load_split(tmp_path / "split.json", corpus)
    assert again.hash == split.hash
    assert np.array_equal(again.unlabeled, split.unlabeled)
    saved = json.loads((tmp_path / "split.json").read_text())
    assert len(saved["unlabeled"]) == len(split.unlabeled)
    assert saved["counts"]["junk"] == int(corpus.junk[split.unlabeled].sum())
    fewer = with_junk(even(20), 10)
    with pytest.raises(UserError, match="have changed since this run was started"):
        load_split(tmp_path / "split.json", fewer)


# --- modes --------------------------------------------------------------------------------------------------------


def test_near_duplicates_take_turns() -> None:
    looks = np.array([[0.0], [10], [1], [11], [2], [12]], np.float32)
    assert near_duplicates(looks, 3, 1).tolist() == [0, 2, 4]
    assert near_duplicates(looks, 4, 2).tolist() == [0, 1, 2, 3]
    assert near_duplicates(looks, 2, 5).tolist() == [0, 1]
    assert sorted(near_duplicates(looks, 6, 2).tolist()) == list(range(6))


def test_labels_of_one_mode_look_alike() -> None:
    corpus = even(40)
    looks = (np.arange(len(corpus.images)) % 4).astype(np.float32)[:, None]
    split = draw(corpus, 5, label_modes=1, looks=lambda indices: looks[indices], validation_per_class=3)
    for k in range(10):
        assert len(set(looks[split.labeled[split.labels == k], 0])) == 1
    assert len(set(looks[split.labeled, 0])) > 1
    plain = make_split(corpus, labels_per_class=5, validation_per_class=3)
    assert np.array_equal(split.validation, plain.validation)
    every_mode = draw(corpus, 5, label_modes=5, looks=lambda indices: looks[indices], validation_per_class=3)
    assert every_mode.hash == plain.hash


# --- mistakes -----------------------------------------------------------------------------------------------------


def test_what_must_be_known_and_is_not_is_an_error() -> None:
    users = corpus_of({"a": 9, "b": 9}, unlabeled=30, is_benchmark=False)
    with pytest.raises(UserError, match=r"`data.imbalance=5`: the true class of every .* 30 images of tiny have none"):
        draw(users, imbalance=5)
    with pytest.raises(UserError, match=r"`data.label_imbalance=3`: needs `labels_per_class`"):
        draw(users, None, label_imbalance=3)
    with pytest.raises(UserError, match=r"`data.label_modes=1`: needs `labels_per_class`"):
        draw(users, None, label_modes=1)
    assert len(draw(with_junk(users, 60), junk=0.5).unlabeled) == 96  # known to be junk, whatever the others are
    with pytest.raises(UserError, match=r"class '.' has 9 images, fewer than `labels_per_class=12`"):
        draw(corpus_of({"a": 9, "b": 9}), 12, label_imbalance=3)
