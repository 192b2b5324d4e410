"""``FrozenFeatures``: features of images by a frozen backbone, as a scikit-learn transformer.

Knows nothing of labels or training.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from selftrain.errors import UserError
from selftrain.estimator.inputs import value_errors

if TYPE_CHECKING:
    from selftrain.data.images import Images
    from selftrain.runs.extractor import Extractor


class FrozenFeatures(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Transformer from images to features of a pretrained backbone.

    There is nothing to fit. Features of image files are stored in the cache of selftrain (``selftrain cache``), so that
    transforming the same list of files again takes no time; those of images in memory are not stored.

    Parameters
    ----------
    backbone : str, default="lite0"
        The backbone, as ``selftrain list backbones`` names it.
    size : int, default=192
        The side of the images that the backbone sees, in pixels.
    views : int, default=1
        The number of views of each image: the image itself and, with more than one, strongly augmented views of it, on
        which ``DSTClassifier`` trains.
    flip : bool, default=True
        Whether augmented views may be mirrored. Use False where a mirrored image means something else.
    cache : str or path-like, default=None
        The folder of stored features; by default ``$SELFTRAIN_CACHE``, or the user's cache folder.
    verbose : int, default=0
        If positive, show progress.

    See Also
    --------
    DSTClassifier : A classifier for these features.

    Examples
    --------
    >>> from pathlib import Path
    >>> from sklearn.pipeline import make_pipeline
    >>> from selftrain import DSTClassifier, FrozenFeatures
    >>> paths = sorted(Path("photos").glob("*.jpg"))  # doctest: +SKIP
    >>> clf = make_pipeline(FrozenFeatures("lite0"), DSTClassifier()).fit(paths, y)  # doctest: +SKIP
    """

    def __init__(
        self,
        backbone: str = "lite0",
        *,
        size: int = 192,
        views: int = 1,
        flip: bool = True,
        cache: str | os.PathLike[str] | None = None,
        verbose: int = 0,
    ) -> None:
        self.backbone = backbone
        self.size = size
        self.views = views
        self.flip = flip
        self.cache = cache
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> FrozenFeatures:
        """Do nothing but check the parameters.

        Parameters
        ----------
        X : list of images
            Ignored.
        y : object
            Ignored.

        Returns
        -------
        self : FrozenFeatures
            The transformer.
        """
        with value_errors():
            self._extractor()
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Return the features of images.

        Parameters
        ----------
        X : list of paths, list of Pillow images, list of arrays, or array of shape (n_samples, height, width, 3)
            The images. Those of an array are uint8, or floats from 0 to 1; those of a list may differ in size.

        Returns
        -------
        features : ndarray of shape (n_samples, n_features) or (n_samples, n_views, n_features)
            Features as float32. The first view is the image itself.
        """
        from selftrain.console import Reporter
        from selftrain.data.features.extract import view_names
        from selftrain.runs.process import restored_afterwards

        with value_errors(), restored_afterwards():
            images, in_files = _images(X)
            extractor = self._extractor()
            extractor.reporter = Reporter(quiet=not self.verbose)
            names = view_names(0, self.views - 1)
            features = np.asarray(extractor.features(images, names, bool(self.flip), store=in_files), np.float32)
        return features if self.views > 1 else features[:, 0]

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names of the features: the name of the backbone with a number.

        Parameters
        ----------
        input_features : object
            Ignored.

        Returns
        -------
        names : ndarray of str objects
            One name per feature.
        """
        with value_errors():
            dim = self._extractor().dim
        return np.array([f"{self.backbone}_{i}" for i in range(dim)], dtype=object)

    def _extractor(self) -> Extractor:
        if not isinstance(self.views, int) or self.views < 1:
            raise UserError(f"`views={self.views!r}`: must be a whole number of at least 1.")
        return _extractor(self.backbone, self.size, None if self.cache is None else os.fspath(self.cache))

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.no_validation = True
        tags.input_tags.two_d_array = False
        tags.transformer_tags.preserves_dtype = []
        return tags


@lru_cache(maxsize=1)
def _extractor(backbone: str, size: int, cache: str | None) -> Extractor:
    """Return the backbone, which takes a moment to load."""
    import torch

    from selftrain.config.resolve import make_settings
    from selftrain.console import Reporter
    from selftrain.runs.network_inputs import make_extractor

    settings = make_settings("frozen", {"network.backbone": backbone, "data.size": size, "data.cache": cache})
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return make_extractor(settings, None, device, Reporter(quiet=True))


def _images(X: Any) -> tuple[Images, bool]:
    """Return X as images, and whether they are files."""
    from PIL import Image

    from selftrain.data.images import ArrayImages, FileImages, LoadedImages, check_images

    if isinstance(X, (str, os.PathLike)):
        raise UserError(f"`X`: expected a list of images, got the path {os.fspath(X)!r}. Give [path], or several.")
    if hasattr(X, "detach"):
        X = X.detach().cpu().numpy()
    if isinstance(X, np.ndarray) and X.dtype.kind not in "OU":
        return ArrayImages(X), False
    values = [str(value) if isinstance(value, str) else value for value in X]  # NumPy has strings of its own
    if not values:
        raise UserError("`X`: there are no images (0 samples).")
    if all(isinstance(value, (str, os.PathLike)) for value in values):
        files = FileImages("", [os.fspath(value) for value in values])
        bad = check_images(files, strict=False, full=False)
        if bad:
            raise UserError(f"`X`: {len(bad)} of {len(files)} images cannot be read; the first is {bad[0]}.")
        return files, True
    loaded = [value if isinstance(value, Image.Image) else _from_array(value, i) for i, value in enumerate(values)]
    return LoadedImages(loaded), False


def _from_array(value: Any, i: int) -> Any:
    from selftrain.data.images import ArrayImages

    if not isinstance(value, np.ndarray):
        raise UserError(
            f"`X`: image {i} is of type {type(value).__name__}. Expected paths, or Pillow images, or arrays of pixels."
        )
    return ArrayImages(value[None]).load(0)
