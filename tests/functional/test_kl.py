"""KL divergences against quadrature of their definitions, special functions and torch.distributions."""

import math

import mpmath
import pytest
import torch
from scipy.special import dawsn
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from bayesify.functional import (
    at_least_float32,
    gaussian_kl,
    gaussian_kl_and_spread,
    gaussian_kl_sum,
    log_uniform_kl,
    log_uniform_kl_cubic,
    log_uniform_kl_sigmoid,
    low_rank_gaussian_kl,
    matrix_normal_kl,
)

GRID = torch.linspace(-20, 12, 129, dtype=torch.float64)
DENSE = torch.linspace(-40, 30, 40_001, dtype=torch.float64)


def _by_definition(log_alpha: float) -> float:
    """-log(alpha)/2 + E log|1 + sqrt(alpha) z| + (gamma + log 2)/2 by quadrature in 30 digits, split at the singularity."""
    with mpmath.workdps(30):
        log_alpha = mpmath.mpf(log_alpha)
        std = mpmath.exp(log_alpha / 2)
        ends = [z for z in (-1 / std, -14, -6, -1, 0, 1, 6, 14) if z >= -14]
        mean_log = mpmath.quad(lambda z: mpmath.log(abs(1 + std * z)) * mpmath.npdf(z), sorted(ends))
        return float(-log_alpha / 2 + mean_log + (mpmath.euler + mpmath.log(2)) / 2)


def _by_hypergeometric_function(log_alpha: float) -> float:
    """2 int_0^u D(t) dt = u^2 2F2(1, 1; 3/2, 2; -u^2), u^2 = 1/(2 alpha)."""
    with mpmath.workdps(30):
        square = mpmath.exp(-mpmath.mpf(log_alpha)) / 2
        return float(square * mpmath.hyp2f2(1, 1, mpmath.mpf(3) / 2, 2, -square))


def _gradient(f: object, log_alpha: Tensor) -> Tensor:
    x = log_alpha.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(f(x).sum(), x)
    return gradient


def test_gaussian_kl_agrees_with_torch_distributions() -> None:
    mean, log_std = torch.randn(2, 3, 4, dtype=torch.float64)
    prior_mean, prior_std = torch.randn(4, dtype=torch.float64), torch.rand(3, 1, dtype=torch.float64) + 0.1
    expected = kl_divergence(Normal(mean, log_std.exp()), Normal(prior_mean.expand(3, 4), prior_std.expand(3, 4)))
    torch.testing.assert_close(gaussian_kl(mean, log_std, prior_mean, prior_std), expected, atol=1e-12, rtol=1e-12)
    expected = kl_divergence(Normal(mean, log_std.exp()), Normal(mean * 0 - 0.3, 0.7))
    torch.testing.assert_close(gaussian_kl(mean, log_std, -0.3, 0.7), expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("log_std", [-1e-2, -1e-4, 3e-5, 1e-3])
@pytest.mark.parametrize("mean", [0.0, 1e-3, 2e-5])
def test_gaussian_kl_of_nearly_equal_distributions_has_its_digits_in_float32(mean: float, log_std: float) -> None:
    inputs = torch.tensor([mean, log_std])
    with mpmath.workdps(50):
        m, r = map(mpmath.mpf, inputs.tolist())
        expected = float((mpmath.exp(2 * r) + m**2 - 1) / 2 - r)
    assert gaussian_kl(inputs[0], inputs[1]).item() == pytest.approx(expected, rel=5e-3)


@pytest.mark.parametrize("rank", [1, 3, 7])
def test_low_rank_gaussian_kl_agrees_with_dense_normals(rank: int) -> None:
    mean, log_std = torch.randn(2, 5, dtype=torch.float64)
    factor = torch.randn(rank, 5, dtype=torch.float64)
    prior = MultivariateNormal(torch.zeros_like(mean), 0.36 * torch.eye(5, dtype=torch.float64))
    for each in (log_std, log_std[:1]):
        q = MultivariateNormal(mean, torch.diag((2 * each.expand(5)).exp()) + factor.T @ factor)
        torch.testing.assert_close(low_rank_gaussian_kl(mean, each, factor, 0.6), kl_divergence(q, prior), rtol=1e-11, atol=1e-11)
    arguments = tuple(v.requires_grad_() for v in (mean, log_std, factor))
    assert torch.autograd.gradcheck(low_rank_gaussian_kl, arguments)


@pytest.mark.parametrize("rank", [1, 3, 8])
@pytest.mark.parametrize("log_std", [-30.0, -12.0, -3.0, 0.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6, 1e18])
def test_low_rank_gaussian_kl_of_extremes_in_single_precision(scale: float, log_std: float, rank: int) -> None:
    """I + V D^-1 V^T, rounded, may have no Cholesky factor; the reference has 100 digits, and the rank may exceed n = 5."""
    generator = torch.Generator().manual_seed(rank)
    mean, noise = torch.randn(2, 5, generator=generator)
    factor = scale * torch.randn(rank, 5, generator=generator)
    factor[-1] = factor[0] + 1e-3 * factor[-1]  # nearly dependent
    arguments = [mean, log_std + 0.1 * noise, factor]
    with mpmath.workdps(100):
        whitened = mpmath.matrix(factor.tolist()) * mpmath.diag([mpmath.exp(-s) for s in arguments[1].tolist()])
        gram = mpmath.eye(rank) + whitened * whitened.T
        log_det = mpmath.log(mpmath.det(gram))
        inverse = torch.tensor((gram**-1 * whitened).tolist(), dtype=torch.float64)
    wide = [each.double().requires_grad_() for each in arguments]
    rest = gaussian_kl_sum(wide[0], wide[1]) + wide[2].square().sum() / 2  # the KL but for the determinant
    expected = torch.autograd.grad(rest, wide)
    by_factor = inverse * torch.exp(-wide[1].detach())
    expected = expected[0], expected[1] + (by_factor * wide[2].detach()).sum(0), expected[2] - by_factor
    leaves = [each.requires_grad_() for each in arguments]
    found = low_rank_gaussian_kl(*leaves)
    size = max(float(abs(log_det)), float(rest.detach()))
    torch.testing.assert_close(found.detach().double(), rest.detach() - float(log_det) / 2, rtol=1e-6, atol=1e-6 * size)
    for a, b in zip(torch.autograd.grad(found, leaves), expected, strict=True):
        atol = max(1e-3 * float(b.abs().max()), 1e-6 * (b.dim() == 1))  # terms of order 1 cancel in the gradient by log_std
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=atol)


def test_matrix_normal_kl_agrees_with_the_kronecker_covariance() -> None:
    mean, row, column = (torch.randn(shape, dtype=torch.float64) for shape in ((3, 4), (3,), (4,)))
    q = MultivariateNormal(mean.flatten(), torch.kron((2 * row).exp().diag(), (2 * column).exp().diag()))
    prior = MultivariateNormal(torch.zeros(12, dtype=torch.float64), 0.36 * torch.eye(12, dtype=torch.float64))
    torch.testing.assert_close(matrix_normal_kl(mean, row, column, 0.6), kl_divergence(q, prior), rtol=1e-11, atol=1e-11)
    assert torch.autograd.gradcheck(matrix_normal_kl, tuple(v.requires_grad_() for v in (mean, row, column)))


def test_gaussian_kl_is_zero_at_the_prior_only() -> None:
    mean, log_std = torch.full((3,), 0.4, dtype=torch.float64), torch.full((3,), math.log(0.3), dtype=torch.float64)
    torch.testing.assert_close(gaussian_kl(mean, log_std, 0.4, 0.3), torch.zeros_like(mean), atol=1e-15, rtol=0)
    away = torch.randn(2, 500, dtype=torch.float64)
    assert (gaussian_kl(*away) > 0).all()


@pytest.mark.parametrize("center", ["default", "number", "tensor"])
def test_gaussian_kl_sum_agrees_with_torch_distributions(center: str) -> None:
    mean, log_std = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    prior_mean = {"default": 0.0, "number": -0.3, "tensor": torch.randn(3, 4, 5, dtype=torch.float64)}[center]
    expected = kl_divergence(Normal(mean, log_std.exp()), Normal(mean * 0 + prior_mean, 0.7)).sum()
    arguments = (mean, log_std, *([] if center == "default" else [prior_mean]))
    torch.testing.assert_close(gaussian_kl_sum(*arguments, prior_std=0.7), expected, atol=0, rtol=1e-12)
    # transposed, so not contiguous
    turned = [x.mT if isinstance(x, Tensor) else x for x in arguments]
    torch.testing.assert_close(gaussian_kl_sum(*turned, prior_std=0.7), expected, atol=0, rtol=1e-12)


@pytest.mark.parametrize("prior_std", [1.0, 0.05])
def test_gaussian_kl_sum_of_many_float32_weights(prior_std: float) -> None:
    # 2 million weights with 1 nat each: rounding may cost a part in ten thousand
    mean = prior_std * torch.randn(2_000_000)
    log_std = math.log(prior_std) - 0.8 + 0.1 * torch.randn(2_000_000)
    expected = kl_divergence(Normal(mean.double(), log_std.double().exp()), Normal(mean.double() * 0, prior_std)).sum()
    torch.testing.assert_close(gaussian_kl_sum(mean, log_std, prior_std=prior_std).double(), expected, atol=0, rtol=1e-6)


def test_gaussian_kl_gradients() -> None:
    arguments = tuple(torch.rand(4, dtype=torch.float64, requires_grad=True) + 0.2 for _ in range(4))
    assert torch.autograd.gradcheck(gaussian_kl, arguments)
    assert torch.autograd.gradgradcheck(gaussian_kl, arguments)
    assert torch.autograd.gradcheck(lambda *a: gaussian_kl_sum(*a, prior_std=0.7), arguments[:3])
    assert torch.autograd.gradgradcheck(lambda *a: gaussian_kl_sum(*a, prior_std=0.7), arguments[:3])


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_gaussian_kl_and_spread_in_every_combination(wanted: tuple[int, ...]) -> None:
    """One node of the graph makes all three; whichever of them are used, gradients are those of the plain formulas."""
    mean, log_std, center = (torch.randn(3, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    weights = torch.randn(3, 3, 2, dtype=torch.float64)

    def used(outputs: tuple[Tensor, ...]) -> Tensor:
        return torch.stack([(outputs[i] * weights[i]).sum() for i in wanted]).sum()

    law, prior = Normal(mean, log_std.exp()), Normal(center, 0.7)
    expected = used((kl_divergence(law, prior).sum(), law.stddev, law.variance))
    found = used(gaussian_kl_and_spread(mean, log_std, center, 0.7))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    inputs = (mean, log_std, center)
    for a, b in zip(
        *(torch.autograd.grad(y, inputs, allow_unused=True, materialize_grads=True) for y in (found, expected)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradgradcheck(lambda *a: used(gaussian_kl_and_spread(*a, 0.7)), inputs)


def test_gaussian_kl_and_spread_of_many_models_at_once() -> None:
    mean, log_std = torch.randn(2, 5, 3, dtype=torch.float64)

    def value(mean: Tensor, log_std: Tensor) -> Tensor:
        kl, _, variance = gaussian_kl_and_spread(mean, log_std)
        return kl + variance.sin().sum()

    together = torch.func.vmap(torch.func.grad(value, argnums=(0, 1)))(mean, log_std)
    for i in range(5):
        for a, b in zip(together, torch.func.grad(value, argnums=(0, 1))(mean[i], log_std[i]), strict=True):
            torch.testing.assert_close(a[i], b)


def test_log_uniform_kl_agrees_with_quadrature_of_the_definition() -> None:
    expected = torch.tensor([_by_definition(x) for x in GRID[::8].tolist()], dtype=torch.float64)
    torch.testing.assert_close(log_uniform_kl(GRID[::8]), expected, atol=1e-9, rtol=0)


def test_log_uniform_kl_agrees_with_a_hypergeometric_function() -> None:
    expected = torch.tensor([_by_hypergeometric_function(x) for x in GRID.tolist()], dtype=torch.float64)
    torch.testing.assert_close(log_uniform_kl(GRID), expected, atol=0, rtol=1e-9)


def _exact_gradient(log_alpha: Tensor) -> Tensor:
    """-u D(u), u = 1 / sqrt(2 alpha), with SciPy's Dawson function."""
    u = torch.exp(-log_alpha.double() / 2) / math.sqrt(2)
    return -u * torch.from_numpy(dawsn(u.numpy()))


def test_log_uniform_kl_gradient_agrees_with_dawsons_function() -> None:
    # so densely that no pole between grid points escapes
    torch.testing.assert_close(_gradient(log_uniform_kl, DENSE), _exact_gradient(DENSE), atol=0, rtol=1e-9)


def test_log_uniform_kl_table() -> None:
    table = {-8: 4.635013606921, -5: 3.131777606075, -3: 2.107978307711, -2: 1.544154644761, -1: 0.914531309685}
    table |= {0: 0.426685604296, 1: 0.173193859243, 2: 0.066168485464, 3: 0.024688335440, 5: 0.003365193569, 8: 0.000167721936}
    x = torch.tensor(list(table), dtype=torch.float64)
    torch.testing.assert_close(log_uniform_kl(x), torch.tensor(list(table.values()), dtype=torch.float64), atol=1e-10, rtol=0)


def test_log_uniform_kl_derivatives_agree_with_finite_differences() -> None:
    x = torch.tensor([-19.0, -8.0, -4.5, -4.0, -1.0, 0.0, 3.0, 11.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(log_uniform_kl, x)
    assert torch.autograd.gradgradcheck(log_uniform_kl, x)


def test_log_uniform_kl_under_vmap() -> None:
    x = torch.linspace(-8, 8, 5, dtype=torch.float64)
    torch.testing.assert_close(torch.vmap(torch.func.grad(log_uniform_kl))(x), _exact_gradient(x), atol=1e-9, rtol=0)


def test_log_uniform_kl_is_positive_decreasing_and_bounded() -> None:
    x = torch.linspace(-30, 25, 4001, dtype=torch.float64)
    kl = log_uniform_kl(x)
    assert (kl > 0).all()
    assert (kl.diff() < 0).all()
    lower = 0.5 * torch.log1p(torch.exp(-x))
    upper = lower + (0.5772156649015329 + math.log(2)) / 2
    # both bounds are attained in a limit, where only rounding tells the two sides apart
    assert (kl >= lower - 1e-12).all()
    assert (kl <= upper + 1e-12).all()
    assert log_uniform_kl(torch.tensor(math.inf, dtype=torch.float64)) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_uniform_kl_of_extreme_values_is_finite(dtype: torch.dtype) -> None:
    x = torch.tensor([-80.0, -40.0, -20.0, 20.0, 40.0, 80.0], dtype=dtype)
    kl, gradient = log_uniform_kl(x), _gradient(log_uniform_kl, x)
    # a tiny alpha: a straight line of slope -1/2; a huge one: 1 / (2 alpha)
    line = -x / 2 + (0.5772156649015329 + math.log(2)) / 2
    torch.testing.assert_close(kl, torch.where(x < 0, line, torch.exp(-x) / 2), atol=1e-30, rtol=1e-5)
    torch.testing.assert_close(gradient, torch.where(x < 0, -0.5, -torch.exp(-x) / 2), atol=1e-30, rtol=1e-5)


def test_log_uniform_kl_in_float32() -> None:
    x = torch.linspace(-20, 12, 4001)
    assert (log_uniform_kl(x) > 0).all()
    torch.testing.assert_close(log_uniform_kl(x).double(), log_uniform_kl(x.double()), atol=2e-6, rtol=0)
    torch.testing.assert_close(_gradient(log_uniform_kl, x).double(), _exact_gradient(x), atol=3e-6, rtol=0)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bfloat16,
        torch.float16,
    ],
)
def test_log_uniform_kl_in_half_precision(dtype: torch.dtype) -> None:
    x = torch.tensor([-5.0, -1.0, 0.0, 3.0], dtype=dtype)
    torch.testing.assert_close(log_uniform_kl(x).double(), log_uniform_kl(x.double()), atol=0.02, rtol=0.02)


def test_log_uniform_kl_refuses_integers() -> None:
    with pytest.raises(TypeError, match=r"log_alpha must be a floating point tensor, got torch\.int64"):
        log_uniform_kl(torch.tensor([0]))


def test_cubic_approximation_is_close_for_moderate_alpha_and_wrong_elsewhere() -> None:
    def error(alphas: Tensor) -> Tensor:
        return (log_uniform_kl_cubic(alphas.log()) - log_uniform_kl(alphas.log())).abs()

    inside = error(torch.linspace(0.05, 1, 2001, dtype=torch.float64))
    assert 0.009 < inside.max() <= 0.0102
    assert inside[-1] < 1e-9
    # for tiny alpha what remains is the intercept that the fit had and the formula dropped
    assert error(torch.tensor(1e-8, dtype=torch.float64)).item() == pytest.approx(0.0372, abs=5e-4)
    # exact -E log|eps| is -0.33 at alpha = 5, the cubic's (pinned at 1) -42.1
    assert error(torch.tensor(5.0, dtype=torch.float64)).item() == pytest.approx(42.1 - 0.33, abs=0.1)


def test_sigmoid_approximation_is_close_everywhere() -> None:
    x = torch.linspace(-40, 40, 8001, dtype=torch.float64)
    error = (log_uniform_kl_sigmoid(x) - log_uniform_kl(x)).abs()
    assert 0.0090 < error.max() <= 0.0094
    assert x[error.argmax()].item() == pytest.approx(-3.5, abs=0.1)
    assert 0.012 < (_gradient(log_uniform_kl_sigmoid, x) - _gradient(log_uniform_kl, x)).abs().max() <= 0.014


def test_at_least_float32_widens_and_never_narrows() -> None:
    dtypes = {
        torch.float16: torch.float32,
        torch.bfloat16: torch.float32,
        torch.float32: torch.float32,
        torch.float64: torch.float64,
    }
    assert {given: at_least_float32(torch.ones(1, dtype=given)).dtype for given in dtypes} == dtypes
