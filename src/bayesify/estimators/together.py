"""Joint training of several estimators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesify.errors import DivergenceError
from bayesify.train import Training, fit_many

if TYPE_CHECKING:
    from bayesify.estimators.base import BayesianEstimator

__all__ = ["train_together"]


def train_together(fits: Sequence[tuple[Any, ...]], *, progress: bool | None = None, checkpoint: Path | None = None) -> None:
    """Train `(estimator, X, y)` of different estimators, also with `sample_weight` and `groups`, those of one schedule at once.

    Args:
        fits: the estimators and their data.
        progress: whether to show a progress bar; None shows it on a terminal.
        checkpoint: as for `fit_many`; further schedules have files of their own, with a number after the name.

    Raises:
        ConfigurationError, DataError: invalid parameters or data, before training.
        CheckpointError: a checkpoint is damaged or belongs to another run.
        DivergenceError: some diverged; the others are fitted.
    """
    groups: dict[str, list[tuple[int, Training]]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for i, (estimator, X, y, *of_rows) in enumerate(fits):
        sample_weight, of_group = (*of_rows, None, None)[:2]
        if estimator.is_stacked:  # which trains its models together
            estimator.fit(X, y, sample_weight, groups=of_group)
            continue
        training, shared = estimator._prepare(X, y, sample_weight, of_group)
        settings[repr(shared)] = shared
        groups.setdefault(repr(shared), []).append((i, training))
    failures = []
    for number, (key, group) in enumerate(groups.items()):
        path = checkpoint if checkpoint is None or number == 0 else checkpoint.with_name(f"{checkpoint.name}.schedule{number}")
        histories = fit_many([training for _, training in group], **settings[key], progress=progress, checkpoint=path)
        for (i, _), history in zip(group, histories, strict=True):
            estimator: BayesianEstimator = fits[i][0]
            estimator.history_ = history
            if history.failure is None:
                estimator.settle()
                estimator._calibrate()
            else:
                failures.append(f"estimator {i}: {history.failure}")
    if failures:
        raise DivergenceError(" ".join(failures))
