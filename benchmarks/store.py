"""The feature store: from the command to the first step of a run whose features are stored, and a million entries.

    python -m benchmarks --only store

Knows nothing of accuracy or of the speed of a backbone.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.ratios import CLOCK, Row

PHOTOS, CLASSES = 5000, 10
ENTRIES, SHARDS = 1_000_000, 100

FIRST_STEP = """
import json, os, sys, time
from selftrain.cli import main
from selftrain.engine.loop import Loop
began = float(sys.argv.pop(1))
def run(self, batches):
    print(json.dumps({"wall": time.time() - began, "cpu": time.process_time()}), flush=True)
    os._exit(0)
Loop.run = run
main()
"""


def photos(folder: Path, n: int) -> None:
    """Write small photos in class folders; their size does not matter once features are stored."""
    rng = np.random.default_rng(0)
    for i in range(n):
        path = folder / "train" / f"class{i % CLASSES}" / f"{i:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (48, 48, 3), dtype=np.uint8)).save(path)


def seconds_to_first_step(data: Path, cache: Path, out: Path) -> dict[str, float]:
    words = ["train", str(data), "--regime", "frozen", "--labels-per-class", "4", "--size", "32", "--quiet"]
    command = [sys.executable, "-c", FIRST_STEP, str(time.time()), *words, "--out", str(out)]
    said = subprocess.run(command, check=True, capture_output=True, env={**os.environ, "SELFTRAIN_CACHE": str(cache)})
    found: dict[str, float] = json.loads(said.stdout.splitlines()[-1])
    shutil.rmtree(out, ignore_errors=True)
    return found


def warm_runs() -> list[Row]:
    """Extract features of photos once, and start runs that find them."""
    clock = "cpu" if CLOCK.cpu else "wall"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        photos(folder / "data", PHOTOS)
        cache, out = folder / "cache", folder / "run"
        time.sleep(3)  # a file that was just written is read again
        for _ in range(2):
            seconds_to_first_step(folder / "data", cache, out)
        warm, added = [], []
        for number in range(CLOCK.rounds(5, 3)):
            warm.append(seconds_to_first_step(folder / "data", cache, out)[clock])
            more = folder / "data" / "train" / "class0" / f"new{number}.jpg"
            pixels = np.random.default_rng(number).integers(0, 256, (3000, 4000, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((40, 30)).resize((4000, 3000)).save(more)
            added.append(seconds_to_first_step(folder / "data", cache, out)[clock])
    more_seconds = float(np.median(np.array(added) - np.array(warm)))
    return [
        Row(f"command to first step, {PHOTOS:,} photos, features stored", float(np.median(warm)), 6, kind="s"),
        Row("the same with one new photo of 12 megapixels, more by", more_seconds, 2, kind="s"),
    ]


MILLION = """
import json, sys, time
from pathlib import Path
import numpy as np
from selftrain.data.features.collection import Collection, Writer, view_id
from selftrain.data.features.store import missing_jobs
from selftrain.data.images.memory import Memory
from selftrain.data.sources.shards import shard_images
from selftrain.engine.estimate import peak_memory
import torch
folder, step = Path(sys.argv[1]), {}
def timed(name, work):
    began = time.perf_counter(), time.process_time()
    found = work()
    step[name] = [time.perf_counter() - began[0], time.process_time() - began[1]]
    return found
images = timed("listing", lambda: shard_images(str(folder / "{00..99}.tar")))
memory = Memory(folder)
contents = timed("hashing", lambda: memory.contents(images))
collection = Collection(folder / "features", {"backbone": "made up"}, 4, np.dtype("float16"))
collection.open()
views = [view_id({"view": str(i)}) for i in range(7)]
if not collection.segments():
    with Writer(collection) as writer:
        for start in range(0, len(contents) - 16, 16):
            writer.add(contents[start : start + 16], views, np.zeros((16, 7, 4)))
def resume():
    files, places = collection.find(contents, views)
    missing_jobs(contents, places < 0, 16)
    return places
places = timed("resuming", resume)
step["missing"] = int((places < 0).any(axis=1).sum())
step["GB"] = peak_memory(torch.device("cpu")) / 1e9
print(json.dumps(step))
"""


def million() -> list[Row]:
    """List, hash and look up a million images in shards: the first time, and again when all of it is known."""
    clock = int(CLOCK.cpu)
    with tempfile.TemporaryDirectory() as name:
        folder, each = Path(name), ENTRIES // SHARDS
        for shard in range(SHARDS):
            with tarfile.open(folder / f"{shard:02}.tar", "w") as tar:
                for i in range(each):
                    content = f"{shard} {i}".encode()
                    info = tarfile.TarInfo(f"{shard:02}{i:06}.jpg")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
        time.sleep(3)
        environment = {**os.environ, "SELFTRAIN_CACHE": name}
        found = []
        for _ in range(2):
            command = [sys.executable, "-c", MILLION, name]
            said = subprocess.run(command, check=True, capture_output=True, env=environment).stdout
            found.append(json.loads(said.splitlines()[-1]))
    steps = ("listing", "hashing", "resuming")
    first, again = (sum(one[step][clock] for step in steps) for one in found)
    return [
        Row(f"listing, hashing, looking up {ENTRIES:,} new images in shards", first, 60, kind="s"),
        Row("the same when all of them are known", again, 60, kind="s"),
        Row("memory of it, at most", max(one["GB"] for one in found), 2, kind="GB"),
    ]


def rows() -> list[Row]:
    return [*million(), *warm_runs()]
