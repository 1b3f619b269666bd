"""The predictive density of validation data, over all processes of a run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch

from bayesify.train.arguments import Settings
from bayesify.train.batch import Batch
from bayesify.train.data_loading import Batches
from bayesify.train.fabric import reduce
from bayesify.train.objective import Objective, log_density

if TYPE_CHECKING:
    from lightning.fabric import Fabric

__all__ = ["validation_nll"]

_LARGE = 1024  # rows of a batch in which draws are evaluated one by one


@torch.no_grad()
def validation_nll(fabric: Fabric, objective: Objective, batches: Batches, settings: Settings, *, is_sharded: bool) -> float:
    """Return the mean negative log predictive density of all batches, in nats per example; the objective stays in eval mode."""
    objective.eval()
    total = torch.zeros(2, dtype=torch.float64, device=fabric.device)
    for batch, counts in _own_batches(fabric, batches, is_sharded):
        with fabric.autocast():
            log_prob = partial(objective.log_prob, batch)
            # Processes that gather shards have to make the same number of passes.
            size = _LARGE if is_sharded else batch.size
            density = log_density(log_prob, size, settings.samples, settings.validation_samples)
        weights = torch.ones_like(density) if batch.weights is None else batch.weights
        total += counts * torch.stack(((weights * density).double().sum(), weights.double().sum()))
    log_prob, weight = reduce(fabric, total, "sum").tolist()
    return -log_prob / weight


def _own_batches(fabric: Fabric, batches: Batches, is_sharded: bool) -> Iterator[tuple[Batch, bool]]:
    """Yield the validation batches of this process, each with whether it counts: with shards all have the same number."""
    batch, number = None, -1
    for number, batch in enumerate(batches.epoch(0)):
        if number % fabric.world_size == fabric.global_rank:
            yield batch, True
    rest = (number + 1) % fabric.world_size
    if is_sharded and batch is not None and 0 < rest <= fabric.global_rank:
        yield batch, False
