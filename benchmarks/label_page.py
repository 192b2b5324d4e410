"""The labeling page as a person meets it: how soon it has suggestions, how fast it answers while a model trains.

    python -m benchmarks.label_page [--photos 2000] [--round 5000] [--many 50000]

Starts ``selftrain label`` on made photos with lite0, first without any stored features and then with them. Then it
labels photos of a middle-sized and of a large folder, and asks the page all the while. 0 photos: not this folder.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

FEW = ["--size", "64"]
"""for large folders, whose extraction is not what is measured"""
ANSWERS, CLASSES = 20, 10
BARS = {"cold start": 60.0, "warm start": 5.0, "round": 10.0, "answer": 0.2, "memory": 2.0}
"""seconds, and GB"""


def photos(folder: Path, n: int, size: tuple[int, int]) -> Path:
    """Write photos of ten kinds: noise around the colours of each."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    kinds = rng.integers(40, 215, (CLASSES, 6, 8, 3))
    for i in range(n):
        rough = np.clip(kinds[i % CLASSES] + rng.normal(0, 25, (6, 8, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(rough).resize(size, Image.Resampling.BICUBIC).save(folder / f"{i:06}.jpg", quality=85)
    return folder


class Served:
    """``selftrain label`` in a process of its own, and requests to it."""

    def __init__(self, folder: Path, cache: Path, more: list[str]):
        words = [sys.executable, "-m", "selftrain", "label", str(folder), "--no-browser", "--quiet"]
        words += ["--backbone", "lite0", *more]
        self.begun = time.monotonic()
        environment = {**os.environ, "SELFTRAIN_CACHE": str(cache)}
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], 120)
        if not ready:
            raise RuntimeError("no address within two minutes")
        host, _, path = self.process.stdout.readline().strip().removeprefix("http://").partition("/")
        self.line, self.path = http.client.HTTPConnection(host, timeout=60), f"/{path}"
        self.seconds: list[float] = []

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the answer to a request, and note how long it took."""
        begun = time.perf_counter()
        text = None if body is None else json.dumps(body)
        kind = {} if body is None else {"Content-Type": "application/json"}
        self.line.request("GET" if body is None else "POST", self.path + path, text, kind)
        answer = self.line.getresponse()
        content = answer.read()
        self.seconds.append(time.perf_counter() - begun)
        if answer.status != 200:
            raise RuntimeError(f"{path}: status {answer.status}: {content[:200]!r}")
        return json.loads(content) if answer.getheader("content-type", "").startswith("application/json") else content

    def until_suggestions(self) -> float:
        """Wait for the first suggestions and return the seconds since the command started."""
        while not self.ask("api/next?n=24")["items"]:
            time.sleep(0.05)
        return time.monotonic() - self.begun

    def label(self, count: int) -> None:
        """Answer for the next photos, one request each, as a person with a keyboard does."""
        for item in self.ask(f"api/next?n={count}")["items"]:
            self.ask(f"thumb/{item['id']}")
            self.ask("api/answers", {"answers": [{"id": item["id"], "label": f"kind {item['id'] % CLASSES}"}]})

    def rounds(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("api/state")["rounds"]
        return found

    def wait_for_round(self, labels: int) -> dict[str, Any]:
        """Ask for what the page shows until the round of so many labels is done, and return it."""
        while not any(one["labels"] >= labels for one in self.rounds()):
            for item in self.ask("api/next?n=24")["items"][:6]:
                self.ask(f"thumb/{item['id']}")
            time.sleep(0.1)
        return next(one for one in self.rounds() if one["labels"] >= labels)

    def memory(self) -> float:
        """Return the largest resident memory of the server and of the process that trains, in GB."""
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False)
        peaks = []
        for pid in [str(self.process.pid), *found.stdout.split()]:
            status = Path(f"/proc/{pid}/status").read_text().splitlines()
            peaks.append(next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1e6)
        return sum(peaks)

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()


def say(what: str, value: float, bar: str) -> bool:
    fine = value <= BARS[bar]
    print(
        f"{what}: {value:.2f}{' GB' if bar == 'memory' else ' s'} (at most {BARS[bar]:g}){'' if fine else ', MISSED'}",
        flush=True,
    )
    return fine


def starts(folder: Path, n: int) -> list[bool]:
    made = photos(folder / "starts", n, (640, 480))
    fine = []
    for what in ("cold", "warm"):
        page = Served(made, folder / "cache", [])
        fine.append(say(f"{what} start on {n:,} photos", page.until_suggestions(), f"{what} start"))
        page.end()
    return fine


def under_training(folder: Path, n: int) -> list[bool]:
    page = Served(photos(folder / f"many-{n}", n, (96, 72)), folder / "cache", FEW)
    page.until_suggestions()
    page.label(2 * CLASSES)
    page.wait_for_round(2 * CLASSES)
    page.seconds.clear()
    page.label(ANSWERS)
    done = page.wait_for_round(2 * CLASSES + ANSWERS)
    seconds, memory = page.seconds, page.memory()
    page.end()
    print(f"{n:,} photos: {len(seconds)} requests, the slowest {max(seconds):.2f} s")
    return [
        say(f"{n:,} photos: median of an answer of the page while training", statistics.median(seconds), "answer"),
        say(f"{n:,} photos: a round after {ANSWERS} new labels", done["seconds"], "round") or n > 5_000,
        say(f"{n:,} photos: memory of both processes", memory, "memory"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=2_000)
    parser.add_argument("--round", type=int, default=5_000)
    parser.add_argument("--many", type=int, default=50_000)
    options = parser.parse_args()
    fine: list[bool] = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made).resolve()
        if options.photos:
            fine += starts(folder, options.photos)
        for n in filter(None, (options.round, options.many)):
            fine += under_training(folder, n)
    sys.exit(0 if all(fine) else 1)


if __name__ == "__main__":
    main()
