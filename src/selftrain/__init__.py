"""selftrain: an accurate image classifier from a handful of labels and a pile of unlabeled images.

>>> import selftrain
>>> run = selftrain.train("photos/", labels="labels.csv", method="dst(fixmatch)")  # doctest: +SKIP
>>> run.predict("new/").save("predictions.csv")  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from selftrain.errors import UserError
    from selftrain.run import Run
    from selftrain.training import train

__all__ = ["Run", "UserError", "__version__", "train"]


def __getattr__(name: str) -> Any:
    # torch and its friends take seconds to import; only those who train pay for them.
    if name == "train":
        from selftrain.training import train

        return train
    if name == "Run":
        from selftrain.run import Run

        return Run
    if name == "UserError":
        from selftrain.errors import UserError

        return UserError
    raise AttributeError(f"module 'selftrain' has no attribute {name!r}")
