"""Features on a Ray cluster of two workers against one process with two threads: total CPU time, once both are warm.

    python -m benchmarks --only cluster [--quick]

Knows nothing of accuracy. Both embed a folder of 20,000 tiny images (32 px, clean view only), where the cost of handing
out work weighs most, after a first folder that starts workers and loads the backbone. All processes are counted: the
one that was started, the workers, and those of Ray.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.ratios import CLOCK, Row
from selftrain.runs.embed import embed

TICK = os.sysconf("SC_CLK_TCK")


def tiny(folder: Path, n: int, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    for i in range(n):
        path = folder / f"{i // 1000:03}" / f"{i:06}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path, compress_level=1)
    return folder


def cpu_seconds() -> float:
    """Return the CPU time of this process and of all processes that it started, directly or not."""
    used: dict[int, tuple[int, float]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            used[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15])) / TICK
    ours = [os.getpid()]
    for known in ours:
        ours += [pid for pid, (parent, _) in used.items() if parent == known]
    return sum(used[pid][1] for pid in ours)


def spent(photos: Path, out: Path, cache: Path, engine: str) -> tuple[float, float]:
    """Return the CPU and wall seconds of embedding a folder."""
    settings = {"data.cache": str(cache), "data.extract_on": engine}
    cpu, wall = cpu_seconds(), time.perf_counter()
    embed(photos, out, size=32, settings=settings)
    return cpu_seconds() - cpu, time.perf_counter() - wall


def rows() -> list[Row]:
    import ray

    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        top = Path(name)
        first, images = tiny(top / "first", 1100, 0), tiny(top / "images", 4000 if CLOCK.quick else 20000, 1)
        time.sleep(3)  # a file that was just written is read again
        for warm_up in (True, False):
            photos = first if warm_up else images
            one = spent(photos, top / "one.npz", top / "cache-one", "local")
            if warm_up:
                before = cpu_seconds()
                os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
                quiet: Any = {"log_to_driver": False, "logging_level": "ERROR"}
                ray.init(num_cpus=2, include_dashboard=False, **quiet)
            there = spent(photos, top / "ray.npz", top / "cache-ray", "ray")
            if warm_up:
                start = cpu_seconds() - before - one[0]
        with np.load(top / "one.npz") as a, np.load(top / "ray.npz") as b:
            same = a["names"].tolist() == b["names"].tolist() and a["features"].tobytes() == b["features"].tobytes()
        ray.shutdown()
    if not same:
        raise SystemExit("the features differ")
    count = 4000 if CLOCK.quick else 20000
    return [
        Row(f"features of {count:,} tiny images on Ray / in one process, CPU time", there[0] / one[0], 1.1),
        Row("the same, wall time", there[1] / one[1]),
        Row("one process, CPU time per image", 1e3 * one[0] / count, kind="ms"),
        Row("starting Ray and its workers, CPU time", start, kind="s"),
    ]
