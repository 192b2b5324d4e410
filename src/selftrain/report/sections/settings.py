"""Section: the settings of the runs, and what differs between them.

Knows nothing of what a setting does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from selftrain.report.run_data import RunData
from selftrain.report.section import Folders, Section, SettingsTable, only

RECORDED = ("method", "steps", "labeled", "unlabeled", "split_hash", "selftrain", "torch")
"""results that say how a run was made"""


def settings(runs: Sequence[RunData]) -> Section:
    section = Section("settings", "Settings", "How the run was made" if only(runs) else "How the runs were made")
    names = dict.fromkeys(name for run in runs for name in run.settings)
    rows = [(name, [_text(run.settings.get(name)) for run in runs]) for name in names]
    recorded = [(name, [_text(cast(Mapping[str, Any], run.results).get(name)) for run in runs]) for name in RECORDED]
    different = [row for row in rows if len(set(row[1])) > 1]
    if different:
        section.blocks.append(SettingsTable("Differences", different, open=True))
    section.blocks.append(SettingsTable("All settings", rows))
    section.blocks.append(SettingsTable("Data and versions", recorded))
    section.blocks.append(Folders([(run.name, str(run.folder)) for run in runs]))
    return section


def _text(value: Any) -> str:
    return "–" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
