"""What happened in training, epoch by epoch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["NAN_VALIDATION", "History", "divergence", "epoch_record"]

NAN_VALIDATION = "the validation NLL is NaN although all weights are finite; look for extreme validation inputs"


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
        failure: what went wrong, for one of many models trained together (`fit` raises it); None if nothing did.
        n: the number of training examples, by which the KL was divided; None in a history that was saved before it was noted.

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
    failure: str | None = None
    n: int | None = None

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def best_epoch(self) -> int | None:
        """The first epoch with the lowest validation NLL, counted from 1; None without validation."""
        if not self.validation_nll:
            return None
        return self.validation_nll.index(min(self.validation_nll)) + 1

    def append(self, record: dict[str, float], patience: int | None = None) -> None:
        """Add one epoch: the lists' names with their new entries; `stopped_early` is whether `patience` has run out with it."""
        for name, value in record.items():
            getattr(self, name).append(value)
        self.stopped_early = patience is not None and len(self) - (self.best_epoch or len(self)) >= patience

    @property
    def improved(self) -> bool:
        """Whether the last epoch has the lowest validation NLL so far."""
        return self.best_epoch == len(self)

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON; `History(**fields)` reads it back."""
        return dataclasses.asdict(self)


def epoch_record(table: Tensor, sizes: Sequence[int], betas: Sequence[float], learning_rate: float) -> dict[str, float]:
    """One epoch's entries, from the loss, NLL and KL of its batches (steps, 3), their sizes and KL weights."""
    means = (torch.tensor(sizes).double() @ table / sum(sizes)).tolist()
    record: dict[str, float] = dict(zip(("loss", "nll", "kl"), means, strict=True))
    return record | {"beta": sum(betas) / len(betas), "learning_rate": learning_rate}


def divergence(losses: Tensor, finite: bool, epoch: int, learning_rate: float) -> str | None:
    """What to say if a loss (steps,) or, where not `finite`, a weight has become NaN or infinite; None if all is well."""
    wrong = (~losses.isfinite()).nonzero().flatten().tolist()
    if not wrong and finite:
        return None
    what = f"the loss became {losses[wrong[0]].item()} in batch {wrong[0] + 1}" if wrong else "a weight became NaN or infinite"
    return (
        f"{what} of epoch {epoch}. Try standardised inputs and targets, a lower learning_rate (now "
        f"{learning_rate:.3g}), clip_norm=1.0, or precision 'bf16-mixed' in place of '16-mixed'."
    )
