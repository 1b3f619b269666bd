"""The optimisers of stacked models: one for as many of them as can share it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

__all__ = ["Optimizers"]

# They treat every weight by itself, so that one instance serves the stacked weights of many models.
_ELEMENTWISE = (
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
)  # fmt: skip


@dataclasses.dataclass
class _Lane:
    """Models first..last - 1, whose weights one optimiser moves: views of the stacked tensors."""

    first: int
    last: int
    views: dict[str, nn.Parameter]
    optimizer: Optimizer
    scheduler: LRScheduler | None


class Optimizers:
    """What moves the stacked parameters (K, ...).

    Args:
        parameters: by name; they are changed in place.
        learning_rates: of Adam, one per model; equal ones side by side share an optimiser.
        optimizer: from a list of parameters to an optimiser, in place of Adam.
        scheduler: from an optimiser to its learning rate scheduler.
        clip_norm: the largest norm of the gradient of all parameters of one model.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        learning_rates: Sequence[float],
        optimizer: Callable[[list[nn.Parameter]], Optimizer] | None,
        scheduler: Callable[[Optimizer], LRScheduler] | None,
        clip_norm: float | None,
    ) -> None:
        self.clip_norm = clip_norm

        def lane(models: Sequence[int]) -> _Lane:
            first, last = models[0], models[-1] + 1
            views = {name: nn.Parameter(x[first:last]) for name, x in parameters.items()}
            make = optimizer or partial(torch.optim.Adam, lr=learning_rates[first], fused=True)
            mover = make(list(views.values()))
            return _Lane(first, last, views, mover, None if scheduler is None else scheduler(mover))

        models = range(len(learning_rates))
        runs = [list(run) for _, run in groupby(models, key=learning_rates.__getitem__)] if optimizer is None else [list(models)]
        self.lanes = [lane(run) for run in runs]
        if any(_of_one_model(lane) for lane in self.lanes):
            self.lanes = [lane([model]) for model in models]

    def step(self, gradients: Mapping[str, Tensor]) -> None:
        """Move all weights by gradients (K, ...); a parameter that is not named has none."""
        if self.clip_norm is not None:
            gradients = _clipped(gradients, self.clip_norm)
        for lane in self.lanes:
            for name, gradient in gradients.items():
                lane.views[name].grad = gradient[lane.first : lane.last]
            lane.optimizer.step()

    def learning_rate(self, model: int) -> float:
        """The learning rate of a model's first group of parameters."""
        return float(self._lane(model).optimizer.param_groups[0]["lr"])

    def end_epoch(self, values: Sequence[float]) -> None:
        """Step the schedulers; those that wait for a plateau see their model's value."""
        for lane in self.lanes:
            if isinstance(lane.scheduler, ReduceLROnPlateau):
                lane.scheduler.step(values[lane.first])
            elif lane.scheduler is not None:
                lane.scheduler.step()

    def _lane(self, model: int) -> _Lane:
        return next(lane for lane in self.lanes if lane.first <= model < lane.last)


def _of_one_model(lane: _Lane) -> bool:
    """Whether optimiser or scheduler mix what belongs to different models."""
    kind = type(lane.optimizer)
    elementwise = kind.__module__.startswith("torch.optim") and kind.__name__ in _ELEMENTWISE
    return not elementwise or isinstance(lane.scheduler, ReduceLROnPlateau)


def _clipped(gradients: Mapping[str, Tensor], clip_norm: float) -> dict[str, Tensor]:
    """As `torch.nn.utils.clip_grad_norm_`, for every model by itself."""
    norms = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()
    factors = (clip_norm / (norms + 1e-6)).clamp(max=1.0)
    return {name: g * factors.to(g.dtype).reshape(-1, *[1] * (g.dim() - 1)) for name, g in gradients.items()}
