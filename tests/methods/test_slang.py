"""SLANG: draws, KL and steps against dense algebra, the truncation of the precision, fixed points."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.func import functional_call

from bayesify import SLANG, Bayesian, Categorical, ConfigurationError, DivergenceError, Gaussian, bayesify, elbo, fit
from bayesify.methods.slang import _leading
from bayesify.train import Weighted

F64 = torch.float64


def _linear(inputs: int = 3, **fields) -> Bayesian:
    torch.manual_seed(0)
    return bayesify(nn.Linear(inputs, 1, bias=False).double(), SLANG(**fields))


def _precision(bnn: Bayesian) -> Tensor:
    posterior = bnn.net.posterior
    return (posterior.log_diagonal.exp().diag() + posterior.factor @ posterior.factor.T).detach()


def _data(rows: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, dtype=F64, generator=generator)
    return x, x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=F64) + 0.3


def _log_prob(outputs: Tensor, y: Tensor) -> Tensor:
    return -0.5 * ((y - outputs) / 0.3).square().sum(-1)


def _step(bnn: Bayesian, x: Tensor, y: Tensor, *, n: int, beta: float = 1.0, samples: int = 1) -> None:
    draws = bnn(x, samples=samples)
    (-elbo(draws, _log_prob(draws.outputs, y), n=n, beta=beta)).backward()
    bnn.passes.optimizer.step()
    bnn.passes.optimizer.zero_grad()


@pytest.mark.parametrize("columns", ["independent", "dependent", "none"])
def test_draws_have_the_inverse_precision_as_covariance(columns: str) -> None:
    torch.manual_seed(0)
    bnn = bayesify(nn.Linear(3, 2).double(), SLANG(rank=3))
    posterior = bnn.net.posterior
    with torch.no_grad():
        posterior.log_diagonal.copy_(torch.randn(8))
        posterior.factor.copy_(torch.randn(8, 3) if columns == "independent" else torch.zeros(8, 3))
        if columns == "dependent":
            posterior.factor.copy_(torch.randn(8, 1) @ torch.tensor([[1.0, 2.0, 0.0]]))
        weight, bias = posterior.sample(bnn.net, 200_000)
    w = torch.cat([weight.flatten(1), bias], 1)
    covariance = torch.linalg.inv(_precision(bnn))
    scale = covariance.diagonal().sqrt()
    mean = torch.cat([bnn.net.weight.flatten(), bnn.net.bias])
    torch.testing.assert_close((w.mean(0) - mean) / scale, torch.zeros(8, dtype=F64), rtol=0, atol=0.012)
    found = torch.cov(w.T) / scale.outer(scale)
    torch.testing.assert_close(found, covariance / scale.outer(scale), rtol=0, atol=0.015)


def test_the_kl_is_that_of_dense_normals() -> None:
    torch.manual_seed(1)
    bnn = bayesify(nn.Linear(3, 2).double(), SLANG(rank=3, prior_std=0.7))
    with torch.no_grad():
        bnn.net.posterior.log_diagonal.copy_(torch.randn(8))
        bnn.net.posterior.factor.copy_(torch.randn(8, 3))
    mean = torch.cat([bnn.net.weight.flatten(), bnn.net.bias])
    prior = MultivariateNormal(torch.zeros(8, dtype=F64), 0.49 * torch.eye(8, dtype=F64))
    expected = kl_divergence(MultivariateNormal(mean, precision_matrix=_precision(bnn)), prior)
    torch.testing.assert_close(bnn.kl(), expected.detach(), rtol=1e-10, atol=1e-10, check_dtype=False)


@pytest.mark.parametrize("scale", [1e2, 1e4, 1e6])
def test_single_precision_suffices_for_large_gradients(scale: float) -> None:
    """I + W^T W, rounded, may have no Cholesky factor, or another one, where squares of W are large."""
    torch.manual_seed(0)
    bnn = bayesify(nn.Linear(23, 1), SLANG(rank=8))
    posterior = bnn.net.posterior
    with torch.no_grad():
        factor = scale * torch.randn(24, 8) * torch.logspace(0, -1, 8)
        factor[:, 7] = factor[:, 6] + 1e-3 * factor[:, 7]
        posterior.factor.copy_(factor)
        posterior.log_diagonal.zero_()
        found, (weight, bias) = bnn.kl(), posterior.sample(bnn.net, 2000)
    bnn.double()
    precision = _precision(bnn)
    mean = torch.cat([bnn.net.weight.flatten(), bnn.net.bias]).detach()
    covariance = torch.eye(24, dtype=F64) - posterior.factor @ torch.linalg.solve(
        torch.eye(8, dtype=F64) + posterior.factor.T @ posterior.factor, posterior.factor.T
    )
    expected = 0.5 * (covariance.trace() + mean.square().sum() - 24 + torch.linalg.slogdet(precision)[1])
    torch.testing.assert_close(found.double(), expected.detach(), rtol=1e-4, atol=1e-4)
    deviations = torch.cat([weight.flatten(1), bias], 1).double() - mean
    if scale < 1e4:  # above, the rounding of draws is no longer small beside their standard deviations
        distances = (deviations @ precision * deviations).sum(1)
        assert abs(float(distances.mean()) - 24) < 6 * math.sqrt(48 / 2000)


def test_steps_are_those_of_the_paper() -> None:
    """In NumPy, with dense matrices, two draws per step and a rank below that of the gradients."""
    bnn = _linear(rank=2, prior_std=0.7, momentum=0.8, hessian_rate=0.2, damping=0.05)
    x, y = _data()
    bnn.optimizer(learning_rate=0.1)
    data, ess, prior = x.numpy(), 12 / 0.5, 1 / 0.49
    m, posterior = bnn.net.weight.detach().numpy().ravel().copy(), bnn.net.posterior
    uu = (posterior.factor @ posterior.factor.T).detach().numpy() * ess / 12
    d = (posterior.log_diagonal.exp().detach().numpy() - prior) * ess / 12 + prior
    g = np.zeros(3)
    for t in range(1, 4):
        torch.manual_seed(t)
        theta = posterior.sample(bnn.net, 2)[0].detach().numpy().reshape(2, 3)
        gradients = -data * (y.numpy().T - theta @ data.T)[..., None] / 0.3**2
        gradients = gradients.reshape(24, 3)
        whole = 0.8 * uu + 0.2 * ess * gradients.T @ gradients / 24
        values, vectors = np.linalg.eigh(whole)
        uu = vectors[:, 1:] @ np.diag(values[1:]) @ vectors[:, 1:].T
        d = 0.8 * d + 0.2 * prior + np.diag(whole - uu)
        g = 0.8 * g + 0.2 * gradients.mean(0)
        metric = (uu + np.diag(d)) / ess + 0.05 * np.eye(3)
        m = m - 0.1 * np.linalg.solve(metric, g / (1 - 0.8**t) + prior / ess * m)
        torch.manual_seed(t)
        _step(bnn, x, y, n=12, beta=0.5, samples=2)
        np.testing.assert_allclose(bnn.net.weight.detach().numpy().ravel(), m, rtol=1e-8)
        np.testing.assert_allclose(_precision(bnn).numpy(), uu + np.diag(d), rtol=1e-8)


@pytest.mark.parametrize("rank", [1, 2, 3, 5])
def test_the_diagonal_is_that_of_the_full_precision(rank: int) -> None:
    bnn, full = _linear(rank=rank, hessian_rate=0.3), None
    x, y = _data()
    bnn.net.posterior.sample = lambda layer, samples: (layer.weight.unsqueeze(0), None)
    bnn.optimizer(learning_rate=1e-12)  # the gradients stay
    with torch.no_grad():
        bnn.net.posterior.factor.zero_()
    gradients = x * (y - x @ bnn.net.weight.T).detach() / 0.09
    for _ in range(5):
        full = _precision(bnn) if full is None else full
        _step(bnn, x, y, n=12)
        full = 0.7 * full + 0.3 * (gradients.T @ gradients + torch.eye(3, dtype=F64))
    torch.testing.assert_close(_precision(bnn).diagonal(), full.diagonal(), rtol=1e-9, atol=0)
    if rank >= 3:
        torch.testing.assert_close(_precision(bnn), full, rtol=1e-9, atol=1e-12)
    else:
        assert (_precision(bnn) - full).abs().max() > 0.01 * full.abs().max()


def test_the_fixed_point_at_full_rank_is_the_exact_posterior() -> None:
    """Residuals of one standard deviation at the posterior mean make squared gradients the Hessian of a linear model."""
    x, _ = _data()
    residual = 0.3 * torch.tensor([[1.0], [-1.0]], dtype=F64).repeat(6, 1)
    mean = x.T @ residual  # prior and noise have equal variances
    y = x @ mean + residual
    precision = x.T @ x / 0.09 + torch.eye(3, dtype=F64) / 0.09
    torch.testing.assert_close(torch.linalg.solve(precision, x.T @ y / 0.09), mean)  # the exact posterior
    bnn = _linear(rank=3, prior_std=0.3, hessian_rate=0.1)
    bnn.net.posterior.sample = lambda layer, samples: (layer.weight.unsqueeze(0), None)
    bnn.optimizer(learning_rate=0.2)
    for _ in range(1000):
        _step(bnn, x, y, n=12)
    torch.testing.assert_close(bnn.net.weight.T, mean, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(_precision(bnn), precision, rtol=1e-7, atol=1e-8)


class Twice(nn.Module):
    """Uses a layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(3, 3), nn.Conv1d(1, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(torch.tanh(self.layer(x))).unsqueeze(1)).squeeze(1)


@pytest.mark.parametrize("fold", [True, False])
def test_gradients_of_examples_are_those_of_a_loop(fold: bool) -> None:
    torch.manual_seed(0)
    x, y = _data(5)
    plain, bnn = Twice().double(), bayesify(Twice().double(), SLANG(), fold=fold)
    plain.load_state_dict({name: value for name, value in bnn.net.state_dict().items() if "posterior" not in name})
    for _, layer in bnn.random_layers():  # as before, weights without noise
        layer.posterior.sample = lambda layer, samples: (
            layer.weight.expand(samples, *layer.weight.shape),
            layer.bias.expand(samples, *layer.bias.shape),
        )
    optimizer = bnn.optimizer()
    bnn(x, samples=2)  # which examines the network
    draws = bnn(x, samples=2)
    elbo(draws, _log_prob(draws.outputs, y), n=10).backward()
    for name, layer in bnn.random_layers():
        gradients = optimizer.observed[layer][0]["gradients"]
        products = torch.zeros(len(gradients.T), len(gradients.T), dtype=F64)
        for i in range(5):
            state = {key: v.clone().requires_grad_() for key, v in plain.state_dict().items()}
            loss = -_log_prob(functional_call(plain, state, (x[i : i + 1],)), y[i]).sum()
            parts = torch.autograd.grad(loss, [state[f"{name}.weight"], state[f"{name}.bias"]])
            vector = torch.cat([part.flatten() for part in parts])
            products += vector.outer(vector) / 5
        torch.testing.assert_close(gradients.T @ gradients, products, rtol=1e-9, atol=1e-12)


def test_accumulated_batches_are_one_batch() -> None:
    x, y = _data()
    results = []
    for parts in ([slice(0, 12)], [slice(0, 6), slice(6, 12)]):
        bnn = _linear(rank=3, hessian_rate=0.2)
        optimizer = bnn.optimizer(learning_rate=0.1)
        for part in parts:
            torch.manual_seed(5)
            draws = bnn(x[part])
            (-elbo(draws, _log_prob(draws.outputs, y[part]), n=12) / len(parts)).backward()
        optimizer.step()
        results.append((bnn.net.weight.detach(), _precision(bnn)))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-11)


def test_a_weight_of_two_is_two_copies() -> None:
    x, y = _data()
    weights = torch.tensor([2.0, 0.0, 1.0, 1.0, 2.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], dtype=F64)
    rows = torch.repeat_interleave(torch.arange(12), weights.long())
    results = []
    for data in (Weighted((x, y), weights), (x[rows], y[rows])):
        bnn = _linear(rank=2, hessian_rate=0.2)
        torch.manual_seed(1)
        fit(bnn, data, Gaussian(std=0.5).double(), epochs=3, batch_size=12, learning_rate=0.1, accelerator="cpu")
        results.append((bnn.net.weight.detach(), _precision(bnn)))
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("size", "count"), [(20, 40), (400, 40), (300, 500), (60, 500)])
def test_the_largest_eigenvalues_remain(size: int, count: int) -> None:
    torch.manual_seed(0)
    scales = torch.cat([torch.tensor([9.0, 6.0, 4.0]), 0.5 * torch.rand(count - 3)]).to(F64)
    vectors = torch.randn(size, count, dtype=F64) * scales / math.sqrt(size)
    kept = _leading(vectors, 3)
    values, directions = np.linalg.eigh((vectors @ vectors.T).numpy())
    expected = directions[:, -3:] @ np.diag(values[-3:]) @ directions[:, -3:].T
    np.testing.assert_allclose((kept @ kept.T).numpy(), expected, atol=1e-6 * values[-1])
    assert (vectors.square().sum(1) - kept.square().sum(1)).min() > -1e-12


def test_networks_are_trained_and_frozen_parts_stay() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2))
    net[3].bias.requires_grad_(False)
    bnn = bayesify(net, SLANG(hessian_rate=0.05))
    assert [name for name, _ in bnn.random_layers()] == ["0", "3"]
    bias, x = bnn.net[3].bias.clone(), torch.randn(40, 3)
    history = fit(bnn, (x, (x[:, 0] > 0).long()), Categorical(), epochs=50, learning_rate=0.05, batch_size=20, accelerator="cpu")
    assert history.loss[-1] < 0.7 * history.loss[0]
    assert torch.equal(bnn.net[3].bias, bias)
    assert "effective sample size 40" in bnn.net[0].posterior.remark()


def test_bad_fields_and_divergence_are_refused() -> None:
    for fields in ({"rank": 0}, {"hessian_rate": 0.0}, {"damping": -1.0}, {"prior_std": 0.0}):
        with pytest.raises(ConfigurationError, match=next(iter(fields))):
            SLANG(**fields)
    bnn = _linear()
    bnn.optimizer()
    with pytest.raises(DivergenceError, match=r"[Ll]ower (the )?learning[_ ]rate"):
        _step(bnn, *(v * 1e200 for v in _data()), n=12)
