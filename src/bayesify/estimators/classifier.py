"""scikit-learn classifier with predictive distributions.

Shapes: N rows, K classes.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from bayesify.calibration import HistogramBinning, IsotonicCalibration, ProbabilityMap, VectorScaling, fit_temperature
from bayesify.conformal import ConformalSets
from bayesify.core.method import Method
from bayesify.data import read_target
from bayesify.data.interchange import warn_of_other_order
from bayesify.errors import ConfigurationError, DataError, MissingDependencyError
from bayesify.estimators.base import BayesianEstimator
from bayesify.estimators.class_weights import row_weights
from bayesify.estimators.recipes import CLASSIFICATION, CLASSIFICATION_PORTFOLIO, Recipe
from bayesify.likelihoods import Categorical, Likelihood, Ordinal
from bayesify.predictive import CategoricalPredictive

try:
    import numpy as np
    import pandas as pd
    from sklearn.base import ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d
except ImportError as error:
    raise MissingDependencyError("the estimators", "scikit-learn and pandas", extra="tables") from error

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["BayesianClassifier"]

_MAPS: Mapping[str, type[ProbabilityMap]] = {
    "vector": VectorScaling,
    "isotonic": IsotonicCalibration,
    "histogram": HistogramBinning,
}


class BayesianClassifier(ClassifierMixin, BayesianEstimator):
    """Bayesian neural network for classification.

    The default is an ensemble of eight networks. Inputs are preprocessed by `bayesify.data.preprocessing`. Columns of
    `predict_proba` and of `predictive(X).probs` are in the order of `classes_`.

    Args:
        method, hidden, activation, encoding, net, epochs, batch_size, learning_rate, beta, train_samples, samples,
            validation_fraction, patience, time_limit, conformal, random_state, accelerator, on, progress: as for
            `BayesianRegressor`; the default `beta` of `MeanField` rises to 1, the evidence lower bound.
        calibrate: holds out a random 20 % of the rows, at most 2,000, and fits the probabilities to them. "temperature" scales the
            logits by one number (`fit_temperature`), which is `likelihood_.temperature`; "vector" has a factor and an offset per
            class (`VectorScaling`); "isotonic" has a nondecreasing function per class (`IsotonicCalibration`) and "histogram" the
            frequencies in ten bins per class (`HistogramBinning`), both for many rows. `fit(groups=)` holds out whole groups.
        ordered: whether the classes have an order, which the likelihood `Ordinal` uses: True for that of numbers or of an ordered
            categorical column, or all labels from the lowest to the highest, such as `["low", "medium", "high"]`.
        class_weight: weights of the classes in training: "balanced" gives all classes the same total weight; a dict has a weight
            per label, 1 for others. They multiply `sample_weight`. Probabilities then refer to the weighted table. Not with
            `conformal` or `calibrate`.

    Attributes:
        classes_: the labels, sorted or as in `ordered`, (K,).
        class_counts_: rows of each class in the first call of fit, of a sample with `fit_files`, (K,); None in models saved before.
        probability_map_: the fitted `VectorScaling`, `IsotonicCalibration` or `HistogramBinning`, or None.
        conformal_, folds_: the scores of the calibration rows, or None; the models of "cross".
        bnn_, likelihood_, history_, columns_, preprocessing_, n_features_in_, feature_names_in_: as for `BayesianRegressor`.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(-1, 1, 50).reshape(-1, 1)
        >>> model = BayesianClassifier(random_state=0, epochs=50).fit(X, np.where(X[:, 0] > 0, "high", "low"))
        >>> model.predict([[0.9]]), model.predict_proba([[0.9]]).shape
        (array(['high'], dtype='<U4'), (1, 2))
    """

    default_beta: ClassVar[float] = 1.0
    calibration_type = ConformalSets
    probability_map_: ProbabilityMap | None = None
    class_counts_: np.ndarray | None = None
    recipes: ClassVar[Mapping[type[Method], Recipe]] = CLASSIFICATION
    portfolio: ClassVar[Mapping[str, Mapping[str, Any]]] = CLASSIFICATION_PORTFOLIO

    def predict(self, X: ArrayLike | pd.DataFrame) -> np.ndarray:
        """Return the most probable label of each row, (N,)."""
        index = self.predictive(X).prediction.numpy()  # first, because it raises NotFittedError
        return self.classes_[index]

    def predict_proba(self, X: ArrayLike | pd.DataFrame) -> np.ndarray:
        """Return the probability of each class, (N, K)."""
        return self.predictive(X).probs.numpy()

    def score(self, X: ArrayLike | pd.DataFrame, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy of `predict`, as scikit-learn's classifiers."""
        warn_of_other_order(X, y)
        return super().score(X, y, sample_weight)

    def predict_set(self, X: ArrayLike | pd.DataFrame, level: float = 0.9) -> np.ndarray:
        """Return which of `classes_` are in the set of each row, (N, K) booleans: the true label is, with probability `level`.

        The sets are those of `ConformalSets` with `score="lac"`: the classes above a certain probability, and always the most
        probable one. The classifier must have been fitted with `conformal`.

        Raises:
            ConfigurationError: fitted without calibration; `level` is not possible, or needs more calibration rows.
        """
        check_is_fitted(self)
        if not isinstance(self.conformal_, ConformalSets):
            raise ConfigurationError(f"predict_set needs calibration rows; fit {type(self).__name__}(conformal=True)")
        return self.conformal_.sets(self._calibrated(X), level).numpy()

    def _calibrate(self) -> None:
        if self.calibrate is None or self._kept is None:
            super()._calibrate()
            return
        X, y = self._take_kept()
        if self.calibrate != "temperature":
            self.probability_map_ = _MAPS[self.calibrate].fit(self.predictive(X), self._encode_target(y))
            return

        def predictive_at(temperature: float) -> CategoricalPredictive:
            self.likelihood_ = Categorical(temperature=temperature)
            return self.predictive(X)

        temperature = fit_temperature(predictive_at, self._encode_target(y))
        self.likelihood_ = Categorical(temperature=temperature)

    def predictive(self, X: ArrayLike | pd.DataFrame) -> CategoricalPredictive:
        predictive = super().predictive(X)
        assert isinstance(predictive, CategoricalPredictive)
        return predictive if self.probability_map_ is None else self.probability_map_(predictive)

    predictive.__doc__ = BayesianEstimator.predictive.__doc__

    def _learn_target(self, y: Any) -> Tensor:
        labels = self._labels(y)
        self.probability_map_ = None
        self.classes_ = np.unique(labels)
        if len(self.classes_) < 2:
            raise DataError(f"y has one class only, {self.classes_.tolist()[0]!r}; at least two are needed")
        if self.ordered is not False:
            self.classes_ = _in_order(self.classes_, self.ordered, y)
        indices = self._indices(labels)
        self.class_counts_ = np.bincount(indices, minlength=len(self.classes_))
        return indices

    def _training_target(self, y: Any) -> Tensor:
        return self._encode_target(y)

    def describe_target(self) -> dict[str, Any]:
        dtype = "object" if self.classes_.dtype == object else self.classes_.dtype.str
        probability_map = None if self.probability_map_ is None else self.probability_map_.to_dict()
        counts = None if self.class_counts_ is None else self.class_counts_.tolist()
        return {"classes": self.classes_.tolist(), "dtype": dtype, "counts": counts, "probability_map": probability_map}

    def restore_target(self, facts: dict[str, Any]) -> None:
        self.classes_ = np.array(facts["classes"], dtype=np.dtype(facts["dtype"]))
        self.class_counts_ = None if facts.get("counts") is None else np.array(facts["counts"])
        if facts.get("probability_map") is not None:
            self.probability_map_ = ProbabilityMap.from_dict(facts["probability_map"])

    def _make_likelihood(self) -> tuple[Likelihood, int]:
        if self.ordered is not False:
            return Ordinal(len(self.classes_)), 1
        return Categorical(), len(self.classes_)

    def _encode_target(self, y: Any) -> Tensor:
        labels = self._labels(y)
        if unknown := set(labels.tolist()) - set(self.classes_.tolist()):
            raise DataError(f"y has labels that are not in training: {', '.join(map(repr, sorted(unknown, key=str)[:10]))}")
        return self._indices(labels)

    def _indices(self, labels: np.ndarray) -> Tensor:
        """Positions of labels in `classes_`."""
        order = np.argsort(self.classes_)
        return torch.from_numpy(order[np.searchsorted(self.classes_, labels, sorter=order)]).long()

    def _row_weights(self, y: Any, sample_weight: Any) -> Any:
        if self.class_weight is None:
            return sample_weight
        return row_weights(self.class_weight, self._labels(y), sample_weight)

    def _labels(self, y: Any) -> np.ndarray:
        labels = column_or_1d(y, warn=True)
        if missing := int(pd.isna(labels).sum()):
            raise DataError(f"Input y contains NaN: {missing} of {len(labels)} labels are missing; drop these rows")
        if labels.dtype == object and len(kinds := {isinstance(label, str) for label in labels}) > 1:
            raise DataError(f"y must have labels of one kind, got {len(kinds)}: text and others; convert them: y.astype(str)")
        if labels.dtype == object and len(kinds := {isinstance(label, bool | np.bool_) for label in labels}) > 1:
            raise DataError("y must have labels of one kind, got 2: booleans and others; convert them: y.astype(int)")
        if labels.dtype == object:
            labels = read_target(pd.Series(labels), "").to_numpy()  # decimals
        if labels.dtype == object and all(isinstance(label, numbers.Real) for label in labels):
            labels = np.array(labels.tolist())
        try:
            check_classification_targets(labels)
        except ValueError as error:
            advice = "Labels are text, booleans or whole numbers; y.astype(str) makes text of numbers"
            raise DataError(f"{error} {advice}") from None
        return labels


def _in_order(classes: np.ndarray, ordered: bool | Sequence[Any], y: Any) -> np.ndarray:
    """Return the classes of y (sorted) from the lowest to the highest.

    Raises:
        TypeError: `ordered` is not a boolean or a sequence of labels.
        ConfigurationError: the order is unknown, or lacks a class. It may have classes that no row has.
    """
    if ordered is True:
        if isinstance(getattr(y, "dtype", None), pd.CategoricalDtype) and y.dtype.ordered:
            present = set(classes.tolist())
            return np.array([label for label in y.dtype.categories if label in present], dtype=classes.dtype)
        if classes.dtype.kind in "biuf":
            return classes
        raise ConfigurationError(
            f"ordered=True needs labels that are numbers or an ordered categorical column, got {classes.tolist()[0]!r}; "
            "give all labels from the lowest to the highest, such as ordered=['low', 'high']"
        )
    if isinstance(ordered, str) or not isinstance(ordered, Sequence):
        raise TypeError(f"ordered must be True, False or all labels from the lowest to the highest, got {ordered!r}")
    labels = list(ordered)
    if len(set(labels)) != len(labels):
        raise ConfigurationError(f"ordered has a label twice: {labels}")
    if missing := set(classes.tolist()) - set(labels):
        raise ConfigurationError(f"ordered lacks the labels {sorted(missing, key=str)} of y, got {labels}")
    return np.array(labels, dtype=classes.dtype if classes.dtype.kind == "O" else None)
