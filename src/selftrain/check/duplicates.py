"""Images that occur more than once: copies of a file, and images that are nearly the same.

Knows nothing of files: copies have the same content, and near-duplicates have nearly the same features and colours.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from selftrain.check.findings import Finding, Kind, Level
from selftrain.check.pool import Pool

CHUNK = 1024
ALIKE = 0.85
"""cosine of the features of near-duplicates, at least: strong compression moves features, and colours hardly"""
SAME_COLOURS = 0.99
"""correlation of their thumbnails, at least"""
Pairs = NDArray[np.int64]


def find_duplicates(pool: Pool) -> list[Finding]:
    """Return one finding for each group of images that are the same or nearly the same."""
    contents = _contents(pool)
    same = _equal_pairs(contents)
    near = near_pairs(pool.features, pool.thumbnails)
    exact = {frozenset(pair) for pair in same.tolist()}
    findings = []
    for group in _groups(len(pool), np.concatenate([same, near])):
        inside = [frozenset((a, b)) in exact for i, a in enumerate(group) for b in group[i + 1 :]]
        findings.append(_finding(pool, group, exact=bool(inside) and all(inside)))
    return findings


def _contents(pool: Pool) -> list[bytes]:
    return [pool.images.content(i) for i in range(len(pool))]


def _equal_pairs(contents: list[bytes]) -> Pairs:
    """Return pairs of positions with the same content; all others of a group are paired with its first."""
    first: dict[bytes, int] = {}
    pairs = []
    for i, content in enumerate(contents):
        if content and first.setdefault(content, i) != i:
            pairs.append((first[content], i))
    return np.array(pairs, np.int64).reshape(-1, 2)


def near_pairs(features: NDArray[np.float32], small: NDArray[np.uint8]) -> Pairs:
    """Return pairs of images whose features and colours are nearly the same."""
    x = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    colours = small.astype(np.float32)
    colours -= colours.mean(axis=1, keepdims=True)
    colours /= np.maximum(np.linalg.norm(colours, axis=1, keepdims=True), 1e-6)
    found = []
    for start in range(0, len(x), CHUNK):
        rows = slice(start, start + CHUNK)
        alike = (x[rows] @ x[start:].T > ALIKE) & (colours[rows] @ colours[start:].T > SAME_COLOURS)
        found.append(np.stack(np.nonzero(np.triu(alike, 1)), axis=1) + start)
    return np.concatenate([np.empty((0, 2), np.int64), *found]).astype(np.int64)


def _groups(n: int, pairs: Pairs) -> Iterator[list[int]]:
    """Yield the connected groups of a graph with more than one member, by their first one."""
    from scipy import sparse
    from scipy.sparse.csgraph import connected_components

    if not len(pairs):
        return
    graph = sparse.coo_matrix((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(n, n))
    _, number = connected_components(graph, directed=False)
    members = np.unique(pairs)
    order = members[np.argsort(number[members], kind="stable")]
    edges = np.flatnonzero(np.diff(number[order])) + 1
    yield from sorted(np.sort(group).tolist() for group in np.split(order, edges))


def _finding(pool: Pool, group: list[int], *, exact: bool) -> Finding:
    parts = [pool.parts[i] for i in group]
    labels = {int(pool.labels[i]) for i, part in zip(group, parts, strict=True) if part == "labeled"}
    rows = sorted(group, key=lambda i: ("labeled", "test", "unlabeled").index(pool.parts[i]))
    names = tuple(pool.images.names[i] for i in rows)
    how = "is the same file as" if exact else "is nearly the same image as"
    text = f"{names[0]} {how} {names[1]}" + (f" and {len(names) - 2} more" if len(names) > 2 else "")
    captions = tuple(_caption(pool, i) for i in rows)
    details = {"identical": exact, "parts": [pool.parts[i] for i in rows]}
    kind: Kind = "duplicate"
    level: Level = "warning" if parts.count("labeled") > 1 else "note"
    if "test" in parts and set(parts) != {"test"}:
        kind, level = "leak", "error"
    elif len(labels) > 1:
        kind = "conflict"
    return Finding(kind, level, text, names, tuple(rows), captions, details)


def _caption(pool: Pool, i: int) -> str:
    return f"{pool.parts[i]}: {pool.classes[pool.labels[i]]}" if pool.labels[i] >= 0 else pool.parts[i]
