"""What `fit` sets up around its loop: Fabric, random state, devices and modes, the start of a checkpointed run, loggers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_choice
from bayesify.train.batches import Batches, seed_for
from bayesify.train.checkpoint import Run, fingerprint, read

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from lightning.fabric.loggers.logger import Logger

__all__ = ["begin", "borrowed", "describe", "log", "make_fabric", "named", "reduce", "seed_noise", "share_buffers"]


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


def seed_noise(device: torch.device, *parts: object) -> None:
    """Seed the generators the noise of this process comes from, and no others."""
    seed = seed_for(*parts)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


@contextmanager
def borrowed(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Give the module back on its device, its submodules in their modes, and PyTorch's random state as it was."""
    home = next(module.parameters()).device
    modes = {part: part.training for part in module.modules()}
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), _without_subnormals():
        try:
            module.to(device)
            yield
        finally:
            module.zero_grad()
            module.to(home)
            for part, training in modes.items():
                part.training = training


@contextmanager
def _without_subnormals() -> Iterator[None]:
    """Take numbers below the smallest normal one (1e-38 in float32) for zero.

    A prior draws the weights of inputs that are always zero, such as the border of an image, below it, and so does Adam with their
    moments. There arithmetic on a CPU takes many times as long: an epoch on MNIST took eight times as long.
    """
    before = bool(torch.tensor(1e-310, dtype=torch.float64) * 1.0 == 0)  # there is nothing to ask for it
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def describe(name: str, batches: Batches | None) -> dict[str, object]:
    """What has to be the same for a run to go on: the number of examples and, in memory, their values."""
    if batches is None:
        return {f"examples of {name}": 0}
    settings: dict[str, object] = {f"examples of {name}": batches.n, f"batches of {name}": len(batches)}
    if batches.tensors is not None:
        settings[f"checksum of {name}"] = fingerprint((batches.tensors.inputs, batches.tensors.y))
    return settings


def named(thing: object, values: Mapping[str, Any]) -> str:
    """The type with those of its settings that are numbers or words, to tell whether it is the same."""
    words = [f"{name}={value!r}" for name, value in values.items() if isinstance(value, int | float | str)]
    return f"{type(thing).__name__}({', '.join(words)})"


def begin(run: Run, path: Path, settings: dict[str, Any], epochs: int, resume: bool, fabric: Fabric) -> None:
    """Go on from the checkpoint, or write the first one.

    It is written before the work begins, and read back, so that a folder without room or permission, or an optimiser whose state is
    no plain data, is known now.
    """
    if resume:
        run.load(path, settings)
        if len(run.history) > epochs:
            raise ValueError(f"epochs={epochs}, but the checkpoint {path} has {len(run.history)}; ask for more, or resume=False")
    elif fabric.is_global_zero:
        run.save(path, settings)
        try:
            read(path)
        except ValueError as error:
            path.unlink()
            raise TypeError(
                f"the state of {type(run.optimizer).__name__} or {type(run.scheduler).__name__} is more than tensors, numbers and "
                "strings, and cannot be read back safely; train with checkpoint=None or give it a plain state_dict"
            ) from error
    fabric.barrier()


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
