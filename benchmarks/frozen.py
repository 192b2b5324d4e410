"""A step on frozen features: against its matrix products and its optimiser alone, and against three passes.

Knows nothing of how features are made. Features of 1,280 numbers, psi 1280 -> 512, heads of width 1,024, 100 classes;
32 labeled and 64 unlabeled samples, weak and strong views of the latter with gradient; against other steps the strong
view of labeled samples, too, which is the default of the frozen regime and part of the released step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks import references
from benchmarks.engine import parts
from benchmarks.problems import Problem, frozen_problem
from benchmarks.ratios import CLOCK, Apart, Row, take_turns

SPELLING = "dst(fixmatch(w_strong=0), width=1024, worst_layers=2)"
BOTH = "dst(fixmatch, width=1024, worst_layers=2)"


def products(problem: Problem, labeled: int, unlabeled: int, strong: int = 0) -> Callable[[], None]:
    """Every matrix product of the step, forward and backward, and a fused SGD step: nothing else can be left out.
    ``strong``: strong views of labeled samples."""
    psi, h = problem.net.psi.bottleneck[0], problem.net.h  # type: ignore[index]
    linear = [*(m for name in ("h_pseudo", "h_worst") for m in problem.net.parts[name] if isinstance(m, nn.Linear))]  # type: ignore[union-attr]
    parameters = [p.detach().clone().requires_grad_() for p in problem.net.parameters() if p.requires_grad]
    for p in parameters:
        p.grad = torch.randn_like(p) * 1e-3
    sgd = torch.optim.SGD(parameters, lr=1e-6, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True)
    both = 2 * unlabeled

    def layer(weight: Tensor, forward: int, backward: int, input_gradient: bool = True) -> Callable[[], None]:
        x, g = torch.randn(forward, weight.shape[1]), torch.randn(backward, weight.shape[0])
        w = weight.detach()

        def run() -> None:
            torch.mm(x, w.t())
            torch.mm(g.t(), x[:backward])
            if input_gradient:
                torch.mm(g, w)

        return run

    work = [
        layer(psi.weight, labeled + strong + both, labeled + strong + both, input_gradient=False),
        layer(h.weight, labeled + strong + unlabeled, labeled + strong),  # type: ignore[arg-type]
        *(layer(m.weight, unlabeled, unlabeled) for m in linear[:2]),
        *(layer(m.weight, labeled + unlabeled, labeled + unlabeled) for m in linear[2:]),
    ]

    def run() -> None:
        for one in work:
            one()
        sgd.step()

    return run


def three_passes() -> Callable[[], None]:
    problem = frozen_problem(BOTH)
    l, u = (part.map(problem.net.psi.normalise) for part in problem.stream[0])
    return references.three_pass_dst(*parts(problem), l=l, u=u)


def rows() -> list[Row]:
    lean, both, strong, fixmatch = (
        frozen_problem(spelling)
        for spelling in (SPELLING, BOTH, "dst(fixmatch, worst_view=strong, width=1024, worst_layers=2)", "fixmatch")
    )
    batch = both.stream[0]

    def step(problem: Problem) -> Callable[[], None]:
        return lambda: problem.loop.take_step(*batch)

    times = take_turns(
        {
            "products": products(lean, 32, 64),
            "products of both": products(both, 32, 64, 32),
            "lean": step(lean),
            "dst": step(both),
            "dst with stream": both.step,
            "dst, strong": step(strong),
            "fixmatch": step(fixmatch),
            "three passes": Apart(three_passes),
        },
        CLOCK.rounds(30, 15),
        warm_up=3,
        repeat=5,
    )
    return [
        times.cost("frozen step / its matrix products and SGD, dst", "lean", "products", 1.9),
        times.gain("reference dst (three passes) / frozen dst", "dst", "three passes", 2.2),
        times.gain("reference dst (three passes) / matrix products and SGD alone", "products of both", "three passes"),
        times.cost("frozen step with drawing and gathering its batch / without, dst", "dst with stream", "dst"),
        times.cost("frozen dst / fixmatch, worst case on weak views", "dst", "fixmatch"),
        times.cost("frozen dst / fixmatch, worst case on strong views", "dst, strong", "fixmatch"),
    ]
