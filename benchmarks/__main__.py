"""Run the comparisons; print them as a table and write ``bench.json``.

python -m benchmarks [--quick] [--only GROUP] [--clock cpu]
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import platform
import time
from pathlib import Path

import torch

from benchmarks.ratios import CLOCK, HEADING, Row
from selftrain.engine.allocator import keep_freed_memory

# Fast ones first. A group is a module of this folder with a function rows().
GROUPS = (
    "start", "parts", "augment", "frozen", "observers", "extraction", "features", "store", "arrays", "guard", "checks",
    "inputs", "engine", "memory", "ranks", "cluster",
)  # fmt: skip
SLOW = ("memory", "ranks", "features", "store", "arrays", "guard", "checks", "cluster")  # not with --quick


def main() -> None:
    available = [name for name in GROUPS if importlib.util.find_spec(f"benchmarks.{name}")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", action="append", choices=available, help="a group of rows; may be given several times"
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds, without the slow groups")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall",
                        help="cpu: CPU time of one thread, for a machine shared with others")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("bench.json"), help="file to write")
    parser.add_argument("--markdown", action="store_true", help="print the file as a table, without measuring")
    options = parser.parse_args()
    if options.markdown:
        print("| | ratio | quartiles | bar |\n|---|---|---|---|")
        for values in json.loads(options.out.read_text())["rows"]:
            values.pop("holds")
            print(Row(**values).as_markdown())
        return
    CLOCK.cpu, CLOCK.quick = options.clock == "cpu", options.quick
    keep_freed_memory()  # as the command line does
    rows: list[Row] = []
    started = time.monotonic()
    print(HEADING)
    for name in options.only or [name for name in available if not (options.quick and name in SLOW)]:
        module = importlib.import_module(f"benchmarks.{name}")
        if not hasattr(module, "rows"):
            continue
        torch.manual_seed(0)
        for row in module.rows():
            row = row if isinstance(row, Row) else Row(**{key: row[key] for key in ("name", "ratio", "bar")})
            print(row.as_text(), flush=True)
            rows.append(row)
    minutes = (time.monotonic() - started) / 60
    about = {"torch": torch.__version__, "threads": torch.get_num_threads(), "machine": platform.machine(),
             "clock": options.clock, "minutes": round(minutes, 1)}  # fmt: skip
    options.out.write_text(json.dumps({"rows": [row.as_json() for row in rows], "about": about}, indent=1) + "\n")
    failed = [row.name for row in rows if row.holds is False]
    print(f"{len(rows)} rows in {minutes:.1f} minutes, written to {options.out}; "
          f"{len(failed)} of {sum(row.bar is not None for row in rows)} bars do not hold")  # fmt: skip


if __name__ == "__main__":
    main()
