"""Checkpoints of training in shards: a folder, to which every process writes its part (`torch.distributed.checkpoint`).

`run.pt` has everything but tensors, and names the folder with these. It is replaced once that folder is complete, so a half-written
one is never read. Another number of processes can read the parts.
"""

from __future__ import annotations

import dataclasses
import shutil
import uuid
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from bayesify.errors import CheckpointError, ConfigurationError
from bayesify.train.agreement import by_first_process, exists_for_first_process, raised_everywhere
from bayesify.train.checkpoint import TrainingState, read_of_run, write

__all__ = ["ShardedState"]

_INDEX = "run.pt"


@dataclasses.dataclass
class ShardedState(TrainingState):
    """State of a training run whose `module` and `optimizer` are sharded; every method is called by all processes."""

    def exists(self, path: Path) -> bool:
        if path.is_file():
            raise CheckpointError(path, "it is a file, of a run without strategy='fsdp'", "give a folder, or another strategy")
        return exists_for_first_process(self.fabric, path / _INDEX)

    def start(self, path: Path, identity: dict[str, Any]) -> None:
        self.save(path, identity)

    def save(self, path: Path, identity: dict[str, Any]) -> None:
        name = by_first_process(self.fabric, lambda: self._new_folder(path))
        with raised_everywhere(self.fabric):
            if not path.is_dir():
                raise ConfigurationError(f"checkpoint={str(path)!r} is not there on this host; use a folder that all hosts share")
            try:
                save(self._tensors(bool(self.optimizer.state), self.best is not None), checkpoint_id=path / name)
            except CheckpointException as error:
                raise OSError(f"the checkpoint {path} could not be written ({error}); an existing one is unchanged") from error
        by_first_process(self.fabric, lambda: self._finish(path, name, identity))

    def resume(self, path: Path, identity: dict[str, Any]) -> None:
        content = by_first_process(self.fabric, lambda: read_of_run(path / _INDEX, identity))
        tensors = self._tensors(content["optimizer"], content["best"])
        with raised_everywhere(self.fabric):
            try:
                load(tensors, checkpoint_id=path / content["shards"])
            except CheckpointException as error:
                advice = "use a folder that all hosts share, or pass resume=False to start afresh"
                raise CheckpointError(path, f"parts of it are missing or damaged ({error})", advice) from error
        self.module.load_state_dict(tensors["module"])
        if content["optimizer"]:
            set_optimizer_state_dict(self.module, self.optimizer, tensors["optimizer"])
        self.best = tensors.get("best")
        self.restore_rest(content)

    def _new_folder(self, path: Path) -> str:
        path.mkdir(parents=False, exist_ok=True)
        return f"epoch{len(self.history)}-{uuid.uuid4().hex[:8]}"

    def _finish(self, path: Path, name: str, identity: dict[str, Any]) -> None:
        kept = {"shards": name, "optimizer": bool(self.optimizer.state), "best": self.best is not None}
        write(path / _INDEX, {**self.rest(identity), **kept})
        for other in path.glob("epoch*-*"):
            if other.name != name:
                shutil.rmtree(other)

    def _tensors(self, optimizer: bool, best: bool) -> dict[str, Any]:
        """Return the tensors to save, or to be replaced by saved ones; of an optimizer that has taken no step, there are none."""
        tensors: dict[str, Any] = {"module": self.module.state_dict()}
        if optimizer:
            tensors["optimizer"] = get_optimizer_state_dict(self.module, self.optimizer)
        if best:
            tensors["best"] = self.best or {name: x.clone() for name, x in tensors["module"].items()}
        return tensors
