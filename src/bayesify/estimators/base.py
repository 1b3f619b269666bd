"""What both estimators share: parameters, the way from a table to a trained network, and seeded prediction.

Shapes: S draws, N rows.
"""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_fraction, check_integer, check_positive
from bayesify.core.convert import bayesify
from bayesify.core.method import Method
from bayesify.data import conform, describe_columns, preprocessing
from bayesify.estimators.fields import fields_of, with_fields
from bayesify.estimators.network import mlp
from bayesify.estimators.recipes import Recipe
from bayesify.methods import DeepEnsemble
from bayesify.objectives import KLSchedule, LinearWarmup
from bayesify.predict import predict
from bayesify.train import History, Training, fit

try:
    import numpy as np
    import pandas as pd
    from sklearn.base import BaseEstimator
    from sklearn.utils.validation import check_consistent_length, check_is_fitted, check_random_state, validate_data
except ImportError as error:
    raise ImportError('the estimators need scikit-learn and pandas: pip install "bayesify[tables]"') from error

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from sklearn.utils import Tags

    from bayesify.likelihoods import Likelihood
    from bayesify.predictive import Predictive

__all__ = ["BayesianEstimator"]

_STEPS = 4000  # of the optimiser, when `epochs` is None
_ROWS, _DRAWS = 1024, 20  # per call when predicting; fixed, because the noise depends on the draws per call


class BayesianEstimator(BaseEstimator):
    """Base of `BayesianRegressor` and `BayesianClassifier`; they document the parameters."""

    default_method: ClassVar[str] = "MeanField"
    default_beta: ClassVar[float]
    """At the end of its rise, for methods without a recipe."""
    recipes: ClassVar[Mapping[type[Method], Recipe]]

    def __init__(
        self,
        *,
        method: Method | str | None = None,
        hidden: Sequence[int] = (64, 64),
        activation: str = "relu",
        net: Callable[[int, int], nn.Module] | None = None,
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
        self.method = method
        self.hidden = hidden
        self.activation = activation
        self.net = net
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.beta = beta
        self.train_samples = train_samples
        self.samples = samples
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.accelerator = accelerator
        self.progress = progress

    @abstractmethod
    def _learn_target(self, y: Any) -> Tensor:
        """Check y and learn how to encode it: the targets as the likelihood takes them, (N,) or (N, D)."""

    @abstractmethod
    def _make_likelihood(self) -> tuple[Likelihood, int]:
        """The likelihood and how many outputs the net needs for it."""

    @abstractmethod
    def describe_target(self) -> dict[str, Any]:
        """What was learned of the target, ready for JSON."""

    @abstractmethod
    def restore_target(self, facts: dict[str, Any]) -> None:
        """Take over what `describe_target` said."""

    @abstractmethod
    def _encode_target(self, y: Any) -> Tensor:
        """y in the units of `predictive`, encoded as the fit did."""

    def fit(
        self,
        X: ArrayLike | pd.DataFrame,
        y: ArrayLike,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        loggers: Iterable[Callable[[dict[str, float]], object]] = (),
    ) -> Self:
        """Train on a table.

        Args:
            X: (N, columns), a DataFrame of numbers, booleans, dates and categories, or an array of numbers; NaN is a missing value.
            y: (N,) targets; numbers may also be (N, D).
            checkpoint: a file to keep the state of training in; the same call goes on from it (needs an integer `random_state`).
            loggers: functions that are given every epoch's record.

        Raises:
            TypeError, ValueError: parameters or data that do not fit, before any training.
        """
        training, settings = self._prepare(X, y)
        self.history_: History = fit(
            training.bnn,
            training.data,
            training.likelihood,
            validation=training.validation,
            seed=training.seed,
            beta=training.beta,
            learning_rate=training.learning_rate,
            checkpoint=checkpoint,
            loggers=loggers,
            **settings,
            progress=self.progress,
        )
        self.settle()
        return self

    def _prepare(self, X: ArrayLike | pd.DataFrame, y: ArrayLike) -> tuple[Training, dict[str, Any]]:
        """Everything before the training: what is to be trained, and the settings that many trainings can share."""
        self._check_parameters()
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        table = self._table(X, reset=True)
        check_consistent_length(X, y)
        target = self._learn_target(y)
        generator = check_random_state(self.random_state)
        self.seed_ = int(generator.randint(2**31 - 1))
        self.columns_ = describe_columns(table)
        self.preprocessing_ = preprocessing(self.columns_)
        inputs = self._inputs(self.preprocessing_.fit_transform(conform(table, self.columns_, new=False)))

        held_out = math.ceil(self.validation_fraction * len(inputs))
        order = torch.from_numpy(np.random.RandomState(self.seed_).permutation(len(inputs)))
        train, validation = order[held_out:].sort().values, order[:held_out].sort().values
        if not len(train):
            raise ValueError(f"validation_fraction={self.validation_fraction} leaves no row of {len(inputs)} to train on")
        batch_size = self.batch_size or min(128, max(32, len(train) // 10))
        epochs = self.epochs or math.ceil(_STEPS / math.ceil(len(train) / batch_size))
        self.likelihood_, outputs = self._make_likelihood()
        self.build(inputs.shape[1], outputs)
        training = Training(
            bnn=self.bnn_,
            data=(inputs[train], target[train]),
            likelihood=self.likelihood_,
            validation=(inputs[validation], target[validation]) if held_out else None,
            seed=self.seed_,
            beta=self.beta_in_use(),
            learning_rate=self.learning_rate,
        )
        return training, {
            "epochs": epochs,
            "batch_size": batch_size,
            "samples": self.train_samples,
            "scheduler": partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=epochs),
            "patience": self.patience,
            "accelerator": self.accelerator,
        }

    def predictive(self, X: ArrayLike | pd.DataFrame) -> Predictive:
        """The predictive distribution of the targets of X (N, columns): a mixture over `samples` draws, in the targets' units.

        The draws are functions, the same ones for every row and in every call, so that a row's prediction depends on the row alone.
        """
        check_is_fitted(self)
        table = conform(self._table(X, reset=False), self.columns_)
        return predict(
            self.bnn_,
            self._inputs(self.preprocessing_.transform(table)).to(next(self.bnn_.parameters()).dtype),
            self.likelihood_,
            samples=self.samples,
            chunk=_DRAWS,
            batch_size=_ROWS,
            seed=self.seed_,
            coherent=True,
            progress=self.progress,
        )

    def log_score(self, X: ArrayLike | pd.DataFrame, y: ArrayLike) -> float:
        """The mean log predictive density or probability of the targets, in nats per row and their own units; higher is better."""
        return float(self.predictive(X).log_prob(self._encode_target(y)).mean())

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters; with `deep` also the method's fields, as `method__prior_std`, and those of an ensemble's own method."""
        params = super().get_params(deep)
        if deep and isinstance(self.method, Method):
            params.update(fields_of(self.method, "method__"))
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters, among them fields of the method (of the default one, where none is given): `method__prior_std=0.5`."""
        fields = {name.removeprefix("method__"): value for name, value in params.items() if name.startswith("method__")}
        super().set_params(**{name: value for name, value in params.items() if not name.startswith("method__")})
        if fields:
            self.method = with_fields(self.method_in_use(), fields)
        return self

    @classmethod
    def recipe(cls, method: str) -> Recipe:
        """How a method is used of which there is the name alone.

        Raises:
            ValueError: no such method.
        """
        kind = Method.named(method)
        return cls.recipes[kind] if kind in cls.recipes else Recipe(kind(), cls.default_beta)

    def method_in_use(self) -> Method:
        """The method that is given, or the recipe's where a name is given or nothing."""
        if isinstance(self.method, Method):
            return self.method
        return self.recipe(self.default_method if self.method is None else self.method).method

    def beta_in_use(self) -> float | KLSchedule:
        """The weight of the KL that is given, or one that rises over half of training to what suits the method (an ensemble's)."""
        if self.beta is not None:
            return self.beta
        method = self.method_in_use()
        if isinstance(method, DeepEnsemble) and method.method is not None:
            method = method.method
        recipe = self.recipes.get(type(method))
        return LinearWarmup(beta=self.default_beta if recipe is None else recipe.beta, fraction=0.5)

    def build(self, in_features: int, out_features: int) -> None:
        """Make the Bayesian net, with weights that depend on the seed alone."""
        self.in_features_, self.out_features_ = in_features, out_features
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed_)
            make = self.net or partial(mlp, hidden=self.hidden, activation=self.activation)
            self.bnn_ = bayesify(make(in_features, out_features), self.method_in_use())

    def settle(self) -> None:
        """Get ready for prediction, in double precision: a row's result is then the same in any company, to the last digits."""
        if self.net is None:  # another net may do arithmetic of its own in single precision
            self.bnn_.double()

    def _table(self, X: Any, *, reset: bool) -> pd.DataFrame:
        """X as a DataFrame whose columns can be found by name; an array gets the names it had in training, or x0, x1, ..."""
        if isinstance(X, pd.DataFrame) and (reset or self.named_columns_):
            if reset:
                validate_data(self, X, skip_check_array=True)
                self.named_columns_ = True
            if min(X.shape) == 0 or (reset and len(X) < 2):
                raise ValueError(f"X has {X.shape[0]} sample(s) and {X.shape[1]} columns; at least one is needed, and two to train")
            return X
        array = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", ensure_min_samples=1 + reset, reset=reset)
        if reset:
            self.named_columns_ = False
        return pd.DataFrame(array, columns=[f"x{i}" for i in range(array.shape[1])] if reset else [c.name for c in self.columns_])

    def _inputs(self, values: np.ndarray) -> Tensor:
        inputs = torch.from_numpy(np.asarray(values, dtype=np.float64)).float()
        if not inputs.isfinite().all():
            raise ValueError("X holds numbers too far from those in training (by 1e38 standard deviations); correct or drop them")
        return inputs

    def _check_parameters(self) -> None:
        if not isinstance(self.method, Method | str | None):
            raise TypeError(f"method must be a Method such as MeanField(), the name of one, or None, got {self.method!r}")
        self.method_in_use()
        for name in ("epochs", "batch_size", "patience"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name))
        for name in ("train_samples", "samples"):
            check_integer(name, getattr(self, name))
        check_positive("learning_rate", self.learning_rate)
        check_fraction("validation_fraction", self.validation_fraction)
        if self.patience is not None and not self.validation_fraction:
            raise ValueError("patience needs a validation_fraction above 0, such as 0.1")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.target_tags.required = True
        return tags
