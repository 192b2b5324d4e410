"""The idea of the worst case, computed on points in the plane, with the same result every time.

Knows nothing of runs or images: two classes with three labels each, linear heads, and features that can move.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet
from torch import Tensor, nn
from torch.nn import functional as F

from selftrain.report.paper_figures.style import COLOURS, INK, SOFT, Groups, add_legend, make_sheet, set_title

POINTS, STEPS = 160, 400
CLASS_COLOURS, WORST = COLOURS[1:3], COLOURS[3]
Line = tuple[Tensor, float]
"""w and b; w x + b > 0 is class 1"""


class Solution(NamedTuple):
    """Points x with classes y, a few of them labeled; the points z after psi; and the lines that separate both."""

    x: Tensor
    y: Tensor
    few: Tensor
    true: Line
    learned: Line
    worst: Line
    z: Tensor
    learned_z: Line
    worst_z: Line


@cache
def solve() -> Solution:
    """Train the lines and the moving features; nothing outside is read or changed, random state included."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x, y, few = _points()
        true, h = _line(_fit(x, y)), _fit(x[few], y[few])
        return Solution(x, y, few, true, _line(h), _worst(x, few, y, h(x).argmax(1)), *_moved(x, y, few))


def hyperplanes(_: Groups) -> Sheet:
    """Draw (a) few labels and the truth, (b) the worst hyperplane, (c) features that leave it little room for harm."""
    found = solve()
    sheet, axes = make_sheet(3, 3.3, 3.5)
    titles = ("(a) few labels and the truth", "(b) the worst hyperplane", "(c) with features that move")
    panels: tuple[tuple[Tensor, tuple[tuple[Line, str, str, str], ...]], ...] = (
        (found.x, ((found.true, "true", SOFT, ":"), (found.learned, "learned", INK, "-"))),
        (found.x, ((found.learned, "learned", INK, "-"), (found.worst, "worst case", WORST, "--"))),
        (found.z, ((found.learned_z, "learned", INK, "-"), (found.worst_z, "worst case", WORST, "--"))),
    )
    for ax, title, (points, heads) in zip(axes, titles, panels, strict=True):
        _scatter(ax, points, found.y, found.few)
        for line, name, colour, dash in heads:
            _hyperplane(ax, line, colour, dash, name if ax is axes[0] else None)
        wrong = {name: float(((points @ w + b > 0).long() != found.y).float().mean()) for (w, b), name, *_ in heads}
        shares = ", ".join(f"{name} {100 * share:.0f}%" for name, share in wrong.items())
        set_title(ax, title)
        ax.set_xlabel(f"wrong: {shares}", fontsize=8.5, color=SOFT)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.grid(False)
    axes[0].plot([], [], color=WORST, linestyle="--", linewidth=2, label="worst case")
    add_legend(sheet, axes[0])
    return sheet


def _points() -> tuple[Tensor, Tensor, Tensor]:
    """Return two long clouds side by side, with three labels each: above the middle of one, below that of the other."""
    y = torch.arange(POINTS) % 2
    along, across = 1.1 * torch.randn(POINTS), 0.28 * torch.randn(POINTS)
    x = torch.stack([across + (2 * y - 1) * 0.75, along], dim=1)
    few = torch.cat(
        [torch.nonzero((y == k) & ((along - at).abs() < 0.35)).flatten()[:3] for k, at in ((0, 0.25), (1, -0.25))]
    )
    return x, y, few


def _head() -> nn.Linear:
    """Return a head that favours no class before training."""
    h = nn.Linear(2, 2)
    nn.init.zeros_(h.weight)
    nn.init.zeros_(h.bias)
    return h


def _fit(x: Tensor, y: Tensor) -> nn.Linear:
    h = _head()
    optimizer = torch.optim.SGD(h.parameters(), lr=0.5, weight_decay=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(h(x), y))
        optimizer.step()
    return h


def _worst_loss(h: nn.Module, x: Tensor, few: Tensor, y: Tensor, f_hat: Tensor) -> Tensor:
    """Return the loss of h': low if h' fits the labels and contradicts f_hat everywhere else."""
    return 3 * F.cross_entropy(h(x[few]), y[few]) + F.cross_entropy(-h(x), f_hat)


def _worst(x: Tensor, few: Tensor, y: Tensor, f_hat: Tensor) -> Line:
    """Return the line that most often contradicts f_hat, of those that keep half of the widest margin to the labels."""
    angles = torch.arange(0, 2 * torch.pi, torch.pi / 180)
    w = torch.stack([angles.cos(), angles.sin()])
    along = x @ w  # (points, angles)
    inside = along[few[y[few] == 0]].amax(0), along[few[y[few] == 1]].amin(0)  # class 1 lies on the positive side
    margin = (inside[1] - inside[0]).max() / 4
    low, high = inside[0] + margin, inside[1] - margin
    best, found = -1.0, (w[:, 0], 0.0)
    for share in torch.linspace(0, 1, 21):
        cut = low + share * (high - low)
        harm = ((along > cut).long() != f_hat[:, None]).float().mean(0).masked_fill(low > high, -1.0)
        if float(harm.max()) > best:
            best, k = float(harm.max()), int(harm.argmax())
            found = (w[:, k], -float(cut[k]))
    return found


def _line(h: nn.Linear) -> Line:
    """Return the line on which both classes are equally likely."""
    return (h.weight[1] - h.weight[0]).detach(), float((h.bias[1] - h.bias[0]).detach())


def _moved(x: Tensor, y: Tensor, few: Tensor) -> tuple[Tensor, Line, Line]:
    """Train psi and h on the labels and h' on the worst case, while psi moves the points away from it."""
    psi = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2), nn.Tanh())
    h, worst = _head(), nn.Linear(2, 2)
    player = torch.optim.Adam([*psi.parameters(), *h.parameters()], lr=0.01, weight_decay=1e-3)
    adversary = torch.optim.Adam(worst.parameters(), lr=0.02, weight_decay=1e-3)

    def encode(points: Tensor) -> Tensor:
        moved: Tensor = points + 1.2 * psi(points)  # no point moves far
        return moved

    for _ in range(2 * STEPS):
        z = encode(x)
        f_hat = h(z).argmax(1).detach()
        for _ in range(3):
            adversary.zero_grad()
            torch.autograd.backward(_worst_loss(worst, z.detach(), few, y, f_hat))
            adversary.step()
        player.zero_grad()
        torch.autograd.backward(F.cross_entropy(h(z[few]), y[few]) + F.cross_entropy(worst(z), f_hat))
        player.step()
    z = encode(x).detach()
    return z, _line(h), _worst(z, few, y, h(z).argmax(1))


def _scatter(ax: Axes, points: Tensor, y: Tensor, few: Tensor) -> None:
    at = points.detach().numpy()
    for k, mark in ((0, "o"), (1, "s")):
        of = (y == k).numpy()
        ax.scatter(at[of, 0], at[of, 1], s=12, marker=mark, color=CLASS_COLOURS[k], alpha=0.45, linewidths=0)
        chosen = few[y[few] == k].numpy()
        ax.scatter(
            at[chosen, 0],
            at[chosen, 1],
            s=70,
            marker=mark,
            color=CLASS_COLOURS[k],
            edgecolors="black",
            linewidths=1.2,
            zorder=4,
        )
    low, high = at.min(axis=0) - 0.4, at.max(axis=0) + 0.4
    ax.set_xlim(low[0], high[0])
    ax.set_ylim(low[1], high[1])


def _hyperplane(ax: Axes, line: Line, colour: str, dash: str, label: str | None) -> None:
    w, b = line[0].numpy(), line[1]
    side = np.array([-w[1], w[0]]) / np.linalg.norm(w)
    foot = -b * w / (w @ w)
    ends = np.stack([foot - 30 * side, foot + 30 * side]).T
    ax.plot(*ends, color=colour, linestyle=dash, linewidth=2, label=label, scalex=False, scaley=False)
