"""psi, the heads, and every other thing that changes in training: one module, so a checkpoint is complete.

Knows nothing of the equations: a method asks for modules in its ``setup`` and finds them in ``parts``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selftrain.batch import Labeled, Unlabeled, Views

Part = TypeVar("Part", bound=nn.Module)


class Dropout(nn.Dropout):
    """nn.Dropout; on a CPU, where drawing a number for each unit takes longer than the layer itself, p = 1/2 takes one
    random bit a unit."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p != 0.5 or x.device.type != "cpu":
            return super().forward(x)
        n = x.numel()
        words = torch.empty((n + 63) // 64, dtype=torch.int64).random_(-(2**63), None)  # all 64 bits of each
        return x * _BITS.to(x.dtype).index_select(0, words.view(torch.uint8).int()).view(-1)[:n].view(x.shape)


_BITS = 2.0 * (torch.arange(256)[:, None] >> torch.arange(8) & 1)  # of every byte, each bit as a factor 0 or 2


def mlp_head(dim: int, width: int, classes: int, *, dropout: float = 0.5, layers: int = 2) -> nn.Sequential:
    """Linear-ReLU-Dropout-Linear, the paper's nonlinear head; with three layers Linear-BN-ReLU twice, then Linear."""
    if layers == 2:
        return nn.Sequential(nn.Linear(dim, width), nn.ReLU(), Dropout(dropout), nn.Linear(width, classes))
    hidden = [
        module
        for n_in in (dim, *[width] * (layers - 2))
        for module in (nn.Linear(n_in, width), nn.BatchNorm1d(width), nn.ReLU())
    ]
    return nn.Sequential(*hidden, nn.Linear(width, classes))


def together(head: nn.Module, *batches: Tensor) -> list[Tensor]:
    """The head of several batches in one pass: fewer and larger matrix products. One that looks at its batch as a whole
    (batch norm) gets them one by one."""
    if _norms(head):
        return [head(batch) for batch in batches]
    return list(head(torch.cat(batches)).split([len(batch) for batch in batches]))


class UnitFeatures(nn.Module):
    """Features of a frozen backbone, each scaled to length d^(1/4): what a small psi is trained on."""

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
        """What is fed, in the units psi was made for: pixels (uint8) as the backbone knows them, features at their
        length; anything else is taken to be so already, and doing it twice changes nothing."""
        if x.dtype != torch.uint8:
            return self.backbone(x) if isinstance(self.backbone, UnitFeatures) else x
        x = x.to(dtype=self.mean.dtype, memory_format=self.memory_format)
        return x.sub_(self.mean).mul_(self.inverse_std)

    def forward(self, x: Tensor) -> Tensor:
        x = self.normalise(x) if x.dtype == torch.uint8 else x  # the backbone scales features itself
        out: Tensor = self.bottleneck(self.backbone(x))
        return out


class Classifier(nn.Module):
    """h(psi(x)): what is evaluated, averaged, saved and exported."""

    def __init__(self, psi: Encoder, h: nn.Module):
        super().__init__()
        self.psi = psi
        self.h = h

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.h(self.psi(x))
        return logits


class OnFeatures(nn.Module):
    """A predictor of features together with the frozen backbone that makes them of pictures."""

    def __init__(self, encoder: Encoder, predictor: nn.Module):
        super().__init__()
        self.encoder, self.predictor = encoder, predictor

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.predictor(self.encoder(x))
        return out


class Average(nn.Module):
    """The exponential moving average of a module: bar(theta) <- m_t bar(theta) + (1 - m_t) theta."""

    _followed: tuple[nn.Module, list[tuple[_Found, _Found]]] | None

    def __init__(self, module: nn.Module, decay: float, buffers: str = "copied"):
        super().__init__()
        self.module = copy.deepcopy(module).requires_grad_(False)
        self.decay = decay
        self.of_buffers = buffers
        self._followed = None  # the source, and where tensors lie in both

    @torch.inference_mode()  # half the bookkeeping of no_grad; all that is written to exists already
    def update(self, source: nn.Module, t: int) -> None:
        """Follow ``source`` after optimiser step t = 0, 1, ...; m_t = min(m, 1 - 1/(t + 1)). Buffers are copied, or
        averaged where that is asked for, but for counts."""
        m = min(self.decay, 1 - 1 / (t + 1))
        if self._followed is None or self._followed[0] is not source:
            kinds = (self._averaged, self._copied, self._counted)
            self._followed = source, [(_Found(self.module, kind), _Found(source, kind)) for kind in kinds]
        _, ((mine, new), *copied) = self._followed
        torch._foreach_lerp_(mine.now(), new.now(), 1 - m)
        for copies, originals in copied:  # each kind of numbers by itself: torch is quicker so
            if copies.places:
                torch._foreach_copy_(copies.now(), originals.now())

    def _averaged(self, x: Tensor) -> bool:
        return isinstance(x, nn.Parameter) or (self.of_buffers == "averaged" and x.is_floating_point())

    def _copied(self, x: Tensor) -> bool:
        return not self._averaged(x) and x.is_floating_point()

    def _counted(self, x: Tensor) -> bool:
        return not self._averaged(x) and not x.is_floating_point()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_followed": None}  # a copy of this is not to carry the source along

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x)
        return out


class _Found:
    """Where tensors of a kind lie, each once. As long as no module is replaced, what is there now is found much more
    quickly than by names."""

    def __init__(self, root: nn.Module, kind: Callable[[Tensor], bool]):
        tables: Iterable[Any] = (t for module in root.modules() for t in (module._parameters, module._buffers))
        found = {id(x): (table, name) for table in tables for name, x in table.items() if x is not None and kind(x)}
        self.places: list[tuple[Mapping[str, Any], str]] = list(found.values())
        self.shared = any(hasattr(table[name], "to_local") for table, name in self.places)

    def now(self) -> list[Tensor]:
        """The tensors; of those that ranks have shares of, ours."""
        tensors = [table[name] for table, name in self.places]
        return [x.to_local() if hasattr(x, "to_local") else x for x in tensors] if self.shared else tensors


class Committee(nn.Module):
    """Several heads as one: the log of their mean softmax, or of their votes, with the mean softmax to break ties."""

    def __init__(self, *heads: nn.Module, vote: bool = False):
        super().__init__()
        self.heads = nn.ModuleList(heads)
        self.vote = vote

    def forward(self, x: Tensor) -> Tensor:
        p = torch.stack([torch.softmax(head(x).float(), dim=1) for head in self.heads])
        mean = p.mean(dim=0)
        if self.vote:
            votes = F.one_hot(p.argmax(dim=2), p.shape[2]).sum(dim=0)
            mean = (votes + mean) / (len(p) + 1)
        return mean.clamp(min=1e-12).log()


@dataclass(frozen=True)
class Task:
    """The sizes a method may need to know in order to build its parts."""

    classes: int
    unlabeled: int
    """how many unlabeled samples there are"""
    steps: int
    """how many optimiser steps training takes (each round of it, where there are several)"""
    shape: tuple[int, ...] = ()
    """of one sample as it is fed: channels, height and width of a picture, or the number of features"""


class Network(nn.Module):
    """The classifier that is trained, the step, and whatever parts the method asked for."""

    step: Tensor
    _peer: list[Network]

    def __init__(self, classifier: Classifier, task: Task, *, bn_apart: bool = False):
        """``bn_apart``: labeled and unlabeled views go through psi apart, and running statistics are of the former."""
        super().__init__()
        self.classifier = classifier
        self.task = task
        self.bn_apart = bn_apart
        self.parts = nn.ModuleDict()
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    @property
    def psi(self) -> Encoder:
        return self.classifier.psi

    @property
    def h(self) -> nn.Module:
        return self.classifier.h

    def part(self, name: str, kind: type[Part]) -> Part:
        """A part whose kind is known."""
        part = self.parts[name]
        assert isinstance(part, kind), f"{name} is a {type(part).__name__}"
        return part

    def twin(self) -> Network:
        """A second network beside this one, drawn afresh (but for a pretrained backbone), for methods that need two."""
        twin = Network(copy.deepcopy(self.classifier), self.task, bn_apart=self.bn_apart)
        redraw(twin.psi.bottleneck, twin.h)
        if not getattr(twin.psi.backbone, "pretrained", False):
            redraw(twin.psi.backbone)
        self.parts["twin"] = twin
        self._peer, twin._peer = [twin], [self]  # in lists, so that neither becomes a module of the other
        return twin

    @property
    def peer(self) -> Network:
        """The other of two networks."""
        return self._peer[0]

    @property
    def members(self) -> tuple[Network, ...]:
        """This network, and its twin if it has one."""
        return (self, *(part for name, part in self.parts.items() if name == "twin" and isinstance(part, Network)))

    def encode(self, views: Views, l: Labeled, u: Unlabeled) -> tuple[Labeled, Unlabeled]:
        """psi of every view asked for: one pass for those that carry gradient, one without gradient for the others."""
        still = [name for name in views.unlabeled if name not in views.gradient]
        x_l, x_u = [l[name] for name in views.labeled], [u[name] for name in views.gradient]
        if self.bn_apart:
            z = self.embed(*x_l)
            with still_statistics(self.psi):
                z += self.embed(*x_u)
        else:
            z = self.embed(*x_l, *x_u)
        z_l = dict(zip(views.labeled, z, strict=False))
        z_u = dict(zip(views.gradient, z[len(views.labeled) :], strict=True))
        with torch.no_grad(), still_statistics(self.psi) if self.bn_apart else nullcontext():
            z_u |= zip(still, self.embed(*(u[name] for name in still)), strict=True)
        return l.with_views(z_l), u.with_views(z_u)

    def embed(self, *views: Tensor) -> list[Tensor]:
        """psi of several batches in one pass."""
        if len(views) < 2:
            return [self.psi(view) for view in views]
        return list(self.psi(torch.cat(views)).split([len(view) for view in views]))

    def advance(self) -> None:
        """A step is done."""
        for one in self.members:
            one.step += 1

    def remember(self) -> None:
        """Keep the weights as they are now, to start from them again."""
        self.parts["initial"] = _Snapshot(self)

    @torch.no_grad()
    def restart(self, lasting: tuple[str, ...] = ()) -> None:
        """Go back to the weights that were kept, in all but the parts named."""
        initial = dict(self.parts["initial"].named_buffers())
        kept = ("parts.initial.", *(f"parts.{name}." for name in lasting))
        for name, value in self.state_dict().items():
            if not name.startswith(kept):
                value.copy_(initial[name.replace(".", "/")])


class _Snapshot(nn.Module):
    def __init__(self, module: nn.Module):
        super().__init__()
        for name, value in module.state_dict().items():
            self.register_buffer(name.replace(".", "/"), value.clone())


@torch.no_grad()
def redraw(*modules: nn.Module) -> None:
    """Other random weights of the same distribution: those that are there, shuffled within each tensor."""
    for module in modules:
        for p in module.parameters():
            p.copy_(p.flatten()[torch.randperm(p.numel(), device=p.device)].view_as(p))


def another(head: nn.Module) -> nn.Module:
    """A head like this one, drawn afresh."""
    head = copy.deepcopy(head)
    redraw(head)
    return head


@contextmanager
def frozen(*modules: nn.Module) -> Iterator[None]:
    """Inside, the parameters of ``modules`` get no gradient, though gradient flows through them."""
    moving = [p for module in modules for p in module.parameters() if p.requires_grad]
    try:
        for p in moving:
            p.requires_grad_(False)
        yield
    finally:
        for p in moving:
            p.requires_grad_(True)


@contextmanager
def overheard(module: nn.Module, notes: dict[str, Tensor], name: str) -> Iterator[None]:
    """Inside, what the module gives is noted under ``name``, without gradient."""
    hook = module.register_forward_hook(lambda _, given, out: notes.update({name: out.detach()}))
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode; its mode is restored afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _norms(module: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    kind = nn.modules.batchnorm._BatchNorm
    return [m for m in module.modules() if isinstance(m, kind) and m.track_running_stats]


def running_statistics(module: nn.Module) -> Iterator[Tensor]:
    """Running means and variances of the normalisation layers."""
    yield from (buffer for m in _norms(module) for buffer in (m.running_mean, m.running_var) if buffer is not None)


@contextmanager
def still_statistics(module: nn.Module) -> Iterator[None]:
    """Inside, normalisation layers use the statistics of their batch but leave the running ones alone."""
    norms = _norms(module)
    saved: list[Any] = [m.momentum for m in norms]
    counts = [m.num_batches_tracked for m in norms]
    try:
        for m in norms:
            m.momentum = 0.0
            m.num_batches_tracked = None
        yield
    finally:
        for m, momentum, count in zip(norms, saved, counts, strict=True):
            m.momentum, m.num_batches_tracked = momentum, count


class Dice:
    """The random numbers that come next, as often as wanted: ``with dice.again(): ...`` repeats a dropout mask."""

    def __init__(self, device: torch.device):
        self.devices = [device] if device.type == "cuda" else []
        self.state = torch.get_rng_state()
        self.cuda_states = [torch.cuda.get_rng_state(device) for device in self.devices]

    @contextmanager
    def again(self) -> Iterator[None]:
        with torch.random.fork_rng(devices=self.devices):
            torch.set_rng_state(self.state)
            for device, state in zip(self.devices, self.cuda_states, strict=True):
                torch.cuda.set_rng_state(state, device)
            yield
