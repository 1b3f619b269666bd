"""Noisy K-FAC: dense normals, the Fisher information of a model, steps in NumPy, exact posteriors of linear models."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence

from bayesify import (
    Bayesian,
    BayesianLayer,
    Categorical,
    ConfigurationError,
    DivergenceError,
    Gaussian,
    NoisyKFAC,
    bayesify,
    elbo,
    fit,
)
from bayesify.testing import check_method
from bayesify.train import Weighted
from bayesify.train.batch import as_batch
from bayesify.train.objective import Objective

F64 = torch.float64


def _converted(layer: nn.Module, **fields) -> tuple[Bayesian, BayesianLayer]:
    """A layer with covariances of order one."""
    torch.manual_seed(0)
    bnn = bayesify(nn.Sequential(layer.double()), NoisyKFAC(prior_std=0.7, **fields))
    ((_, site),) = bnn.random_layers()
    with torch.no_grad():
        for parameter in site.posterior.parameters():
            nn.init.normal_(parameter, -0.2, 0.4)
    return bnn, site


def _dense(site: BayesianLayer) -> MultivariateNormal:
    """The dense normal of the elements of (weight, bias), row by row."""
    factors = []
    for p in (site.posterior.row_tril, site.posterior.column_tril):
        lower = np.tril(p.detach().numpy(), -1)
        factors.append(lower + np.diag(np.exp(np.diag(p.detach().numpy()))))
    rows, columns = (factor @ factor.T for factor in factors)
    mean = torch.cat([site.weight.detach().flatten(1), *([] if site.bias is None else [site.bias.detach()[:, None]])], 1)
    return MultivariateNormal(mean.flatten(), torch.from_numpy(np.kron(rows, columns)))


LAYERS = [lambda: nn.Linear(3, 2), lambda: nn.Linear(4, 1, bias=False), lambda: nn.Conv2d(2, 3, 2)]


@pytest.mark.parametrize("make", LAYERS)
def test_draws_and_kl_are_those_of_dense_normals(make) -> None:
    bnn, site = _converted(make())
    q = _dense(site)
    prior = MultivariateNormal(torch.zeros_like(q.mean), 0.49 * torch.eye(len(q.mean), dtype=F64))
    torch.testing.assert_close(bnn.kl(), kl_divergence(q, prior), rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        weight, bias = site.posterior.sample(site, 40_000)
    draws = weight.flatten(2) if bias is None else torch.cat([weight.flatten(2), bias.unsqueeze(2)], 2)
    draws = draws.flatten(1) - q.mean
    products = draws.unsqueeze(2) * draws.unsqueeze(1)
    assert ((products.mean(0) - q.covariance_matrix).abs() < 5 * products.std(0) / 200).all()


def _observed(bnn: Bayesian, x: Tensor, likelihood: nn.Module, y: Tensor, samples: int = 1) -> dict[str, Tensor]:
    optimizer = bnn.optimizer(likelihood)
    draws = bnn(x, samples=samples)
    elbo(draws, likelihood.log_prob(draws.outputs, y), n=10).backward()
    ((values, passes),) = optimizer.observed.values()
    assert passes == 1
    return values


def test_the_fisher_information_is_that_of_targets_drawn_from_the_model() -> None:
    """S against the covariance of a categorical distribution, whatever the targets of the data are."""
    torch.manual_seed(0)
    bnn = bayesify(nn.Linear(2, 3).double(), NoisyKFAC(initial_std=1e-6))
    x = torch.tensor([[0.4, -1.0]], dtype=F64).expand(20_000, 2)
    values = _observed(bnn, x, Categorical(), torch.zeros(20_000, dtype=torch.int64))
    p = bnn.net(x[:1]).softmax(-1).squeeze(0).detach()
    fisher = p.diag() - p.outer(p)
    torch.testing.assert_close(values["output"], fisher, rtol=0, atol=5 * 0.5 / math.sqrt(20_000))
    a = torch.tensor([0.4, -1.0, 1.0], dtype=F64)
    torch.testing.assert_close(values["input"], a.outer(a), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("padding", [0, 1])
def test_moments_of_convolutions_are_sums_over_patches(padding: int) -> None:
    """The output gradients of a Gaussian likelihood with sampled targets are normal with a known variance."""
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 3, 2, stride=2, padding=padding)
    bnn, x = bayesify(conv.double(), NoisyKFAC()), torch.randn(4000, 2, 4, 4, dtype=F64)
    y = bnn(x, samples=1).outputs.squeeze(0)
    values = _observed(bnn, x, Gaussian(std=0.5).double(), y.detach())
    padded, patches = F.pad(x, [padding] * 4), []
    for i in range(0, padded.shape[2] - 1, 2):
        for j in range(0, padded.shape[3] - 1, 2):
            patch = padded[:, :, i : i + 2, j : j + 2].flatten(1)
            patches.append(torch.cat([patch, torch.ones(len(x), 1, dtype=F64)], 1))
    expected = sum(p.T @ p for p in patches) / len(x)
    torch.testing.assert_close(values["input"], expected)
    torch.testing.assert_close(values["output"], 4 * torch.eye(3, dtype=F64), rtol=0, atol=5 * 4 * math.sqrt(2 / 16_000))


class BalancedGaussian(Gaussian):
    """Draws targets whose gradients have exactly the second moments of the model."""

    def sample(self, outputs: Tensor) -> Tensor:
        rows, size = outputs.shape[1:]
        assert rows % size == 0
        return outputs + 0.3 * math.sqrt(size) * torch.eye(size, dtype=F64).repeat(rows // size, 1)


def _data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 3, dtype=F64, generator=generator)
    return x, torch.randn(12, 2, dtype=F64, generator=generator)


def _step(bnn: Bayesian, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, beta: float = 1.0) -> None:
    draws = bnn(x)
    (-elbo(draws, -0.5 * ((y - draws.outputs) / 0.3).square().sum(-1), n=12, beta=beta)).backward()
    optimizer.step()
    optimizer.zero_grad()


def _likelihood() -> Gaussian:
    likelihood = BalancedGaussian(std=0.3).double()
    likelihood.log_std.copy_(torch.tensor(0.3, dtype=F64).log())  # not rounded to float32
    return likelihood


@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_the_fixed_point_is_the_exact_posterior_of_a_linear_model(beta: float) -> None:
    """With a wide prior, the exact posterior is matrix normal."""
    torch.manual_seed(1)
    x, y = _data()
    fields = {"prior_std": 1e6, "fisher_rate": 0.2, "invert_every": 3, "damping": 0.1}
    bnn = bayesify(nn.Linear(3, 2).double(), NoisyKFAC(**fields))
    posterior = bnn.net.posterior
    drawn = posterior.sample
    optimizer = bnn.optimizer(_likelihood(), learning_rate=0.5)
    # draws at the mean: the expected gradient of a quadratic loss
    posterior.sample = lambda layer, _: tuple(m + 0 * d for m, d in zip(posterior.mean(layer), drawn(layer, 1), strict=True))
    for _ in range(400):
        _step(bnn, optimizer, x, y, beta)
    data = torch.cat([x, torch.ones(12, 1, dtype=F64)], 1)
    mean = torch.linalg.solve(data.T @ data, data.T @ y).T
    torch.testing.assert_close(torch.cat([bnn.net.weight, bnn.net.bias[:, None]], 1), mean, rtol=1e-6, atol=1e-7)
    precision = torch.kron(torch.eye(2, dtype=F64) / 0.09, data.T @ data) / beta
    torch.testing.assert_close(_dense(bnn.net).covariance_matrix, precision.inverse(), rtol=1e-4, atol=1e-9)


def test_steps_are_those_of_algorithm_2() -> None:
    torch.manual_seed(1)
    x, y = _data()
    method = NoisyKFAC(prior_std=0.7, momentum=0.8, fisher_rate=0.2, damping=0.05, invert_every=1)
    bnn = bayesify(nn.Linear(3, 2).double(), method)
    optimizer, ess = bnn.optimizer(_likelihood(), learning_rate=0.1), 12 / 0.5
    data = np.concatenate([x.numpy(), np.ones((12, 1))], 1)
    m = torch.cat([bnn.net.weight, bnn.net.bias[:, None]], 1).detach().numpy().copy()
    variance, delta, v = 0.01 / 3, 1 / 0.49 / ess, np.zeros((2, 4))
    first = math.sqrt(1 / 0.49 / 12)  # damping of the posterior before the first step
    ratio = math.sqrt(12 * variance)  # of traces: inverse covariances are 1 and 1 / (12 variance)
    a, s = (1 - ratio * first) * np.eye(4), (1 / (12 * variance) - first / ratio) * np.eye(2)
    for t in range(1, 4):
        torch.manual_seed(t)
        weight, bias = bnn.net.posterior.sample(bnn.net, 1)
        w = torch.cat([weight[0], bias[0, :, None]], 1).detach().numpy()
        gradient = -(y.numpy() - data @ w.T).T @ data / 0.09 / 12
        a, s = 0.8 * a + 0.2 * data.T @ data / 12, 0.8 * s + 0.2 * np.eye(2) / 0.09
        v = 0.8 * v + 0.2 * gradient
        pi = math.sqrt(np.trace(a) / 4 / (np.trace(s) / 2))
        root = math.sqrt(delta + 0.05)
        left, right = np.linalg.inv(s + root / pi * np.eye(2)), np.linalg.inv(a + root * pi * np.eye(4))
        m = m - 0.1 * left @ (v / (1 - 0.8**t) + delta * m) @ right
        torch.manual_seed(t)
        _step(bnn, optimizer, x, y, beta=0.5)
        updated = torch.cat([bnn.net.weight, bnn.net.bias[:, None]], 1).detach().numpy()
        np.testing.assert_allclose(updated, m, rtol=1e-6)
        root = math.sqrt(delta)
        covariance = np.kron(np.linalg.inv(s + root / pi * np.eye(2)), np.linalg.inv(a + root * pi * np.eye(4))) / ess
        np.testing.assert_allclose(_dense(bnn.net).covariance_matrix.numpy(), covariance, rtol=1e-6, atol=1e-12)


def test_a_new_optimizer_continues_with_the_posterior() -> None:
    torch.manual_seed(1)
    (x, y), bnn = _data(), bayesify(nn.Linear(3, 2).double(), NoisyKFAC(fisher_rate=0.3))
    optimizer = bnn.optimizer(_likelihood())
    for _ in range(11):
        _step(bnn, optimizer, x, y, beta=0.5)
    state = optimizer.state[bnn.net.posterior.column_tril]
    expected = {name: state[name].clone() for name in ("input", "output")}
    recovered = bnn.net.posterior._fisher(12)
    for name, value in expected.items():
        torch.testing.assert_close(recovered[name].detach(), value, rtol=1e-9, atol=1e-9)


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path) -> None:
    def train(epochs: int, path) -> Bayesian:
        torch.manual_seed(1)
        net = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
        bnn, x = bayesify(net, NoisyKFAC()), torch.linspace(-1, 1, 12 * 9).reshape(12, 1, 3, 3)
        fit(bnn, (x, torch.arange(12) % 3), Categorical(), epochs=epochs, batch_size=5, checkpoint=path, accelerator="cpu")
        return bnn

    whole = train(6, tmp_path / "whole.pt")
    train(3, tmp_path / "parts.pt")
    torch.testing.assert_close(train(6, tmp_path / "parts.pt").state_dict(), whole.state_dict(), rtol=0, atol=0)


@pytest.mark.extended
def test_a_convolution_without_groups_fulfils_the_contract() -> None:
    layers = {"Conv2d": lambda: (nn.Conv2d(2, 3, 2, stride=2, padding=1), torch.randn(3, 2, 4, 4))}
    assert check_method(NoisyKFAC(initial_std=0.5), layers, nets=()) == ["Conv2d"]


def test_frozen_parameters_stay() -> None:
    torch.manual_seed(1)
    (x, y), bnn = _data(), bayesify(nn.Linear(3, 2).double(), NoisyKFAC())
    bnn.net.bias.requires_grad_(False)
    before = copy.deepcopy(bnn.state_dict())
    _step(bnn, bnn.optimizer(_likelihood()), x, y)
    assert torch.equal(bnn.net.bias, before["net.bias"])
    assert not torch.equal(bnn.net.weight, before["net.weight"])
    before = copy.deepcopy(bnn.state_dict())
    bnn.net.weight.requires_grad_(False)
    optimizer = bnn.optimizer(_likelihood())
    _step(bnn, optimizer, x, y)
    assert torch.equal(bnn.net.weight, before["net.weight"])
    assert not torch.equal(bnn.net.posterior.row_tril, before["net.posterior.row_tril"])
    assert optimizer.state_dict()["state"]


def test_a_weight_of_two_is_two_copies() -> None:
    (x, y), states = _data(), []
    weights = torch.tensor([2.0, 2.0, 0.0, 0.0] * 3, dtype=F64)
    rows = torch.repeat_interleave(torch.arange(12), weights.long())
    for data in (Weighted((x, y), weights), (x[rows], y[rows])):
        torch.manual_seed(1)
        bnn = bayesify(nn.Linear(3, 2).double(), NoisyKFAC(fisher_rate=0.3, initial_std=1e-6))
        optimizer, likelihood = bnn.optimizer(_likelihood()), _likelihood()
        batch = as_batch("data", data)
        Objective(bnn, likelihood)(batch, 1, 12, 1.0, None)[0].backward()
        ((values, _),) = optimizer.observed.values()
        states.append(values["output"])
    torch.testing.assert_close(*states)


def test_bad_settings_are_refused() -> None:
    for fields in ({"fisher_rate": 0.0}, {"damping": 0.0}, {"invert_every": 0}, {"momentum": -1.0}):
        with pytest.raises(ConfigurationError, match=f"{next(iter(fields))} must be"):
            NoisyKFAC(**fields)
    bnn = bayesify(nn.Linear(3, 2).double(), NoisyKFAC())
    with pytest.raises(ConfigurationError, match=r"give bnn.optimizer\(likelihood\)"):
        _step(bnn, bnn.optimizer(), *_data())
    assert [name for name, _ in bayesify(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), NoisyKFAC()).random_layers()] == ["0"]


def test_divergence_is_said() -> None:
    (x, y), bnn = _data(), bayesify(nn.Linear(3, 2).double(), NoisyKFAC())
    with pytest.raises(DivergenceError, match=r"[Ll]ower (the )?learning[_ ]rate"):
        _step(bnn, bnn.optimizer(_likelihood()), 1e200 * x, y)
