"""Lightning Fabric: devices, processes, precision."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_choice
from bayesify.errors import ConfigurationError, MissingDependencyError
from bayesify.train.arguments import SingleModelOptions
from bayesify.train.sharding import check_shardable, sharding_strategy

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from bayesify.core.model import Bayesian

__all__ = ["broadcast_buffers", "choose_device", "make_fabric", "reduce"]


def make_fabric(bnn: Bayesian, options: SingleModelOptions) -> Fabric:
    """Return a launched Fabric on the device of `choose_device`.

    Raises:
        MissingDependencyError: Lightning is not installed.
        ConfigurationError: an accelerator, precision or strategy that `fit` does not support, or another number of processes than
            were started.
    """
    check_choice("precision", options.precision, ("32-true", "16-mixed", "bf16-mixed"))
    device, devices, strategy = choose_device(bnn, options.accelerator), options.devices, options.strategy
    expected = options.num_nodes * (len(devices) if isinstance(devices, list) else devices)
    try:
        from lightning.fabric import Fabric
        from lightning.fabric.strategies.ddp import DDPStrategy
        from lightning.fabric.strategies.single_device import SingleDeviceStrategy
    except ImportError as error:
        raise MissingDependencyError("training", "Lightning Fabric", extra="train") from error
    if devices == 1 and device.index is not None:
        devices = [device.index]
    if options.is_sharded:
        check_shardable(bnn, expected)
        if options.precision == "16-mixed":
            raise ConfigurationError("strategy='fsdp' has no precision='16-mixed'; use 'bf16-mixed'")
        strategy = sharding_strategy(expected)
    with _without_messages():  # one per call about the precision that the caller asked for
        fabric = Fabric(
            accelerator=device.type, devices=devices, num_nodes=options.num_nodes, strategy=strategy, precision=options.precision
        )
    if not options.is_sharded and not isinstance(fabric.strategy, SingleDeviceStrategy | DDPStrategy):
        raise ConfigurationError(f"strategy must be 'auto', 'ddp' or 'fsdp', got {strategy!r}; for others write a loop with elbo")
    fabric.launch()
    if fabric.world_size != expected:
        raise ConfigurationError(
            f"devices={devices} and num_nodes={options.num_nodes} are {expected} processes, but {fabric.world_size} were started; "
            "start as many, or change devices and num_nodes"
        )
    return fabric


@contextmanager
def _without_messages() -> Iterator[None]:
    """Let Lightning log warnings only."""
    from lightning_utilities.core import rank_zero  # its logger is another one after `import lightning.pytorch`

    logger: logging.Logger = rank_zero.log
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def choose_device(bnn: nn.Module, accelerator: str) -> torch.device:
    """Return the device to train on: "auto" and "cuda" are the GPU of the network, else the current one.

    Raises:
        ConfigurationError: an unknown accelerator, or no GPU.
    """
    check_choice("accelerator", accelerator, ("auto", "cpu", "cuda"))
    if accelerator == "cpu" or (accelerator == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigurationError("accelerator is 'cuda', but PyTorch has no CUDA device; use 'cpu' or 'auto'")
    device = next(bnn.parameters()).device
    return device if device.type == "cuda" else torch.device("cuda", torch.cuda.current_device())


def reduce(fabric: Fabric, tensor: Tensor, how: Literal["mean", "sum"]) -> Tensor:
    """Return the mean or sum over processes, in every process."""
    result = fabric.all_reduce(tensor, reduce_op=how)
    assert isinstance(result, Tensor)
    return result


def broadcast_buffers(module: nn.Module, fabric: Fabric) -> None:
    """Copy the running statistics of the first process to all; parameters are equal already, as gradients are averaged."""
    if fabric.world_size > 1:
        for buffer in module.buffers():
            torch.distributed.broadcast(buffer, 0)
