"""The map of the pile and the thumbnails that a run keeps for its report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from selftrain.runs.layout import RunLayout
from selftrain.runs.notable import MOST_TO_LABEL, notable
from selftrain.runs.pool_map import plane
from selftrain.runs.thumbnails import LABELED, SIDE, StoredThumbnails
from tests.folders import layout_2
from tests.runs.small_runs import train_small


def test_images_that_are_alike_lie_near_each_other() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 6
    x = torch.randn(6, 40, generator=generator)[y] + 0.4 * torch.randn(120, 40, generator=generator)
    places = plane(x)
    assert places.shape == (120, 2)
    assert float(places.min()) == 0
    assert float(places.max()) == 1
    far = torch.cdist(places, places).fill_diagonal_(9)
    near = far.topk(5, largest=False).indices
    assert (y[near] == y[:, None]).float().mean() > 0.95
    assert torch.equal(places, plane(x))


def test_few_or_equal_images_have_places() -> None:
    for x in (torch.randn(3, 5), torch.ones(6, 4), torch.randn(8, 1)):
        assert bool(plane(x).isfinite().all())


def test_a_run_keeps_a_map_and_thumbnails(tmp_path: Path) -> None:
    run = train_small(layout_2(tmp_path / "data"), tmp_path / "run", labels_per_class=2)
    layout = RunLayout(run.folder)
    outputs, labeled = layout.read_outputs(), {entry["path"] for entry in layout.read_split()["labeled"]}
    names, label = outputs["map_names"], outputs["map_label"]
    assert {str(name) for name in names[label >= 0]} == labeled
    assert not labeled & {str(name) for name in names[label < 0]}
    assert len(set(names.tolist())) == len(names) == len(outputs["map_x"])
    place = {str(name): i for i, name in enumerate(outputs["pool_names"])}
    for name, k in zip(names[label < 0], outputs["map_predicted"][label < 0], strict=True):
        assert k == outputs["pool_predicted"][place[str(name)]]
    kept = StoredThumbnails.read(layout.read_thumbnails())
    wanted = [str(outputs["pool_names"][i]) for i in notable(outputs, labeled).to_label]
    assert set(wanted) <= set(kept.names)
    for i in range(len(kept)):
        assert max(kept.load(i).size) <= SIDE
    assert isinstance(kept.load(0), Image.Image)
    assert set(StoredThumbnails.read(layout.read_thumbnails(), LABELED).names) == labeled


def test_images_to_label_have_no_label_and_are_spread_over_classes() -> None:
    n = 200
    rng = np.random.default_rng(0)
    outputs = {
        "pool_names": np.array([f"{i}.jpg" for i in range(n)]),
        "pool_predicted": np.zeros(n, int),
        "pool_runner_up": np.where(np.arange(n) < 100, 1, rng.integers(2, 30, n)),
        "pool_confidence": np.linspace(0.2, 0.9, n),
        "pool_novelty": np.where(np.arange(n) == 150, 0.9, 0.0),
    }
    found = notable(outputs, {"0.jpg", "120.jpg"})
    assert len(found.to_label) == MOST_TO_LABEL
    assert found.to_label[:3] == [1, 2, 3]  # the least confident, but no more of the same two classes
    assert not {0, 120, 150} & set(found.to_label)
    assert found.to_label[3] >= 100
    assert found.novel == [150]
    few = notable({name: values[:50] for name, values in outputs.items()})
    assert len(few.to_label) == MOST_TO_LABEL  # pairs of classes run out
