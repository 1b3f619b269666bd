"""Passes under autocast, which keeps parameters in lower precision: also those that examine a network with other weights."""

import pytest
import torch
from torch import nn

from bayesify import (
    EMP,
    VIFO,
    VSD,
    WHVI,
    Categorical,
    Deterministic,
    MCDropout,
    MeanField,
    VariationalDropout,
    bayesify,
    elbo,
    predict,
)
from bayesify.functional import log_uniform_kl
from bayesify.native import use_native

METHODS = (VariationalDropout(), VSD(), WHVI(), EMP(), VIFO(), MeanField(), MeanField(noise="shared"), MCDropout(), Deterministic())


def network(method):
    torch.manual_seed(0)
    return bayesify(nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4)), method)


@pytest.fixture(params=[True, False], ids=["native", "composed"])
def _operators(request):
    if not request.param:
        use_native(False)


@pytest.mark.usefixtures("_operators")
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_the_first_pass_has_the_weights_of_the_network(method):
    """Outputs and gradients of the pass before which a network is examined are those of the same pass without."""
    found = []
    bnn, x = network(method), torch.randn(16, 3)
    for _ in range(2):
        bnn.zero_grad()
        torch.manual_seed(5)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            draws = bnn(x)
        (-elbo(draws, -draws.outputs.float().square().sum(-1), n=100)).backward()
        found.append([draws.outputs.detach(), *(p.grad.clone() for p in bnn.parameters())])
    for first, second in zip(*found, strict=True):
        torch.testing.assert_close(first, second)


@pytest.mark.usefixtures("_operators")
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_predictions_in_one_context(method):
    """Probabilities from outputs in bfloat16 are close to those in float32."""
    bnn, x = network(method), torch.randn(16, 3)
    expected = predict(bnn, x, Categorical(), samples=30, seed=1)
    other = network(method)  # which is examined under autocast
    with torch.autocast("cpu", dtype=torch.bfloat16):
        nn.functional.linear(x, other.net[0].weight)  # autocast keeps what it cast before, too
        found = predict(other, x, Categorical(), samples=30, seed=1)
    torch.testing.assert_close(found.probs, expected.probs, rtol=0.05, atol=0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.usefixtures("_operators")
def test_the_kl_of_gaussian_dropout_is_that_without_autocast(dtype):
    log_alpha = torch.linspace(-10, 5, 40, requires_grad=True)
    expected = log_uniform_kl(log_alpha)
    with torch.autocast("cpu", dtype=dtype):
        found = log_uniform_kl(log_alpha)
    torch.testing.assert_close(found, expected)
    for kl in (found, expected):
        log_alpha.grad = None
        kl.sum().backward()
        slope = log_alpha.grad
        torch.testing.assert_close(slope, torch.autograd.grad(log_uniform_kl(log_alpha).sum(), log_alpha)[0])
