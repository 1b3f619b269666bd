"""One draw from the posterior as a function: `bnn.function(seed)`."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayesify import (
    ECMP,
    EMP,
    VIFO,
    VSD,
    DeepEnsemble,
    Deterministic,
    DropConnect,
    MCDropout,
    MeanField,
    Method,
    VariationalDropout,
    bayesify,
)

F64 = torch.float64
METHODS: list[Method] = [
    MeanField(initial_std=1.0),
    MeanField(noise="shared", initial_std=1.0),
    VariationalDropout(),
    VSD(hierarchical=True),
    MCDropout(p=0.5),
    DropConnect(p=0.5),
    EMP(where="*", spread=1.0),
    ECMP(where="*", spread=1.0),
    VIFO(),
    DeepEnsemble(members=3, base=MCDropout(p=0.5)),
]


def made(method: Method) -> Any:
    torch.manual_seed(0)
    return bayesify(nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2)).double(), method).eval()


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_one_function_for_all_inputs(method: Method) -> None:
    bnn, x = made(method), torch.randn(6, 3, dtype=F64)
    before = torch.get_rng_state()
    f, same, other = bnn.function(1), bnn.function(1), bnn.function(2)
    y = f(x)
    assert y.shape == (6, 2)
    torch.testing.assert_close(f(x[2:4]), y[2:4])
    torch.testing.assert_close(same(x), y)
    assert not torch.allclose(other(x), y)
    assert torch.equal(torch.get_rng_state(), before)
    bnn(x, samples=2)  # passes in between change nothing
    torch.testing.assert_close(f(x), y)


@pytest.mark.default("MeanField0", "EMP", "DeepEnsemble")
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_functions_have_the_law_of_coherent_draws(method: Method) -> None:
    bnn, x = made(method), torch.randn(2, 3, dtype=F64)
    with torch.no_grad():
        ours = torch.stack([bnn.function(seed)(x) for seed in range(1500)]).flatten(1)
        theirs = torch.cat([bnn(x, samples=15, coherent=True).outputs for _ in range(200)]).flatten(1)
    spread = theirs.std(0)
    assert bool(((ours.mean(0) - theirs.mean(0)).abs() < 6 * spread * (1 / 1500 + 1 / 3000) ** 0.5 + 1e-12).all())
    joint, reference = ours.T.cov(), theirs.T.cov()
    torch.testing.assert_close(joint, reference, rtol=0, atol=0.3 * float(reference.diagonal().max()))


def test_gradients_reach_the_inputs_alone() -> None:
    bnn = made(MeanField())
    x = torch.randn(4, 3, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(bnn.function(0), x)


def test_a_certain_net_is_its_own_function() -> None:
    bnn, x = made(Deterministic()), torch.randn(4, 3, dtype=F64)
    torch.testing.assert_close(bnn.function(0)(x), bnn.net(x))


def test_several_inputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return self.layer(x) * scale

    f = bayesify(Two(), MeanField()).function(0)
    x = torch.randn(4, 3)
    torch.testing.assert_close(f(x, scale=torch.tensor(2.0)), 2 * f(x, torch.tensor(1.0)))


@pytest.mark.parametrize("seed", [-1, 0.5, True])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="seed"):
        made(MeanField()).function(seed)
