"""Augmentation: each operation against torchvision, and each sample independent of its batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from torch import Tensor
from torchvision import transforms
from torchvision.transforms.v2 import functional as F

from selftrain.data.views import augment, randaugment
from selftrain.data.views.augment import (
    Augmentation,
    CentreResize,
    Compose,
    Cutout,
    PlaceParams,
    RandAugment,
    RandAugmentParams,
    RandomCrop,
    RandomFlip,
    ResizedCrop,
)
from selftrain.data.views.randaugment import OPERATIONS
from selftrain.errors import UserError

GEOMETRIC = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
SIGNED = (*GEOMETRIC, "Brightness", "Color", "Contrast", "Sharpness")
ROUNDED = ("Brightness", "Color", "Contrast", "Sharpness")  # products before truncation: may differ by one grey level
SIZES = [(8, 8), (32, 32), (65, 65), (24, 41)]
AUGMENTATIONS: list[Augmentation[Any]] = [
    RandomFlip(),
    RandomCrop(),
    RandomCrop(0.5),
    Cutout(),
    RandAugment(),
    RandAugment(n=4, m=30, jitter=True),
    Compose((RandomCrop(), RandomFlip(), RandAugment(3, 5), Cutout())),
    Compose(()),
]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def random_images(n: int, channels: int, height: int, width: int, seed: int = 0) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (n, channels, height, width), dtype=np.uint8))


def sample_images(channels: int, height: int, width: int) -> Tensor:
    """Random, low-contrast random, gradients, constant, and two-valued images, (n, C, H, W)."""
    random = random_images(2, channels, height, width)
    random[1] = random[1] // 4 + 90
    across = torch.linspace(0, 255, width).to(torch.uint8).expand(channels, height, width)
    down = torch.linspace(255, 30, height).to(torch.uint8)[:, None].expand(channels, height, width)
    constant = torch.full((channels, height, width), 77, dtype=torch.uint8)
    checks = ((torch.arange(height)[:, None] // 3 + torch.arange(width) // 3) % 2 * 200 + 20).to(torch.uint8)
    structured = torch.stack([across, down, constant, constant * 0, checks.expand(channels, height, width)])
    if channels == 3:
        structured = torch.cat([structured, torch.stack([across[0], down[0], checks])[None]])
    return torch.cat([random, structured])


def magnitude(name: str, level: int, height: int, width: int) -> float:
    """torchvision's tables of 31 bins, retyped."""
    table = {
        **dict.fromkeys(("ShearX", "ShearY"), torch.linspace(0, 0.3, 31)),
        "TranslateX": torch.linspace(0, 150 / 331 * width, 31),
        "TranslateY": torch.linspace(0, 150 / 331 * height, 31),
        "Rotate": torch.linspace(0, 30, 31),
        **dict.fromkeys(("Brightness", "Color", "Contrast", "Sharpness"), torch.linspace(0, 0.9, 31)),
        "Posterize": (8 - torch.arange(31) / 7.5).round(),
        "Solarize": torch.linspace(1, 0, 31),
    }.get(name)
    return 0.0 if table is None else float(table[level])


def torchvision(name: str, image: Tensor, v: float) -> Tensor:
    """One operation of ``torchvision.transforms.v2.RandAugment`` with magnitude ``v``, retyped."""

    def affine(translate: tuple[int, int] = (0, 0), shear: tuple[float, float] = (0, 0), **keywords: Any) -> Tensor:
        moved: Tensor = F.affine(image, angle=0.0, translate=list(translate), scale=1.0, shear=list(shear), **keywords)
        return moved

    operations: dict[str, Callable[[], Tensor]] = {
        "Identity": lambda: image,
        "ShearX": lambda: affine(shear=(math.degrees(math.atan(v)), 0), center=[0, 0]),
        "ShearY": lambda: affine(shear=(0, math.degrees(math.atan(v))), center=[0, 0]),
        "TranslateX": lambda: affine(translate=(int(v), 0)),
        "TranslateY": lambda: affine(translate=(0, int(v))),
        "Rotate": lambda: F.rotate(image, v),
        "Brightness": lambda: F.adjust_brightness(image, 1 + v),
        "Color": lambda: F.adjust_saturation(image, 1 + v),
        "Contrast": lambda: F.adjust_contrast(image, 1 + v),
        "Sharpness": lambda: F.adjust_sharpness(image, 1 + v),
        "Posterize": lambda: F.posterize(image, int(v)),
        "Solarize": lambda: F.solarize(image, 255 * v),
        "AutoContrast": lambda: F.autocontrast(image),
        "Equalize": lambda: F.equalize(image),
    }
    return operations[name]()


def ties(name: str, v: float, height: int, width: int) -> np.ndarray:
    """Where a source coordinate lies half-way between two pixels, and rounding is left to the arithmetic, (H, W)."""
    y, x = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    xc, yc, t = x - (width - 1) / 2, y - (height - 1) / 2, math.radians(v)
    source_x, source_y = {
        "ShearX": (x + v * (y + 0.5), y),
        "ShearY": (x, y + v * (x + 0.5)),
        "Rotate": (
            math.cos(t) * xc - math.sin(t) * yc + (width - 1) / 2,
            math.sin(t) * xc + math.cos(t) * yc + (height - 1) / 2,
        ),
    }.get(name, (x, y))
    return np.logical_or(*(np.abs(source % 1 - 0.5) < 1e-4 for source in (source_x, source_y)))


def apply_one_operation(images: Tensor, name: str, level: float, negative: bool) -> Tensor:
    shape = (len(images), 1)
    params = RandAugmentParams(
        np.full(shape, OPERATIONS.index(name)), np.full(shape, float(level)), np.full(shape, negative)
    )
    return RandAugment(n=1).apply(images, params)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_matches_torchvision(name: str, channels: int, size: tuple[int, int]) -> None:
    images = sample_images(channels, *size)
    for level in (0, 3, 10, 15, 20, 30):
        for negative in (False, True) if name in SIGNED else (False,):
            v = magnitude(name, level, *size) * (-1 if negative else 1)
            ours = apply_one_operation(images, name, level, negative)
            theirs = torch.stack([torchvision(name, image, v) for image in images])
            assert ours.dtype == torch.uint8
            assert ours.shape == images.shape
            difference = (ours.int() - theirs.int()).abs().numpy()
            if name in GEOMETRIC:
                undecided = ties(name, v, *size)
                assert not difference[..., ~undecided].any(), (level, negative)
            else:
                assert difference.max() <= (name in ROUNDED), (level, negative)


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_does_something_and_ignores_signs_it_has_not(name: str) -> None:
    images = sample_images(3, 32, 32)
    plus, minus = (apply_one_operation(images, name, 10, negative) for negative in (False, True))
    assert torch.equal(plus, images) == (name == "Identity")
    assert torch.equal(plus, minus) == (name not in SIGNED)


def test_color_leaves_grey_images_alone() -> None:
    images = random_images(3, 1, 16, 16)
    assert torch.equal(apply_one_operation(images, "Color", 30, False), images)


@pytest.mark.parametrize("augmentation", AUGMENTATIONS, ids=repr)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_sample_does_not_depend_on_its_batch(
    augmentation: Augmentation[Any], channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, side = 37, 33
    images = random_images(n, channels, side, side)
    params = augmentation.draw(n, np.random.default_rng(1))
    whole = augmentation.apply(images, params)
    for i in range(n):
        assert torch.equal(augmentation.apply(images[i : i + 1], params[i : i + 1])[0], whole[i])
    rows = np.random.default_rng(2).permutation(n)[:11]
    assert torch.equal(augmentation.apply(images[rows], params[rows]), whole[rows])
    monkeypatch.setattr(randaugment, "CPU_BLOCK", 10 * channels * side * side)
    for module in (augment, randaugment):
        monkeypatch.setattr(module, "CPU_CHUNK", 3 * channels * side * side)
    assert torch.equal(augmentation.apply(images, params), whole)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_is_the_same_alone_and_among_others(name: str) -> None:
    images = sample_images(3, 65, 65)
    n = len(images)
    rng = np.random.default_rng(3)
    params = RandAugmentParams(
        np.full((n, 1), OPERATIONS.index(name)), rng.uniform(0, 30, (n, 1)), rng.random((n, 1)) < 0.5
    )
    whole = RandAugment(n=1).apply(images, params)
    for i in range(n):
        assert torch.equal(RandAugment(n=1).apply(images[[i]], params[np.array([i])])[0], whole[i])


@pytest.mark.parametrize("augmentation", AUGMENTATIONS[:-1], ids=repr)
def test_the_seed_decides_and_inputs_stay(augmentation: Augmentation[Any]) -> None:
    images = random_images(16, 3, 32, 32)
    before = images.clone()

    def run(seed: int) -> Tensor:
        return augmentation.apply(images, augmentation.draw(16, np.random.default_rng(seed)))

    assert torch.equal(run(0), run(0))
    assert not torch.equal(run(0), run(1))
    assert torch.equal(images, before)
    assert run(0).data_ptr() != images.data_ptr()
    strided = images.to(memory_format=torch.channels_last)
    params = augmentation.draw(16, np.random.default_rng(0))
    assert torch.equal(augmentation.apply(strided, params), run(0))


@pytest.mark.parametrize("augmentation", AUGMENTATIONS, ids=repr)
def test_empty_batches_and_extreme_sizes(augmentation: Augmentation[Any]) -> None:
    for shape in ((0, 3, 32, 32), (2, 1, 8, 512), (2, 3, 512, 8)):
        images = random_images(*shape)
        params = augmentation.draw(len(images), np.random.default_rng(0))
        assert augmentation.apply(images, params).shape == images.shape


def test_no_global_random_state_is_touched() -> None:
    torch_state = torch.get_rng_state()
    numpy_state: Any = np.random.get_state()  # noqa: NPY002
    images = random_images(8, 3, 16, 16)
    for augmentation in AUGMENTATIONS:
        augmentation.apply(images, augmentation.draw(8, np.random.default_rng(0)))
    crop = ResizedCrop(8)
    crop.apply_one(PIL.Image.new("RGB", (20, 30)), crop.draw(1, np.random.default_rng(0))[0])
    assert torch.equal(torch.get_rng_state(), torch_state)
    after: Any = np.random.get_state()  # noqa: NPY002
    assert after[2:] == numpy_state[2:]
    assert np.array_equal(after[1], numpy_state[1])


def test_randaugment_draws_operations_uniformly_and_for_each_sample() -> None:
    n = 14_000
    params = RandAugment(n=2, m=10).draw(n, np.random.default_rng(0))
    assert params.operation.shape == params.level.shape == params.negative.shape == (n, 2)
    for slot in range(2):
        counts = np.bincount(params.operation[:, slot], minlength=14)
        assert ((counts - n / 14) ** 2 / (n / 14)).sum() < 35  # chi-square, 13 degrees: p < 0.001
    pairs = np.bincount(params.operation[:, 0] * 14 + params.operation[:, 1], minlength=196)
    assert ((pairs - n / 196) ** 2 / (n / 196)).sum() < 262  # 195 degrees: slots are independent
    assert abs(params.negative.mean() - 0.5) < 0.01
    assert (params.level == 10).all()


def test_jitter_draws_the_strength() -> None:
    level = RandAugment(m=10, jitter=True).draw(5_000, np.random.default_rng(0)).level
    assert level.min() >= 0
    assert level.max() <= 10
    assert np.allclose(np.quantile(level, [0.1, 0.5, 0.9]), [1, 5, 9], atol=0.2)
    assert len(np.unique(level)) == level.size


def test_operations_come_one_after_another() -> None:
    images = random_images(40, 3, 24, 24)
    params = RandAugment(n=3).draw(40, np.random.default_rng(0))
    step_by_step = images
    for slot in range(3):
        one = RandAugmentParams(*(field[:, [slot]] for field in (params.operation, params.level, params.negative)))
        step_by_step = RandAugment(n=1).apply(step_by_step, one)
    assert torch.equal(RandAugment(n=3).apply(images, params), step_by_step)


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_flip_probability(p: float) -> None:
    images = random_images(2_000, 1, 8, 8)
    params = RandomFlip(p).draw(2_000, np.random.default_rng(0))
    flipped = RandomFlip(p).apply(images, params)
    assert abs(params.flip.mean() - p) < 0.03
    for image, result, flip in zip(images, flipped, params.flip, strict=True):
        assert torch.equal(result, image.flip(-1) if flip else image)


def test_crop_shows_every_window_of_the_reflected_image() -> None:
    image = torch.arange(16 * 24, dtype=torch.float32).remainder(251).reshape(1, 1, 16, 24)
    padded = torch.nn.functional.pad(image, (3, 3, 2, 2), mode="reflect").to(torch.uint8)[0, 0]
    n = 1_000
    result = RandomCrop(0.125).apply(
        image.to(torch.uint8).expand(n, -1, -1, -1), RandomCrop().draw(n, np.random.default_rng(0))
    )
    windows = {padded[t : t + 16, l : l + 24].numpy().tobytes(): (t, l) for t in range(5) for l in range(7)}
    seen = [windows[image.numpy().tobytes()] for image in result[:, 0]]
    assert set(seen) == set(windows.values())
    assert min(seen.count(window) for window in windows.values()) > 10
    corners = RandomCrop().apply(
        image.to(torch.uint8).expand(2, -1, -1, -1), PlaceParams(np.array([[0, 0], [0.999] * 2]))
    )
    assert torch.equal(corners[0, 0], padded[:16, :24])
    assert torch.equal(corners[1, 0], padded[-16:, -24:])


def test_cutout_area_and_clipping() -> None:
    images = torch.zeros(500, 3, 20, 32, dtype=torch.uint8)
    cutout = Cutout(side=0.5, fill=200)
    painted = cutout.apply(images, cutout.draw(500, np.random.default_rng(0)))
    assert set(torch.unique(painted).tolist()) == {0, 200}
    areas = (painted[:, 0] == 200).flatten(1).sum(1)
    assert areas.max() == 10 * 10  # inside the image
    assert areas.min() >= 5 * 5  # the centre is a pixel of the image
    assert torch.equal(painted[:, 0], painted[:, 2])
    assert (painted[:, 0] == 200).any(0).all()  # no pixel is out of reach
    corner = cutout.apply(images[:1], PlaceParams(np.zeros((1, 2))))
    assert (corner[0, 0] == 200).sum() == (corner[0, 0, :5, :5] == 200).sum() == 25
    assert torch.equal(Cutout(side=0).apply(images[:1], PlaceParams(np.zeros((1, 2)))), images[:1])


@pytest.mark.parametrize("size", [(1, 500), (500, 1), (8, 8), (1, 1), (300, 200), (640, 100), (33, 32)])
def test_resized_crop_boxes_are_valid(size: tuple[int, int]) -> None:
    width, height = size
    crop = ResizedCrop(8)
    rows = np.concatenate([crop.draw(300, np.random.default_rng(0)), np.zeros((1, 4)), np.full((1, 4), 1 - 1e-16)])
    for row in rows:
        left, upper, right, lower = crop.box(width, height, row)
        assert 0 <= left < right <= width
        assert 0 <= upper < lower <= height
        assert 3 / 4 - 1e-6 <= (right - left) / (lower - upper) <= 4 / 3 + 1e-6
        if size not in ((1, 500), (500, 1)):
            assert 0.2 - 1e-6 <= (right - left) * (lower - upper) / (width * height) <= 1 + 1e-6
    for mode in ("L", "RGB"):
        result = crop.apply_one(PIL.Image.new(mode, size, 7 if mode == "L" else (7, 8, 9)), rows[0])
        assert (result.size, result.mode) == ((8, 8), mode)
        assert result.getpixel((3, 3)) == (7 if mode == "L" else (7, 8, 9))


def test_resized_crop_falls_back_to_the_middle() -> None:
    boxes = {ResizedCrop(8).box(1, 500, row) for row in np.random.default_rng(0).random((5, 4))}
    assert boxes == {(0.0, 250 - 2 / 3, 1.0, 250 + 2 / 3)}


@pytest.mark.parametrize("size", [(200, 200), (300, 200), (240, 400)])
def test_resized_crop_is_distributed_as_torchvisions(size: tuple[int, int]) -> None:
    width, height = size
    crop = ResizedCrop(8)
    ours = np.array([crop.box(width, height, row) for row in crop.draw(3_000, np.random.default_rng(0))])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        image = torch.empty(1, height, width)
        boxes = [transforms.RandomResizedCrop.get_params(image, (0.2, 1.0), (3 / 4, 4 / 3)) for _ in range(3_000)]
    theirs = np.array([(left, top, left + w, top + h) for top, left, h, w in boxes])

    def measures(box: np.ndarray) -> np.ndarray:
        w, h = box[:, 2] - box[:, 0], box[:, 3] - box[:, 1]
        quantities = np.stack([w * h / (width * height), w / h, box[:, 0] / width, box[:, 1] / height])
        quantiles: np.ndarray = np.quantile(quantities, [0.1, 0.3, 0.5, 0.7, 0.9], axis=1)
        return quantiles

    assert np.abs(measures(ours) - measures(theirs)).max() < 0.04


def test_resized_crop_cuts_where_the_box_is() -> None:
    ramp = PIL.Image.fromarray(np.tile(np.arange(200, dtype=np.uint8), (100, 1)))
    crop = ResizedCrop(16, "bilinear")
    for row in crop.draw(20, np.random.default_rng(0)):
        left, _, right, _ = crop.box(200, 100, row)
        result = np.asarray(crop.apply_one(ramp, row), dtype=float)
        centres = left + (np.arange(16) + 0.5) * (right - left) / 16 - 0.5
        assert np.abs(result - centres)[:, 1:-1].max() < 1.5
    assert crop.draw(3, np.random.default_rng(0)).shape == (3, 4)


def test_a_single_area_and_ratio() -> None:
    crop = ResizedCrop(8, scale=(0.25, 0.25), ratio=(1.0, 1.0))
    for row in crop.draw(20, np.random.default_rng(0)):
        left, upper, right, lower = crop.box(100, 100, row)
        assert right - left == pytest.approx(50)
        assert lower - upper == pytest.approx(50)


@pytest.mark.parametrize("size", [(40, 60), (8, 8), (1, 500), (640, 480)])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_centre_resize_gives_the_size_asked(size: tuple[int, int], mode: str) -> None:
    image = PIL.Image.new(mode, size, 9 if mode == "L" else (9, 9, 9))
    for share in (1.0, 0.875):
        result = CentreResize(33, "bicubic", share)(image)
        assert (result.size, result.mode) == ((33, 33), mode)
        assert np.asarray(result).min() == np.asarray(result).max() == 9


def test_centre_resize_is_resize_then_crop() -> None:
    noise = random_images(1, 3, 90, 60)[0].permute(1, 2, 0).numpy()
    image = PIL.Image.fromarray(noise).resize((180, 270), PIL.Image.Resampling.BICUBIC)
    usual = F.center_crop(F.resize(image, [64]), [56, 56])
    ours = CentreResize(56, "bilinear", 56 / 64)(image)
    difference = np.abs(np.asarray(ours, dtype=int) - np.asarray(usual, dtype=int))
    assert difference.max() <= 1
    square = image.crop((0, 45, 180, 225))
    assert CentreResize(100)(square).tobytes() == square.resize((100, 100), PIL.Image.Resampling.BILINEAR).tobytes()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomFlip(1.5), "RandomFlip: p is 1.5; expected a number from 0 to 1"),
        (lambda: RandomCrop(0.6), "padding is 0.6"),
        (lambda: Cutout(fill=256), "fill is 256"),
        (lambda: RandAugment(m=31), "m is 31; expected a number from 0 to 30"),
        (lambda: RandAugment(n=-1), "n is -1; expected a number of at least 0"),
        (lambda: ResizedCrop(8, "blinear"), "Did you mean 'bilinear'"),
        (lambda: ResizedCrop(8, scale=(0, 1)), "scale is"),
        (lambda: ResizedCrop(8, ratio=(2, 1)), "ratio is"),
        (lambda: CentreResize(0), "size is 0"),
    ],
)
def test_wrong_settings_are_named(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_wrong_batches_are_named() -> None:
    params = RandomFlip().draw(2, np.random.default_rng(0))
    with pytest.raises(ValueError, match="3 images but parameters for 2"):
        RandomFlip().apply(random_images(3, 1, 8, 8), params)
    with pytest.raises(ValueError, match=r"float32 of shape \(2, 3, 8, 8\)"):
        RandomFlip().apply(torch.zeros(2, 3, 8, 8), params)


def test_an_image_of_the_least_side_is_large_enough_for_every_crop() -> None:
    crop = ResizedCrop(32, scale=(0.2, 1.0))
    rng = np.random.default_rng(0)
    for width, height in ((1, 1), (3, 2), (2, 3), (4, 1)):
        scale = crop.least_side / min(width, height)
        boxes = np.array([crop.box(round(width * scale), round(height * scale), row) for row in rng.random((500, 4))])
        sides = boxes[:, 2:] - boxes[:, :2]
        assert sides.min() >= 31.9
    assert crop.least_side < 2.7 * 32  # and not much larger than that
