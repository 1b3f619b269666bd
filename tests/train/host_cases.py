"""What every process of test_hosts.py runs: `python host_cases.py FOLDER CASE...` writes FOLDER/RANK.pt."""

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from bayesify import EMP, VIFO, VSD, Bayesian, MeanField, Method, bayesify, elbo
from bayesify.likelihoods import Gaussian
from bayesify.train import fit
from bayesify.train.data_loading import Order

ROWS, JOINT, EPOCHS, RATE, STD = 32, 8, 2, 0.05, 0.3
METHODS: dict[str, Method] = {
    "MeanField": MeanField(initial_std=STD),
    "VSD": VSD(),
    "EMP": EMP(where="*", components=3, prior_std=0.5),
    "VIFO": VIFO(regularizer="mean-variance"),
}
SGD = partial(torch.optim.SGD, lr=RATE)
RANDN, RANDINT = torch.randn, torch.randint


def rank_and_size() -> tuple[int, int]:
    slurm = "SLURM_NTASKS" in os.environ
    return tuple(int(os.environ[name]) for name in (("SLURM_PROCID", "SLURM_NTASKS") if slurm else ("RANK", "WORLD_SIZE")))


class Sampled(Gaussian):
    """Learned noise of the data, without the closed form of an expected log likelihood."""

    closed_form = False

    def __init__(self) -> None:
        super().__init__(learn=True)
        self.double()


class Silent(Sampled):
    """Data say nothing: what remains is the KL."""

    def log_prob(self, outputs: Any, y: Tensor) -> Tensor:
        return 0 * super().log_prob(outputs, y)


def data(rows: int = ROWS) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return x, x.sum(1)


def model(name: str) -> Bayesian:
    """With EMP, batch normalization. Its initial values are drawn also in `without_noise`: a reflection has no zero vector."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(8) if name == "EMP" else nn.Identity()
    with mock.patch.multiple(torch, randn=RANDN, randint=RANDINT):
        return bayesify(nn.Sequential(nn.Linear(3, 8), norm, nn.Tanh(), nn.Linear(8, 1)).double(), METHODS[name])


def state(bnn: Bayesian, likelihood: nn.Module) -> dict[str, Tensor]:
    return {**bnn.state_dict(), **{f"likelihood.{name}": x for name, x in likelihood.state_dict().items()}}


def without_noise(function: Callable[[], Any]) -> Any:
    """Call a function while normal draws and integers are 0: weights are their means, of EMP the first component."""

    def no_normals(*shape: Any, **options: Any) -> Tensor:
        return 0 * RANDN(*shape, **options)

    def no_integers(*bounds: Any, **options: Any) -> Tensor:
        return 0 * RANDINT(*bounds, **options)

    with mock.patch.multiple(torch, randn=no_normals, randint=no_integers):
        return function()


def reference(name: str, likelihood: Gaussian, world: int) -> dict[str, Tensor]:
    """One process: a step along the mean of the gradients of all parts of a batch, each normalized by itself as in a process."""
    bnn, (x, y) = model(name).train(), data()
    parameters = [p for p in (*bnn.parameters(), *likelihood.parameters()) if p.requires_grad]
    for epoch in range(1, EPOCHS + 1):
        orders = [Order(ROWS, JOINT // world, 0, rank, world) for rank in range(world)]
        for order in orders:
            order.epoch = epoch
        for parts in zip(*(order.indices() for order in orders), strict=True):
            for rank, part in enumerate(parts):
                buffers = {name: b.clone() for name, b in bnn.named_buffers()}
                draws = bnn(x[part])
                (-elbo(draws, likelihood.log_prob(draws.outputs, y[part]), n=ROWS) / world).backward()
                if rank:  # running statistics are those of the first process
                    bnn.load_state_dict(buffers, strict=False)
            with torch.no_grad():
                for p in parameters:
                    p.sub_(RATE * p.grad)
                    p.grad = None
    return {key: value.detach() for key, value in state(bnn, likelihood).items()}


def train(name: str, likelihood: Gaussian, **arguments: Any) -> dict[str, Tensor]:
    bnn, (_, world) = model(name), rank_and_size()
    arguments = {"epochs": EPOCHS, "batch_size": JOINT // world, "optimizer": SGD, "accelerator": "cpu", **arguments}
    fit(bnn, arguments.pop("data", data()), likelihood, **arguments)
    return state(bnn, likelihood)


def noisy_gradients(steps: int = 400) -> Tensor:
    """Gradients with respect to the mean of one weight, of rows that are all alike; their variance is that of the noise."""
    gradients = []

    class Recorder(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            gradients.append(self.param_groups[0]["params"][0].grad.flatten()[0].clone())

    bnn, rows = bayesify(nn.Linear(1, 1, bias=False).double(), MeanField(initial_std=STD)), steps * rank_and_size()[1]
    with torch.no_grad():
        next(bnn.parameters()).zero_()
    ones = torch.ones(rows, 1, dtype=torch.float64)
    fit(bnn, (ones, ones[:, 0]), Gaussian(std=1.0), epochs=1, batch_size=1, beta=0.0, optimizer=partial(Recorder, lr=0.0),
        accelerator="cpu")  # fmt: skip
    return torch.stack(gradients)


def checkpoint(folder: Path) -> dict[str, Any]:
    """Each process has a folder of its own, as on hosts without a common file system."""
    rank, _ = rank_and_size()
    own = folder / f"host{rank}"
    own.mkdir()
    records, path = [], own / "run.ckpt"
    whole = train("MeanField", Sampled(), epochs=4)
    train("MeanField", Sampled(), checkpoint=path, loggers=[records.append])
    found = {"files": [file.name for file in own.iterdir()], "records": len(records), "uninterrupted": whole}
    found["resumed"] = train("MeanField", Sampled(), checkpoint=path, epochs=4)
    other = own / ("absent.ckpt" if rank == 0 else "present.ckpt")
    if rank:
        other.touch()
    shared = folder / "shared.ckpt"
    without_noise(lambda: train("MeanField", Sampled(), checkpoint=shared, epochs=1))
    return {**found, "elsewhere": _message(checkpoint=other), "one epoch": shared.read_bytes()}


def elastic(folder: Path) -> dict[str, Any]:
    """Each process kills itself once, in the middle of an epoch; a run that nothing interrupts follows."""
    own = folder / f"killed{rank_and_size()[0]}"
    starts = folder / f"starts{rank_and_size()[0]}.txt"
    with starts.open("a") as file:
        file.write("start\n")

    class Dying(torch.optim.Adam):
        steps = 0

        def step(self, closure: Any = None) -> Any:
            Dying.steps += 1
            if Dying.steps == 6 + 4 * rank_and_size()[0] and not own.exists():
                own.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().step(closure)

    arguments: dict[str, Any] = {"epochs": 5, "optimizer": partial(Dying, lr=0.01), "validation": data()}
    found = {name: train(name, Sampled(), **arguments, checkpoint=folder / f"{name}.ckpt") for name in METHODS}
    arguments["optimizer"] = partial(torch.optim.Adam, lr=0.01)
    standard = {name: train(name, Sampled(), **arguments) for name in METHODS}
    return {"resumed": found, "uninterrupted": standard, "starts": starts.read_text().count("start")}


def _message(**arguments: Any) -> str:
    try:
        train("MeanField", Sampled(), **arguments)
    except Exception as error:  # noqa: BLE001 - the test reads it
        return f"{type(error).__name__}: {error}"
    return "trained"


def differences() -> dict[str, str]:
    """Messages where process 1 differs from the others."""
    from bayesify.train import single_model

    differs = rank_and_size()[0] == 1
    x, y = data()
    found = {
        "settings": _message(clip_norm=2.0 if differs else 1.0),
        "data": _message(data=(x + differs, y)),
        "bad data": _message(data=(x / (1 - differs), y)),
        "rows": _message(data=(x[: 16 if differs else 32], y[: 16 if differs else 32])),
    }
    seed, torch.manual_seed = torch.manual_seed, lambda value: seed(value + differs)
    found["weights"] = _message()
    torch.manual_seed, versions = seed, single_model.versions
    if differs:
        single_model.versions = lambda: {**versions(), "bayesify": "0.0.1"}
    found["versions"] = _message()
    single_model.versions = versions
    found["nothing"] = _message()
    return found


def main(folder: Path, *cases: str) -> None:
    found: dict[str, Any] = {}
    if "trajectories" in cases:
        found["kl"] = {name: train(name, Silent()) for name in METHODS}
        found["data"] = {name: without_noise(lambda name=name: train(name, Sampled())) for name in METHODS}
    if "noise" in cases:
        found["gradients"] = noisy_gradients()
    if "checkpoint" in cases:
        found["checkpoint"] = checkpoint(folder)
    if "differences" in cases:
        found["differences"] = differences()
    if "elastic" in cases:
        found["elastic"] = elastic(folder)
    rank, world = rank_and_size()
    assert torch.distributed.get_world_size() == world
    torch.save(found, folder / f"{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
