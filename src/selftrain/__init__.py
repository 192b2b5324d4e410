"""selftrain: an accurate image classifier from a handful of labels and a pile of unlabeled images.

>>> import selftrain
>>> run = selftrain.train("photos/", labels="labels.csv", method="dst(fixmatch)")  # doctest: +SKIP
>>> run.predict("new/").save("predictions.csv")  # doctest: +SKIP

Public are the names in ``__all__`` and, for a training loop of your own, the modules in ``PUBLIC_MODULES``. Everything
else is private and may change from one version to the next.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from selftrain.openmp import wait_passively
from selftrain.version import __version__

if TYPE_CHECKING:
    from selftrain.api import ExportedModel, Run, keep_freed_memory, pseudo_label_measures, train, write_report
    from selftrain.errors import UserError
    from selftrain.estimator import DSTClassifier, FrozenFeatures, LabeledStratifiedKFold, LabelQuery

__all__ = [
    "DSTClassifier",
    "ExportedModel",
    "FrozenFeatures",
    "LabelQuery",
    "LabeledStratifiedKFold",
    "Run",
    "UserError",
    "__version__",
    "keep_freed_memory",
    "pseudo_label_measures",
    "train",
    "write_report",
]

PUBLIC_MODULES = (
    "selftrain",
    "selftrain.batch",
    "selftrain.check",
    "selftrain.estimator",
    "selftrain.methods",
    "selftrain.nn",
    "selftrain.suggest",
)
_ELSEWHERE = {
    "UserError": "selftrain.errors",
    **dict.fromkeys(("DSTClassifier", "FrozenFeatures", "LabelQuery", "LabeledStratifiedKFold"), "selftrain.estimator"),
}

wait_passively()
# onnxruntime sends facts about models to its makers, unless this is set before it is loaded
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def __getattr__(name: str) -> Any:
    # torch takes seconds to import; only those who need it pay for it.
    if name not in __all__:
        raise AttributeError(f"module 'selftrain' has no attribute {name!r}")
    return getattr(import_module(_ELSEWHERE.get(name, "selftrain.api")), name)


def __dir__() -> list[str]:
    return __all__
