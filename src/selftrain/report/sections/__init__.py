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
from selftrain.report.sections.guard import guard
from selftrain.report.sections.label_next import label_next
from selftrain.report.sections.mistakes import mistakes
from selftrain.report.sections.pile_map import pile_map
from selftrain.report.sections.pseudo_labels import pseudo_labels
from selftrain.report.sections.settings import settings
from selftrain.report.sections.training import training
from selftrain.report.sections.unlabeled import unlabeled
from selftrain.report.sections.worst_case import worst_case

SECTIONS: tuple[Callable[[Sequence[RunData]], Section], ...] = (
    label_next,
    pile_map,
    classes,
    confusion,
    mistakes,
    calibration,
    guard,
    unlabeled,
    pseudo_labels,
    bias,
    training,
    worst_case,
    settings,  # stays last: the page says before it what the runs lack
)
SCIENCE = frozenset({"guard", "unlabeled", "pseudo", "bias", "training", "worst"})
"""ids of the sections about how self-training works, which a reader who only wants a model can skip"""
