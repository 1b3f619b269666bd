"""Losses, KL and settings of training, epoch by epoch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayesify.core.shards import local_part
from bayesify.formatting import listing

if TYPE_CHECKING:
    from bayesify.core.model import Bayesian

__all__ = ["NAN_VALIDATION", "History", "culprits", "divergence", "epoch_record"]

NAN_VALIDATION = "the validation NLL is NaN although all weights are finite; check for extreme validation inputs."


@dataclasses.dataclass
class History:
    """Losses, KL and settings of training, one entry per epoch; epochs count from 1, so epoch e is entry e - 1.

    Attributes:
        loss: minus the ELBO per example, nats, mean over the examples of the epoch.
        nll: negative log likelihood of the training data under the posterior draws, nats per example.
        kl: KL of the posterior from the prior, nats, a sum over all weights; mean over the epoch.
        beta: weight of the KL, mean over the epoch's batches.
        learning_rate: of the first parameter group, before the scheduler's step.
        seconds: wall-clock time, including validation, excluding the checkpoint.
        validation_nll: negative log predictive density of the validation data, nats per example; empty without validation.
        kept_epochs: the epoch whose weights were kept, because its validation NLL was the lowest; one per member of an ensemble,
            empty if the weights are those of the last epoch.
        stopped_early: whether training stopped after `patience` epochs without improvement.
        failure: the error of a model that `fit_many` trained (`fit` raises it); None without an error.
        n: the number of training examples, by which the KL was divided; None in histories saved by earlier versions.

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
    kept_epochs: list[int] = dataclasses.field(default_factory=list)
    stopped_early: bool = False
    failure: str | None = None
    n: int | None = None

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def best_epoch(self) -> int | None:
        """First epoch with the lowest validation NLL, counted from 1; None without validation."""
        if not self.validation_nll:
            return None
        return self.validation_nll.index(min(self.validation_nll)) + 1

    def append(self, record: dict[str, float], patience: int | None = None) -> None:
        """Add the record of an epoch, from names of lists to their new entries, and update `stopped_early`."""
        for name, value in record.items():
            getattr(self, name).append(value)
        self.stopped_early = patience is not None and len(self) - (self.best_epoch or len(self)) >= patience

    def keep_best(self) -> None:
        """Record that the model has the weights of `best_epoch`."""
        self.kept_epochs = [] if self.best_epoch is None else [self.best_epoch]

    @property
    def improved(self) -> bool:
        """Whether the last epoch has the lowest validation NLL so far."""
        return self.best_epoch == len(self)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON; `History(**fields)` is the inverse."""
        return dataclasses.asdict(self)


def epoch_record(table: Tensor, sizes: Sequence[float], betas: Sequence[float], learning_rate: float) -> dict[str, float]:
    """Return the record of an epoch from the loss, NLL and KL of its batches (steps, 3), their sizes and KL weights."""
    means = (torch.tensor(sizes, dtype=torch.float64, device=table.device) @ table / sum(sizes)).tolist()
    record: dict[str, float] = dict(zip(("loss", "nll", "kl"), means, strict=True))
    return record | {"beta": sum(betas) / len(betas), "learning_rate": learning_rate}


def divergence(losses: Tensor, finite: bool, epoch: int, learning_rate: float) -> str | None:
    """Return an error message if a loss (steps,) or, unless `finite`, a weight is NaN or infinite; otherwise None."""
    nonfinite = (~losses.isfinite()).nonzero().flatten().tolist()
    if not nonfinite and finite:
        return None
    event = "a weight became NaN or infinite"
    if nonfinite:
        event = f"the loss became {losses[nonfinite[0]].item()} in batch {nonfinite[0] + 1}"
    return (
        f"{event} of epoch {epoch}. Try standardized inputs and targets, a lower learning_rate (now "
        f"{learning_rate:.3g}), clip_norm=1.0, or precision 'bf16-mixed' instead of '16-mixed'."
    )


@torch.no_grad()
def culprits(bnn: Bayesian) -> str:
    """Return a sentence that names the layers whose weights or KL are NaN or infinite; empty if there are none."""
    bad = [name for name, p in bnn.named_parameters() if not local_part(p).isfinite().all()]
    if not bad and not any(p is not local_part(p) for p in bnn.parameters()):
        bad = [f"the KL of {name}" for name, layer in bnn.random_layers() if not layer.posterior.kl(layer).isfinite()]
    return f" NaN or infinite: {listing(bad, most=3)}." if bad else ""
