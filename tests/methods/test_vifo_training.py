"""VIFO from `fit` to `predict`: the optimum of its objective, rows, several targets and tokens, alone and in ensembles.

The nets are linear and the inputs one-hot, so that every input has outputs of its own, whose best distribution is known: for a
Gaussian likelihood and a fixed prior in closed form, for classes by quadrature and a search.
"""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bayesify import VIFO, Bayesian, DeepEnsemble, Method, bayesify, elbo, fit, predict
from bayesify.likelihoods import Categorical, Gaussian, HeteroscedasticGaussian, Likelihood

F64 = torch.float64
NOISE, ETA, ETA_AUX, PRIOR = 0.5, 0.3, 0.7, 1.4
NAIVE = VIFO(regularizer="naive", eta=ETA, prior_std=PRIOR**0.5)


def trained(net: nn.Module, method: Method, x: Tensor, y: Tensor, likelihood: Likelihood, **settings: object) -> Bayesian:
    """Every step sees all rows; the learning rate falls to a hundredth."""
    bnn = bayesify(net, method).double()
    schedule = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.01 ** (1 / 300))
    common: dict = {"epochs": 300, "batch_size": len(x), "learning_rate": 0.05, "accelerator": "cpu", "progress": False}
    fit(bnn, (x, y), likelihood.double(), scheduler=schedule, **{**common, **settings})
    return bnn.eval()


def best(y: Tensor, weight: float, noise: float | Tensor = NOISE) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation that minimize E(y - z)^2 / 2 noise^2 + weight KL(N(m, s^2) || N(0, PRIOR)), y (N, O, D)."""
    precision = 1 / torch.as_tensor(noise, dtype=F64) ** 2
    mean = y * precision / (precision + weight / PRIOR)
    return mean, (weight / (precision + weight / PRIOR)).sqrt().expand_as(mean)


def targets(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("separate", [True, False])
def test_several_targets(separate: bool) -> None:
    x, y, noise = torch.eye(4, dtype=F64), targets(4, 2), [0.5, 0.2]
    bnn = trained(nn.Linear(4, 2), NAIVE.replace(separate_std=separate), x, y, Gaussian(std=noise))
    outputs = bnn.normal_outputs(x)
    assert outputs is not None
    mean, std = best(y, ETA, torch.tensor(noise))
    torch.testing.assert_close((outputs.mean, outputs.std), (mean, std), atol=5e-3, rtol=5e-3)
    p = predict(bnn, x, Gaussian(std=noise).double(), samples=20_000, seed=0)
    torch.testing.assert_close(p.mean, mean.detach(), atol=0.02, rtol=0)
    torch.testing.assert_close(p.epistemic, std**2, atol=0, rtol=0.05)
    torch.testing.assert_close(p.variance, std**2 + torch.tensor(noise, dtype=F64) ** 2, atol=0, rtol=0.05)


@pytest.mark.parametrize("kind", ["tensor", "loader"])
def test_auxiliary_inputs_weigh_as_much_as_they_should(kind: str) -> None:
    """Where data and auxiliary inputs fall together, the weight is the sum; at those apart from the data the prior is learned."""
    x, y = torch.eye(4, dtype=F64)[:3], targets(3)
    away = torch.cat([x, x, torch.eye(4, dtype=F64)[3:].expand(6, 4)])  # half of them where the data are
    given = away if kind == "tensor" else DataLoader(TensorDataset(away, torch.zeros(12)), batch_size=12, shuffle=True)
    method = NAIVE.replace(eta_aux=ETA_AUX)
    bnn = trained(nn.Linear(4, 1, bias=False), method, x, y, Gaussian(std=NOISE), auxiliary=given, batch_size=12)
    outputs = bnn.normal_outputs(torch.eye(4, dtype=F64))
    assert outputs is not None
    mean, std = best(y, ETA + ETA_AUX / 2)
    expected = torch.cat([mean, mean.new_zeros(1)])[:, None], torch.cat([std, std.new_full((1,), math.sqrt(PRIOR))])[:, None]
    torch.testing.assert_close((outputs.mean, outputs.std), expected, atol=5e-3, rtol=5e-3)


class Tokens(nn.Module):
    """One layer for every token: (B, T, I) -> (B, T, O)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


def tokens() -> Tensor:
    """(4, 3, 6): every one of six tokens twice."""
    return torch.eye(6, dtype=F64)[torch.tensor([[0, 1, 2], [3, 4, 5], [2, 0, 4], [5, 3, 1]])]


@pytest.mark.parametrize("method", [NAIVE, DeepEnsemble(members=2, base=NAIVE)], ids=["alone", "ensemble"])
def test_numbers_for_tokens(method: Method) -> None:
    x, by_token = tokens(), targets(6, 2)
    y = x @ by_token
    bnn = trained(Tokens(6, 2), method, x, y, Gaussian(std=NOISE))
    mean, std = best(y, ETA)
    for member in bnn.members or (bnn,):
        outputs = member.normal_outputs(x)
        assert outputs is not None
        torch.testing.assert_close((outputs.mean, outputs.std), (mean, std), atol=5e-3, rtol=5e-3)
    p = predict(bnn, x, Gaussian(std=NOISE).double(), samples=4000, seed=0)
    assert p.mean.shape == (4, 3, 2)
    torch.testing.assert_close(p.mean, mean, atol=0.05, rtol=0)
    torch.testing.assert_close(p.epistemic, std**2, atol=0, rtol=0.15)


def test_numbers_for_tokens_with_noise_of_their_own() -> None:
    x = tokens()
    y = (x @ targets(6, 1)).repeat(40, 1, 1)
    noise = x.repeat(40, 1, 1) @ torch.linspace(0.2, 1.2, 6, dtype=F64)[:, None]
    y = y + noise * targets(*y.shape)
    likelihood = HeteroscedasticGaussian()
    bnn = trained(Tokens(6, 2), VIFO(eta=0.01), x.repeat(40, 1, 1), y, likelihood)
    p = predict(bnn, x, likelihood, samples=2000, seed=0)
    seen = torch.stack([y.reshape(40, 4, 3)[:, i, j] for i in range(4) for j in range(3)])
    torch.testing.assert_close(p.mean.flatten(), seen.mean(1), atol=0.25, rtol=0)
    assert torch.corrcoef(torch.stack([p.aleatoric.flatten().sqrt(), noise[:4].flatten()]))[0, 1] > 0.95


def best_log_odds(share: float) -> tuple[float, float, float]:
    """Mean log odds, standard deviation of an output and probability of class 1 of two, seen in this share of the examples."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()

    def odds(v: np.ndarray) -> np.ndarray:
        """The difference of outputs -m and m of one standard deviation: normal, with twice the mean and twice the variance."""
        return 2 * v[0] + math.sqrt(2) * math.exp(v[1]) * nodes

    def objective(v: np.ndarray) -> float:
        nll = weights @ (share * np.logaddexp(0, -odds(v)) + (1 - share) * np.logaddexp(0, odds(v)))
        s = math.exp(v[1])
        return nll + ETA * 2 * (0.5 * (v[0] ** 2 + s**2) / PRIOR - math.log(s) + 0.5 * math.log(PRIOR) - 0.5)

    v = minimize(objective, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).x
    return 2 * v[0], math.exp(v[1]), float(weights @ (1 / (1 + np.exp(-odds(v)))))


@pytest.mark.parametrize("of", ["rows", "tokens"])
def test_classes(of: str) -> None:
    """Two kinds of input, one seen with class 1 in a quarter of the examples, the other in seven eighths."""
    kinds = torch.eye(2, dtype=F64).repeat(8, 1, 1)
    labels = torch.tensor([[k < 2, k < 7] for k in range(8)]).long()
    x, y, net = (kinds, labels, Tokens(2, 2)) if of == "tokens" else (kinds.flatten(0, 1), labels.flatten(), nn.Linear(2, 2))
    bnn = trained(net, NAIVE, x, y, Categorical(), samples=64)
    outputs, p = bnn.normal_outputs(x[:2]), predict(bnn, x[:2], Categorical(), samples=20_000, seed=0)
    assert outputs is not None
    mean, std, probs = (v.reshape(-1, 2)[:2] for v in (outputs.mean.detach(), outputs.std.detach(), p.probs))
    for row, share in enumerate((0.25, 0.875)):
        odds, spread, probability = best_log_odds(share)
        assert float(mean[row, 1] - mean[row, 0]) == pytest.approx(odds, abs=0.06)
        assert std[row].tolist() == pytest.approx([spread, spread], rel=0.05)
        assert float(probs[row, 1]) == pytest.approx(probability, abs=0.01)
    assert p.entropy.shape == y[:2].shape


@pytest.mark.parametrize("eta", [0.003, 1.0])
@pytest.mark.parametrize("members", [1, 2])
def test_a_loop_of_ones_own_has_the_loss_of_fit(eta: float, members: int) -> None:
    """The README's two lines pay the regularizer with the weight that the method asks for."""
    x, y = torch.randn(12, 3, dtype=F64), torch.randint(0, 4, (12,))
    method: Method = VIFO(eta=eta, initial_std=2.0)
    method = method if members == 1 else DeepEnsemble(members=members, base=method)
    bnn, likelihood = bayesify(nn.Sequential(nn.Linear(3, 4)).double(), method), Categorical().double()
    samples, losses = 4000, []
    with torch.no_grad():
        torch.manual_seed(0)
        draws = bnn(x, samples=members * samples)
        losses.append(float(-elbo(draws, likelihood.log_prob(draws.outputs, y), n=len(x))))
        regularizer = float(draws.local_kl.mean())
    settings: dict[str, Any] = {"batch_size": 12, "learning_rate": 1e-12, "accelerator": "cpu", "progress": False}
    losses += fit(bnn, (x, y), likelihood, epochs=1, samples=samples, seed=0, **settings).loss
    assert losses[0] == pytest.approx(losses[1], abs=0.03)  # about 5 standard errors of both
    assert regularizer > 1, "paid with another weight it would show"
