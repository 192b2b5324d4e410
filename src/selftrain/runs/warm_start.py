"""The weights of a trained network, from which another run with the same classes and inputs can start.

Knows nothing of what is trained. Statistics of single images are left behind: the next pool may hold other images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from selftrain.errors import UserError
from selftrain.nn.network import Network

Weights = dict[str, Tensor]
CLASSIFIER = "classifier."
LEFT_OUT = (*Network.fixed, "average", "initial")
"""parts that belong to a run: what it found out about its pool, its weight average, a copy of its first weights"""


def trained_weights(net: Network) -> Weights:
    """Return copies of the parameters of psi and all heads, with the running statistics of their layers."""
    return {name: value.detach().cpu().clone() for name, value in _weights(net)}


def load_weights(net: Network, weights: Mapping[str, Tensor]) -> None:
    """Start from these weights; heads that only one of the two networks has keep their own.

    Raises a UserError if psi or the main head differ.
    """
    own = dict(_weights(net))
    for name, value in own.items():
        if name.startswith(CLASSIFIER) and (name not in weights or weights[name].shape != value.shape):
            found = tuple(weights[name].shape) if name in weights else "no"
            raise UserError(
                f"`warm_start=True`: the fitted network does not fit: it has {found} numbers in {name}, and the new "
                f"one has {tuple(value.shape)}. Keep the settings of the network, or fit with `warm_start=False`."
            )
    for name, value in own.items():
        if name in weights and weights[name].shape == value.shape:
            value.detach().copy_(weights[name])


def _weights(net: Network) -> Iterator[tuple[str, Tensor]]:
    """Yield the state of each layer that has parameters: buffers elsewhere may count images of the pool."""
    for prefix, module in net.named_modules():
        if _is_left_out(prefix) or not any(True for _ in module.parameters(recurse=False)):
            continue
        own: dict[str, nn.Parameter | Tensor] = {**module._parameters, **module._buffers}
        yield from ((f"{prefix}.{name}", value) for name, value in own.items() if value is not None)


def _is_left_out(name: str) -> bool:
    return any(f"parts.{part}" == name or f"parts.{part}." in f"{name}." for part in LEFT_OUT)
