"""Every setting does something: a run with another value of it gives other numbers, and a neutral one the same."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import selftrain
from selftrain.config.settings import changes_results, known_settings
from tests.folders import fill, layout_2
from tests.tiny import saved_model

SMALL = {
    "train.steps": 3,
    "train.batch": 6,
    "train.unlabeled_batch": 8,
    "train.eval_every": 3,
    "train.accelerator": "cpu",
}
RESIZED = {"data.crop": "resized"}
BOTTLENECK = {"network.bottleneck": 8}
MLP = {"network.head": "mlp"}
HELD_OUT = {"data.validation_per_class": 2}
EXPONENTIAL = {"optim.schedule": "exponential", "train.steps": 4}
EMA = {"optim.ema": 0.5}
# The other value of each setting, and the settings with which it matters.
FROM_PIXELS: dict[str, tuple[Any, Mapping[str, Any]]] = {
    "method": ("fixmatch(tau=0.0, lam=3)", {}),
    "seed": (1, {}),
    "data.labels_per_class": (2, {}),
    "data.split_seed": (1, {}),
    "data.include_labeled": (False, {}),
    "data.validation_per_class": (2, {}),
    "data.fold": ("1/2", {}),
    "data.evaluate_on": ("validation", HELD_OUT),
    "data.imbalance": (5, {}),
    "data.label_imbalance": (4, {}),
    "data.imbalance_order": ("reversed", {"data.imbalance": 5}),
    "data.size": (12, {}),
    "data.crop": ("resized", {}),
    "data.crop_scale": (0.9, RESIZED),
    "data.clean_crop": (0.5, RESIZED),
    "data.flip": (True, {"data.flip": False}),
    "data.randaugment_n": (1, {}),
    "data.randaugment_m": (30, {}),
    "data.randaugment_jitter": (True, {"data.randaugment_m": 30}),
    "data.cutout": (0.0, {}),
    "network.backbone": ("wrn-28-2", {}),
    "network.bottleneck": (8, {}),
    "network.dropout": (0.1, BOTTLENECK),
    "network.head": ("mlp", {}),
    "network.head_width": (16, MLP),
    "network.bn_momentum": (0.5, {}),
    "network.bn_apart": (True, {}),
    "optim.backbone_lr": (0.5, {}),
    "train.precision": ("bf16-mixed", {}),
}
FROM_FEATURES: dict[str, tuple[Any, Mapping[str, Any]]] = {
    "data.feature_noise": (1.0, {}),
    "data.feature_dropout": (0.5, {}),
    "data.feature_mixup": (0.9, {}),
    "data.prior": ("uniform", {"method": "dst(fixmatch(tau=0.0))", "data.imbalance": 5}),
    "network.unit_features": (False, {}),
    "optim.lr": (0.02, {}),
    "optim.momentum": (0.5, {}),
    "optim.nesterov": (False, {}),
    "optim.weight_decay": (0.1, {}),
    "optim.norm_decay": (False, {"optim.weight_decay": 0.1}),
    "optim.schedule": ("constant", {}),
    "optim.gamma": (1.0, EXPONENTIAL),
    "optim.decay": (3.0, {**EXPONENTIAL, "optim.gamma": 1.0}),
    "optim.clip": (0.001, {}),
    "optim.ema": (0.5, {}),
    "optim.ema_buffers": ("averaged", EMA),
    "train.guard": ("none", {}),
    "train.steps": (4, {}),
    "train.batch": (8, {}),
    "train.unlabeled_batch": (12, {}),
    "train.eval_every": (1, {}),
    "train.checkpoint_every": (1, {}),
}
FROM_STORED_VIEWS: dict[str, tuple[Any, Mapping[str, Any]]] = {
    "data.cache_dtype": ("float32", {}),
    "data.clean_zoom": (0.0, {}),
    "data.weak_views": (1, {}),
    "data.strong_views": (1, {}),
    "data.views_seed": (1, {}),
    "data.junk": (0.4, {"data.junk_from": "{folder}/junk"}),
    "data.junk_from": ("{folder}/more", {"data.junk": 0.4, "data.junk_from": "{folder}/junk"}),
    "data.screen": (False, {"data.junk": 0.6, "data.junk_from": "{folder}/plain"}),
    "data.label_modes": (1, {}),
    "data.check": ("header", {}),
    "data.strict": (True, {}),
    "data.workers": (0, {}),
    "network.save_backbone": (False, {}),
}
# Not seen in a short run on one CPU, and why.
UNSEEN = {
    "regime": "the three kinds of runs are different regimes",
    "data.precision": "some processors: tests/nn/test_onnx_engine.py",
    "network.weights": "tests/nn/test_backbones.py",
    "network.tune": "tests/nn/test_tuning.py",
    "network.lora_rank": "tests/nn/test_tuning.py",
    "network.pixels": "tests/nn/test_onnx_backbone.py",
    "network.sync_bn": "several devices",
    "train.compile": "rounding; a minute to compile",
    "train.channels_last": "rounding, on some machines",
    "train.eval_batch": "rounding",
}


def test_every_setting_that_changes_results_is_tried_or_excused() -> None:
    tried = {*FROM_PIXELS, *FROM_FEATURES, *FROM_STORED_VIEWS}
    assert {name for name in known_settings() if changes_results(name)} <= tried | set(UNSEEN)
    assert not tried & set(UNSEEN)


def test_every_setting_is_read_outside_of_config() -> None:
    package = Path(selftrain.__file__).parent
    files = [path for path in package.rglob("*.py") if path.parent.name != "config"]
    read = {
        node.attr
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
    }
    assert {name for name in known_settings() if name.rpartition(".")[2] not in read} == set()


def outcome(run: selftrain.Run) -> dict[str, Any]:
    """All that a run computed: weights, and the rows of its evaluations."""
    weights = {name: value.numpy().tobytes() for name, value in saved_model(run.folder / "model").state_dict().items()}
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    times = {"seconds", "steps_per_second", "images_per_second"}
    return {"weights": weights, "rows": [{k: v for k, v in row.items() if k not in times} for row in rows]}


class Runs:
    """Short runs of one kind; those with the same settings are made once."""

    def __init__(self, folder: Path, data: Any, usual: Mapping[str, Any], **options: Any):
        self.folder, self.data, self.usual, self.options = folder, data, {**SMALL, **usual}, options
        self.made: dict[str, dict[str, Any]] = {}
        self.new: np.ndarray | None = options["test"][0][:2] if "test" in options else None

    def outcome(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        key = json.dumps(settings, sort_keys=True)
        if key not in self.made:
            here = {
                name: value.replace("{folder}", str(self.folder)) if isinstance(value, str) else value
                for name, value in settings.items()
            }
            given = {"method": "fixmatch(tau=0.0)", "data.labels_per_class": 4, **self.usual, **here}
            run = selftrain.train(
                self.data, out=self.folder / str(len(self.made)), quiet=True, settings=given, **self.options
            )
            self.made[key] = outcome(run)
            if self.new is not None:
                p = run.predict(self.new).probabilities
                assert p.shape == (len(self.new), 3)
                assert np.isfinite(p).all()
        return self.made[key]

    def check(self, name: str, value: Any, beside: Mapping[str, Any]) -> None:
        differ = self.outcome(beside) != self.outcome({**beside, name: value})
        assert differ == changes_results(name)


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    found = load_digits(n_class=3)
    return found.images[:60].astype(np.uint8) * 15, found.target[:60]


@pytest.fixture(scope="module")
def from_pixels(tmp_path_factory: pytest.TempPathFactory, digits: tuple[np.ndarray, np.ndarray]) -> Runs:
    x, y = digits
    usual = {"network.backbone": "wrn-tiny", "optim.ema": 0.0}
    return Runs(tmp_path_factory.mktemp("pixels"), (x[:45], y[:45]), usual, test=(x[45:], y[45:]), regime="scratch")


@pytest.fixture(scope="module")
def from_features(tmp_path_factory: pytest.TempPathFactory, digits: tuple[np.ndarray, np.ndarray]) -> Runs:
    x, y = digits[0].reshape(60, 64).astype(np.float32), digits[1]
    usual = {"network.bottleneck": 16}
    return Runs(tmp_path_factory.mktemp("features"), (x[:45], y[:45]), usual, test=(x[45:], y[45:]))


@pytest.fixture(scope="module")
def from_stored_views(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("views")
    fill(folder / "junk", {"bee": 12}, seed=5)
    fill(folder / "more", {"cat": 12}, seed=6)
    (folder / "plain").mkdir()
    for grey in range(0, 240, 20):  # like none of the classes
        Image.new("RGB", (16, 16), (grey, grey, grey)).save(folder / "plain" / f"{grey}.png")
    usual = {"network.bottleneck": 16, "data.size": 32, "data.cache": str(folder / "cache"), "data.labels_per_class": 2}
    return Runs(folder, layout_2(folder / "data", per_class=4), usual, regime="frozen")


@pytest.mark.long
@pytest.mark.parametrize("name", FROM_PIXELS)
def test_settings_of_a_run_on_pixels(from_pixels: Runs, name: str) -> None:
    from_pixels.check(name, *FROM_PIXELS[name])


@pytest.mark.long
@pytest.mark.parametrize("name", FROM_FEATURES)
def test_settings_of_a_run_on_features(from_features: Runs, name: str) -> None:
    from_features.check(name, *FROM_FEATURES[name])


@pytest.mark.long
@pytest.mark.parametrize("name", FROM_STORED_VIEWS)
def test_settings_of_a_run_on_stored_views(from_stored_views: Runs, name: str) -> None:
    from_stored_views.check(name, *FROM_STORED_VIEWS[name])
