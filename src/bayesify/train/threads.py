"""How many threads of the CPU a training step uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

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
    """Return an upper bound of the multiplications of the forward pass of a training step.

    A network whose examples are vectors uses each parameter once per example and draw; of sequences, images and token ids, at most
    once per number in them. Infinity for loaders, whose batches are not known before training.
    """
    rows = train.data.example if isinstance(train, RowGroupBatches) else train.tensors
    if rows is None:
        return float("inf")
    numbers = [1 if x.dim() == 2 and x.is_floating_point() else x[0].numel() for x in tree_leaves(rows.inputs)]
    parameters = sum(p.numel() for model in models for p in model.parameters())
    return parameters * sum(numbers) * float(settings.batch_size * settings.samples)
