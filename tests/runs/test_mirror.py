"""Whether mirrored images keep their class: by names, by features, and in runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import selftrain
from selftrain.config.resolve import make_settings
from selftrain.config.settings import settings_hash
from selftrain.data.features.collection import Collection
from selftrain.data.features.housekeeping import list_caches
from selftrain.data.images import ArrayImages
from selftrain.data.images.memory import Memory
from selftrain.data.views.content_views import ContentViews
from selftrain.files import read_yaml, write_text
from selftrain.runs import flip as flip_module
from selftrain.runs.mirror import Verdict, judge_features, judge_names, sample_labeled
from tests.folders import layout_2
from tests.runs.small_runs import train_small

QUICK = {"train.batch": 6, "train.unlabeled_batch": 8, "train.eval_every": 10, "network.bottleneck": 32}


@pytest.mark.parametrize(
    ("classes", "swapped"),
    [
        (["turn left", "turn right"], True),
        (["Turn-LEFT", "turn_right", "stop"], True),
        (["033_TurnRight", "034_TurnLeft"], True),
        (["LEFTTurn", "RIGHTTurn"], True),
        (["left", "right"], True),
        (["left to right", "right to left"], True),
        (["ear_L", "ear_R"], True),
        (["earL", "earR"], True),
        (["abbiegen links", "abbiegen rechts"], True),
        (["linker Schuh", "rechter Schuh"], True),
        (["tourner à gauche", "tourner à droite"], True),
        (["œil gauche", "œil droit"], True),
        (["izquierda", "derecha", "recto"], True),
        (["turn left", "go right"], False),
        (["left", "straight"], False),
        (["cat", "dog"], False),
        (["bright", "blight"], False),  # no words for sides
        (["east coast", "west coast"], False),  # names of places
        (["L", "R"], False),  # letters
        (["sign a", "sign l", "sign r"], False),
        (["ear l", "nose r"], False),
        (["1", "2", ""], False),
    ],
)
def test_names_that_differ_only_in_the_side(classes: list[str], swapped: bool) -> None:
    for names in (classes, classes[::-1]):
        verdict = judge_names(names)
        assert (verdict is not None and not verdict.flip) is swapped


def test_the_verdict_names_the_classes() -> None:
    verdict = judge_names(["stop", "turn left", "turn right"])
    assert verdict == Verdict(False, "the names 'turn left' and 'turn right' differ only in the side")


def features(
    mirror: list[int], n: int = 4, noise: float = 0.05, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return features of images and of their mirror images, which look like class ``mirror[k]``."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(mirror)), n)
    centres = rng.normal(size=(len(mirror), 32))
    clean, mirrored = (centres[k] + noise * rng.normal(size=(len(y), 32)) for k in (y, np.array(mirror)[y]))
    return clean, mirrored, y


@pytest.mark.parametrize("n", [2, 4, 10])
def test_swapped_classes_are_found(n: int) -> None:
    verdict = judge_features(*features([0, 2, 1, 3, 4], n), "abcde")
    assert verdict == Verdict(False, "mirrored images of 'b' look like 'c'")


@pytest.mark.parametrize("seed", range(5))
def test_features_that_do_not_change_are_no_evidence(seed: int) -> None:
    clean, mirrored, y = features([0, 1, 2, 3, 4], seed=seed)
    kept = "labeled images keep their class when mirrored: 20 of 20, originals 20"
    assert judge_features(clean, mirrored, y, "abcde") == Verdict(True, kept)
    assert judge_features(clean, clean, y, "abcde") == Verdict(True, kept)  # symmetric images


def test_one_class_that_turns_into_another_is_no_swap_but_counts() -> None:
    clean, mirrored, y = features([0, 0, 2, 3, 4, 5, 6, 7], 10)
    verdict = judge_features(clean, mirrored, y, "abcdefgh")
    assert not verdict.flip
    assert verdict.reason == "too few labeled images keep their class when mirrored: 70 of 80, originals 80"


def test_weak_evidence_gives_a_doubtful_verdict() -> None:
    clean, mirrored, y = features([0, 1, 2, 3, 4], 5)
    worse = mirrored.copy()
    worse[[0, 6]] = mirrored[[9, 12]]  # two of 25 images end up in the next class
    verdict = judge_features(clean, worse, y, "abcde")
    assert (verdict.flip, verdict.doubtful) == (True, False)
    worse[[13, 19]] = mirrored[[20, 1]]
    verdict = judge_features(clean, worse, y, "abcde")
    assert (verdict.flip, verdict.doubtful) == (True, True)


@pytest.mark.parametrize("labels", [[], [0, 1, 2], [0, 0, 1]])
def test_too_few_labels_are_no_evidence(labels: list[int]) -> None:
    y = np.array(labels, np.int64)
    rows = sample_labeled(y, 0)
    nothing = np.zeros((len(rows), 3))
    assert judge_features(nothing, nothing, y[rows], "abc").flip


def test_the_sample_is_even_and_depends_on_the_seed() -> None:
    y = np.repeat(np.arange(10), [1, 2, *[300] * 8])
    rows = sample_labeled(y, 0)
    assert np.bincount(y[rows]).tolist() == [0, 2, *[55] * 8]
    assert np.array_equal(rows, sample_labeled(y, 0))
    assert not np.array_equal(rows, sample_labeled(y, 1))
    many = sample_labeled(np.repeat(np.arange(1000), 4), 0)
    assert len(many) == 500


@pytest.mark.parametrize("crop", ["pad", "resized"])
def test_the_mirrored_view_is_the_clean_one_mirrored(crop: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 8, 8), dtype=np.uint8)
    data = make_settings("frozen", {"data.crop": crop}).data
    images = ArrayImages(pixels)
    maker = ContentViews(images, data, side=8, channels=3, interpolation="bilinear", flip=False)
    clean, mirrored = maker.make(np.arange(3), ("clean", "mirrored"), Memory(None).contents(images))
    assert np.array_equal(mirrored.numpy(), clean.numpy()[..., ::-1])


def said(run: selftrain.Run) -> list[str]:
    lines = (run.folder / "log.txt").read_text().splitlines()
    return [line.split(" ", 2)[2] for line in lines if "mirror" in line]


def settled(run: selftrain.Run) -> Any:
    return read_yaml(run.folder / "config.yaml", "config")["data"]["flip"]


def named(root: Path, names: dict[str, str]) -> Path:
    """Return layout 2 with other names of classes."""
    layout_2(root)
    for part in ("train", "test"):
        for old, new in names.items():
            (root / part / old).rename(root / part / new)
    return root


@pytest.mark.long
def test_names_decide_in_every_regime(tmp_path: Path) -> None:
    data = named(tmp_path / "data", {"ant": "turn left", "bee": "turn right"})
    run = train_small(data, tmp_path / "run", labels_per_class=2)
    assert (settled(run), run.results["flip"]) == (False, False)
    off = "mirroring: off (the names 'turn left' and 'turn right' differ only in the side; set `data.flip=true` to "
    assert said(run) == [off + "mirror all the same)"]
    given = train_small(data, tmp_path / "given", labels_per_class=2, settings={"data.flip": True})
    assert (settled(given), given.results["flip"], said(given)) == (True, True, [])


@pytest.mark.long
def test_other_names_leave_it_on_and_the_hash_as_it_was(tmp_path: Path) -> None:
    run = train_small(layout_2(tmp_path / "data"), tmp_path / "run", labels_per_class=2)
    assert said(run) == ["mirroring: on (not tested in the scratch regime; `data.flip=false` turns it off)"]
    assert (settled(run), run.results["flip"]) == (True, True)
    values = {name: value for name, value in run.layout.read_settings().items() if name != "regime"}
    assert settings_hash(make_settings("scratch", values | {"data.flip": None})) == run.results["settings_hash"]
    digits = train_small("digits", tmp_path / "digits", labels_per_class=2)
    assert (settled(digits), digits.results["flip"], said(digits)) == (None, False, [])


@pytest.mark.long
def test_feature_arrays_have_nothing_to_mirror(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(24, 6)).astype(np.float32)
    run = selftrain.train((x, np.arange(24) % 2), out=tmp_path / "run", steps=4, quiet=True, settings=QUICK)
    assert (settled(run), run.results["flip"], said(run)) == (None, None, [])


@pytest.fixture
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFTRAIN_CACHE", str(tmp_path / "cache"))


def stripes(root: Path, per_class: int = 8, side: int = 64) -> Path:
    """Write stripes that rise or fall: a mirror turns one into the other, and any backbone sees it."""
    rng = np.random.default_rng(0)
    down, across = np.mgrid[:side, :side]
    for name, slope in (("falling", 1), ("rising", -1), ("upright", 0)):
        (root / "train" / name).mkdir(parents=True)
        for i in range(per_class):
            wave = np.sin((across - slope * down) * rng.uniform(0.5, 0.6) + rng.uniform(0, 6))
            pixels = 128 + 100 * wave + rng.normal(0, 8, wave.shape)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / "train" / name / f"{i}.png")
    return root


def frozen(data: Path | None, out: Path, **options: Any) -> selftrain.Run:
    options = {"steps": 20, "quiet": True, "settings": QUICK, **options}
    return selftrain.train(data, out=out, **options)


@pytest.mark.long
@pytest.mark.usefixtures("_own_cache")
def test_labeled_images_decide_in_the_frozen_regime(tmp_path: Path) -> None:
    data = stripes(tmp_path / "stripes")
    run = frozen(data, tmp_path / "run", labels_per_class=4, size=64)
    off = (
        "mirroring: off (mirrored images of 'falling' look like 'rising'; set `data.flip=true` to mirror all the same)"
    )
    assert said(run) == [off]
    assert (settled(run), run.results["flip"]) == (False, False)
    (before,) = list_caches(Path(os.environ["SELFTRAIN_CACHE"]))
    assert len(before.views) == 8
    collection = Collection.at(before.folder)
    assert collection is not None
    assert [spec["flip"] for spec in collection.view_specs().values() if "flip" in spec] == [False] * 6

    again = frozen(data, tmp_path / "again", labels_per_class=4, size=64, seed=1)
    assert said(again) == [off]
    (after,) = list_caches(Path(os.environ["SELFTRAIN_CACHE"]))
    assert after.vectors == before.vectors  # nothing new
    given = frozen(data, tmp_path / "given", labels_per_class=4, size=64, settings={**QUICK, "data.flip": False})
    assert given.results["settings_hash"] == run.results["settings_hash"]


@pytest.mark.long
@pytest.mark.usefixtures("_own_cache")
def test_a_resumed_run_keeps_its_decision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = stripes(tmp_path / "stripes")

    def stop(row: dict[str, Any]) -> None:
        if row["step"] == 10:
            raise KeyboardInterrupt

    settings = {**QUICK, "train.checkpoint_every": 5}
    with pytest.raises(KeyboardInterrupt):
        frozen(data, tmp_path / "run", labels_per_class=4, size=64, settings=settings, watch=stop)
    monkeypatch.setattr(flip_module, "judge_features", lambda *_: pytest.fail("decided again"))
    run = frozen(None, tmp_path / "run", resume=True, settings={}, steps=None)
    assert (settled(run), run.results["flip"], len(said(run))) == (False, False, 1)


@pytest.mark.long
@pytest.mark.usefixtures("_own_cache")
def test_a_run_from_before_there_was_a_decision_mirrors_as_it_did(tmp_path: Path) -> None:
    data = stripes(tmp_path / "stripes")

    def stop(row: dict[str, Any]) -> None:
        if row["step"] == 10:
            raise KeyboardInterrupt

    settings = {**QUICK, "train.checkpoint_every": 5, "data.flip": True}
    with pytest.raises(KeyboardInterrupt):
        frozen(data, tmp_path / "run", labels_per_class=4, size=64, settings=settings, watch=stop)
    config = tmp_path / "run" / "config.yaml"
    write_text(config, config.read_text().replace("flip: true", "flip: null"))
    run = frozen(None, tmp_path / "run", resume=True, settings={}, steps=None)
    assert (settled(run), run.results["flip"], said(run)) == (None, True, [])


@pytest.mark.long
@pytest.mark.usefixtures("_own_cache")
def test_a_doubtful_decision_gives_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flip_module, "judge_features", lambda *_: Verdict(True, "so so", doubtful=True))
    run = frozen(stripes(tmp_path / "stripes"), tmp_path / "run", labels_per_class=4, size=64)
    assert run.results["flip"] is True
    assert said(run) == [
        "mirroring: on (so so)",
        "warning: mirroring may change the class of your images; if left and right matter, use `data.flip=false`",
    ]
