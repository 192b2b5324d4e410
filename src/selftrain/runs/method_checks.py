"""The contract of a method, checked on handwritten digits: what ``selftrain test-method`` runs.

Knows nothing of where a method comes from. Each check raises ``FailedCheckError`` with a sentence that says what is
wrong.
"""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from selftrain.config.options import field_help
from selftrain.errors import UserError
from selftrain.methods import AddOn, SelfTraining, make_method, spell_method
from selftrain.methods.own import allowed
from selftrain.nn.contexts import evaluating
from selftrain.nn.layers import Classifier, Committee
from selftrain.nn.network import Network
from selftrain.runs.digits_loop import DigitsRun, digits_run
from selftrain.text import first_line

STEPS = 40
"""of the run that has to learn something"""
RUNS_UNDER_WAY = (10, 200)
"""steps of the runs whose gradients are looked at; the second only if a loss term of the first trains nothing"""
ENOUGH = 0.9
"""the labeled loss must fall below this share of its start"""


class FailedCheckError(Exception):
    """A requirement that a method does not meet."""


@dataclass(frozen=True)
class Check:
    """One requirement, in words, and the function that checks it."""

    what: str
    run: Callable[[str], None]


def check_method(text: str) -> Iterator[tuple[str, str]]:
    """Yield (requirement, reason) for each check of the method that ``text`` spells; no reason if it passes."""
    for check in CHECKS:
        try:
            check.run(text)
        except FailedCheckError as error:
            yield check.what, str(error)
        except UserError as error:
            yield check.what, str(error)
        except Exception as error:  # from the method's own code
            yield check.what, f"{type(error).__name__}: {first_line(error)}"
        else:
            yield check.what, ""


def _regimes(text: str) -> list[str]:
    return [regime for regime in ("scratch", "frozen") if regime in make_method(text).regimes]


def _described(text: str) -> None:
    method = make_method(text)
    if bare := [name for name, words in field_help(type(method)).items() if not words]:
        raise FailedCheckError(f"option {bare[0]!r} has no help text: write a string below the field.")
    if make_method(spell_method(method)) != method:
        raise FailedCheckError(f"its string {spell_method(method)!r} does not give the same method back.")
    if pickle.loads(pickle.dumps(method)) != method:
        raise FailedCheckError("it changes when it is pickled.")


def labeled_loss(run: DigitsRun) -> float:
    """Return the cross entropy of the predictor on the labeled images."""
    with torch.no_grad(), evaluating(run.loop.predictor):
        return nn.functional.cross_entropy(run.loop.predictor(run.x), run.y).item()


def _trains(text: str) -> None:
    for regime in _regimes(text):
        method = make_method(text, regime)
        run = digits_run(method, regime=regime, steps=STEPS)
        before = labeled_loss(run)
        run.go_on(run.loop.steps)
        after = labeled_loss(run)
        if not after < ENOUGH * before:
            raise FailedCheckError(
                f"{regime}: the labeled loss went from {before:.3f} to {after:.3f} in {STEPS} steps."
            )


def _small_problems(text: str) -> None:
    problems: tuple[dict[str, Any], ...] = (
        {"labels": (4, 4)},
        {"labels": (4, 1, 4)},
        {"labels": (4, 4, 4), "batch": 2},
    )
    for problem in problems:
        run = digits_run(make_method(text), steps=4, **problem)
        run.go_on(4)
        if not torch.isfinite(torch.tensor(labeled_loss(run))):
            raise FailedCheckError(f"the loss is not a number with {problem}.")


def _resumes(text: str) -> None:
    run = digits_run(make_method(text), steps=6)
    run.go_on(4)
    file = io.BytesIO()
    torch.save(run.loop.state_dict(), file)
    run.go_on(2)
    other = digits_run(make_method(text), steps=6)
    for p in other.loop.net.parameters():
        p.data.add_(1.0)  # so that nothing can come from the initial weights
    file.seek(0)
    other.loop.load_state_dict(torch.load(file, weights_only=True))
    other.go_on(2)
    state = other.loop.net.state_dict()
    for name, value in run.loop.net.state_dict().items():
        if not torch.equal(value, state[name]):
            raise FailedCheckError(f"a resumed run ends with another {name}: keep all state in net.parts.")


def _keeps_label_pure(text: str) -> None:
    method = make_method(text)
    if not isinstance(method, (SelfTraining, AddOn)):
        return
    run = digits_run(method, steps=6)
    run.go_on(2)
    net, batches = run.loop.net, run.stream[2]
    with torch.no_grad():
        _, u = method.encode(net, method.views, *batches)
    before = copy.deepcopy(net.state_dict())
    f_hat = method.label(net, net.h, u)
    if changed := [name for name, value in net.state_dict().items() if not torch.equal(value, before[name])]:
        raise FailedCheckError(
            f"label changes {changed[0]}; statistics belong in record, which is called once per step."
        )
    if any(value is not None and value.requires_grad for value in (f_hat.target, f_hat.note, f_hat.weight)):
        raise FailedCheckError("pseudo labels carry gradient: make them under torch.no_grad().")


def part_gradients(net: Network, loss: Tensor) -> dict[str, float]:
    """Return the size of the gradient of a loss in each part that is trained."""
    net.zero_grad(set_to_none=True)
    if loss.requires_grad:
        torch.autograd.backward(loss, retain_graph=True)
    parts: dict[str, nn.Module] = {"psi": net.psi, "h": net.h, **net.parts}
    sizes = {}
    for name, part in parts.items():
        trained = [p for p in part.parameters() if p.requires_grad]
        if trained and not isinstance(part, Network):
            sizes[name] = sum(float(p.grad.abs().sum()) for p in trained if p.grad is not None)
    return sizes


def flows_of(text: str) -> dict[str, set[str]]:
    """Return the parts that each loss term of a run under way reaches, over all turns.

    A threshold may keep no pseudo label in a short run; then a longer one is looked at.
    """
    for steps in RUNS_UNDER_WAY:
        found = _flows_after(text, steps)
        if all(found.values()):
            break
    return found


def _flows_after(text: str, steps: int) -> dict[str, set[str]]:
    method = make_method(text)
    run = digits_run(method, steps=steps)
    run.go_on(steps - 1)
    found: dict[str, set[str]] = {}
    for turn in method.turns:
        losses = method.objective(run.loop.net, *run.stream[steps - 1], turn)
        for name, term in losses.terms.items():
            reached = {part for part, size in part_gradients(run.loop.net, term).items() if size > 0}
            found[name] = found.get(name, set()) | reached
    everything = set(part_gradients(run.loop.net, torch.zeros(())))
    idle = everything - set().union(*found.values())
    if idle and (steps == RUNS_UNDER_WAY[-1] or all(found.values())):
        raise FailedCheckError(f"no loss term trains {min(idle)}.")
    return found


def _has_its_gradient_flow(text: str) -> None:
    method, found = make_method(text), flows_of(text)
    declared: Mapping[str, tuple[str, ...]] = type(method).flows
    for term, parts in declared.items():
        if term not in found:
            raise FailedCheckError(f"flows declares the term {term!r}, but the terms are {', '.join(found)}.")
        if found[term] != set(parts):
            raise FailedCheckError(
                f"term {term!r} trains {', '.join(sorted(found[term])) or 'nothing'}, not {', '.join(sorted(parts))}."
            )


def _runs_in_dst(text: str) -> None:
    if not make_method(text).can_be_base():
        return
    found = flows_of(f"dst({text})")
    if "h" in found["unlabeled"]:
        raise FailedCheckError("inside DST, pseudo labels train h: imitate must use the head that it is given.")
    if "h_pseudo" not in found["unlabeled"]:
        raise FailedCheckError(
            "inside DST, pseudo labels do not reach h_pseudo: imitate must use the head that it is given."
        )


def _predicts_with_a_classifier(text: str) -> None:
    method = make_method(text)
    predictor = method.predictor(digits_run(method, steps=4).loop.net)
    if not isinstance(predictor, Classifier) or isinstance(predictor.h, Committee):
        raise FailedCheckError(
            "its predictor is not a Classifier, so a saved model could not be loaded without its code."
        )


def _agrees_on_two_ranks(text: str) -> None:
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    files = [word for path, _ in allowed() for word in ("--file", path)]
    done = subprocess.run(
        [*program, "selftrain.runs.two_ranks", text, *files],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    answer = next((line for line in done.stdout.splitlines() if line.startswith("differ:")), None)
    if answer is None:
        raise FailedCheckError(f"two processes: {(done.stderr.strip().splitlines() or ['no answer'])[-1]}")
    if names := answer.removeprefix("differ:").strip():
        raise FailedCheckError(f"two processes end with another {names.split()[0]}: combine statistics over the ranks.")


CHECKS = (
    Check("describes its options, and its string gives it back", _described),
    Check("learns from labels", _trains),
    Check("survives few classes, labels and images per batch", _small_problems),
    Check("resumes bit by bit", _resumes),
    Check("labels without changing state", _keeps_label_pure),
    Check("trains the parts that it declares", _has_its_gradient_flow),
    Check("runs inside DST, if it labels and imitates", _runs_in_dst),
    Check("predicts without its own code", _predicts_with_a_classifier),
    Check("agrees on two processes", _agrees_on_two_ranks),
)
