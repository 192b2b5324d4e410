"""Draw the diagrams of docs/concepts/methods/: python docs/draw_methods.py

Knows nothing of the library: the few formulas that are drawn are typed again here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle

FOLDER = Path(__file__).parent / "concepts" / "methods" / "pictures"
WIDTH = 432  # points; phones show the diagrams at about 0.6 of their size
INK, GREY, PALE = "#1f2328", "#6e7781", "#f3f4f6"
TRUE, PSEUDO, WORST = (
    "#0b62c4",
    "#c8570b",
    "#8a3ffc",
)  # the colours of true labels, pseudo labels and the worst case
TINT = {TRUE: "#dcebfb", PSEUDO: "#fdeadb", WORST: "#efe5ff", GREY: PALE}
STYLE: dict[Any, str] = {
    "svg.hashsalt": "selftrain",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "mathtext.fontset": "dejavusans",
}
Point = tuple[float, float]


# Coordinates are points from the lower left corner.


def page(height: float) -> tuple[Figure, Axes]:
    """Return a white sheet with round corners, which stays readable on a dark page."""
    figure = Figure(figsize=(WIDTH / 72, height / 72))
    figure.patch.set_alpha(0)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(0, height)
    axes.axis("off")
    sheet = FancyBboxPatch((7, 7), WIDTH - 14, height - 14, "round,pad=6,rounding_size=12")
    sheet.set(facecolor="white", edgecolor="#d0d7de", linewidth=1, clip_on=False)
    axes.add_patch(sheet)
    return figure, axes


def text(
    axes: Axes, at: Point, words: str, size: float = 14, *, color: str = INK, bold: bool = False, align: str = "center"
) -> None:
    weight = "bold" if bold else "normal"
    axes.text(*at, words, size=size, color=color, weight=weight, ha=align, va="center", clip_on=False, zorder=6)


def title(axes: Axes, top: float, name: str, idea: str) -> None:
    text(axes, (18, top - 18), name, 15, bold=True, align="left")
    text(axes, (18, top - 38), idea, 13, color=GREY, align="left")


def box(
    axes: Axes,
    at: Point,
    words: str,
    size: Point = (58, 40),
    *,
    color: str = INK,
    fill: str = "white",
    dots: Sequence[str] = (),
    type_size: float = 16,
) -> None:
    """Draw a box around ``at``; its dots show from which losses it learns."""
    (x, y), (w, h) = at, size
    shape = FancyBboxPatch((x - w / 2 + 4, y - h / 2 + 4), w - 8, h - 8, "round,pad=4,rounding_size=6")
    shape.set(facecolor=fill, edgecolor=color, linewidth=1.6, clip_on=False, zorder=4)
    axes.add_patch(shape)
    text(axes, (x, y + (7 if dots else 0)), words, type_size)
    for i, dot in enumerate(dots):
        place = (x + 13 * (i - (len(dots) - 1) / 2), y - h / 2 + 9)
        axes.add_patch(Circle(place, 4.5, facecolor=dot, edgecolor="none", clip_on=False, zorder=5))


def loss(axes: Axes, at: Point, words: str, color: str, size: Point = (62, 32)) -> None:
    box(axes, at, words, size, color=color, fill=TINT[color])


def arrow(
    axes: Axes,
    a: Point,
    b: Point,
    *,
    color: str = INK,
    dashed: bool = False,
    bend: float = 0.0,
    both_ways: bool = False,
) -> None:
    style, curve = "<|-|>" if both_ways else "-|>", f"arc3,rad={bend}"
    patch = FancyArrowPatch(a, b, arrowstyle=style, mutation_scale=13, connectionstyle=curve, shrinkA=0, shrinkB=0)
    patch.set(color=color, linewidth=1.8, clip_on=False, zorder=3)
    if dashed:
        patch.set(linestyle=(0, (3.5, 2.2)), linewidth=2.1, zorder=7)
    axes.add_patch(patch)


def labels(axes: Axes, a: Point, b: Point, *, bend: float = 0.0) -> None:
    """Draw the arrow of pseudo labels from a to b; they carry no gradient."""
    arrow(axes, a, b, color=PSEUDO, dashed=True, bend=bend)


def rule(axes: Axes, y: float) -> None:
    axes.plot((18, WIDTH - 18), (y, y), color="#d0d7de", linewidth=1, clip_on=False)


# Which head labels and which learns: the paper's comparison of architectures, redrawn.


def samples(axes: Axes, true_y: float, unlabeled_y: float, psi_y: float, psi_height: float) -> None:
    """Draw x^l and x^u with their arrows into psi."""
    for words, y in ((r"$x^l$", true_y), (r"$x^u$", unlabeled_y)):
        box(axes, (42, y), words, (46, 32), color=GREY, fill=PALE)
        arrow(axes, (66, y), (104, y))
    dots = (TRUE, PSEUDO)
    box(axes, (132, psi_y), r"$\psi$", (54, psi_height), dots=dots, type_size=19)


def one_head(axes: Axes, base: float) -> None:
    """(a) Pseudo Label and FixMatch."""
    samples(axes, base + 106, base + 52, base + 79, 92)
    arrow(axes, (160, base + 79), (211, base + 79))
    box(axes, (244, base + 79), "$h$", (64, 46), dots=(TRUE, PSEUDO))
    arrow(axes, (277, base + 88), (344, base + 106))
    arrow(axes, (277, base + 70), (344, base + 52))
    loss(axes, (377, base + 106), "$L_L$", TRUE)
    loss(axes, (377, base + 52), "$L_U$", PSEUDO)
    labels(axes, (244, base + 55), (377, base + 35), bend=0.45)
    text(axes, (308, base + 42), r"$\hat{f}$", 15, color=PSEUDO)


def teacher(axes: Axes, base: float, psi: str, h: str, how: str) -> None:
    """Draw (b) or (c): another network labels."""
    samples(axes, base + 158, base + 110, base + 134, 84)
    arrow(axes, (160, base + 134), (211, base + 134))
    box(axes, (244, base + 134), "$h$", (64, 46), dots=(TRUE, PSEUDO))
    arrow(axes, (277, base + 143), (344, base + 158))
    arrow(axes, (277, base + 125), (344, base + 110))
    loss(axes, (377, base + 158), "$L_L$", TRUE)
    loss(axes, (377, base + 110), "$L_U$", PSEUDO)
    arrow(axes, (42, base + 93), (104, base + 37), color=GREY, bend=0.3)
    box(axes, (132, base + 37), psi, (54, 38), color=GREY, fill=PALE, type_size=17)
    box(axes, (244, base + 37), h, (64, 38), color=GREY, fill=PALE)
    arrow(axes, (160, base + 37), (211, base + 37), color=GREY)
    for x in (132, 244):
        arrow(axes, (x, base + (91 if x == 132 else 110)), (x, base + 57), color=GREY)
    text(axes, (188, base + 76), how, 12.5, color=GREY)
    labels(axes, (277, base + 37), (377, base + 93), bend=0.35)
    text(axes, (322, base + 62), r"$\hat{f}$", 15, color=PSEUDO)


def mean_teacher(axes: Axes, base: float) -> None:
    teacher(axes, base, r"$\bar{\psi}$", r"$\bar{h}$", "moving average")


def noisy_student(axes: Axes, base: float) -> None:
    teacher(axes, base, r"$\psi_{r-1}$", r"$h_{r-1}$", "next round")


def two_heads(axes: Axes, base: float) -> None:
    """(d) Co-training and mutual learning."""
    samples(axes, base + 120, base + 62, base + 91, 96)
    for y, name, sign in ((base + 136, "$h_1$", 1), (base + 46, "$h_2$", -1)):
        arrow(axes, (160, base + 91 + 14 * sign), (211, y))
        box(axes, (244, y), name, (64, 46), dots=(TRUE, PSEUDO))
        arrow(axes, (277, y + 8 * sign), (344, y + 20 * sign))
        arrow(axes, (277, y - 4 * sign), (344, y - 14 * sign))
        loss(axes, (377, y + 22 * sign), "$L_L$", TRUE, (62, 30))
        loss(axes, (377, y - 16 * sign), "$L_U$", PSEUDO, (62, 30))
        labels(axes, (262, y - 24 * sign), (374, base + 91 - 15 * sign))
    text(axes, (268, base + 91), r"$\hat{f}$", 15, color=PSEUDO)


def dst(axes: Axes, base: float) -> None:
    """(e) DST."""
    top, middle, low = base + 162, base + 100, base + 38
    for words, y in ((r"$x^l$", middle + 28), (r"$x^u$", middle - 28)):
        box(axes, (42, y), words, (46, 32), color=GREY, fill=PALE)
        arrow(axes, (66, y), (104, y))
    box(axes, (132, middle), r"$\psi$", (54, 96), dots=(TRUE, PSEUDO, WORST), type_size=19)
    for y, name, color, what in (
        (top, r"$h_{\mathrm{pseudo}}$", PSEUDO, "$L_U$"),
        (middle, "$h$", TRUE, "$L_L$"),
        (low, "$h'$", WORST, "$E$"),
    ):
        arrow(axes, (160, middle + (y - middle) * 0.4), (203, y))
        box(axes, (244, y), name, (80, 46), dots=(color,))
        arrow(axes, (285, y), (344, y))
        loss(axes, (377, y), what, color)
    for sign in (1, -1):
        labels(axes, (285, middle + 12 * sign), (366, middle + 45 * sign))
        text(axes, (305, middle + 36 * sign), r"$\hat{f}$", 15, color=PSEUDO)
    axes.add_patch(Circle((182, middle - 44), 14, facecolor="white", edgecolor=WORST, linewidth=1.6, zorder=5))
    text(axes, (182, middle - 44), "$-c$", 12.5, color=WORST)


PANELS: dict[str, tuple[Callable[[Axes, float], None], float, str, str]] = {
    "a": (one_head, 190, "(a) Pseudo Label, FixMatch", "one head labels and learns"),
    "b": (mean_teacher, 232, "(b) Mean Teacher", "the average of the student labels"),
    "c": (noisy_student, 232, "(c) Noisy Student", "the network of the last round labels"),
    "d": (two_heads, 234, "(d) Co-training, Mutual Learning", "two heads label for each other"),
    "e": (dst, 246, "(e) DST", r"$h$ labels, but never learns from its labels"),
}
LEGEND = 118


def legend(axes: Axes, top: float, *, worst: bool = True) -> None:
    arrow(axes, (22, top - 22), (62, top - 22))
    text(axes, (74, top - 22), "forward; gradient flows back", 13, align="left")
    labels(axes, (22, top - 46), (62, top - 46))
    text(axes, (74, top - 46), r"pseudo labels $\hat{f}$; no gradient", 13, align="left")
    learned = [(TRUE, "true labels"), (PSEUDO, "pseudo labels")] + [(WORST, "worst case")] * worst
    text(axes, (22, top - 71), "a dot: this part learns from", 13, align="left")
    for (color, words), x in zip(learned, (28, 148, 290), strict=False):
        axes.add_patch(Circle((x, top - 94), 5.5, facecolor=color, edgecolor="none", clip_on=False))
        text(axes, (x + 12, top - 94), words, 13, align="left")


def panels(names: str, *, worst: bool = True) -> Figure:
    height = sum(PANELS[name][1] for name in names) + LEGEND + 8
    figure, axes = page(height)
    top = height - 4
    for name in names:
        draw, tall, heading, idea = PANELS[name]
        title(axes, top, heading, idea)
        draw(axes, top - tall)
        top -= tall
        rule(axes, top)
    legend(axes, top, worst=worst)
    return figure


def architectures() -> Figure:
    return panels("abcde")


# Consistency: which two predictions must agree.


def consistency() -> Figure:
    rows = [
        ("Pi-Model", r"$\alpha_1 x$", r"$\alpha_2 x$", "both learn"),
        ("Mean Teacher", r"$\alpha_1 x$", r"$\alpha_2 x$", "average of the student"),
        ("VAT", r"$x + r_{\mathrm{adv}}$", "$x$", "no gradient"),
        ("RAT", r"$T(x,\Phi_{\mathrm{adv}})$", "$x$", "no gradient"),
        ("UDA", "$A(x)$", r"$\alpha(x)$", "sharpened, if sure"),
    ]
    tall, head = 84, 44
    height = tall * len(rows) + head + 10
    figure, axes = page(height)
    text(axes, (100, height - 26), "learns", 14, bold=True)
    text(axes, (332, height - 26), "target", 14, bold=True)
    for i, (name, learner, target, note) in enumerate(rows):
        y = height - head - tall * i
        rule(axes, y)
        text(axes, (18, y - 17), name, 14, bold=True, align="left")
        both = name == "Pi-Model"
        box(axes, (100, y - 51), learner, (116, 38), color=PSEUDO, fill=TINT[PSEUDO], type_size=15)
        box(
            axes,
            (332, y - 51),
            target,
            (116, 38),
            color=PSEUDO if both else GREY,
            fill=TINT[PSEUDO] if both else PALE,
            type_size=15,
        )
        arrow(axes, (272, y - 51), (160, y - 51), color=PSEUDO, dashed=not both, both_ways=both)
        text(axes, (332, y - 17), note, 12.5, color=GREY)
    return figure


# Thresholds: which pseudo labels are kept.


def chart(figure: Figure, place: tuple[float, float, float, float], height: float) -> Axes:
    """Add axes at a place given in points: left, bottom, width, height."""
    x, y, w, h = place
    axes = figure.add_axes((x / WIDTH, y / height, w / WIDTH, h / height))
    axes.patch.set_alpha(0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=12, colors=INK, length=3)
    return axes


def bars(axes: Axes, heights: Sequence[float], lines: Sequence[float]) -> None:
    """Draw confidences as bars, each with its own line; filled where the label is kept."""
    for x, (height, line) in enumerate(zip(heights, lines, strict=True)):
        kept = height >= line
        axes.bar(x, height, 0.62, color=PSEUDO if kept else "white", edgecolor=PSEUDO, linewidth=1.6, clip_on=False)
        axes.plot((x - 0.48, x + 0.48), (line, line), color=INK, linewidth=2.2, clip_on=False)
    axes.set_ylim(0, 1.04)
    axes.set_yticks((0, 1))
    axes.set_xticks(())


def thresholds() -> Figure:
    height = 484
    figure, sheet = page(height)
    for x, y, name, idea in (
        (18, height - 4, "FixMatch", "one line, fixed"),
        (232, height - 4, "Dash", "the line rises"),
        (18, height - 228, "FlexMatch", "one line per class"),
        (232, height - 228, "DebiasMatch", "mean removed first"),
    ):
        text(sheet, (x, y - 18), name, 15, bold=True, align="left")
        text(sheet, (x, y - 38), idea, 13, color=GREY, align="left")

    axes = chart(figure, (40, 304, 150, 118), height)
    confidences = (0.99, 0.62, 0.97, 0.88, 0.4)
    bars(axes, confidences, [0.95] * 5)
    axes.set_xlabel("samples", size=13)

    axes = chart(figure, (258, 304, 150, 118), height)  # rho_t, as the confidence exp(-rho_t)
    updates = [t / 100 for t in range(101)]
    rho = [max(1.27 ** -math.floor(t * 20) * 1.2, 0.05) for t in updates]
    axes.step(updates, [math.exp(-r) for r in rho], color=INK, linewidth=2.2, where="post")
    axes.fill_between(updates, [math.exp(-r) for r in rho], 1.0, color=PSEUDO, alpha=0.25, step="post", linewidth=0)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.04)
    axes.set_yticks((0, 1))
    axes.set_xticks(())
    axes.set_xlabel("time", size=13)
    axes.text(0.62, 0.42, "dropped", size=12.5, ha="center", color=GREY)
    axes.text(0.3, 0.86, "kept", size=12.5, ha="center", color=PSEUDO)

    axes = chart(figure, (40, 80, 150, 118), height)  # counts 10, 5 and 1 at tau = 0.95
    lines = [0.95 * b / (2 - b) for b in (1.0, 0.5, 0.1)]
    bars(axes, (0.9, 0.5, 0.22), lines)
    axes.set_xticks((0, 1, 2), ("often", "", "rare"), size=12.5)
    axes.set_xlabel("class", size=13)

    axes = chart(figure, (258, 80, 150, 118), height)
    p, q = (0.46, 0.4, 0.14), (0.6, 0.25, 0.15)
    weights = [a / b for a, b in zip(p, q, strict=True)]
    after = [w / sum(weights) for w in weights]
    for k in range(3):
        axes.bar(k - 0.2, p[k], 0.36, color="white", edgecolor=GREY, linewidth=1.6)
        axes.bar(k + 0.2, after[k], 0.36, color=PSEUDO, edgecolor=PSEUDO, linewidth=1.6)
    axes.set_ylim(0, 0.62)
    axes.set_yticks(())
    axes.set_xticks((0, 1, 2), ("often", "", "rare"), size=12.5)
    axes.set_xlabel("class", size=13)
    axes.text(2.5, 0.58, "before", size=12.5, ha="right", va="center", color=GREY)
    axes.text(2.5, 0.49, "after", size=12.5, ha="right", va="center", color=PSEUDO)
    text(sheet, (WIDTH / 2, 22), "FixMatch, FlexMatch: full bars are kept", 12.5, color=GREY)
    return figure


# Mixing: guess, sharpen, mix; and divide.


def distribution(axes: Axes, at: Point, p: Sequence[float], color: str) -> None:
    """Draw a small bar chart of three classes on the baseline ``at``."""
    x, y = at
    for k, share in enumerate(p):
        bar = Rectangle((x + 19 * (k - 1) - 8, y), 16, max(1.0, 52 * share), facecolor=color, clip_on=False, zorder=4)
        axes.add_patch(bar)
    axes.plot((x - 30, x + 30), (y, y), color=INK, linewidth=1.4, clip_on=False, zorder=5)


def picture(axes: Axes, at: Point, parts: Sequence[tuple[str, float]]) -> None:
    """Draw a sample: a disc and a square stand for two images, as opaque as their shares."""
    x, y = at
    frame = Rectangle((x - 25, y - 25), 50, 50, facecolor="white", edgecolor=INK, linewidth=1.4, clip_on=False)
    axes.add_patch(frame)
    for kind, share in parts:
        if kind == "disc":
            shape: Circle | Rectangle = Circle((x - 4, y + 4), 15, facecolor=TRUE)
        else:
            shape = Rectangle((x - 10, y - 19), 28, 28, facecolor=PSEUDO)
        shape.set(alpha=share, edgecolor="none", clip_on=False, zorder=4)
        axes.add_patch(shape)


def mixing() -> Figure:
    height = 560
    figure, axes = page(height)
    title(axes, height - 4, "Guess", "mean over two views, then sharpen")
    views, T = ((0.5, 0.35, 0.15), (0.6, 0.15, 0.25)), 0.5
    mean = [(a + b) / 2 for a, b in zip(*views, strict=True)]
    sharp = [m ** (1 / T) for m in mean]
    q = [s / sum(sharp) for s in sharp]
    y = height - 122
    for x, p, color, words in (
        (58, views[0], GREY, r"$\alpha_1 x$"),
        (150, views[1], GREY, r"$\alpha_2 x$"),
        (260, mean, PSEUDO, "mean"),
        (372, q, PSEUDO, "$q$"),
    ):
        distribution(axes, (x, y), p, color)
        text(axes, (x, y - 14), words, 14)
    text(axes, (104, y + 20), "+", 17)
    for x in (186, 298):
        arrow(axes, (x, y + 20), (x + 38, y + 20))
    rule(axes, height - 158)

    title(axes, height - 160, "Mix", r"images and targets alike, $s \geq 0.5$")
    y, share = height - 246, 0.7
    mixed = [share * a + (1 - share) * b for a, b in zip((0.0, 0.0, 1.0), q, strict=True)]
    for x, parts, p, color in (
        (64, [("disc", 1.0)], (0.0, 0.0, 1.0), TRUE),
        (200, [("square", 1.0)], q, PSEUDO),
        (356, [("disc", share), ("square", 1 - share)], mixed, INK),
    ):
        picture(axes, (x, y), parts)
        distribution(axes, (x, y - 90), p, color)
    text(axes, (64, y - 108), "labeled", 13)
    text(axes, (200, y - 108), "guessed", 13)
    text(axes, (356, y - 108), "mixed", 13)
    text(axes, (132, y), f"{share}  +  {1 - share:.1f}", 14)
    arrow(axes, (250, y), (306, y))
    rule(axes, height - 376)

    title(axes, height - 378, "Divide (DivideMix)", "two Gaussians over the losses")
    chart_axes = chart(figure, (40, 40, 352, 92), height)
    grid = [i / 200 for i in range(201)]
    clean = [math.exp(-(((x - 0.16) / 0.08) ** 2) / 2) for x in grid]
    doubtful = [0.6 * math.exp(-(((x - 0.62) / 0.16) ** 2) / 2) for x in grid]
    chart_axes.fill_between(grid, clean, color=TRUE, alpha=0.3, linewidth=0)
    chart_axes.fill_between(grid, doubtful, color=PSEUDO, alpha=0.3, linewidth=0)
    chart_axes.plot(grid, clean, color=TRUE, linewidth=2)
    chart_axes.plot(grid, doubtful, color=PSEUDO, linewidth=2)
    chart_axes.set(xlim=(0, 1), ylim=(0, 1.05), xticks=(), yticks=())
    chart_axes.set_xlabel("loss of the pseudo label", size=13)
    chart_axes.text(0.31, 0.82, "clean: refine", size=13, color=TRUE)
    chart_axes.text(0.7, 0.68, "doubtful: guess", size=13, color=PSEUDO, ha="center")
    return figure


# Teachers and heads.


def teachers_and_heads() -> Figure:
    height = 690
    figure, axes = page(height)
    title(axes, height - 4, "Noisy Student", "every round starts from scratch")
    y = height - 92
    for i, (words, dots) in enumerate((("round 0", (TRUE,)), ("round 1", (TRUE, PSEUDO)), ("round 2", (TRUE, PSEUDO)))):
        box(axes, (66 + 134 * i, y), words, (88, 52), dots=dots, type_size=14)
        labels(axes, (110 + 134 * i, y), (154 + 134 * i if i < 2 else 412, y))
    text(axes, (WIDTH / 2, y - 42), "teacher: weak views; student: strong views", 13, color=GREY)
    rule(axes, height - 152)

    title(axes, height - 154, "Tri-training", "a head learns where two others agree")
    base = height - 340
    for i, x in enumerate((76, 216, 356)):
        dots = (TRUE, PSEUDO) if i < 2 else (PSEUDO,)
        box(axes, (x, base + 112), f"$h_{i + 1}$", (72, 48), dots=dots)
        loss(axes, (x, base + 30), f"$L_{{U,{i + 1}}}$", PSEUDO, (72, 34))
        for other in (76, 216, 356):
            if other != x:
                labels(axes, (other + (x - other) * 0.12, base + 87), (x - (x - other) * 0.12, base + 48))
    rule(axes, height - 344)

    title(axes, height - 346, "Self-Tuning", "towards the keys of its class")
    base = height - 530
    keys = {TRUE: ((300, 122), (340, 108), (324, 78), (362, 128)), GREY: ((92, 46), (64, 78), (112, 92), (58, 34))}
    for color, places in keys.items():
        for x, dy in places:
            axes.add_patch(Rectangle((x - 7, base + dy - 7), 14, 14, facecolor=color, clip_on=False, zorder=4))
    axes.add_patch(Circle((216, base + 60), 13, facecolor="white", edgecolor=PSEUDO, linewidth=2.4, zorder=5))
    text(axes, (216, base + 60), "$q$", 15)
    arrow(axes, (231, base + 68), (290, base + 100), color=INK)
    arrow(axes, (128, base + 66), (200, base + 61), color=GREY)
    text(axes, (318, base + 52), "keys of its class", 13, color=TRUE)
    text(axes, (96, base + 14), "all other keys", 13, color=GREY)
    text(axes, (244, base + 104), "pull", 13)
    text(axes, (166, base + 46), "push", 13, color=GREY)
    rule(axes, height - 536)
    legend(axes, height - 540, worst=False)
    text(axes, (WIDTH / 2, 30), "co-training and mutual learning: see (d) in the index", 12, color=GREY)
    return figure


# ALI.


def adversarial() -> Figure:
    height = 262
    figure, axes = page(height)
    title(axes, height - 4, "ALI", "real pair or generated pair? and which class?")
    for y, a, b, how, color in (
        (172, "$x$", r"$\hat{z}$", "$G_z$", TRUE),
        (76, "$G_x(z)$", "$z$", "$G_x$", PSEUDO),
    ):
        box(axes, (62, y), a, (76, 40), color=color, fill=TINT[color], type_size=15)
        box(axes, (176, y), b, (46, 40), color=color, fill=TINT[color], type_size=15)
        ends = ((101, y), (152, y)) if color == TRUE else ((152, y), (101, y))
        arrow(axes, *ends, color=GREY)
        text(axes, (127, y + 15), how, 14, color=GREY)
        arrow(axes, (200, y), (248, 124 + (y - 124) * 0.35))
    text(axes, (112, 140), "real pair", 13, color=TRUE)
    text(axes, (112, 44), "generated pair", 13, color=PSEUDO)
    box(axes, (276, 124), "$D$", (54, 76), type_size=19)
    arrow(axes, (304, 138), (334, 162))
    arrow(axes, (304, 110), (334, 86))
    box(axes, (378, 172), "class\n1 ... K", (84, 50), color=TRUE, fill=TINT[TRUE], type_size=13)
    box(axes, (378, 76), "gene-\nrated", (84, 50), color=PSEUDO, fill=TINT[PSEUDO], type_size=13)
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "architectures": architectures,
    "consistency": consistency,
    "thresholds": thresholds,
    "mixing": mixing,
    "teachers-and-heads": teachers_and_heads,
    "adversarial": adversarial,
}


def tidy(svg: str) -> str:
    """Return the same SVG in fewer bytes: rounded to a tenth of a point, and without spaces at line ends."""
    svg = re.sub(r"-?\d+\.\d{4,}", lambda n: f"{round(float(n[0]), 1):g}" if len(n[0]) > 8 else n[0], svg)
    for long, short in (("DejaVuSans-", "font-"), ("stroke-dashoffset: 0; ", ""), ("stroke-linejoin: miter", "")):
        svg = svg.replace(long, short)
    return "\n".join(line.strip() for line in svg.splitlines()) + "\n"


def draw(folder: Path, form: str = "svg") -> list[Path]:
    """Write every diagram, byte for byte the same each time."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(STYLE):
        for name, make in PICTURES.items():
            path = folder / f"{name}.{form}"
            make().savefig(path, metadata={"Date": None} if form == "svg" else None)
            if form == "svg":
                path.write_text(tidy(path.read_text(encoding="utf-8")), encoding="utf-8")
            written.append(path)
    return written


if __name__ == "__main__":
    for path in draw(FOLDER):
        print(path)
