"""What happened in training, epoch by epoch."""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["History"]


@dataclasses.dataclass
class History:
    """One entry per epoch in every list; epochs count from 1, so epoch e is entry e - 1.

    Attributes:
        loss: what was minimised, minus the ELBO per example: nats, mean over the epoch's examples.
        nll: negative log likelihood of the training data under the posterior draws, nats per example.
        kl: KL of the weights from the prior, nats, a sum paid once per data set; mean over the epoch.
        beta: weight of the KL, mean over the epoch's batches.
        learning_rate: of the optimiser's first group of parameters, before the scheduler's step.
        seconds: wall-clock time, with validation, without the checkpoint.
        validation_nll: negative log predictive density of the validation data, nats per example; empty without validation.
        stopped_early: whether `patience` ran out.

    Example:
        >>> history = History(loss=[3.0, 2.0, 1.0], validation_nll=[2.5, 2.0, 2.2])
        >>> history.best_epoch
        2
    """

    loss: list[float] = dataclasses.field(default_factory=list)
    nll: list[float] = dataclasses.field(default_factory=list)
    kl: list[float] = dataclasses.field(default_factory=list)
    beta: list[float] = dataclasses.field(default_factory=list)
    learning_rate: list[float] = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)
    validation_nll: list[float] = dataclasses.field(default_factory=list)
    stopped_early: bool = False

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def best_epoch(self) -> int | None:
        """The first epoch with the lowest validation NLL, counted from 1; None without validation."""
        if not self.validation_nll:
            return None
        return self.validation_nll.index(min(self.validation_nll)) + 1

    def append(self, record: dict[str, float]) -> None:
        """Add one epoch: the lists' names with their new entries."""
        for name, value in record.items():
            getattr(self, name).append(value)

    def to_dict(self) -> dict[str, Any]:
        """All lists and `stopped_early`, ready for JSON; `History(**fields)` reads it back."""
        return dataclasses.asdict(self)
