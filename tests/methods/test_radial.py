"""Radial: the KL by quadrature over the distance, in one dimension, and by densities; distances and directions of draws."""

import math

import mpmath
import pytest
import torch
from scipy import stats
from torch import nn
from torch.distributions import HalfNormal, Normal, kl_divergence

from bayesify import Radial, bayesify
from bayesify.functional import radial_kl

F64 = torch.float64


def test_kl_in_one_dimension_is_that_of_normals() -> None:
    mean, log_std = torch.randn(2, 1, dtype=F64)
    expected = kl_divergence(Normal(mean, log_std.exp()), Normal(torch.zeros_like(mean), 0.6)).sum()
    torch.testing.assert_close(radial_kl(mean, log_std, 0.6), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", [2, 3, 10, 1000])
def test_kl_around_zero_is_an_integral_over_the_distance(n: int) -> None:
    # q and p depend on the distance only, so the KL is that of the two distributions of the distance: half normal and chi
    scale, prior_std = 1.3, 0.7
    with mpmath.workdps(30):

        def ratio(d: float) -> mpmath.mpf:
            log_q = mpmath.log(2 * mpmath.npdf(d, 0, scale))
            x = d / mpmath.mpf(prior_std)
            log_chi = (1 - mpmath.mpf(n) / 2) * mpmath.log(2) - mpmath.loggamma(mpmath.mpf(n) / 2) + (n - 1) * mpmath.log(x)
            return mpmath.exp(log_q) * (log_q - (log_chi - x**2 / 2 - mpmath.log(prior_std)))

        expected = float(mpmath.quad(ratio, [0, 0.1, 1, 3, 8, 20]))
    value = radial_kl(torch.zeros(n, dtype=F64), torch.full((n,), math.log(scale), dtype=F64), prior_std)
    assert value.item() == pytest.approx(expected, rel=1e-10)


def test_kl_in_two_dimensions_by_quadrature() -> None:
    mean, std, prior_std = torch.tensor([0.4, -0.3], dtype=F64), torch.tensor([0.5, 1.2], dtype=F64), 0.8
    angle = torch.arange(12, dtype=F64)[:, None] * (2 * math.pi / 12)  # exact for polynomials of the direction
    root = torch.linspace(1e-6, 3, 6001, dtype=F64)  # of the distance, at whose zero the density has a pole
    u = torch.stack([angle.cos() * root**2, angle.sin() * root**2], -1)
    log_density = HalfNormal(torch.ones((), dtype=F64)).log_prob(root**2)
    log_q = log_density - (2 * math.pi * root**2).log() - std.log().sum()
    ratio = log_q - Normal(torch.zeros(2, dtype=F64), prior_std).log_prob(mean + std * u).sum(-1)
    expected = torch.trapezoid(log_density.exp() * ratio.mean(0) * 2 * root, root)
    torch.testing.assert_close(radial_kl(mean, std.log(), prior_std), expected, rtol=0, atol=1e-6)


def test_the_smallest_kl() -> None:
    # at sigma = s sqrt(n): 0.64 nats per element for large n
    n = 10_000
    log_std = torch.full((n,), math.log(0.3 * n**0.5), dtype=F64, requires_grad=True)
    kl = radial_kl(torch.zeros(n, dtype=F64), log_std, 0.3)
    (gradient,) = torch.autograd.grad(kl, log_std)
    assert gradient.abs().max() < 1e-9
    assert kl.item() / n == pytest.approx(0.635, abs=2e-3)


def test_gradients() -> None:
    mean, log_std = torch.randn(2, 5, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(radial_kl, (mean, log_std))


@torch.no_grad()
def test_draws_have_half_normal_distances_and_uniform_directions() -> None:
    torch.manual_seed(0)
    bnn = bayesify(nn.Linear(4, 5).double(), Radial(initial_std=3.0))
    p = bnn.net.posterior
    for parameter in p.parameters():
        nn.init.normal_(parameter, 0.0, 0.5)
    weight, bias = p.sample(bnn.net, 20_000)
    u = torch.cat(
        [((weight - bnn.net.weight) / p.weight_log_std.exp()).flatten(1), (bias - bnn.net.bias) / p.bias_log_std.exp()], 1
    )
    distance = u.norm(dim=1)
    assert stats.kstest(distance, stats.halfnorm.cdf).pvalue > 1e-3
    # a coordinate of a uniform direction in 25 dimensions: its square is Beta(1/2, 12)
    squares = (u / distance[:, None]).square()
    assert min(stats.kstest(squares[:, i], stats.beta(0.5, 12).cdf).pvalue for i in (0, 7, 24)) > 1e-3
    assert abs(torch.corrcoef(torch.stack([distance, squares[:, 0]]))[0, 1]) < 5 / 20_000**0.5
    torch.testing.assert_close(u.square().mean(0), torch.full((25,), 1 / 25, dtype=F64), rtol=0.1, atol=0)


@pytest.mark.parametrize("field", ["prior_std", "initial_std"])
def test_errors(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be a finite number above 0, got 0"):
        Radial(**{field: 0.0})
