"""Building blocks of a classifier: psi (the encoder), heads, and how they are combined.

Knows nothing of training, of methods or of where weights come from.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selftrain.nn.norms import batch_norms


class Dropout(nn.Dropout):
    """nn.Dropout, with one random bit per unit for p = 1/2 on a CPU.

    There, drawing a random number for each unit takes longer than the layer itself.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p != 0.5 or x.device.type != "cpu":
            return super().forward(x)
        n = x.numel()
        words = torch.empty((n + 63) // 64, dtype=torch.int64).random_(-(2**63), None)  # all 64 bits of each
        return x * _BITS.to(x.dtype).index_select(0, words.view(torch.uint8).int()).view(-1)[:n].view(x.shape)


_BITS = 2.0 * (torch.arange(256)[:, None] >> torch.arange(8) & 1)  # the bits of every byte, as factors 0 or 2


def mlp_head(dim: int, width: int, classes: int, *, dropout: float = 0.5, layers: int = 2) -> nn.Sequential:
    """Return the paper's nonlinear head, Linear-ReLU-Dropout-Linear.

    With three layers it is Linear-BN-ReLU twice, then Linear.
    """
    if layers == 2:
        return nn.Sequential(nn.Linear(dim, width), nn.ReLU(), Dropout(dropout), nn.Linear(width, classes))
    hidden = [
        module
        for n_in in (dim, *[width] * (layers - 2))
        for module in (nn.Linear(n_in, width), nn.BatchNorm1d(width), nn.ReLU())
    ]
    return nn.Sequential(*hidden, nn.Linear(width, classes))


def apply_in_one_pass(head: nn.Module, *batches: Tensor) -> list[Tensor]:
    """Apply a head to several batches at once, with fewer and larger matrix products.

    A head with batch norm gets them one by one, because its output depends on the whole batch.
    """
    if batch_norms(head):
        return [head(batch) for batch in batches]
    return list(head(torch.cat(batches)).split([len(batch) for batch in batches]))


@torch.no_grad()
def shuffle_weights(*modules: nn.Module) -> None:
    """Shuffle the weights within each tensor: other random weights of the same distribution."""
    for module in modules:
        for p in module.parameters():
            p.copy_(p.flatten()[torch.randperm(p.numel(), device=p.device)].view_as(p))


def copy_with_new_weights(head: nn.Module) -> nn.Module:
    """Return a head of the same kind with other random weights."""
    head = copy.deepcopy(head)
    shuffle_weights(head)
    return head


class UnitFeatures(nn.Module):
    """Scale the features of a frozen backbone to length d^(1/4), the input of a small trainable psi."""

    def __init__(self, dim: int, unit: bool = True):
        super().__init__()
        self.dim, self.unit = dim, unit

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=1) * self.dim**0.25 if self.unit else x


class Encoder(nn.Module):
    """psi: pixels or features -> normalised input -> backbone -> optional Linear-BN-ReLU-Dropout bottleneck."""

    def __init__(
        self,
        backbone: nn.Module,
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        bottleneck: int = 0,
        dropout: float = 0.5,
        channels_last: bool = True,
    ):
        super().__init__()
        self.backbone = backbone
        dim = int(getattr(backbone, "dim"))  # noqa: B009 -- nn.Module attributes are untyped
        self.bottleneck: nn.Module = nn.Identity()
        if bottleneck:
            self.bottleneck = nn.Sequential(
                nn.Linear(dim, bottleneck), nn.BatchNorm1d(bottleneck), nn.ReLU(), Dropout(dropout)
            )
        self.dim = bottleneck or dim
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.mean: Tensor
        self.inverse_std: Tensor
        self.register_buffer("mean", 255 * torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("inverse_std", 1 / (255 * torch.tensor(std).view(-1, 1, 1)), persistent=False)

    def normalise(self, x: Tensor) -> Tensor:
        """Return x in the units that psi was made for.

        Pixels (uint8) are normalised as the backbone expects; features are scaled to their length. Any other input
        counts as normalised already, and normalising twice changes nothing.
        """
        if x.dtype != torch.uint8:
            return self.backbone(x) if isinstance(self.backbone, UnitFeatures) else x
        x = x.to(dtype=self.mean.dtype, memory_format=self.memory_format)
        return x.sub_(self.mean).mul_(self.inverse_std)

    def forward(self, x: Tensor) -> Tensor:
        x = self.normalise(x) if x.dtype == torch.uint8 else x  # the backbone scales features itself
        out: Tensor = self.bottleneck(self.backbone(x))
        return out


class Classifier(nn.Module):
    """h(psi(x)): the module that is evaluated, averaged, saved and exported."""

    def __init__(self, psi: Encoder, h: nn.Module):
        super().__init__()
        self.psi = psi
        self.h = h

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.h(self.psi(x))
        return logits


class OnFeatures(nn.Module):
    """A predictor of features together with the frozen backbone that computes them from images.

    With ``zoom``, features are the mean of those of an image and of its inner part. That part is cut out of the image
    as it comes in; where the original is larger, a crop of the original has more detail.
    """

    def __init__(self, encoder: Encoder, predictor: nn.Module, zoom: float = 0.0):
        super().__init__()
        self.encoder, self.predictor, self.zoom = encoder, predictor, zoom

    def forward(self, x: Tensor) -> Tensor:
        z = self.encoder(x)
        if self.zoom:
            z = (z + self.encoder(inner_part(x, self.zoom))) / 2
        out: Tensor = self.predictor(z)
        return out


def inner_part(pixels: Tensor, share: float) -> Tensor:
    """Return the centre of uint8 images, ``share`` of their side, enlarged to their size."""
    side = pixels.shape[-1]
    margin = (side - round(share * side)) // 2
    centre = pixels[..., margin : side - margin, margin : side - margin].float()
    larger = F.interpolate(centre, size=(side, side), mode="bicubic", antialias=True)
    return larger.round().clamp(0, 255).to(pixels.dtype)


class Committee(nn.Module):
    """Several heads as one: the log of their mean softmax, or of their votes.

    Ties between votes are broken by the mean softmax.
    """

    def __init__(self, *heads: nn.Module, vote: bool = False):
        super().__init__()
        self.heads = nn.ModuleList(heads)
        self.vote = vote

    def forward(self, x: Tensor) -> Tensor:
        return self.mean([head(x) for head in self.heads])

    def mean(self, logits: Sequence[Tensor]) -> Tensor:
        p = torch.stack([torch.softmax(z.float(), dim=1) for z in logits])
        mean = p.mean(dim=0)
        if self.vote:
            votes = F.one_hot(p.argmax(dim=2), p.shape[2]).sum(dim=0)
            mean = (votes + mean) / (len(p) + 1)
        return mean.clamp(min=1e-12).log()


class Blend(Committee):
    """A committee whose first member is a classifier; ``inner`` votes as well, on what its psi makes of an image."""

    def __init__(self, own: Classifier, inner: nn.Module, *others: nn.Module):
        super().__init__(own, *others)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        own, *others = self.heads
        assert isinstance(own, Classifier)
        z = own.psi(x)
        return self.mean([own.h(z), self.inner(z), *(one(x) for one in others)])


class Tempered(nn.Module):
    """The logits of another model, divided by a temperature: other probabilities, but the same classes.

    There is one temperature per class. An image takes that of its most probable class, times 1 + ``doubt`` (1 - p),
    where p is its highest probability.
    """

    temperature: Tensor
    """(K,)"""

    def __init__(self, inner: nn.Module, temperature: Sequence[float], doubt: float = 0.0):
        super().__init__()
        self.inner, self.doubt = inner, doubt
        self.register_buffer("temperature", torch.tensor(temperature, dtype=torch.float32), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.inner(x).float()
        T = self.temperature[z.argmax(dim=1)]
        if self.doubt:
            p = torch.softmax(z, dim=1).amax(dim=1)
            T = T * (1 + self.doubt * (1 - p))
        return z / T.unsqueeze(1)
