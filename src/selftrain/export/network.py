"""The part of an exported model that comes after resizing: pixels or features in, probabilities and novelty out.

Knows nothing of file formats. Heads that only training needs are not in it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from selftrain.errors import UserError
from selftrain.nn.backbones import Preprocessing
from selftrain.nn.fold import fold_batch_norm
from selftrain.runs.extractor import Extractor
from selftrain.runs.predict import Predictor


class Network(nn.Module):
    """Crops (N, views, C, side, side) of integers from 0 to 255, or features (N, dim), to probabilities and novelty."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        extractor = extractor_of(predictor)
        self.takes_features = predictor.card.features > 0 and extractor is None
        self.encoder: nn.Module | None = None
        self.model, self.novelty = predictor.model, predictor.novelty
        if not self.takes_features:  # without batch norms, the graph is smaller and can be computed in 8 bits
            like = preprocessing_of(predictor)
            assert like is not None
            shape = (2, channels_of(predictor), like.size, like.size)
            pixels = torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
            if extractor is not None:
                self.encoder = fold_batch_norm(extractor.encoder.cpu(), pixels, pack=False)
            else:
                self.model = fold_batch_norm(predictor.model.cpu(), pixels, pack=False)
        half = extractor is not None and extractor.data.cache_dtype == "float16"
        self.stored = torch.float16 if half else torch.float32

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        if not self.takes_features:
            views = x.shape[1]
            x = x.flatten(0, 1).to(torch.uint8)
            if self.encoder is not None:
                x = self.encoder(x).float().unflatten(0, (-1, views))
                x = (x[:, 0] + x[:, 1]) / 2 if views > 1 else x[:, 0]
                x = x.to(self.stored).float()  # as features are stored; the predictor was trained on those
        p = torch.softmax(self.model(x).float(), dim=1)
        return (p,) if self.novelty is None else (p, self.novelty(x))


def extractor_of(predictor: Predictor) -> Extractor | None:
    """Return the frozen backbone, also of a model on features whose backbone is known; None if there is none."""
    if predictor.card.features and predictor.origin is not None:
        return predictor.embedder
    return predictor.extractor


def preprocessing_of(predictor: Predictor) -> Preprocessing | None:
    """Return how images are resized and cropped; None for a model that takes features."""
    extractor = extractor_of(predictor)
    if extractor is not None:
        return extractor.card.preprocessing
    return None if predictor.card.features else predictor.card.preprocessing


def channels_of(predictor: Predictor) -> int:
    """Return the channels of the images that the network takes: 1 or 3."""
    extractor = extractor_of(predictor)
    return predictor.card.channels if extractor is None else extractor.card.channels


def network_of(predictor: Predictor) -> Network:
    """Return the network to export; its weights are the predictor's own."""
    channels = channels_of(predictor)
    if preprocessing_of(predictor) is not None and channels not in (1, 3):
        raise UserError(f"a model of images with {channels} channels cannot be exported; only 1 or 3 can.")
    extractor = extractor_of(predictor)
    if extractor is not None and not extractor.trainable:
        name = extractor.card.backbone
        raise UserError(f"backbone {name}: came in a file and is run as it is, so this model cannot be exported.")
    return Network(predictor).eval().requires_grad_(False)
