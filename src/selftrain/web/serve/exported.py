"""An exported model, ready to answer for one image at a time, with onnxruntime.

Knows nothing of requests: bytes in, an answer out. The file holds no training images, so none are shown.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from selftrain.errors import UserError
from selftrain.export.exported import ExportedModel
from selftrain.web.serve.answer import Labeled, as_answer, opened_image


class ServedExport:
    """Answers for the bytes of an image."""

    labeled: Labeled | None = None

    def __init__(self, model: ExportedModel):
        self.model = model
        if model.description.input == "features":
            raise UserError(f"`run` {model.path}: takes features of your own, so it cannot take images.")
        self.name = f"{model.path.resolve().parent.name}/{model.path.name}"
        self.classes = list(model.classes)
        self._lock = threading.Lock()

    def answer(self, content: bytes) -> dict[str, Any]:
        """Return the answer for an image, as the schema describes it; UnreadableImage if it is none."""
        pixels = np.asarray(opened_image(content, self.model.description.least_side or None))
        with self._lock:  # one image at a time: a CPU has no use for more
            found = self.model.run(pixels[None])
        novelty = None if found.novelty is None else float(found.novelty[0])
        return as_answer(self.classes, found.probabilities[0], novelty, [])
