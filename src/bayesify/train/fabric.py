"""Lightning Fabric as `fit` uses it: devices, processes, precision, loggers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_choice

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from lightning.fabric.loggers.logger import Logger

__all__ = ["log", "make_fabric", "reduce", "share_buffers"]


def make_fabric(bnn: nn.Module, accelerator: str, devices: int | list[int], strategy: Any, precision: Any) -> Fabric:
    """A launched Fabric; "auto" is the GPU the net is on, else the first one, else the CPU.

    Raises:
        ImportError: without Lightning.
        ValueError: another accelerator, precision or strategy than `fit` can train with.
    """
    check_choice("accelerator", accelerator, ("auto", "cpu", "cuda"))
    check_choice("precision", precision, ("32-true", "16-mixed", "bf16-mixed"))
    try:
        from lightning.fabric import Fabric
        from lightning.fabric.strategies.ddp import DDPStrategy
        from lightning.fabric.strategies.single_device import SingleDeviceStrategy
    except ImportError as error:
        raise ImportError('training needs Lightning Fabric: pip install "bayesify[train]"') from error
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    home = next(bnn.parameters()).device
    if accelerator == "cuda" and devices == 1 and home.type == "cuda" and home.index is not None:
        devices = [home.index]
    fabric = Fabric(accelerator=accelerator, devices=devices, strategy=strategy, precision=precision)
    if not isinstance(fabric.strategy, SingleDeviceStrategy | DDPStrategy):
        raise ValueError(
            f"strategy must be 'auto' or 'ddp', got {strategy!r}; for sharded training write the loop with elbo and Fabric yourself"
        )
    fabric.launch()
    return fabric


def reduce(fabric: Fabric, tensor: Tensor, how: Literal["mean", "sum"]) -> Tensor:
    """The mean or sum over processes, the same in all of them."""
    result = fabric.all_reduce(tensor, reduce_op=how)
    assert isinstance(result, Tensor)
    return result


def share_buffers(module: nn.Module, fabric: Fabric) -> None:
    """Give every process the running statistics of the first; gradients keep the parameters equal."""
    if fabric.world_size > 1:
        for buffer in module.buffers():
            torch.distributed.broadcast(buffer, 0)


def log(logger: Logger | Callable[[dict[str, float]], object], epoch: int, record: dict[str, float]) -> None:
    """Hand an epoch's record to a Fabric logger or a function."""
    from lightning.fabric.loggers.logger import Logger

    if isinstance(logger, Logger):
        logger.log_metrics(record, step=epoch)
    else:
        logger({"epoch": epoch, **record})
