"""scikit-learn regressor with predictive distributions.

Shapes: S draws, N rows, D outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from bayesify.conformal import ConformalIntervals
from bayesify.core.checks import check_choice
from bayesify.core.method import Method
from bayesify.data.columns import SMALLEST_RANGE
from bayesify.data.interchange import warn_of_other_order
from bayesify.data.target import LARGEST_TARGET
from bayesify.errors import DataError, MissingDependencyError
from bayesify.estimators.base import BayesianEstimator
from bayesify.estimators.recipes import REGRESSION, REGRESSION_PORTFOLIO, Recipe
from bayesify.jobs import RayCluster
from bayesify.jobs.where import LOCAL
from bayesify.likelihoods import Gaussian, GaussianMixture, HeteroscedasticGaussian, Likelihood, NegativeBinomial, Poisson
from bayesify.objectives import KLSchedule
from bayesify.predictive import GaussianPredictive, NumericPredictive

try:
    import numpy as np
    import pandas as pd
    from sklearn.base import RegressorMixin
    from sklearn.utils.validation import check_array
except ImportError as error:
    raise MissingDependencyError("the estimators", "scikit-learn and pandas", extra="tables") from error

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from sklearn.utils import Tags

__all__ = ["BayesianRegressor"]

_COMPONENTS = 3  # of the mixture
_COUNTS = ("poisson", "negative-binomial")
_NARROWEST, _WIDEST = 1e-3, 10.0  # standard deviations of a component, in standard deviations of the targets


class BayesianRegressor(RegressorMixin, BayesianEstimator):
    """Bayesian neural network for regression.

    The default is an ensemble of eight networks whose noise may have any distribution. Inputs are preprocessed by
    `bayesify.data.preprocessing`, targets other than counts are standardized for training; predictions are in the original units.

    Args:
        method: a method, or the name of one, such as "VSD", for the fields in `BayesianRegressor.recipes`; None for
            `BayesianRegressor.default_method`; "auto" for several models (`BayesianRegressor.portfolio`), weighted by their
            likelihood of held-out rows. Its fields are parameters too, such as `method__prior_std`.
        hidden: widths of the hidden layers. None here and below for a value that suits the method: `training_settings`.
        activation: "elu", "gelu", "leaky_relu", "relu", "silu" or "tanh".
        encoding: "piecewise" precedes the network by a `PiecewiseLinearEncoding` of the numbers, "standard" does not.
        net: function `(in_features, out_features) -> nn.Module`, instead of `hidden` and `activation`. Such a model can be pickled,
            but not saved by `save_model`.
        likelihood: "gaussian" learns one noise level per output, with "heteroscedastic" the network predicts it for every row;
            "mixture" is a `GaussianMixture` of three components, for targets of any distribution; "poisson" and
            "negative-binomial" (one dispersion per output) are for counts.
        epochs: passes over the data, at most; None for a number that makes `training_settings.steps` steps.
        batch_size: rows per step; None for a share of the rows.
        learning_rate: initial rate of Adam, or of natural-gradient steps (IVON), with cosine decay to 0.
        beta: weight of the KL, or its schedule; 1 maximizes the evidence lower bound. None for a schedule that rises over half of
            training to the value for the method, 0.3 (a cold posterior) for `MeanField`.
        train_samples: draws per row and step in training.
        samples: S, the number of draws in prediction; None for one per network of an ensemble, otherwise 100.
        validation_fraction: fraction of the rows held out to select the weights of the best epoch; 0 trains on all rows. None: the
            members of an ensemble hold out a different part each, so that no row is lost; `Deterministic`, `EMP`, `ECMP`,
            `RepulsiveEnsemble`, `SNGP`, `Laplace` and `HMC` by name hold out a fifth; other methods train on all rows.
        patience: stop after this number of epochs without improvement on the held-out rows; None for a sixth of the epochs
            where rows are held out by default, otherwise for no stop.
        time_limit: of "auto", seconds of training: models that would probably exceed it are left out. The first is always trained.
            None trains all.
        conformal: True holds out a random 20 % of the rows, at most 2,000, to calibrate the intervals: they then have the stated
            coverage on average, however wrong the model is (`bayesify.conformal`). "cross" calibrates with all rows, and trains
            five more models. `predictive` stays as it is. Here and above, `fit(groups=)` holds out whole groups; here it counts
            groups in place of rows, and the coverage is that of rows of new groups.
        random_state: an integer makes training reproducible. Predictions of a fitted model are always the same in every call.
        accelerator: "cpu", "cuda" or "auto"; small networks train faster on the CPU.
        on: where models are trained: "local", or "ray", "ray://HOST:PORT" or a `bayesify.jobs.RayCluster` (see `fit_many`): members
            of an ensemble, folds of `cross_validate`, and models of "auto" are jobs of the cluster. Not saved with the model.
        progress: whether to show a progress bar; None shows it on a terminal.

    Attributes:
        bnn_: the trained Bayesian network.
        likelihood_: the likelihood with its learned noise, in standardized units except for counts.
        history_: losses of training.
        columns_: kinds of the columns.
        preprocessing_: the fitted transformer of the inputs.
        conformal_, folds_: the scores of the calibration rows, or None; the models of "cross".
        stack_, stack_weights_, leaderboard_: the models of "auto", the best first, their weights, and the results of all;
            `bnn_`, `likelihood_` and `history_` are those of the first.
        target_mean_, target_std_: of each output, (D,).
        n_features_in_, feature_names_in_: as in scikit-learn; columns of a DataFrame are matched by name, in any order.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(-1, 1, 50).reshape(-1, 1)
        >>> model = BayesianRegressor(epochs=5, random_state=0).fit(X, 10 * X[:, 0])
        >>> model.predict_interval(X, level=0.9).shape
        (50, 2)
    """

    default_beta: ClassVar[float] = 0.3
    calibration_type = ConformalIntervals
    recipes: ClassVar[Mapping[type[Method], Recipe]] = REGRESSION
    portfolio: ClassVar[Mapping[str, Mapping[str, Any]]] = REGRESSION_PORTFOLIO

    def __init__(
        self,
        *,
        method: Method | str | None = None,
        hidden: Sequence[int] | None = None,
        activation: str | None = None,
        encoding: str | None = None,
        net: Callable[[int, int], nn.Module] | None = None,
        likelihood: str | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        beta: float | KLSchedule | None = None,
        train_samples: int = 1,
        samples: int | None = None,
        validation_fraction: float | None = None,
        patience: int | None = None,
        time_limit: float | None = None,
        conformal: bool | Literal["cross"] = False,
        random_state: int | np.random.RandomState | None = None,
        accelerator: str = "cpu",
        on: str | RayCluster = LOCAL,
        progress: bool | None = None,
    ) -> None:
        super().__init__(
            method=method,
            hidden=hidden,
            activation=activation,
            encoding=encoding,
            net=net,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            beta=beta,
            train_samples=train_samples,
            samples=samples,
            validation_fraction=validation_fraction,
            patience=patience,
            time_limit=time_limit,
            conformal=conformal,
            random_state=random_state,
            accelerator=accelerator,
            on=on,
            progress=progress,
        )
        self.likelihood = likelihood

    def predict(self, X: ArrayLike | pd.DataFrame, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Return the predictive mean (N,) or (N, D), and with `return_std` the standard deviation, noise included."""
        predictive = self.predictive(X)
        mean = self._array(predictive.mean)
        return (mean, self._array(predictive.std)) if return_std else mean

    def score(self, X: ArrayLike | pd.DataFrame, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return R squared of the predictive mean, as scikit-learn's regressors."""
        warn_of_other_order(X, y)
        return super().score(X, y, sample_weight)

    def predict_interval(self, X: ArrayLike | pd.DataFrame, level: float = 0.95) -> np.ndarray:
        """Return intervals of probability `level`, lower and upper bounds: (N, 2) or (N, D, 2).

        They are central intervals of `predictive(X)`; with `conformal`, those of `ConformalIntervals`, whose coverage is
        guaranteed for each output.

        Raises:
            ConfigurationError: `level` is not possible, or needs more calibration rows.
        """
        if isinstance(self.conformal_, ConformalIntervals):
            bounds = self.conformal_.interval(self._calibrated(X), level)
        else:
            bounds = self.predictive(X).interval(level)
        return np.stack([self._array(bound) for bound in bounds], -1)

    def predictive(self, X: ArrayLike | pd.DataFrame) -> NumericPredictive:
        predictive = super().predictive(X)
        assert isinstance(predictive, NumericPredictive)
        predictive = predictive.double()  # float32 would round small deviations from a large mean
        if not isinstance(predictive, GaussianPredictive):
            return predictive
        return predictive.rescale(torch.from_numpy(self.target_mean_), torch.from_numpy(self.target_std_))

    predictive.__doc__ = BayesianEstimator.predictive.__doc__

    def _learn_target(self, y: Any) -> Tensor:
        values = self._check_targets(y)
        self.target_ndim_ = values.ndim
        columns = values.reshape(len(values), -1)
        if (largest := np.abs(columns).max()) > LARGEST_TARGET:
            raise DataError(f"y must be between -{LARGEST_TARGET:g} and {LARGEST_TARGET:g}, got {largest:g}; rescale it")
        self.target_mean_, self.target_std_ = columns.mean(0), columns.std(0)
        # Not std == 0: rounding can give equal numbers a positive standard deviation.
        constant = columns.min(0) == columns.max(0)
        if constant.any():
            column = "" if values.ndim == 1 else f" in column {int(constant.argmax())}"
            raise DataError(f"y is the same number in every row{column}; there is nothing to learn")
        if (narrowest := np.ptp(columns, axis=0).min()) < SMALLEST_RANGE:
            raise DataError(f"y must vary by at least {SMALLEST_RANGE:g}, got {narrowest:g}; rescale it")
        self.rounding_ = max(_NARROWEST, float((_rounding(columns) / self.target_std_).max()))
        return self._training_target(values)

    def _training_target(self, y: Any) -> Tensor:
        columns = self._check_targets(y).reshape(len(y), -1)
        if self.in_use("likelihood") in _COUNTS:
            _check_counts(self.in_use("likelihood"), columns)
            return torch.tensor(columns, dtype=torch.float32)  # copies: a column of a table may be read-only
        return torch.from_numpy((columns - self.target_mean_) / self.target_std_).float()

    def describe_target(self) -> dict[str, Any]:
        return {"dimensions": self.target_ndim_, "mean": self.target_mean_.tolist(), "std": self.target_std_.tolist()}

    def restore_target(self, facts: dict[str, Any]) -> None:
        self.target_ndim_ = facts["dimensions"]
        self.target_mean_, self.target_std_ = np.array(facts["mean"], dtype=float), np.array(facts["std"], dtype=float)

    def _make_likelihood(self) -> tuple[Likelihood, int]:
        name, outputs = self.in_use("likelihood"), len(self.target_mean_)
        check_choice("likelihood", name, ("gaussian", "heteroscedastic", "mixture", *_COUNTS))
        if name in _COUNTS:
            scale = self.target_mean_.tolist() if outputs > 1 else float(self.target_mean_[0])
            if name == "poisson":
                return Poisson(scale), outputs
            return NegativeBinomial(1.0 if outputs == 1 else [1.0] * outputs, scale=scale), outputs
        if name == "mixture":
            likelihood = GaussianMixture(components=_COMPONENTS, min_std=self.rounding_, max_std=_WIDEST)
            return likelihood, _COMPONENTS * (1 + 2 * outputs)
        if name == "heteroscedastic":
            return HeteroscedasticGaussian(), 2 * outputs
        noise = self.training_settings.noise
        return Gaussian(std=noise if outputs == 1 else [noise] * outputs, learn=True), outputs

    def _mixes(self) -> bool:
        return self.in_use("likelihood") not in _COUNTS

    def _encode_target(self, y: Any) -> Tensor:
        return torch.tensor(self._check_targets(y))

    def _check_targets(self, y: Any) -> np.ndarray:
        dtypes = y.dtypes if isinstance(y, pd.DataFrame) else [y.dtype if isinstance(y, pd.Series) else np.asarray(y).dtype]
        if any(dtype.kind in "Mm" for dtype in dtypes):
            raise DataError(
                "y has dates or durations, whose numbers depend on their resolution; convert them to numbers in a unit of yours, "
                "such as days: (y - pd.Timestamp('2020-01-01')) / pd.Timedelta(days=1)"
            )
        return check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")

    def _array(self, values: Tensor) -> np.ndarray:
        return values.numpy().reshape((len(values), -1) if self.target_ndim_ == 2 else (len(values),))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _check_counts(likelihood: str, columns: np.ndarray) -> None:
    """Raise DataError unless all targets are counts."""
    invalid = (columns < 0) | (columns != columns.round())
    if invalid.any():
        raise DataError(
            f"y must have counts, whole numbers of at least 0, for likelihood={likelihood!r}, got {columns[invalid][0]:g} "
            f"({int(invalid.sum())} such values); choose likelihood='gaussian', 'heteroscedastic' or 'mixture'"
        )


def _rounding(columns: np.ndarray) -> np.ndarray:
    """The standard deviation of the rounding error of each column (N, D), 0 where most numbers are distinct.

    Without it, the likelihood of a mixture would grow without limit on numbers that occur often.
    """
    distinct = [np.unique(column) for column in columns.T]
    return np.array([np.diff(values).min() / math.sqrt(12) if len(values) <= len(columns) / 2 else 0.0 for values in distinct])
