"""A step on frozen features against its matrix products and optimiser alone, and against three passes.

Knows nothing of how features are computed. Features of 1,280 numbers, psi 1280 -> 512, heads of width 1,024, 100
classes; 32 labeled and 64 unlabeled samples, weak and strong views of the latter with gradient. The comparison with
other steps adds the strong view of labeled samples, which is the default of the frozen regime and part of the released
step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import references
from benchmarks.engine import parts
from benchmarks.problems import Problem, frozen_problem
from benchmarks.ratios import CLOCK, Apart, Row, take_turns
from selftrain.batch import Labeled, Unlabeled

SPELLING = "dst(fixmatch(w_strong=0), width=1024, worst_layers=2)"
BOTH = "dst(fixmatch, width=1024, worst_layers=2)"


def linear_layers(module: nn.Module) -> list[nn.Linear]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)]


def products(problem: Problem, labeled: int, unlabeled: int, strong: int = 0) -> Callable[[], None]:
    """Return the work that no implementation can avoid: the step's matrix products and a fused SGD step.

    ``strong`` is the number of strong views of labeled samples.
    """
    psi = linear_layers(problem.net.psi.bottleneck)[0]
    h = linear_layers(problem.net.h)[0]
    linear = [layer for name in ("h_pseudo", "h_worst") for layer in linear_layers(problem.net.parts[name])]
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
        layer(h.weight, labeled + strong + unlabeled, labeled + strong),
        *(layer(m.weight, unlabeled, unlabeled) for m in linear[:2]),
        *(layer(m.weight, labeled + unlabeled, labeled + unlabeled) for m in linear[2:]),
    ]

    def run() -> None:
        for one in work:
            one()
        sgd.step()

    return run


def by_hand(problem: Problem, l: Labeled, u: Unlabeled) -> Callable[[], None]:
    """Return the same step written out at its fastest: no engine, no observers, no head called twice.

    The time beyond the matrix products is torch's own.
    """
    psi, h, h_pseudo, h_worst = parts(problem)
    sgd = torch.optim.SGD(problem.net.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True)
    n, m = len(l), len(u)

    def step() -> None:
        z = psi(torch.cat([l.strong, l.weak, u.weak, u.strong]))
        weak, strong = z[n : 2 * n + m], z[2 * n + m :]
        with torch.no_grad():
            y = h(weak)
            confidence, y_u = torch.softmax(y[n:], dim=1).max(dim=1)
            y_l, keep = y[:n].argmax(dim=1), confidence >= 0.7
        loss = 2 * F.cross_entropy(h(z[: 2 * n]), l.y.repeat(2))
        loss = loss + (F.cross_entropy(h_pseudo(strong), y_u, reduction="none") * keep).mean()
        worst = h_worst(references.Reverse.apply(weak))
        p = torch.softmax(worst[n:], dim=1).gather(1, y_u[:, None])
        loss = loss + 2 * F.cross_entropy(worst[:n], y_l) - torch.log((1 - p + 1e-6).clamp(max=1)).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        sgd.step()
        sgd.zero_grad()

    return step


def three_passes() -> Callable[[], None]:
    problem = frozen_problem(BOTH)
    l, u = problem.stream[0]
    normalise = problem.net.psi.normalise
    return references.three_pass_dst(*parts(problem), l=l.map(normalise), u=u.map(normalise))


def rows() -> list[Row]:
    lean, both, strong, fixmatch, hand = (
        frozen_problem(spelling)
        for spelling in (
            SPELLING, BOTH, "dst(fixmatch, worst_view=strong, width=1024, worst_layers=2)", "fixmatch", BOTH,
        )
    )  # fmt: skip
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
            "by hand": by_hand(hand, *batch),
            "three passes": Apart(three_passes),
        },
        CLOCK.rounds(30, 15),
        warm_up=3,
        repeat=5,
    )
    return [
        times.cost("frozen step / its matrix products and SGD, dst", "lean", "products", 1.9),
        times.gain("reference dst (three passes) / frozen dst", "dst", "three passes", 2.2),
        # The gain of a step without the engine, and of one that costs nothing but its products.
        times.gain("reference dst (three passes) / frozen dst by hand", "by hand", "three passes"),
        times.gain("reference dst (three passes) / matrix products and SGD alone", "products of both", "three passes"),
        times.cost("frozen step / the same by hand, dst", "dst", "by hand"),
        times.cost("frozen step with drawing and gathering its batch / without, dst", "dst with stream", "dst"),
        times.cost("frozen dst / fixmatch, worst case on weak views", "dst", "fixmatch"),
        times.cost("frozen dst / fixmatch, worst case on strong views", "dst, strong", "fixmatch"),
    ]
