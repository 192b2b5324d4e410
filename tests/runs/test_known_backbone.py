"""Stored features are found without building the backbone, as long as nothing that they depend on has changed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from selftrain.config.resolve import make_settings
from selftrain.console import Reporter
from selftrain.data.images import FileImages
from selftrain.data.images.find import find_images
from selftrain.errors import UserError
from selftrain.nn.offline import offline_file
from selftrain.runs import known_backbone, network_inputs
from selftrain.runs.known_backbone import clean_features
from tests.folders import draw, encoded

CPU = torch.device("cpu")


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileImages:
    monkeypatch.setenv("SELFTRAIN_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(3):
        (folder / f"{i}.png").write_bytes(encoded(draw(0, np.random.default_rng(i))))
    return FileImages(folder, find_images(folder))


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The backbones that were built."""
    made: list[Any] = []
    make = network_inputs.make_extractor

    def counted(*arguments: Any) -> Any:
        made.append(arguments)
        return make(*arguments)

    monkeypatch.setattr(known_backbone, "make_extractor", counted)
    return made


def features(photos: FileImages, reporter: Reporter | None = None, size: int = 32, weights: str = "auto") -> np.ndarray:
    given = {"network.backbone": "lite0", "network.weights": weights, "data.size": size}
    return np.asarray(clean_features(make_settings("frozen", given), photos, CPU, reporter or Reporter(quiet=True)))


def test_the_backbone_is_built_once(photos: FileImages, built: list[Any]) -> None:
    first = features(photos)
    again = features(photos)
    assert len(built) == 1
    np.testing.assert_array_equal(again, first)


def test_a_new_image_or_another_size_needs_the_backbone(photos: FileImages, built: list[Any]) -> None:
    first = features(photos)
    new = Path(photos.root, "new.png")
    new.write_bytes(encoded(draw(1, np.random.default_rng(9))))
    more = FileImages(photos.root, find_images(photos.root))
    np.testing.assert_array_equal(features(more)[:3], first)
    features(more, size=40)
    assert len(built) == 3


def test_other_weights_need_the_backbone(
    photos: FileImages, built: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("selftrain.data.images.content.SETTLED", -1e9)
    offline = offline_file("lite0")
    assert offline is not None
    weights = tmp_path / "weights.pth"
    shutil.copy(offline, weights)
    for _ in range(2):
        features(photos, weights=str(weights))
        assert len(built) == 1
    shutil.copy(offline, tmp_path / "other.pth")
    (tmp_path / "other.pth").replace(weights)  # the same size and name, another file
    features(photos, weights=str(weights))
    assert len(built) == 2


def test_other_libraries_or_code_need_the_backbone(
    photos: FileImages, built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    features(photos)
    monkeypatch.setattr(known_backbone, "version", lambda name: "99.0")
    features(photos)
    monkeypatch.setattr(known_backbone, "_code", lambda: [Path(__file__)])
    features(photos)
    assert len(built) == 3


def test_a_damaged_record_is_ignored(photos: FileImages, built: list[Any], tmp_path: Path) -> None:
    features(photos)
    log = tmp_path / "cache" / "known" / "backbones.log"
    log.write_bytes(log.read_bytes()[:-9])
    features(photos)
    features(photos)
    assert len(built) == 2


def test_the_warning_of_an_odd_size_is_repeated(photos: FileImages, built: list[Any]) -> None:
    said: list[str] = []

    class Listening(Reporter):
        def warn(self, text: str) -> None:
            said.append(text)

    for _ in range(2):
        features(photos, Listening(quiet=True))
    assert len(built) == 1
    assert [("lite0 was trained on images of 224 px" in text) for text in said] == [True, True]


def test_a_home_that_does_not_exist_is_an_error_of_one_line(photos: FileImages) -> None:
    with pytest.raises(UserError, match="nobody-here"):
        features(photos, weights="~nobody-here/w.safetensors")
