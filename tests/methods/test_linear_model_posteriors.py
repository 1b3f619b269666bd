r"""What natural-gradient and factorized posteriors are on a linear-Gaussian model, against dense formulas.

With targets $y = Xw + \epsilon$ the exact posterior has the precision $P = X^\top X / s^2 + I$, and its best approximation by
independent weights the variances $1 / P_{jj}$. The methods below are trained with drawn weights, as
users train them, and their spread is compared with the stationary point of their updates. Where that differs from the posterior,
the test says by how much.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from bayesify import IVON, SLANG, VOGN, Bayesian, Gaussian, NoisyAdam, NoisyKFAC, TensorFactorized, bayesify, elbo
from bayesify.core.method import Method

F64 = torch.float64
ROWS, NOISE = 100, 0.5


def _problem() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs with correlations, targets, and the posterior's precision and mean under a prior N(0, I)."""
    generator = torch.Generator().manual_seed(0)
    root = torch.tensor([[1.0, 0, 0], [0.8, 0.6, 0], [0.3, 0.3, 0.9]], dtype=F64)
    x = torch.randn(ROWS, 3, dtype=F64, generator=generator) @ root.T
    y = x @ torch.randn(3, 1, dtype=F64, generator=generator) + NOISE * torch.randn(ROWS, 1, dtype=F64, generator=generator)
    precision = x.T @ x / NOISE**2 + torch.eye(3, dtype=F64)
    return x, y, precision, torch.linalg.solve(precision, x.T @ y / NOISE**2)


def _train(method: Method, batch: int = ROWS, steps: int = 1500, rate: float = 0.05) -> tuple[Tensor, Tensor]:
    """Mean (3,) and precision (3, 3), averaged over the last third of the steps, whose rate decays to 0."""
    x, y, *_ = _problem()
    torch.manual_seed(1)
    bnn = bayesify(nn.Linear(3, 1, bias=False).double(), method)
    needs_likelihood = isinstance(method, NoisyKFAC)
    optimizer = bnn.optimizer(*([Gaussian(std=NOISE).double()] if needs_likelihood else []), learning_rate=rate)
    generator, means, precisions = torch.Generator().manual_seed(2), [], []
    for step in range(steps):
        rows = torch.randint(ROWS, (batch,), generator=generator) if batch < ROWS else slice(None)
        draws = bnn(x[rows])
        (-elbo(draws, -0.5 * ((y[rows] - draws.outputs) / NOISE).square().sum(-1), n=ROWS)).backward()
        optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
        optimizer.step()
        optimizer.zero_grad()
        if step > 2 * steps / 3:
            means.append(bnn.net.weight.detach().flatten().clone())
            precisions.append(_precision(bnn))
    return torch.stack(means).mean(0), torch.stack(precisions).mean(0)


def _precision(bnn: Bayesian) -> Tensor:
    """Of the weights' normal distribution, from the draws' defining parameters."""
    posterior = bnn.net.posterior
    with torch.no_grad():
        if hasattr(posterior, "weight_log_std"):
            return torch.exp(-2 * posterior.weight_log_std).flatten().diag()
        if hasattr(posterior, "factor"):
            return posterior.factor @ posterior.factor.T + posterior.log_diagonal.exp().diag()
        roots = [tril.tril(-1) + tril.diagonal().exp().diag() for tril in (posterior.row_tril, posterior.column_tril)]
        return torch.kron(*(root @ root.T for root in roots)).inverse()


def _check_mean(mean: Tensor, allowed: float = 0.6) -> None:
    """Differences are below a share of the posterior's standard deviation."""
    *_, precision, exact = _problem()
    assert ((mean - exact.flatten()).abs() < allowed * precision.inverse().diagonal().sqrt()).all()


@pytest.mark.default("VOGN", extended=[])
@pytest.mark.parametrize(
    "method",
    [pytest.param(VOGN(hessian_rate=0.02), id="VOGN"), pytest.param(SLANG(rank=3, hessian_rate=0.02), id="SLANG")],
)
def test_squared_gradients_of_examples_give_the_posterior(method: VOGN | SLANG) -> None:
    r"""Their expectation: $P = I + \sum_i x_i x_i^\top ((y_i - x_i m)^2 + x_i P^{-1} x_i^\top) / s^4$, or its diagonal."""
    x, y, exact, exact_mean = _problem()
    mean, precision = _train(method)
    _check_mean(mean)
    full = isinstance(method, SLANG)
    expected = exact
    for _ in range(50):
        covariance = expected.inverse()
        squares = (y - x @ exact_mean).square().flatten() + torch.einsum("ni,ij,nj->n", x, covariance, x)
        expected = (x * squares[:, None]).T @ x / NOISE**4 + torch.eye(3, dtype=F64)
        expected = expected if full else expected.diagonal().diag()
    torch.testing.assert_close(precision, expected, rtol=0.05, atol=0.02 * float(expected.max()))
    # the exact posterior, or the best by independent weights, up to the error of 100 squared residuals
    best = exact if full else exact.diagonal().diag()
    np.testing.assert_allclose(precision.inverse().diagonal(), best.inverse().diagonal(), rtol=0.3)


@pytest.mark.default("10", extended=[])
@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 10, ROWS])
def test_squares_of_batch_gradients_widen_the_posterior_of_noisy_adam(batch: int) -> None:
    r"""B examples with replacement: $E\hat g^2 = h / B + (1 - 1/B)\,E(\sum_i g_i / n)^2$, where h is VOGN's."""
    x, y, exact, exact_mean = _problem()
    rate, steps = (0.005, 5000) if batch == 1 else (0.02, 2000)
    mean, precision = _train(NoisyAdam(hessian_rate=rate), batch, steps, 0.02)
    _check_mean(mean)
    hessian, expected = x.T @ x / NOISE**2, exact.diagonal()
    share = 0.0 if batch == ROWS else 1 / batch
    for _ in range(200):
        variance = 1 / expected
        squares = (y - x @ exact_mean).square().flatten() + x.square() @ variance
        examples = (x.square() * squares[:, None]).mean(0) / NOISE**4
        whole = (hessian.square() @ variance + exact_mean.flatten().square()) / ROWS**2
        expected = 0.5 * expected + 0.5 * (ROWS * (share * examples + (1 - share) * whole) + 1)
    torch.testing.assert_close(precision.diagonal(), expected, rtol=0.15, atol=0)
    ratio = exact.diagonal() / precision.diagonal()  # of variances, to the best by independent weights
    assert (ratio < 1.3).all() if batch == 1 else (ratio > 4).all()


@pytest.mark.default("NoisyKFAC", "SLANG", extended=["*"])
@pytest.mark.parametrize(
    "method",
    [IVON(), VOGN(), NoisyAdam(), NoisyKFAC(), SLANG(rank=3)],
    ids=["IVON", "VOGN", "NoisyAdam", "NoisyKFAC", "SLANG"],
)
def test_the_bias_of_a_frozen_weight_is_trained(method: Method) -> None:
    """As in BitFit, which trains biases alone: its mean is that of the posterior given the weight."""
    x, y, *_ = _problem()
    y = y + 1
    torch.manual_seed(1)
    net = nn.Linear(3, 1).double()
    weight = net.weight.requires_grad_(False).detach().clone()
    exact = (y - x @ weight.T).sum() / NOISE**2 / (ROWS / NOISE**2 + 1)
    bnn, likelihood = bayesify(net, method), Gaussian(std=NOISE).double()
    optimizer, biases = bnn.optimizer(likelihood, learning_rate=0.1), []
    for step in range(200):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / 200)
        optimizer.zero_grad()
        draws = bnn(x, samples=2)
        (-elbo(draws, likelihood.log_prob(draws.outputs, y), n=ROWS)).backward()
        optimizer.step()
        biases.append(net.bias.item())
    assert torch.equal(net.weight, weight)
    assert np.mean(biases[-60:]) == pytest.approx(exact.item(), abs=0.08)
    assert biases[0] < exact.item() - 0.4


@pytest.mark.extended
def test_damping_narrows_the_posterior_of_noisy_kfac() -> None:
    r"""$\lambda\,(A + \pi\sqrt\delta I)(s + \sqrt\delta/\pi)$, with the curvature s of one output, exceeds the exact precision."""
    x, _, exact, _ = _problem()
    mean, precision = _train(NoisyKFAC(fisher_rate=0.02, invert_every=5))
    _check_mean(mean)
    a, s, root = x.T @ x / ROWS, 1 / NOISE**2, ROWS**-0.5
    ratio = math.sqrt(float(a.diagonal().mean()) / s)
    expected = ROWS * (a + ratio * root * torch.eye(3, dtype=F64)) * (s + root / ratio)
    torch.testing.assert_close(precision, expected, rtol=0.1, atol=0.02 * float(expected.max()))
    assert (torch.linalg.eigvalsh(expected - exact) > 0).all()


@pytest.mark.parametrize("estimate", [pytest.param(0.2, marks=pytest.mark.slow), 3.0])
def test_free_factors_give_a_tensor_factorized_weight_the_prior_of_variational_dropout(estimate: float) -> None:
    r"""A weight w = a c b, c ~ N(mu, sigma^2): over the free a and b, the least KL is log(1 + E[w]^2 / Var[w]) / 2.

    It has no scale, and pulls small weights to zero. The reference maximizes the ELBO of the mean and variance of w.
    """
    curvature = 4.0  # of the likelihood: its maximum is `estimate`, with variance 1/4
    torch.manual_seed(0)
    bnn = bayesify(nn.Linear(1, 1, bias=False).double(), TensorFactorized(rank=1, cores=1))
    posterior = bnn.net.posterior
    with torch.no_grad():
        for factor in (posterior.first, posterior.last, posterior.core_mean):
            factor.abs_()
    optimizer = torch.optim.Adam(bnn.parameters(), lr=0.01)
    for _ in range(3000):
        ends = (posterior.first * posterior.last).squeeze()
        mean, variance = ends * posterior.core_mean.squeeze(), (ends * posterior.core_log_std.squeeze().exp()).square()
        loss = 0.5 * curvature * ((mean - estimate) ** 2 + variance) + bnn.kl()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x = torch.ones(1, 1, dtype=F64)
    drawn = bnn(x, samples=40_000).outputs.detach().flatten()

    def objective(values: np.ndarray) -> float:
        m, v = values[0], np.exp(values[1])
        return 0.5 * curvature * ((m - estimate) ** 2 + v) + 0.5 * np.log1p(m**2 / v)

    found = [minimize(objective, start, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
             for start in itertools.product([0.01, estimate], [-8.0, -1.0])]  # fmt: skip
    best = min(found, key=lambda result: result.fun)
    assert float(loss.detach()) == pytest.approx(best.fun, abs=1e-3)
    m, std = best.x[0], math.exp(0.5 * best.x[1])
    assert float(drawn.mean()) == pytest.approx(m, abs=0.02)
    assert float(drawn.std()) == pytest.approx(std, abs=0.02)
    assert m < 0.05 if estimate < 0.5 else m == pytest.approx(estimate, abs=0.1)
