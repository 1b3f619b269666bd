"""What every process of test_shards.py runs: `python shard_cases.py FOLDER CASE...` writes FOLDER/RANK.pt."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "contract"))
from contract_methods import METHODS as CHECKED
from host_cases import EPOCHS, JOINT, METHODS, SGD, STD, Sampled, Silent, data, rank_and_size, state, train, without_noise

from bayesify import DVI, DeepEnsemble, MeanField, RepulsiveEnsemble, bayesify
from bayesify.train import fit

FSDP: dict[str, Any] = {"strategy": "fsdp"}
ADAM: dict[str, Any] = {**FSDP, "optimizer": None, "learning_rate": 0.01, "validation": data(20), "epochs": 4,
                        "scheduler": partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.9)}  # fmt: skip


# One method of every type; the KL of some is estimated with noise.
REGISTRY = {
    **{type(method).__name__: (method, references.noisy_kl) for method, references in reversed(CHECKED)},
    **{type(method).__name__: (method, False) for method in (DVI(), DeepEnsemble(members=2), RepulsiveEnsemble(members=2))},
}


class StopError(Exception):
    pass


class Stopping(torch.optim.Adam):
    """Adam that stops before step 10, in the third epoch."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        if self.steps == 10:
            raise StopError
        return super().step(closure)


Stopping.__name__ = "Adam"


def trajectories() -> dict[str, Any]:
    found: dict[str, Any] = {"kl": {}, "data": {}, "more": {}, "as ddp": {}}
    for name in METHODS:
        found["kl"][name] = train(name, Silent(), **FSDP)
        found["data"][name] = without_noise(lambda name=name: train(name, Sampled(), **FSDP))
        more = {"clip_norm": 0.1, "accumulate": 2, "validation": data(20), "optimizer": None}
        found["more"][name] = train(name, Sampled(), **FSDP, **more)
        found["as ddp"][name] = train(name, Sampled(), **more)
    return found


def _outcome(method: Any, strategy: str) -> dict[str, Tensor] | str:
    torch.manual_seed(0)
    try:
        bnn = bayesify(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)).double(), method)
        likelihood, (x, y) = Silent(), data()
        fit(bnn, (x, y), likelihood, epochs=1, batch_size=8, optimizer=None if bnn.has_optimizer else SGD, accelerator="cpu",
            strategy=strategy)  # fmt: skip
    except Exception as error:  # noqa: BLE001 - the test reads it
        return f"{type(error).__name__}: {error}"
    return state(bnn, likelihood)


def registry() -> dict[str, tuple[Any, Any]]:
    return {name: (_outcome(method, "fsdp"), _outcome(method, "ddp")) for name, (method, _) in REGISTRY.items()}


def shares() -> list[float]:
    """Shares of the elements of parameters, gradients and Adam's moments that this process holds."""
    found: list[float] = []

    class Measuring(torch.optim.Adam):
        def step(self, closure: Any = None) -> Any:
            result, parameters = super().step(closure), self.param_groups[0]["params"]
            moments = [m for p in parameters for m in self.state[p].values() if m.dim()]
            for tensors in (parameters, [p.grad for p in parameters], moments):
                assert all(isinstance(x, DTensor) for x in tensors)
                found.append(sum(x.to_local().numel() for x in tensors) / sum(x.numel() for x in tensors))
            return result

    bnn = bayesify(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)).double(), MeanField(initial_std=STD))
    x = torch.randn(8, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    fit(bnn, (x, x), Sampled(), epochs=1, batch_size=4, optimizer=partial(Measuring, lr=0.01), accelerator="cpu", **FSDP)
    assert not any(isinstance(p, DTensor) for p in bnn.parameters())
    return found


def _message(**arguments: Any) -> str:
    try:
        train("VSD", Sampled(), **arguments)
    except Exception as error:  # noqa: BLE001 - the test reads it
        return f"{type(error).__name__}: {error}"
    return "trained"


def checkpoint(folder: Path) -> dict[str, Any]:
    from bayesify.train import sharded_checkpoint

    found: dict[str, Any] = {"resumed": {}, "uninterrupted": {}}
    for name in ("VSD", "EMP"):
        path = folder / name
        found["uninterrupted"][name] = train(name, Sampled(), **ADAM)
        stopped = {**ADAM, "optimizer": partial(Stopping, lr=0.01, fused=True)}
        try:
            train(name, Sampled(), **stopped, checkpoint=path)
        except StopError:
            (path / "epoch9-half").mkdir(exist_ok=True)  # what a killed process leaves
        found["resumed"][name] = train(name, Sampled(), **ADAM, checkpoint=path)
    save, rank = sharded_checkpoint.save, rank_and_size()[0]

    def full(tensors: Any, checkpoint_id: Path) -> None:
        save(tensors, checkpoint_id=checkpoint_id)
        if rank == 1 and "epoch5-" in checkpoint_id.name:
            raise OSError(28, "No space left on device")

    sharded_checkpoint.save = full
    longer = {**ADAM, "scheduler": None}
    train("VSD", Sampled(), **longer, checkpoint=folder / "longer")
    found["full disk"] = _message(**{**longer, "epochs": 6}, checkpoint=folder / "longer")
    sharded_checkpoint.save = save
    found["after it"] = train("VSD", Sampled(), **{**longer, "epochs": 6}, checkpoint=folder / "longer")
    found["six epochs"] = train("VSD", Sampled(), **{**longer, "epochs": 6})
    torch.distributed.barrier()
    if rank == 0:
        next((folder / "VSD").glob("epoch4-*/*.distcp")).unlink()
    torch.distributed.barrier()
    found["damaged"] = _message(**ADAM, checkpoint=folder / "VSD")
    found["of ddp"] = _message(**{**ADAM, "strategy": "ddp"}, checkpoint=folder / "VSD")
    return found


def main(folder: Path, *cases: str) -> None:
    functions = {"trajectories": trajectories, "registry": registry, "shares": shares, "checkpoint": partial(checkpoint, folder)}
    found: dict[str, Any] = {name: functions[name]() for name in cases if name in functions}
    if "one epoch" in cases:
        without_noise(lambda: train("VSD", Sampled(), **FSDP, epochs=1, checkpoint=folder / "shared"))
    if "all epochs" in cases:
        found["continued"] = without_noise(lambda: train("VSD", Sampled(), **FSDP, epochs=EPOCHS, checkpoint=folder / "shared"))
    torch.save(found, folder / f"{rank_and_size()[0]}.pt")


if __name__ == "__main__":
    assert JOINT % rank_and_size()[1] == 0
    main(Path(sys.argv[1]), *sys.argv[2:])
