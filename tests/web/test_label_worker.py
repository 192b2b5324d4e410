"""What the process beside the labeling page suggests to a person who starts from nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from selftrain.data.images import FileImages
from selftrain.web.label import worker as module
from selftrain.web.label.worker import FIRST, Worker

KINDS, EACH, DIM = 6, 30, 16


def test_the_first_grid_shows_the_largest_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    kind = np.repeat(np.arange(KINDS), EACH)
    features = (np.eye(DIM)[kind] + 0.15 * rng.normal(size=(len(kind), DIM))).astype(np.float16)
    names = [f"{i:03}.jpg" for i in range(len(kind))]
    photos = FileImages("/", names)
    monkeypatch.setattr(module, "extract", lambda *_: (photos, features))
    sent: list[dict[str, Any]] = []
    worker = Worker({"root": "/", "names": names, "settings": {}, "seed": 0}, sent.append)

    messages: list[dict[str, Any]] = [{"labels": {}, "left_out": [0]}]

    class Inbox:
        def take(self) -> dict[str, Any]:
            return messages.pop()

    with pytest.raises(IndexError):
        worker.run(Inbox())  # type: ignore[arg-type]
    found = next(message["suggestions"] for message in sent if message["event"] == "suggestions")
    rows = [entry["row"] for entry in found]
    assert sorted(rows) == list(range(1, len(kind)))  # each photo once, without the one that was answered
    assert set(kind[rows[:FIRST]].tolist()) == set(range(KINDS))
    assert all(entry["why"].startswith("typical of") for entry in found[:FIRST])
