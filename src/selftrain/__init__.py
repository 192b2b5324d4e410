"""selftrain: an accurate image classifier from a handful of labels and a pile of unlabeled images.

>>> import selftrain
>>> run = selftrain.train("photos/", labels="labels.csv", method="dst(fixmatch)")  # doctest: +SKIP
>>> run.predict("new/").save("predictions.csv")  # doctest: +SKIP

Public are the names below, and the modules ``selftrain.methods``, ``selftrain.nn`` and ``selftrain.batch`` for a
training loop of your own. Everything else may change from one version to the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selftrain.version import __version__

if TYPE_CHECKING:
    from selftrain.api import Run, train
    from selftrain.errors import UserError

__all__ = ["Run", "UserError", "__version__", "train"]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import; only those who need it pay for it.
    if name in ("Run", "train"):
        from selftrain import api

        return getattr(api, name)
    if name == "UserError":
        from selftrain.errors import UserError

        return UserError
    raise AttributeError(f"module 'selftrain' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
