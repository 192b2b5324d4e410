"""Views for stored features: the same for an image whatever is made beside it, different for each image and name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from selftrain.config.resolve import make_settings
from selftrain.data.features.extract import encode_padded, extract_features, view_names
from selftrain.data.images import ArrayImages, Images, LoadedImages
from selftrain.data.images.memory import Memory
from selftrain.data.views.content_views import ContentViews
from selftrain.data.views.image_views import stack_images

NAMES = view_names(2, 3)


def pixels(n: int = 5, side: int = 40) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, side, side, 3), dtype=np.uint8)


def maker(images: Images, *, zoom: float = 0.0, flip: bool = True, **settings: Any) -> ContentViews:
    data = make_settings("frozen", {f"data.{name}": value for name, value in settings.items()}).data
    return ContentViews(images, data, 16, 3, "bilinear", flip, zoom=zoom)


def made(views: ContentViews, rows: list[int], names: tuple[str, ...] = NAMES) -> list[torch.Tensor]:
    return views.make(np.array(rows), names, Memory(None).contents(views.images)[rows])


@pytest.mark.parametrize("crop", ["resized", "pad"])
def test_neighbours_in_a_list_change_nothing(crop: str) -> None:
    array = pixels()
    whole = made(maker(ArrayImages(array), crop=crop, cutout=0.3), [0, 1, 2, 3, 4])
    for i in range(5):
        alone = made(maker(ArrayImages(array[i : i + 1]), crop=crop, cutout=0.3), [0])
        for one, all_ in zip(alone, whole, strict=True):
            assert torch.equal(one[0], all_[i])


def test_other_views_change_nothing() -> None:
    views = maker(ArrayImages(pixels()))
    whole = dict(zip(NAMES, made(views, [3, 1]), strict=True))
    (only,) = made(views, [3, 1], ("strong_2",))
    assert torch.equal(only, whole["strong_2"])


def test_views_of_copies_are_equal_and_all_others_differ() -> None:
    array = pixels(2)
    array = np.concatenate([array, array[:1]])
    views = made(maker(ArrayImages(array), randaugment_n=2), [0, 1, 2])
    for view in views:
        assert torch.equal(view[0], view[2])
        assert not torch.equal(view[0], view[1])
    first = [view[0, 0] for view in views]
    assert not any(torch.equal(a, b) for i, a in enumerate(first) for b in first[:i])


def test_a_seed_changes_random_views_only() -> None:
    images = ArrayImages(pixels())
    one, two = (made(maker(images, views_seed=seed), [0, 1, 2, 3, 4]) for seed in (0, 1))
    assert [torch.equal(a, b) for a, b in zip(one, two, strict=True)] == [True, False, False, False, False, False]


def test_zoom_adds_the_inner_part() -> None:
    image = Image.fromarray(pixels(1)[0])
    (clean,) = made(maker(LoadedImages([image]), zoom=0.5), [0], ("clean",))
    assert clean.shape == (1, 2, 3, 16, 16)
    inner = image.resize((16, 16), Image.Resampling.BILINEAR, box=(10, 10, 30, 30), reducing_gap=2.0)
    assert torch.equal(clean[0, 1], stack_images([inner])[0])


def test_specs_tell_apart_what_differs_and_only_that() -> None:
    images = ArrayImages(pixels())
    base = maker(images)
    changes: dict[str, list[str]] = {
        "randaugment_m": ["strong_1"], "cutout": ["strong_1"], "crop_scale": ["weak_1", "strong_1"],
        "views_seed": ["weak_1", "strong_1"],
    }  # fmt: skip
    for name, expected in changes.items():
        value: Any = {"cutout": 0.4, "crop_scale": 1.0}.get(name, 3)
        other = maker(images, **{name: value})
        differ = [view for view in ("clean", "weak_1", "strong_1") if base.spec(view) != other.spec(view)]
        assert differ == expected
    assert maker(images, flip=False).spec("clean") == base.spec("clean")
    assert maker(images, flip=False).spec("weak_1") != base.spec("weak_1")
    assert maker(images, zoom=0.5).spec("clean") != base.spec("clean")
    assert len({str(base.spec(name)) for name in NAMES}) == len(NAMES)


def test_every_pass_has_the_same_size() -> None:
    sizes = []

    def encode(batch: torch.Tensor) -> torch.Tensor:
        sizes.append(len(batch))
        return batch.float().mean(dim=(2, 3))

    images = torch.from_numpy(pixels(11).transpose(0, 3, 1, 2).copy())
    assert torch.equal(encode_padded(encode, images, 4), images.float().mean(dim=(2, 3)))
    assert sizes == [4, 4, 4]


def test_extraction_without_a_store() -> None:
    array = pixels(3)
    array = np.concatenate([array, array[1:2]])
    found = extract_features(
        maker(ArrayImages(array)), NAMES, lambda batch: batch.float().mean(dim=(2, 3)), dim=3, about={}, root=None,
        dtype="float32", batch=4,
    )  # fmt: skip
    assert found.shape == (4, 6, 3)
    assert np.array_equal(found[1], found[3])
    clean = made(maker(ArrayImages(array)), [0, 1, 2, 3], ("clean",))[0][:, 0]
    assert np.array_equal(found[:, 0], clean.float().mean(dim=(2, 3)).numpy())
