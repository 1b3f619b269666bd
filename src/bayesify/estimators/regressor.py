"""Regression with uncertainty, the scikit-learn way.

Shapes: S draws, N rows, D outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_choice
from bayesify.core.method import Method
from bayesify.estimators.base import BayesianEstimator
from bayesify.estimators.recipes import NUMBERS, Recipe
from bayesify.likelihoods import Gaussian, HeteroscedasticGaussian, Likelihood
from bayesify.objectives import KLSchedule
from bayesify.predictive import GaussianPredictive

try:
    import numpy as np
    import pandas as pd
    from sklearn.base import RegressorMixin
    from sklearn.utils.validation import check_array
except ImportError as error:
    raise ImportError('the estimators need scikit-learn and pandas: pip install "bayesify[tables]"') from error

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from sklearn.utils import Tags

__all__ = ["BayesianRegressor"]

_NOISE = 0.3  # to start from, in standard deviations of the targets


class BayesianRegressor(RegressorMixin, BayesianEstimator):
    """Predicts numbers, and how sure it is of them.

    Inputs are prepared as `bayesify.data.preprocessing` says, targets standardised for training; everything that comes out is in
    the targets' own units.

    Args:
        method: what to make random and how. A name, such as "VSD", stands for the method with the fields that suit tables (those of
            `BayesianRegressor.recipes`), None for `BayesianRegressor.default_method`. Fields can be set and searched over as
            `method__prior_std` and so on.
        hidden: widths of the hidden layers.
        activation: between them: "elu", "gelu", "leaky_relu", "relu", "silu" or "tanh".
        net: a function `(in_features, out_features) -> nn.Module` to use instead of these layers. Such a model can be pickled, but
            not be saved by `save_model`.
        likelihood: "gaussian" learns one noise level per output, "heteroscedastic" lets the net predict it for every row.
        epochs: passes over the data; None for as many as make about 4,000 steps.
        batch_size: rows per step; None for a tenth of the rows, at least 32 and at most 128.
        learning_rate: of Adam at the start; it decays to 0 along a cosine.
        beta: weight of the KL, or its schedule; 1 maximises the evidence lower bound. None for what suits the method: it
            rises over half of training, to 0.3 for `MeanField`, a cold posterior.
        train_samples: draws per row and step in training.
        samples: S, the number of draws in prediction.
        validation_fraction: share of the rows held out to keep the weights of the best epoch; 0 trains on all of them.
        patience: stop after so many epochs without improvement on them.
        random_state: an integer makes training repeatable. A fitted model's predictions are the same in every call in any case.
        accelerator: "cpu", "cuda" or "auto"; small nets train faster on the CPU.
        progress: a bar on the terminal; None shows it where it makes sense.

    Attributes:
        bnn_: the trained Bayesian network.
        likelihood_: the likelihood with its learned noise, in standardised units.
        history_: what happened in training.
        columns_: what the columns held.
        preprocessing_: the fitted transformer of the inputs.
        target_mean_, target_std_: of each output, (D,).
        n_features_in_, feature_names_in_: as in scikit-learn; columns of a DataFrame are found by name, in any order.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(-1, 1, 50).reshape(-1, 1)
        >>> model = BayesianRegressor(epochs=5, random_state=0).fit(X, 10 * X[:, 0])
        >>> model.predict_interval(X, level=0.9).shape
        (50, 2)
    """

    default_beta: ClassVar[float] = 0.3
    recipes: ClassVar[Mapping[type[Method], Recipe]] = NUMBERS

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
        """The predictive mean (N,) or (N, D), and with `return_std` the standard deviation, noise included, of the same shape."""
        predictive = self.predictive(X)
        mean = self._array(predictive.mean)
        return (mean, self._array(predictive.std)) if return_std else mean

    def predict_interval(self, X: ArrayLike | pd.DataFrame, level: float = 0.95) -> np.ndarray:
        """Central intervals that hold the target with probability `level`: (N, 2) or (N, D, 2), lower and upper."""
        return np.stack([self._array(bound) for bound in self.predictive(X).interval(level)], -1)

    def predictive(self, X: ArrayLike | pd.DataFrame) -> GaussianPredictive:
        predictive = super().predictive(X)
        assert isinstance(predictive, GaussianPredictive)
        # In double precision, because a large mean would swallow small deviations.
        mean, std = torch.from_numpy(self.target_mean_), torch.from_numpy(self.target_std_)
        return GaussianPredictive(predictive.means.double(), predictive.stds.double()).rescale(mean, std)

    predictive.__doc__ = BayesianEstimator.predictive.__doc__

    def _learn_target(self, y: Any) -> Tensor:
        values = self._numbers(y)
        self.target_ndim_ = values.ndim
        columns = values.reshape(len(values), -1)
        self.target_mean_, self.target_std_ = columns.mean(0), columns.std(0)
        # The standard deviation of equal numbers can come out as rounding error.
        if (columns.min(0) == columns.max(0)).any():
            which = "" if values.ndim == 1 else f" in column {int((columns.min(0) == columns.max(0)).argmax())}"
            raise ValueError(f"y is the same number in every row{which}; there is nothing to learn")
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
        return torch.tensor(self._numbers(y))  # a copy: a column of a table may be read-only

    def _numbers(self, y: Any) -> np.ndarray:
        return check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")

    def _array(self, values: Tensor) -> np.ndarray:
        return values.numpy().reshape((len(values), -1) if self.target_ndim_ == 2 else (len(values),))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
