"""Images and folders of strangers neither fill the memory nor block a command."""

from __future__ import annotations

import errno
import json
import os
import re
import struct
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from selftrain.data.images import FileImages, UnreadableImage, check_images, find_images, read_image
from selftrain.data.images.pixel_budget import AT_ONCE, decoding, pixel_limit
from selftrain.data.sources.label_file import read_rows
from selftrain.data.sources.shards import find_shards, index_shards
from selftrain.errors import UserError
from selftrain.files import read_json, read_yaml
from selftrain.runs.layout import RunLayout
from tests.folders import layout_2
from tests.runs.small_runs import train_small


def png(width: int, height: int, colour: int = 0) -> bytes:
    """Return a tiny file that stands for many pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    channels = {0: 1, 2: 3, 6: 4}[colour]
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0))
    packer = zlib.compressobj(9)
    row = bytes(1 + channels * width)
    body = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def test_an_image_with_too_many_pixels_is_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "bomb.png").write_bytes(png(13300, 13400))
    assert (tmp_path / "bomb.png").stat().st_size < 300_000
    Image.new("RGB", (8, 8)).save(tmp_path / "fine.png")
    (bad,) = check_images(FileImages(tmp_path, ["bomb.png", "fine.png"]), strict=False)
    assert bad.index == 0
    assert re.search(r"too many pixels \(13300 x 13400; data\.max_pixels and .* allow 50 million\)", bad.reason)
    with pytest.raises(UnreadableImage, match="too many pixels"):
        read_image(tmp_path / "bomb.png", min_side=256)


def test_the_limit_is_a_setting_that_a_run_restores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = layout_2(tmp_path / "data")
    first = next((data / "train" / "ant").iterdir())
    Image.new("RGB", (40, 40)).save(first)
    run = train_small(data, tmp_path / "run", labels_per_class=2, settings={"data.max_pixels": 1000})
    assert json.loads(RunLayout(run.folder).split.read_text())["skipped"] == [f"train/ant/{first.name}"]
    assert "SELFTRAIN_MAX_PIXELS" not in os.environ
    monkeypatch.setenv("SELFTRAIN_MAX_PIXELS", "a lot")
    with pytest.raises(UserError, match="SELFTRAIN_MAX_PIXELS='a lot': expected a number of pixels"):
        read_image(first)
    with pixel_limit(10), pytest.raises(UnreadableImage, match="too many pixels"):
        read_image(first)


def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size(tmp_path: Path) -> None:
    Image.new("L", (4000, 3000)).save(tmp_path / "photo.jpg")
    with pixel_limit(1_000_000):
        assert read_image(tmp_path / "photo.jpg", min_side=256).size == (500, 375)
        with pytest.raises(UnreadableImage, match="too many pixels"):
            read_image(tmp_path / "photo.jpg")


def test_large_images_are_decoded_one_after_the_other() -> None:
    large, most, now = Image.new("L", (1, AT_ONCE // 2 + 1)), 0, 0
    lock = threading.Lock()

    def decode() -> None:
        nonlocal most, now
        with decoding(large):
            with lock:
                now += 1
                most = max(most, now)
            time.sleep(0.01)
            with lock:
                now -= 1

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == 1


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "I;16", "I", "F"])
def test_strips_give_the_same_pixels(mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    if mode == "P":
        image = Image.fromarray(rng.integers(0, 255, (40, 30, 3), np.uint8)).convert("P")
        image.info["transparency"] = 7
    elif mode in ("RGBA", "LA"):
        image = Image.fromarray(rng.integers(0, 255, (40, 30, len(mode)), np.uint8), mode)
    else:
        dtype = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
        image = Image.fromarray((rng.random((40, 30)) * 3000).astype(dtype))
    path = tmp_path / ("x.tif" if mode in ("I", "F") else "x.png")
    image.save(path)
    whole = np.asarray(read_image(path))
    monkeypatch.setattr("selftrain.data.images.decode.STRIP", 64)
    assert np.array_equal(np.asarray(read_image(path)), whole)


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs the peak memory of a process")
def test_prediction_of_bombs_takes_little_memory(tmp_path: Path) -> None:
    for i in range(4):
        (tmp_path / f"{i}.png").write_bytes(png(7000, 7000, colour=6))  # 49 million pixels each, below the limit
    code = (
        "import re, sys; from concurrent.futures import ThreadPoolExecutor; "
        "from selftrain.data.images import FileImages, find_images; "
        "images = FileImages(sys.argv[1], find_images(sys.argv[1])); pool = ThreadPoolExecutor(4); "
        "list(pool.map(lambda i: images.load(i, min_side=256).resize((8, 8)), range(4))); "
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    said = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, timeout=120)
    assert int(said.stdout) < 1_000_000  # kilobytes


needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")


@needs_pipes
@pytest.mark.timeout(20)
def test_pipes_are_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("a.jpg", "labels.csv", "config.yaml", "results.json", "shard.tar", "metrics.jsonl", "outputs.npz"):
        (tmp_path / name).symlink_to(tmp_path / "pipe")
    (tmp_path / "tty.png").symlink_to("/dev/tty")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    bad = check_images(FileImages(tmp_path, find_images(tmp_path)), strict=False)
    assert [error.index for error in bad] == [0, 1, 2]
    layout = RunLayout(tmp_path)
    for read in (
        lambda: read_rows(tmp_path / "labels.csv"),
        lambda: read_yaml(layout.config, "`config`"),
        lambda: read_json(layout.results),
        layout.read_metrics,
        layout.read_outputs,
        lambda: index_shards([str(tmp_path / "shard.tar")]),
    ):
        with pytest.raises(UserError, match="cannot be read"):
            read()


@pytest.mark.timeout(20)
def test_folders_that_link_to_each_other_are_listed_a_few_times(tmp_path: Path) -> None:
    names = [f"{i:02}" for i in range(12)]
    for name in names:
        (tmp_path / name).mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / name / "x.png")
    for name in names:
        for other in names:
            if name != other:
                (tmp_path / name / other).symlink_to(tmp_path / other)
    found = find_images(tmp_path)
    assert {f"{name}/x.png" for name in names} <= set(found)
    assert len(found) <= 4 * len(names)
    assert found == find_images(tmp_path)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("pattern", ["{0..99999999999}.tar", "{0..999}{0..999}{0..999}.tar", "{1..9999999}.tar"])
def test_patterns_are_bounded(pattern: str) -> None:
    with pytest.raises(UserError, match="stands for more than 1,000,000 files"):
        find_shards(pattern)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [x]\n" + "\n".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]" for i in range(9)),
        "[" * 5000,
        "{a: " * 500,
        "? [x]\n: y\n? {a: b}\n: z",
        "!!python/object/apply:os.system [ls]",
        "x: 2020-99-99",
        "\x00",
        "x: !!binary '%%%'",
        "x: 0x" + "f" * 100_000,
    ],
)
def test_yaml_bombs_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError):
        RunLayout(tmp_path).read_settings()


def test_an_image_is_not_left_out_because_of_a_failing_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a run would go on with other images than the one before it."""
    data = layout_2(tmp_path / "data")

    def fails(path: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr("selftrain.data.images.decode.open_regular", fails)
    with pytest.raises(UserError, match=r"\.png: cannot be read now \(Input/output error\)") as caught:
        read_image(next(data.rglob("*.png")))
    assert not isinstance(caught.value, UnreadableImage)
