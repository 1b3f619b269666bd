"""What is trained, `Training`, and how, `Settings`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from bayesify.objectives import KLSchedule
from bayesify.train.auxiliary import AuxiliaryInputs
from bayesify.train.batches import Data

if TYPE_CHECKING:
    from bayesify.core.model import Bayesian
    from bayesify.likelihoods import Likelihood

__all__ = ["Settings", "Training"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """One model with its data and its own settings; the arguments of `fit` of the same names."""

    bnn: Bayesian
    data: Data
    likelihood: Likelihood
    validation: Data | None = None
    auxiliary: AuxiliaryInputs | None = None
    seed: int = 0
    beta: float | KLSchedule = 1.0
    local_beta: float | None = None
    learning_rate: float = 1e-3
    n: int | None = None

    @property
    def local_weight(self) -> float:
        """`local_beta`, or the weight the method asks for, as a number."""
        return self.bnn.local_beta if self.local_beta is None else self.local_beta

    def beta_at(self, progress: float) -> float:
        """The weight of the KL when the share `progress` of all training steps is done."""
        return self.beta(progress) if isinstance(self.beta, KLSchedule) else self.beta


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What models trained by one call have in common; the arguments of `fit` and `fit_many` of the same names."""

    epochs: int
    batch_size: int
    samples: int
    optimizer: Callable[[list[nn.Parameter]], Optimizer] | None
    scheduler: Callable[[Optimizer], LRScheduler] | None
    clip_norm: float | None
    validation_samples: int
    patience: int | None
