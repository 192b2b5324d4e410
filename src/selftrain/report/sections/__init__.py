"""The sections of the page, in the order in which they appear.

A section is a function in a module of its own: it gets the runs and returns a ``Section``. To add one, write the module
and add its function to ``SECTIONS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from selftrain.report.run_data import RunData
from selftrain.report.section import Section
from selftrain.report.sections.bias import bias
from selftrain.report.sections.calibration import calibration
from selftrain.report.sections.classes import classes
from selftrain.report.sections.confusion import confusion
from selftrain.report.sections.gallery import examples
from selftrain.report.sections.guard import guard
from selftrain.report.sections.pseudo_labels import pseudo_labels
from selftrain.report.sections.settings import settings
from selftrain.report.sections.training import training
from selftrain.report.sections.unlabeled import unlabeled
from selftrain.report.sections.worst_case import worst_case

SECTIONS: tuple[Callable[[Sequence[RunData]], Section], ...] = (
    guard,
    classes,
    bias,
    training,
    pseudo_labels,
    unlabeled,
    worst_case,
    confusion,
    calibration,
    examples,
    settings,  # stays last: the page says before it what the runs lack
)
