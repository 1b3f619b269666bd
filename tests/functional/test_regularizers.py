r"""Regularizers of outputs against integration over their hyper-priors.

Collapsing a hyper-prior: $\min_{q(h)} \mathrm{E}_q[f(h)] + \mathrm{KL}(q \| p) = -\log \int p(h) e^{-f(h)} dh$, by quadrature, with
the KL f of the outputs from the prior with parameters h taken from `torch.distributions`.
"""

import math
from collections.abc import Callable

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.distributions import InverseGamma, Normal, kl_divergence

from bayesify import functional as f

F64 = torch.float64
MEAN = torch.tensor([[0.5, -1.0, 2.0], [0.1, 0.7, -0.4]], dtype=F64)
STD = torch.tensor([[0.3, 0.8, 1.2], [0.2, 1.5, 0.05]], dtype=F64)
GAMMA, ALPHA, A, B, DELTA = 0.3, 5.7, 0.5, 0.01, 0.1
T = DELTA / (1 - DELTA)
M = torch.linspace(-60, 60, 40_001, dtype=F64)
U = torch.linspace(-12, 12, 1201, dtype=F64)  # the prior's mean, in its standard deviations
LOG_V = torch.linspace(-14, 60, 6001, dtype=F64)


def integral(log_density: Tensor, grid: Tensor) -> Tensor:
    """Minus the log of the integral over the last dimension."""
    return -(torch.logsumexp(log_density, -1) + math.log(float(grid[1] - grid[0])))


def kl(mean: Tensor, std: Tensor, prior_mean: Tensor, prior_std: Tensor) -> Tensor:
    return kl_divergence(Normal(mean, std), Normal(prior_mean, prior_std))


def kl_of_mean(mean: Tensor, std: Tensor) -> Tensor:
    """(..., M): the KL for every prior mean."""
    return kl(mean[..., None], std[..., None], M, torch.tensor(GAMMA, dtype=F64).sqrt())


def collapsed_over_mean(mean: float, std: float) -> Tensor:
    """(V,): the KL for every prior variance, its mean integrated out in blocks."""
    parts = []
    for log_v in LOG_V.split(500):
        root = (0.5 * log_v).exp()[:, None]
        term = kl(torch.tensor(mean, dtype=F64), torch.tensor(std, dtype=F64), U / math.sqrt(T) * root, root)
        parts.append(integral(Normal(0.0, 1.0).log_prob(U) - term, U))
    return torch.cat(parts)


def log_inverse_gamma() -> Tensor:
    """(V,): the density of log v."""
    return InverseGamma(torch.tensor(A, dtype=F64), torch.tensor(B, dtype=F64)).log_prob(LOG_V.exp()) + LOG_V


def best_variance(mean: Tensor, std: Tensor, a: float, b: float) -> Tensor:
    """KL from N(0, v) for the v that is best for all rows with its log prior: (N,)."""

    def divergence(log_v: float) -> Tensor:
        return kl(mean, std, torch.zeros((), dtype=F64), torch.tensor(math.exp(0.5 * log_v), dtype=F64)).sum(-1)

    def objective(log_v: float) -> float:
        log_prior = -(a + 1) * log_v - b * math.exp(-log_v)
        return float(divergence(log_v).mean()) - log_prior

    return divergence(minimize_scalar(objective, bounds=(-5, 8), method="bounded", options={"xatol": 1e-11}).x)


def averages(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return mean.mean(0), mean.square().mean(0), std.square().mean(0)


def test_naive() -> None:
    expected = kl(MEAN, STD, torch.zeros(3, dtype=F64), torch.full((3,), 1.3, dtype=F64).sqrt()).sum(-1)
    torch.testing.assert_close(f.vifo_naive(MEAN, STD, 1.3**0.5), expected)


def test_mean() -> None:
    prior = Normal(torch.zeros((), dtype=F64), math.sqrt(ALPHA)).log_prob(M)
    torch.testing.assert_close(f.vifo_mean(MEAN, STD, GAMMA**0.5, ALPHA**0.5), integral(prior - kl_of_mean(MEAN, STD), M).sum(-1))


def test_mean_for_the_data_set() -> None:
    prior = Normal(torch.zeros((), dtype=F64), math.sqrt(ALPHA)).log_prob(M)
    expected = integral(prior - kl_of_mean(MEAN, STD).mean(0), M).sum(-1)
    torch.testing.assert_close(f.vifo_mean_all(MEAN, STD, MEAN.mean(0), GAMMA**0.5, ALPHA**0.5).mean(), expected)


def test_mean_and_variance() -> None:
    rows = [
        sum(integral(log_inverse_gamma() - collapsed_over_mean(m, s), LOG_V) for m, s in zip(*row, strict=True))
        for row in zip(MEAN.tolist(), STD.tolist(), strict=True)
    ]
    torch.testing.assert_close(f.vifo_mean_variance(MEAN, STD, A, B, DELTA), torch.stack(rows), atol=1e-6, rtol=1e-6)


def test_mean_and_variance_for_the_data_set() -> None:
    expected = torch.zeros((), dtype=F64)
    for means, stds in zip(MEAN.T.tolist(), STD.T.tolist(), strict=True):
        term = torch.stack([collapsed_over_mean(m, s) for m, s in zip(means, stds, strict=True)]).mean(0)
        expected = expected + integral(log_inverse_gamma() - term, LOG_V)
    _, square, variance = averages(MEAN, STD)
    ours = f.vifo_mean_variance_all(MEAN, STD, square, variance, A, B, DELTA).mean()
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-6)


def test_empirical_bayes() -> None:
    expected = torch.cat([best_variance(m[None], s[None], 4.4798, 10.0) for m, s in zip(MEAN, STD, strict=True)])
    torch.testing.assert_close(f.vifo_empirical_bayes(MEAN, STD), expected, atol=1e-6, rtol=1e-6)


def test_empirical_bayes_for_the_data_set() -> None:
    _, square, variance = averages(MEAN, STD)
    expected = best_variance(MEAN, STD, 4.4798, 10.0).mean()
    torch.testing.assert_close(f.vifo_empirical_bayes_all(MEAN, STD, square, variance).mean(), expected, atol=1e-6, rtol=1e-6)


DATA_SET: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "mean": lambda mean, std, m, square, variance: f.vifo_mean_all(mean, std, m),
    "mean-variance": lambda mean, std, m, square, variance: f.vifo_mean_variance_all(mean, std, square, variance),
    "empirical-bayes": lambda mean, std, m, square, variance: f.vifo_empirical_bayes_all(mean, std, square, variance),
}


@pytest.mark.parametrize("name", DATA_SET)
def test_gradients_with_exact_averages_are_those_of_the_data_set(name: str) -> None:
    mean, std = MEAN.clone().requires_grad_(), STD.clone().requires_grad_()
    fixed = [x.detach() for x in averages(mean, std)]
    gradients = torch.autograd.grad(DATA_SET[name](mean, std, *fixed).mean(), (mean, std))
    step = 1e-5
    for which, gradient in enumerate(gradients):
        for index in [(0, 0), (1, 2)]:
            values = []
            for sign in (1, -1):
                inputs = [MEAN.clone(), STD.clone()]
                inputs[which][index] += sign * step
                values.append(DATA_SET[name](*inputs, *averages(*inputs)).mean())
            assert gradient[index].item() == pytest.approx(float(values[0] - values[1]) / (2 * step), rel=1e-5)


@pytest.mark.parametrize("name", ["mean", "mean-variance"])
def test_other_averages_give_a_looser_bound(name: str) -> None:
    exact = averages(MEAN, STD)
    best = DATA_SET[name](MEAN, STD, *exact).mean()
    for scale in (0.3, 2.0):
        assert DATA_SET[name](MEAN, STD, *(scale * x for x in exact)).mean() > best + 1e-3


@pytest.mark.parametrize(
    ("regularizer", "variance"),
    [
        (lambda m, s: f.vifo_naive(m, s, 1.7**0.5), 1.7),
        (lambda m, s: f.vifo_mean(m, s, 0.4**0.5, 2.0**0.5), 0.4),
        (lambda m, s: f.vifo_mean_variance(m, s, 0.8, 0.1, 0.2), 0.1 / 0.8),
        (lambda m, s: f.vifo_empirical_bayes(m, s, 3.0, 2.0), 2.0 / 4.0),
    ],
    ids=["naive", "mean", "mean-variance", "empirical-bayes"],
)
def test_the_minimum_over_the_variance_at_mean_zero(regularizer: Callable[[Tensor, Tensor], Tensor], variance: float) -> None:
    std = torch.full((1, 3), math.sqrt(variance), dtype=F64, requires_grad=True)
    (gradient,) = torch.autograd.grad(regularizer(torch.zeros(1, 3, dtype=F64), std).sum(), std)
    torch.testing.assert_close(gradient, torch.zeros(1, 3, dtype=F64), atol=1e-12, rtol=0)
    values = [regularizer(torch.zeros(1, 3, dtype=F64), std.detach() * factor) for factor in (0.8, 1.0, 1.25)]
    assert values[1] < min(values[0], values[2])


def test_positions_have_outputs_of_their_own() -> None:
    mean, std = torch.randn(4, 5, 3, dtype=F64), torch.rand(4, 5, 3, dtype=F64) + 0.1
    for regularizer in (f.vifo_naive, f.vifo_mean, f.vifo_mean_variance, f.vifo_empirical_bayes):
        single = regularizer(mean.flatten(0, 1), std.flatten(0, 1)).view(4, 5).sum(1)
        torch.testing.assert_close(regularizer(mean, std), single)
        torch.testing.assert_close(regularizer(mean[:, 0, 0], std[:, 0, 0]), regularizer(mean[:, 0, :1], std[:, 0, :1]))
        assert regularizer(mean.half(), std.half()).dtype == torch.float32


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"mean and std must both be \(B, ..., K\), got \(2, 3\) and \(2, 1\)"):
        f.vifo_mean(torch.zeros(2, 3), torch.ones(2, 1))


def test_the_bounded_loss_has_the_slopes_it_promises() -> None:
    error, precision = 1.5, 2.0
    m = torch.linspace(-4, 4, 401, dtype=F64).repeat_interleave(401).requires_grad_()
    log_variance = torch.linspace(-3, 3, 401, dtype=F64).repeat(401).requires_grad_()
    loss = f.bounded_gaussian_nll(torch.zeros((), dtype=F64), m, log_variance, error, precision)
    slopes = [g.abs().max().item() for g in torch.autograd.grad(loss.sum(), (m, log_variance))]
    assert 0.95 * error * precision < slopes[0] <= error * precision
    assert 0.95 * (0.5 * error**2 * precision - 0.5) < slopes[1] <= 0.5 + 0.5 * error**2 * precision
    inside = (m.abs() < error) & (-log_variance < math.log(precision))
    exact = -Normal(m, (0.5 * log_variance).exp()).log_prob(torch.zeros((), dtype=F64))
    torch.testing.assert_close(loss[inside], exact[inside])
    assert loss.max() < exact.max()


def test_the_bounded_link() -> None:
    x = torch.linspace(-3, 9, 100, dtype=F64, requires_grad=True)
    y = f.bounded_exp(x, 5.0)
    torch.testing.assert_close(y, torch.minimum(x.exp(), torch.tensor(5.0, dtype=F64)))
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert slope.max() <= 5.0


def test_the_cross_entropy_is_lipschitz_with_the_square_root_of_two() -> None:
    """Not 1, as printed in appendix A.1: that is its constant in the maximum norm of the gradient."""
    logits = torch.tensor([[-20.0, 20.0, -20.0], [0.3, 0.1, -0.5]], dtype=F64, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor([0, 0]), reduction="sum")
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.norm(dim=1)[0].item() == pytest.approx(math.sqrt(2))
    assert gradient.norm(dim=1)[1] < math.sqrt(2)


@pytest.mark.parametrize("name", DATA_SET)
def test_averages_over_the_data_set_are_constants(name: str) -> None:
    given = [x.clone().requires_grad_() for x in averages(MEAN, STD)]
    mean = MEAN.clone().requires_grad_()
    gradients = torch.autograd.grad(DATA_SET[name](mean, STD, *given).mean(), (mean, *given), allow_unused=True)
    assert gradients[0] is not None
    assert all(gradient is None for gradient in gradients[1:])
