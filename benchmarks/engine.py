"""A whole step of the engine against its floor and against steps with the structure of public implementations.

A step includes augmentation, losses, backward pass, SGD, average and observers. WRN-28-2 at 32 px, 16 labeled and 112
unlabeled images (4 and 28 for the rows of every method).

Knows nothing of how times become ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import nn

from benchmarks import references
from benchmarks.problems import Problem, batch_of, contiguous, floor_of, image_problem, passes_of
from benchmarks.ratios import CLOCK, Apart, Row, Work, take_turns
from selftrain.engine.runtime import compile_networks

WEAK, STRONG = "dst(fixmatch, worst_view=weak)", "dst(fixmatch, worst_view=strong)"
RELEASED = "dst(fixmatch(w_strong=0.1), worst_view={})"  # with strong views of labeled images as well
RESNET: dict[str, Any] = {
    "batch": 8, "unlabeled_batch": 8, "pool": 80, "regime": "finetune", "network.backbone": "resnet50",
    "data.size": 224, "data.crop": "pad",
}  # fmt: skip
EVERY = (
    "supervised", "pseudo_label", "pi_model", "mean_teacher", "vat", "ali", "rat", "uda", "mixmatch", "remixmatch",
    "dash", "flexmatch", "debiasmatch", "self_tuning", "noisy_student", "dividemix", "co_training", "tri_training",
    "mutual_learning", "dst(fixmatch, preset=paper)", "dst(flexmatch)", "dst(mean_teacher)", "dst(dividemix)",
)  # fmt: skip


def parts(problem: Problem) -> list[nn.Module]:
    """Return the modules of a reference step of DST: psi, h, h_pseudo, h'."""
    return [problem.net.psi, problem.net.h, problem.net.parts["h_pseudo"], problem.net.parts["h_worst"]]


def one_pass(spelling: str) -> Callable[[], None]:
    """Return the reference step of FixMatch or DST with all views in one pass."""
    problem = image_problem(spelling)
    l, u = batch_of(problem)
    if spelling == "fixmatch":
        return references.concatenated_fixmatch(problem.net.psi, problem.net.h, l, u)
    return references.concatenated_dst(*parts(problem), l=l, u=u)


def three_passes(**given: Any) -> Callable[[], None]:
    problem = image_problem(RELEASED.format("weak"), **given)
    l, u = batch_of(problem)
    return references.three_pass_dst(*parts(problem), l=l, u=u)


def step_rows() -> list[Row]:
    fixmatch, weak, strong = (image_problem(spelling) for spelling in ("fixmatch", WEAK, STRONG))
    times = take_turns(
        {
            "floor": floor_of(passes := passes_of(fixmatch)),
            "contiguous floor": floor_of(contiguous(passes)),
            "weak floor": floor_of(passes_of(weak)),
            "fixmatch": fixmatch.step,
            "dst, weak": weak.step,
            "dst, strong": strong.step,
            "fixmatch, reference": Apart(partial(one_pass, "fixmatch")),
            "dst, reference": Apart(partial(one_pass, WEAK)),
        },
        CLOCK.rounds(15),
    )
    return [
        times.cost("step / floor, fixmatch", "fixmatch", "floor", 1.08),
        times.cost("step / floor, dst, worst case on strong views", "dst, strong", "floor", 1.08),
        times.cost("step / floor, dst, worst case on weak views", "dst, weak", "weak floor", 1.08),
        times.cost("floor, contiguous / channels-last", "contiguous floor", "floor"),
        times.cost("dst / fixmatch, worst case on strong views", "dst, strong", "fixmatch", 1.07),
        times.cost("dst / fixmatch, worst case on weak views", "dst, weak", "fixmatch"),
        times.gain("reference fixmatch (one pass) / fixmatch", "fixmatch", "fixmatch, reference", 1.75),
        times.gain("reference dst (one pass) / dst, equal work", "dst, weak", "dst, reference", 1.1),
        times.gain("reference dst (one pass) / dst, worst case on strong views", "dst, strong", "dst, reference", 1.75),
        # The gain of a step that costs nothing but its passes.
        times.gain("reference fixmatch (one pass) / floor, fixmatch", "floor", "fixmatch, reference"),
        times.gain("reference dst (one pass) / floor, equal work", "weak floor", "dst, reference"),
        times.gain("reference dst (one pass) / floor, worst case on strong views", "floor", "dst, reference"),
    ]


def three_pass_rows() -> list[Row]:
    """Compare with the structure released for fine-tuning; both sides use strong views of labeled images."""
    weak, strong = (image_problem(RELEASED.format(view)) for view in ("weak", "strong"))
    work: dict[str, Work] = {"weak": weak.step, "strong": strong.step, "three passes": Apart(three_passes)}
    times = take_turns(work, CLOCK.rounds(5))
    return [
        times.gain("reference dst (three passes) / dst, equal work", "weak", "three passes"),
        times.gain("reference dst (three passes) / dst, worst case on strong views", "strong", "three passes"),
    ]


def method_rows() -> Iterator[Row]:
    """Compare every other method with its own passes. They are many, hence a quarter of the images."""
    for spelling in EVERY:
        problem = image_problem(spelling, batch=4, unlabeled_batch=28)
        floor = floor_of(passes_of(problem))
        times = take_turns({"floor": floor, "step": problem.step}, CLOCK.rounds(5))
        yield times.cost(f"step / its passes alone, {spelling}", "step", "floor")


def resnet_rows() -> list[Row]:
    """Compare steps as in fine-tuning: ResNet-50 at 224 px, 8 labeled and 8 unlabeled images, all with gradient."""
    problem = image_problem(RELEASED.format("weak"), **RESNET)
    floor = floor_of(passes_of(problem))
    work: dict[str, Work] = {
        "dst": problem.step,
        "floor": floor,
        "three passes": Apart(partial(three_passes, **RESNET)),
    }
    times = take_turns(work, CLOCK.rounds(7))
    return [
        times.gain("reference dst (three passes) / dst, ResNet-50 at 224 px", "dst", "three passes", 1.2),
        times.gain("reference dst (three passes) / floor, ResNet-50 at 224 px", "floor", "three passes"),
    ]


def compiled_rows() -> list[Row]:
    """Compare steps with and without ``train.compile``; no rows if torch cannot compile."""
    eager, compiled = image_problem("fixmatch"), image_problem("fixmatch")
    if not compile_networks(compiled.net, print):
        return []
    times = take_turns({"eager": eager.step, "compiled": compiled.step}, CLOCK.rounds(7))
    return [times.cost("step with --compile / without, fixmatch", "compiled", "eager")]


def rows() -> Iterator[Row]:
    yield from step_rows()
    if not CLOCK.quick:
        yield from compiled_rows()
        yield from three_pass_rows()
        yield from resnet_rows()
        yield from method_rows()
