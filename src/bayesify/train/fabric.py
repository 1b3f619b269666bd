"""Lightning Fabric: devices, processes, precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_choice
from bayesify.errors import ConfigurationError, MissingDependencyError

if TYPE_CHECKING:
    from lightning.fabric import Fabric

__all__ = ["broadcast_buffers", "choose_device", "make_fabric", "reduce"]


def make_fabric(bnn: nn.Module, accelerator: str, devices: int | list[int], strategy: Any, precision: Any) -> Fabric:
    """Return a launched Fabric on the device of `choose_device`.

    Raises:
        MissingDependencyError: Lightning is not installed.
        ConfigurationError: an accelerator, precision or strategy that `fit` does not support.
    """
    check_choice("precision", precision, ("32-true", "16-mixed", "bf16-mixed"))
    if isinstance(devices, bool) or not ((isinstance(devices, int) and devices >= 1) or (isinstance(devices, list) and devices)):
        raise ConfigurationError(f"devices must be a number of at least 1, or a list of GPUs such as [0, 1], got {devices!r}")
    device = choose_device(bnn, accelerator)
    try:
        from lightning.fabric import Fabric
        from lightning.fabric.strategies.ddp import DDPStrategy
        from lightning.fabric.strategies.single_device import SingleDeviceStrategy
    except ImportError as error:
        raise MissingDependencyError("training", "Lightning Fabric", extra="train") from error
    if devices == 1 and device.index is not None:
        devices = [device.index]
    fabric = Fabric(accelerator=device.type, devices=devices, strategy=strategy, precision=precision)
    if not isinstance(fabric.strategy, SingleDeviceStrategy | DDPStrategy):
        raise ConfigurationError(
            f"strategy must be 'auto' or 'ddp', got {strategy!r}; for sharded training write a loop with elbo and Fabric"
        )
    fabric.launch()
    return fabric


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
