"""Bayesian linear regression, where posterior and evidence are known: fits reach them, bounds hold, and beliefs are calibrated.

Data y = Xw + noise with known noise and prior N(0, s^2) on every weight, the bias among them (a column of ones in X). The
posterior is N(m, P^-1), P = X'X / noise^2 + I / s^2. Of all independent normals q the one with the least KL(q || posterior) has the
same mean and variances 1 / P_jj; it misses the log evidence by (sum_j log P_jj - log det P) / 2: nothing if X'X is diagonal.
"""

import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from bayesify import Bayesian, BayesianLayer, Draws, MeanField, bayesify, elbo
from bayesify.core import layer as random_layer
from bayesify.methods import _weight_priors
from bayesify.native import switch

NOISE_STD, PRIOR_STD = 0.6, 0.8
NOISE = ("local", "shared")


def _site(bnn: Bayesian) -> BayesianLayer:
    return next(site for _, site in bnn.random_layers())


def _fit(bnn: Bayesian, x: Tensor, y: Tensor, noise_std: float, steps: int, samples: int) -> Bayesian:
    """Maximize the ELBO; the step size falls to zero, which averages the gradient noise out."""
    optimizer = torch.optim.Adam(bnn.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        draws = bnn(x, samples=samples)
        (-elbo(draws, _log_prob(draws, y, noise_std), n=len(x))).backward()
        optimizer.step()
        schedule.step()
    return bnn


def _log_prob(draws: Draws, y: Tensor, noise_std: float) -> Tensor:
    return Normal(draws.outputs, noise_std).log_prob(y).sum(-1)


class _Problem:
    """One data set, its exact posterior and its log evidence."""

    def __init__(self, orthogonal: bool) -> None:
        generator = torch.Generator().manual_seed(5)
        design = torch.randn(20, 4, generator=generator, dtype=torch.float64)
        if orthogonal:
            # columns orthogonal to each other and to the column of ones that the bias multiplies
            basis = torch.linalg.qr(torch.cat([torch.ones(20, 1).double(), design[:, :3]], 1)).Q
            self.x = basis[:, 1:] * torch.tensor([2.0, 3.0, 1.0]).double()
        else:
            self.x = design[:, :3] + design[:, 3:] + 0.5
        self.design = torch.cat([self.x, torch.ones(20, 1).double()], 1)
        weights = PRIOR_STD * torch.randn(4, generator=generator, dtype=torch.float64)
        self.y = self.design @ weights + NOISE_STD * torch.randn(20, generator=generator, dtype=torch.float64)
        self.precision = self.design.T @ self.design / NOISE_STD**2 + torch.eye(4).double() / PRIOR_STD**2
        self.mean = torch.linalg.solve(self.precision, self.design.T @ self.y / NOISE_STD**2)
        self.std = self.precision.diag().rsqrt()
        covariance = PRIOR_STD**2 * self.design @ self.design.T + NOISE_STD**2 * torch.eye(20).double()
        self.log_evidence = MultivariateNormal(torch.zeros(20).double(), covariance).log_prob(self.y).item()
        self.gap = 0.5 * (self.precision.diag().log().sum() - self.precision.logdet()).item()

    def network(self, noise: str, mean: Tensor | None = None, std: Tensor | None = None) -> Bayesian:
        bnn = bayesify(nn.Linear(3, 1).double(), MeanField(noise=noise, prior_std=PRIOR_STD))
        if mean is not None and std is not None:
            site, log_std = _site(bnn), std.log()
            with torch.no_grad():
                site.weight.copy_(mean[None, :3])
                site.bias.copy_(mean[3:])
                site.posterior.weight_log_std.copy_(log_std[None, :3])
                site.posterior.bias_log_std.copy_(log_std[3:])
        return bnn

    def bound(self, bnn: Bayesian, samples: int = 4000) -> tuple[float, float]:
        """n times the ELBO over many draws, and its standard error."""
        with torch.no_grad():
            draws = bnn(self.x, samples=samples)
            log_prob = _log_prob(draws, self.y[:, None], NOISE_STD)
            value = 20 * elbo(draws, log_prob, n=20).item()
        return value, log_prob.sum(1).std().item() / samples**0.5

    def exact_bound(self, mean: Tensor, std: Tensor) -> float:
        """The same in closed form: residuals, what the variances add to them, and torch's KL."""
        squares = (self.y - self.design @ mean).square().sum() + self.design.square().sum(0) @ std**2
        expected = -10 * math.log(2 * math.pi * NOISE_STD**2) - squares / (2 * NOISE_STD**2)
        return (expected - kl_divergence(Normal(mean, std), Normal(mean * 0, PRIOR_STD)).sum()).item()


@pytest.mark.default("*-local")
@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("orthogonal", [False, True])
def test_fit_reaches_the_best_mean_field_posterior(orthogonal: bool, noise: str) -> None:
    problem = _Problem(orthogonal)
    bnn = _fit(problem.network(noise), problem.x, problem.y[:, None], NOISE_STD, steps=1000, samples=16)
    site = _site(bnn)
    mean = torch.cat([site.weight.detach()[0], site.bias.detach()])
    std = torch.cat([site.posterior.weight_log_std.detach()[0], site.posterior.bias_log_std.detach()]).exp()
    assert ((mean - problem.mean) / problem.std).abs().max() < 0.05
    assert (std / problem.std).log().abs().max() < 0.05
    # flat at the optimum: within 0.02 nats of the best, which is the evidence itself where X'X is diagonal
    assert problem.log_evidence - problem.exact_bound(mean, std) == pytest.approx(problem.gap, abs=0.02)


@pytest.mark.parametrize("orthogonal", [False, True])
def test_the_gap_at_the_optimum_is_the_divergence_from_the_posterior(orthogonal: bool) -> None:
    problem = _Problem(orthogonal)
    exact = MultivariateNormal(problem.mean, precision_matrix=problem.precision)
    closest = MultivariateNormal(problem.mean, problem.std.square().diag())
    assert problem.gap == pytest.approx(kl_divergence(closest, exact).item(), abs=1e-9)
    assert (problem.gap < 1e-9) == orthogonal
    for noise in NOISE:
        value, error = problem.bound(problem.network(noise, problem.mean, problem.std), samples=40_000)
        assert error < 0.02
        assert problem.log_evidence - value == pytest.approx(problem.gap, abs=5 * error)


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("orthogonal", [False, True])
def test_the_elbo_never_exceeds_the_log_evidence(orthogonal: bool, noise: str) -> None:
    problem = _Problem(orthogonal)
    for scale in (0.0, 0.3, 1.0, 3.0):
        for _ in range(5):
            mean = problem.mean + scale * problem.std * torch.randn(4).double()
            std = problem.std * torch.exp(0.5 * scale * torch.randn(4).double())
            value, error = problem.bound(problem.network(noise, mean, std))
            exact = problem.exact_bound(mean, std)
            assert abs(value - exact) < 5 * error
            assert exact <= problem.log_evidence - problem.gap + 1e-9
            assert value <= problem.log_evidence + 5 * error


# Simulation-based calibration: 1,000 data sets of 8 examples at once, one per output unit of a single layer. X'X = 2 I, noise and
# prior of standard deviation 1: data and prior weigh about the same, so a wrong weight of either shows.
SETS, RANKS = 1000, 99


def _calibration(noise: str) -> tuple[float, float, float]:
    """p values: ranks of the true weights uniform, new observations' ranks uniform, 90 % intervals hold 90 % of them."""
    torch.manual_seed(2)
    x = torch.linalg.qr(torch.randn(8, 3).double()).Q * 2**0.5
    truth = torch.randn(SETS, 3).double()
    y = x @ truth.T + torch.randn(8, SETS).double()
    bnn = _fit(bayesify(nn.Linear(3, SETS, bias=False).double(), MeanField(noise=noise)), x, y, 1.0, steps=400, samples=8)
    new = torch.tensor([[1.0, -1.0, 0.5]]).double()
    observed = new @ truth.T + torch.randn(1, SETS).double()
    with torch.no_grad():
        weights, _ = _site(bnn).posterior.sample(_site(bnn), RANKS)
        predicted = bnn(new, samples=RANKS).outputs
        predicted = predicted + torch.randn_like(predicted)
    ranks = (predicted < observed).sum(0).flatten()
    inside = int(((ranks >= 5) & (ranks < 95)).sum())
    return _uniform((weights < truth).sum(0).flatten()), _uniform(ranks), stats.binomtest(inside, SETS, 0.9).pvalue


def _uniform(ranks: Tensor) -> float:
    """Chi-square p value of ranks 0 ... 99 being uniform, in 20 bins."""
    return stats.chisquare(torch.bincount(ranks // 5, minlength=20).numpy()).pvalue


@pytest.mark.parametrize("noise", NOISE)
def test_posteriors_and_predictions_are_calibrated(noise: str) -> None:
    assert min(_calibration(noise)) > 1e-3


_HOMES = {"gaussian_kl_and_spread": _weight_priors, "local_reparameterization": random_layer}


def _scaled(name: str, factor: float) -> Callable[..., object]:
    original = getattr(_HOMES[name], name)
    if name == "gaussian_kl_and_spread":

        def scaled(*args: object) -> tuple[Tensor, ...]:
            kl, *spread = original(*args)
            return factor * kl, *spread

        return scaled
    return lambda mean, variance: original(mean, factor * variance)


@pytest.mark.default("*-2.0")
@pytest.mark.parametrize("factor", [0.5, 2.0])
@pytest.mark.parametrize("name", _HOMES)
def test_a_factor_of_two_is_found_out(name: str, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calibration test itself: it rejects a KL, or a variance of the outputs, that is off by a factor of two."""
    monkeypatch.setitem(switch.LIBRARIES, "cpu", None)  # native operators do not call these functions
    monkeypatch.setattr(_HOMES[name], name, _scaled(name, factor))
    assert _calibration("local")[0] < 1e-6
