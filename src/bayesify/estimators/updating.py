"""Bayesian updating of a fitted estimator with more rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from bayesify.core.updating import update_prior
from bayesify.core.values import network_dtype
from bayesify.data import conform
from bayesify.data.interchange import warn_of_other_order
from bayesify.errors import ConfigurationError, MissingDependencyError
from bayesify.train import History, Weighted, fit
from bayesify.train.process_state import seed_for

try:
    import numpy as np
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import _check_sample_weight, check_consistent_length
except ImportError as error:
    raise MissingDependencyError("the estimators", "scikit-learn and pandas", extra="tables") from error

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike

    from bayesify.estimators.base import BayesianEstimator

__all__ = ["BayesianUpdating"]


def _is_updatable(estimator: BayesianEstimator) -> bool:
    if getattr(estimator.method_in_use(), "prior", None) != "sequential":
        raise AttributeError(f"partial_fit needs method=MeanField(prior='sequential'), got {estimator.method!r}")
    return True


class BayesianUpdating:
    """`partial_fit` of an estimator whose method is `MeanField(prior="sequential")`, or another with that prior.

    Attributes:
        updates_: number of calls since `fit`, each of which has other noise.
    """

    updates_: int = 0

    @available_if(_is_updatable)
    def partial_fit(self: Any, X: ArrayLike | pd.DataFrame, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Any:
        """Continue from the posterior, which becomes the prior, with more rows; the first call is that of `fit`.

        Columns, their encoding, the scale of the targets and the classes stay those of the first rows. The likelihood's noise and
        what else is not random are trained on. With a `beta` of 1 the KL has its full weight, as in Bayes' rule.

        Args:
            X, y, sample_weight: as for `fit`; the new rows alone.

        Raises:
            AttributeError: the posterior of `method` cannot become its prior.
            DataError: other columns or classes than in the first call.
            DivergenceError: NaN or infinity in training.
        """
        if getattr(self, "class_weight", None) == "balanced":
            raise ConfigurationError(
                "class_weight='balanced' needs all rows at once; give partial_fit weights of the labels, in a dict"
            )
        if not hasattr(self, "bnn_"):
            return self.fit(X, y, sample_weight)
        self._check_parameters()
        if self.conformal or self.calibrate:
            raise ConfigurationError("partial_fit has no rows to calibrate with; fit without conformal and calibrate")
        table = self._table(X, reset=False)
        check_consistent_length(X, y, sample_weight)
        warn_of_other_order(X, y)
        warn_of_other_order(X, sample_weight, "sample_weight")
        sample_weight = self._row_weights(y, sample_weight)
        inputs = self._inputs(self.preprocessing_.transform(conform(table, self.columns_)))
        data = inputs.to(network_dtype(self.bnn_)), self._training_target(y)
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, table, dtype=np.float64, ensure_non_negative=True)
            data = Weighted(data, torch.from_numpy(np.asarray(weights)))
        update_prior(self.bnn_)
        self.updates_ += 1
        self.history_: History = fit(
            self.bnn_,
            data,
            self.likelihood_,
            seed=seed_for(self.seed_, "update", self.updates_),
            beta=self.beta_in_use(),
            learning_rate=self.in_use("learning_rate"),
            **self._schedule(len(inputs), False) | {"patience": None},
            progress=self.progress,
        )
        return self
