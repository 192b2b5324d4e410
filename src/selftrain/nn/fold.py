"""Fold batch norm into convolutions: a copy of a network for inference only, with the same outputs up to rounding.

Knows nothing of what the network is for.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from selftrain.errors import lacks_memory

# Activations that oneDNN can apply to the output of a convolution, with its names for them.
ACTIVATIONS: dict[type[nn.Module], tuple[str, list[float]]] = {
    nn.Identity: ("none", []),
    nn.ReLU: ("relu", []),
    nn.ReLU6: ("hardtanh", [0.0, 6.0]),
    nn.SiLU: ("swish", []),
    nn.Hardswish: ("hardswish", []),
}


def fold_batch_norm(net: nn.Module, example: Tensor, *, pack: bool = True) -> nn.Module:
    """Return a copy of ``net`` with every batch norm folded into the convolution before it.

    Unless ``pack`` is False, a convolution on a CPU also applies the activation that follows, and stores its weights in
    the order in which it reads them. A forward pass of ``example`` shows which layer follows which. ``net`` must be in
    evaluation mode and is not changed. If the copy's output differs, ``net`` itself is returned.
    """
    mkldnn: Any = torch.backends.mkldnn  # untyped
    packs = pack and example.device.type == "cpu" and mkldnn.is_available()
    with torch.inference_mode():
        expected = net(example)
        for packed in (True, False) if packs else (False,):
            try:
                found = (copied := _folded(net, example, packed))(example)
            except (RuntimeError, AttributeError) as error:  # missing in this torch, or not for these layers
                if lacks_memory(error):  # another form of the network would be rounded differently
                    raise
                continue
            if torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max())):
                return copied
    return net  # it uses a layer twice, or a convolution's output in several places


def folding_of(net: nn.Module) -> str:
    """Return in which form ``fold_batch_norm`` has left a network; forms differ in rounding."""
    kinds = {type(module) for module in net.modules()}
    if PackedConvolution in kinds:
        return "packed"
    return "none" if any(issubclass(kind, nn.BatchNorm2d) for kind in kinds) else "folded"


def _folded(net: nn.Module, example: Tensor, pack: bool) -> nn.Module:
    copied = copy.deepcopy(net)
    follows, sizes = _convolutions_before_norms(copied, example, pack)
    replaced: dict[nn.Module, nn.Module] = {}
    for norm, convolution in follows.items():
        _fold(convolution, norm)
        # timm's batch norms contain dropout and activation
        rest = [getattr(norm, name) for name in ("drop", "act") if hasattr(norm, name)]
        rest = [module for module in rest if not isinstance(module, nn.Identity)]
        activation = rest.pop() if pack and len(rest) == 1 and type(rest[0]) in ACTIVATIONS else nn.Identity()
        replaced[norm] = nn.Sequential(*rest) if rest else nn.Identity()
        if pack:
            replaced[convolution] = PackedConvolution(convolution, activation, sizes[convolution])
    for parent in list(copied.modules()):
        for name, child in list(parent.named_children()):
            if child in replaced:
                setattr(parent, name, replaced[child])
    return copied


def _convolutions_before_norms(
    net: nn.Module, example: Tensor, pack: bool
) -> tuple[dict[nn.BatchNorm2d, nn.Conv2d], dict[nn.Conv2d, torch.Size]]:
    """Return the convolution whose output each batch norm takes, and the input shape of each convolution."""
    made: dict[int, tuple[nn.Conv2d, Tensor]] = {}
    follows: dict[nn.BatchNorm2d, nn.Conv2d] = {}
    sizes: dict[nn.Conv2d, torch.Size] = {}
    hooks = []

    def after_convolution(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        made[id(output)] = (module, output)  # keeps the tensor alive, so that its id stays unique
        sizes[module] = inputs[0].shape

    def before_norm(module: Any, inputs: tuple[Tensor, ...]) -> None:
        if id(inputs[0]) in made:
            follows[module] = made[id(inputs[0])][0]

    for module in net.modules():
        if type(module) is nn.Conv2d or (isinstance(module, nn.Conv2d) and not pack):  # others pad their input first
            hooks.append(module.register_forward_hook(after_convolution))
        elif isinstance(module, nn.BatchNorm2d) and module.track_running_stats:
            hooks.append(module.register_forward_pre_hook(before_norm))
    net(example)
    for hook in hooks:
        hook.remove()
    return follows, sizes


def _fold(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    assert norm.running_mean is not None and norm.running_var is not None  # noqa: PT018
    convolution.weight, bias = fuse_conv_bn_weights(
        convolution.weight, convolution.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
    )
    convolution.bias = bias


class PackedConvolution(nn.Module):
    """A convolution and the activation after it in one pass on a CPU, with weights in oneDNN's layout."""

    def __init__(self, convolution: nn.Conv2d, activation: nn.Module, shape: torch.Size):
        super().__init__()
        if isinstance(convolution.padding, str) or convolution.padding_mode != "zeros":
            raise RuntimeError("oneDNN does not support this padding")
        geometry = (convolution.padding, convolution.stride, convolution.dilation, convolution.groups)
        self.geometry = [list(one) if isinstance(one, tuple) else one for one in geometry]
        self.bias = convolution.bias
        self.name, self.values = ACTIVATIONS[type(activation)]
        self.weight: Tensor = torch.ops.mkldnn._reorder_convolution_weight(
            convolution.weight.detach(), *self.geometry, list(shape)
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._convolution_pointwise(
            x, self.weight, self.bias, *self.geometry, self.name, self.values, ""
        )
        return out
