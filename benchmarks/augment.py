"""How much faster batched RandAugment is than torchvision's, picture by picture, on one thread.

Knows nothing of training: pictures are in memory on both sides, and neither side converts them.

    python benchmarks/augment.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torchvision.transforms import RandAugment as TorchvisionRandAugment
from torchvision.transforms.v2.functional import resize, to_pil_image

from selftrain.data.augment import RandAugment

# side, pictures a batch, rounds, how many times faster it must be (issue 5)
CASES = [(32, 448, 25, 10.0), (224, 64, 15, 1.1)]


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(side: int, batch: int, rounds: int, bar: float) -> dict[str, Any]:
    """Time both in turn, each round with operations drawn anew; the ratio is the median over rounds of theirs / ours."""
    rng = np.random.default_rng(0)
    noise = torch.from_numpy(rng.integers(0, 256, (batch, 3, side // 4, side // 4), dtype=np.uint8))
    images = resize(noise, [side, side])  # smooth, as photographs are
    pictures = [to_pil_image(image) for image in images]
    ours, theirs = RandAugment(n=2, m=10), TorchvisionRandAugment(num_ops=2, magnitude=10)
    times = []
    for _ in range(rounds + 1):
        one = seconds(lambda: ours.apply(images, ours.draw(batch, rng)))
        other = seconds(lambda: [theirs(picture) for picture in pictures])
        times.append((one, other))
    mine, reference = np.array(times[1:]).T  # without the first, which warms up
    low, ratio, high = np.quantile(reference / mine, [0.25, 0.5, 0.75])
    return {
        "name": f"RandAugment at {side} px, times faster than torchvision PIL",
        "ratio": float(ratio),
        "bar": bar,
        "holds": bool(ratio >= bar),
        "median_ms": float(np.median(mine) * 1e3),
        "spread": [float(low), float(high)],
        "images_per_second": float(batch / np.median(mine)),
        "reference_images_per_second": float(batch / np.median(reference)),
    }


def main() -> list[dict[str, Any]]:
    """Print a table and return its rows."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = [compare(*case) for case in CASES]
    finally:
        torch.set_num_threads(threads)
    print(f"{'comparison':56} {'ours/s':>9} {'PIL/s':>7} {'ratio':>6} {'quartiles':>13} {'bar':>5}")
    for row in rows:
        quartiles = "{:.1f} to {:.1f}".format(*row["spread"])
        print(
            f"{row['name']:56} {row['images_per_second']:9,.0f} {row['reference_images_per_second']:7,.0f} "
            f"{row['ratio']:6.1f} {quartiles:>13} {row['bar']:5.1f} {'holds' if row['holds'] else 'FAILS'}"
        )
    return rows


if __name__ == "__main__":
    main()
