"""Predictions for variants of a table, in few large calls.

Shapes: V variants, R rows, S draws, D outputs, K classes.
"""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayesify.errors import ConfigurationError, DataError, MissingDependencyError
from bayesify.estimators import BayesianClassifier, BayesianEstimator
from bayesify.likelihoods import Categorical, Gaussian, Ordinal
from bayesify.predictive import GaussianPredictive, NumericPredictive, Predictive

try:
    import numpy as np
    import pandas as pd
except ImportError as error:
    raise MissingDependencyError("explanations", "pandas", extra="tables") from error

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["Variants", "check_column", "check_targets", "choose_rows", "uncertainty"]

_ROWS_PER_CALL = 20_000


class Variants:
    """A table whose columns take values of other rows, and the predictions for it.

    Args:
        estimator: fitted.
        X: a table as `estimator.predictive` takes it.
        draws: maximum number of draws of the weights.

    Raises:
        NotFittedError: the estimator is not fitted.
    """

    def __init__(self, estimator: BayesianEstimator, X: ArrayLike | pd.DataFrame, draws: int) -> None:
        self._estimator = copy.copy(estimator)
        self._estimator.set_params(samples=min(draws, estimator.samples_in_use()), progress=False)
        self.table: pd.DataFrame = estimator._table(X, reset=False)
        kinds = {column.name: column.kind for column in estimator.columns_}
        self.columns = [str(name) for name in self.table.columns if kinds.get(str(name), "dropped") != "dropped"]

    @property
    def work(self) -> int:
        """Multiplications to predict a row, if every weight is used once per draw."""
        models = self._estimator.stack_ or [self._estimator]
        members = (getattr(model.method_in_use(), "members", 1) for model in models)  # of which a draw is one
        sizes = (sum(p.numel() for p in model.bnn_.parameters()) for model in models)
        return sum(size * model.samples_in_use() // count for model, size, count in zip(models, sizes, members, strict=True))

    def predictive(self, sources: Mapping[str, np.ndarray], default: np.ndarray) -> Iterator[Predictive]:
        """Predict variants of the table, some at a time.

        Args:
            sources: for a column, the row that each cell comes from, (V, R).
            default: the same for all other columns.

        Yields:
            Predictives of consecutive variants, V' R rows each.
        """
        variants, rows = default.shape
        step = max(1, _ROWS_PER_CALL // rows)
        for start in range(0, variants, step):
            cut = slice(start, start + step)
            yield self.predict({name: source[cut].ravel() for name, source in sources.items()}, default[cut].ravel())

    def predict(self, sources: Mapping[str, np.ndarray], default: np.ndarray) -> Predictive:
        """Predict rows put together from cells: `sources` and `default` are the rows that they come from, (R,)."""
        with _quiet():
            return self._estimator.predictive(self._put_together(sources, default))

    def draws(self, sources: Mapping[str, np.ndarray], default: np.ndarray) -> tuple[Predictive, Tensor, Tensor]:
        """As `predict`, with the mean of every draw (S, R, D), or its probabilities (S, R, K), and the shares of the draws (S,).

        A probability map, which `predict` applies to mean probabilities, is applied to those of every draw. Their average then
        differs from the prediction.
        """
        estimator, table = self._estimator, self._put_together(sources, default)
        models = [estimator._as_here(model) for model in estimator.stack_] or [estimator]
        with _quiet():
            p = estimator.predictive(table)
            kept = p if isinstance(p, NumericPredictive) and not estimator.stack_ else None
            parts = [_draws_of(model, table, kept) for model in models]
        weights = estimator.stack_weights_ if estimator.stack_ else (1.0,)
        shares = [torch.full((len(part),), weight / len(part)) for part, weight in zip(parts, weights, strict=True)]
        return p, torch.cat(parts), torch.cat(shares)

    def _put_together(self, sources: Mapping[str, np.ndarray], default: np.ndarray) -> Any:
        cells = {name: values.take(sources.get(str(name), default)).reset_index(drop=True) for name, values in self.table.items()}
        table = pd.DataFrame(cells)
        return table if self._estimator.named_columns_ else table.to_numpy()


def _draws_of(estimator: BayesianEstimator, table: Any, p: NumericPredictive | None) -> Tensor:
    """The mean of every draw of a single model, (S, R, D), or its probabilities, (S, R, K); p is its prediction where known."""
    if isinstance(estimator, BayesianClassifier):
        return _probs_of_draws(estimator, table)
    numeric = estimator.predictive(table) if p is None else p
    assert isinstance(numeric, NumericPredictive)
    return numeric.draw_means.reshape(numeric.samples, len(numeric), -1)


def _probs_of_draws(classifier: BayesianClassifier, X: Any) -> Tensor:
    """The probabilities of every draw of a single classifier, (S, R, K), as `predictive` computes their mean."""
    table, rows, completed = classifier._completed(X)
    log_probs = _log_probs_of_draws(classifier, table)
    if completed:
        of_copies = torch.stack([_log_probs_of_draws(classifier, part) for part in completed])
        log_probs[:, rows] = of_copies.logsumexp(0) - math.log(len(completed))
    calibrated = classifier.probability_map_
    return (log_probs if calibrated is None else calibrated.log_probs(log_probs)).exp()


def _log_probs_of_draws(classifier: BayesianClassifier, table: pd.DataFrame) -> Tensor:
    """Log probabilities of every draw, (S, R, K), before calibration by a map, for a table from `conform`."""
    # Categorical predictives keep no draws; with normal noise, the means are the logits of the same draws.
    twin: Any = copy.copy(classifier)
    twin.likelihood_ = Gaussian(std=1.0)
    logits = twin._predictive(table)
    assert isinstance(logits, GaussianPredictive)
    likelihood = classifier.likelihood_
    if isinstance(likelihood, Ordinal):
        return torch.stack([likelihood.mixture(draw.reshape(1, -1, 1)).log_probs for draw in logits.draw_means])
    assert isinstance(likelihood, Categorical)
    return (logits.draw_means / likelihood.temperature).log_softmax(-1)


def choose_rows(count: int, most: int, seed: int) -> np.ndarray:
    """Numbers of at most `most` of `count` rows, chosen at random, sorted."""
    return np.sort(np.random.default_rng(seed).permutation(count)[:most])


def check_column(columns: Sequence[str], column: str) -> None:
    """Raise a ConfigurationError unless the model uses the column."""
    if column not in columns:
        raise ConfigurationError(f"column must be one that the model uses ({', '.join(map(repr, columns[:10]))}), got {column!r}")


def check_targets(estimator: BayesianEstimator, y: ArrayLike, rows: int) -> Tensor:
    """Return the targets in the units of `predictive`.

    Raises:
        DataError: a number of targets other than `rows`, or unknown classes.
    """
    target = estimator._encode_target(y)
    if len(target) != rows:
        raise DataError(f"y must have one target per row, {rows}, got {len(target)}")
    return target


def uncertainty(p: Predictive) -> tuple[str, Tensor, str, Tensor]:
    """Names and values (R,) of the total and of the epistemic uncertainty: standard deviations, or nats."""
    if isinstance(p, NumericPredictive):
        total, epistemic = (v.double().reshape(len(p), -1).mean(1).sqrt() for v in (p.variance, p.epistemic))
        return "std", total, "epistemic_std", epistemic
    return "entropy", p.entropy.double(), "mutual_information", p.mutual_information.double()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings about the table, which every call would repeat."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
