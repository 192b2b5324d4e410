"""Section: a map of the pile, on which images that look alike lie near each other.

Knows nothing of how the places are computed; see ``selftrain.runs.pool_map``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from selftrain.report.charts import MapPoint, Table, map_chart
from selftrain.report.run_data import Array, RunData, noun_of
from selftrain.report.section import Map, Section, headed
from selftrain.runs.notable import NOVEL

UNSURE = 0.5
"""predictions with a lower confidence are called unsure"""
STATES = ("labeled", "predicted", "unsure", "unknown")
MOST_IN_TABLE = 400


def pile_map(runs: Sequence[RunData]) -> Section:
    section = Section("map", "Map", "A map of your pile")
    for i, run in enumerate(runs):
        if {"map_x", "map_y", "map_label", "map_predicted", "map_confidence"} <= set(run.outputs):
            section.blocks.append(_map(runs, i, run))
    if section.blocks:
        noun = noun_of(runs)
        section.text = (
            f"Each point is one of your {noun}; {noun} that look alike to the network lie near each other. Distances "
            "between groups mean little. Groups without a label, and groups of unsure or unknown points, are good "
            f"places to look for {noun} to label."
        )
    return section


def _map(runs: Sequence[RunData], i: int, run: RunData) -> Map:
    out = run.outputs
    states = _states(out["map_label"], out["map_confidence"], out.get("map_novelty"))
    names = out.get("map_names", np.arange(len(states)).astype(str))
    points = [
        MapPoint(float(x), float(y), STATES[state], str(name), int(k), float(p))
        for x, y, state, name, k, p in zip(
            *(np.nan_to_num(out[f"map_{axis}"]).clip(0, 1) for axis in "xy"),
            states,
            names,
            out["map_predicted"],
            np.nan_to_num(out["map_confidence"]),
            strict=True,
        )
    ]
    counts = [int((states == s).sum()) for s in range(len(STATES))]
    said = ", ".join(f"{n} {state}" for n, state in zip(counts, STATES, strict=True) if n)
    total = len(out.get("pool_predicted", states))
    shown = f"{len(points):,} of {total:,}" if total > len(points) else f"{len(points):,}"
    caption = (
        f"{shown} {run.noun}: {said}. Unsure: confidence below {100 * UNSURE:.0f}%."
        + (" Unknown: looks like none of the classes." if "map_novelty" in out else "")
        + " Places are computed with t-SNE."
    )
    chart = map_chart(f"Map of the pile. {caption}", i, points, run.classes)
    title = headed(runs, i, f"{len(points):,} {run.noun} by likeness")
    return Map(f"map-{i}", title, caption, chart, i, run.classes, _table(run))


def _states(label: Array, confidence: Array, novelty: Array | None) -> Array:
    """Return the position in ``STATES`` of each point."""
    states = np.where(confidence < UNSURE, 2, 1)
    if novelty is not None:
        states[novelty > NOVEL] = 3
    states[label >= 0] = 0
    return states


def _table(run: RunData) -> Table | None:
    """Return how many unlabeled images of the whole pile are predicted, unsure and unknown, class by class."""
    out, K = run.outputs, len(run.classes)
    if "pool_predicted" not in out or "pool_confidence" not in out or K > MOST_IN_TABLE:
        return None
    names = out.get("pool_names")
    labeled = np.zeros(len(out["pool_predicted"]), bool) if names is None else np.isin(names, list(run.labeled_names))
    states = _states(np.where(labeled, 0, -1), out["pool_confidence"], out.get("pool_novelty"))
    given = [entry.get("label") for entry in run.split.get("labeled") or ()]
    rows = []
    for k, name in enumerate(run.classes):
        mine = states[out["pool_predicted"] == k]
        rows.append([name, str(given.count(name)), *(f"{int((mine == s).sum()):,}" for s in (1, 2, 3))])
    return Table(["class", *STATES], rows, f"All unlabeled {run.noun} by their predicted class.")
