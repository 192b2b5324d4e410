"""A frozen backbone as a function from images to stored features.

Knows nothing of methods or training; views are made and features stored by ``selftrain.data``.
"""

from __future__ import annotations

import copy
import hashlib
import json
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from selftrain.config.settings import DataSettings
from selftrain.console import Reporter
from selftrain.data.cache_folder import cache_root
from selftrain.data.features.extract import computing, extract_features
from selftrain.data.features.store import add_vectors
from selftrain.data.features.stored import StoredFeatures
from selftrain.data.images import Images
from selftrain.data.views.content_views import ContentViews
from selftrain.data.views.image_views import ImageViews
from selftrain.errors import UserError
from selftrain.nn.backbones import Backbone
from selftrain.nn.fold import fold_batch_norm, folding_of
from selftrain.nn.layers import Encoder
from selftrain.nn.onnx_engine import is_exported, make_onnx
from selftrain.nn.preprocessing import Preprocessing
from selftrain.nn.runtimes import ONNXRUNTIME, OPENVINO, RUNTIMES, Runs, Runtime, is_installed, why_not_bf16
from selftrain.runs.model import ModelCard, weights_hash
from selftrain.runs.ray_extraction import Piecework, RayFill
from selftrain.text import duration

PIXELS_PER_PASS = 1 << 17  # on a CPU, small passes keep activations in the cache: 8 images of 128 x 128
WORTH_SAYING = 20.0
"""seconds of extraction from which the expected time is printed"""
FOLDING = "before export"
"""when batch norms are folded for runtimes; features of earlier versions, which left it to them, differ by rounding"""
Features = NDArray[Any] | StoredFeatures
AUGMENTATION = ("crop", "crop_scale", "randaugment_n", "randaugment_m", "randaugment_jitter", "cutout")


class Extractor:
    """Features of images by a frozen backbone, from the store on disk or computed now."""

    def __init__(
        self, encoder: Encoder, card: ModelCard, data: DataSettings, device: torch.device, reporter: Reporter,
        *, weights: str | None = None,
    ):  # fmt: skip
        self._weights = weights
        """hash of the backbone's weights in memory, if it is known"""
        self.card, self.data, self.device, self.reporter = card, data, device, reporter
        self.encoder = encoder.eval().requires_grad_(False)
        self.encoder = self.encoder.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.dim = encoder.dim
        self.batch = max(1, PIXELS_PER_PASS // card.preprocessing.size**2) if device.type == "cpu" else 256
        self.on_ray = data.extract_on == "ray"
        self.precision = data.precision
        self._network: nn.Module | Runs | None = None
        self._making = threading.Lock()  # several threads ask for it

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs; it makes its own network."""
        return {**self.__dict__, "_network": None, "_making": None, "reporter": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._making, self.reporter = threading.Lock(), Reporter(quiet=True)

    def for_workers(self) -> Extractor:
        """Return this extractor as workers of a cluster use it: the same features, in the same store."""
        if self.on_gpu:
            raise UserError(
                "ray: features are computed on the cores of the cluster, but this machine would use its GPU, whose "
                "features differ. Hide it: CUDA_VISIBLE_DEVICES=-1."
            )
        assert self.about  # decided once, here
        worker = copy.copy(self)
        worker.on_ray = False
        worker.data = replace(self.data, cache=str(cache_root(self.data.cache).absolute()))
        return worker

    def __call__(self, pixels: Tensor) -> Tensor:
        torch.set_num_threads(1)  # for this thread: several threads share the cores, each with a batch of its own
        with torch.inference_mode(), self._autocast():
            features: Tensor = self.network(pixels.to(self.device)).float()
        return features.cpu()

    def _autocast(self) -> Any:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16" and self.on_gpu)

    @property
    def network(self) -> nn.Module | Runs:
        """The encoder in its fastest form, made when there is something to compute."""
        with self._making:
            if self._network is None and self.runtime is not None:
                self._network = self._made_for(self.runtime)
                if self._network is None:
                    library = self.runtime.library
                    raise UserError(f"{self._engines}: {library} can no longer run this backbone. Delete the folder.")
            if self._network is None:
                self._network = fold_batch_norm(self.encoder, self._example(2)) if self.trainable else self.encoder
            return self._network

    @cached_property
    def runtime(self) -> Runtime | None:
        """What runs the backbone in place of torch: on a CPU, the first that is installed and can run this network."""
        asked = self.data.engine
        if not self.trainable or self.on_gpu or asked == "torch":
            return None
        for runtime in RUNTIMES:
            if asked not in ("auto", runtime.key) or (self.precision == "bf16" and runtime is not OPENVINO):
                continue
            if not is_installed(runtime):
                if asked != "auto":
                    extra = f'Run pip install "selftrain[{runtime.key}]".'
                    raise UserError(f"data.engine={asked}: {runtime.library} is not installed. {extra}")
                continue
            known = is_exported(self._engines, self._name_for(runtime))
            if known is None:
                self._network = self._made_for(runtime)
            if known or self._network is not None:
                return runtime
            if asked != "auto":
                raise UserError(
                    f"data.engine={asked}: {runtime.library} cannot run backbone {self.card.backbone}. Leave the "
                    f"setting out."
                )
        if self.precision != "32":
            raise UserError(f"data.precision=bf16: OpenVINO cannot run backbone {self.card.backbone}.")
        return None

    def _made_for(self, runtime: Runtime) -> Runs | None:
        example = self._example(self.batch)
        return make_onnx(self.encoder, example, self._engines, self._name_for(runtime), runtime, self.precision)

    @property
    def on_gpu(self) -> bool:
        return self.device.type != "cpu"

    @property
    def native_size(self) -> int:
        """The side in pixels at which the backbone's weights were trained."""
        backbone = self.encoder.backbone
        return backbone.preprocessing.size if isinstance(backbone, Backbone) else self.card.preprocessing.size

    @property
    def trainable(self) -> bool:
        """Whether the backbone consists of torch's operations, and not of a file that onnxruntime runs."""
        backbone = self.encoder.backbone
        return not isinstance(backbone, Backbone) or backbone.trainable

    def _example(self, n: int) -> Tensor:
        shape = (n, self.card.channels, self.card.preprocessing.size, self.card.preprocessing.size)
        generator = torch.Generator().manual_seed(0)
        return torch.randint(256, shape, dtype=torch.uint8, generator=generator).to(self.device)

    @property
    def _engines(self) -> Path:
        return cache_root(self.data.cache) / "engines"

    def _name_for(self, runtime: Runtime) -> str:
        """The name of the exported network: all that it depends on."""
        about = {**self._described, "batch": self.batch, "engine": str(runtime), "torch": torch.__version__}
        about |= {"folding": FOLDING}
        about |= {"precision": self.precision} if self.precision != "32" else {}
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:24]

    def features(self, images: Images, names: Sequence[str], flip: bool = True, *, store: bool = True) -> Features:
        """Return the features (n, views, dim) of the named views of every image; only those not stored are computed.

        Features belong to the content of an image: names, folders and other images of the list do not matter. Without
        ``store``, all features are computed now, and none are stored.
        """
        threads = torch.get_num_threads()
        try:
            return extract_features(
                self._views(images, names, flip),
                names,
                self,
                dim=self.dim,
                about=self.about,
                root=cache_root(self.data.cache) if store else None,
                dtype=self.data.cache_dtype,
                threads=4 if self.on_gpu else threads,
                batch=self.batch,
                reporter=self.reporter,
                before=lambda missing: self._announce(missing, 1 if self.on_gpu else threads),
                fill=partial(RayFill, self, images, tuple(names), flip, self.reporter) if self.on_ray else None,
            )
        finally:
            torch.set_num_threads(threads)

    def add(self, work: Piecework) -> None:
        """Add features of some images to a collection, with one thread."""
        contents = work.contents
        torch.set_num_threads(1)
        views = self._views(work.images, work.names, work.flip)
        compute = computing(views, work.names, self, contents, dim=self.dim, batch=self.batch)
        add_vectors(work.collection, contents, work.views, work.jobs, compute, threads=1)

    def _views(self, images: Images, names: Sequence[str], flip: bool) -> ContentViews:
        return content_views(images, names, self.data, self.card.preprocessing, self.card.channels, flip)

    def _announce(self, missing: int, at_once: int) -> None:
        """Say how long the views that are not stored will take: from two passes, before the first image is read."""
        torch.set_num_threads(1)
        example = self._example(self.batch)
        with torch.inference_mode(), self._autocast():
            self.network(example)  # the first pass takes longer
            start = time.perf_counter()
            self.network(example)
        once = (time.perf_counter() - start) / self.batch
        if (seconds := once * missing / at_once) >= WORTH_SAYING:
            size = self.card.preprocessing.size
            self.reporter.say(
                f"features of {missing:,} views with {self.card.backbone} at {size} px: about {duration(seconds)}"
            )

    def check_versions(self) -> None:
        """Raise a UserError if this machine would make other features than the one that has pickled this."""
        reason = why_not_bf16(self.data.engine, self.device.type) if self.precision == "bf16" else ""
        if reason:
            raise UserError(f"{socket.gethostname()}: data.precision=bf16: {reason}")
        if self.runtime is not None and not is_installed(self.runtime):
            raise UserError(
                f"{socket.gethostname()}: {self.runtime.library} is not installed, but the machine that started the "
                f"command has {self.about['engine']}. Install the same version on all machines."
            )
        here = self._engine()
        if here != self.about["engine"]:
            raise UserError(
                f"{socket.gethostname()}: has {here}, but the machine that started the command has "
                f"{self.about['engine']}. Install the same version on all machines."
            )

    def _engine(self) -> str:
        runtime = self.runtime if self.trainable else ONNXRUNTIME
        return f"torch {torch.__version__}" if runtime is None else str(runtime)

    @cached_property
    def about(self) -> dict[str, Any]:
        """Everything that features depend on besides the image and the view."""
        precision = {"32": "float32", "bf16": "bfloat16"}[self.precision]
        if self.runtime is not None or not self.trainable:
            folding = {"folding": FOLDING} if self.trainable else {}
            return {**self._described, "engine": self._engine(), "precision": precision, **folding}
        network = self.network
        assert isinstance(network, nn.Module)
        half = {"precision": precision} if self.precision != "32" else {}
        return {**self._described, "engine": self._engine(), "folding": folding_of(network), **half}

    @cached_property
    def _described(self) -> dict[str, Any]:
        """The network. The hash is that of the weights in memory, not one that a model's card claims."""
        like = self.card.preprocessing
        return {
            "backbone": self.card.backbone,
            "weights": self._weights or weights_hash(self.encoder.backbone),
            "size": like.size,
            "channels": self.card.channels,
            "mean": list(like.mean),
            "std": list(like.std),
            "interpolation": like.interpolation,
        }


def content_views(
    images: Images, names: Sequence[str], data: DataSettings, like: Preprocessing, channels: int, flip: bool = True
) -> ContentViews:
    """Return the views of images, among them those of these names, whose features are stored."""
    zoom = 0.0 if "mirrored" in names else like.zoom  # a mirror image is compared with the same crop
    return ContentViews(images, data, like.size, channels, like.interpolation, flip, like.crop, zoom)


def image_views(images: Images, data: DataSettings, card: ModelCard, flip: bool, keep: bool = False) -> ImageViews:
    """Return the views of images as the model's preprocessing asks for them."""
    like = card.preprocessing
    return ImageViews(
        images, data, side=like.size, channels=card.channels, interpolation=like.interpolation, clean_crop=like.crop,
        flip=flip, keep=keep,
    )  # fmt: skip
