"""scikit-learn regressor with predictive distributions.

Shapes: S draws, N rows, D outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_choice
from bayesify.core.method import Method
from bayesify.errors import DataError, MissingDependencyError
from bayesify.estimators.base import BayesianEstimator
from bayesify.estimators.recipes import REGRESSION, Recipe
from bayesify.likelihoods import Gaussian, HeteroscedasticGaussian, Likelihood
from bayesify.objectives import KLSchedule
from bayesify.predictive import GaussianPredictive

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

_NOISE = 0.3  # initial, in standard deviations of the targets


class BayesianRegressor(RegressorMixin, BayesianEstimator):
    """Bayesian neural network for regression.

    Inputs are preprocessed by `bayesify.data.preprocessing`, targets are standardized for training; predictions are in the original
    units.

    Args:
        method: a method, or the name of one, such as "VSD", for the fields in `BayesianRegressor.recipes`; None for
            `BayesianRegressor.default_method`. Its fields are parameters too, such as `method__prior_std`.
        hidden: widths of the hidden layers.
        activation: "elu", "gelu", "leaky_relu", "relu", "silu" or "tanh".
        net: function `(in_features, out_features) -> nn.Module`, instead of `hidden` and `activation`. Such a model can be pickled,
            but not saved by `save_model`.
        likelihood: "gaussian" learns one noise level per output, with "heteroscedastic" the network predicts it for every row.
        epochs: passes over the data; None for about 4,000 steps.
        batch_size: rows per step; None for 10 % of the rows, at least 32 and at most 128.
        learning_rate: initial rate of Adam, with cosine decay to 0.
        beta: weight of the KL, or its schedule; 1 maximizes the evidence lower bound. None for a schedule that rises over half of
            training to the value for the method, 0.3 (a cold posterior) for `MeanField`.
        train_samples: draws per row and step in training.
        samples: S, the number of draws in prediction.
        validation_fraction: fraction of the rows held out to select the weights of the best epoch; 0 trains on all rows.
        patience: stop after this number of epochs without improvement on the held-out rows.
        random_state: an integer makes training reproducible. Predictions of a fitted model are always the same in every call.
        accelerator: "cpu", "cuda" or "auto"; small networks train faster on the CPU.
        progress: whether to show a progress bar; None shows it on a terminal.

    Attributes:
        bnn_: the trained Bayesian network.
        likelihood_: the likelihood with its learned noise, in standardized units.
        history_: losses of training.
        columns_: kinds of the columns.
        preprocessing_: the fitted transformer of the inputs.
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
    recipes: ClassVar[Mapping[type[Method], Recipe]] = REGRESSION

    def __init__(
        self,
        *,
        method: Method | str | None = None,
        hidden: Sequence[int] = (64, 64),
        activation: str = "relu",
        net: Callable[[int, int], nn.Module] | None = None,
        likelihood: str = "gaussian",
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float = 1e-2,
        beta: float | KLSchedule | None = None,
        train_samples: int = 1,
        samples: int = 100,
        validation_fraction: float = 0.0,
        patience: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        accelerator: str = "cpu",
        progress: bool | None = None,
    ) -> None:
        super().__init__(
            method=method,
            hidden=hidden,
            activation=activation,
            net=net,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            beta=beta,
            train_samples=train_samples,
            samples=samples,
            validation_fraction=validation_fraction,
            patience=patience,
            random_state=random_state,
            accelerator=accelerator,
            progress=progress,
        )
        self.likelihood = likelihood

    def predict(self, X: ArrayLike | pd.DataFrame, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Return the predictive mean (N,) or (N, D), and with `return_std` the standard deviation, noise included."""
        predictive = self.predictive(X)
        mean = self._array(predictive.mean)
        return (mean, self._array(predictive.std)) if return_std else mean

    def predict_interval(self, X: ArrayLike | pd.DataFrame, level: float = 0.95) -> np.ndarray:
        """Return central intervals of probability `level`, lower and upper bounds: (N, 2) or (N, D, 2)."""
        return np.stack([self._array(bound) for bound in self.predictive(X).interval(level)], -1)

    def predictive(self, X: ArrayLike | pd.DataFrame) -> GaussianPredictive:
        predictive = super().predictive(X)
        assert isinstance(predictive, GaussianPredictive)
        # float64, because float32 would round small deviations from a large mean.
        mean, std = torch.from_numpy(self.target_mean_), torch.from_numpy(self.target_std_)
        return GaussianPredictive(predictive.means.double(), predictive.stds.double()).rescale(mean, std)

    predictive.__doc__ = BayesianEstimator.predictive.__doc__

    def _learn_target(self, y: Any) -> Tensor:
        values = self._check_targets(y)
        self.target_ndim_ = values.ndim
        columns = values.reshape(len(values), -1)
        self.target_mean_, self.target_std_ = columns.mean(0), columns.std(0)
        # Not std == 0: rounding can give equal numbers a positive standard deviation.
        constant = columns.min(0) == columns.max(0)
        if constant.any():
            column = "" if values.ndim == 1 else f" in column {int(constant.argmax())}"
            raise DataError(f"y is the same number in every row{column}; there is nothing to learn")
        return torch.from_numpy((columns - self.target_mean_) / self.target_std_).float()

    def describe_target(self) -> dict[str, Any]:
        return {"dimensions": self.target_ndim_, "mean": self.target_mean_.tolist(), "std": self.target_std_.tolist()}

    def restore_target(self, facts: dict[str, Any]) -> None:
        self.target_ndim_ = facts["dimensions"]
        self.target_mean_, self.target_std_ = np.array(facts["mean"], dtype=float), np.array(facts["std"], dtype=float)

    def _make_likelihood(self) -> tuple[Likelihood, int]:
        check_choice("likelihood", self.likelihood, ("gaussian", "heteroscedastic"))
        outputs = len(self.target_mean_)
        if self.likelihood == "heteroscedastic":
            return HeteroscedasticGaussian(), 2 * outputs
        return Gaussian(std=_NOISE if outputs == 1 else [_NOISE] * outputs, learn=True), outputs

    def _encode_target(self, y: Any) -> Tensor:
        return torch.tensor(self._check_targets(y))  # torch.tensor copies: a column of a table may be read-only

    def _check_targets(self, y: Any) -> np.ndarray:
        return check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")

    def _array(self, values: Tensor) -> np.ndarray:
        return values.numpy().reshape((len(values), -1) if self.target_ndim_ == 2 else (len(values),))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
