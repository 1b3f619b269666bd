"""Optimizers and learning rate schedulers, as `fit` and `fit_many` make and step them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from bayesify.core.weight_decay import exempt_from_decay

__all__ = ["make_optimizer", "step_scheduler"]


def make_optimizer(
    make: Callable[[list[nn.Parameter]], Optimizer] | None,
    parameters: list[nn.Parameter],
    learning_rate: float,
    without_decay: set[nn.Parameter],
    fused: bool = True,
) -> Optimizer:
    """Return the optimizer of some parameters; its weight decay does not apply to those in `without_decay`.

    Args:
        make: function from a list of parameters to an optimizer; None for Adam.
        parameters: to optimize.
        learning_rate: of Adam.
        without_decay: parameters whose variances weight decay would pull to 1.
        fused: whether Adam may be fused, which takes no complex numbers.
    """
    adam = partial(torch.optim.Adam, lr=learning_rate, fused=fused and not any(p.is_complex() for p in parameters))
    optimizer = (make or adam)(parameters)
    exempt_from_decay(optimizer, without_decay)
    return optimizer


def step_scheduler(scheduler: LRScheduler | None, value: float) -> None:
    """Step a scheduler, if there is one, after an epoch; a `ReduceLROnPlateau` monitors `value`."""
    if isinstance(scheduler, ReduceLROnPlateau):
        scheduler.step(value)
    elif scheduler is not None:
        scheduler.step()
