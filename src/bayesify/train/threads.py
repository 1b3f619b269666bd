"""How many threads of the CPU a training step uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from bayesify.train.arguments import Settings
from bayesify.train.data_loading import Batches, RowGroupBatches

__all__ = ["one_thread", "step_work"]

_WORTH_THREADS = 5e7


@contextmanager
def one_thread(device: torch.device, work: float) -> Iterator[None]:
    """Use one thread of the CPU for steps of little work, in which several threads wait for each other longer than they compute.

    Args:
        device: where to compute.
        work: multiplications per step.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or work > _WORTH_THREADS or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def step_work(models: Sequence[nn.Module], train: Batches, settings: Settings) -> float:
    """Return the multiplications of the forward pass of a training step.

    A network whose examples are vectors uses each parameter once per example and draw. Infinity for other inputs (images, token
    ids), over whose positions weights are used many times, and for loaders, whose batches are not known before training.
    """
    rows = train.data.example if isinstance(train, RowGroupBatches) else train.tensors
    inputs = None if rows is None else rows.inputs
    if not (isinstance(inputs, Tensor) and inputs.dim() == 2 and inputs.is_floating_point()):
        return float("inf")
    return sum(p.numel() for model in models for p in model.parameters()) * float(settings.batch_size * settings.samples)
