"""IVON: steps against algorithm 1 in NumPy, the estimate of the Hessian by Monte Carlo, the fixed point by dense algebra."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import hessian

from bayesify import IVON, Bayesian, ConfigurationError, Gaussian, LinearWarmup, MeanField, bayesify, elbo, fit, update_prior
from bayesify.estimators import BayesianRegressor
from bayesify.train import Training, fit_many

F64 = torch.float64
N, BETA, PRIOR_STD, NOISE = 12, 0.5, 0.7, 0.3


def _data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 3, dtype=F64, generator=generator)
    return x, x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=F64) + 0.3


def _linear(method: IVON | None = None) -> Bayesian:
    torch.manual_seed(1)
    return bayesify(nn.Linear(3, 1).double(), method or IVON(prior_std=PRIOR_STD, hessian_rate=0.2, momentum=0.8))


def _loss(bnn: Bayesian, x: Tensor, y: Tensor, samples: int = 1, beta: float = BETA) -> Tensor:
    draws = bnn(x, samples=samples)
    return -elbo(draws, -0.5 * ((y - draws.outputs) / NOISE).square().sum(-1), n=N, beta=beta)


def test_steps_are_those_of_algorithm_1() -> None:
    bnn, (x, y), rate = _linear(), _data(), 0.1
    reference, prior_precision, ess = copy.deepcopy(bnn), 1 / PRIOR_STD**2, N / BETA
    m = torch.cat([reference.net.weight.flatten(), reference.net.bias]).detach().numpy()
    h0 = 1 / (N * 0.1**2 / 3) - prior_precision / N
    delta, h, g = prior_precision / ess, np.full(4, h0), np.zeros(4)
    sigma = np.full(4, 0.1 / math.sqrt(3))
    optimizer = bnn.optimizer(learning_rate=rate)
    data = np.concatenate([x.numpy(), np.ones((N, 1))], 1)
    for t in range(1, 4):
        torch.manual_seed(t)
        weight, bias = bnn.net.posterior.sample(bnn.net, 1)
        theta = torch.cat([weight.flatten(), bias.flatten()]).detach().numpy()
        gradient = -data.T @ (y.numpy().ravel() - data @ theta) / NOISE**2 / N
        curvature = gradient * (theta - m) / sigma**2
        g = 0.8 * g + 0.2 * gradient
        h = 0.8 * h + 0.2 * curvature + 0.5 * 0.2**2 * (h - curvature) ** 2 / (h + delta)
        m = m - rate * (g / (1 - 0.8**t) + delta * m) / (h + delta)
        sigma = 1 / np.sqrt(ess * (h + delta))
        torch.manual_seed(t)
        _loss(bnn, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        np.testing.assert_allclose(torch.cat([bnn.net.weight.flatten(), bnn.net.bias]).detach().numpy(), m, rtol=1e-9)
        p = bnn.net.posterior
        stds = torch.cat([p.weight_log_std.flatten(), p.bias_log_std]).exp().detach().numpy()
        np.testing.assert_allclose(stds, sigma, rtol=1e-9)
    assert bnn.net.posterior.ess == ess


@pytest.mark.parametrize("noise", ["shared", "local"])
def test_the_gradient_of_the_spread_estimates_the_expected_hessian(noise: str) -> None:
    """For a network that is not linear, against the Hessian of the loss at draws of the weights."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    bnn = bayesify(net, {"0": IVON(noise=noise, initial_std=0.4)})
    x, y, layer = torch.randn(5, 2, dtype=F64), torch.randn(5, 1, dtype=F64), bnn.net[0]
    draws = bnn(x, samples=40_000)
    (-Gaussian(std=1.0).double().log_prob(draws.outputs, y).mean()).backward()
    estimate = layer.posterior.weight_log_std.grad / (2 * layer.posterior.weight_log_std).exp()

    def loss(weight: Tensor, bias: Tensor) -> Tensor:
        outputs = torch.tanh(x @ weight.T + bias) @ net[2].weight.detach().T + net[2].bias.detach()
        return 0.5 * (outputs - y).square().mean()

    with torch.no_grad():
        weights, biases = layer.posterior.sample(layer, 400)
    diagonals = torch.stack(
        [hessian(loss)(w, b).reshape(6, 6).diagonal().reshape(3, 2) for w, b in zip(weights, biases, strict=True)]
    )
    error = 5 * diagonals.std(0) / math.sqrt(400) + 0.01 * diagonals.abs().max()
    assert ((estimate - diagonals.mean(0)).abs() < error).all()


def _train_exactly(bnn: Bayesian, x: Tensor, y: Tensor, steps: int, beta: float = BETA) -> None:
    """Steps with the exact expectation of the log likelihood of a linear model."""
    optimizer = bnn.optimizer(learning_rate=0.3)
    for _ in range(steps):
        draws = bnn(x)
        mean, variance = bnn.net.posterior.moments(bnn.net, x)
        expected = -0.5 * ((y - mean).square() + variance).sum(1) / NOISE**2
        (-elbo(draws, expected.unsqueeze(0), n=len(x), beta=beta)).backward()
        optimizer.step()
        optimizer.zero_grad()


def _posterior(x: Tensor, y: Tensor, precision: Tensor, mean: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Mean and precision matrix of the exact posterior of weights and bias with the likelihood to the power 1 / beta."""
    data = torch.cat([x, torch.ones(len(x), 1, dtype=F64)], 1)
    total = data.T @ data / (beta * NOISE**2) + precision.diag()
    return torch.linalg.solve(total, data.T @ y.squeeze(1) / (beta * NOISE**2) + precision * mean), total


@pytest.mark.parametrize("noise", ["shared", "local"])
@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_the_fixed_point_is_the_best_mean_field_gaussian(noise: str, beta: float) -> None:
    (x, y), bnn = _data(), _linear(IVON(prior_std=PRIOR_STD, hessian_rate=0.1, noise=noise))
    _train_exactly(bnn, x, y, 300, beta)
    mean, precision = _posterior(x, y, torch.full((4,), PRIOR_STD**-2, dtype=F64), torch.zeros(4, dtype=F64), beta)
    _check(bnn, mean, precision)


def _check(bnn: Bayesian, mean: Tensor, precision: Tensor) -> None:
    p = bnn.net.posterior
    stds = torch.cat([p.weight_log_std.flatten(), p.bias_log_std]).exp()
    torch.testing.assert_close(torch.cat([bnn.net.weight.flatten(), bnn.net.bias]), mean, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(stds, precision.diagonal().rsqrt(), rtol=1e-7, atol=0)


def test_a_sequential_prior_is_the_posterior_of_the_first_data() -> None:
    (x, y), bnn = _data(), _linear(IVON(prior="sequential", prior_std=PRIOR_STD, hessian_rate=0.1))
    _train_exactly(bnn, x[:7], y[:7], 300, 1.0)
    mean, first = _posterior(x[:7], y[:7], torch.full((4,), PRIOR_STD**-2, dtype=F64), torch.zeros(4, dtype=F64), 1.0)
    update_prior(bnn)
    assert bnn.kl().abs() < 1e-12
    _train_exactly(bnn, x[7:], y[7:], 300, 1.0)
    _check(bnn, *_posterior(x[7:], y[7:], first.diagonal(), mean, 1.0))


def test_a_new_optimizer_continues_with_another_weight_of_the_kl() -> None:
    """The Hessian is kept: with a quarter of beta and a wide prior, the variance is a quarter."""
    (x, y), bnn = _data(), _linear(IVON(prior_std=1e6, hessian_rate=1e-9))
    _train_exactly(bnn, x, y, 1, 1.0)
    before = bnn.net.posterior.weight_log_std.detach().clone()
    _train_exactly(bnn, x, y, 1, 0.25)
    torch.testing.assert_close(bnn.net.posterior.weight_log_std.detach(), before - math.log(2), rtol=1e-6, atol=0)


def test_a_warm_up_of_beta_from_zero_is_finite() -> None:
    (x, y), bnn = _data(), _linear()
    settings = {"epochs": 30, "batch_size": 4, "learning_rate": 0.05, "accelerator": "cpu"}
    history = fit(bnn, (x, y), Gaussian(std=NOISE), beta=LinearWarmup(), **settings)
    assert all(map(math.isfinite, history.loss))
    assert N <= bnn.net.posterior.ess <= 1.1 * N


def test_scaled_and_accumulated_gradients_make_equal_steps() -> None:
    """A gradient scaler and two accumulated halves of the batch give the step of the whole batch."""
    (x, y), whole = _data(), _linear()
    halves = copy.deepcopy(whole)
    for bnn, parts in ((whole, [slice(0, 12)]), (halves, [slice(0, 6), slice(6, 12)])):
        optimizer, scaler = bnn.optimizer(learning_rate=0.1), torch.amp.GradScaler("cpu", init_scale=2.0**7, enabled=len(parts) > 1)
        for _ in range(3):
            for part in parts:
                torch.manual_seed(5)
                scaler.scale(_loss(bnn, x[part], y[part]) / len(parts)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    torch.testing.assert_close(whole.state_dict(), halves.state_dict(), rtol=1e-10, atol=1e-12)


def test_a_closure_gives_the_same_step() -> None:
    (x, y), bnn = _data(), _linear()
    other = copy.deepcopy(bnn)
    optimizer = bnn.optimizer()
    torch.manual_seed(0)
    _loss(bnn, x, y).backward()
    optimizer.step()
    closing = other.optimizer()

    def closure() -> Tensor:
        loss = _loss(other, x, y)
        loss.backward()
        return loss

    torch.manual_seed(0)
    assert closing.step(closure).isfinite()
    torch.testing.assert_close(bnn.state_dict(), other.state_dict())


def test_parameters_without_a_posterior_are_trained_by_adam() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    likelihood, (x, y) = Gaussian(std=0.5, learn=True).double(), _data()
    bnn = bayesify(net, {"2": IVON()})
    others = [*bnn.net[0].parameters(), *bnn.net[1].parameters(), *likelihood.parameters()]
    expected = [p.detach().clone().requires_grad_() for p in others]
    optimizer, adam = bnn.optimizer(likelihood, learning_rate=0.1, adam_learning_rate=0.02), torch.optim.Adam(expected, lr=0.02)
    for _ in range(3):
        draws = bnn(x)
        (-elbo(draws, likelihood.log_prob(draws.outputs, y), n=N)).backward()
        for p, q in zip(others, expected, strict=True):
            q.grad = p.grad.clone()
        optimizer.step()
        adam.step()
        optimizer.zero_grad()
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # as after a resume
    for p, q in zip(others, expected, strict=True):
        torch.testing.assert_close(p, q)


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path) -> None:
    def train(epochs: int, path) -> Bayesian:
        bnn = _linear().float()
        x, y = (v.float() for v in _data())
        fit(bnn, (x, y), Gaussian(std=NOISE), epochs=epochs, batch_size=5, learning_rate=0.1, checkpoint=path, accelerator="cpu")
        return bnn

    whole = train(6, tmp_path / "whole.pt")
    train(3, tmp_path / "parts.pt")
    torch.testing.assert_close(train(6, tmp_path / "parts.pt").state_dict(), whole.state_dict(), rtol=0, atol=0)


def test_a_frozen_mean_stays_and_its_spread_is_learned() -> None:
    (x, y), bnn = _data(), _linear()
    bnn.net.weight.requires_grad_(False)
    weight, log_std = bnn.net.weight.clone(), bnn.net.posterior.weight_log_std.detach().clone()
    optimizer = bnn.optimizer()
    _loss(bnn, x, y).backward()
    optimizer.step()
    assert torch.equal(bnn.net.weight, weight)
    assert not torch.equal(bnn.net.posterior.weight_log_std, log_std)


def test_adam_maximizes_the_same_elbo() -> None:
    """The gradients are those of mean field with shared noise."""
    x, y = _data()
    one = _linear(IVON(prior_std=PRIOR_STD))
    other = _linear()
    other = bayesify(copy.deepcopy(nn.Linear(3, 1).double()), MeanField(noise="shared", prior_std=PRIOR_STD))
    with torch.no_grad():
        for name, p in other.named_parameters():
            p.copy_(one.get_parameter(name))
    for bnn in (one, other):
        torch.manual_seed(2)
        _loss(bnn, x, y, samples=3).backward()
    for name, p in other.named_parameters():
        torch.testing.assert_close(one.get_parameter(name).grad, p.grad)


def test_fit_many_trains_one_after_another() -> None:
    x, y = _data()
    trainings = [Training(bnn=_linear().float(), data=(x.float(), y.float()), likelihood=Gaussian(), seed=k) for k in range(2)]
    alone = _linear().float()
    fit(alone, (x.float(), y.float()), Gaussian(), epochs=2, seed=1, accelerator="cpu")
    fit_many(trainings, epochs=2, accelerator="cpu")
    torch.testing.assert_close(trainings[1].bnn.state_dict(), alone.state_dict())
    with pytest.raises(ConfigurationError, match=r"cannot be trained together.*together=None"):
        fit_many(trainings, epochs=2, accelerator="cpu", together=True)


@pytest.mark.slow
def test_an_estimator_learns_a_line() -> None:
    x = np.linspace(-1, 1, 80)[:, None]
    y = 3 * x[:, 0] + np.random.default_rng(0).normal(0, 0.1, 80)
    model = BayesianRegressor(method="IVON", hidden=(8,), epochs=300, random_state=0).fit(x, y)
    assert model.score(x, y) > 0.9


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hessian_rate": 0.0}, "hessian_rate must be"),
        ({"hessian_rate": 1.5}, "hessian_rate must be"),
        ({"momentum": 1.0}, "momentum must be"),
        ({"noise": "weights"}, "noise must be one of"),
        ({"prior": "learned"}, "prior must be one of"),
        ({"prior_std": 0.0}, "prior_std must be"),
    ],
)
def test_bad_fields_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        IVON(**fields)


def test_wrong_uses_of_the_optimizer_are_refused() -> None:
    (x, y), bnn = _data(), _linear()
    with pytest.raises(ConfigurationError, match="no layer has a posterior with natural-gradient updates"):
        bayesify(nn.Linear(3, 1), MeanField()).optimizer()
    with pytest.raises(ConfigurationError, match="leave optimizer out"):
        fit(bnn, (x, y), Gaussian(), optimizer=torch.optim.Adam, accelerator="cpu")
    with pytest.raises(ConfigurationError, match="learning_rate must be"):
        bnn.optimizer(learning_rate=0.0)
    with pytest.raises(ConfigurationError, match="make another one"):
        bnn.optimizer().add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    optimizer = bnn.optimizer()
    bnn.eval()
    _loss(bnn, x, y).backward()
    with pytest.raises(ConfigurationError, match=r"elbo\(...\) tells it.*bnn.train.*objective = \(n, beta\)"):
        optimizer.step()
    optimizer.objective = (N, BETA)  # as for compiled calls
    optimizer.step()
    assert copy.deepcopy(bnn).passes.optimizer is None
