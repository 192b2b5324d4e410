"""How many times faster batched augmentation is than torchvision's, picture by picture, on one thread.

Knows nothing of training or decoding: on both sides the pictures are in memory.

    python benchmarks/augment.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision import transforms
from torchvision.transforms.v2.functional import resize, to_pil_image

from selftrain.data.augment import Augmentation, Compose, RandAugment, RandomCrop, RandomFlip

# side, pictures a batch, rounds, how many times faster it must be
CASES = [(32, 448, 25, 10.0), (224, 64, 25, 1.1)]


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(
    name: str, images: Tensor, ours: Augmentation[Any], theirs: Callable[[Any], Any], rounds: int, bar: float
) -> dict[str, Any]:
    """Time both in turn, drawing anew each round; the ratio is the median over rounds of theirs / ours."""
    rng = np.random.default_rng(0)
    pictures = [to_pil_image(image) for image in images]
    times = []
    for _ in range(rounds + 1):
        one = seconds(lambda: ours.apply(images, ours.draw(len(images), rng)))
        other = seconds(lambda: [theirs(picture) for picture in pictures])
        times.append((one, other))
    mine, reference = np.array(times[1:]).T  # without the first, which warms up
    low, ratio, high = np.quantile(reference / mine, [0.25, 0.5, 0.75])
    return {
        "name": f"{name} at {images.shape[-1]} px",
        "ratio": float(ratio),
        "bar": bar,
        "holds": bool(ratio >= bar),
        "median_ms": float(np.median(mine) * 1e3),
        "spread": [float(low), float(high)],
        "images_per_second": float(len(images) / np.median(mine)),
        "reference_images_per_second": float(len(images) / np.median(reference)),
    }


def both(side: int, batch: int, rounds: int, bar: float) -> list[dict[str, Any]]:
    """RandAugment alone (PIL to PIL), and a whole strong view (PIL to tensor), both of two operations of level 10."""
    noise = np.random.default_rng(0).integers(0, 256, (batch, 3, side // 4, side // 4), dtype=np.uint8)
    images = resize(torch.from_numpy(noise), [side, side])  # smooth, as photographs are
    randaugment = transforms.RandAugment(num_ops=2, magnitude=10)
    crop = transforms.RandomCrop(side, padding=side // 8, padding_mode="reflect")
    strong = [transforms.RandomHorizontalFlip(), crop, randaugment, transforms.PILToTensor()]
    return [
        compare("RandAugment", images, RandAugment(), randaugment, rounds, bar),
        compare(
            "flip, crop, RandAugment",
            images,
            Compose((RandomFlip(), RandomCrop(), RandAugment())),
            transforms.Compose(strong),
            rounds,
            bar,
        ),
    ]


def main() -> list[dict[str, Any]]:
    """Print a table and return its rows."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = [row for case in CASES for row in both(*case)]
    finally:
        torch.set_num_threads(threads)
    print(
        f"{'images a second, one thread':36} {'ours':>8} {'torchvision':>12} {'ratio':>6} {'quartiles':>13} {'bar':>5}"
    )
    for row in rows:
        quartiles = "{:.1f} to {:.1f}".format(*row["spread"])
        print(
            f"{row['name']:36} {row['images_per_second']:8,.0f} {row['reference_images_per_second']:12,.0f} "
            f"{row['ratio']:6.1f} {quartiles:>13} {row['bar']:5.1f} {'holds' if row['holds'] else 'FAILS'}"
        )
    return rows


if __name__ == "__main__":
    main()
