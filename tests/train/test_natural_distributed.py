"""Two processes with the optimizer of a method: statistics of single examples are averaged like gradients."""

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from bayesify import SLANG, VOGN, Bayesian, Gaussian, NoisyKFAC, bayesify, elbo

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")]


_METHODS = {"VOGN": VOGN(hessian_rate=0.3), "NoisyKFAC": NoisyKFAC(fisher_rate=0.3), "SLANG": SLANG(rank=3, hessian_rate=0.3)}


def _train(method: Any, x: Tensor, y: Tensor, parallel: bool) -> dict[str, Tensor]:
    """Three steps without noise in the weights, so that the average over processes is exact."""
    torch.manual_seed(0)
    bnn: Bayesian = bayesify(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double(), method)
    for _, layer in bnn.random_layers():
        layer.posterior.sample = lambda layer, samples: (
            (layer.weight + 0 * sum(p.sum() for p in layer.posterior.parameters())).unsqueeze(0),
            layer.bias.unsqueeze(0),
        )
    root, likelihood = nn.parallel.DistributedDataParallel(bnn) if parallel else bnn, Gaussian(std=0.5).double()
    optimizer = bnn.optimizer(likelihood, learning_rate=0.1)
    for _ in range(3):
        draws = root(x)
        (-elbo(draws, likelihood.log_prob(draws.outputs, y), n=12)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.detach() for name, value in bnn.state_dict().items()}


def _data() -> tuple[Tensor, Tensor]:
    x = torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return x, x.sum(1, keepdim=True)


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    try:
        x, y = (part[rank * 6 : rank * 6 + 6] for part in _data())
        states = {name: _train(method, x, y, True) for name, method in _METHODS.items()}
        torch.save(states, Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


@functools.cache
def _found() -> list[dict[str, dict[str, Tensor]]]:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_work, args=(folder,), nprocs=2)
        return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", [*_METHODS])
def test_processes_have_equal_posteriors(name: str) -> None:
    torch.testing.assert_close(_found()[0][name], _found()[1][name], rtol=0, atol=0)


def test_gradients_of_examples_are_those_of_the_whole_batch() -> None:
    torch.testing.assert_close(_found()[0]["VOGN"], _train(_METHODS["VOGN"], *_data(), False), rtol=1e-10, atol=1e-12)
    found, whole = _found()[0]["SLANG"], _train(_METHODS["SLANG"], *_data(), False)
    assert found.keys() == whole.keys()
    for name, value in found.items():
        if name.endswith("factor"):  # its columns have no order or sign
            torch.testing.assert_close(value @ value.mT, whole[name] @ whole[name].mT, rtol=1e-8, atol=1e-10)
        else:
            torch.testing.assert_close(value, whole[name], rtol=1e-8, atol=1e-10)
