"""What a run finds out about the unlabeled pool before self-training: on fixed features that takes seconds.

A model that is trained on the labels alone and a graph of neighbours tell how frequent the classes are in the pool; the
likeness to the classes tells which images belong to none. Knows nothing of equations, files or reports.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from selftrain.config.resolve import with_values
from selftrain.config.settings import Settings
from selftrain.console import Reporter
from selftrain.data.split import Split
from selftrain.data.views.stream import batches
from selftrain.engine.loop import Loop
from selftrain.engine.optim import make_optimizers
from selftrain.methods import Diffusion, Method, Supervised
from selftrain.methods.fitted import FittedPredictor, principal_directions, project
from selftrain.methods.functional import probabilities
from selftrain.methods.junk import NEIGHBOURS, Novelty, fit_novelty, screen, threshold_of_unknown
from selftrain.methods.prior import PART as PRIOR
from selftrain.methods.prior import Prior, estimate_shares
from selftrain.neighbours import nearest_rows
from selftrain.nn.contexts import evaluating
from selftrain.nn.network import Network
from selftrain.runs.image_outputs import sampled
from selftrain.runs.shares import given_shares
from selftrain.runs.training import Training
from selftrain.text import listed

PILE = "pile"
NEVER = 10**12
BATCH = 4096
MOST_COMPARED = 100_000
"""unlabeled images of which neighbours are searched: of so many, for about ten seconds"""
SPREAD = Diffusion()


class Pile(nn.Module):
    """What the survey found: part of the network, so that a resumed run does not repeat it."""

    weight: Tensor
    """(n,) of each unlabeled image: 1 for a member of a class, 0 for junk"""
    likeness: Tensor
    """(n,) how like any class it is, its neighbours counted in"""
    junk_share: Tensor
    agreement: Tensor
    """share of the pool on which the two models agree"""
    left_out: Tensor
    """(labels, K) what the graph says about each label without it; NaN in a run that began with an older version"""

    def __init__(self, net: Network, labels: int) -> None:
        super().__init__()
        K, (dim,) = net.task.classes, net.task.shape
        self.reference = copy.deepcopy(net.classifier).requires_grad_(False)
        self.neighbours: FittedPredictor = SPREAD.empty_predictor()
        self.novelty = Novelty(torch.zeros(dim), torch.zeros(K, dim), torch.zeros(()), torch.ones(()))
        self.register_buffer("weight", torch.ones(net.task.unlabeled))
        self.register_buffer("likeness", torch.zeros(net.task.unlabeled))
        self.register_buffer("junk_share", torch.zeros(()))
        self.register_buffer("agreement", torch.zeros(()))
        self.register_buffer("left_out", torch.full((labels, K), torch.nan))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *more: Any) -> None:
        state_dict.setdefault(f"{prefix}left_out", self.left_out)
        super()._load_from_state_dict(state_dict, prefix, *more)


def guards(settings: Settings, method: Method) -> bool:
    """Tell whether a run is compared with the labels alone."""
    return settings.train.guard == "auto" and _can_survey(settings, method)


def surveys(settings: Settings, method: Method) -> bool:
    """Tell whether a run looks at its pool before it trains."""
    asked = settings.train.guard == "auto" or settings.data.screen
    return _can_survey(settings, method) and (asked or _estimates(settings, method))


def _can_survey(settings: Settings, method: Method) -> bool:
    return settings.regime == "frozen" and bool(method.views.unlabeled) and not method.fitted


def _estimates(settings: Settings, method: Method) -> bool:
    return settings.data.prior == "auto" and method.reads_prior


def add_parts(net: Network, settings: Settings, method: Method, labels: np.ndarray, classes: Sequence[str]) -> None:
    """Add the prior to the network, and a place for what a survey finds."""
    if settings.regime != "frozen" and settings.data.prior == "auto":
        return
    counts = np.bincount(labels, minlength=len(classes)).tolist()
    prior = Prior(counts)
    given = _given_prior(settings.data.prior, classes)
    if given is not None:
        prior.pool.copy_(given)
    for one in net.members:
        one.parts[PRIOR] = prior
    if surveys(settings, method):
        net.parts[PILE] = Pile(net, len(labels))


def _given_prior(text: str, classes: Sequence[str]) -> Tensor | None:
    """Return the frequencies that ``data.prior`` gives; None if they are estimated or those of the labels."""
    return None if text in ("auto", "labels") else given_shares(text, classes, "data.prior", "auto, labels, uniform")


def survey(training: Training, reporter: Reporter) -> None:
    """Train on the labels alone, spread labels along a graph, look for junk, and estimate the class frequencies."""
    net, settings, split = training.net, training.settings, training.problem.split
    pile, prior = net.part(PILE, Pile), net.part(PRIOR, Prior)
    _train_reference(training, pile, reporter)
    rows = sampled(len(split.unlabeled))
    x, pool = training.clean(split.labeled), training.clean(split.unlabeled[rows])
    y = torch.from_numpy(split.labels)
    x, y, pool = (tensor.to(training.fabric.device) for tensor in (x, y, pool))
    hidden = not_labeled(split, rows).to(pool.device)
    with torch.no_grad(), reporter.progress("looking at the unlabeled images", 3, "steps") as bar:
        if settings.data.screen:
            _screen(training, pile, x, y, pool, rows)
        bar.reach(1)
        weight = pile.weight[torch.from_numpy(rows).to(pile.weight.device)]
        members = hidden & (weight > 0.5)
        kept = pool if members.all() else pool[members]  # a copy of all features is large
        left_out = SPREAD.fit_and_leave_out(pile.neighbours, x, y, kept, net.task.classes)
        pile.left_out.copy_(torch.from_numpy(left_out))
        bar.reach(2)
        with evaluating(pile):
            p = torch.cat([probabilities(pile.reference(part)) for part in torch.split(pool, BATCH)])
            q = spread_answers(pile.neighbours, pool, members)
        shares, agreement = estimate_shares(p, q, weight, prior.labels)
        pile.agreement.fill_(agreement)
        if settings.data.prior == "auto":
            prior.pool.copy_(shares)
        bar.reach(3)
    _announce(training, pile, prior, reporter)


def not_labeled(split: Split, rows: np.ndarray) -> Tensor:
    """Tell which of these rows of the pool are not labeled images, which may be in the pool as well."""
    return torch.from_numpy(~np.isin(split.unlabeled[rows], split.labeled))


def spread_answers(predictor: FittedPredictor, pool: Tensor, members: Tensor) -> Tensor:
    """Return the probabilities of features of which the members are, in their order, the last images of a graph."""
    known = predictor.get_buffer("answers")
    p = known.new_zeros(len(pool), known.shape[1])
    p[members] = known[len(known) - int(members.sum()) :]
    if not members.all():
        p[~members] = probabilities(predictor(pool[~members]))
    return p


def _train_reference(training: Training, pile: Pile, reporter: Reporter) -> None:
    """Train the same network on the labels alone, as ``method="supervised"`` does with the same settings."""
    settings = with_values(training.settings, {"train.eval_every": NEVER, "train.checkpoint_every": NEVER})
    base: Any = getattr(training.method, "base", training.method)
    defaults = Supervised.regime_defaults(settings.regime, {})
    method = Supervised(**{name: getattr(base, name, value) for name, value in defaults.items()})
    net = Network(pile.reference.requires_grad_(True), training.net.task, bn_apart=training.net.bn_apart)
    net.parts[PRIOR] = training.net.parts[PRIOR]
    stream = training.stream(method)
    steps = settings.train.steps
    with reporter.progress("training on the labels alone", steps, "steps") as bar:
        loop = Loop(
            fabric=training.fabric,
            settings=settings,
            method=method,
            net=net,
            optimizers=make_optimizers(net, settings.optim, method),
            observers=(),
            evaluate=lambda model: {},
            on_progress=bar.reach,
        )
        loop.prepare()
        loop.run(batches(stream, 0, steps))
    pile.reference.load_state_dict(loop.predictor.state_dict())  # the average, if there is one
    pile.reference.requires_grad_(False)


def _screen(training: Training, pile: Pile, x: Tensor, y: Tensor, pool: Tensor, rows: np.ndarray) -> None:
    """Find images of no class. In a huge pool each image is judged by itself, without its neighbours."""
    split = training.problem.split
    novelty = fit_novelty(x, y, pool, training.net.task.classes)
    pile.novelty.load_state_dict(novelty.state_dict())
    own = _likeness(training, novelty)
    found = screen(novelty, own, len(x))
    whole = len(rows) == len(own)
    if len(own) > 1 and (whole or (found.share > 0 and len(own) <= MOST_COMPARED)):
        found = screen(novelty, own, len(x), _neighbours(training, novelty, pool, whole))
    weight = torch.from_numpy(found.weight).to(pile.weight)
    # The mean of an uneven pool is near its largest class, which then looks like nothing; labels have no such mean.
    by_labels = fit_novelty(x, y, x[:0], training.net.task.classes)
    weight[_likeness(training, by_labels) >= by_labels.quartile + by_labels.scale] = 1
    weight[torch.from_numpy(np.isin(split.unlabeled, split.labeled)).to(weight.device)] = 1  # labeled: members
    pile.weight.copy_(weight)
    pile.likeness.copy_(torch.from_numpy(found.likeness))
    pile.novelty.threshold.copy_(threshold_of_unknown(novelty, own[weight > 0.5]))
    pile.junk_share.fill_(min(found.share, float(1 - weight.mean())))


def _neighbours(training: Training, novelty: Novelty, pool: Tensor, whole: bool) -> Tensor:
    """Return the nearest images (n, 10) of each unlabeled image; ``pool`` has the features of all or of a sample."""
    unit = novelty.prepare(pool)
    basis = principal_directions(unit, SPREAD.components)
    if whole:
        return nearest_rows(project(unit, basis), NEIGHBOURS).rows
    inputs = training.inputs.clean_pool(training.problem.split.unlabeled, BATCH)
    parts = [project(novelty.prepare(batch.to(pool.device)), basis) for batch in inputs]
    return nearest_rows(torch.cat(parts), NEIGHBOURS).rows


def _likeness(training: Training, novelty: Novelty) -> Tensor:
    """Return how like a class each unlabeled image is, in batches: the features of a huge pool do not fit memory."""
    novelty = novelty.to(training.fabric.device)
    inputs = training.inputs.clean_pool(training.problem.split.unlabeled, BATCH)
    return torch.cat([novelty.likeness(batch.to(training.fabric.device)) for batch in inputs])


def _announce(training: Training, pile: Pile, prior: Prior, reporter: Reporter) -> None:
    classes = training.problem.corpus.classes
    order = prior.pool.argsort(descending=True).tolist()
    named = listed([f"{100 * float(prior.pool[k]):.0f}% {classes[k]}" for k in order[:3]])
    like = "like your labels" if float(prior.unlike) == 0 else "unlike your labels"
    reporter.say(
        f"your pile seems to hold {named}; class frequencies {like} (distance {100 * float(prior.distance):.0f} of 100)"
    )
    if float(pile.junk_share) > 0:
        reporter.say(f"about {100 * float(pile.junk_share):.0f}% of the unlabeled images look like none of the classes")
