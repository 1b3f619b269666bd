"""Two processes on one machine: gradients under DDP and per-layer FSDP2 are those of one process over the whole batch."""

import copy
import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from bayesify import (
    ECMP,
    EMP,
    VIFO,
    VSD,
    WHVI,
    Bayesian,
    DeepEnsemble,
    Deterministic,
    DropConnect,
    MeanField,
    Method,
    TensorFactorised,
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
    "WHVI, full covariance": WHVI(covariance="full", blocks="shared"),
    "TensorFactorised": TensorFactorised(),
    "EMP": EMP(where="*", components=3, learn_probabilities=True),
    "EMP, equal components": EMP(where="*", components=3, spread=0.0, tau=4.0),
    "ECMP": ECMP(components=3),
    "ECMP, equal components": ECMP(where="*", components=3, spread=0.0, tau=4.0),
    "DropConnect": DropConnect(prior_std=0.5),
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
