"""A trained run, ready to answer for one image at a time, with the training images that look most like it.

Knows nothing of requests: bytes in, an answer out.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch

from selftrain.console import Reporter
from selftrain.data.features.rows import feature_batches
from selftrain.data.images import LoadedImages
from selftrain.engine.evaluate import probabilities
from selftrain.errors import UserError
from selftrain.runs.predict import Predictor
from selftrain.runs.run import Run
from selftrain.runs.seen import project
from selftrain.runs.thumbnails import LABELED, StoredThumbnails
from selftrain.web.serve.answer import Labeled, as_answer, opened_image

NEAREST = 6


class ServedModel:
    """Answers for the bytes of an image."""

    def __init__(self, run: Run, reporter: Reporter):
        self.run = run
        self.predictor: Predictor = run.predictor
        self.name = run.folder.resolve().name
        card = self.predictor.card
        if card.features and self.predictor.origin is None:
            raise UserError(f"`run` {run.folder}: was trained on features of your own, so it cannot take images.")
        self.classes = list(card.classes)
        self.labeled = self._labeled(reporter)
        self._lock = threading.Lock()

    def _labeled(self, reporter: Reporter) -> Labeled | None:
        """Return the labeled images that the run folder holds; None if there are none.

        The run may be a stranger's, so nothing that its settings name is opened.
        """
        layout, seen = self.run.layout, self.predictor.seen
        if seen is None or self.predictor.extractor is None:
            return None
        arrays = layout.read_thumbnails()
        if f"{LABELED}names" not in arrays:
            reporter.say("training images are not shown: an earlier version of selftrain trained this run")
            return None
        images, place = StoredThumbnails.read(arrays, LABELED), {name: i for i, name in enumerate(seen.names)}
        label = {entry["path"]: entry["label"] for entry in layout.read_split().get("labeled", [])}
        known = [i for i, name in enumerate(images.names) if name in place and name in label]
        if not known:
            return None
        shown = images.subset(known)
        unit = seen.rows[[place[name] for name in shown.names]]
        return Labeled(shown, [label[name] for name in shown.names], unit.numpy())

    def answer(self, content: bytes) -> dict[str, Any]:
        """Return the answer for an image, as the schema describes it; UnreadableImage if it is none."""
        images = LoadedImages([opened_image(content)], ["image"])
        with self._lock:  # one image at a time: a CPU has no use for more
            if self.predictor.extractor is not None:
                features = self.predictor.extractor.features(images, ("clean",), store=False)
                x = next(iter(feature_batches(features, 1)))
                (p,) = (
                    part.cpu().numpy()[0] for part in probabilities(self.predictor.model, [x], self.predictor.device)
                )
                novelty = self._novelty(x)
                near = self._nearest(x)
            else:
                found = self.predictor.predict(images)
                p = found.probabilities[0]
                novelty = None if found.novelty is None else float(found.novelty[0])
                near = []
        return as_answer(self.classes, p, novelty, near)

    def _novelty(self, x: torch.Tensor) -> float | None:
        if self.predictor.novelty is None:
            return None
        with torch.inference_mode():
            return float(self.predictor.novelty(x.to(self.predictor.device))[0])

    def _nearest(self, x: torch.Tensor) -> list[dict[str, Any]]:
        if self.labeled is None:
            return []
        cosines = self.labeled.unit @ project(x.float().cpu())[0].numpy()
        rows = np.argsort(-cosines, kind="stable")[:NEAREST].tolist()
        names = self.labeled.images.names
        return [
            {
                "id": row,
                "name": names[row].encode("utf-8", "replace").decode(),
                "label": self.labeled.labels[row],
                "likeness": round(float(cosines[row]), 4),
            }
            for row in rows
        ]
