"""The result of a sweep: the best settings, and a table of all trials.

Knows nothing of Optuna, nor of how a trial is run.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selftrain.config.options import spell
from selftrain.config.resolve import dump_settings
from selftrain.files import write_text
from selftrain.runs.resolve import resolve


@dataclass(frozen=True)
class Result:
    number: int
    """of the best trial"""
    value: float
    """its accuracy on held-out labels"""
    best: dict[str, Any]
    """its settings"""
    trials: list[dict[str, Any]]
    """one entry per trial"""

    def csv(self) -> str:
        file = io.StringIO()
        writer = csv.DictWriter(file, self._columns(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.trials)
        return file.getvalue()

    def markdown(self) -> str:
        """Return the table of all trials, the best first."""
        names = [name for name in self._columns() if name != "reason"]
        ranked = sorted(self.trials, key=lambda t: (t["state"] != "complete", -(t["value"] or 0), t["trial"]))
        lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
        for trial in ranked:
            words = ["-" if trial.get(name) in (None, "") else _word(name, trial[name]) for name in names]
            lines.append("| " + " | ".join(words) + " |")
        return "\n".join(lines)

    def _columns(self) -> list[str]:
        return list(dict.fromkeys(name for trial in self.trials for name in trial))

    def write(self, folder: Path, given: Mapping[str, Any]) -> None:
        """Write ``best.yaml``, for training with all labels and the settings ``given``, and the tables of trials."""
        settings, _ = resolve({**given, **self.best})
        body = dump_settings(settings).partition("\n")[2]
        head = f"# The best of {len(self.trials)} trials, on all labels: selftrain train --config best.yaml --out RUN\n"
        write_text(folder / "best.yaml", head + body)
        write_text(folder / "trials.csv", self.csv())
        write_text(folder / "trials.md", self.markdown() + "\n")


def _word(name: str, value: Any) -> str:
    return f"{100 * value:.1f}" if name == "value" else spell(value)
