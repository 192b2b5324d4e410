"""Fault injection: a run and an extraction in which the Nth system call fails, for every N, and what comes after.

    python -m tests.safety.faults [--only frozen --only write ...] [--sample N] [--seed S] [--count] [--out FILE]

Each case starts the command in a new folder with one fault: a call that fails once, a disk that stays full (half of a
write arrives), a kill, or a power failure, after which files have only what was synced. Then the command is repeated
without faults, with --resume where there is a run. The end must be that of an undisturbed run, bit for bit, and every
error one line. Needs Linux, glibc and a C compiler; knows nothing of how files are written.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.safety.forks import (
    ALLOC,
    CHANGE,
    COPY,
    DIED,
    ENTRY,
    FROM_THEN_ON,
    HUNG,
    MAP,
    NOTHING,
    ONCE,
    OPEN,
    SLOWEST,
    SYNC,
    WRITE,
    Fault,
    in_a_fork,
    lose_power,
)  # fmt: skip
from tests.safety.scenarios import SCENARIOS, Scenario

PRELOADED = "SELFTRAIN_FAULTS_PRELOADED"
FAULTS = {
    "open": Fault(OPEN, ONCE, errno.EIO),
    "write": Fault(WRITE, ONCE, errno.EIO),
    "full disk": Fault(WRITE, FROM_THEN_ON, errno.ENOSPC),
    "fsync": Fault(SYNC, ONCE, errno.EIO),
    "rename, unlink, mkdir": Fault(ENTRY, ONCE, errno.EIO),
    "mmap": Fault(MAP, ONCE, errno.ENOMEM),
    "allocation of 256 kB or more": Fault(ALLOC, ONCE, errno.ENOMEM),
}
ENDS = {"kill": "", "power failure, unsynced files lost": "all", "power failure, unsynced pages zero": "data"}
"""ways to end before a call, and what is lost then: nothing, all that was not synced, or the content of such pages"""


@dataclass
class Tally:
    """What the cases of one fault in one scenario came to."""

    scenario: str
    fault: str
    cases: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)


def try_case(scenario: Scenario, expected: dict[str, str], case: Path, fault: Fault, at: int) -> tuple[str, str]:
    """Run one case; return how it ended, and what is wrong with it ("" if nothing is)."""
    _new_case(scenario, case)
    code, said = in_a_fork(scenario.words(case), case, fault, at)
    aborted = fault.kind == ALLOC and code == -signal.SIGABRT  # Rust libraries end the process
    if not aborted and (wrong := _wrong(code, said)):
        return "", f"{wrong}: {_end_of(said)}"
    end = "not needed"
    if code:
        end, wrong = _recover(scenario, case)
        if wrong:
            return "", f"{wrong} (after: {_end_of(said)})"
    return end, _difference(scenario, expected, case)


def _difference(scenario: Scenario, expected: dict[str, str], case: Path) -> str:
    try:
        found = scenario.outcome(case)
    except Exception as error:
        return f"incomplete: {error!r}"
    differing = [name for name in expected if found[name] != expected[name]]
    return f"other {', '.join(differing)} than without a fault" if differing else ""


def try_ends(
    scenario: Scenario, expected: dict[str, str], case: Path, lost: str, chosen: Callable[[list[int]], list[int]]
) -> Iterator[tuple[int, str, str]]:
    """Continue from every state that a kill or a power failure can leave; yield its number and what became of it."""
    _new_case(scenario, case)
    code, said = in_a_fork(scenario.words(case), case, Fault(CHANGE, COPY))
    assert code == 0, said
    lines = (case.parent / "journal.txt").read_text().splitlines()
    places = {int(line.split("\t")[1]): i for i, line in enumerate(lines) if line.startswith("N")}
    states = case.parent / "states"
    shutil.rmtree(states, ignore_errors=True)
    os.rename(case.parent / "backups", states)  # the next command makes its own
    last = -1
    for number in chosen(sorted(places)):
        at = places[number]
        same = last >= 0 and all(line[0] in ("SN" if not lost else "N") for line in lines[last:at])
        last = at
        if same:
            yield number, "the same files as before the call before", ""
            continue
        shutil.rmtree(case)
        shutil.copytree(states / f"state-{number}", case, symlinks=True)
        if lost and not lose_power(lines[:at], states, lost):
            yield number, "nothing lost", ""
            continue
        end, wrong = _recover(scenario, case)
        yield number, end, wrong or _difference(scenario, expected, case)


def _recover(scenario: Scenario, case: Path) -> tuple[str, str]:
    """Repeat the command as its errors advise; return how, and what is wrong."""
    words, end = scenario.words(case), "identical"
    more = ["--resume"] if scenario.resumes and (case / "run").exists() else []
    for _ in range(3):
        code, said = in_a_fork([*words, *more], case, None)
        if code == 0:
            return end, ""
        if wrong := _wrong(code, said):
            return "", f"{wrong} on the second try: {_end_of(said)}"
        if "is not a run folder" in said:
            more = []
        elif "to start the run again from its first step" in said:
            shutil.rmtree(case / "run/checkpoints")
            end = "refused, then identical"
        else:
            break
    return "", f"a dead end: {_end_of(said)}"


def _wrong(code: int, said: str) -> str:
    if code == HUNG:
        return f"more than {SLOWEST} seconds"
    if "Traceback" in said or code not in (0, 1, 2, DIED):
        return f"a traceback or exit code {code}"
    return "no error line" if code in (1, 2) and "error:" not in said else ""


def _end_of(said: str) -> str:
    return " / ".join(said.split("\n")[-4:])[-400:] if "Traceback" in said else " ".join(said.split())[-400:]


def inject(
    names: list[str], sample: int | None, seed: int, say: Callable[[str], object], out: Path | None = None
) -> list[Tally]:
    """Run the cases of each scenario and fault: all of them, or a sample. What ``out`` holds is not repeated."""
    lines = out.read_text().splitlines() if out is not None and out.exists() else []
    found = {(tally.scenario, tally.fault): tally for tally in (Tally(**json.loads(line)) for line in lines)}
    titles = [title for title in (*FAULTS, *ENDS) if not set(names) & {*FAULTS, *ENDS} or title in names]
    with tempfile.TemporaryDirectory() as temporary:
        case = Path(temporary).resolve() / "case"
        for name in _scenarios(names):
            left = [title for title in titles if (name, title) not in found]
            if not left:
                continue
            _warm_up(SCENARIOS[name], case)
            expected, counts = _undisturbed(SCENARIOS[name], case)
            for title in left:
                tally = found[name, title] = Tally(name, title)

                def chosen(places: list[int], name: str = name, title: str = title) -> list[int]:
                    if sample is None or sample >= len(places):
                        return places
                    return sorted(random.Random(f"{seed} {name} {title}").sample(places, sample))

                for at, end, wrong in _cases(SCENARIOS[name], title, expected, counts, case, chosen):
                    tally.cases += 1
                    if wrong:
                        tally.bad.append(f"{name}, {title} {at}: {wrong}")
                        say(tally.bad[-1])
                    else:
                        tally.ends[end] = tally.ends.get(end, 0) + 1
                ends = ", ".join(f"{count} {end}" for end, count in sorted(tally.ends.items()))
                say(f"| {name} | {title} | {tally.cases} | {ends} | {len(tally.bad)} |")
                if out is not None:
                    with out.open("a") as file:
                        file.write(json.dumps(asdict(tally)) + "\n")
    return [tally for (name, title), tally in found.items() if name in _scenarios(names) and title in titles]


def _cases(
    scenario: Scenario,
    title: str,
    expected: dict[str, str],
    counts: list[int],
    case: Path,
    chosen: Callable[[list[int]], list[int]],
) -> Iterator[tuple[int, str, str]]:
    """Yield the number of a call at which there was a fault, how it ended, and what is wrong."""
    if title in ENDS:
        yield from try_ends(scenario, expected, case, ENDS[title], chosen)
        return
    fault = FAULTS[title]
    for at in chosen(list(range(1, counts[fault.kind] + 1))):
        yield at, *try_case(scenario, expected, case, fault, at)


def count(names: list[str]) -> None:
    """Print how many calls of each kind a command makes, and how long it takes."""
    with tempfile.TemporaryDirectory() as temporary:
        case = Path(temporary).resolve() / "case"
        for name in _scenarios(names):
            _warm_up(SCENARIOS[name], case)
            begun = time.monotonic()
            _, counts = _undisturbed(SCENARIOS[name], case)
            kinds = [f"{counts[fault.kind]} {title}" for title, fault in FAULTS.items()]
            kinds += [f"{counts[CHANGE]} {title}" for title in ENDS]
            print(f"{name}: {', '.join(kinds)}; {time.monotonic() - begun:.1f} seconds", flush=True)


def _scenarios(names: list[str]) -> list[str]:
    return [name for name in SCENARIOS if not set(names) & set(SCENARIOS) or name in names]


def _undisturbed(scenario: Scenario, case: Path) -> tuple[dict[str, str], list[int]]:
    """Return what the command leaves, and how many calls of each kind it makes."""
    _new_case(scenario, case)
    code, said = in_a_fork(scenario.words(case), case, Fault(NOTHING, ONCE))
    assert code == 0, said
    return scenario.outcome(case), json.loads((case.parent / "counts.json").read_text())


def _preload() -> None:
    """Become the same command with the shim, compiled for this machine, in front of the C library."""
    folder = Path(tempfile.mkdtemp())
    shim = folder / "faults.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-w", "-o", shim, source, "-ldl"], check=True)
    settings = {"LD_PRELOAD": str(shim), PRELOADED: str(folder), "OMP_NUM_THREADS": "1", "SELFTRAIN_OFFLINE": "1"}
    words = [sys.executable, "-m", "tests.safety.faults", *sys.argv[1:]]
    os.execve(sys.executable, words, {**os.environ, **settings})


def _warm_up(scenario: Scenario, case: Path) -> None:
    """Run a command once in this process, so that its forks have nothing to import or build."""
    import torch

    from selftrain.cli import main

    torch.set_num_threads(1)
    os.environ["SELFTRAIN_CACHE"] = str(case / "cache")
    _new_case(scenario, case)
    sys.argv = ["selftrain", *scenario.words(case)]
    with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
        main()
    assert threading.active_count() == 1, threading.enumerate()  # a fork would lose the others


def _new_case(scenario: Scenario, case: Path) -> None:
    shutil.rmtree(case, ignore_errors=True)
    case.mkdir()
    scenario.prepare(case)


def main() -> None:
    if PRELOADED not in os.environ:
        _preload()
    shutil.rmtree(os.environ[PRELOADED])
    del os.environ["LD_PRELOAD"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", action="append", default=[], choices=[*SCENARIOS, *FAULTS, *ENDS], help="may be repeated"
    )
    parser.add_argument("--sample", type=int, help="cases of each fault; all by default")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--out", type=Path, help="file for results; a fault that is in it is not repeated")
    parser.add_argument("--count", action="store_true", help="print the number of calls, and run no cases")
    options = parser.parse_args()
    if options.count:
        count(options.only)
        return
    started = time.monotonic()
    tallies = inject(options.only, options.sample, options.seed, lambda line: print(line, flush=True), options.out)
    bad = sum(len(tally.bad) for tally in tallies)
    print(
        f"{sum(tally.cases for tally in tallies)} cases, {bad} bad, in {(time.monotonic() - started) / 60:.1f} minutes"
    )
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
