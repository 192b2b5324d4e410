"""``DSTClassifier``: self-training on feature vectors with the interface of a scikit-learn classifier.

Knows nothing of equations or networks: it checks X and y, trains in memory, and keeps the final model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from selftrain.errors import UserError
from selftrain.estimator.inputs import dense, read_rows, read_targets, seed_of, value_errors
from selftrain.estimator.method_options import options_of, with_method_options
from selftrain.estimator.training_rows import TrainingRows

if TYPE_CHECKING:
    from selftrain.methods import Method
    from selftrain.runs.in_memory import Fitted

Array = NDArray[Any]
PREFIX = "method__"
BATCH = 256
"""rows that are predicted together; fewer are filled up, so that a row's answer does not depend on the others"""


class DSTClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classifier that learns from a few labeled and many unlabeled rows.

    A small network is trained on feature vectors, such as embeddings, with Debiased Self-Training around FixMatch, or
    with any other method. The same network is also trained on the labels alone, and a guard that needs no test data
    keeps the safer one of the two.

    Parameters
    ----------
    method : str or Method, default="dst(fixmatch)"
        The method, as a string with the defaults for features (``"dst(flexmatch)"``, ``"fixmatch(tau=0.9)"``) or as an
        object such as ``DST(FixMatch())``, which is taken as it is. Its options are parameters as well:
        ``set_params(method__base__tau=0.9)``.
    steps : int, default=None
        Optimizer steps; None for the default of 300.
    settings : dict, default=None
        Any other setting by its dotted name, ``{"optim.lr": 0.01, "train.guard": "none"}``.
    warm_start : bool, default=False
        If True, ``fit`` starts from the network of the previous ``fit`` instead of random weights, for example after
        some more rows were labeled. The classes and the number of features must be the same. The labels-only network
        that the guard compares with always starts from random weights.
    run_folder : str or path-like, default=None
        Also write a run folder, which must not exist yet, for ``selftrain report`` and ``selftrain predict``. By
        default nothing is written.
    random_state : int, RandomState instance, Generator or None, default=None
        Seed of the initial weights, the batches and the augmentation. With an int, fits on the same data are identical
        on the same machine. With None, each fit draws a new seed. The global random states of NumPy and torch are left
        as they are.
    verbose : int, default=0
        If positive, print what ``selftrain.train`` prints.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels that occur in y, sorted, in their own type.
    n_features_in_ : int
        The number of features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        The names of the features, if X has string names for all of them.
    transduction_ : ndarray of shape (n_samples,)
        The label of each row of X: the given one, or else the predicted one.
    label_distributions_ : ndarray of shape (n_samples, n_classes)
        The probabilities of the classes for each row of X, as float32; 1 for a given label. With more than 20,000 rows,
        this and ``transduction_`` are computed from X when they are first used, because that can take longer than the
        fit; a pickled classifier has them only if they were used before.
    prior_ : ndarray of shape (n_classes,)
        The estimated frequencies of the classes among all rows of X.
    novelty_ : ndarray of shape (n_samples,) or None
        How likely each row of X belongs to none of the classes, 0 to 1: such rows are drawn less often or not at all.
        None if it was not looked for (``"data.screen": False``).
    guard_ : dict or None
        What the guard chose (``choice``: ``"blend"`` or ``"labels_only"``), why (``reason``), and its evidence. None
        without a guard.
    estimated_accuracy_ : dict or None
        The accuracy as it is estimated without a test set: ``accuracy``, its 90% interval from ``low`` to ``high``, and
        ``per_class``. None if no class has two labels.
    n_iter_ : int
        The number of steps taken.

    See Also
    --------
    FrozenFeatures : Features of images, for a pipeline with this classifier.

    LabeledStratifiedKFold : Folds that keep unlabeled rows in every training part.

    Notes
    -----
    Rows with the label -1, None or NaN are unlabeled; among strings, the empty string as well. X has the shape
    (n_samples, n_features), or (n_samples, n_views, n_features) with the unchanged row as first view and strongly
    augmented ones after it.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_digits
    >>> from selftrain import DSTClassifier
    >>> X, truth = load_digits(return_X_y=True)
    >>> y = np.full(len(X), -1)
    >>> y[:60] = truth[:60]
    >>> clf = DSTClassifier(steps=100, random_state=0).fit(X, y)
    >>> clf.predict(X[:3])
    array([0, 1, 2])
    >>> bool(clf.score(X[60:], truth[60:]) > 0.8)
    True
    """

    classes_: Array
    _weights: dict[str, Any]

    def __init__(
        self,
        method: str | Method = "dst(fixmatch)",
        *,
        steps: int | None = None,
        settings: Mapping[str, Any] | None = None,
        warm_start: bool = False,
        run_folder: str | PathLike[str] | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.method = method
        self.steps = steps
        self.settings = settings
        self.warm_start = warm_start
        self.run_folder = run_folder
        self.random_state = random_state
        self.verbose = verbose

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters.

        Parameters
        ----------
        deep : bool, default=True
            Also return the options of the method, as ``method__base__tau``.

        Returns
        -------
        params : dict
            Names and values.
        """
        params: dict[str, Any] = super().get_params(deep)
        if deep:
            params |= {PREFIX + name: value for name, value in options_of(self.method).items()}
        return params

    def set_params(self, **params: Any) -> DSTClassifier:
        """Set parameters, also the options of the method.

        Parameters
        ----------
        **params : dict
            Names and values, such as ``method__base__tau=0.9``.

        Returns
        -------
        self : DSTClassifier
            The estimator.
        """
        options = {name.removeprefix(PREFIX): params.pop(name) for name in list(params) if name.startswith(PREFIX)}
        super().set_params(**params)
        with value_errors():
            self.method = with_method_options(self.method, options)
        return self

    def fit(self, X: Any, y: Any) -> DSTClassifier:
        """Train on labeled and unlabeled rows.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features) or (n_samples, n_views, n_features)
            The rows: an array, a memory map, a tensor, a table or a sparse matrix.
        y : array-like of shape (n_samples,)
            Their labels; -1, None and NaN are unlabeled.

        Returns
        -------
        self : DSTClassifier
            The fitted estimator.
        """
        with value_errors():
            start = self._weights if self.warm_start and hasattr(self, "_weights") else None
            rows = read_rows(self, X, reset=start is None)
            found = read_targets(self, y, rows)
            if start is not None and not np.array_equal(found.classes, self.classes_):
                raise UserError(
                    f"`warm_start=True`: y has the classes {found.classes.tolist()}, and the classifier was fitted to "
                    f"{self.classes_.tolist()}. Use `warm_start=False` to fit it to other classes."
                )
            rows = dense(rows)
            fitted = self._train(rows, found.positions, [str(value) for value in found.classes.tolist()], start)
        self.classes_ = found.classes
        self.n_iter_ = fitted.steps
        self.guard_ = fitted.guard
        self.estimated_accuracy_ = fitted.estimated
        self.prior_ = fitted.prior
        self.novelty_ = fitted.novelty
        self._model = fitted.model
        self._weights = fitted.weights
        self._rows = TrainingRows.of(rows, found.positions, fitted)
        return self

    def _train(self, rows: Array, positions: NDArray[np.int64], names: list[str], start: Any) -> Fitted:
        from selftrain.console import Reporter
        from selftrain.data.corpus import Corpus
        from selftrain.data.features.rows import FeatureRows
        from selftrain.data.source import ARRAYS
        from selftrain.methods import Method, name_files
        from selftrain.runs.arguments import joined
        from selftrain.runs.in_memory import fit_in_memory

        if not isinstance(self.method, (str, Method)):
            raise UserError(f"`method`: expected a string such as 'dst(fixmatch)' or a method, got {self.method!r}.")
        named = {
            "data.path": ARRAYS,
            "network.backbone": "features",
            "regime": "frozen",
            "seed": seed_of(self.random_state),
            "train.steps": self.steps,
            "method": name_files(self.method) if isinstance(self.method, str) else None,
        }
        given = joined({name: value for name, value in named.items() if value is not None}, self.settings)
        corpus = Corpus(ARRAYS, tuple(names), FeatureRows(rows, checked=True), positions, positions)
        return fit_in_memory(
            corpus,
            given,
            self.method if isinstance(self.method, Method) else None,
            Reporter(quiet=not self.verbose),
            folder=None if self.run_folder is None else Path(self.run_folder),
            start=start,
        )

    @property
    def label_distributions_(self) -> NDArray[np.float32]:
        """The probabilities of the classes for each row of X in ``fit``; 1 for a given label."""
        return self._training_rows().probabilities(self)

    @property
    def transduction_(self) -> Array:
        """The label of each row of X in ``fit``: the given one, or else the predicted one."""
        labels: Array = self.classes_[self._training_rows().probabilities(self).argmax(axis=1)]
        return labels

    def _training_rows(self) -> TrainingRows:
        if not hasattr(self, "_rows"):
            raise AttributeError(f"This {type(self).__name__} instance is not fitted yet.")
        rows: TrainingRows = self._rows
        return rows

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features) or (n_samples, n_views, n_features)
            The rows; of several views, the first one counts.

        Returns
        -------
        y : ndarray of shape (n_samples,)
            Labels, in the type of those in ``fit``.
        """
        p = self.predict_proba(X)
        labels: Array = self.classes_[p.argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probabilities of the classes, calibrated with labels that training had not seen.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features) or (n_samples, n_views, n_features)
            The rows; of several views, the first one counts.

        Returns
        -------
        p : ndarray of shape (n_samples, n_classes)
            Probabilities, in the order of ``classes_``.
        """
        check_is_fitted(self)
        with value_errors():
            rows = read_rows(self, X, reset=False)
        return np.concatenate(list(self._probabilities(rows)))

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the logarithms of the probabilities of the classes.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features) or (n_samples, n_views, n_features)
            The rows; of several views, the first one counts.

        Returns
        -------
        log_p : ndarray of shape (n_samples, n_classes)
            Logarithms, in the order of ``classes_``.
        """
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return a score of each class: the logarithm of its probability.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features) or (n_samples, n_views, n_features)
            The rows; of several views, the first one counts.

        Returns
        -------
        scores : ndarray of shape (n_samples, n_classes) or (n_samples,)
            With two classes, the log odds of the second one.
        """
        scores = self.predict_log_proba(X)
        return scores if scores.shape[1] > 2 else scores[:, 1] - scores[:, 0]

    def _probabilities(self, rows: Any) -> Iterator[NDArray[np.float64]]:
        """Yield the probabilities of a few rows at a time."""
        import torch

        for start in range(0, rows.shape[0], BATCH):
            part = rows[start : start + BATCH]
            part = part.toarray() if sparse.issparse(part) else np.asarray(part if part.ndim == 2 else part[:, 0])
            filled = torch.zeros(BATCH, part.shape[1])
            filled[: len(part)] = torch.from_numpy(part.astype(np.float32))
            with torch.inference_mode():
                logits = self._model(filled)[: len(part)].double()
                yield torch.softmax(logits, dim=1).numpy()

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_model")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.three_d_array = True
        return tags
