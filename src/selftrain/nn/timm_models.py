"""Models of timm: looked up, created for an image size, measured; whether their weights can be downloaded.

Knows nothing of our own backbones or of checkpoint files. timm is imported inside the functions, because that takes as
long as importing torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from selftrain.errors import UserError, nearest
from selftrain.network_access import NetworkForbiddenError, check_online
from selftrain.nn.weights import short_reason

HUB_TIMEOUT = 5.0  # seconds until the hub counts as unreachable; its own client retries for 46 s


def timm_config(name: str, others: Sequence[str]) -> Any:
    """Return timm's entry for a model; raise a UserError with the nearest name if there is none."""
    import timm
    from timm.models import get_pretrained_cfg

    try:
        config = get_pretrained_cfg(name)
    except RuntimeError as error:  # the model exists, but not the tag after the dot
        known = timm.list_pretrained(name.split(".")[0] + ".*")
        raise UserError(f"backbone {name!r}: timm has no weights of that name.{nearest(name, known)}") from error
    if config is None:
        known = [*others, *timm.list_models()]
        choices = f"Choose one of {', '.join(others)}, or any model of timm.{nearest(name, known)}"
        raise UserError(f"backbone {name!r} is unknown. {choices}")
    return config


def create_timm(name: str, config: Any, size: int | None, *, pretrained: bool) -> nn.Module:
    """Return a timm model without classifier, built for images of ``size`` if its architecture depends on that."""
    import timm

    attempts: list[dict[str, Any]] = [{}]
    if size is not None and config.fixed_input_size and size != config.input_size[-1]:
        # A ViT can interpolate its position embedding at each step, so that its weights keep the shape they have in
        # files; Swin and others must know the size; measure_dim checks whether the rest accept it.
        attempts = [{"dynamic_img_size": True}, {"img_size": size}, {}]
    for options in attempts:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # timm's notes on its own internals
                net: nn.Module = timm.create_model(name, pretrained=pretrained, num_classes=0, **options)
        except TypeError as error:
            if not options or "unexpected keyword argument" not in str(error):
                raise
        except (AssertionError, RuntimeError, ValueError) as error:
            if not options:
                raise
            raise _wrong_size(name, size, config, error) from error
        else:
            if "dynamic_img_size" not in options or getattr(net, "dynamic_img_size", False):
                break  # Swin accepts and ignores any option; a net that obeys this one has stored it
    return net


@torch.no_grad()
def measure_dim(net: nn.Module, name: str, config: Any, size: int) -> int:
    """Measure the width of the features: in some models timm's num_features is not the width of the output."""
    try:
        features = net.eval()(torch.zeros(1, 3, size, size))
    except (AssertionError, IndexError, RuntimeError, ValueError) as error:
        raise _wrong_size(name, size, config, error) from error
    net.train()
    if not isinstance(features, Tensor) or features.ndim != 2:
        raise UserError(f"backbone {name!r} has no pooled features. Choose a model made for classification.")
    return features.shape[1]


def _wrong_size(name: str, size: int | None, config: Any, error: Exception) -> UserError:
    own, why = config.input_size[-1], short_reason(error)
    return UserError(f"`size={size}`: backbone {name!r} does not accept it ({why}). Its own size is {own}.")


def data_config(net: nn.Module) -> dict[str, Any]:
    """Return the preprocessing that a model's weights expect, in timm's words."""
    from timm.data import config

    resolve: Any = config.resolve_model_data_config  # untyped
    found: dict[str, Any] = resolve(net)
    return found


def check_hub(config: Any) -> None:
    """Raise at once if weights are neither cached nor reachable; the hub's client would retry for most of a minute."""
    from huggingface_hub import constants, get_session, try_to_load_from_cache

    if not config.hf_hub_id:
        check_online(str(config.url))
        return  # a plain URL: urllib does not retry
    repository = config.hf_hub_id.split("@")[0]
    names = (config.hf_hub_filename, "model.safetensors", "pytorch_model.bin")
    if not any(isinstance(try_to_load_from_cache(repository, name), str) for name in names if name):
        check_online(f"weights of {repository}")
        status = get_session().head(constants.ENDPOINT, timeout=HUB_TIMEOUT).status_code
        if status >= 500:
            raise ConnectionError(f"{constants.ENDPOINT} answers {status}")


def is_network_error(error: Exception) -> bool:
    """Tell failed downloads from bugs: most libraries raise OSError, httpx and huggingface_hub types of their own."""
    families = {cls.__module__.partition(".")[0] for cls in type(error).__mro__}
    return isinstance(error, (OSError, NetworkForbiddenError)) or bool(
        families & {"httpx", "httpx2", "httpcore", "huggingface_hub"}
    )
