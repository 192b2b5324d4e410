"""Temporary states of modules and of the random generators, undone on exit.

Knows nothing of methods. The running statistics of batch norm are handled in ``norms.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@contextmanager
def frozen(*modules: nn.Module) -> Iterator[None]:
    """Inside, the parameters of ``modules`` get no gradient, though gradient flows through them."""
    trainable = [p for module in modules for p in module.parameters() if p.requires_grad]
    try:
        for p in trainable:
            p.requires_grad_(False)
        yield
    finally:
        for p in trainable:
            p.requires_grad_(True)


@contextmanager
def recording_output(module: nn.Module, notes: dict[str, Tensor], name: str) -> Iterator[None]:
    """Inside, each output of the module is stored in ``notes[name]``, detached; the last one remains."""
    hook = module.register_forward_hook(lambda _, inputs, output: notes.update({name: output.detach()}))
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode; each submodule's own mode is restored on exit."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@dataclass(frozen=True)
class SavedRandomState:
    """A state of torch's random generators that can be replayed, for example to repeat a dropout mask."""

    state: Tensor
    cuda_states: tuple[tuple[torch.device, Tensor], ...] = ()

    @classmethod
    def capture(cls, device: torch.device) -> SavedRandomState:
        """Return the current state of the CPU's generator, and of the device's if it is a GPU."""
        devices = [device] if device.type == "cuda" else []
        return cls(torch.get_rng_state(), tuple((one, torch.cuda.get_rng_state(one)) for one in devices))

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Inside, the random numbers that followed the saved state are drawn again; outside, nothing changes."""
        with torch.random.fork_rng(devices=[device for device, _ in self.cuda_states]):
            torch.set_rng_state(self.state)
            for device, state in self.cuda_states:
                torch.cuda.set_rng_state(state, device)
            yield


@contextmanager
def using_threads(threads: int) -> Iterator[None]:
    """Inside, use this many CPU threads (0: as many as before); use as many as before at the end."""
    before = torch.get_num_threads()
    if threads and threads != before:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)
