"""Joint training of several estimators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bayesify.errors import DivergenceError
from bayesify.train import Training, fit_many

if TYPE_CHECKING:
    from bayesify.estimators.base import BayesianEstimator

__all__ = ["train_together"]


def train_together(fits: Sequence[tuple[BayesianEstimator, Any, Any]], *, progress: bool | None = None) -> None:
    """Train `(estimator, X, y)` triples of different estimators, those of one shape and schedule at once.

    Raises:
        ConfigurationError, DataError: invalid parameters or data, before training.
        DivergenceError: some diverged; the others are fitted.
    """
    groups: dict[str, list[int]] = {}
    trainings: list[Training] = []
    settings: list[dict[str, Any]] = []
    for i, (estimator, X, y) in enumerate(fits):
        training, shared = estimator._prepare(X, y)
        trainings.append(training)
        settings.append(shared)
        groups.setdefault(repr(shared), []).append(i)
    failures = []
    for group in groups.values():
        histories = fit_many([trainings[i] for i in group], **settings[group[0]], progress=progress)
        for i, history in zip(group, histories, strict=True):
            estimator = fits[i][0]
            estimator.history_ = history
            if history.failure is None:
                estimator.settle()
                estimator._calibrate()
            else:
                failures.append(f"estimator {i}: {history.failure}")
    if failures:
        raise DivergenceError(" ".join(failures))
