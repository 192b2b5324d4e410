"""DST as a wrapper: every hook of a method reaches the base, unless DST has one of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.methods import DST, FixMatch, Losses, Method, PseudoLabels, SelfTraining, Wrapper
from selftrain.methods.base import forwarding_hooks, hooks_of
from selftrain.nn.network import Network
from tests.tiny import tiny_batch, tiny_net

OWN = {"objective", "check_regime", "views", "turns", "setup", "losses"}
"""hooks of Method that DST or Wrapper define; each of them uses the base in its own way"""


@pytest.mark.parametrize("name", sorted(set(hooks_of(Method)) - OWN))
def test_a_hook_reaches_the_base(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def answer(self: Method, *args: Any) -> str:
        asked.append(args)
        return "the base's own"

    method = DST(FixMatch())
    if isinstance(vars(Method)[name], property):
        monkeypatch.setattr(FixMatch, name, property(answer))
        assert getattr(method, name) == "the base's own"
    else:
        monkeypatch.setattr(FixMatch, name, answer)
        assert getattr(method, name)("net", 3) == "the base's own"
        assert asked == [("net", 3)]


def test_a_hook_that_is_new_in_method_is_forwarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Method, "new_hook", lambda self, net: "default", raising=False)
    monkeypatch.setattr(Method, "new_fact", property(lambda self: 0), raising=False)

    @dataclass(frozen=True, kw_only=True)
    class Base(FixMatch):
        def new_hook(self, net: str) -> str:
            return f"base with {net}"

        @property
        def new_fact(self) -> int:
            return 1

    @dataclass(frozen=True)
    @forwarding_hooks
    class Around(Wrapper):
        name: ClassVar[str] = "around"

    around: Any = Around(Base())
    assert around.new_hook("net") == "base with net"
    assert around.new_fact == 1


@dataclass(frozen=True, kw_only=True)
class Recorded(FixMatch):
    """FixMatch that writes down which of its hooks are called."""

    called: ClassVar[list[str]] = []

    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        self.called.append("label")
        return super().label(net, h, u)

    def imitate(self, net: Network, h: nn.Module, u: Unlabeled, f_hat: PseudoLabels) -> Tensor:
        self.called.append("imitate")
        return super().imitate(net, h, u, f_hat)

    def record(self, net: Network, l: Labeled, u: Unlabeled, f_hat: PseudoLabels) -> None:
        self.called.append("record")

    def encode(self, net: Network, views: Views, labeled: Labeled, unlabeled: Unlabeled) -> tuple[Labeled, Unlabeled]:
        self.called.append("encode")
        return super().encode(net, views, labeled, unlabeled)

    def supervise(self, net: Network, h: nn.Module, l: Labeled) -> Tensor:
        self.called.append("supervise")
        return super().supervise(net, h, l)

    def weight(self, net: Network) -> Tensor | float:
        self.called.append("weight")
        return super().weight(net)


def test_every_hook_of_self_training_is_used_by_dst_as_by_the_base_alone() -> None:
    hooks = set(hooks_of(SelfTraining)) - set(hooks_of(Method))
    assert hooks <= set(vars(Recorded)), "a hook is new: record it in this test, and call it in DST.losses"

    def hooks_called(method: Method) -> list[str]:
        Recorded.called.clear()
        losses = method.objective(tiny_net(method), *tiny_batch())
        assert isinstance(losses, Losses)
        return sorted(Recorded.called)

    assert hooks_called(Recorded()) == hooks_called(DST(Recorded())) == sorted(hooks)
