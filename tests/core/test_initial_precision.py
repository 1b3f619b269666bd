"""The share of precision that is left from initialization: by the moving average in closed form, and what training says of it."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from bayesify import IVON, SLANG, VOGN, Bayesian, Gaussian, NoisyAdam, NoisyKFAC, bayesify, elbo, fit, summary
from bayesify.core.natural import NaturalPosterior
from bayesify.core.natural_gradient import NaturalGradient
from bayesify.errors import BayesifyWarning
from bayesify.methods.vogn import GaussNewtonPosterior

N, RATE, STD, PRIOR_STD = 64, 0.1, 0.2, 2.0


def _data() -> tuple[Tensor, Tensor]:
    x = torch.randn(N, 4, generator=torch.Generator().manual_seed(0))
    return x, x.sum(1, keepdim=True)


def _train(bnn: Bayesian, steps: int, learning_rate: float = 0.1, beta: float = 1.0) -> NaturalGradient:
    (x, y), likelihood = _data(), Gaussian(std=0.5)
    optimizer = bnn.optimizer(likelihood, learning_rate=learning_rate)
    for _ in range(steps):
        draws = bnn(x)
        (-elbo(draws, likelihood.log_prob(draws.outputs, y), n=N, beta=beta)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_share_is_that_of_the_moving_average(beta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a constant curvature c, h = (1 - rate)^T h_0 + (1 - (1 - rate)^T) c."""
    curvature, steps = 0.3, 7
    monkeypatch.setattr(GaussNewtonPosterior, "hessian", lambda self, gradients: torch.full_like(gradients.variance, curvature))
    bnn = bayesify(nn.Linear(4, 1), VOGN(hessian_rate=RATE, initial_std=STD, prior_std=PRIOR_STD))
    optimizer = _train(bnn, steps, beta=beta)
    left, initial = (1 - RATE) ** steps, 4 / STD**2
    kept = left * (initial - PRIOR_STD**-2) / beta
    precision = kept + (1 - left) * curvature * N / beta + PRIOR_STD**-2
    assert optimizer.initial.share(steps, N) == pytest.approx(kept / precision, rel=0.01)


@pytest.mark.parametrize("method", [IVON(), VOGN(), NoisyAdam(), NoisyKFAC(), SLANG()], ids=lambda method: type(method).__name__)
def test_precisions_are_those_of_draws(method: IVON | VOGN | NoisyAdam | NoisyKFAC | SLANG) -> None:
    layer = bayesify(nn.Linear(4, 1), method).net
    assert isinstance(layer.posterior, NaturalPosterior)
    torch.manual_seed(0)
    weight, _ = layer.posterior.sample(layer, 20_000)
    precisions = layer.posterior.precisions(layer)
    assert precisions is not None
    assert precisions.log().mean().item() == pytest.approx(-weight.var(0).log().mean().item(), abs=0.05)


def test_fit_says_that_curvature_was_not_learned() -> None:
    bnn = bayesify(nn.Linear(4, 1), IVON())
    with pytest.warns(BayesifyWarning, match=r"\d+% of the posterior's precision .* 20 steps .* rate of 0.001\. .* about 0.5"):
        fit(bnn, _data(), Gaussian(std=5.0), epochs=20, batch_size=N, learning_rate=0.1, accelerator="cpu")
    assert "precision is that of initialization" in str(summary(bnn))


def test_nothing_is_said_of_learned_curvature_or_a_further_training() -> None:
    bnn = bayesify(nn.Linear(4, 1), IVON(hessian_rate=0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(bnn, _data(), Gaussian(std=0.5), epochs=100, batch_size=N, learning_rate=0.1, accelerator="cpu")
        fit(bnn, _data(), Gaussian(std=0.5), epochs=2, batch_size=N, learning_rate=0.1, accelerator="cpu")


def test_a_loop_of_ones_own_can_ask() -> None:
    bnn = bayesify(nn.Linear(4, 1), SLANG())
    _train(bnn, 5)
    with pytest.warns(BayesifyWarning, match="precision is that of initialization"):
        bnn.tell_of_optimizer()
