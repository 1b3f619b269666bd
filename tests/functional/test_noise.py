"""Noise against the moments it promises, and the projected gradient of `at_most`."""

import pytest
import torch
from scipy import stats
from torch import Tensor

from bayesify.functional import at_most, bernoulli_mask, gaussian_factors, local_reparameterization, normal_like
from bayesify.functional.noise import _Factors
from bayesify.native import switch

F64 = torch.float64


def _assert_moments(draws: Tensor, mean: Tensor, variance: Tensor) -> None:
    """Mean and variance over dimension 0 within 5 standard errors (the variance's by the fourth moment)."""
    n = draws.shape[0]
    squares = (draws - mean) ** 2
    assert ((draws.mean(0) - mean).abs() <= 5 * draws.std(0) / n**0.5).all()
    assert ((squares.mean(0) - variance).abs() <= 5 * squares.std(0) / n**0.5).all()


LAYOUTS = {
    "matrix": torch.zeros(100, 1000),
    "images": torch.zeros(20, 4, 25, 50),
    "channels last": torch.zeros(20, 4, 25, 50).contiguous(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_normal_like_is_standard_normal_in_the_layout_of_its_argument(layout: str) -> None:
    x = LAYOUTS[layout].double()
    noise = normal_like(x)
    assert (noise.shape, noise.dtype, noise.stride()) == (x.shape, x.dtype, x.stride())
    assert stats.kstest(noise.flatten().numpy(), "norm").pvalue > 1e-3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_normal_like_elements_are_uncorrelated(layout: str) -> None:
    noise = normal_like(LAYOUTS[layout].double())
    for dim in range(noise.dim()):
        neighbors = noise.narrow(dim, 0, noise.shape[dim] - 1) * noise.narrow(dim, 1, noise.shape[dim] - 1)
        assert neighbors.mean().abs() < 5 / neighbors.numel() ** 0.5
    other = normal_like(LAYOUTS[layout].double())
    assert (noise * other).mean().abs() < 5 / noise.numel() ** 0.5


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9])
def test_bernoulli_mask_has_mean_one_and_the_odds_as_variance(p: float) -> None:
    mask = bernoulli_mask((40_000, 3), p, torch.zeros((), dtype=torch.float64))
    assert (mask.shape, mask.dtype) == ((40_000, 3), torch.float64)
    scale = torch.tensor(1 / (1 - p), dtype=torch.float64)
    assert ((mask == 0) | (mask == scale)).all()
    assert stats.binomtest(int((mask == 0).sum()), mask.numel(), p).pvalue > 1e-3
    _assert_moments(mask, torch.tensor(1.0).double(), torch.tensor(p / (1 - p)).double())


def test_local_reparameterization_has_the_moments_it_is_given() -> None:
    mean = torch.tensor([-1.0, 0.0, 5.0], dtype=torch.float64)
    variance = torch.tensor([0.01, 1.0, 9.0], dtype=torch.float64)
    draws = local_reparameterization(mean.expand(40_000, 3), variance.expand(40_000, 3))
    _assert_moments(draws, mean, variance)
    correlations = torch.corrcoef(draws.T) - torch.eye(3, dtype=torch.float64)
    assert correlations.abs().max() < 5 / 40_000**0.5


def test_local_reparameterization_gradients_agree_with_the_moments() -> None:
    # d/dm E y^2 = 2m and d/dv E y^2 = 1, by averaging pathwise gradients
    mean = torch.full((40_000,), 0.7, dtype=torch.float64, requires_grad=True)
    variance = torch.full((40_000,), 2.0, dtype=torch.float64, requires_grad=True)
    local_reparameterization(mean, variance).square().sum().backward()
    for gradient, expected in ((mean.grad, 1.4), (variance.grad, 1.0)):
        assert (gradient.mean() - expected).abs() < 5 * gradient.std() / 40_000**0.5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_local_reparameterization_survives_zero_variance(dtype: torch.dtype) -> None:
    mean = torch.ones(4, dtype=dtype, requires_grad=True)
    weight = torch.ones(4, dtype=dtype, requires_grad=True)
    draw = local_reparameterization(mean, weight * 0)
    torch.testing.assert_close(draw, mean, atol=0.05 if dtype == torch.float16 else 1e-6, rtol=0)
    draw.sum().backward()
    assert weight.grad.isfinite().all()
    assert torch.equal(mean.grad, torch.ones_like(mean))


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.bfloat16,
        torch.float16,
    ],
)
def test_local_reparameterization_of_a_small_variance(dtype: torch.dtype) -> None:
    draws = local_reparameterization(torch.zeros(10_000, dtype=dtype), torch.full((10_000,), 1e-6, dtype=dtype))
    assert draws.float().std().item() == pytest.approx(1e-3, rel=0.05)


def test_noise_under_vmap_differs_from_row_to_row() -> None:
    x = torch.zeros(2000, 3, dtype=torch.float64)
    one = torch.ones((), dtype=torch.float64)
    routes = {
        "normal_like": (normal_like, 1.0),
        "local_reparameterization": (lambda row: local_reparameterization(row, torch.full_like(row, 4.0)), 4.0),
        "bernoulli_mask": (lambda row: bernoulli_mask((3,), 0.5, row) - 1, 1.0),
    }
    for route, variance in routes.values():
        draws = torch.vmap(route, randomness="different")(x)
        assert draws.shape == x.shape
        _assert_moments(draws, 0 * one, variance * one)


def test_at_most_is_the_minimum() -> None:
    x = torch.tensor([-3.0, 0.5, 1.0, 1.5, torch.inf])
    assert torch.equal(at_most(x, 1.0), torch.minimum(x, torch.tensor(1.0)))


@pytest.mark.parametrize(
    ("x", "upstream", "expected"),
    [
        (0.5, -2.0, -2.0),  # inside: the gradient passes
        (0.5, 2.0, 2.0),
        (1.0, -2.0, -2.0),  # at the bound: still free to cross, and to return
        (1.0, 2.0, 2.0),
        (1.5, -2.0, 0.0),  # beyond: no further out
        (1.5, 2.0, 2.0),  # but back inside
    ],
)
def test_at_most_gradient_is_projected(x: float, upstream: float, expected: float) -> None:
    parameter = torch.tensor(x, requires_grad=True)
    at_most(parameter, 1.0).backward(torch.tensor(upstream))
    assert parameter.grad == expected


def test_at_most_gradient_inside_agrees_with_finite_differences() -> None:
    x = torch.tensor([-3.0, 0.0, 0.9], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: at_most(v, 1.0).square(), x)
    assert torch.autograd.gradgradcheck(lambda v: at_most(v, 1.0).square(), x)


def test_at_most_under_vmap() -> None:
    x = torch.tensor([0.5, 1.5, 1.5])
    target = torch.tensor([2.0, 2.0, 0.0])
    gradients = torch.vmap(torch.func.grad(lambda v, t: (at_most(v, 1.0) - t) ** 2))(x, target)
    torch.testing.assert_close(gradients, torch.tensor([-3.0, 0.0, 2.0]))


def test_at_most_lets_adam_out_and_back() -> None:
    parameter = torch.nn.Parameter(torch.tensor(0.0))
    optimizer = torch.optim.Adam([parameter], lr=0.1)

    def run(target: float, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            (at_most(parameter, 1.0) - target).square().backward()
            optimizer.step()

    run(target=3.0, steps=100)
    assert 1.0 < parameter.item() < 3.0, "momentum carries it over the bound, but not to the target"
    assert at_most(parameter, 1.0) == 1.0
    run(target=-1.0, steps=300)
    assert parameter.item() == pytest.approx(-1.0, abs=0.01)


@pytest.mark.parametrize("native", [False, True])
def test_local_reparameterization_can_be_differentiated_twice(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if native:
        pytest.importorskip("numba", reason="install bayesify[fast]")
    monkeypatch.setitem(switch.LIBRARIES, "cpu", "numba" if native else None)
    mean, variance = torch.randn(4, dtype=torch.float64, requires_grad=True), torch.rand(4, dtype=torch.float64) + 0.1
    variance.requires_grad_()

    def draw(mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return local_reparameterization(mean, variance).sin()

    assert torch.autograd.gradcheck(draw, (mean, variance))
    assert torch.autograd.gradgradcheck(draw, (mean, variance))


@pytest.mark.parametrize(("size", "bound"), [((), None), ((), 0.5), ((4,), None), ((4,), 0.5)])
def test_gaussian_factors(size, bound):
    log_alpha = torch.linspace(-2, 2, 4, dtype=F64)[: size[0] if size else 1].reshape(size).requires_grad_()
    torch.manual_seed(1)
    eps = torch.randn(7, 4, dtype=F64)

    def factors(log_alpha):
        torch.manual_seed(1)
        return gaussian_factors(log_alpha, 7, 4, bound)

    def reference(log_alpha):
        alpha = log_alpha.exp() if bound is None else torch.minimum(log_alpha.exp(), torch.tensor(bound, dtype=F64).exp())
        return 1 + alpha.sqrt() * eps

    torch.testing.assert_close(factors(log_alpha), reference(log_alpha), rtol=1e-12, atol=1e-12)
    inside = log_alpha.detach().clamp(max=0.4).requires_grad_()
    assert torch.autograd.gradcheck(factors, (inside,))
    assert torch.autograd.gradgradcheck(factors, (inside,))
    for upstream in (torch.rand(7, 4, dtype=F64), torch.randn(7, 4, dtype=F64)):
        found = torch.autograd.grad(factors(log_alpha), log_alpha, upstream)[0]
        capped = (log_alpha if bound is None else log_alpha.clamp(max=bound)).detach().requires_grad_()
        slope = torch.autograd.grad(1 + capped.exp().sqrt() * eps, capped, upstream)[0]
        outside = torch.zeros(size, dtype=torch.bool) if bound is None else log_alpha > bound
        torch.testing.assert_close(found, torch.where(outside, slope.clamp_min(0), slope))  # a descent step returns, or stays


def test_gaussian_factors_are_drawn_alike_for_many_models():
    log_alpha, eps = torch.randn(3, 4, dtype=F64), torch.randn(3, 5, 4, dtype=F64)

    def loss(log_alpha, eps):
        return _Factors.call(log_alpha, eps, 0.5)[0].sin().sum()

    found = torch.vmap(torch.func.grad(loss))(log_alpha, eps)
    for a, row, e in zip(found, log_alpha, eps, strict=True):
        leaf = row.clone().requires_grad_()
        torch.testing.assert_close(a, torch.autograd.grad(loss(leaf, e), leaf)[0])
