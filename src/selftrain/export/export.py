"""``selftrain export``: from a run to a file that runs elsewhere.

Knows nothing of how each format is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from selftrain.config.settings import DataSettings
from selftrain.console import Reporter
from selftrain.data.images import Images
from selftrain.data.images.content import unknown
from selftrain.data.source import Source
from selftrain.data.views.content_views import ContentViews
from selftrain.errors import UserError
from selftrain.export.description import Description, Int8, crops_of, least_side
from selftrain.export.folder import check_beside, usage, write_beside
from selftrain.export.network import Network, channels_of, network_of, preprocessing_of
from selftrain.files import check_writable, read_json
from selftrain.nn.backbones import Preprocessing
from selftrain.runs.layout import ModelLayout, RunLayout
from selftrain.runs.model_readme import model_readme
from selftrain.runs.predict import Predictor, keep_readable, load_predictor

if TYPE_CHECKING:
    import onnx

Format = Literal["onnx", "torch", "openvino"]
SUFFIXES: dict[str, Format] = {".onnx": "onnx", ".pt2": "torch", ".xml": "openvino"}
NEEDS: dict[Format, dict[str, str]] = {
    "onnx": {"onnx": "export", "onnxscript": "export", "onnxruntime": "export"},
    "openvino": {"onnx": "export", "onnxscript": "export", "openvino": "openvino"},
    "torch": {},
}
"""packages that write a format, and the extra of each"""
CALIBRATED, COMPARED = 128, 256
"""images that set the ranges of 8-bit numbers, and others that measure what they change"""
TOLERANCE = 1e-3
"""largest difference between the probabilities of the exported network and those of torch"""


@dataclass(frozen=True)
class Job:
    """A model to export."""

    predictor: Predictor
    network: Network
    description: Description
    readme: str
    reporter: Reporter

    @property
    def preprocessing(self) -> Preprocessing | None:
        return preprocessing_of(self.predictor)

    @property
    def channels(self) -> int:
        return channels_of(self.predictor)

    @property
    def example(self) -> torch.Tensor:
        """Three samples of random pixels or features, as the network takes them."""
        generator = torch.Generator().manual_seed(0)
        like = self.preprocessing
        if like is None:
            return torch.randn(3, self.predictor.card.features, generator=generator)
        shape = (3, 2 if like.zoom else 1, self.channels, like.size, like.size)
        return torch.randint(256, shape, dtype=torch.uint8, generator=generator)


def export(
    run: str | Path,
    out: str | Path,
    *,
    format: str | None = None,
    int8: Any = None,
    reporter: Reporter | None = None,
) -> Path:
    """Write the model of a run as one file, with resizing inside, and return its path.

    Parameters
    ----------
    out
        The file to write. Its suffix is that of the format: .onnx, .pt2 (torch) or .xml (openvino).
    format
        ``onnx``, ``torch`` or ``openvino``; by default, whatever the suffix says.
    int8
        Images like those to predict: compute the backbone in 8-bit integers, with ranges measured on them (ONNX).
    """
    out = Path(out)
    chosen = _format(out, format)
    if int8 is not None and chosen != "onnx":
        raise UserError(f"`int8`: only ONNX files can be in 8-bit integers, not {chosen}.")
    check_writable(out)
    _check_installed(chosen, out)
    if chosen == "onnx":
        check_beside(out)
    elif chosen == "openvino":
        from selftrain.export.openvino_file import check_weights

        check_weights(out)
    reporter = reporter or Reporter(quiet=True)
    layout = RunLayout(Path(run))
    predictor = load_predictor(layout.model, reporter)
    network = network_of(predictor).cpu()
    card = read_json(ModelLayout(layout.model).card)
    description = describe(predictor, card)
    readme = model_readme(layout.read_results(), card, usage=usage(out, description))
    job = Job(predictor, network, description, readme, reporter)
    writers: dict[Format, Callable[[], None]] = {
        "onnx": lambda: _write_onnx(out, job, int8),
        "torch": lambda: _write_torch(out, job),
        "openvino": lambda: _write_openvino(out, job),
    }
    with reporter.progress(f"exporting to {chosen}", 1, "model") as bar:
        writers[chosen]()
        bar.reach(1)
    reporter.say(f"{out}: {out.stat().st_size / 2**20:.1f} MiB, {len(predictor.card.classes)} classes")
    return out


def _format(out: Path, format: str | None) -> Format:
    by_suffix = SUFFIXES.get(out.suffix.lower())
    if format is not None and format not in SUFFIXES.values():
        raise UserError(f"`format` {format!r}: choose onnx, torch or openvino.")
    if by_suffix is None or format not in (None, by_suffix):
        suffixes = " or ".join(f"{suffix} ({name})" for suffix, name in SUFFIXES.items() if format in (None, name))
        raise UserError(f"`out` {out}: the name must end in {suffixes}.")
    return by_suffix


def _check_installed(format: Format, out: Path) -> None:
    from importlib.util import find_spec

    for package, extra in NEEDS[format].items():
        if find_spec(package) is None:
            raise UserError(f'{out}: writing it needs {package}. Run pip install "selftrain[{extra}]".')


def describe(predictor: Predictor, card: dict[str, Any]) -> Description:
    """Return what the exported file says about itself."""
    like = preprocessing_of(predictor)
    return Description(
        predictor.card.classes,
        "features" if like is None else "images",
        dim=predictor.card.features if like is None else 0,
        least_side=0 if like is None else least_side(like),
        crops=None if like is None else crops_of(like, channels_of(predictor)),
        novelty=predictor.novelty is not None,
        integer_classes=predictor.card.integer_classes,
        card={name: value for name, value in card.items() if name != "classes"},
    )


def _write_onnx(out: Path, job: Job, images: Any) -> None:
    from selftrain.export.onnx_file import network_graph, write_onnx

    graph, description = network_graph(job.network, job.example, job.description.novelty), job.description
    _check_same(graph, job)
    if images is not None:
        graph, measured = _quantised(graph, job, images)
        description = replace(description, int8=measured)
    write_onnx(out, _with_resizing(graph, job), description)
    write_beside(out, description, job.readme)


def _with_resizing(graph: onnx.ModelProto, job: Job) -> onnx.ModelProto:
    from selftrain.export.onnx_file import with_resizing

    crops = job.description.crops
    return graph if crops is None else with_resizing(graph, crops)


def _check_same(graph: onnx.ModelProto, job: Job) -> None:
    from selftrain.export.exported import probabilities_of

    _check_close(job, lambda batches: probabilities_of(graph, batches))


def _check_close(job: Job, answers: Callable[[list[NDArray[Any]]], list[NDArray[Any]]]) -> None:
    """Raise a UserError if the exported network gives other probabilities than torch."""
    batches = [job.example, job.example[:1]]
    for batch, found in zip(batches, answers([batch.numpy() for batch in batches]), strict=True):
        with torch.inference_mode():
            expected = job.network(batch)[0].numpy()
        if found.shape != expected.shape or not np.abs(found - expected).max() <= TOLERANCE:
            raise UserError("the exported network gives other probabilities than torch; it was not written.")


def _quantised(graph: onnx.ModelProto, job: Job, images: Any) -> tuple[onnx.ModelProto, Int8]:
    """Return the network in 8-bit integers, and on how many images the labels stay the same."""
    from selftrain.export.exported import probabilities_of
    from selftrain.export.int8 import quantised

    if job.preprocessing is None:
        raise UserError("`int8`: this model takes features; there is no backbone to compute in 8-bit integers.")
    found, _ = keep_readable(Source.parse(images, argument="images").images(reporter=job.reporter), False, job.reporter)
    if len(found) < 16:
        raise UserError(f"`int8`: {len(found)} readable images in {images}; at least 16 are needed.")
    order = np.random.default_rng(0).permutation(len(found))
    ranges = min(CALIBRATED, len(found) // 2)
    smaller = quantised(graph, _crops(job, found, order[:ranges]))
    others = _crops(job, found, order[ranges : ranges + COMPARED])
    before, after = (
        np.concatenate([p.argmax(axis=1) for p in probabilities_of(one, others)]) for one in (graph, smaller)
    )
    same, n = int((before == after).sum()), len(before)
    job.reporter.say(f"8-bit integers: ranges from {ranges} images; the same label for {same} of {n} others")
    return smaller, Int8(ranges, n, same / n)


def _crops(job: Job, images: Images, rows: NDArray[Any]) -> list[NDArray[Any]]:
    """Return some images as batches of the network's input."""
    like = job.preprocessing
    assert like is not None
    data = DataSettings(crop="pad", randaugment_n=0, cutout=0.0)
    views = ContentViews(images, data, like.size, job.channels, like.interpolation, False, like.crop, like.zoom)
    parts = np.array_split(rows, max(1, len(rows) // 16))
    return [views.make(part, ["clean"], unknown(len(part)))[0].numpy() for part in parts]


def _write_torch(out: Path, job: Job) -> None:
    from selftrain.export.torch_program import write_program

    write_program(out, job.network, job.example, job.preprocessing, job.channels, job.description)


def _write_openvino(out: Path, job: Job) -> None:
    from selftrain.export.onnx_file import network_graph
    from selftrain.export.openvino_file import answers_of, read_graph, write_openvino

    model = read_graph(network_graph(job.network, job.example, job.description.novelty), job.description)
    _check_close(job, lambda batches: answers_of(model, batches))
    write_openvino(out, model)
