"""What a check has found, in plain values that become JSON, text and HTML.

Knows nothing of how it was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Level = Literal["error", "warning", "note"]
Kind = Literal["leak", "duplicate", "conflict", "label", "classes", "image", "unreadable", "mirror", "uneven"]
TITLES: dict[Kind, str] = {
    "leak": "Test images that training also sees",
    "conflict": "The same image with two labels",
    "label": "Labels that are likely wrong",
    "classes": "Classes that cannot be told apart",
    "duplicate": "Duplicates",
    "unreadable": "Images that cannot be read",
    "image": "Odd images",
    "mirror": "Mirror images",
    "uneven": "Uneven labels",
}
"""in the order in which findings are shown"""


@dataclass(frozen=True)
class Finding:
    """One problem: what it is, and the images that show it."""

    kind: Kind
    level: Level
    text: str
    images: tuple[str, ...] = ()
    """names of images; the first one has the problem, and the others explain it"""
    rows: tuple[int, ...] = ()
    """their positions in the pool"""
    captions: tuple[str, ...] = ()
    """one per image"""
    details: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        values = asdict(self)
        del values["rows"], values["captions"]
        return values


def counts(findings: Sequence[Finding]) -> dict[str, int]:
    """Return the number of findings of each kind that occurs."""
    return {kind: n for kind in TITLES if (n := sum(one.kind == kind for one in findings))}
