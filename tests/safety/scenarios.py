"""The commands that faults are injected into: small runs and an extraction, and what they must always leave.

Knows nothing of faults, apart from the kill that leaves half a run.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.safety.forks import CHANGE, DIE, Fault, in_a_fork


@dataclass(frozen=True)
class Scenario:
    """A command, the folder it begins with, and what it leaves that must always be the same."""

    words: Callable[[Path], list[str]]
    outcome: Callable[[Path], dict[str, str]]
    prepare: Callable[[Path], None]
    resumes: bool


SETTINGS = {
    "train.batch": 2, "train.unlabeled_batch": 2, "train.eval_every": 60, "train.checkpoint_every": 30,
    "train.threads": 1, "data.workers": 0,
}  # fmt: skip
FEW_PARTS = {"data.screen": "false", "data.prior": "labels", "train.guard": "none"}


def _train(case: Path, data: str, *more: str, parts: dict[str, str] = FEW_PARTS) -> list[str]:
    settings = [word for name, value in (SETTINGS | parts).items() for word in ("--set", f"{name}={value}")]
    short = ["--steps", "60", "--seed", "5", "--quiet"]
    return ["train", f"{case}/{data}", "--out", f"{case}/run", "--method", "pseudo_label", *short, *settings, *more]


def _features(case: Path) -> None:
    rng, y = np.random.default_rng(0), np.arange(12) % 3
    names = [f"{i:02}.png" for i in range(12)]
    np.savez(case / "x.npz", features=(2 * np.eye(6)[y] + rng.normal(size=(12, 6))).astype(np.float32), names=names)
    (case / "labels.csv").write_text("path,label\n" + "".join(f"{names[i]},{y[i]}\n" for i in range(7)))


def _images(case: Path, train: int = 2) -> None:
    from tests.folders import CLASSES, fill

    for part, count in (("train", train), ("test", 1)):
        fill(case / "data" / part, dict.fromkeys(CLASSES, count), side=8)


def _images_and_weights(case: Path) -> None:
    import safetensors.torch
    import torch

    from selftrain.nn.backbones import build_backbone

    _images(case)
    torch.manual_seed(0)
    safetensors.torch.save_file(build_backbone("wrn-tiny", weights="none", size=8).state_dict(), case / "w.safetensors")


def run_outcome(case: Path) -> dict[str, str]:
    """Return hashes of all that a run found, without times."""
    from selftrain.engine.checkpoint import load_checkpoint

    run = case / "run"

    def timeless(row: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in row.items() if name not in ("seconds", "steps_per_second")}

    state = load_checkpoint(run / "checkpoints")
    assert state is not None
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return {
        "weights": _sha((run / "model/model.safetensors").read_bytes()),
        "metrics": _sha(json.dumps([timeless(json.loads(line)) for line in lines]).encode()),
        "results": _sha(json.dumps(timeless(json.loads((run / "results.json").read_text()))).encode()),
        "outputs": _arrays(run / "outputs.npz"),
        "checkpoint": _sha(b"".join(value.numpy().tobytes() for value in state["net"].values())),
    }


def _arrays(path: Path) -> str:
    with np.load(path, allow_pickle=False) as file:
        return _sha(b"".join(name.encode() + file[name].tobytes() for name in sorted(file.files)))


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _frozen(case: Path) -> list[str]:
    return _train(case, "x.npz", "--labels", f"{case}/labels.csv", "--set", "network.bottleneck=8")


def _half(case: Path) -> None:
    """Prepare a run that was killed after its first checkpoint: the same one for all cases."""
    kept = case.parent / "half"
    if not kept.exists():
        _features(case)
        in_a_fork(_frozen(case), case, Fault(CHANGE, DIE), 60)
        assert (case / "run/checkpoints/last.json").exists()
        shutil.copytree(case, kept)
    shutil.copytree(kept, case, dirs_exist_ok=True)


SCENARIOS = {
    "frozen": Scenario(_frozen, run_outcome, _features, resumes=True),
    "resume": Scenario(lambda case: [*_frozen(case), "--resume"], run_outcome, _half, resumes=False),
    "scratch": Scenario(
        lambda case: _train(case, "data", "--regime", "scratch", "--backbone", "wrn-tiny", "--labels-per-class", "1"),
        run_outcome, _images, resumes=True,
    ),
    "guarded": Scenario(
        lambda case: _train(
            case, "data", "--regime", "frozen", "--backbone", "lite0", "--size", "32", "--labels-per-class", "2",
            parts={},
        ),
        run_outcome, lambda case: _images(case, 4), resumes=True,
    ),
    "extraction": Scenario(
        lambda case: [
            "embed", f"{case}/data/train", "-o", f"{case}/out.npz", "--size", "8", "--backbone", "wrn-tiny",
            "--set", f"network.weights={case}/w.safetensors", "--set", "data.engine=torch",
        ],
        lambda case: {"features": _arrays(case / "out.npz")},
        _images_and_weights, resumes=False,
    ),
}  # fmt: skip
