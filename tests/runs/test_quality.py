"""Quality levels: what a word means on this machine, and what it says if weights cannot be had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import selftrain
from selftrain.config.resolve import make_settings
from selftrain.console import Reporter
from selftrain.errors import UserError
from selftrain.nn import quality
from selftrain.nn.backbones import build_backbone
from selftrain.runs import arguments
from selftrain.runs.arguments import with_quality
from tests import folders

VIT = "vit_small_patch14_reg4_dinov2.lvd142m"


@pytest.fixture(autouse=True)
def no_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "why_not_bf16", lambda engine, device: "the processor has no such numbers")


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Backbones that cannot be had, and why."""
    reasons: dict[str, str] = {}
    monkeypatch.setattr(quality, "why_not", lambda name: reasons.get(name, ""))
    return reasons


def test_a_level_takes_the_first_backbone_that_can_be_had(missing: dict[str, str]) -> None:
    for choice in quality.LEVELS["balanced"]:
        chosen = quality.choose("balanced")
        assert (chosen.choice, dict(chosen.missed)) == (choice, missing)
        missing[choice.backbone] = "there is no network"
    with pytest.raises(UserError, match="no weights are available"):
        quality.choose("balanced")
    del missing["lite0"]
    assert quality.choose("best").choice.backbone == "vit_base_patch14_reg4_dinov2.lvd142m"
    missing["vit_base_patch14_reg4_dinov2.lvd142m"] = "there is no network"
    assert quality.choose("best").choice.backbone == "lite0"  # lite0+lite2 needs both


def test_levels_cost_more_and_more() -> None:
    fast, balanced, best = (choices[-1] for choices in quality.LEVELS.values())
    assert fast.size < balanced.size <= best.size


def test_a_run_announces_and_records_what_was_chosen(tmp_path: Path, missing: dict[str, str]) -> None:
    missing[VIT] = "the hub is unreachable"
    lines: list[str] = []
    reporter = Reporter(quiet=True)
    reporter.say = lambda text, style="": lines.append(text)  # type: ignore[method-assign]
    named = with_quality("balanced", {"data.size": 64, "regime": None}, {"data.strong_views": 3}, reporter)
    assert named == {
        "data.size": 64, "regime": "frozen", "network.backbone": "lite2", "data.weak_views": 1,
    }  # fmt: skip
    assert lines == [
        f"quality balanced: {quality.LEVELS['balanced'][1]}; {VIT} would be better, but the hub is unreachable"
    ]


@pytest.mark.parametrize(
    ("given", "expected"), [({}, "bf16"), ({"data.precision": "32"}, None), ({"data.engine": "torch"}, None)]
)
def test_levels_compute_with_16_bits_where_they_can(
    monkeypatch: pytest.MonkeyPatch, missing: dict[str, str], given: dict[str, Any], expected: str | None
) -> None:
    monkeypatch.setattr(arguments, "why_not_bf16", lambda engine, device: "" if engine == "auto" else "no")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert with_quality("fast", {}, given, Reporter(quiet=True)).get("data.precision") == expected


@pytest.mark.parametrize("line", ["engine: torch", "precision: '32'"])
def test_a_config_says_how_numbers_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: dict[str, str], line: str
) -> None:
    monkeypatch.setattr(arguments, "why_not_bf16", lambda engine, device: "" if engine == "auto" else "no")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "config.yaml").write_text(f"data:\n  {line}\n")
    assert "data.precision" not in with_quality("fast", {}, {}, Reporter(quiet=True), tmp_path / "config.yaml")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quality": "good"}, "quality 'good': choose fast, balanced, best"),
        ({"quality": "fast", "backbone": "lite0"}, r"conflicts with network\.backbone=lite0"),
        ({"quality": "fast", "regime": "scratch"}, "levels are for frozen backbones"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    data = folders.layout_2(tmp_path / "data")
    with pytest.raises(UserError, match=message):
        selftrain.train(data, labels_per_class=2, out=tmp_path / "run", quiet=True, **options)
    assert not (tmp_path / "run").exists()


def test_networks_of_patches_take_sizes_that_are_multiples_of_a_patch() -> None:
    settings = make_settings("frozen", {"network.backbone": VIT, "data.path": "photos", "data.size": 224})
    backbone = build_backbone(VIT, weights="none", size=settings.data.size)
    assert backbone.dim == 384
    with pytest.raises(UserError, match=r"`size=128`: backbone .* does not accept it"):
        build_backbone(VIT, weights="none", size=128)
