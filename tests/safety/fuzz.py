"""Seeded hostile inputs for every reader: none may raise anything but a one-line error, hang, or fill the memory.

A case is a small valid file with a few bytes, fields or shapes changed at random, and the reader that has to refuse or
accept it. ``python -m tests.safety.fuzz 20000`` runs many cases and reports the slowest one and the peak of memory.
"""

from __future__ import annotations

import random
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from selftrain.errors import UserError
from tests.safety.readers import READERS, SLOW, Case
from tests.safety.seeds import Seeds


class Found:
    """What a run over many cases showed."""

    def __init__(self) -> None:
        self.cases: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.errors: list[str] = []
        self.slowest = (0.0, "")


def fuzz(count: int, seed: int = 0, names: tuple[str, ...] = tuple(READERS)) -> Found:
    """Run ``count`` seeded cases, shared by the readers."""
    found = Found()
    share = {name: 0.15 if name in SLOW else 1.0 for name in names}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "seeds").mkdir()
        seeds = Seeds(folder / "seeds")
        for name in names:
            case = READERS[name](seeds)
            place = folder / "cases" / name.replace(".", "-")
            (place / "checkpoints").mkdir(parents=True)
            for file in (seeds.folder / "checkpoints").glob("state-*"):
                shutil.copy(file, place / "checkpoints")
            for i in range(max(1, round(count * share[name] / sum(share.values())))):
                _run(found, case, place, name, f"{seed}-{name}-{i}")
    return found


def _run(found: Found, case: Case, place: Path, name: str, seed: str) -> None:
    begun = time.monotonic()
    found.cases[name] += 1
    try:
        case(place, random.Random(seed))
    except UserError as error:
        found.refused[name] += 1
        if "\n" in str(error).strip():
            found.errors.append(f"{seed}: an error of several lines: {error}")
    except Exception:
        last = traceback.format_exc().strip().splitlines()
        found.errors.append(f"{seed}: {last[-1]} <- {last[-3].strip() if len(last) > 2 else ''}")
    taken = time.monotonic() - begun
    found.slowest = max(found.slowest, (taken, seed))


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    found = fuzz(count, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    status = Path("/proc/self/status")
    peak = re.search(r"VmHWM:\s+(\d+)", status.read_text()) if status.exists() else None
    print(f"{sum(found.cases.values())} cases, {sum(found.refused.values())} refused, {len(found.errors)} other errors")
    print(f"slowest: {found.slowest[0]:.2f} s ({found.slowest[1]}); peak: {int(peak[1]) / 1e6 if peak else 0:.2f} GB")
    kinds = Counter(re.sub(r"^\S+: ", "", error) for error in found.errors)
    for kind, number in kinds.most_common(40):
        print(f"{number:5d}  {kind}")


if __name__ == "__main__":
    main()
