"""What `fit` and `fit_many` check before any work."""

from __future__ import annotations

import math

from torch import nn

from bayesify.core.checks import check_integer, check_positive
from bayesify.core.model import Bayesian
from bayesify.objectives import KLSchedule

__all__ = ["check_model", "check_numbers"]


def check_numbers(counts: dict[str, int], seed: int, learning_rate: float, clip_norm: float | None) -> None:
    """Raise ValueError unless the counts are positive integers, and the rest what it has to be."""
    for name, count in counts.items():
        check_integer(name, count)
    check_integer("seed", seed, least=0)
    check_positive("learning_rate", learning_rate)
    if clip_norm is not None:
        check_positive("clip_norm", clip_norm)


def check_model(bnn: nn.Module, beta: object, local_beta: object, patience: int | None, validation: object) -> None:
    """Raise TypeError or ValueError unless there is a Bayesian network, with KL weights, and validation data for `patience`."""
    if not isinstance(beta, KLSchedule):
        _check_weight("beta", beta)
    if local_beta is not None:
        _check_weight("local_beta", local_beta)
    if patience is not None:
        check_integer("patience", patience)
        if validation is None:
            raise ValueError("patience needs validation data: pass validation=(inputs, y)")
    if not isinstance(bnn, nn.Module) or not any(isinstance(module, Bayesian) for module in bnn.modules()):
        raise TypeError(f"bnn must be what bayesify returned, got {type(bnn).__name__}; use bnn = bayesify(net, MeanField())")


def _check_weight(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        kinds = "a finite number of at least 0" + (" or a KLSchedule" if name == "beta" else "")
        raise ValueError(f"{name} must be {kinds}, got {value!r}")
