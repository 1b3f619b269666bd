"""Moments of rectified normals against quadrature and Monte Carlo."""

import math

import mpmath
import pytest
import torch
from scipy import integrate, stats

from bayesify.functional import relu_covariance, relu_moments

F64 = torch.float64


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (1.3, 0.4), (-0.8, 2.0), (-3.0, 0.7), (5.0, 0.5)])
def test_moments_agree_with_quadrature(mean: float, std: float) -> None:
    def moment(n: int) -> float:
        return integrate.quad(
            lambda a: a**n * stats.norm.pdf(a, mean, std), 0, max(mean, 0) + 12 * std, points=[max(mean, 1e-9)], epsabs=1e-13
        )[0]

    center, variance = relu_moments(torch.tensor(mean, dtype=F64), torch.tensor(std**2, dtype=F64))
    assert float(center) == pytest.approx(moment(1), rel=1e-8)
    assert float(variance) == pytest.approx(moment(2) - moment(1) ** 2, rel=1e-6, abs=1e-12)


def test_float32_does_not_cancel() -> None:
    mean, variance = torch.tensor([300.0, -300.0, 2.0, 0.0]), torch.tensor([1e-4, 1e-4, 0.0, 0.0])
    center, spread = relu_moments(mean, variance)
    torch.testing.assert_close(center, mean.clamp_min(0), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(spread, torch.tensor([1e-4, 0.0, 0.0, 0.0]), atol=1e-10, rtol=1e-5)


def _rectified(mean: mpmath.mpf, variance: mpmath.mpf) -> tuple[mpmath.mpf, mpmath.mpf]:
    """Mean and variance of max(a, 0), by the moments about zero, whose digits cancel."""
    std = mpmath.sqrt(variance)
    above, density = mpmath.ncdf(mean / std), mpmath.npdf(mean / std)
    center = mean * above + std * density
    return center, (mean**2 + variance) * above + mean * std * density - center**2


@pytest.mark.parametrize("variance", [1e-16, 1e-8, 1.0, 1e4])
@pytest.mark.parametrize("alpha", [-1e4, -12.0, -6.0, -4.0, -1.0, 0.0, 3.0, 8.0, 300.0])
def test_float32_loses_few_digits_far_from_zero(alpha: float, variance: float) -> None:
    """Terms cancel in proportion to the fourth power of a mean below 0, in standard deviations."""
    tolerance = 5e-6 * max(4, -alpha) ** 4
    inputs = torch.tensor([alpha * math.sqrt(variance), variance], requires_grad=True)
    with mpmath.workdps(50):
        exact = [mpmath.mpf(x) for x in inputs.tolist()]
        for k, found in enumerate(relu_moments(*inputs)):
            assert found.item() == pytest.approx(float(_rectified(*exact)[k]), rel=tolerance, abs=1e-37)
            (slopes,) = torch.autograd.grad(found, inputs, retain_graph=True)
            for i, slope in enumerate(slopes.tolist()):
                step = mpmath.mpf(10) ** -20 * mpmath.sqrt(exact[1] if i == 0 else exact[1] ** 2)
                moved = [[x + sign * step * (j == i) for j, x in enumerate(exact)] for sign in (-1, 1)]
                low, high = (_rectified(*point)[k] for point in moved)
                assert slope == pytest.approx(float((high - low) / (2 * step)), rel=tolerance, abs=1e-17)


@pytest.mark.parametrize("rho", [-0.99, -0.5, 0.1, 0.7, 0.999])
@pytest.mark.parametrize(("first", "second"), [((0.0, 1.0), (0.0, 1.0)), ((0.7, 1.5), (-0.4, 0.6)), ((-1.5, 1.0), (2.0, 0.5))])
def test_covariance_agrees_with_quadrature(first: tuple[float, float], second: tuple[float, float], rho: float) -> None:
    """E[max(a, 0) max(b, 0)] as an integral over a of the rectified mean of b given a."""
    (m, s), (n, t) = first, second
    conditional = t * math.sqrt(1 - rho**2)

    def integrand(a: float) -> float:
        center = n + rho * t * (a - m) / s
        alpha = center / conditional
        rectified = conditional * stats.norm.pdf(alpha) + center * stats.norm.cdf(alpha)
        return a * rectified * stats.norm.pdf(a, m, s)

    kink = m - n * s / (rho * t)  # where the mean of b given a changes its sign
    points = sorted({p for p in (max(m, 1e-6), kink) if 0 < p < max(m, 0) + 10 * s})
    both = integrate.quad(integrand, 0, max(m, 0) + 10 * s, points=points, limit=200, epsabs=1e-12)[0]
    mean, matrix = torch.tensor([m, n], dtype=F64), torch.tensor([[s * s, rho * s * t], [rho * s * t, t * t]], dtype=F64)
    center, covariance = relu_covariance(mean, matrix)
    assert float(covariance[0, 1]) == pytest.approx(both - float(center.prod()), abs=1e-5 * s * t)
    torch.testing.assert_close(covariance, covariance.T)
    torch.testing.assert_close((center, covariance.diagonal()), relu_moments(mean, matrix.diagonal()))


def test_covariances_of_many_units_agree_with_monte_carlo() -> None:
    torch.manual_seed(0)
    mean, root, n = torch.randn(2, 5, dtype=F64), torch.randn(2, 5, 5, dtype=F64), 200_000
    draws = (mean + torch.einsum("bij,nbj->nbi", root, torch.randn(n, 2, 5, dtype=F64))).clamp_min(0)
    center, covariance = relu_covariance(mean, root @ root.mT)
    assert ((draws.mean(0) - center).abs() < 5 * draws.std(0) / n**0.5).all()
    products = (draws - draws.mean(0)).unsqueeze(-1) * (draws - draws.mean(0)).unsqueeze(-2)
    assert ((products.mean(0) - covariance).abs() < 5 * products.std(0) / n**0.5).all()


def test_gradients_and_shapes() -> None:
    mean, root = torch.randn(3, dtype=F64, requires_grad=True), torch.randn(3, 3, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda m, r: relu_covariance(m, r @ r.T), (mean, root))
    assert torch.autograd.gradcheck(lambda m, s: relu_moments(m, s.square()), (mean, torch.rand(3).double().requires_grad_() + 0.1))
    with pytest.raises(ValueError, match=r"covariance must be \(4, 3, 3\) to match mean \(4, 3\), got \(3, 3\)"):
        relu_covariance(torch.zeros(4, 3), torch.eye(3))
