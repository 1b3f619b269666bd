"""Two processes on one machine: gradients under DDP and per-layer FSDP2 are those of one process over the whole batch."""

import copy
import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from bayesify import (
    ECMP,
    ELRG,
    EMP,
    IVON,
    SLANG,
    SWAG,
    VIFO,
    VMG,
    VOGN,
    VSD,
    WHVI,
    BatchEnsemble,
    Bayesian,
    Categorical,
    ConcreteDropout,
    DeepEnsemble,
    Deterministic,
    DropConnect,
    MeanField,
    Method,
    NoisyAdam,
    NoisyKFAC,
    Radial,
    Rank1,
    StaleFunctionError,
    TensorFactorized,
    VariationalDropout,
    bayesify,
    elbo,
)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")]

_RANKS, _N = 2, 50
_METHODS: dict[str, Method | dict[str, Method]] = {
    "Deterministic": Deterministic(prior_std=0.5),
    "MeanField": MeanField(prior_std=0.5),
    "MeanField, shared noise": MeanField(noise="shared", prior_std=0.5),
    "MeanField, pretrained prior": MeanField(prior_mean="pretrained"),
    "VariationalDropout": VariationalDropout(),
    "WHVI": WHVI(),
    "WHVI, full covariance": WHVI(covariance="full", blocks="tied"),
    "TensorFactorized": TensorFactorized(),
    "ELRG": ELRG(),
    "IVON": IVON(),
    "VOGN": VOGN(),
    "NoisyAdam": NoisyAdam(),
    "NoisyKFAC": NoisyKFAC(),
    "SLANG": SLANG(),
    "VMG": VMG(),
    "Radial": Radial(),
    "Rank1": Rank1(),
    "BatchEnsemble": BatchEnsemble(),
    "ConcreteDropout": ConcreteDropout(),
    "EMP": EMP(where="*", components=3, learn_probabilities=True),
    "EMP, equal components": EMP(where="*", components=3, spread=0.0, prior_std=0.5),
    "ECMP": ECMP(components=3),
    "ECMP, equal components": ECMP(where="*", components=3, spread=0.0, prior_std=0.5),
    "DropConnect": DropConnect(prior_std=0.5),
    "SWAG": SWAG(start=0.0, rank=2, prior_std=0.5),
    "VSD": VSD(),
    "VSD, hierarchical": VSD(transforms=3, rank=None, hierarchical=True, conv_noise="input"),
    "VIFO": VIFO(regularizer="mean-variance"),
    "DeepEnsemble": DeepEnsemble(members=2),
    "some layers": {"0": MeanField(), "5": Deterministic(prior_std=2.0)},
}


def _bnn(name: str) -> Bayesian:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(2, 4, 2), nn.LayerNorm(3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 8), nn.Linear(8, 1))
    return bayesify(net.double(), _METHODS[name])


def _data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(8, 2, 4, dtype=torch.float64, generator=generator),
        torch.randn(8, 1, dtype=torch.float64, generator=generator),
    )


def _loss(root: nn.Module, x: Tensor, y: Tensor, data: bool = True) -> Tensor:
    draws = root(x, samples=2)
    log_prob = -(draws.outputs - y).square().sum(-1)
    return -elbo(draws, log_prob if data else 0 * log_prob, n=_N)


def _ddp(bnn: Bayesian) -> nn.Module:
    return nn.parallel.DistributedDataParallel(bnn)


def _fsdp(bnn: Bayesian, layers: bool = True) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (_RANKS,))
    if layers:
        for _, site in bnn.random_layers():
            fully_shard(site, mesh=mesh)
    fully_shard(bnn, mesh=mesh)
    return bnn


_WRAPPERS: dict[str, Callable[[Bayesian], nn.Module]] = {
    "DDP": _ddp,
    "FSDP2": _fsdp,
    "FSDP2, in one piece": functools.partial(_fsdp, layers=False),
}


def _full(value: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    return value.full_tensor() if isinstance(value, DTensor) else value


def _work(rank: int, folder: str, wrapper: str) -> None:
    """One process: the gradients of every method, on this rank's half of the data."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/{wrapper}", rank=rank, world_size=_RANKS)
    try:
        rows = slice(rank * 4, rank * 4 + 4)
        x, y = (part[rows] for part in _data())
        results = {}
        for name in _METHODS:
            for data in (False, True):
                root = _WRAPPERS[wrapper](_bnn(name))
                torch.manual_seed(3 + rank)
                for _ in range(2):  # two steps: a parameter without gradient makes DDP complain in the second
                    root.zero_grad()
                    loss = _loss(root, x, y, data)
                    loss.backward()
                gradients = {key.removeprefix("module."): p.grad for key, p in root.named_parameters()}
                results[name, data] = {key: None if g is None else _full(g) for key, g in gradients.items()}
        if rank == 0:
            torch.save(results, Path(folder) / f"{wrapper}.pt")
    finally:
        dist.destroy_process_group()


@functools.cache
def _gradients(wrapper: str) -> dict[tuple[str, bool], dict[str, Tensor | None]]:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_work, args=(folder, wrapper), nprocs=_RANKS)
        return torch.load(Path(folder) / f"{wrapper}.pt")


def _reference(name: str, data: bool) -> dict[str, Tensor]:
    bnn = copy.deepcopy(_bnn(name))
    _loss(bnn, *_data(), data).backward()
    return {key: p.grad for key, p in bnn.named_parameters()}


@pytest.mark.parametrize("name", _METHODS)
@pytest.mark.parametrize("wrapper", _WRAPPERS)
def test_kl_gradients_are_those_of_one_process(wrapper, name):
    found, expected = _gradients(wrapper)[name, False], _reference(name, False)
    assert found.keys() == expected.keys()
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-10, atol=1e-12, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("name", _METHODS)
@pytest.mark.parametrize("wrapper", _WRAPPERS)
def test_every_parameter_is_used(wrapper, name):
    for key, gradient in _gradients(wrapper)[name, True].items():
        assert gradient is not None, key
        assert 0 < gradient.abs().sum() < torch.inf, key


@pytest.mark.parametrize("wrapper", _WRAPPERS)
def test_gradients_are_those_of_the_whole_batch(wrapper):
    """Without noise the average over ranks is exact."""
    found, expected = _gradients(wrapper)["Deterministic", True], _reference("Deterministic", True)
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-10, atol=1e-12, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("name", ["EMP, equal components", "ECMP, equal components"])
@pytest.mark.parametrize("wrapper", _WRAPPERS)
def test_gradients_of_the_components_add_up_to_those_of_the_whole_batch(wrapper, name):
    """Equal components are one weight, whichever of them each process draws."""
    found, expected = _gradients(wrapper)[name, True], _reference("Deterministic", True)
    for key, gradient in expected.items():
        layer, kind = key.rsplit(".", 1)
        total = found[f"{layer}.posterior.{kind}"].sum(0)
        torch.testing.assert_close(total, gradient, rtol=1e-10, atol=1e-12, msg=lambda text, key=key: f"{key}: {text}")


# Loops, noise and functions of two processes that are seeded alike


def _readme_loop(rank: int) -> dict[str, float]:
    """How far each parameter of an ensemble has moved in the README's loop, with one draw per step."""
    torch.manual_seed(0)
    bnn = bayesify(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)), DeepEnsemble(members=3, base=MeanField()))
    before = copy.deepcopy(dict(bnn.named_parameters()))
    root, likelihood = nn.parallel.DistributedDataParallel(bnn), Categorical()
    x, y = torch.randn(60, 2), torch.randint(0, 3, (60,))
    x, y = x[rank::_RANKS], y[rank::_RANKS]
    optimizer = torch.optim.Adam(root.parameters(), lr=1e-3)
    for _ in range(10):
        optimizer.zero_grad()
        draws = root(x)
        (-elbo(draws, likelihood.log_prob(draws.outputs, y), n=60)).backward()
        optimizer.step()
    return {name: float((p - before[name]).detach().abs().max()) for name, p in bnn.named_parameters()}


_NOISY: dict[str, Method] = {
    "MeanField": MeanField(initial_std=1.0),
    "shared noise": MeanField(noise="shared", initial_std=1.0),
    "EMP": ECMP(where="*", components=5, spread=1.0),
    "VIFO": VIFO(),
    "ensemble": DeepEnsemble(members=2, base=MeanField(initial_std=1.0)),
}


def _noise(training: bool) -> dict[str, Tensor]:
    """Outputs of equal inputs, and what the process draws next from its own generator."""
    results = {}
    for name, method in _NOISY.items():
        torch.manual_seed(0)
        bnn = bayesify(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double(), method).train(training)
        x = torch.randn(5, 4, dtype=torch.float64)
        bnn(x, samples=2)
        results[name] = bnn(x, samples=2).outputs.detach()
        results[f"{name}, next"] = torch.rand(3)
    return results


def _functions() -> dict[str, list[Tensor]]:
    """One function drawn from a network in shards, at inputs that all processes have."""
    results = {}
    for name in ("MeanField", "WHVI", "EMP", "VSD, hierarchical", "some layers"):
        x = _data()[0]
        for layers in (True, False):
            root: Any = _fsdp(_bnn(name), layers).eval()
            f, x = root.function(0), x.detach().requires_grad_()
            y = f(x)
            (gradient,) = torch.autograd.grad(f(x).sum(), x)
            root(x, samples=2)  # FSDP wants its first pass from the root
            results[f"{name}, {layers}"] = [y.detach(), f(x).detach(), root.function(1)(x).detach(), gradient]
            with torch.no_grad():
                next(root.parameters()).mul_(0.9)
            try:
                f(x)
            except StaleFunctionError:
                results[f"{name}, {layers}"].append(torch.tensor(True))
    return results


class _Reading(nn.Module):
    """Computes with the weight of a layer, so that every draw takes a separate pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(nn.functional.linear(x.flatten(1), self.first.weight, self.first.bias).tanh())


def _separate(rank: int | None) -> dict[str, Tensor | None]:
    """Gradients of three draws in a pass each, of nearly no noise, in the second step; None for one process and all rows."""
    torch.manual_seed(0)
    bnn = bayesify(_Reading().double(), MeanField(initial_std=1e-14))
    root = bnn if rank is None else nn.parallel.DistributedDataParallel(bnn)
    x, y = _data() if rank is None else (part[rank * 4 : rank * 4 + 4] for part in _data())
    for _ in range(2):
        root.zero_grad()
        draws = root(x, samples=3)
        (-elbo(draws, -(draws.outputs - y).square().sum(-1), n=_N)).backward()
    assert any(finding.startswith("every draw takes a separate pass") for finding in bnn.findings)
    return {name: p.grad for name, p in bnn.named_parameters()}


def _seeded_alike(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/alike", rank=rank, world_size=_RANKS)
    try:
        found = {"loop": _readme_loop(rank), "training": _noise(True), "evaluation": _noise(False), "functions": _functions()}
        found["separate"] = _separate(rank)
        torch.save(found, Path(folder) / f"alike{rank}.pt")
    finally:
        dist.destroy_process_group()


@functools.cache
def _found() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_seeded_alike, args=(folder,), nprocs=_RANKS)
        return [torch.load(Path(folder) / f"alike{rank}.pt") for rank in range(_RANKS)]


def test_the_readmes_loop_trains_every_member_on_every_process():
    first, second = (found["loop"] for found in _found())
    assert first == second, "members stay equal on all processes"
    assert all(1e-3 < moved <= 0.011 for moved in first.values()), first


def test_gradients_of_separate_passes_are_those_of_one_process():
    expected = _separate(None)
    for found in _found():
        assert found["separate"].keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(found["separate"][name], gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", _NOISY)
def test_processes_that_are_seeded_alike_draw_noise_of_their_own_in_training(name):
    first, second = (found["training"] for found in _found())
    assert not torch.isclose(first[name], second[name]).any()
    assert torch.equal(first[f"{name}, next"], second[f"{name}, next"]), "what else is drawn stays in step"
    first, second = (found["evaluation"] for found in _found())
    assert torch.equal(first[name], second[name]), "in eval mode seeds decide"


@pytest.mark.parametrize("layers", [True, False], ids=["layer by layer", "in one piece"])
@pytest.mark.parametrize("name", ["MeanField", "WHVI", "EMP", "VSD, hierarchical", "some layers"])
def test_functions_of_networks_in_shards(name, layers):
    first, second = (found["functions"][f"{name}, {layers}"] for found in _found())
    bnn, x = _bnn(name).eval(), _data()[0].requires_grad_()
    f = bnn.function(0)
    (gradient,) = torch.autograd.grad(f(x).sum(), x)
    expected = [f(x).detach(), f(x).detach(), bnn.function(1)(x).detach(), gradient, torch.tensor(True)]
    for found in (first, second):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(first[0], first[2])
