"""A linear layer with local reparameterization as one node: values and gradients of the formulas, in float64."""

from typing import Any

import pytest
import torch
from torch import nn

from bayesify import MeanField, bayesify
from bayesify.native import switch
from bayesify.native.local_linear import local_linear, runs_as_one_node

pytest.importorskip("numba", reason="the native operators need bayesify[fast]")

F32, F64 = torch.float32, torch.float64
PRIOR_STD = 0.4


@pytest.fixture(autouse=True)
def _native(monkeypatch):
    monkeypatch.setitem(switch.LIBRARIES, "cpu", "numba")
    torch.manual_seed(0)


def _arguments(bias, dtype=F64, shape=(3,), n_in=4, n_out=2):
    """Input, noise, parameters (means, then log standard deviations) and the prior's means."""
    shapes = [(n_out, n_in), (n_out,)][: 1 + bias]
    x = torch.randn(*shape, n_in, dtype=dtype)
    x[0] = 0  # no variance without a bias
    parameters = [torch.randn(size, dtype=dtype).mul(0.5).requires_grad_() for size in shapes * 2]
    return (
        x.requires_grad_(),
        torch.randn(*shape, n_out, dtype=dtype),
        parameters,
        [None, torch.randn(n_out, dtype=dtype)][: 1 + bias],
    )


def _run(x, eps, parameters, centers):
    count = len(centers)
    return local_linear(x, eps.clone(), parameters[:count], parameters[count:], centers, PRIOR_STD)


def _reference(x, eps, parameters, centers):
    """By a loop over outputs, and the KL of `torch.distributions`."""
    count = len(centers)
    stds = [log_std.exp() for log_std in parameters[count:]]
    outputs = []
    for j in range(len(parameters[0])):
        mean, variance = x @ parameters[0][j], x**2 @ stds[0][j] ** 2
        if count > 1:
            mean, variance = mean + parameters[1][j], variance + stds[1][j] ** 2
        is_random = variance > 0
        outputs.append(mean + torch.where(is_random, torch.where(is_random, variance, 1.0).sqrt() * eps[..., j], 0.0))
    kl = torch.zeros((), dtype=x.dtype)
    for mean, std, center in zip(parameters[:count], stds, centers, strict=True):
        prior = torch.distributions.Normal(torch.zeros_like(mean) if center is None else center, PRIOR_STD)
        kl = kl + torch.distributions.kl_divergence(torch.distributions.Normal(mean, std), prior).sum()
    return torch.stack(outputs, -1), kl


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (200,)])
@pytest.mark.parametrize("dtype", [F64, F32])
def test_values_and_gradients(bias, shape, dtype):
    arguments = _arguments(bias, dtype, shape, *((60, 300) if shape == (200,) else (4, 2)))
    x, eps, parameters, centers = arguments
    wide = [t.detach().double().requires_grad_() for t in (x, *parameters)]
    found = _run(*arguments)
    expected = _reference(wide[0], eps.double(), wide[1:], [None if c is None else c.double() for c in centers])
    upstream = torch.randn(found[0].shape, dtype=dtype)

    def loss(y, kl):
        return (y.sin() * upstream).sum() + 0.7 * kl

    values = [*found, *torch.autograd.grad(loss(*found), [x, *parameters])]
    references = [*expected, *torch.autograd.grad(loss(*expected), wide)]
    for value, reference in zip(values, references, strict=True):
        assert value.dtype == dtype
        scale = reference.detach().abs().max()
        torch.testing.assert_close(value.double() / scale, reference / scale, rtol=0, atol=1e-4 if dtype == F32 else 1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [(0,), (1,), (0, 1)])
def test_gradients_and_their_gradients(bias, outputs):
    x, eps, parameters, centers = _arguments(bias)
    x = torch.randn_like(x).requires_grad_()

    def run(x, *parameters):
        values = _run(x, eps, parameters, centers)
        return tuple(values[i] for i in outputs)

    assert torch.autograd.gradcheck(run, (x, *parameters))
    assert torch.autograd.gradgradcheck(run, (x, *parameters))


def test_only_what_needs_gradients():
    x, eps, parameters, centers = _arguments(True)
    y, kl = _run(x.detach(), eps, parameters, centers)
    expected = torch.autograd.grad(y.sum() + kl, parameters)  # the gradient of a sum is a broadcast number
    y, kl = _run(x, eps, parameters, centers)
    by_x, *found = torch.autograd.grad(y.sum() + kl, [x, *parameters])
    assert all(map(torch.equal, found, expected))
    frozen = [p.detach() for p in parameters]
    torch.testing.assert_close(torch.autograd.grad(_run(x, eps, frozen, centers)[0].sum(), x)[0], by_x)
    with torch.no_grad():
        assert not _run(x, eps, parameters, centers)[0].requires_grad


def test_when_one_node_is_used():
    x, _, parameters, _ = _arguments(True, F32)
    means, log_stds = parameters[:2], parameters[2:]
    assert runs_as_one_node(x, means, log_stds)
    assert not runs_as_one_node(x.double(), means, log_stds)
    assert not runs_as_one_node(x[0], means, log_stds)
    assert not runs_as_one_node(x.mT.contiguous().mT, means, log_stds)
    assert not runs_as_one_node(x, means, [s.detach() for s in log_stds])
    with torch.autocast("cpu", torch.bfloat16):
        assert not runs_as_one_node(x, means, log_stds)


def test_outputs_of_layers_have_their_moments():
    bnn = bayesify(nn.Linear(3, 2).double(), MeanField(initial_std=0.5))
    x = torch.randn(1, 3, dtype=F64)
    with torch.no_grad():
        outputs = bnn(x.repeat(200_000, 1)).outputs[0]
    layer: Any = bnn.net
    variance = (x**2 @ (2 * layer.posterior.weight_log_std).exp().T + (2 * layer.posterior.bias_log_std).exp())[0].detach()
    mean = (x @ layer.weight.T + layer.bias)[0].detach()
    torch.testing.assert_close(outputs.mean(0), mean, rtol=0, atol=4 * float((variance.max() / 200_000).sqrt()))
    torch.testing.assert_close(outputs.var(0), variance, rtol=0.02, atol=0)
