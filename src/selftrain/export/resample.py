"""Pillow's resizing as ONNX nodes: uint8 images of any size in, square crops out, equal to ``CentreResize``.

Knows nothing of networks. Pillow shrinks a much larger image by an integer factor first. It then resizes the columns
and the rows with a filter whose weights it rounds to 22 bits, and rounds pixels to integers after both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from PIL import Image

from selftrain.errors import UserError
from selftrain.export.graph import Graph, Value

GAP = 2.0
"""an image is first reduced to no less than this many times the output size"""
BANDS = 5
"""parts in which an axis is resized: each depends on few pixels"""
BITS = 22
"""fractional bits of Pillow's filter weights"""
SUPPORT = {"box": 0.5, "bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}
"""half the width of each filter, in pixels of the output"""


GREY = (19595, 38470, 7471)
"""Pillow's weights of red, green and blue in grey, in units of 1/65536"""


class Axis(NamedTuple):
    """One side of a crop: ``length`` pixels of the image, of which ``low`` to ``high`` are resized to ``size``."""

    length: Value
    low: Value
    high: Value
    factor: Value
    """by which the image is reduced first"""
    start: Value
    """first pixel that is needed"""
    stop: Value
    reduced: Value
    """number of pixels after the reduction"""


class Band(NamedTuple):
    """Neighbouring pixels of the output along one axis, and the pixels of the image that they depend on."""

    start: Value
    """first pixel that is needed, a vector of length 1"""
    stop: Value
    upper: Value
    """the matrix (outputs, stop - start) that makes them: the upper bits of its numbers"""
    lower: Value
    """the lower bits"""


def centre_crop(graph: Graph, images: Value, size: int, interpolation: str, share: float) -> Value:
    """Return the central square of ``images`` (N, H, W, C), ``share`` of their shorter side, as (N, C, size, size).

    The result is float32 and holds integers from 0 to 255.
    """
    if interpolation not in SUPPORT:
        known = ", ".join(SUPPORT)
        raise UserError(f"interpolation {interpolation!r} cannot be exported; only {known} can.")
    height, width = _lengths(graph, images)
    side = height.at_most(width) * share
    reduces = graph.op("Or", *(_factor(*_edges(length, side), size) > 1.0 for length in (height, width)))
    y, x = (_axis(graph, length, side, reduces, size, SUPPORT[interpolation]) for length in (height, width))
    pixels = _reduced(graph, _cut(graph, images, y, x), y, x, reduces)
    pixels = graph.op("Transpose", pixels, perm=[0, 3, 1, 2]).cast(np.float32)
    across, down = (_bands(graph, axis, reduces, size, interpolation) for axis in (x, y))
    if not rows_first():
        return _resized_down(graph, _resized_across(graph, pixels, across), down)
    tall = graph.op("And", height > float(size), (height - float(size)) > (width - float(size)) * 2.0)
    yes, no = graph.inner(), graph.inner()
    return graph.branch(
        graph.op("And", tall, graph.op("Not", reduces)),
        (yes, _resized_across(yes, _resized_down(yes, pixels, down), across)),
        (no, _resized_down(no, _resized_across(no, pixels, across), down)),
        np.float32,
    )


@cache
def rows_first() -> bool:
    """Return whether this Pillow resizes the rows of tall images first; both orders round differently."""
    pixels = np.tile(np.array([[1, 0, 0], [0, 1, 0]], np.uint8), (4, 1))  # 1/3 in each row; 1/2, 1/2 and 0 in columns
    return bool(np.asarray(Image.fromarray(pixels).resize((1, 1), Image.Resampling.BOX))[0, 0])


def _resized_across(graph: Graph, pixels: Value, bands: list[Band]) -> Value:
    def columns(part: Value, weights: Value) -> Value:
        return graph.op("MatMul", part, graph.op("Transpose", weights, perm=[1, 0]))

    return _resized(graph, pixels, bands, 3, columns)


def _resized_down(graph: Graph, pixels: Value, bands: list[Band]) -> Value:
    return _resized(graph, pixels, bands, 2, lambda part, weights: graph.op("MatMul", weights, part))


def _resized(
    graph: Graph, pixels: Value, bands: list[Band], axis: int, product: Callable[[Value, Value], Value]
) -> Value:
    """Return the images with one axis resized, band by band: most of a whole matrix would be zeros."""
    place = graph.constant([axis], np.int64)
    done = []
    for band in bands:
        part = graph.op("Slice", pixels, band.start, band.stop, place)
        done.append(_rounded(graph, product(part, band.upper), product(part, band.lower)))
    return graph.op("Concat", *done, axis=axis)


def _lengths(graph: Graph, images: Value) -> list[Value]:
    shape = graph.op("Shape", images)
    return [graph.op("Gather", shape, graph.constant(place, np.int64)).cast(np.float64) for place in (1, 2)]


def _edges(length: Value, side: Value) -> tuple[Value, Value]:
    low = (length - side) / 2.0
    return low, low + side


def _axis(graph: Graph, length: Value, side: Value, reduces: Value, size: int, support: float) -> Axis:
    low, high = _edges(length, side)
    scale = (high - low) / float(size)
    # Pillow keeps this margin around a crop that it reduces; otherwise the filter reaches as far as it is wide
    margin = graph.choose(reduces, scale * (support - 0.5), scale.at_least(1.0) * support + 1.0)
    start = (low - margin).at_least(0.0).floor()
    stop = (high + margin).ceil().at_most(length)
    factor = _factor(low, high, size)
    return Axis(length, low, high, factor, start, stop, ((stop - start) / factor).ceil())


def _factor(low: Value, high: Value, size: int) -> Value:
    return ((high - low) / float(size) / GAP).floor().at_least(1.0)


def _cut(graph: Graph, images: Value, y: Axis, x: Axis) -> Value:
    """Return the part of the images that the crop depends on."""
    starts, stops = (
        graph.op("Concat", getattr(y, name).integer().listed(), getattr(x, name).integer().listed(), axis=0)
        for name in ("start", "stop")
    )
    return graph.op("Slice", images, starts, stops, graph.constant([1, 2], np.int64))


def _reduced(graph: Graph, pixels: Value, y: Axis, x: Axis, reduces: Value) -> Value:
    """Return the images reduced by the factors of both axes: the rounded means of blocks, as Pillow computes them."""
    yes, no = graph.inner(), graph.inner()
    same = no.op("Identity", pixels)
    image = yes.value(str(pixels))
    blocks, counts, more = [], [], []
    for axis in (y, x):
        length, factor, n = (yes.value(str(one)) for one in (axis.stop - axis.start, axis.factor, axis.reduced))
        more.append((n * factor - length).integer().listed())
        blocks += [n.integer().listed(), factor.integer().listed()]
        first = yes.op("Range", yes.constant(0, np.float64), n, yes.constant(1, np.float64)) * factor
        counts.append((length - first).at_most(factor))
    zero = yes.constant([0], np.int64)
    image = yes.op("Pad", image, yes.op("Concat", *[zero] * 5, *more, zero, axis=0))
    shape = yes.op("Concat", zero, *blocks, yes.constant([-1], np.int64), axis=0)
    total = yes.op("Reshape", image, shape).cast(np.int32).sum(2, 4).cast(np.float64)
    area = yes.op(
        "Unsqueeze", counts[0].column() * counts[1], yes.op("Concat", zero, yes.constant([3], np.int64), axis=0)
    )
    # Pillow multiplies by a rounded reciprocal of the area and drops 24 bits
    reciprocal = (yes.constant(2.0**32, np.float32) / (area * 256.0).cast(np.float32)).floor().cast(np.float64)
    mean = ((total + (area / 2.0).floor()) * reciprocal / 2.0**24).floor().cast(np.uint8)
    return graph.branch(reduces, (yes, mean), (no, same), np.uint8)


def _bands(graph: Graph, axis: Axis, reduces: Value, size: int, interpolation: str) -> list[Band]:
    """Return the weights that resize one axis, in bands, and in two parts whose sum they are.

    The upper 11 fractional bits of the weights and the lower 11 are apart, so that products are exact in float32.
    """

    def single(value: Value) -> Value:  # Pillow passes the box on in single precision
        return value.cast(np.float32).cast(np.float64)

    length = graph.choose(reduces, axis.reduced, axis.length)
    offset = graph.choose(reduces, graph.constant(0.0, np.float64), axis.start)
    low, high = (
        single(graph.choose(reduces, (edge - axis.start) / axis.factor, edge)) for edge in (axis.low, axis.high)
    )
    scale = single(high - low) / float(size)
    wide = scale.at_least(1.0)
    support = wide * SUPPORT[interpolation]
    centre = graph.constant(np.arange(size) + 0.5, np.float64) * scale + low
    first = (centre - support + 0.5).at_least(0.0).floor()
    last = (centre + support + 0.5).floor().at_most(length)
    taps = support.ceil() * 2.0 + 1.0
    places = graph.op("Range", graph.constant(0.0, np.float64), taps, graph.constant(1.0, np.float64)) + first.column()
    w = _filter(graph, (places - centre.column() + 0.5) / wide, interpolation)
    w = graph.choose(places < last.column(), w, graph.constant(0.0, np.float64))
    w = w / w.sum(1).column()
    w = (w.abs() * 2.0**BITS + 0.5).floor() * graph.op("Sign", w)
    upper = (w / 2.0 ** (BITS // 2)).floor()
    lower = w - upper * 2.0 ** (BITS // 2)
    halves = [(half / 2.0**bits).cast(np.float32) for half, bits in ((upper, BITS // 2), (lower, BITS))]
    columns = (places - offset).integer()
    starts, stops = ((edge - offset).integer() for edge in (first, last))
    edges = np.linspace(0, size, min(BANDS, size) + 1).astype(np.int64)
    return [_band(graph, starts, stops, columns, halves, int(i), int(j)) for i, j in pairwise(edges)]


def _band(graph: Graph, starts: Value, stops: Value, columns: Value, halves: list[Value], i: int, j: int) -> Band:
    """Return the weights of the outputs i to j as matrices; ``columns`` (size, taps) are the places of the weights."""
    zero, one = graph.constant([0], np.int64), graph.constant([1], np.int64)
    first, last, end = (graph.constant([k], np.int64) for k in (i, j - 1, j))
    start, stop = graph.op("Gather", starts, first), graph.op("Gather", stops, last)
    places = graph.op("Sub", graph.op("Slice", columns, first, end, zero), start)
    width = graph.op("Sub", stop, start)
    taps = graph.op("Gather", graph.op("Shape", columns), one)
    room = graph.op("Concat", graph.constant([j - i], np.int64), graph.op("Add", width, taps), axis=0)
    empty = graph.op("Expand", graph.constant(0.0, np.float32), room)
    parts = [
        graph.op(
            "Slice",
            graph.op("ScatterElements", empty, places, graph.op("Slice", half, first, end, zero), axis=1),
            zero,
            width,
            one,
        )
        for half in halves
    ]
    return Band(start, stop, *parts)


def _filter(graph: Graph, x: Value, interpolation: str) -> Value:
    zero = graph.constant(0.0, np.float64)
    if interpolation == "box":
        half = graph.op("And", x > -0.5, graph.op("LessOrEqual", x, graph.constant(0.5, np.float64)))
        return graph.choose(half, graph.constant(1.0, np.float64), zero)
    if interpolation == "lanczos":
        wave = _sinc(graph, x) * _sinc(graph, x / 3.0)
        return graph.choose(x.abs() < 3.0, wave, zero)
    x = x.abs()
    if interpolation == "bilinear":
        return (graph.constant(1.0, np.float64) - x).at_least(0.0)
    near = (x * 1.5 - 2.5) * x * x + 1.0  # Keys' cubic with a = -0.5
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    return graph.choose(x < 1.0, near, graph.choose(x < 2.0, far, zero))


def _sinc(graph: Graph, x: Value) -> Value:
    x = x * np.pi
    safe = graph.choose(x.abs() < 1e-300, graph.constant(1.0, np.float64), x)
    return graph.choose(x.abs() < 1e-300, graph.constant(1.0, np.float64), graph.op("Sin", safe) / safe)


def _rounded(graph: Graph, upper: Value, lower: Value) -> Value:
    """Return the sum of both parts, rounded to integers from 0 to 255.

    Each part has at most 22 bits and the fractions of both have as many, so that all numbers are exact in float32.
    """
    upper = graph.op("Add", upper, graph.constant(0.5, np.float32))
    whole = upper.floor()
    nearest = whole + (upper - whole + lower).floor()
    return graph.op("Clip", nearest, graph.constant(0.0, np.float32), graph.constant(255.0, np.float32))
