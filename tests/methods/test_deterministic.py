"""Point estimates: the plain network, and maximum a posteriori against ridge regression."""

import copy

import pytest
import torch
from sklearn.linear_model import LinearRegression, Ridge
from torch import nn
from torch.distributions import Normal

from bayesify import Bayesian, Deterministic, bayesify, elbo


@pytest.mark.parametrize("coherent", [False, True])
def test_every_draw_is_the_plain_network(coherent: bool) -> None:
    net = nn.Sequential(nn.Conv1d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(9, 2)).double()
    x = torch.randn(5, 2, 4).double()
    outputs = bayesify(copy.deepcopy(net), Deterministic())(x, samples=3, coherent=coherent).outputs
    torch.testing.assert_close(outputs, net(x).expand(3, 5, 2))


def test_kl_is_the_negative_log_prior_up_to_a_constant() -> None:
    bnn = bayesify(nn.Sequential(nn.Linear(3, 2).double()), Deterministic(prior_std=0.5))
    prior = Normal(torch.zeros(()).double(), 0.5)
    kls, priors = [], []
    for _ in range(2):
        for parameter in bnn.parameters():
            nn.init.normal_(parameter)
        kls.append(bnn.kl())
        priors.append(sum(prior.log_prob(parameter).sum() for parameter in bnn.parameters()))
    torch.testing.assert_close(kls[0] - kls[1], priors[1] - priors[0])
    for parameter in bnn.parameters():
        nn.init.zeros_(parameter)
    assert bnn.kl() == 0


def test_maximum_likelihood_has_no_kl() -> None:
    assert bayesify(nn.Sequential(nn.Linear(3, 2)), Deterministic()).kl() == 0


def _fit(bnn: Bayesian, x: torch.Tensor, y: torch.Tensor, noise_std: float) -> None:
    optimizer = torch.optim.LBFGS(bnn.parameters(), max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-15)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        draws = bnn(x)
        loss = -elbo(draws, Normal(draws.outputs, noise_std).log_prob(y).sum(-1), n=len(x))
        loss.backward()
        return loss

    optimizer.step(closure)


@pytest.mark.parametrize("prior_std", [None, 0.3])
def test_elbo_gives_the_maximum_a_posteriori(prior_std: float | None) -> None:
    x, noise_std = torch.randn(12, 3).double(), 0.7
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]]).double() + noise_std * torch.randn(12, 1).double()
    bnn = bayesify(nn.Sequential(nn.Linear(3, 1, bias=False).double()), Deterministic(prior_std=prior_std))
    _fit(bnn, x, y, noise_std)
    ridge = Ridge(alpha=(noise_std / prior_std) ** 2, fit_intercept=False) if prior_std else LinearRegression(fit_intercept=False)
    expected = torch.from_numpy(ridge.fit(x.numpy(), y.numpy()).coef_).reshape(1, 3)
    torch.testing.assert_close(bnn.net[0].weight.detach(), expected, atol=1e-6, rtol=1e-6)


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"prior_std must be a finite number above 0, got -1\.0"):
        Deterministic(prior_std=-1.0)
