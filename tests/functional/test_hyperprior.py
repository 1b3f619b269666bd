"""KLs of a log-normal scale against quadrature, Monte Carlo and dense matrices."""

import math
from collections.abc import Callable

import mpmath
import pytest
import torch
from torch import Tensor
from torch.distributions import Gamma, HalfCauchy, InverseGamma, LogNormal, MultivariateNormal, kl_divergence

from bayesify.functional import (
    householder,
    kl_lognormal_gamma,
    kl_lognormal_half_cauchy,
    kl_lognormal_inverse_gamma,
    vsd_hierarchical_kl,
    vsd_kl,
)

KLS = {"gamma": (kl_lognormal_gamma, Gamma), "inverse-gamma": (kl_lognormal_inverse_gamma, InverseGamma)}
# mean and variance of log z, concentration, rate
CASES = [(0.0, 0.01, 2.0, 2.0), (-0.7, 0.5, 0.5, 3.0), (1.3, 2.0, 4.0, 0.3), (0.2, 1.0, 1.0, 1.0), (3.0, 1e-4, 7.5, 20.0)]


def _by_quadrature(hyperprior: str, g: float, d: float, a: float, b: float) -> float:
    """The integral of q log(q / p) over u = log z, in 30 digits."""
    sign = 1 if hyperprior == "gamma" else -1
    with mpmath.workdps(30):
        std = mpmath.sqrt(d)

        def integrand(u: mpmath.mpf) -> mpmath.mpf:
            log_q = -((u - g) ** 2) / (2 * mpmath.mpf(d)) - mpmath.log(2 * mpmath.pi * d) / 2
            # the densities of u: p(z) z, and z for an inverse gamma is 1 / z of a gamma
            log_p = a * mpmath.log(b) - mpmath.loggamma(a) + sign * a * u - b * mpmath.exp(sign * u)
            return mpmath.exp(log_q) * (log_q - log_p)

        return float(mpmath.quad(integrand, [g + k * std for k in (-16, -8, -3, 0, 3, 8, 16)]))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("hyperprior", KLS)
def test_kl_agrees_with_quadrature(hyperprior: str, case: tuple[float, float, float, float]) -> None:
    g, d, a, b = case
    expected = torch.tensor(_by_quadrature(hyperprior, g, d, a, b), dtype=torch.float64)
    mean, variance = torch.tensor([g, d], dtype=torch.float64)
    kl = KLS[hyperprior][0]
    torch.testing.assert_close(kl(mean, variance, a, b), expected, atol=1e-11, rtol=1e-11)
    assert expected > 0


@pytest.mark.parametrize("hyperprior", KLS)
def test_kl_agrees_with_densities_of_torch(hyperprior: str) -> None:
    kl, prior = KLS[hyperprior]
    g, d = torch.tensor([0.3, -0.5], dtype=torch.float64), torch.tensor([0.4, 0.9], dtype=torch.float64)
    a, b = torch.tensor([1.5, 3.0], dtype=torch.float64), torch.tensor([2.0, 0.7], dtype=torch.float64)
    q, n = LogNormal(g, d.sqrt()), 200_000
    z = q.sample((n,))
    ratios = q.log_prob(z) - prior(a, b).log_prob(z)
    error = 5 * ratios.std(0) / math.sqrt(n)
    assert ((kl(g, d, a, b) - ratios.mean(0)).abs() < error).all()
    assert (error < 0.1).all()


@pytest.mark.parametrize("hyperprior", KLS)
def test_numbers_and_tensors_are_the_same_and_broadcast(hyperprior: str) -> None:
    kl = KLS[hyperprior][0]
    mean, variance = torch.randn(3, 1, dtype=torch.float64), torch.rand(4, dtype=torch.float64) + 0.1
    expected = kl(mean, variance, 2.5, 0.5)
    assert expected.shape == (3, 4)
    torch.testing.assert_close(kl(mean, variance, torch.tensor(2.5), 0.5), expected)
    torch.testing.assert_close(kl(mean, variance, torch.full((3, 4), 2.5).double(), torch.tensor(0.5).double()), expected)


@pytest.mark.parametrize("hyperprior", KLS)
def test_gradients(hyperprior: str) -> None:
    arguments = tuple(torch.rand(3, dtype=torch.float64, requires_grad=True) + 0.3 for _ in range(4))
    assert torch.autograd.gradcheck(KLS[hyperprior][0], arguments)


# mean and variance of log z, rate, tolerance
@pytest.mark.parametrize("case", [(0.0, 0.01, 2.0, 1e-11), (-0.7, 0.5, 3.0, 1e-11), (1.3, 4.0, 0.3, 1e-6), (3.0, 25.0, 1.0, 1e-3)])
def test_half_cauchy_kl_agrees_with_quadrature(case: tuple[float, float, float, float]) -> None:
    g, d, b, tolerance = case
    with mpmath.workdps(30):
        std = mpmath.sqrt(d)

        def integrand(u: mpmath.mpf) -> mpmath.mpf:
            log_q = -((u - g) ** 2) / (2 * mpmath.mpf(d)) - mpmath.log(2 * mpmath.pi * d) / 2
            log_p = mpmath.log(2 * b / mpmath.pi) - mpmath.log(1 + b**2 * mpmath.exp(2 * u)) + u
            return mpmath.exp(log_q) * (log_q - log_p)

        expected = float(mpmath.quad(integrand, [g + k * std for k in (-16, -8, -3, -1, 0, 1, 3, 8, 16)]))
    mean, variance = torch.tensor([g, d], dtype=torch.float64)
    assert float(kl_lognormal_half_cauchy(mean, variance, b)) == pytest.approx(expected, abs=tolerance)
    assert expected > 0


def test_half_cauchy_kl_agrees_with_the_density_of_torch() -> None:
    g, d, b = torch.randn(3, 1).double(), torch.rand(2).double() + 0.2, torch.tensor([0.5, 2.0]).double()
    q, n = LogNormal(g, d.sqrt()), 100_000
    z = q.sample((n,))
    ratios = q.log_prob(z) - HalfCauchy(1 / b).log_prob(z)
    error = 5 * ratios.std(0) / math.sqrt(n)
    kl = kl_lognormal_half_cauchy(g, d, b)
    assert kl.shape == (3, 2)
    assert ((kl - ratios.mean(0)).abs() < error).all()
    assert (error < 0.1).all()
    with pytest.raises(ValueError, match="rate must be a finite number above 0"):
        kl_lognormal_half_cauchy(g, d, 0.0)
    arguments = tuple(torch.rand(3, dtype=torch.float64, requires_grad=True) + 0.3 for _ in range(3))
    assert torch.autograd.gradcheck(kl_lognormal_half_cauchy, arguments)


def _prior_of(hyperprior: str, a: float, b: float) -> Gamma | InverseGamma | HalfCauchy:
    if hyperprior == "half-cauchy":
        return HalfCauchy(torch.tensor(1 / b, dtype=torch.float64))
    return KLS[hyperprior][1](*torch.tensor([a, b], dtype=torch.float64))


def _conditional_kl(z: Tensor, theta: Tensor, covariance: Tensor, beta: Tensor) -> Tensor:
    """KL(q(W | z) || p(W | z)) for each row of z, summed over the columns of W, from the matrices of the two distributions."""
    total = torch.zeros((), dtype=torch.float64)
    for column, precision in zip(theta.T, beta.T, strict=True):
        v = torch.diag_embed(z * column)
        q = MultivariateNormal(z * column, v @ covariance @ v)
        total = total + kl_divergence(q, MultivariateNormal(torch.zeros_like(z), torch.diag_embed(z / precision)))
    return total


def _hierarchy(k: int = 4) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log alpha, vectors, Theta (K, 2) and the covariance of the noise."""
    log_alpha, vectors, theta = torch.randn(k).double(), torch.randn(2, k).double(), torch.randn(k, 2).double()
    turned = householder(vectors, torch.eye(k).double()).mT  # rows of the argument are turned: columns of U
    return log_alpha, vectors, theta, turned @ torch.diag(log_alpha.exp()) @ turned.mT


def _paper_precision(theta: Tensor, covariance: Tensor) -> Tensor:
    return 1 / (theta.square() * (1 + covariance.diag())[:, None])


@pytest.mark.parametrize("hyperprior", [*KLS, "half-cauchy"])
def test_hierarchical_kl_agrees_with_monte_carlo_over_the_scale(hyperprior: str) -> None:
    log_alpha, vectors, theta, covariance = _hierarchy()
    g, d = 0.3 * torch.randn(4).double(), 0.1 + 0.3 * torch.rand(4).double()
    q, prior, beta, n = LogNormal(g, d.sqrt()), _prior_of(hyperprior, 2.0, 1.5), _paper_precision(theta, covariance), 20_000
    z = q.sample((n,))
    of_scale = (q.log_prob(z) - prior.log_prob(z)).sum(-1)
    draws = of_scale + _conditional_kl(z, theta, covariance, beta)
    kl = vsd_hierarchical_kl(log_alpha, vectors, 2, g, d, 2.0, 1.5, hyperprior)
    error = 5 * draws.std().item() / math.sqrt(n)
    assert kl.item() == pytest.approx(draws.mean().item(), abs=error)
    # each of the mistakes in print would be seen: one term subtracted, or the logarithm's sign reversed
    assert error < 0.2 * abs(of_scale.mean().item())
    assert error < 0.2 * vsd_kl(log_alpha, vectors, 2).item()


def test_hierarchical_kl_with_one_value_of_the_scale() -> None:
    log_alpha, vectors, theta, covariance = _hierarchy()
    beta = _paper_precision(theta, covariance)
    g = torch.tensor([0.0, 0.4, -0.3, 1.0]).double()
    kl, certain = vsd_kl(log_alpha, vectors, 2), torch.full((4,), 1e-12).double()
    total = vsd_hierarchical_kl(log_alpha, vectors, 2, g, certain, 2.0, 2.0)
    of_scale = kl_lognormal_inverse_gamma(g, certain, 2.0, 2.0).sum()
    torch.testing.assert_close(total - of_scale, _conditional_kl(g.exp(), theta, covariance, beta), atol=1e-8, rtol=0)
    # The paper's precision is the best one for z = 1; given another z the best is that over z, which takes z out again.
    best = beta / g.exp()[:, None]
    torch.testing.assert_close(_conditional_kl(g.exp(), theta, covariance, best), kl, atol=1e-9, rtol=0)
    for factor in (0.9, 1.1):
        assert _conditional_kl(g.exp(), theta, covariance, best * factor) > kl
    assert total - of_scale > kl


def test_hierarchical_kl_gradients_and_precision() -> None:
    log_alpha, vectors, _, _ = _hierarchy()
    g, d = torch.randn(4).double(), 0.1 + torch.rand(4).double()

    def kl(*arguments: Tensor) -> Tensor:
        return vsd_hierarchical_kl(arguments[0], arguments[1], 3, arguments[2], arguments[3], 2.0, 1.5)

    assert torch.autograd.gradcheck(kl, tuple(x.clone().requires_grad_() for x in (log_alpha, vectors, g, d)))
    half = kl(*(x.bfloat16() for x in (log_alpha, vectors, g, d)))
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, kl(*(x.bfloat16().float() for x in (log_alpha, vectors, g, d))))


def _arguments(**changes: object) -> dict[str, object]:
    shapes = {"log_alpha": (3,), "vectors": (1, 3), "mean": (3,), "variance": (3,)}
    return {**{name: torch.ones(s) for name, s in shapes.items()}, "columns": 2, "concentration": 1.0, "rate": 1.0, **changes}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: vsd_hierarchical_kl(**_arguments(hyperprior="beta")),
            "hyperprior must be one of 'inverse-gamma', 'gamma', 'half-cauchy', got 'beta'",
        ),
        (
            lambda: vsd_hierarchical_kl(**_arguments(mean=torch.ones(2))),
            r"mean and variance must be \(3,\) to match log_alpha, got \(2,\) and",
        ),
        (lambda: vsd_hierarchical_kl(**_arguments(rate=0.0)), "rate must be a finite number above 0, got 0.0"),
        (
            lambda: kl_lognormal_gamma(torch.ones(1), torch.ones(1), -1.0, 1.0),
            "concentration must be a finite number above 0, got -1.0",
        ),
        (lambda: vsd_hierarchical_kl(**_arguments(columns=0)), "columns must be at least 1"),
    ],
)
def test_errors(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
