"""``embed``: the features of images by a frozen backbone, in a file.

Knows nothing of labels or training. Features come from the same cache as those of runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from selftrain.config.resolve import make_settings
from selftrain.config.settings import Settings
from selftrain.console import Reporter
from selftrain.data.features.extract import view_names
from selftrain.data.features.feature_writer import check_output, write_features
from selftrain.data.features.origin import Origin
from selftrain.data.images import Images, UnreadableImage
from selftrain.data.source import Source
from selftrain.engine.ray_cluster import one_cluster
from selftrain.errors import UserError
from selftrain.runs.arguments import joined, with_quality
from selftrain.runs.extractor import AUGMENTATION, Extractor
from selftrain.runs.network_inputs import make_extractor
from selftrain.runs.predict import keep_readable
from selftrain.runs.process import restored_afterwards
from selftrain.version import __version__

FORMAT = 1


@dataclass(frozen=True)
class Embedded:
    """What was written."""

    output: Path
    images: int
    dim: int
    views: tuple[str, ...]
    origin: Origin
    unreadable: tuple[UnreadableImage, ...] = ()


def embed(
    images: Any,
    output: str | Path,
    *,
    backbone: str | None = None,
    quality: str | None = None,
    size: int | None = None,
    weak: int = 0,
    strong: int = 0,
    dtype: str = "float32",
    settings: Mapping[str, Any] | None = None,
    strict: bool = False,
    reporter: Reporter | None = None,
) -> Embedded:
    """Write the features of images to a ``.npz`` file, or to a folder if ``output`` has no suffix.

    Parameters
    ----------
    images
        A folder and its subfolders, an image file, tar files, Parquet files, a URL of an object store, or ``hf:NAME``.
    backbone, quality, size, settings
        As ``train`` takes them, with the defaults of the frozen regime.
    weak, strong
        Augmented views that are stored per image, after the clean one.
    dtype
        The number format, float32 or float16.
    strict
        Stop at an unreadable image instead of leaving it out.
    """
    output, reporter = Path(output), reporter or Reporter(quiet=True)
    check_output(output)
    views = _views(weak, strong)
    if dtype not in ("float32", "float16"):
        raise UserError(f'`dtype="{dtype}"`: expected float32 or float16.')
    named = with_quality(quality, {"network.backbone": backbone, "data.size": size}, settings, reporter)
    given = joined({name: value for name, value in named.items() if value is not None}, settings)
    if given.pop("regime", "frozen") != "frozen":
        raise UserError("`regime`: features are those of the frozen regime. Leave it out.")
    resolved = make_settings("frozen", given)
    source = Source.parse(images, argument="images")
    if source.kind == "features":
        raise UserError(f"`images` {images}: these are features already.")
    on_ray = resolved.data.extract_on == "ray"
    with one_cluster(), restored_afterwards(threads=resolved.train.threads):
        given_images = source.images(reporter=reporter)
        found, skipped = keep_readable(given_images, strict, reporter, resolved.data.cache, on_ray=on_ray)
        if not len(found):
            first = f"; the first is {skipped[0]}" if skipped else ""
            raise UserError(f"`images` {images}: none of its {len(skipped)} images can be read{first}.")
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        extractor = make_extractor(resolved, None, device, reporter)
        origin = _write(output, found, views, dtype, extractor, resolved, reporter)
    return Embedded(output, len(found), extractor.dim, views, origin, tuple(skipped))


def _views(weak: int, strong: int) -> tuple[str, ...]:
    if weak < 0 or strong < 0:
        raise UserError(f"`weak={weak}` and `strong={strong}`: must be at least 0.")
    if weak and not strong:
        raise UserError(f"`weak={weak}`: methods compare weak views with strong ones. Add `strong=4`, or leave it out.")
    return view_names(weak, strong)


def _write(
    output: Path,
    images: Images,
    views: tuple[str, ...],
    dtype: str,
    extractor: Extractor,
    settings: Settings,
    reporter: Reporter,
) -> Origin:
    flip, card = settings.data.flip is not False, extractor.card
    features = extractor.features(images, views, flip=flip)
    origin = Origin(card.backbone, card.weights, card.channels, asdict(card.preprocessing), card.precision)
    about = {"format": FORMAT, "selftrain": __version__, **origin.to_card(), "views": list(views)}
    if len(views) > 1:
        augmentation = {name: getattr(settings.data, name) for name in AUGMENTATION}
        about["augmentation"] = {**augmentation, "flip": flip, "seed": settings.data.views_seed}
    with reporter.progress("writing features", len(images), "images") as bar:
        write_features(output, features, images.names, about, dtype=dtype, progress=bar.reach)
    return origin
