"""How a backbone expects its pixels.

Knows nothing of networks or images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from selftrain.config.options import Above, Between


@dataclass(frozen=True)
class Preprocessing:
    """How a backbone expects its pixels: x = (pixel/255 - mean) / std."""

    mean: tuple[float, ...]
    """one value per channel"""
    std: tuple[Annotated[float, Above(0)], ...]
    size: Annotated[int, Between(0, 4096)]
    """side in pixels at which the weights were trained; with random weights, the requested or intended side"""
    interpolation: str
    """bilinear, bicubic or nearest"""
    crop: Annotated[float, Between(0, 1)] = 1.0
    """share of the shorter side that the central crop of a clean view keeps"""
    zoom: Annotated[float, Between(0, 1)] = 0.0
    """share of that crop which a second, smaller one keeps; clean features are the mean of both; 0: none"""
