"""Fine-tune a small part of a pretrained backbone: its normalisation layers, or low-rank changes of its linear layers.

Knows nothing of heads, training or files. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selftrain.errors import UserError
from selftrain.nn.backbones import Backbone
from selftrain.nn.norms import is_norm

A, B = "lora_a", "lora_b"


class LowRank(nn.Linear):
    """A linear layer whose weights stay as they are, plus a trained change of low rank: W x + b + B A x.

    B starts at zero, so that the layer starts as the one that it replaces.
    """

    def __init__(self, like: nn.Linear, rank: int):
        nn.Module.__init__(self)  # the weights are those of the other layer, no new ones
        self.in_features, self.out_features = like.in_features, like.out_features
        self.weight, self.bias = like.weight, like.bias
        self.lora_a = nn.Parameter(like.weight.new_empty(rank, like.in_features).normal_(std=like.in_features**-0.5))
        self.lora_b = nn.Parameter(like.weight.new_zeros(like.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + F.linear(F.linear(x, self.lora_a), self.lora_b)

    def change(self) -> Tensor:
        """Return B A, the change of the weights."""
        return self.lora_b.detach() @ self.lora_a.detach()


def tune(backbone: Backbone, how: str, rank: int, side: int) -> None:
    """Freeze the backbone except what ``how`` names: all of it, its normalisation layers ("norm"), or "lora".

    ``side`` is that of the images in pixels. For "lora", layers are replaced in place. Raises a UserError if the
    backbone has nothing of that kind.
    """
    if how == "all":
        return
    if not backbone.pretrained:
        raise UserError(
            f"network.tune={how}: backbone {backbone.name!r} has random weights, most of which would never be trained. "
            f"Choose pretrained ones, or network.tune=all."
        )
    layers = _called_linear(backbone, side) if how == "lora" else []
    norms = [module for module in backbone.modules() if is_norm(module) and any(True for _ in module.parameters())]
    if how == "lora" and not layers:
        raise UserError(
            f"network.tune=lora: backbone {backbone.name!r} has no linear layers. LoRA is for transformers, such as "
            f"vit_tiny_patch16_224; for this one, choose norm or all."
        )
    if how == "norm" and not norms:
        raise UserError(f"network.tune=norm: backbone {backbone.name!r} has no normalisation layers. Choose all.")
    backbone.requires_grad_(False)
    if how == "norm":
        for module in norms:
            module.requires_grad_(True)
    for name in layers:
        parent, _, last = name.rpartition(".")
        layer = backbone.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        setattr(backbone.get_submodule(parent), last, LowRank(layer, rank))


@torch.no_grad()
def _called_linear(backbone: Backbone, side: int) -> list[str]:
    """Return the names of the linear layers that the backbone calls; code may also read weights past the layer."""
    called: set[nn.Module] = set()
    handles = [
        module.register_forward_hook(lambda module, args, out: called.add(module))
        for module in backbone.modules()
        if type(module) is nn.Linear
    ]
    mode = backbone.training
    try:
        backbone.eval()(torch.zeros(1, backbone.channels, side, side))
    finally:
        backbone.train(mode)
        for handle in handles:
            handle.remove()
    return [name for name, module in backbone.named_modules() if module in called]


def low_rank_weights(net: nn.Module) -> set[nn.Parameter]:
    """Return the weights of low-rank changes: they are new, like those of the heads, and not pretrained."""
    return {p for module in net.modules() if isinstance(module, LowRank) for p in (module.lora_a, module.lora_b)}


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the state of a model with low-rank changes added to the weights: that of an ordinary network."""
    state: dict[str, Tensor] = dict(model.state_dict())
    for name, module in model.named_modules():
        if isinstance(module, LowRank):
            prefix = f"{name}." if name else ""
            state[f"{prefix}weight"] = module.weight.detach() + module.change()
            del state[f"{prefix}{A}"], state[f"{prefix}{B}"]
    return state
