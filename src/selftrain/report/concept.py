"""The idea of the worst case on points in the plane: computed, not sketched, and the same every time.

Knows nothing of runs or of images: two classes, three labels each, linear heads, and features that may move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS, STEPS = 160, 400
Line = tuple[Tensor, float]
"""w and b; w x + b > 0 is class 1"""


class Solved(NamedTuple):
    """Points x with classes y, few of them labeled; points z after psi; and the lines through both."""

    x: Tensor
    y: Tensor
    few: Tensor
    true: Line
    learned: Line
    worst: Line
    z: Tensor
    learned_z: Line
    worst_z: Line


def solve() -> Solved:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x, y, few = _points()
        true, h = _line(_fit(x, y)), _fit(x[few], y[few])
        return Solved(x, y, few, true, _line(h), _worst(x, few, y, h(x).argmax(1)), *_moved(x, y, few))


def three_panels(axes: list[Axes], *, classes: tuple[str, str], ink: str, worst: str, soft: str) -> None:
    """(a) few labels and the truth, (b) the worst hyperplane, (c) features moved so that it can do little harm."""
    found = solve()
    titles = ("(a) few labels, and the truth", "(b) the worst hyperplane", "(c) with features that move")
    panels: tuple[tuple[Tensor, tuple[tuple[Line, str, str, str], ...]], ...] = (
        (found.x, ((found.true, "true", soft, ":"), (found.learned, "learned", ink, "-"))),
        (found.x, ((found.learned, "learned", ink, "-"), (found.worst, "worst case", worst, "--"))),
        (found.z, ((found.learned_z, "learned", ink, "-"), (found.worst_z, "worst case", worst, "--"))),
    )
    for ax, title, (points, heads) in zip(axes, titles, panels, strict=True):
        _scatter(ax, points, found.y, found.few, classes)
        for line, name, colour, dash in heads:
            _hyperplane(ax, line, colour, dash, name if ax is axes[0] else None)
        wrong = {name: float(((points @ w + b > 0).long() != found.y).float().mean()) for (w, b), name, *_ in heads}
        told = ", ".join(f"{name} {100 * share:.0f}%" for name, share in wrong.items())
        ax.set_title(title, loc="left", fontsize=9.5, color=ink, fontweight="bold")
        ax.set_xlabel(f"wrong: {told}", fontsize=8.5, color=soft)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.grid(False)
    axes[0].plot([], [], color=worst, linestyle="--", linewidth=2, label="worst case")


def _points() -> tuple[Tensor, Tensor, Tensor]:
    """Two long clouds side by side, and three labels of each: of the one from above the middle, of the other below."""
    y = torch.arange(POINTS) % 2
    along, across = 1.1 * torch.randn(POINTS), 0.28 * torch.randn(POINTS)
    x = torch.stack([across + (2 * y - 1) * 0.75, along], dim=1)
    few = torch.cat(
        [torch.nonzero((y == k) & ((along - at).abs() < 0.35)).flatten()[:3] for k, at in ((0, 0.25), (1, -0.25))]
    )
    return x, y, few


def _head() -> nn.Linear:
    """One that leans to no side before it has learned anything."""
    h = nn.Linear(2, 2)
    nn.init.zeros_(h.weight)
    nn.init.zeros_(h.bias)
    return h


def _fit(x: Tensor, y: Tensor) -> nn.Linear:
    h = _head()
    optimizer = torch.optim.SGD(h.parameters(), lr=0.5, weight_decay=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(h(x), y).backward()
        optimizer.step()
    return h


def _worst_loss(h: nn.Module, x: Tensor, few: Tensor, y: Tensor, f_hat: Tensor) -> Tensor:
    """What h' makes small: right on the labels, and elsewhere the opposite of f_hat."""
    return 3 * F.cross_entropy(h(x[few]), y[few]) + F.cross_entropy(-h(x), f_hat)


def _worst(x: Tensor, few: Tensor, y: Tensor, f_hat: Tensor) -> Line:
    """Of the lines that fit the labels well, with half of the widest margin, the one most often against f_hat."""
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
    """Where the two classes are equally likely."""
    return (h.weight[1] - h.weight[0]).detach(), float((h.bias[1] - h.bias[0]).detach())


def _moved(x: Tensor, y: Tensor, few: Tensor) -> tuple[Tensor, Line, Line]:
    """psi and h learn the labels, h' the worst case, and psi moves the points away from it."""
    psi = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2), nn.Tanh())
    h, worst = _head(), nn.Linear(2, 2)
    player = torch.optim.Adam([*psi.parameters(), *h.parameters()], lr=0.01, weight_decay=1e-3)
    adversary = torch.optim.Adam(worst.parameters(), lr=0.02, weight_decay=1e-3)

    def encode(points: Tensor) -> Tensor:
        return points + 1.2 * psi(points)  # nothing moves far

    for _ in range(2 * STEPS):
        z = encode(x)
        f_hat = h(z).argmax(1).detach()
        for _ in range(3):
            adversary.zero_grad()
            _worst_loss(worst, z.detach(), few, y, f_hat).backward()
            adversary.step()
        player.zero_grad()
        (F.cross_entropy(h(z[few]), y[few]) + F.cross_entropy(worst(z), f_hat)).backward()
        player.step()
    z = encode(x).detach()
    return z, _line(h), _worst(z, few, y, h(z).argmax(1))


def _scatter(ax: Axes, points: Tensor, y: Tensor, few: Tensor, classes: tuple[str, str]) -> None:
    at = points.detach().numpy()
    for k, mark in ((0, "o"), (1, "s")):
        of = (y == k).numpy()
        ax.scatter(at[of, 0], at[of, 1], s=12, marker=mark, color=classes[k], alpha=0.45, linewidths=0)
        chosen = few[y[few] == k].numpy()
        ax.scatter(
            at[chosen, 0],
            at[chosen, 1],
            s=70,
            marker=mark,
            color=classes[k],
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
