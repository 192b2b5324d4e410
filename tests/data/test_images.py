"""Reading, finding, holding and checking images, with real small files."""

from __future__ import annotations

import logging
import os
import pickle
import random
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from selftrain.data.images import (
    IMAGE_SUFFIXES,
    ArrayImages,
    FileImages,
    UnreadableImage,
    check_images,
    find_images,
    read_image,
)
from selftrain.errors import UserError
from tests.processes import DEADLINE


def grey_ramp(width: int = 16, height: int = 8) -> np.ndarray:
    return np.tile(np.linspace(0, 255, width).astype(np.uint8), (height, 1))


def halves(left: tuple[int, ...], right: tuple[int, ...], mode: str = "RGB", size: int = 16) -> Image.Image:
    image = Image.new(mode, (size, size), left)
    image.paste(right, (size // 2, 0, size, size))
    return image


def colour_at(image: Image.Image, x: float, y: float) -> tuple[int, ...]:
    pixel = image.convert("RGB").getpixel((int(x * (image.width - 1)), int(y * (image.height - 1))))
    assert isinstance(pixel, tuple)
    return pixel


def close(a: tuple[int, ...], b: tuple[int, ...], within: int = 6) -> bool:
    return all(abs(x - y) <= within for x, y in zip(a, b, strict=True))


# --- read_image ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [suffix for suffix in IMAGE_SUFFIXES if suffix != ".pgm"])
def test_every_format_reads_as_rgb_and_grey(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    halves((200, 30, 30), (30, 30, 200)).save(path)
    image = read_image(path)
    assert (image.mode, image.size) == ("RGB", (16, 16))
    assert close(colour_at(image, 0, 0.5), (200, 30, 30), 40)
    assert close(colour_at(image, 1, 0.5), (30, 30, 200), 40)
    assert read_image(path, "L").mode == "L"


def test_another_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'RGB' or 'L'"):
        read_image(tmp_path / "a.png", "RGBA")
    with pytest.raises(ValueError, match="'RGB' or 'L'"):
        ArrayImages(np.zeros((1, 2, 2), np.uint8)).load(0, "RGBA")


def test_grey_jpeg(tmp_path: Path) -> None:
    Image.fromarray(grey_ramp()).save(tmp_path / "a.jpg")
    image = read_image(tmp_path / "a.jpg")
    assert image.mode == "RGB"
    assert np.abs(np.asarray(image).astype(int) - grey_ramp()[..., None]).max() < 12


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize("suffix", ["png", "webp"])
def test_alpha_lies_on_white(tmp_path: Path, mode: str, suffix: str) -> None:
    image = halves((0, 0, 0, 255), (0, 0, 0, 0), "RGBA").convert(mode)
    image.save(tmp_path / f"a.{suffix}", lossless=True)
    for wanted in ("RGB", "L"):
        read = read_image(tmp_path / f"a.{suffix}", wanted)
        assert read.mode == wanted
        assert colour_at(read, 0, 0.5) == (0, 0, 0)
        assert colour_at(read, 1, 0.5) == (255, 255, 255)


def test_half_transparent_is_half_way_to_white(tmp_path: Path) -> None:
    Image.new("RGBA", (4, 4), (0, 0, 0, 128)).save(tmp_path / "a.png")
    assert colour_at(read_image(tmp_path / "a.png"), 0, 0) == (127, 127, 127)


@pytest.mark.parametrize("mode", ["P", "L", "RGB", "1"])
def test_a_transparent_colour_lies_on_white(tmp_path: Path, mode: str) -> None:
    image = halves((0, 0, 0), (255, 0, 0) if mode != "1" else (255, 255, 255)).convert(mode)
    if mode == "P":
        image = halves((0, 0, 0), (255, 0, 0)).quantize(2)
        black = image.getpixel((0, 0))
        alphas = bytes(0 if i == black else 255 for i in range(2))
        image.save(tmp_path / "a.png", transparency=alphas)
    else:
        image.save(tmp_path / "a.png", transparency=(0, 0, 0) if mode == "RGB" else 0)
    read = read_image(tmp_path / "a.png")
    assert colour_at(read, 0, 0.5) == (255, 255, 255)
    assert colour_at(read, 1, 0.5) != (0, 0, 0)


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_16_bit_grey_is_scaled_not_clipped(tmp_path: Path, suffix: str) -> None:
    values = np.array([[0, 255, 256, 32768, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / f"a.{suffix}", **({"format": "PPM"} if suffix == "pgm" else {}))
    assert np.asarray(read_image(tmp_path / f"a.{suffix}", "L")).tolist() == [[0, 0, 1, 128, 255]]
    assert np.asarray(read_image(tmp_path / f"a.{suffix}"))[0, 3].tolist() == [128, 128, 128]


def test_16_bit_grey_with_a_transparent_value(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 30000]], np.uint16)).save(tmp_path / "a.png", transparency=0)
    assert np.asarray(read_image(tmp_path / "a.png", "L")).tolist() == [[255, 30000 >> 8]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0.0, 0.5, 1.0]], np.float32), [0, 128, 255]),
        (np.array([[0.0, 100.0, 255.0]], np.float32), [0, 100, 255]),
        (np.array([[-10.0, 490.0, 990.0]], np.float32), [0, 128, 255]),
        (np.array([[0.0, np.nan, 1.0]], np.float32), [0, 0, 255]),
        (np.array([[7.0, 7.0, 7.0]], np.float32), [7, 7, 7]),
        (np.array([[0, 100, 255]], np.int32), [0, 100, 255]),
        (np.array([[0, 32768, 65535]], np.int32), [0, 128, 255]),
        (np.array([[0, 500_000, 1_000_000]], np.int32), [0, 128, 255]),
    ],
)
def test_wide_tiffs_are_scaled(tmp_path: Path, values: np.ndarray, expected: list[int]) -> None:
    Image.fromarray(values).save(tmp_path / "a.tif")
    assert np.asarray(read_image(tmp_path / "a.tif", "L"))[0].tolist() == expected


def test_cmyk(tmp_path: Path) -> None:
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "a.jpg")
    assert close(colour_at(read_image(tmp_path / "a.jpg"), 0.5, 0.5), (255, 0, 0))
    assert read_image(tmp_path / "a.jpg", "L").mode == "L"


@pytest.mark.parametrize("suffix", ["gif", "webp", "png"])
def test_an_animation_gives_its_first_frame(tmp_path: Path, suffix: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ((250, 0, 0), (0, 250, 0), (0, 0, 250))]
    frames[0].save(tmp_path / f"a.{suffix}", save_all=True, append_images=frames[1:], duration=50)
    with Image.open(tmp_path / f"a.{suffix}") as written:
        assert getattr(written, "n_frames", 1) == 3
    image = read_image(tmp_path / f"a.{suffix}")
    assert (image.mode, image.size) == ("RGB", (8, 8))
    assert close(colour_at(image, 0.5, 0.5), (250, 0, 0), 10)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path: Path, suffix: str, orientation: int) -> None:
    # Upright: red top left, green top right, blue bottom left, white bottom right; wider than high.
    upright = np.zeros((32, 64, 3), np.uint8)
    upright[:16, :32], upright[:16, 32:] = (255, 0, 0), (0, 255, 0)
    upright[16:, :32], upright[16:, 32:] = (0, 0, 255), (255, 255, 255)
    # The stored pixels, from the definition of the eight orientations.
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: upright.transpose(1, 0, 2)[::-1],
        7: upright.transpose(1, 0, 2)[::-1, ::-1],
        8: upright.transpose(1, 0, 2)[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(stored)).save(tmp_path / f"a.{suffix}", exif=exif)
    read = read_image(tmp_path / f"a.{suffix}")
    assert read.size == (64, 32)
    for x, y, colour in ((0, 0, (255, 0, 0)), (1, 0, (0, 255, 0)), (0, 1, (0, 0, 255)), (1, 1, (255, 255, 255))):
        assert close(colour_at(read, x, y), colour, 12)
    assert read.info == {}


def test_broken_exif_does_not_matter(tmp_path: Path) -> None:
    halves((9, 9, 9), (200, 200, 200)).save(tmp_path / "a.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xff\xff")
    assert read_image(tmp_path / "a.jpg").size == (16, 16)


@pytest.mark.parametrize(
    ("min_side", "expected"),
    [(None, (400, 300)), (300, (400, 300)), (151, (400, 300)), (150, (200, 150)), (40, (100, 75))],
)
def test_a_large_jpeg_is_decoded_at_reduced_scale(
    tmp_path: Path, min_side: int | None, expected: tuple[int, int]
) -> None:
    Image.new("RGB", (400, 300), (10, 100, 200)).save(tmp_path / "a.jpg")
    Image.new("RGB", (400, 300), (10, 100, 200)).save(tmp_path / "a.png")
    image = read_image(tmp_path / "a.jpg", min_side=min_side)
    assert image.size == expected
    assert close(colour_at(image, 0.5, 0.5), (10, 100, 200))
    assert read_image(tmp_path / "a.png", min_side=min_side).size == (400, 300)


def corrupt_files(folder: Path) -> dict[str, str]:
    """Name and a word of the reason."""
    folder.mkdir(parents=True, exist_ok=True)
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    expected = {}
    for suffix in ("jpg", "png", "webp", "gif", "tif", "bmp", "ppm"):
        noise.save(folder / f"whole.{suffix}")
        content = (folder / f"whole.{suffix}").read_bytes()
        (folder / f"whole.{suffix}").unlink()
        (folder / f"cut.{suffix}").write_bytes(content[: len(content) // 2])
        expected[f"cut.{suffix}"] = ""
    (folder / "empty.png").write_bytes(b"")
    (folder / "text.jpg").write_text("this is no image")
    (folder / "postscript.png").write_text(
        "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
    )
    return expected | {"empty.png": "0 bytes", "text.jpg": "not an image", "postscript.png": "not an image"}


def test_unreadable_files_say_why(tmp_path: Path) -> None:
    for name, word in corrupt_files(tmp_path).items():
        with pytest.raises(UnreadableImage) as caught:
            read_image(tmp_path / name)
        error = caught.value
        assert error.path == str(tmp_path / name)
        assert word in error.reason
        assert str(error) == f"{error.path}: {error.reason}"
        assert "\n" not in str(error)
        assert isinstance(error, UserError)
        again = pickle.loads(pickle.dumps(error))
        assert (again.path, again.reason, again.index) == (error.path, error.reason, None)
    with pytest.raises(UnreadableImage, match="truncated"):
        read_image(tmp_path / "cut.jpg")
    with pytest.raises(UnreadableImage, match="no such file"):
        read_image(tmp_path / "missing.png")
    with pytest.raises(UnreadableImage, match="it is a folder"):
        read_image(tmp_path)


def test_a_decompression_bomb_is_unreadable_and_a_large_image_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("L", (40, 40)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)  # Pillow warns above it, and refuses above twice as much
    assert read_image(tmp_path / "a.png").size == (40, 40)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 700)
    with pytest.raises(UnreadableImage, match="decompression bomb"):
        read_image(tmp_path / "a.png")


def test_memory_errors_are_not_blamed_on_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("L", (4, 4)).save(tmp_path / "a.png")

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Image.Image, "convert", fail)
    with pytest.raises(MemoryError):
        read_image(tmp_path / "a.png")


def test_warnings_do_not_leak_and_filters_are_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("L", (40, 40)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        threads = [
            threading.Thread(target=lambda: [read_image(tmp_path / "a.png") for _ in range(50)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()
        assert warnings.filters == before
        with Image.open(tmp_path / "a.png"):
            pass
    assert [w.category for w in caught] == [Image.DecompressionBombWarning]  # the one from outside
    assert logging.getLogger("PIL").handlers


# --- find_images --------------------------------------------------------------------------------------------------


def test_find_images_is_recursive_sorted_and_leaves_out_what_is_hidden(tmp_path: Path) -> None:
    wanted = ["B.JPG", "a.png", "deep/er/x.WebP", "deep/y.tiff", "z b/ü.gif"]
    hidden = [".a.png", "._B.JPG", ".git/a.png", "__MACOSX/a.png", "deep/.cache/x.png", "Thumbs.db", "notes.txt", "png"]
    for name in wanted + hidden:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.png").mkdir()
    assert find_images(tmp_path) == sorted(wanted)
    assert find_images(str(tmp_path / "deep")) == ["er/x.WebP", "y.tiff"]


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs links")
def test_find_images_follows_links_but_not_in_circles(tmp_path: Path) -> None:
    (tmp_path / "data/a").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data/a/1.png").touch()
    (tmp_path / "elsewhere/2.png").touch()
    (tmp_path / "data/up").symlink_to(tmp_path / "data")
    (tmp_path / "data/a/up").symlink_to(tmp_path / "data")
    (tmp_path / "data/b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data/c").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data/self.png").symlink_to(tmp_path / "data/self.png")
    (tmp_path / "data/dangling.png").symlink_to(tmp_path / "nowhere.png")
    assert find_images(tmp_path / "data") == ["a/1.png", "b/2.png", "c/2.png", "dangling.png", "self.png"]
    for name in ("dangling.png", "self.png"):
        with pytest.raises(UnreadableImage):
            read_image(tmp_path / "data" / name)


def test_find_images_in_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere.*cannot be listed"):
        find_images(tmp_path / "nowhere")


# --- Images -------------------------------------------------------------------------------------------------------


def test_file_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(4):
        Image.new("RGB", (4, 4), (i * 10, 0, 0)).save(tmp_path / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    images = FileImages(".", find_images("."))
    monkeypatch.chdir("/")  # the root is kept as an absolute path
    assert len(images) == 4
    assert images.names == ["0.png", "1.png", "2.png", "3.png"]
    assert colour_at(images.load(2), 0, 0) == (20, 0, 0)
    assert images.load(2, "L").mode == "L"
    part = images.subset(np.array([3, 1]))
    assert part.names == ["3.png", "1.png"]
    assert colour_at(part.load(0), 0, 0) == (30, 0, 0)
    assert images.subset(np.array([True, False, False, True])).names == ["0.png", "3.png"]
    assert images.subset([]).names == []
    with pytest.raises(IndexError):
        images.subset([4])
    with pytest.raises(IndexError):
        images.subset([True])


def test_file_images_pickle_small() -> None:
    names = [f"unlabeled/folder {i % 7}/image-{i:06d}.jpg" for i in range(20_000)]
    images = FileImages("/data", names)
    content = pickle.dumps(images)
    assert len(content) < sum(map(len, names)) + len(names) + 500
    again = pickle.loads(content)
    assert (again.root, again.names) == (images.root, names)
    assert pickle.loads(pickle.dumps(images.subset([]))).names == []


@pytest.mark.parametrize("shape", [(3, 5, 7), (3, 5, 7, 1), (3, 5, 7, 3), (3, 1, 5, 7), (3, 3, 5, 7)])
def test_array_images_take_the_usual_shapes(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    images = ArrayImages(array)
    channels = 3 if 3 in (shape[1], shape[-1]) else 1
    assert images.pixels.shape == (3, channels, 5, 7)
    assert images.pixels.dtype == np.uint8
    assert images.pixels.flags.c_contiguous
    assert images.names == ["0", "1", "2"]
    for i in range(3):
        expected = (
            images.pixels[i].transpose(1, 2, 0) if channels == 3 else images.pixels[i].repeat(3, 0).transpose(1, 2, 0)
        )
        assert np.array_equal(np.asarray(images.load(i)), expected)
        assert images.load(i, "L").mode == "L"


def test_array_images_can_be_shared_with_tensors() -> None:
    array = np.zeros((3, 1, 5, 7), np.uint8)
    assert np.shares_memory(ArrayImages(array).pixels, array)
    array.setflags(write=False)
    assert ArrayImages(array).pixels.flags.writeable


def test_array_images_take_floats_from_0_to_1() -> None:
    images = ArrayImages(np.array([[[0.0, 0.5, 1.0]]], np.float32).repeat(1500, 0))
    assert images.pixels[1499, 0, 0].tolist() == [0, 128, 255]
    assert images.names[0] == "0000"


@pytest.mark.parametrize(
    ("array", "match"),
    [
        (np.zeros((4, 64), np.uint8), r"\(4, 64\), uint8"),
        (np.zeros((4, 5, 6, 7), np.uint8), r"\(4, 5, 6, 7\), uint8"),
        (np.zeros((4, 5, 6), np.int64), r"uint8 .* or floats.*int64"),
        (np.zeros((4, 0, 6), np.uint8), r"one pixel.*\(4, 0, 6\)"),
        (np.full((4, 5, 6), 255.0), r"between 0 and 1, these range from 255 to 255.*float64"),
        (np.full((4, 5, 6), -0.1), r"from -0.1"),
        (np.full((4, 5, 6), np.nan), r"nan"),
    ],
)
def test_array_images_refuse_the_rest(array: np.ndarray, match: str) -> None:
    with pytest.raises(UserError, match=match):
        ArrayImages(array)


def test_array_images_names_and_subset() -> None:
    array = np.arange(4 * 2 * 2, dtype=np.uint8).reshape(4, 2, 2)
    images = ArrayImages(array, ["a", "b", "c", "d"])
    part = images.subset([2, 0])
    assert part.names == ["c", "a"]
    assert np.array_equal(part.pixels[:, 0], array[[2, 0]])
    assert part.pixels.flags.c_contiguous
    assert images.subset([1, 1]).names == ["b", "b"]
    assert images.subset(range(4)).pixels is images.pixels
    assert images.subset(array[:, 0, 0] > 4).names == ["c", "d"]
    assert np.array_equal(pickle.loads(pickle.dumps(images)).pixels, images.pixels)
    with pytest.raises(UserError, match="3 names for 4 images"):
        ArrayImages(array, ["a", "b", "c"])
    with pytest.raises(UserError, match="same name"):
        ArrayImages(array, ["a", "b", "c", "a"])


# --- check_images -------------------------------------------------------------------------------------------------


def test_check_images_returns_the_unreadable_ones_in_order(tmp_path: Path) -> None:
    expected = set(corrupt_files(tmp_path))
    for i in range(30):
        Image.new("RGB", (8, 8)).save(tmp_path / f"good{i}.{('png', 'jpg')[i % 2]}")
    images = FileImages(tmp_path, find_images(tmp_path))
    calls: list[tuple[int, int]] = []
    bad = check_images(images, strict=False, progress=lambda done, total: calls.append((done, total)))
    assert [error.index for error in bad] == sorted(error.index or 0 for error in bad)
    assert {images.names[error.index or 0] for error in bad} == expected
    assert calls == sorted(calls)
    assert calls[-1] == (len(images), len(images))
    headers = {images.names[error.index or 0] for error in check_images(images, strict=False, full=False)}
    assert {"empty.png", "text.jpg"} <= headers < expected


def test_check_images_strict_stops_at_the_first(tmp_path: Path) -> None:
    for i in range(40):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{i:02d}.png")
    for i in (7, 30):
        (tmp_path / f"{i:02d}.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"07\.png: it is empty.*`strict`"):
        check_images(FileImages(tmp_path, find_images(tmp_path)), strict=True, workers=3)


def test_check_images_of_arrays_and_of_none() -> None:
    calls: list[tuple[int, int]] = []
    images = ArrayImages(np.zeros((5, 2, 2), np.uint8))
    assert check_images(images, strict=True, progress=lambda *call: calls.append(call)) == []
    assert calls == [(5, 5)]
    assert check_images(FileImages("/", []), strict=True) == []


@pytest.mark.parametrize("progressive", [False, True])
def test_the_quick_check_of_a_jpeg_agrees_with_reading_it(tmp_path: Path, progressive: bool) -> None:
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (48, 80, 3), np.uint8))
    noise.save(tmp_path / "a.jpg", progressive=progressive)
    content = (tmp_path / "a.jpg").read_bytes()
    images = FileImages(tmp_path, ["a.jpg"])
    cuts = [*random.Random(0).sample(range(len(content)), 60), *range(len(content) - 4, len(content) + 1)]
    outcomes = set()
    for cut in cuts:
        (tmp_path / "a.jpg").write_bytes(content[:cut])
        checked = bool(check_images(images, strict=False))
        try:
            images.load(0)
        except UnreadableImage:
            assert checked
        else:
            assert not checked
        outcomes.add(checked)
    assert outcomes == {True, False}


@pytest.mark.long
def test_importing_is_light() -> None:
    # The packages around them may import more: stand-ins show what these three modules themselves ask for.
    code = """
import importlib.util, sys, types
for name in ("selftrain", "selftrain.data"):
    package = types.ModuleType(name)
    package.__path__ = list(importlib.util.find_spec("selftrain").submodule_search_locations)
    if name != "selftrain":
        package.__path__ = [path + "/data" for path in sys.modules["selftrain"].__path__]
    else:
        package.__spec__ = importlib.util.find_spec("selftrain")
    sys.modules[name] = package
import selftrain.data.split
print({"torch", "torchvision", "sklearn"} & set(sys.modules))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, timeout=DEADLINE
    )
    assert done.stdout.strip() == "set()"


def test_a_single_colour_image_is_not_mistaken_for_several() -> None:
    with pytest.raises(UserError, match=r"a single colour image .*pass x\[None\]"):
        ArrayImages(np.zeros((20, 30, 3), np.uint8))
    assert len(ArrayImages(np.zeros((1, 20, 30, 3), np.uint8))) == 1
