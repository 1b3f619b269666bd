"""Checkpoints: written in one piece or not at all, read without executing anything, refused where they do not belong.

The file is a plain dict of tensors, numbers and strings in PyTorch's zip format. It is written beside its final place, flushed to
the disk and moved there in one atomic step, so that a crash or a full disk leaves the previous checkpoint as it was.
"""

from __future__ import annotations

import dataclasses
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_leaves

from bayesify.train.batches import Batches
from bayesify.train.history import History

__all__ = ["Run", "describe", "named", "read", "write"]

FORMAT = 1


@dataclasses.dataclass
class Run:
    """Everything that changes while `fit` runs, between two epochs; randomness is a function of seed and epoch, so it is not here.

    Attributes:
        module: network and likelihood.
        scaler: what keeps the gradient scale of "16-mixed", Fabric's precision plugin.
        best: the state of `module` after the epoch with the lowest validation NLL.
    """

    module: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler | None
    scaler: Any
    history: History = dataclasses.field(default_factory=History)
    best: dict[str, Tensor] | None = None

    def begin(self, path: Path, settings: dict[str, Any], resume: bool, first: bool) -> None:
        """Go on from the checkpoint, or write the first one.

        It is written before the work begins, and read back, so that a folder without room or permission, or an optimiser whose
        state is no plain data, is known now.

        Args:
            path: of the checkpoint.
            settings: what has to be the same for a run to go on.
            resume: whether to go on.
            first: whether this process is the one that writes.
        """
        if resume:
            self.load(path, settings)
        elif first:
            self.save(path, settings)
            try:
                read(path)
            except ValueError as error:
                path.unlink()
                raise TypeError(
                    f"the state of {type(self.optimizer).__name__} or {type(self.scheduler).__name__} is more than tensors, "
                    "numbers and strings, and cannot be read back safely; train with checkpoint=None or give it a plain state_dict"
                ) from error

    def save(self, path: Path, settings: dict[str, Any]) -> None:
        """Write all of it; errors as in `write`."""
        state = {
            "settings": settings,
            "module": dict(self.module.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "history": self.history.to_dict(),
            "best": self.best,
        }
        write(path, state)

    def load(self, path: Path, settings: dict[str, Any]) -> None:
        """Read all of it; errors as in `read`, and ValueError for a checkpoint of other settings."""
        state = read(path)
        _check_settings(path, state["settings"], settings)
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.scaler.load_state_dict(state["scaler"])
        self.history = History(**state["history"])
        self.best = state["best"]


def describe(name: str, batches: Batches | None) -> dict[str, object]:
    """What has to be the same for a run to go on: the number of examples and, in memory, their values."""
    if batches is None:
        return {f"examples of {name}": 0}
    settings: dict[str, object] = {f"examples of {name}": batches.examples, f"batches of {name}": batches.steps}
    if batches.tensors is not None:
        settings[f"checksum of {name}"] = _fingerprint((batches.tensors.inputs, batches.tensors.y))
    return settings


def named(thing: object, values: Mapping[str, Any]) -> str:
    """The type with those of its settings that are numbers or words, to tell whether it is the same."""
    words = [f"{name}={value!r}" for name, value in values.items() if isinstance(value, int | float | str)]
    return f"{type(thing).__name__}({', '.join(words)})"


def write(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint atomically.

    Raises:
        OSError: no such folder, no permission, disk full; a checkpoint that was there before is left as it was.
    """
    beside = path.with_name(path.name + ".tmp")
    try:
        with open(beside, "wb") as file:
            torch.save({"format": FORMAT, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        if os.name == "posix":  # the new name, too, must survive a power cut
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except (OSError, RuntimeError) as error:  # torch.save turns some OS errors into RuntimeError
        if beside.is_file():
            beside.unlink()
        raise OSError(
            f"the checkpoint {path} could not be written ({error}); an earlier one is left as it was. Make room or choose another "
            "path, then call fit again: it goes on from the last checkpoint"
        ) from error


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; nothing in it is executed.

    Raises:
        ValueError: the file is damaged, or not a checkpoint of `fit`.
    """
    way_out = "delete it, or pass resume=False to start afresh and overwrite it"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file leads to; PyTorch's message would advise to read it less safely
        raise ValueError(f"the checkpoint {path} is damaged or holds something else than plain data; {way_out}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(f"{path} is not a checkpoint of fit (format {FORMAT}); {way_out}")
    return state


def _check_settings(path: Path, then: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse a checkpoint of another run.

    Raises:
        ValueError: settings that differ, with both values.
    """
    differences = [
        f"{name} was {then.get(name, 'absent')!r} and is {now.get(name, 'absent')!r}"
        for name in {**then, **now}
        if then.get(name, "absent") != now.get(name, "absent")
    ]
    if differences:
        listing = "; ".join(differences[:5]) + (f"; and {len(differences) - 5} more" if len(differences) > 5 else "")
        raise ValueError(
            f"the checkpoint {path} belongs to another run: {listing}. Use the same settings, another checkpoint path, or "
            "resume=False to start afresh and overwrite it"
        )


def _fingerprint(tensors: Any) -> int:
    """A checksum of the values, so that a run is not continued on other data of the same shape (the next fold, say)."""
    value = 0
    for tensor in tree_leaves(tensors):
        value = zlib.crc32(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data, value)
    return value
