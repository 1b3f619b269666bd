"""What `fit` and `fit_many` check before any work."""

from __future__ import annotations

import math

from torch import nn

from bayesify.core.checks import check_integer, check_positive
from bayesify.core.model import Bayesian
from bayesify.objectives import KLSchedule
from bayesify.train.training import Settings, Training

__all__ = ["check"]


def check(training: Training, settings: Settings, **more_counts: int) -> None:
    """Raise TypeError or ValueError unless everything but the data is as it should be; `more_counts` are positive integers too."""
    _check_model(training, settings.patience)
    counts = {name: getattr(settings, name) for name in ("epochs", "batch_size", "samples", "validation_samples")}
    for name, count in {**counts, **more_counts}.items():
        check_integer(name, count)
    if training.n is not None:
        check_integer("n", training.n)
    check_integer("seed", training.seed, least=0)
    check_positive("learning_rate", training.learning_rate)
    if settings.clip_norm is not None:
        check_positive("clip_norm", settings.clip_norm)


def _check_model(training: Training, patience: int | None) -> None:
    bnn = training.bnn
    if not isinstance(training.beta, KLSchedule):
        _check_weight("beta", training.beta)
    if training.local_beta is not None:
        _check_weight("local_beta", training.local_beta)
    if patience is not None:
        check_integer("patience", patience)
        if training.validation is None:
            raise ValueError("patience needs validation data: pass validation=(inputs, y)")
    if not isinstance(bnn, nn.Module) or not any(isinstance(module, Bayesian) for module in bnn.modules()):
        raise TypeError(f"bnn must be what bayesify returned, got {type(bnn).__name__}; use bnn = bayesify(net, MeanField())")


def _check_weight(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        kinds = "a finite number of at least 0" + (" or a KLSchedule" if name == "beta" else "")
        raise ValueError(f"{name} must be {kinds}, got {value!r}")
