"""Training of an estimator: for how long, and which rows choose the epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR

from bayesify.errors import ConfigurationError, MissingDependencyError
from bayesify.estimators.parameters import EstimatorParameters
from bayesify.methods import DeepEnsemble
from bayesify.plain_numbers import plain
from bayesify.train import History, Training, fit
from bayesify.train.group_folds import hold_out_groups
from bayesify.train.loggers import Loggers

try:
    import numpy as np
except ImportError as error:
    raise MissingDependencyError("the estimators", "scikit-learn and pandas", extra="tables") from error

__all__ = ["Schedule"]

_ROWS_PER_MEMBER = 4  # of the table, for validation by folds
_EPOCHS = 10  # at least, if `epochs` is None


class Schedule(EstimatorParameters):
    """Training and validation rows of an estimator, and the settings of training that follow from their number."""

    seed_: int
    history_: History

    def _split(self, rows: int, groups: Tensor | None) -> tuple[Tensor, Tensor | Literal["folds"] | None]:
        """Return the rows to train on, and those that choose the epoch: "folds" for another part per member of an ensemble.

        Rows of one of the `groups` (N,) stay together.
        """
        if members := self._members_by_folds():
            return torch.arange(rows), "folds" if rows >= _ROWS_PER_MEMBER * members else None
        validation_rows = math.ceil(self.in_use("validation_fraction") * rows)
        if validation_rows >= rows:
            raise ConfigurationError(f"validation_fraction={self.validation_fraction} leaves no row of {rows} to train on")
        if groups is not None and validation_rows:
            held_out = hold_out_groups(groups, validation_rows, self.seed_)
            return (~held_out).nonzero().squeeze(1), held_out.nonzero().squeeze(1)
        order = torch.from_numpy(np.random.RandomState(self.seed_).permutation(rows))
        return order[validation_rows:].sort().values, order[:validation_rows].sort().values if validation_rows else None

    def _members_by_folds(self) -> int:
        """Return the number of members that hold out another part of the rows each; 0 where rows are held out in common."""
        method = self.method_in_use()
        members = method.members if isinstance(method, DeepEnsemble) else 1
        return members if self.validation_fraction is None and members > 1 and method.collects_from is None else 0

    def _schedule(self, rows: int, validated: bool, parts: int = 1) -> dict[str, Any]:
        """Return the settings of training that several models can share, for a number of rows; epochs train a part of them."""
        settings = self.training_settings
        low, high = settings.batch_sizes
        batch_size = plain(self.batch_size) or min(high, max(low, rows // settings.batches))
        steps = math.ceil(rows / parts / batch_size)
        passes = plain(self.epochs) or math.ceil(max(_EPOCHS, math.ceil(settings.steps / steps)) / parts)
        epochs = parts * passes
        patience, scheduler = self.patience, partial(CosineAnnealingLR, T_max=epochs)
        if self.method_in_use().collects_from is not None:
            scheduler = None  # a posterior collected along training has the spread that a constant learning rate makes
        elif patience is None and settings.patience is not None and validated:
            patience = max(10, math.ceil(settings.patience * epochs))
        return {
            "epochs": epochs,
            "batch_size": batch_size,
            "samples": self.train_samples,
            "scheduler": scheduler,
            "patience": patience,
            "validation_samples": max(1, min(16, self.samples_in_use() // getattr(self.method_in_use(), "members", 1))),
            "accelerator": self.accelerator,
            "on": self.on,
        }

    def _train(self, training: Training, settings: Mapping[str, Any], checkpoint: Path | None, log: Loggers) -> None:
        """Train the network; `settings` are those of `_schedule`."""
        self.history_ = fit(
            training.bnn,
            training.data,
            training.likelihood,
            validation=training.validation,
            groups=training.groups,
            seed=training.seed,
            beta=training.beta,
            learning_rate=training.learning_rate,
            checkpoint=checkpoint,
            loggers=log.opened,
            **settings,
            progress=self.progress,
        )
