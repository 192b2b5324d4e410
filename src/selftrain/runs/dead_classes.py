"""The alarm about dead classes: which classes a run has stopped predicting, and what helps.

Knows nothing of models: it reads rows of metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selftrain.methods.base import Method

ENOUGH = 5.0
"""expected pseudo labels of a class, at its earlier share, below which having none means nothing"""


def dead_classes(rows: Sequence[dict[str, Any]], present: Sequence[bool]) -> set[int]:
    """Return the classes that an earlier row predicted and the last one does not.

    They are judged on the evaluated set, among the classes ``present`` in it; without one, on the pseudo labels since
    the row before, if there are enough of them to tell.
    """
    if not rows:
        return set()
    name = "predicted" if rows[-1].get("predicted") is not None else "pseudo_predicted"
    counts = [row[name] for row in rows if row.get(name) is not None]
    if rows[-1].get(name) is None:
        return set()
    dead = set()
    for k, now in enumerate(counts[-1]):
        then = next((row for row in reversed(counts[:-1]) if row[k]), None)
        if now or then is None:
            continue
        expected = sum(counts[-1]) * then[k] / sum(then)
        if present[k] if name == "predicted" else expected >= ENOUGH:
            dead.add(k)
    return dead


def new_alarms(rows: Sequence[dict[str, Any]], present: Sequence[bool]) -> list[int]:
    """Return the classes that have died since the row before the last; a class that recovers may die again."""
    return sorted(dead_classes(rows, present) - dead_classes(rows[:-1], present))


def advice(method: Method) -> str:
    """Say what helps a dying class, for this method."""
    base: Any = getattr(method, "base", method)
    ways = []
    if base is method and method.can_be_base():
        ways.append(f'train with DST (`method="dst({method.name})"`)')
    if getattr(base, "tau", 0) > 0.5:
        option = "method.tau" if base is method else "method.base.tau"
        ways.append(f"lower the threshold (`{option}={max(0.5, base.tau - 0.2):.2g}`)")
    return " or ".join([*([", ".join(ways)] if ways else []), "label more images of it"])


def alarm(names: Sequence[str], method: Method, when: str, what: str) -> str:
    """Return a warning about classes that are ``what``, and what to do about it."""
    some = ", ".join(repr(name) for name in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    subject = f"class {some} is" if len(names) == 1 else f"classes {some} are"
    help_ = advice(method)
    return f"{when}: {subject} {what}. {help_[0].upper()}{help_[1:]}."
