"""Arguments of `fit` and `fit_many`, as dataclasses, and their checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from bayesify.core.checks import check_integer, check_nonnegative, check_positive
from bayesify.core.model import Bayesian
from bayesify.errors import ConfigurationError
from bayesify.likelihoods import Likelihood
from bayesify.likelihoods.base import check_likelihood
from bayesify.objectives import KLSchedule
from bayesify.plain_numbers import have_plain_numbers
from bayesify.train.auxiliary_inputs import AuxiliaryInputs
from bayesify.train.data_loading import Data

if TYPE_CHECKING:
    from lightning.fabric.loggers.logger import Logger
    from lightning.fabric.strategies.strategy import Strategy

    from bayesify.tracking import Run

__all__ = ["Settings", "SingleModelOptions", "Training", "check_arguments", "check_kl_weights"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """One model with its data and settings; the arguments of `fit` of the same names."""

    bnn: Bayesian
    data: Data
    likelihood: Likelihood
    validation: Data | Literal["folds"] | None = None
    groups: Tensor | None = None
    auxiliary: AuxiliaryInputs | None = None
    seed: int = 0
    beta: float | KLSchedule = 1.0
    local_beta: float | None = None
    learning_rate: float = 1e-3
    n: int | None = None

    def __post_init__(self) -> None:
        have_plain_numbers(self)

    @property
    def local_weight(self) -> float:
        """Weight of the per-example KL: `local_beta`, by default that of the method."""
        return self.bnn.local_beta if self.local_beta is None else self.local_beta

    def beta_at(self, progress: float) -> float:
        """Return the weight of the KL after the fraction `progress` of all training steps."""
        return self.beta(progress) if isinstance(self.beta, KLSchedule) else self.beta


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings that the models of one call share; the arguments of `fit` and `fit_many` of the same names."""

    epochs: int
    batch_size: int
    samples: int
    optimizer: Callable[[list[nn.Parameter]], Optimizer] | None
    scheduler: Callable[[Optimizer], LRScheduler] | None
    clip_norm: float | None
    validation_samples: int
    patience: int | None

    def __post_init__(self) -> None:
        have_plain_numbers(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SingleModelOptions:
    """Settings of `fit` that `fit_many` lacks; the arguments of `fit` of the same names."""

    checkpoint: Path | None = None
    checkpoint_every: int = 1
    resume: bool = True
    accumulate: int = 1
    precision: Literal["32-true", "16-mixed", "bf16-mixed"] = "32-true"
    compile: bool = False
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    devices: int | list[int] = 1
    num_nodes: int = 1
    strategy: str | Strategy = "auto"
    loggers: tuple[str | Run | Logger | Callable[[dict[str, float]], object], ...] = ()
    progress: bool | None = None

    @property
    def is_sharded(self) -> bool:
        """Whether parameters are sharded."""
        return isinstance(self.strategy, str) and self.strategy.lower() == "fsdp"


def check_arguments(training: Training, settings: Settings, **counts: int) -> None:
    """Check everything except the data.

    Args:
        training, settings: to check.
        counts: further arguments, by name, that must be positive integers.

    Raises:
        TypeError, ConfigurationError: an invalid argument.
    """
    _check_model(training, settings)
    for name in ("epochs", "batch_size", "samples", "validation_samples"):
        check_integer(name, getattr(settings, name))
    for name, count in counts.items():
        check_integer(name, count)
    if training.n is not None:
        check_integer("n", training.n)
    check_integer("seed", training.seed, least=0)
    check_positive("learning_rate", training.learning_rate)
    if settings.clip_norm is not None:
        check_positive("clip_norm", settings.clip_norm)


def _check_model(training: Training, settings: Settings) -> None:
    bnn, patience = training.bnn, settings.patience
    check_likelihood(training.likelihood)
    if isinstance(bnn, nn.Module) and any(p.is_meta for p in bnn.parameters()):
        raise ConfigurationError(
            "bnn has parameters on the meta device, without values; load them first: load_state_dict(..., assign=True)"
        )
    check_kl_weights(training.beta, training.local_beta)
    if isinstance(training.validation, str) and (training.validation != "folds" or not getattr(bnn, "separate_members", ())):
        raise ConfigurationError(
            f"validation must be data, or 'folds' for an ensemble, got {training.validation!r}; give validation=(inputs, y)"
        )
    if training.groups is not None and not isinstance(training.validation, str):
        raise ConfigurationError(
            "groups says which rows stay together in the folds of an ensemble, and needs validation='folds'; leave it out, or hold "
            "out groups with validation=(inputs, y)"
        )
    if patience is not None:
        check_integer("patience", patience)
        if training.validation is None:
            raise ConfigurationError("patience needs validation data: pass validation=(inputs, y)")
        if getattr(bnn, "collects", False):
            raise ConfigurationError(
                f"patience={patience} would stop training before the posterior is collected, which takes all epochs with SWA and "
                "SWAG; leave it out"
            )
    if settings.optimizer is not None and getattr(bnn, "has_optimizer", False):
        raise ConfigurationError(
            "the method of bnn has an optimizer of its own, which takes natural-gradient steps of rate `learning_rate`; leave "
            'optimizer out, or convert with MeanField(noise="shared") for another optimizer'
        )
    if not isinstance(bnn, nn.Module) or not any(isinstance(module, Bayesian) for module in bnn.modules()):
        raise TypeError(f"bnn must be a Bayesian network, got {type(bnn).__name__}; make one with bayesify(net, MeanField())")
    root = next(module for module in bnn.modules() if isinstance(module, Bayesian))
    if not root.separate_members:  # which are checked one by one
        root.tell_of_rounding()


def check_kl_weights(beta: float | KLSchedule, local_beta: float | None) -> None:
    """Raise a `ConfigurationError` unless both are weights of a KL: finite numbers of at least 0, or a schedule, or None."""
    if not isinstance(beta, KLSchedule):
        check_nonnegative("beta", beta, " or a KLSchedule")
    if local_beta is not None:
        check_nonnegative("local_beta", local_beta)
