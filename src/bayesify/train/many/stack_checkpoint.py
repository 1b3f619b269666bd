"""Checkpoints of models that are trained together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesify.train.arguments import Settings, Training
from bayesify.train.checkpoint import check_identity, read, run_identity, write
from bayesify.train.history import History
from bayesify.train.model_data import ModelData

if TYPE_CHECKING:
    from bayesify.train.many.loop import Loop

__all__ = ["StackCheckpoint", "part_of"]

_SECONDS = 10.0  # between two checkpoints: those of small models would cost more than their epochs


def part_of(checkpoint: Path | None, models: Sequence[int]) -> Path | None:
    """Return the file of models that are trained together: that of a group with the first model has the name itself."""
    if checkpoint is None or (len(models) > 1 and 0 in models):
        return checkpoint
    numbers = dict.fromkeys((min(models), max(models)))
    return checkpoint.with_name(f"{checkpoint.name}.{'-'.join(map(str, numbers))}")


class StackCheckpoint:
    """A file for the state of a training loop of stacked models; random numbers depend on seeds and epoch alone.

    Args:
        path: the file.
        loop: with its models as they are before training.
        trainings, data, settings: of the loop.
    """

    def __init__(
        self, path: Path, loop: Loop, trainings: Sequence[Training], data: Sequence[ModelData], settings: Settings
    ) -> None:
        self.path, self.loop, self.settings, self.written = path, loop, settings, time.monotonic()
        optimizers, stack = loop.optimizers, loop.stack
        self.identity: dict[str, Any] = {"models": len(trainings)}
        for model, (training, part) in enumerate(zip(trainings, data, strict=True)):
            identity = run_identity(training, settings, part, *optimizers.of(model), stack.state_of(model))
            self.identity |= {f"{name} of model {model}": value for name, value in identity.items()}

    def resume_or_start(self, resume: bool) -> int:
        """Restore the state if the file exists, or write the first one; return the number of epochs done.

        Raises:
            CheckpointError: the file is damaged or belongs to another run.
            OSError: the file cannot be written.
        """
        if not (resume and self.path.exists()):
            self.write()
            return 0
        state, loop = read(self.path), self.loop
        check_identity(self.path, state["settings"], self.identity)
        stack = loop.stack
        for name, value in state["stack"].items():
            (stack.parameters | stack.state)[name].copy_(value)
        loop.optimizers.load_state_dicts(state["optimizers"])
        loop.histories[:] = [History(**history) for history in state["histories"]]
        loop.best[:] = state["best"]
        for model, written in state["done"].items():
            stack.write_back(model, written)
            if loop.histories[model].failure is not None or loop.histories[model].stopped_early:
                loop.running.discard(model)
        epochs = max(map(len, loop.histories))
        if epochs >= self.settings.epochs:
            loop.running.clear()
        return epochs

    def write_if_due(self) -> None:
        """Write the file if the last one is old, or training is over."""
        if not self.loop.running or time.monotonic() - self.written >= _SECONDS:
            self.write()

    def write(self) -> None:
        """Write the file; errors as in `bayesify.train.checkpoint.write`."""
        loop, stack = self.loop, self.loop.stack
        done = set(range(len(loop.histories))) - loop.running
        state = {
            "settings": self.identity,
            "stack": stack.parameters | stack.state,
            "optimizers": loop.optimizers.state_dicts(),
            "histories": [history.to_dict() for history in loop.histories],
            "best": loop.best,
            "done": {model: stack.modules_of(model) for model in sorted(done)},
        }
        write(self.path, state)
        self.written = time.monotonic()
