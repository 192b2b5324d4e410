"""Kill runs, labeling pages and served models again and again; all must end as if nobody had.

    python -m benchmarks.kill_storm [--kills 100] [--seed 0]

Four of five kills hit runs of eight methods in three regimes. Each run is killed at random moments, resumed, and
compared with an undisturbed one: weights, metrics, results, predictions. The rest hit ``label`` while answers arrive
(what was confirmed must be in the file, nothing else may be) and ``serve`` while it answers (the next server must give
the same answers, and no file may have changed). The seed draws the moments as shares of the time of an undisturbed run;
when a kill arrives in the code depends on the machine.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import http.client
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.warm_commands import Command, small_images, small_weights, warm_up

METHODS = (
    "pseudo_label", "fixmatch", "flexmatch", "mean_teacher", "mixmatch", "dst(fixmatch)", "dst(flexmatch)", "uda",
)  # fmt: skip
REGIMES = ("scratch", "finetune", "frozen")
TIMES = ("seconds", "steps_per_second")


@dataclass
class Storm:
    """Where the cases lie, what is drawn, and what was found."""

    folder: Path
    rng: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    identical: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def note(self, what: str, wrong: str) -> None:
        if wrong:
            self.bad.append(f"{what}: {wrong}")
            print(self.bad[-1], flush=True)
        else:
            self.identical[what.split(",")[0]] += 1


def train_words(folder: Path, method: str, regime: str, out: Path) -> list[str]:
    settings = {
        "train.batch": 2, "train.unlabeled_batch": 2, "train.eval_every": 20, "train.checkpoint_every": 5,
        "train.threads": 1, "data.workers": 0, "data.engine": "torch",
        "network.weights": "none" if regime == "scratch" else folder / "w.safetensors",
    }  # fmt: skip
    more = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return [
        "train", str(folder / "data"), "--out", str(out), "--method", method, "--regime", regime, "--steps", "60",
        "--backbone", "wrn-tiny", "--size", "8", "--labels-per-class", "2", "--seed", "5", "--quiet", *more,
    ]  # fmt: skip


def outcome(run: Path) -> dict[str, str]:
    """Return hashes of all that a run found, without times."""

    def timeless(text: str) -> str:
        return json.dumps({name: value for name, value in json.loads(text).items() if name not in TIMES})

    metrics = "\n".join(timeless(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    parts = {
        "weights": (run / "model/model.safetensors").read_bytes(),
        "metrics": metrics.encode(),
        "results": timeless((run / "results.json").read_text()).encode(),
        "predictions": (run / "outputs.npz").read_bytes(),
    }
    return {name: hashlib.sha256(content).hexdigest() for name, content in parts.items()}


def train_storm(storm: Storm, method: str, regime: str, kills: int) -> None:
    """Kill runs of a method so many times; each must end as the undisturbed one."""
    case = storm.folder / "case"
    shutil.rmtree(case, ignore_errors=True)
    case.mkdir()
    begun = time.monotonic()
    command = Command(train_words(storm.folder, method, regime, case / "whole"), case / "cache-whole", case / "log")
    if command.wait() != 0:
        storm.note(f"train, {method}, {regime}", f"failed without a kill: {(case / 'log').read_text()[-300:]}")
        return
    took, expected, number = time.monotonic() - begun, outcome(case / "whole"), 0
    while kills > 0:
        number += 1
        run, cache = case / f"run{number}", case / f"cache{number}"
        words = train_words(storm.folder, method, regime, run)
        for _ in range(kills + 3):
            more = ["--resume"] if (run / "config.yaml").exists() else []
            command = Command([*words, *more], cache, case / "log")
            code = command.wait(storm.rng.uniform(0.02, 0.9) * took if kills else 300.0)
            if code is not None:
                break
            kills -= command.kill()
            storm.kills["train"] += 1
        wrong = f"exit code {code}: {(case / 'log').read_text()[-300:]}" if code != 0 else ""
        if not wrong:
            found = outcome(run)
            wrong = ", ".join(f"other {name}" for name in expected if found[name] != expected[name])
        storm.note(f"train, {method}, {regime}", wrong)
        if code != 0:
            return


class Page:
    """A page that a command serves, and requests to it."""

    def __init__(self, words: list[str], cache: Path, log: Path):
        self.command = Command([*words, "--no-browser", "--quiet"], cache, log)
        address = self.command.line().removeprefix("http://")
        self.host, _, path = address.partition("/")
        self.path = f"/{path}"

    def ask(self, path: str, body: bytes) -> Any:
        line = http.client.HTTPConnection(self.host, timeout=60)
        try:
            kind = {"Content-Type": "application/json" if body[:1] == b"{" else "application/octet-stream"}
            for _ in range(20):
                line.request("POST", self.path + path, body, kind)
                answer = line.getresponse()
                content = answer.read()
                if answer.status != 503:  # the machine is too busy
                    break
            if answer.status != 200:
                raise RuntimeError(f"{path}: status {answer.status}: {content[:200]!r}")
            return json.loads(content)
        finally:
            line.close()

    def kill_after(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, self.command.kill)
        timer.start()
        return timer


def label_storm(storm: Storm, kills: int) -> None:
    """Kill the labeling page while answers arrive: each that was confirmed must be in the file."""
    photos = storm.folder / "photos"
    shutil.copytree(storm.folder / "data" / "train", photos)
    file = storm.folder / "labels.csv"
    words = ["label", str(photos), "--labels", str(file), "--backbone", "wrn-tiny", "--size", "8"]
    words += ["--set", f"network.weights={storm.folder / 'w.safetensors'}", "--set", "data.engine=torch"]
    names = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.png"))
    confirmed: dict[str, str] = {}
    for _ in range(kills):
        page = Page(words, storm.folder / "cache-label", storm.folder / "label.log")
        timer, sent = page.kill_after(storm.rng.uniform(0.05, 2.0)), ("", "")
        try:
            while True:
                row, label = storm.rng.randrange(len(names)), storm.rng.choice("pqr")
                sent = (names[row], label)
                page.ask("api/answers", json.dumps({"answers": [{"id": row, "label": label}]}).encode())
                confirmed[names[row]] = label
        except (OSError, http.client.HTTPException):
            timer.join()
        storm.kills["label"] += 1
        lines = file.read_text().splitlines() if file.exists() else []
        found = {row["path"]: row["label"] for row in csv.DictReader(lines)}
        allowed = (confirmed, {**confirmed, sent[0]: sent[1]})  # the last may be written, but not confirmed
        wrong = "" if found in allowed else f"{len(found)} answers in the file, {len(confirmed)} were confirmed"
        parts = len(list(storm.folder.glob(".labels.csv.*")))
        wrong = wrong or ("" if parts < 2 else f"{parts} parts of files of killed sessions")
        storm.note("label", wrong)
        confirmed = found


def serve_storm(storm: Storm, kills: int) -> None:
    """Kill a served model while it answers: the next one must answer the same, and no file may change."""
    run = storm.folder / "served"
    command = Command(
        train_words(storm.folder, "fixmatch", "frozen", run), storm.folder / "cache-serve", storm.folder / "log"
    )
    assert command.wait() == 0, (storm.folder / "log").read_text()
    before = _tree(run)
    answers: dict[int, Any] = {}
    images = [path.read_bytes() for path in sorted((storm.folder / "data" / "test").rglob("*.png"))]
    for _ in range(kills):
        page = Page(["serve", str(run)], storm.folder / "cache-serve", storm.folder / "serve.log")
        wrong, number = "", 0
        timer = page.kill_after(storm.rng.uniform(0.05, 2.0))
        try:
            while True:
                place = number % len(images)
                found = page.ask("api/predict", images[place])
                if found != answers.setdefault(place, found):
                    wrong = "another answer than before"
                number += 1
        except (OSError, http.client.HTTPException):
            timer.join()
        storm.kills["serve"] += 1
        storm.note("serve", wrong or ("a file of the run has changed" if _tree(run) != before else ""))


def _tree(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def storm_over(kills: int, seed: int, folder: Path, methods: Sequence[str] = METHODS) -> Storm:
    """Deliver so many kills, and return what became of them."""
    storm = Storm(folder, random.Random(seed))
    small_images(folder / "data", {"train": 4, "test": 2})
    small_weights(folder / "w.safetensors")
    for regime in REGIMES:
        warm_up(train_words(folder, "dst(fixmatch)", regime, folder / f"warm-{regime}"), folder / "cache-warm")
    pairs = [(method, regime) for method in methods for regime in REGIMES]
    pages = max(1, kills // 10)
    label_storm(storm, pages)
    serve_storm(storm, pages)
    rest = kills - 2 * pages
    for i, (method, regime) in enumerate(pairs):
        train_storm(storm, method, regime, rest // len(pairs) + (i < rest % len(pairs)))
        print(f"{sum(storm.kills.values())} kills, {len(storm.bad)} bad", flush=True)
    return storm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), help="methods to train")
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        storm = storm_over(options.kills, options.seed, Path(folder).resolve(), options.methods)
    for what, count in storm.kills.items():
        print(f"{what}: {count} kills; {storm.identical[what]} comparisons identical")
    total, minutes = sum(storm.kills.values()), (time.monotonic() - started) / 60
    print(f"{total} kills, {len(storm.bad)} bad, in {minutes:.1f} minutes")
    sys.exit(1 if storm.bad else 0)


if __name__ == "__main__":
    main()
