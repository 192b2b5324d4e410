"""Small parts of a step besides its passes (the weight average, FlexMatch's counters), and prediction.

Knows nothing of training.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from benchmarks.problems import image_problem, synthetic_images
from benchmarks.ratios import CLOCK, Row, take_turns
from benchmarks.references import StateDictAverage
from selftrain.data.images import ArrayImages
from selftrain.data.views.image_views import clean_batches
from selftrain.engine.evaluate import probabilities
from selftrain.methods.flexmatch import LearningStatus
from selftrain.nn.average import Average
from selftrain.nn.backbones import build_backbone

CPU = torch.device("cpu")


def average_rows() -> list[Row]:
    """Compare the weight average with one foreach lerp of the same numbers, its tensors ready in lists."""
    rows = []
    for name in ("wrn-28-2", "resnet50"):
        module: nn.Module = build_backbone(name, weights="none", size=32)
        average = Average(module, 0.999)
        theirs = [p.detach() for p in (*module.parameters(), *module.buffers()) if p.is_floating_point()]
        copies = [p.clone() for p in theirs]
        lerp = partial(torch._foreach_lerp_, copies, theirs, 0.001)
        ours, by_state_dict = partial(average.update, module, 5000), StateDictAverage(module).update
        times = take_turns({"lerp": lerp, "ours": ours}, CLOCK.rounds(40, 15), warm_up=3, repeat=100)
        slow = take_turns({"state dict": by_state_dict, "ours": ours}, CLOCK.rounds(20, 8), repeat=5)
        rows.append(times.cost(f"weight average / foreach lerp, {name}", "ours", "lerp", 1.2))
        rows.append(slow.gain(f"weight average by state dict / ours, {name}", "ours", "state dict"))
    return rows


def counter_rows() -> list[Row]:
    """Time FlexMatch's counts, 448 samples at a time, some twice; other implementations recount all at every step."""
    generator = torch.Generator().manual_seed(0)
    small, large = LearningStatus(10_000, 10), LearningStatus(10_000_000, 10)
    batches = []
    for status in (small, large):
        index = torch.randint(len(status.selected), (448,), generator=generator)
        index[:32] = index[32:64]
        batches.append(
            (index, torch.randint(10, (448,), generator=generator), torch.rand(448, generator=generator) < 0.5)
        )
    counted = torch.empty(11, dtype=torch.int64)

    def recount() -> None:
        large.selected[batches[1][0]] = batches[1][1]
        counted.copy_(torch.bincount(large.selected + 1, minlength=11))

    times = take_turns(
        {"small": lambda: small.update(*batches[0]), "large": lambda: large.update(*batches[1])},
        CLOCK.rounds(40, 15),
        warm_up=3,
        repeat=5,
    )
    slow = take_turns({"large": lambda: large.update(*batches[1]), "recount": recount}, CLOCK.rounds(5, 3))
    return [
        times.amount("FlexMatch's counters, 10 million samples", "large", 2.0),
        times.cost("FlexMatch's counters, 10 million samples / 10 thousand", "large", "small"),
        slow.gain("recounting all 10 million / ours", "large", "recount"),
    ]


def predict_rows() -> list[Row]:
    """Compare classifying images in memory with the bare network on their tensors, in batches of 256."""
    problem = image_problem("supervised", pool=100)
    model = problem.net.classifier
    images = ArrayImages(synthetic_images(256, 32))
    x = model.psi.normalise(torch.from_numpy(images.pixels))

    def bare() -> None:
        with torch.inference_mode():
            model.eval()(x)

    def whole() -> None:
        for _ in probabilities(model, clean_batches(images, 256, 32, 3, "bilinear"), CPU):
            pass

    times = take_turns({"bare": bare, "whole": whole}, CLOCK.rounds(10))
    return [times.cost("prediction / the bare network, WRN-28-2 at 32 px", "whole", "bare")]


def rows() -> list[Row]:
    return [*average_rows(), *counter_rows(), *predict_rows()]
