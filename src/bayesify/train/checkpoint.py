"""Checkpoints of a training run: written atomically, read without executing code, refused where they belong to another run.

The file is a dict of tensors, numbers and strings in PyTorch's zip format.
"""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_leaves

from bayesify.errors import CheckpointError
from bayesify.files import atomic_file
from bayesify.formatting import listing
from bayesify.native import native_is_used
from bayesify.objectives import Constant, KLSchedule
from bayesify.train.agreement import by_first_process, exists_for_first_process
from bayesify.train.arguments import Settings, Training
from bayesify.train.data_loading import Batches, RowGroupBatches
from bayesify.train.history import History
from bayesify.train.model_data import ModelData

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from bayesify.train.objective import Objective

__all__ = ["TrainingState", "check_identity", "checksum", "read", "read_of_run", "run_identity", "write"]

FORMAT = 2
_RESTART = "pass resume=False to start afresh and overwrite it"
_NATIVE = "native random numbers"
_UNSET = object()


@dataclasses.dataclass
class TrainingState:
    """State of a training run between two epochs; random numbers depend on seed and epoch alone and need no state.

    Its methods are called by all processes, of which the first reads and writes.

    Attributes:
        module: network and likelihood.
        fabric: whose precision plugin scales the gradients in "16-mixed".
        best: the state of `module` after the epoch with the lowest validation NLL.
    """

    module: Objective
    optimizer: Optimizer
    scheduler: LRScheduler | None
    fabric: Fabric
    history: History = dataclasses.field(default_factory=History)
    best: dict[str, Tensor] | None = None

    def exists(self, path: Path) -> bool:
        """Return whether there is a checkpoint to resume from."""
        if path.is_dir():
            raise CheckpointError(path, "it is a folder, as of a run with strategy='fsdp'", "give a file, or that strategy")
        return exists_for_first_process(self.fabric, path)

    def start(self, path: Path, identity: dict[str, Any]) -> None:
        """Write the first checkpoint and read it back, before training.

        An unwritable path, or an optimizer whose state is not plain data, thus raises before any work is done.

        Args:
            path: the checkpoint.
            identity: the settings and data that a resumed run must have in common with the interrupted one.
        """
        self.save(path, identity)
        by_first_process(self.fabric, lambda: self._read_back(path))

    def save(self, path: Path, identity: dict[str, Any]) -> None:
        """Write a checkpoint; errors as in `write`."""
        tensors = {"module": dict(self.module.state_dict()), "optimizer": self.optimizer.state_dict(), "best": self.best}
        by_first_process(self.fabric, lambda: write(path, {**self.rest(identity), **tensors}))

    def resume(self, path: Path, identity: dict[str, Any]) -> None:
        """Restore the state from a checkpoint; errors as in `read_of_run`."""
        state = by_first_process(self.fabric, lambda: read_of_run(path, identity))
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.best = state["best"]
        self.restore_rest(state)

    def rest(self, identity: dict[str, Any]) -> dict[str, Any]:
        """Return the state but for module and optimizer."""
        return {
            "settings": identity,
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "scaler": self.fabric.strategy.precision.state_dict(),
            "history": self.history.to_dict(),
            "learned": self.module.bnn.learned(),
        }

    def restore_rest(self, state: dict[str, Any]) -> None:
        """Restore what `rest` returned."""
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.fabric.strategy.precision.load_state_dict(state["scaler"])
        self.history = History(**state["history"])
        if "learned" in state:  # not in files of earlier versions
            self.module.bnn.relearn(state["learned"])

    def _read_back(self, path: Path) -> None:
        try:
            read(path)
        except CheckpointError as error:
            path.unlink()
            raise TypeError(
                f"the state of {type(self.optimizer).__name__} or {type(self.scheduler).__name__} contains more than tensors, "
                "numbers and strings and cannot be read back safely; pass checkpoint=None, or give it a plain state_dict"
            ) from error


def run_identity(
    training: Training,
    settings: Settings,
    data: ModelData,
    optimizer: Optimizer,
    scheduler: LRScheduler | None,
    state: Mapping[str, Tensor],
) -> dict[str, object]:
    """Return what a resumed run of a model, of this state, must have in common with the interrupted one."""
    random_numbers = {_NATIVE: True} if native_is_used() and all(x.device.type == "cpu" for x in state.values()) else {}
    constant = isinstance(training.beta, Constant) or not isinstance(training.beta, KLSchedule)
    return {
        "epochs": "any" if settings.scheduler is None and constant and not training.bnn.collects else settings.epochs,
        "batch_size": settings.batch_size, "samples": settings.samples, "validation_samples": settings.validation_samples,
        "seed": training.seed, "beta": repr(training.beta), "local_beta": training.local_weight,
        "learning_rate": training.learning_rate, "clip_norm": settings.clip_norm, "patience": settings.patience,
        "optimizer": _object_identity(optimizer, optimizer.defaults),
        "scheduler": _object_identity(scheduler, scheduler.state_dict() if scheduler else {}),
        **_data_identity("data", data.train), "examples of data": data.n,
        **_data_identity("validation", data.validation),
        **{name: f"{tuple(x.shape)} {x.dtype}" for name, x in state.items()},
        **random_numbers,
    }  # fmt: skip


def _data_identity(name: str, batches: Batches | None) -> dict[str, object]:
    """Return the number of examples and batches and, of data in memory or in row groups, a checksum."""
    if batches is None:
        return {f"examples of {name}": 0}
    identity: dict[str, object] = {f"examples of {name}": batches.examples, f"batches of {name}": batches.steps}
    if batches.tensors is not None:
        identity[f"checksum of {name}"] = checksum(batches.tensors.tensors)
    elif isinstance(batches, RowGroupBatches):
        identity[f"checksum of {name}"] = batches.data.fingerprint
    return identity


def _object_identity(instance: object, settings: Mapping[str, Any]) -> str:
    """Return the type of an object with those of its settings that are numbers or strings."""
    arguments = [f"{name}={value!r}" for name, value in settings.items() if isinstance(value, int | float | str)]
    return f"{type(instance).__name__}({', '.join(arguments)})"


def write(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint atomically.

    Raises:
        OSError: no such folder, no permission, disk full; an existing checkpoint is left unchanged.
    """
    try:
        with atomic_file(path) as file:
            torch.save({"format": FORMAT, **state}, file)
    except (OSError, RuntimeError) as error:  # torch.save turns some OS errors into RuntimeError
        raise OSError(
            f"the checkpoint {path} could not be written ({error}); an existing one is left unchanged. Free disk space or choose "
            "another path, then call fit again: it continues from the last checkpoint"
        ) from error


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, without executing code.

    Raises:
        CheckpointError: the file is damaged, not a checkpoint of `fit`, or of another format version.
    """
    advice = f"delete it, or {_RESTART}"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes raise almost any type, and PyTorch's message advises weights_only=False
        raise CheckpointError(path, "the file is damaged, or contains more than plain data", advice) from error
    if not isinstance(state, dict) or "format" not in state:
        raise CheckpointError(path, "the file is not a checkpoint of fit", advice)
    if state["format"] != FORMAT:
        raise CheckpointError(path, f"it has format version {state['format']}, and this version reads {FORMAT}", advice)
    return state


def read_of_run(path: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Read the checkpoint of a run.

    Raises:
        CheckpointError: as `read`, or the checkpoint has another identity.
    """
    state = read(path)
    check_identity(path, state["settings"], identity)
    return state


def check_identity(path: Path, saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Check that a checkpoint belongs to a run.

    Raises:
        CheckpointError: with the differences, and both values.
    """
    found = {}
    for name in {**saved, **current}:
        was, now = (_short(of[name]) if name in of else "not set" for of in (saved, current))
        if saved.get(name, _UNSET) != current.get(name, _UNSET):  # the first of models that are trained together stands for all
            found.setdefault(re.sub(r" of model \d+$", "", name), f"was {was} and is {now}")
    if found:
        differences = listing((f"{name} {values}" for name, values in found.items()), most=3)
        advice = f"use the same settings and data or another path, or {_RESTART}"
        if saved.get(_NATIVE) != current.get(_NATIVE):
            advice += "; native random numbers are those of bayesify[fast], unless BAYESIFY_NATIVE=0 or use_native(False)"
        raise CheckpointError(path, f"it belongs to another run ({differences})", advice)


def _short(value: object) -> str:
    """A value as text of at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def checksum(tensors: Any) -> int:
    """Return a CRC-32 of the values: the next fold of a cross-validation has the same shapes."""
    value = 0
    for tensor in tree_leaves(tensors):
        value = zlib.crc32(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data, value)
    return value
