"""Labeled and unlabeled batches of named views, as they pass from the data to a method.

Knows nothing of pixels or features, and has no place for the label of an unlabeled sample: a method cannot peek.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

Self = TypeVar("Self", bound="Viewed")


@dataclass(frozen=True)
class Views:
    """The views of a batch that a method reads. Names are ``weak``, ``strong``, ``weak_2``, ``strong_2``, ...

    Methods that are fitted to all images at once read the view ``clean``, which is not augmented.
    """

    labeled: tuple[str, ...] = ("weak",)
    """views of the labeled samples; all of them carry gradient"""
    unlabeled: tuple[str, ...] = ()
    """views of the unlabeled samples"""
    gradient: tuple[str, ...] = ()
    """unlabeled views through which gradient flows; psi runs on the others without gradient"""

    def __post_init__(self) -> None:
        if not set(self.gradient) <= set(self.unlabeled):
            raise ValueError(f"gradient views {self.gradient} are not all among the unlabeled views {self.unlabeled}")

    def with_labeling(self, name: str) -> Views:
        """Return the same views with ``name`` among the unlabeled ones, without gradient unless it had some."""
        return self if name in self.unlabeled else Views(self.labeled, (name, *self.unlabeled), self.gradient)

    def with_unlabeled(self, name: str) -> Views:
        """Return the same views with ``name`` among the unlabeled views that carry gradient."""

        def add(names: tuple[str, ...]) -> tuple[str, ...]:
            return names if name in names else (*names, name)

        return Views(self.labeled, add(self.unlabeled), add(self.gradient))


def kind_of(view: str) -> str:
    """Return ``weak`` or ``strong``: ``weak_2`` is a ``weak`` view."""
    return view.split("_", 1)[0]


class Viewed:
    """Named views of the same samples, each a tensor with the samples along its first dimension."""

    def __init__(self, views: Mapping[str, Tensor]):
        self.views = dict(views)

    def __getitem__(self, view: str) -> Tensor:
        try:
            return self.views[view]
        except KeyError:
            raise KeyError(f"this batch has no view {view!r}, only {sorted(self.views)}") from None

    @property
    def weak(self) -> Tensor:
        return self["weak"]

    @property
    def strong(self) -> Tensor:
        return self["strong"]

    def with_views(self: Self, views: Mapping[str, Tensor]) -> Self:
        """Return the same samples with other views, for example the features of their images."""
        raise NotImplementedError

    def apply(self: Self, f: Callable[[Tensor], Tensor]) -> Self:
        """Apply f to every tensor, labels and indices included."""
        raise NotImplementedError

    def map(self: Self, f: Callable[[Tensor], Tensor]) -> Self:
        """Apply f to every view."""
        return self.with_views({name: f(view) for name, view in self.views.items()})

    def to(self: Self, device: torch.device) -> Self:
        return self.apply(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self: Self) -> Self:
        return self.apply(Tensor.pin_memory)


class Labeled(Viewed):
    """Labeled samples: ``Labeled(y=labels, weak=images)``."""

    def __init__(self, y: Tensor, **views: Tensor):
        super().__init__(views)
        self.y = y

    def __len__(self) -> int:
        return len(self.y)

    def with_views(self, views: Mapping[str, Tensor]) -> Labeled:
        return Labeled(self.y, **views)

    def apply(self, f: Callable[[Tensor], Tensor]) -> Labeled:
        return Labeled(f(self.y), **self.map(f).views)


class Unlabeled(Viewed):
    """Unlabeled samples and their rows in the unlabeled set: ``Unlabeled(index=rows, weak=images, strong=...)``."""

    def __init__(self, index: Tensor, **views: Tensor):
        super().__init__(views)
        self.index = index

    def __len__(self) -> int:
        return len(self.index)

    def with_views(self, views: Mapping[str, Tensor]) -> Unlabeled:
        return Unlabeled(self.index, **views)

    def apply(self, f: Callable[[Tensor], Tensor]) -> Unlabeled:
        return Unlabeled(f(self.index), **self.map(f).views)
