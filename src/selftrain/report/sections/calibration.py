"""Section: whether the model's confidence matches its accuracy.

Knows nothing of how confidences are calibrated.
"""

from __future__ import annotations

from collections.abc import Sequence

from selftrain.report.charts import Axis, Series, line_chart, percent
from selftrain.report.run_data import RunData, noun_of
from selftrain.report.section import SHARE, Section, only

COVERAGE = Axis("labeled share", percent, 0.0, 1.0)
CONFIDENCE = Axis("confidence", percent, 0.0, 1.0)


def calibration(runs: Sequence[RunData]) -> Section:
    section = Section("calibration", "Confidence", "Can you believe its confidence?")
    noun = noun_of(runs)
    bins = [sorted((c, a) for n, c, a in run.value("calibration") or () if n) for run in runs]
    series = [Series(i, run.name, found) for i, (run, found) in enumerate(zip(runs, bins, strict=True)) if found]
    if not series:
        if any(run.per_class for run in runs):
            section.note("Confidences were not stored (older versions did not store them).")
        return section
    errors = "; ".join(f"{run.name}: {percent(e)}" for run in runs if (e := run.value("ece")) is not None)
    label = f"Accuracy over confidence. Expected calibration error: {errors}."
    section.figure(
        "reliability",
        "Accuracy over confidence",
        f"Accuracy of {noun} with similar confidence. On the diagonal, confidence equals accuracy; below it, the model "
        "is overconfident.",
        line_chart(label, series, SHARE, CONFIDENCE, diagonal=True),
    )
    _coverage(section, runs)
    if run := only(runs):
        if (error := run.value("ece")) is not None:
            section.title = f"Its confidence differs from its accuracy by {100 * error:.1f} points on average"
            section.text = (
                f"This is the expected calibration error, the mean distance from the diagonal.{_before(runs)}"
            )
    elif errors:
        section.text = f"Expected calibration error, the mean distance from the diagonal: {errors}.{_before(runs)}"
    return section


def _before(runs: Sequence[RunData]) -> str:
    """Return the errors before probabilities were calibrated, as a sentence."""
    known = [(run.name, found["ece_before"]) for run in runs if (found := run.results.get("calibrated"))]
    before = "; ".join(f"{name}: {percent(error)}" for name, error in known if error is not None)
    if len(runs) == 1 and before:
        return f" Before calibration, it was {before.rpartition(': ')[2]}."
    return f" Before calibration: {before}." if before else ""


def _coverage(section: Section, runs: Sequence[RunData]) -> None:
    """Add the accuracy of the surest images, for runs that have it."""
    series = [
        Series(i, run.name, [(share, accuracy) for share, accuracy, _ in run.results.get("risk_coverage") or ()])
        for i, run in enumerate(runs)
    ]
    series, noun = [line for line in series if line.points], noun_of(runs)
    if series:
        section.figure(
            "coverage",
            f"Accuracy of the surest {noun}",
            f"If only the surest {noun} get a label (selftrain predict --coverage), these are more accurate.",
            line_chart(f"Accuracy of the surest {noun} over their share.", series, SHARE, COVERAGE),
        )
