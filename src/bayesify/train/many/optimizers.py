"""Optimizers of stacked models, which share one where possible."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from bayesify.train.optimizers import make_optimizer, step_scheduler

__all__ = ["Optimizers"]

# They treat every weight separately, so one instance serves the stacked weights of many models.
_ELEMENTWISE = (
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
)  # fmt: skip


@dataclasses.dataclass
class _Group:
    """Models first..last - 1, which share an optimizer of views of the stacked tensors."""

    first: int
    last: int
    views: dict[str, nn.Parameter]
    optimizer: Optimizer
    scheduler: LRScheduler | None


class Optimizers:
    """Optimizers and schedulers of stacked parameters (K, ...).

    Args:
        parameters: by name; updated in place.
        learning_rates: of Adam, one per model; adjacent models of equal rates share an optimizer.
        optimizer: function from a list of parameters to an optimizer; None for Adam.
        scheduler: function from an optimizer to its learning rate scheduler.
        clip_norm: the maximum norm of the gradient of all parameters of one model.
        without_decay: names of parameters that weight decay does not apply to.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        learning_rates: Sequence[float],
        optimizer: Callable[[list[nn.Parameter]], Optimizer] | None,
        scheduler: Callable[[Optimizer], LRScheduler] | None,
        clip_norm: float | None,
        without_decay: Collection[str] = (),
    ) -> None:
        self.clip_norm = clip_norm

        def make_group(models: Sequence[int]) -> _Group:
            first, last = models[0], models[-1] + 1
            views = {name: nn.Parameter(x[first:last]) for name, x in parameters.items()}
            exempt = {view for name, view in views.items() if name in without_decay}
            stacked = make_optimizer(optimizer, list(views.values()), learning_rates[first], exempt)
            return _Group(first, last, views, stacked, None if scheduler is None else scheduler(stacked))

        models = range(len(learning_rates))
        shared = [list(run) for _, run in groupby(models, key=learning_rates.__getitem__)] if optimizer is None else [list(models)]
        self.groups = [make_group(run) for run in shared]
        if any(_mixes_models(group) for group in self.groups):
            self.groups = [make_group([model]) for model in models]

    def step(self, gradients: Mapping[str, Tensor]) -> None:
        """Update all weights by gradients (K, ...); unnamed parameters have none."""
        if self.clip_norm is not None:
            gradients = _clipped(gradients, self.clip_norm)
        for group in self.groups:
            for name, gradient in gradients.items():
                group.views[name].grad = _laid_out(gradient[group.first : group.last], group.views[name])
            group.optimizer.step()

    def of(self, model: int) -> tuple[Optimizer, LRScheduler | None]:
        """Return the optimizer of a model, and its scheduler."""
        group = self._group(model)
        return group.optimizer, group.scheduler

    def state_dicts(self) -> list[dict[str, Any]]:
        """Return the states of all optimizers and schedulers."""
        return [
            {"optimizer": g.optimizer.state_dict(), "scheduler": None if g.scheduler is None else g.scheduler.state_dict()}
            for g in self.groups
        ]

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restore the result of `state_dicts`."""
        for group, state in zip(self.groups, states, strict=True):
            group.optimizer.load_state_dict(state["optimizer"])
            if group.scheduler is not None:
                group.scheduler.load_state_dict(state["scheduler"])

    def learning_rate(self, model: int) -> float:
        """Return the learning rate of a model's first parameter group."""
        return float(self._group(model).optimizer.param_groups[0]["lr"])

    def end_epoch(self, values: Sequence[float]) -> None:
        """Step the schedulers; a `ReduceLROnPlateau` monitors its model's value."""
        for group in self.groups:
            step_scheduler(group.scheduler, values[group.first])

    def _group(self, model: int) -> _Group:
        return next(group for group in self.groups if group.first <= model < group.last)


def _mixes_models(group: _Group) -> bool:
    """Return whether optimizer or scheduler would mix values of different models."""
    kind = type(group.optimizer)
    elementwise = kind.__module__.startswith("torch.optim") and kind.__name__ in _ELEMENTWISE
    return not elementwise or isinstance(group.scheduler, ReduceLROnPlateau)


def _laid_out(gradient: Tensor, like: Tensor) -> Tensor:
    """The gradient with the strides of its parameter: fused optimizers read both in the order of memory."""
    return gradient if gradient.stride() == like.stride() else torch.empty_like(like).copy_(gradient)


def _clipped(gradients: Mapping[str, Tensor], clip_norm: float) -> dict[str, Tensor]:
    """Clip as `torch.nn.utils.clip_grad_norm_`, for every model separately."""
    norms = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()
    factors = (clip_norm / (norms + 1e-6)).clamp(max=1.0)
    return {name: g * factors.to(g.dtype).reshape(-1, *[1] * (g.dim() - 1)) for name, g in gradients.items()}
