"""Vision transformers as backbones, against the same equations written out: positions at another size, and pooling."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from selftrain.nn.backbones import build_backbone

DINO = "vit_small_patch14_reg4_dinov2.lvd142m"


def written_out(net: Any, x: Tensor) -> Tensor:
    """Return the features of a ViT: a grid of positions resized to that of the patches, blocks, norm, one vector."""
    patches = net.patch_embed.proj(x)
    height, width = patches.shape[-2:]
    tokens = patches.flatten(2).transpose(1, 2)
    prefix = [token.expand(len(x), -1, -1) for token in (net.cls_token, net.reg_token) if token is not None]
    extra = sum(token.shape[1] for token in prefix)
    own = 0 if net.no_embed_class else extra
    grid = net.pos_embed[:, own:]
    side = round(grid.shape[1] ** 0.5)
    grid = grid.reshape(1, side, side, -1).permute(0, 3, 1, 2)
    if (height, width) != (side, side):
        grid = F.interpolate(grid, (height, width), mode="bicubic", antialias=True)
    grid = grid.flatten(2).transpose(1, 2)
    if own:
        tokens = torch.cat([*prefix, tokens], dim=1) + torch.cat([net.pos_embed[:, :own], grid], dim=1)
    else:
        tokens = torch.cat([*prefix, tokens + grid], dim=1)
    tokens = net.norm(net.blocks(net.norm_pre(tokens)))
    pooled = {"token": lambda: tokens[:, 0], "avg": lambda: tokens[:, extra:].mean(dim=1)}[net.global_pool]()
    return torch.as_tensor(net.fc_norm(pooled))


def random_vit(name: str, size: int) -> tuple[nn.Module, Any]:
    """Return a backbone, and its timm network, whose tokens and positions are as large as the patches."""
    psi = build_backbone(name, weights="none", size=size).eval()
    net: Any = psi.net
    with torch.no_grad():
        for tokens in (net.cls_token, net.reg_token, net.pos_embed):
            if tokens is not None:
                tokens.normal_()
    return psi, net


@pytest.mark.parametrize(
    ("name", "pool", "prefix", "sizes"),
    [
        ("test_vit", "token", 1, (160, 96, 208)),
        ("test_vit2", "avg", 1, (160, 64)),
        (DINO, "token", 5, (56, 112)),
    ],
)
@torch.inference_mode()
def test_positions_and_pooling(name: str, pool: str, prefix: int, sizes: tuple[int, ...]) -> None:
    if not timm.is_model(name):
        pytest.skip(f"this version of timm has no {name}")
    for size in sizes:
        psi, net = random_vit(name, size)
        assert (net.global_pool, net.num_prefix_tokens) == (pool, prefix)
        x = torch.randn(2, 3, size, size)
        torch.testing.assert_close(psi(x), written_out(net, x), rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_weights_of_one_size_serve_another() -> None:
    """At their own size, positions stay as they are in the file."""
    _, small = random_vit("test_vit", 96)
    own, net = random_vit("test_vit", 160)
    net.load_state_dict(small.state_dict())
    x = torch.randn(1, 3, 160, 160)
    torch.testing.assert_close(own(x), small(x), rtol=1e-4, atol=1e-4)  # one that was built for 96 px still takes 160
