"""Base class of the estimators: training on a table, and seeded prediction.

Shapes: S draws, N rows.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from bayesify.core.convert import bayesify
from bayesify.core.generators import own_noise
from bayesify.core.values import network_dtype
from bayesify.data import as_table, conform, describe_columns, imputations, preprocessing, unknown_values, unusual_values
from bayesify.data.columns import check_unique_names
from bayesify.data.interchange import warn_of_other_order
from bayesify.errors import ConfigurationError, DataError, MissingDependencyError, warn
from bayesify.estimators.conformal import ConformalCalibration
from bayesify.estimators.from_files import FileTraining
from bayesify.estimators.groups import group_codes
from bayesify.estimators.network import PiecewiseLinearEncoding, mlp
from bayesify.estimators.schedule import Schedule
from bayesify.estimators.stacking import Stacking
from bayesify.estimators.updating import BayesianUpdating
from bayesify.prediction import predict
from bayesify.train import Training, Weighted
from bayesify.train.loggers import Loggers

try:
    import numpy as np
    import pandas as pd
    from sklearn.utils import _safe_indexing, indexable
    from sklearn.utils.validation import (
        _check_sample_weight,
        check_consistent_length,
        check_is_fitted,
        check_random_state,
        validate_data,
    )
except ImportError as error:
    raise MissingDependencyError("the estimators", "scikit-learn and pandas", extra="tables") from error

if TYPE_CHECKING:
    from lightning.fabric.loggers.logger import Logger
    from numpy.typing import ArrayLike
    from sklearn.utils import Tags

    from bayesify.data import Column
    from bayesify.likelihoods import Likelihood
    from bayesify.predictive import Predictive
    from bayesify.tracking import Run

__all__ = ["BayesianEstimator"]

_IMPUTATIONS = 16  # values for an unknown one
_USUAL_WEIGHTS = 0.1, 100.0  # the mean of weights that are numbers of rows
_ROWS, _DRAWS = 1024, 20  # per call in prediction; fixed, because the noise depends on the draws per call


class BayesianEstimator(FileTraining, BayesianUpdating, ConformalCalibration, Schedule, Stacking):
    """Base class of `BayesianRegressor` and `BayesianClassifier`, which document the parameters."""

    @abstractmethod
    def _learn_target(self, y: Any) -> Tensor:
        """Check y, fit its encoding, and return the targets of the likelihood, (N,) or (N, D)."""

    @abstractmethod
    def _training_target(self, y: Any) -> Tensor:
        """Return y as targets of the likelihood, with the fitted encoding."""

    @abstractmethod
    def _make_likelihood(self) -> tuple[Likelihood, int]:
        """Return the likelihood and the number of network outputs that it needs."""

    @abstractmethod
    def describe_target(self) -> dict[str, Any]:
        """Return the fitted encoding of the target, ready for JSON."""

    @abstractmethod
    def restore_target(self, facts: dict[str, Any]) -> None:
        """Restore the encoding from the result of `describe_target`."""

    @abstractmethod
    def _encode_target(self, y: Any) -> Tensor:
        """Return y in the units of `predictive`, with the fitted encoding."""

    def fit(
        self,
        X: ArrayLike | pd.DataFrame,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        loggers: Iterable[str | Run | Logger | Callable[[dict[str, float]], object]] = (),
    ) -> Self:
        """Train on a table.

        Args:
            X: (N, columns), a DataFrame (pandas, polars, ...) of numbers, booleans, dates and categories, or an array of numbers,
                also a sparse one if it is at most 1 GiB as a dense one; NaN is a missing value.
            y: (N,) targets; in regression also (N, D).
            sample_weight: (N,) weights of the rows, at least 0: a row of weight 2 counts like two rows (`bayesify.train.Weighted`),
                so that relative weights should have the mean 1. Not with `conformal` or `calibrate`, whose calibration rows count
                alike.
            groups: (N,) labels of any kind, such as of patients or shops, for predictions of groups without training rows. Wherever
                rows are held out (early stopping, the weights of "auto", `conformal`, `calibrate`), rows of a group stay together.
                Otherwise networks that recognize a group are stopped too late, and intervals of new groups are too narrow.
            checkpoint: file for the state of training, from which the same call continues (needs an integer `random_state`). An
                ensemble and "auto" have further files, with more after the name.
            loggers: as for `bayesify.train.fit`; "auto" logs every model when it is trained, with its name before those of the
                numbers.

        Raises:
            TypeError, ConfigurationError, DataError: invalid parameters or data, before training.
            CheckpointError: `checkpoint` is damaged or belongs to another run.
            DivergenceError: NaN or infinity in training.
        """
        path = None if checkpoint is None else Path(checkpoint).absolute()
        self._check_parameters()
        with Loggers(loggers, path) as log:
            log.start({"estimator": self.resolved()})
            if self.is_stacked:
                self._fit_stack(X, y, sample_weight, groups, path, log)
            else:
                training, settings = self._prepare(X, y, sample_weight, groups)
                self._train(training, settings, path, log)
                self.settle()
            self._calibrate()
        return self

    def _prepare(
        self,
        X: ArrayLike | pd.DataFrame,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | Tensor | None = None,
    ) -> tuple[Training, dict[str, Any]]:
        """Preprocess the data and build the network; return the training, and the settings that several can share."""
        table, y, weights, codes = self._rows(X, y, sample_weight, groups)
        target = self._learn_target(y)
        train, validation = self._split(len(target), codes)
        inputs = self._preprocess(table, describe_columns(table))

        def data(rows: Tensor) -> Any:
            return (inputs[rows], target[rows]) if weights is None else Weighted((inputs[rows], target[rows]), weights[rows])

        training = Training(
            bnn=self.bnn_,
            data=data(train),
            likelihood=self.likelihood_,
            validation=data(validation) if isinstance(validation, Tensor) else validation,
            groups=codes if isinstance(validation, str) else None,
            seed=self.seed_,
            beta=self.beta_in_use(),
            learning_rate=self.in_use("learning_rate"),
        )
        return training, self._schedule(len(train), validation is not None)

    def _preprocess(self, table: pd.DataFrame, columns: Sequence[Column]) -> Tensor:
        """Fit the preprocessing, make likelihood and network, and return the inputs of the network."""
        self.columns_ = tuple(columns)
        self.preprocessing_ = preprocessing(self.columns_)
        inputs = self._inputs(self.preprocessing_.fit_transform(conform(table, self.columns_, new=False)))
        self.likelihood_, outputs = self._make_likelihood()
        self.build(inputs.shape[1], outputs, self._encoded(inputs))
        for module in self.bnn_.modules():
            if isinstance(module, PiecewiseLinearEncoding):
                module.fit(inputs)
        return inputs

    def _rows(
        self, X: ArrayLike | pd.DataFrame, y: ArrayLike, sample_weight: ArrayLike | None, groups: ArrayLike | Tensor | None
    ) -> tuple[pd.DataFrame, Any, Tensor | None, Tensor | None]:
        """Check parameters and data; return the rows to train on, their targets, weights and codes of groups."""
        self.stack_, self.stack_weights_, self.updates_ = (), (), 0
        self._check_parameters()
        if y is None:
            raise DataError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        table = self._table(X, reset=True)
        check_consistent_length(X, y, sample_weight, groups)
        warn_of_other_order(X, y)
        warn_of_other_order(X, groups, "groups")
        warn_of_other_order(X, sample_weight, "sample_weight")
        sample_weight = self._row_weights(y, sample_weight)
        weights, codes = None, None if groups is None else group_codes(groups)
        if sample_weight is not None:
            table, y, weights, codes = self._weighted(table, y, sample_weight, codes)
        generator = check_random_state(self.random_state)
        self.seed_ = int(generator.randint(2**31 - 1))
        table, y, codes = self._hold_out(table, y, codes)
        return table, y, weights, codes

    def _row_weights(self, y: Any, sample_weight: Any) -> Any:
        """Return the weights of the rows: those that the caller gave."""
        return sample_weight

    def _weighted(
        self, table: pd.DataFrame, y: ArrayLike, sample_weight: ArrayLike, groups: Tensor | None
    ) -> tuple[pd.DataFrame, Any, Tensor, Tensor | None]:
        """Return the rows with a positive weight, their weights and their groups."""
        if self.conformal or self.calibrate:
            name = "conformal" if self.conformal else "calibrate"
            raise ConfigurationError(f"sample_weight cannot be combined with {name}={getattr(self, name)!r}; drop one of them")
        weights = _check_sample_weight(sample_weight, table, dtype=np.float64, ensure_non_negative=True)
        rows = np.flatnonzero(weights >= np.finfo(np.float32).tiny)
        if not len(rows):
            raise DataError(f"sample_weight must have a weight of at least 1e-37, got at most {weights.max():g}")
        low, high = _USUAL_WEIGHTS
        if not low <= (mean := weights[rows].mean()) <= high:
            warn(
                f"the mean weight of rows is {mean:.3g}: {len(rows):,} rows count like {mean * len(rows):,.3g}. If weights are "
                "relative, divide them by their mean; otherwise the prior has too much or too little effect"
            )
        groups = None if groups is None else groups[torch.from_numpy(rows)]
        return table.iloc[rows], _safe_indexing(indexable(y)[0], rows), torch.from_numpy(weights[rows]).float(), groups

    def _encoded(self, inputs: Tensor) -> list[int]:
        """The indices of the inputs with a piecewise linear encoding: numbers with four values or more."""
        if self.net is not None or self.in_use("encoding") != "piecewise":
            return []
        numbers = sum(column.kind in ("number", "datetime", "boolean") for column in self.columns_)
        return [i for i in range(numbers) if len(inputs[:, i].unique()) >= 4]

    def predictive(self, X: ArrayLike | pd.DataFrame) -> Predictive:
        """Return the predictive distribution of X (N, columns): a mixture over `samples` draws, in the units of the targets.

        Every row and every call uses the same draws, so that the prediction of a row is independent of the other rows. Where a
        value is missing or a category is new, and training had no such rows, the distribution is an average over values from the
        training table (`bayesify.data.imputations`), so that an unknown input costs certainty.

        Raises:
            NotFittedError: `fit` was not called.
            DataError: columns are missing, or have infinite values or values of another kind than in training.
        """
        table, rows, completed = self._completed(X)
        predictive = self._predictive(table)
        if not completed:
            return predictive
        averages = self._predictive(completed[0]).average(*map(self._predictive, completed[1:]))
        order = torch.arange(len(table))
        order[rows] = len(table) + torch.arange(len(rows))
        return predictive.cat(averages).select(order)

    def _completed(self, X: Any) -> tuple[pd.DataFrame, Tensor, list[pd.DataFrame]]:
        """Return the table to predict, its rows with unknown values, and copies of these rows with values from training.

        There are no copies without such rows. The prediction of such a row is the average over the copies.
        """
        check_is_fitted(self)
        table = conform(self._table(X, reset=False), self.columns_)
        unknown = unknown_values(table, self.columns_)
        rows = torch.from_numpy(unknown.to_numpy().any(1)).nonzero().squeeze(1)
        if not len(rows):
            return table, rows, []
        incomplete, cells = table.iloc[rows], unknown.iloc[rows]
        return table, rows, imputations(incomplete, cells, self.columns_, draws=_IMPUTATIONS, seed=self.seed_)

    def _predictive(self, table: pd.DataFrame) -> Predictive:
        """Return the predictive distribution of a table from `conform`."""
        if self.stack_:
            return self._mixture(table)
        return predict(
            self.bnn_,
            self._inputs(self.preprocessing_.transform(table)).to(network_dtype(self.bnn_)),
            self.likelihood_,
            samples=self.samples_in_use(),
            chunk=_DRAWS,
            batch_size=_ROWS,
            seed=self.seed_,
            coherent=True,
            progress=self.progress,
        )

    def unusual(self, X: ArrayLike | pd.DataFrame) -> pd.Series:
        """Return, by row, what `bayesify.data.unusual_values` does, "" if nothing; raise a NotFittedError before `fit`."""
        check_is_fitted(self)
        return unusual_values(self._table(X, reset=False), self.columns_)

    def log_score(self, X: ArrayLike | pd.DataFrame, y: ArrayLike) -> float:
        """Return the mean log predictive density or probability of the targets, in nats per row and in their units."""
        warn_of_other_order(X, y)
        return float(self.predictive(X).log_prob(self._encode_target(y)).mean())

    def build(self, in_features: int, out_features: int, encoded: Sequence[int] = ()) -> None:
        """Build the Bayesian network, with initial weights that depend on the seed alone.

        Args:
            in_features, out_features: of the network.
            encoded: indices of the inputs with a piecewise linear encoding.
        """
        self.in_features_, self.out_features_, self.encoded_ = in_features, out_features, tuple(encoded)
        with own_noise(()) as reseed:
            reseed(self.seed_)
            make = self.net or partial(mlp, hidden=self.in_use("hidden"), activation=self.in_use("activation"), encoded=encoded)
            self.bnn_ = bayesify(make(in_features, out_features), self.method_in_use())

    def settle(self) -> None:
        """Prepare for prediction: in float64, a row's result is independent of the other rows in the batch, to the last digits."""
        if self.net is None:  # a given network may require float32
            self.bnn_.double()

    def _table(self, X: Any, *, reset: bool) -> pd.DataFrame:
        """Return X as a DataFrame; the columns of an array get the names of training, or x0, x1, ..."""
        X = as_table(X)
        if isinstance(X, pd.DataFrame) and (reset or self.named_columns_):
            if reset:
                check_unique_names(X.columns, "X")
                validate_data(self, X, skip_check_array=True)
                self.named_columns_ = True
            if min(X.shape) == 0 or (reset and len(X) < 2):
                raise DataError(f"X has {X.shape[0]} sample(s) and {X.shape[1]} columns; one is needed, and two samples to train")
            return X
        array = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", ensure_min_samples=1 + reset, reset=reset)
        if reset:
            self.named_columns_ = False
        return pd.DataFrame(array, columns=[f"x{i}" for i in range(array.shape[1])] if reset else [c.name for c in self.columns_])

    def _inputs(self, values: np.ndarray) -> Tensor:
        inputs = torch.from_numpy(np.asarray(values, dtype=np.float64)).float()
        if not inputs.isfinite().all():
            raise DataError("X has numbers too far from those in training (1e38 standard deviations); correct or drop them")
        return inputs

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        return tags
