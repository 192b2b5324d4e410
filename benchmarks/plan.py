"""What features of very many images cost: CPU time and bytes per image, and from these hours, terabytes and money.

    python -m benchmarks.plan [--images N] [--price PER_CORE_HOUR] [--cores N]

Knows nothing of networks between machines: it measures one core of this one. Images are made JPEG files of 500 x 375
pixels, about 80 kB. CPU time is that of one thread, so other programs on the machine change it little, though not by
nothing: two threads on one physical core are each slower.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.extraction import extractor
from selftrain.data.images import FileImages
from selftrain.runs.ray_extraction import _look

LEVELS = (("lite0", 128), ("lite0", 192), ("lite2", 224))
EACH = 64


def photos(folder: Path, n: int) -> FileImages:
    rng = np.random.default_rng(0)
    names = [f"{i}.jpg" for i in range(n)]
    for name in names:
        rough = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        smooth = np.asarray(rough.resize((500, 375), Image.Resampling.BICUBIC), np.float32)
        noisy = np.clip(smooth + rng.normal(0, 6, (*smooth.shape[:2], 1)), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / name, quality=90)
    return FileImages(folder, names)


def milliseconds(work: Callable[[], object], each: int = EACH) -> float:
    start = time.process_time()
    work()
    return 1e3 * (time.process_time() - start) / each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=float, default=1e9)
    parser.add_argument("--price", type=float, default=0.04, help="of a core for an hour, in your currency")
    parser.add_argument("--cores", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images, warm = photos(folder, EACH), FileImages(folder, [f"{i}.jpg" for i in range(8)])
        size = sum((folder / one).stat().st_size for one in images.names) / EACH
        _look(warm)
        look = milliseconds(lambda: _look(images))
        print(f"{size / 1e3:.0f} kB per file; reading, hashing and decoding once: {look:.1f} ms per image")
        for backbone, side in LEVELS:
            one = extractor("onnx", side, str(folder / "cache"), backbone)
            one.features(warm, ("clean",))
            took = milliseconds(partial(one.features, images, ("clean",)), EACH - len(warm))
            store = sum(file.stat().st_size for file in (folder / "cache" / "features").rglob("*") if file.is_file())
            known = sum(file.stat().st_size for file in (folder / "cache" / "known").iterdir())
            stored = (store + known) / EACH
            hours = options.images * (look + took) / 1e3 / 3600
            print(
                f"{backbone} at {side} px: {took:.1f} ms per image for features of {one.dim} numbers; "
                f"{options.images:,.0f} images: {options.images * size / 1e12:.0f} TB to read, "
                f"{options.images * stored / 1e12:.2f} TB of features, {hours:,.0f} core hours, "
                f"{hours / options.cores:,.1f} hours on {options.cores:,} cores, {hours * options.price:,.0f} in all"
            )
            shutil.rmtree(folder / "cache" / "features")


if __name__ == "__main__":
    main()
