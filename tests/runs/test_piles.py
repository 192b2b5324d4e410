"""Runs on piles: junk folders, what a run records of its pool, resuming, and the caches of joined images."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import selftrain
from selftrain.bench.catalogue import BENCHES
from selftrain.bench.cells import cells_of, settings_of
from selftrain.bench.from_yaml import read_bench
from selftrain.bench.piles import PILES, pile_benches
from selftrain.bench.spec import Row
from selftrain.config.resolve import make_settings
from selftrain.config.settings import settings_hash
from selftrain.console import Reporter
from selftrain.data.features.housekeeping import list_caches
from selftrain.data.features.joined import JoinedFeatures
from selftrain.data.features.thumbnails import thumbnails
from selftrain.data.images import FileImages, JoinedImages, find_images
from selftrain.data.source import Source
from selftrain.data.sources.by_name import find_by_name
from selftrain.data.sources.junk import canonical
from selftrain.errors import UserError
from selftrain.runs.problem import choose_split, read_corpus
from tests.docs.test_docs import ROOT
from tests.folders import CLASSES, fill, layout_1, layout_2
from tests.runs.small_runs import same_weights, train_small, weights

QUIET = Reporter(quiet=True)
FROZEN = {"train.batch": 6, "train.unlabeled_batch": 8, "train.eval_every": 4, "network.bottleneck": 16}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SELFTRAIN_CACHE", str(tmp_path / "cache"))
    fill(tmp_path / "other" / "train", {"cat": 9}, seed=7)
    fill(tmp_path / "misc", {"bee": 5}, seed=8)
    return layout_2(tmp_path / "data", per_class=8)


def problem(data: Path, **settings: Any) -> tuple[Any, Any]:
    given = {"data.path": str(data), "data.root": str(data.parent), "data.labels_per_class": 2}
    made = make_settings("frozen", given | {f"data.{name}": value for name, value in settings.items()})
    corpus = read_corpus(made, None, None, QUIET)
    return corpus, choose_split(made, corpus, QUIET)


def test_junk_comes_from_the_union_of_folders_and_has_no_class(data: Path) -> None:
    corpus, split = problem(data, junk=0.25, junk_from="other/train, misc")
    assert corpus.junk.sum() == 14
    junk = [corpus.images.names[i] for i in split.unlabeled[corpus.junk[split.unlabeled]]]
    assert len(junk) == 8
    assert {name.split("/")[0] for name in junk} <= {"junk:other", "junk:misc"}
    assert "junk:other/train/cat/cat000.png" in corpus.images.names
    assert corpus.truth[corpus.junk].tolist() == corpus.labels[corpus.junk].tolist() == [-1] * 14
    assert not any(name.startswith("junk:") for name in corpus.test.names)


def test_folders_of_junk_mean_the_same_anywhere(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(data.parent)
    assert canonical(f"{root}/misc,other/train", root) == "misc,other/train"
    monkeypatch.chdir(data.parent)
    assert canonical("misc", None) == f"{root}/misc"
    assert canonical("misc", f"{root}/data") == "misc"
    assert canonical(f"{root}/misc", f"{root}/data") == f"{root}/misc"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"junk": 0.5}, "`data.junk`: needs `data.junk_from`"),
        ({"junk": 0.5, "junk_from": "nowhere"}, "`data.junk_from` .*nowhere: there is no such folder"),
        ({"junk": 0.5, "junk_from": "empty"}, "`data.junk_from` .*empty: no image in this folder"),
        ({"junk": 0.5, "junk_from": "data/train"}, "`data.junk_from` .*is also a training image"),
        ({"junk": 0.5, "junk_from": "misc,misc/bee"}, "is also in another of the folders"),
        ({"junk": 0.5, "junk_from": "data/test"}, "no image in this folder"),
        ({"junk": 0.96}, "`data.junk=0.96`: expected a number from 0 to 0.95"),
        ({"imbalance": 0.5}, "`data.imbalance=0.5`: expected a number of at least 1"),
        ({"label_imbalance": 0}, "`data.label_imbalance=0`: expected a number of at least 1"),
        ({"label_modes": 0}, "`data.label_modes=0`: expected a whole number of at least 1"),
    ],
)
def test_mistakes(data: Path, settings: dict[str, Any], message: str) -> None:
    (data.parent / "empty").mkdir()
    with pytest.raises(UserError, match=message):
        problem(data, **settings)


def test_a_pool_without_truth_has_no_imbalance(data: Path) -> None:
    folder = layout_1(data.parent / "own")
    with pytest.raises(UserError, match=r"`data.imbalance=5`: the true class of every unlabeled image"):
        problem(folder, imbalance=5, labels_per_class=None)


def test_labels_of_one_mode_are_near_duplicates_of_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFTRAIN_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for name in CLASSES:
        folder = tmp_path / "data" / "train" / name
        folder.mkdir(parents=True)
        for mode in range(4):
            base = rng.integers(40, 215, (16, 16, 3))
            for i in range(6):
                pixels = (base + rng.integers(-9, 10, base.shape)).astype(np.uint8)
                Image.fromarray(pixels).resize((64, 64)).save(folder / f"{i}-of-mode-{mode}.png")
    corpus, split = problem(tmp_path / "data", label_modes=1, labels_per_class=5)
    modes = [{corpus.images.names[i][-5] for i in split.labeled[split.labels == k]} for k in range(3)]
    assert [len(found) for found in modes] == [1, 1, 1]
    (kept,) = list_caches(tmp_path / "cache")
    assert kept.images == 72
    _, two = problem(tmp_path / "data", label_modes=2, labels_per_class=4)
    assert max(len({corpus.images.names[i][-5] for i in two.labeled[two.labels == k]}) for k in range(3)) == 2
    assert list_caches(tmp_path / "cache")[0].vectors == 72

    def unread(*_: Any) -> None:
        raise AssertionError("thumbnails are in the cache")

    monkeypatch.setattr(FileImages, "load", unread)
    assert problem(tmp_path / "data", label_modes=1, labels_per_class=5)[1].hash == split.hash


def test_thumbnails_of_joined_images_are_those_of_their_parts(data: Path, tmp_path: Path) -> None:
    parts = [FileImages(folder, find_images(folder)) for folder in (data, data.parent / "misc")]
    joined = JoinedImages([JoinedImages(parts), parts[0]], [str(i) for i in range(2 * len(parts[0]) + 5)])
    rows = np.array([3, 50, 0, 40])
    whole = [thumbnails(part, tmp_path / "kept") for part in parts]
    expected = np.concatenate([*whole, whole[0]])
    assert np.array_equal(thumbnails(joined, tmp_path / "kept"), expected)
    assert np.array_equal(thumbnails(joined.subset(rows), tmp_path / "kept"), expected[rows])


def test_joined_features_are_indexed_like_one_array() -> None:
    rng = np.random.default_rng(0)
    whole = rng.random((9, 3, 4)).astype(np.float16)
    places = rng.permutation(9)
    joined = JoinedFeatures.of([(whole[places[:5]], places[:5]), (whole[places[5:]], places[5:])])
    rows, views = np.array([8, 0, 3, 3]), np.array([1, 0, 2, 1])
    assert joined.shape == whole.shape
    assert len(joined) == 9
    assert np.array_equal(joined[rows], whole[rows])
    assert np.array_equal(joined[2:7], whole[2:7])
    assert np.array_equal(joined[rows, views], whole[rows, views])
    assert np.array_equal(np.asarray(joined, np.float32), whole.astype(np.float32))


def test_hashes_of_runs_without_a_pile_are_as_before_and_know_no_machine() -> None:
    def hashed(**data: Any) -> str:
        return settings_hash(make_settings("frozen", {f"data.{name}": value for name, value in data.items()}))

    assert hashed() == hashed(imbalance=1, junk=0, label_modes=None)
    assert hashed() != hashed(imbalance=2)
    assert hashed(junk_from="/here/junk") == hashed(junk_from="/there/junk")
    assert hashed(junk_from="a/junk") != hashed(junk_from="b/junk")


@pytest.mark.long
def test_a_run_records_its_pile_and_resumes(data: Path, tmp_path: Path) -> None:
    settings = {"data.imbalance": 3, "data.junk": 0.4, "data.junk_from": "misc,other/train", "data.label_imbalance": 2}
    options: dict[str, Any] = {"root": tmp_path, "labels_per_class": 2, "settings": settings}
    run = train_small("data", tmp_path / "run", **options)
    results = run.results
    with np.load(run.folder / "outputs.npz", allow_pickle=False) as file:
        said = dict(file)
    assert results["junk"] == said["pool_junk"].sum() == round(0.4 * results["unlabeled"])
    assert sum(results["pool_truth"]) + results["junk"] == results["unlabeled"] == len(said["pool_names"])
    assert all(
        name.startswith("junk:") == junk for name, junk in zip(said["pool_names"], said["pool_junk"], strict=True)
    )
    assert (said["pool_truth"][said["pool_junk"]] == -1).all()
    assert sorted(results["labeled_prior"]) == [1, 1, 2]
    find = find_by_name([tmp_path / "data", tmp_path / "misc", tmp_path / "other" / "train"])
    assert all(find(name) for name in said["pool_names"].tolist())  # the report can show them

    def stop(row: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_small("data", tmp_path / "again", watch=stop, **options)
    again = selftrain.train(out=tmp_path / "again", resume=True, quiet=True)
    assert again.results["split_hash"] == results["split_hash"]
    assert same_weights(weights(again), weights(run))
    with pytest.raises(UserError, match=r"was started with data.junk=0.4, not 0.5"):
        selftrain.train(out=tmp_path / "again", resume=True, quiet=True, settings={"data.junk": 0.5})


@pytest.mark.long
def test_what_is_not_known_of_a_pool_is_null(data: Path, tmp_path: Path) -> None:
    own = layout_1(tmp_path / "own")
    run = train_small(own, tmp_path / "run", method="fixmatch")
    assert run.results["pool_truth"] is None
    assert run.results["junk"] is None
    settings = {"data.junk": 0.2, "data.junk_from": str(tmp_path / "misc")}
    run = train_small(own, tmp_path / "with-junk", method="fixmatch", settings=settings)
    assert "there are only 5 images of no class" in (run.folder / "log.txt").read_text()
    assert run.results["pool_truth"] is None
    assert run.results["junk"] > 0
    run = train_small(data, tmp_path / "benchmark", method="fixmatch", labels_per_class=2)
    assert run.results["pool_truth"] == [8, 8, 8]
    assert run.results["junk"] == 0


def vectors(cache: Path) -> int:
    (found,) = list_caches(cache)
    return found.vectors


@pytest.mark.long
def test_adding_images_recomputes_no_features(data: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "root": tmp_path, "labels_per_class": 2, "steps": 4, "size": 32, "quiet": True, "method": "fixmatch",
    }  # fmt: skip
    flip = {**FROZEN, "data.flip": True}  # no mirror images of labeled ones
    selftrain.train("data", out=tmp_path / "a", settings=flip, **options)
    alone = vectors(tmp_path / "cache")
    assert alone == 12 + 24 * 7
    junk = {**flip, "data.junk": 0.25, "data.junk_from": "other/train,misc"}
    selftrain.train("data", out=tmp_path / "b", settings=junk, **options)
    more = vectors(tmp_path / "cache")
    assert more == alone + (5 + 9) * 7
    fill(tmp_path / "other" / "train", {"bee": 3}, seed=9)
    fill(tmp_path / "other" / "test", {"bee": 2, "cat": 2}, seed=9)
    junk["data.junk_from"] = "other/train"
    selftrain.train("data", out=tmp_path / "c", settings=junk, **options)
    before = vectors(tmp_path / "cache")
    selftrain.train("other", out=tmp_path / "d", settings=flip, **options)
    after = vectors(tmp_path / "cache")
    assert after - before <= 4  # the test images; train was there
    selftrain.train("data", out=tmp_path / "e", unlabeled=tmp_path / "misc", settings=flip, **options)
    assert vectors(tmp_path / "cache") == after  # misc was there


# --- benches ------------------------------------------------------------------------------------------------------


def test_the_benches_of_piles_share_their_runs(tmp_path: Path) -> None:
    together = {(c.variant, c.row.name, c.dataset): c.folder(tmp_path) for c in cells_of(BENCHES["pile/all"], 1)}
    for name in PILES:
        for cell in cells_of(BENCHES[f"pile/{name}"], 1):
            assert together[name, cell.row.name, cell.dataset] == cell.folder(tmp_path)
    assert len(set(together.values())) == len(together)


def test_a_bench_of_piles_on_other_folders(tmp_path: Path) -> None:
    benches = pile_benches(("one", "two"), ("misc",), rows=(Row("supervised"),))
    cell = cells_of(benches["pile/junk-30"], 1)[0]
    for name in ("two/train", "misc"):
        with pytest.raises(UserError, match=rf"data.junk_from=.*{name}: the file does not exist"):
            settings_of(cell, tmp_path)
        (tmp_path / name).mkdir(parents=True)
    assert settings_of(cell, tmp_path)["data.junk_from"] == f"{tmp_path}/two/train,{tmp_path}/misc"
    assert "data.junk_from" not in settings_of(cells_of(benches["pile/natural"], 1)[0], None)


def test_the_bench_in_the_documentation_is_a_bench(tmp_path: Path) -> None:
    (text,) = re.findall(
        r"```yaml\n(.*?)```", (ROOT / "docs" / "concepts" / "piles.md").read_text(encoding="utf-8"), re.DOTALL
    )
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    for cell in cells_of(read_bench(tmp_path / "mine.yaml"), 1):
        assert cell.folder(tmp_path).parent.name == "photos"


def test_a_source_without_junk_has_none(data: Path) -> None:
    corpus = Source.parse(data).corpus()
    assert corpus.junk.tolist() == [False] * len(corpus.images)
