"""A whole step of the engine (augmentation, losses, backward, SGD, average, observers) against the floor below it and
against steps with the structure of public implementations. WRN-28-2 at 32 px, 16 labeled and 112 unlabeled pictures.

Knows nothing of how times become ratios.
"""

from __future__ import annotations

from torch import nn

from benchmarks import references
from benchmarks.problems import Problem, batch_of, contiguous, floor_of, image_problem, passes_of
from benchmarks.ratios import CLOCK, Row, take_turns

STRONG = "dst(fixmatch, worst_view=strong)"
EVERY = (
    "supervised", "pseudo_label", "pi_model", "mean_teacher", "vat", "ali", "rat", "uda", "mixmatch", "remixmatch",
    "dash", "flexmatch", "debiasmatch", "self_tuning", "noisy_student", "dividemix", "co_training", "tri_training",
    "mutual_learning", "dst(fixmatch, preset=paper)", "dst(flexmatch)", "dst(mean_teacher)", "dst(dividemix)",
)  # fmt: skip


def parts(problem: Problem) -> list[nn.Module]:
    """What a reference step of DST is made of."""
    return [problem.net.psi, problem.net.h, problem.net.parts["h_pseudo"], problem.net.parts["h_worst"]]


def step_rows() -> list[Row]:
    fixmatch, weak, strong = (image_problem(spelling) for spelling in ("fixmatch", "dst(fixmatch)", STRONG))
    l, u = batch_of(weak)
    times = take_turns(
        {
            "floor": floor_of(passes := passes_of(fixmatch)),
            "contiguous floor": floor_of(contiguous(passes)),
            "weak floor": floor_of(passes_of(weak)),
            "fixmatch": fixmatch.step,
            "dst, weak": weak.step,
            "dst, strong": strong.step,
            "fixmatch, reference": references.concatenated_fixmatch(fixmatch.net.psi, fixmatch.net.h, l, u),
            "dst, reference": references.concatenated_dst(*parts(weak), l=l, u=u),
        },
        CLOCK.rounds(9),
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
    ]


def three_pass_rows() -> list[Row]:
    """Against the structure released for fine-tuning, both sides with strong views of labeled pictures, too."""
    weak, strong = (image_problem(f"dst(fixmatch(w_strong=0.1), worst_view={view})") for view in ("weak", "strong"))
    l, u = batch_of(weak)
    reference = references.three_pass_dst(*parts(weak), l=l, u=u)
    times = take_turns({"weak": weak.step, "strong": strong.step, "three passes": reference}, CLOCK.rounds(5))
    return [
        times.gain("reference dst (three passes) / dst, equal work", "weak", "three passes"),
        times.gain("reference dst (three passes) / dst, worst case on strong views", "strong", "three passes"),
    ]


def method_rows() -> list[Row]:
    """Every other method against the passes it makes: what all else costs."""
    rows = []
    for spelling in EVERY:
        problem = image_problem(spelling)
        floor = floor_of(passes_of(problem))
        times = take_turns({"floor": floor, "step": problem.step}, CLOCK.rounds(3))
        rows.append(times.cost(f"step / its passes alone, {spelling}", "step", "floor"))
    return rows


def resnet_rows() -> list[Row]:
    """Fine-tuning shape: ResNet-50 at 224 px, 8 pictures of each kind, all with gradient on both sides."""
    problem = image_problem(
        "dst(fixmatch(w_strong=0.1))",
        batch=8,
        unlabeled_batch=8,
        pool=80,
        **{"regime": "finetune", "network.backbone": "resnet50", "data.size": 224, "data.crop": "pad"},
    )
    l, u = batch_of(problem)
    reference = references.three_pass_dst(*parts(problem), l=l, u=u)
    times = take_turns({"dst": problem.step, "three passes": reference}, CLOCK.rounds(5))
    return [times.gain("reference dst (three passes) / dst, ResNet-50 at 224 px", "dst", "three passes", 1.2)]


def rows() -> list[Row]:
    if CLOCK.quick:
        return step_rows()
    return [*step_rows(), *three_pass_rows(), *resnet_rows(), *method_rows()]
