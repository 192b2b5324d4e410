"""The cost of observers: steps with all observers against steps with none, as ratios measured in one run.

    python benchmarks/observers.py

Knows nothing of what observers count. The two take turns of ten steps in one process, on the same batches; a turn with
observers ends with a reading. The ratio is the median over pairs of turns, in CPU time on one thread, which other
programs disturb least. There are two problems: DST in the frozen regime, and from random weights on digits.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from selftrain.console import Reporter
from selftrain.data.corpus import Corpus
from selftrain.data.features.rows import FeatureRows
from selftrain.data.source import Source
from selftrain.data.sources.arrays import corpus_from_arrays
from selftrain.data.split import make_split
from selftrain.data.views.stream import Stream
from selftrain.engine.loop import Loop
from selftrain.engine.observers import make_observers
from selftrain.engine.optim import make_optimizers
from selftrain.engine.runtime import make_fabric
from selftrain.nn.network import Network, Task
from selftrain.runs.network_inputs import prepare_inputs
from selftrain.runs.resolve import resolve

BAR = 1.03
TURN = 10


def turn(corpus: Corpus, watched: bool, **given: Any) -> Callable[[], None]:
    """Return a function that takes ten steps of DST(FixMatch) on prepared batches."""
    settings, method = resolve({"data.path": "arrays", "train.steps": 100_000, "train.accelerator": "cpu", **given})
    split = make_split(corpus, labels_per_class=4)
    fabric = make_fabric(settings.train)
    inputs = prepare_inputs(settings, corpus, fabric.device, Reporter(quiet=True))
    net = Network(inputs.classifier, Task(len(corpus.classes), len(split.unlabeled), settings.train.steps))
    method.setup(net)
    stream = Stream(
        inputs.views(split.labeled), split.labels, inputs.views(split.unlabeled), method.views,
        batch=settings.train.batch, unlabeled_batch=settings.train.unlabeled_batch, seed=0,
    )  # fmt: skip
    truth = torch.from_numpy(corpus.truth[split.unlabeled])
    loop = Loop(
        fabric=fabric, settings=settings, method=method, net=net,
        optimizers=make_optimizers(net, settings.optim, method),
        observers=make_observers(truth, len(corpus.classes), fabric.device) if watched else [],
        evaluate=lambda model: {},
    )  # fmt: skip
    loop.prepare()
    loop.objective.train()
    batches = [stream[step] for step in range(TURN)]

    def take() -> None:
        for batch in batches:
            loop.take_step(*batch)
        for observer in loop.observers:
            observer.read()

    return take


def frozen(watched: bool) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    values = rng.random((2000, 7, 1280), dtype=np.float32)
    return turn(corpus_from_arrays(FeatureRows(values), np.arange(2000) % 10), watched, regime="frozen",
                **{"network.backbone": "features"})  # fmt: skip


def digits(watched: bool) -> Callable[[], None]:
    given = {"network.backbone": "wrn-tiny", "data.size": 8, "train.batch": 32, "train.unlabeled_batch": 128}
    return turn(Source.parse("digits").corpus(), watched, regime="scratch", **given)


def rows(rounds: int = 40) -> list[dict[str, Any]]:
    """Return one row per problem."""
    found = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for name, problem in (("frozen", frozen), ("digits from scratch", digits)):
        competitors = {watched: problem(watched) for watched in (False, True)}
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for number in range(-3, rounds):
            for watched in (False, True) if number % 2 else (True, False):
                started = time.process_time()
                competitors[watched]()
                if number >= 0:
                    seconds[watched].append((time.process_time() - started) / TURN)
        low, ratio, high = np.quantile(np.divide(seconds[True], seconds[False]), [0.25, 0.5, 0.75]).tolist()
        found.append(
            {
                "name": f"dst(fixmatch), {name}: a step with all observers / with none",
                "ratio": ratio,
                "bar": BAR,
                "holds": ratio <= BAR,
                "median_ms": 1e3 * float(np.median(seconds[True])),
                "spread": [low, high],
            }
        )
    torch.set_num_threads(threads)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    for row in rows(options.rounds):
        verdict = "holds" if row["holds"] else "FAILS"
        low, high = row["spread"]
        print(
            f"{row['name']:70} {row['ratio']:6.3f} ({low:.3f} to {high:.3f}), bar {row['bar']}: {verdict}, "
            f"{row['median_ms']:.1f} ms"
        )


if __name__ == "__main__":
    main()
