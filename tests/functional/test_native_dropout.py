"""Factors of Gaussian dropout with their KL in one call, by quadrature and differences; networks of `VSD`, too, by operators."""
# pyright: basic, reportArgumentType=false, reportCallIssue=false

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from bayesify import VSD, VariationalDropout, bayesify
from bayesify.functional import gaussian_factors, gaussian_factors_and_kl
from bayesify.native import switch
from bayesify.native.dropout import draws_factors_natively

pytest.importorskip("numba", reason="the native operators need bayesify[fast]")

F32, F64 = torch.float32, torch.float64
METHODS = [
    *(VariationalDropout(), VariationalDropout(max_alpha=None, prior_std=0.5)),
    *(VSD(), VSD(transforms=3, rank=None), VSD(transforms=1, prior_std=0.5), VSD(conv_noise="input")),
]


@pytest.fixture(autouse=True)
def _native(monkeypatch):
    monkeypatch.setitem(switch.LIBRARIES, "cpu", "numba")
    torch.manual_seed(0)


def _kl(log_alpha):
    """-log(alpha) / 2 + E log|eps| + (gamma + log 2) / 2 for eps ~ N(1, alpha), by quadrature."""
    std = math.exp(log_alpha / 2)

    def density(e):
        return math.exp(-((e - 1) ** 2) / (2 * std**2)) / (std * math.sqrt(2 * math.pi))

    low, high = 1 - 12 * std, 1 + 12 * std
    parts = ((low, 0.0), (0.0, high)) if low < 0 < high else ((low, high),)
    mean = sum(
        quad(lambda e: density(e) * math.log(abs(e)), a, b, points=[1.0] if a < 1 < b else None, limit=500)[0] for a, b in parts
    )
    return -log_alpha / 2 + mean + 0.5 * (np.euler_gamma + math.log(2))


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("bound", [None, 0.0, -1.0])
def test_values(dtype, bound):
    log_alpha = torch.tensor([-3.0, -1.5, -0.2, 0.0, 1.0], dtype=dtype)
    eps = torch.randn(7, 5, dtype=dtype)
    assert draws_factors_natively(log_alpha, eps)
    torch.manual_seed(1)
    noise, kl = gaussian_factors_and_kl(log_alpha, 7, bound)
    torch.manual_seed(1)
    eps = torch.randn(7, 5, dtype=dtype)
    limited = log_alpha.double().clamp(max=math.inf if bound is None else bound)
    torch.testing.assert_close(noise.double(), 1 + (limited / 2).exp() * eps.double(), rtol=1e-6, atol=1e-6)
    assert float(kl) == pytest.approx(sum(map(_kl, limited.tolist())), rel=2e-6 if dtype == F32 else 1e-8)
    assert kl.dtype == noise.dtype == dtype


@pytest.mark.parametrize("size", [1, 5, 64, 130])  # blocks of 64
def test_gradients_and_their_gradients(size):
    log_alpha = (torch.randn(size, dtype=F64) - 1).requires_grad_()

    def noise_and_kl(log_alpha):
        torch.manual_seed(2)
        return gaussian_factors_and_kl(log_alpha, 3)

    assert torch.autograd.gradcheck(noise_and_kl, log_alpha)
    if size == 5:
        assert torch.autograd.gradgradcheck(noise_and_kl, log_alpha)
        for i in range(2):  # one output alone
            assert torch.autograd.gradcheck(lambda a, i=i: noise_and_kl(a)[i], log_alpha)


def test_above_the_bound_the_gradient_returns_but_does_not_leave():
    log_alpha = torch.full((2,), 0.5, requires_grad=True)
    noise, kl = gaussian_factors_and_kl(log_alpha, 4, 0.0)
    eps = (noise - 1).detach()
    upstream = torch.stack([eps[:, 0], -eps[:, 1]], 1)  # descent decreases the first variance and increases the second
    (by,) = torch.autograd.grad((noise * upstream).sum() + 3 * kl, log_alpha)
    assert by[0] == pytest.approx(float(0.5 * eps[:, 0].square().sum()), rel=1e-5)
    assert by[1] == 0  # the KL alone would increase both


@pytest.mark.parametrize("value", [-100.0, 88.0, 300.0])
def test_extreme_rates(value):
    log_alpha = torch.full((3,), value, requires_grad=True)
    noise, kl = gaussian_factors_and_kl(log_alpha, 4, 5.0)
    (by,) = torch.autograd.grad(noise.sum() + kl, log_alpha)
    assert noise.isfinite().all()
    assert kl.isfinite()
    assert by.isfinite().all()


def test_nan_stays():
    noise, kl = gaussian_factors_and_kl(torch.tensor([math.nan, 0.0]), 2, 0.0)
    assert noise[:, 0].isnan().all()
    assert not noise[:, 1].isnan().any()
    assert kl.isnan()


@pytest.mark.parametrize("method", METHODS)
def test_a_network_has_the_same_pass_and_gradients(method, monkeypatch):
    bnn = bayesify(torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 3)).double(), method)
    x, runs = torch.randn(6, 2, 4, 4, dtype=F64), []
    for use in (True, False):
        monkeypatch.setitem(switch.LIBRARIES, "cpu", "numba" if use else None)
        torch.manual_seed(1)
        draws = bnn(x, samples=2)
        loss = draws.outputs.square().mean() + 1e-2 * draws.kl
        runs.append([draws.outputs, draws.kl, *torch.autograd.grad(loss, list(bnn.parameters()))])
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_the_draws_are_those_of_the_factors_alone():
    log_alpha = torch.randn(2000)
    runs = []
    for draw in (lambda: gaussian_factors_and_kl(log_alpha, 5, 0.0)[0], lambda: gaussian_factors(log_alpha, 5, 2000, 0.0)):
        torch.manual_seed(3)
        runs.append(draw())
    torch.testing.assert_close(*runs, rtol=1e-6, atol=1e-6)
