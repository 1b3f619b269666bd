"""Tensor factorization: products of cores written out, the law of one output by draws, counts, the KL."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from bayesify import BayesianLayer, TensorFactorized, bayesify

F64 = torch.float64


def _convert(layer: nn.Module, method: TensorFactorized) -> tuple[nn.Module, BayesianLayer]:
    bnn = bayesify(nn.Sequential(layer.double()), method)
    return bnn, next(site for _, site in bnn.random_layers())


def _dense(site: BayesianLayer, cores: Tensor) -> Tensor:
    p = site.posterior
    matrices = [p.first, *(cores / p.rank**0.5), p.last]
    return torch.linalg.multi_dot(matrices).reshape(site.weight_shape)


@pytest.mark.parametrize("layer", [nn.Linear(6, 9), nn.Linear(9, 1, bias=False), nn.Conv1d(2, 5, 3)])
def test_both_routes_are_the_product_without_spread(layer: nn.Module) -> None:
    bnn, site = _convert(layer, TensorFactorized(cores=3, rank=2))
    nn.init.constant_(site.posterior.core_log_std, -40.0)
    weight = _dense(site, site.posterior.core_mean)
    x = torch.randn(4, 2, 7, dtype=F64) if isinstance(layer, nn.Conv1d) else torch.randn(4, layer.in_features, dtype=F64)
    expected = site.apply_weight(x, weight, site.bias)
    torch.testing.assert_close(site.posterior.mean(site)[0], weight)
    for coherent in (False, True):
        torch.testing.assert_close(bnn(x, samples=2, coherent=coherent).outputs, expected.expand(2, *expected.shape))


def test_variance_of_an_output_from_all_moments() -> None:
    # of y = a' C2 C1 b with independent entries, second moments go through the chain exactly
    bnn, site = _convert(nn.Linear(3, 2, bias=False), TensorFactorized(cores=2, rank=2, initial_std=0.5))
    p, x = site.posterior, torch.randn(3, dtype=F64)
    nn.init.normal_(p.core_log_std, -0.7, 0.3)
    mean, second = p.last @ x, torch.outer(p.last @ x, p.last @ x)
    for core, log_std in zip(p.core_mean.flip(0) / 2**0.5, p.core_log_std.flip(0), strict=True):
        second = core @ second @ core.T + torch.diag((log_std.exp() ** 2 / 2) @ second.diag())
        mean = core @ mean
    covariance = p.first @ (second - torch.outer(mean, mean)) @ p.first.T
    draws = 60_000
    with torch.no_grad():
        for coherent in (False, True):
            y = bnn(x[None], samples=draws, coherent=coherent).outputs[:, 0]
            assert ((y.mean(0) - p.first @ mean).abs() < 5 * y.std(0) / draws**0.5).all()
            deviations = y - y.mean(0)
            products = deviations[:, :, None] * deviations[:, None]
            assert ((products.mean(0) - covariance).abs() < 5 * products.std(0) / draws**0.5).all()


def test_kl_and_parameter_counts() -> None:
    bnn, site = _convert(nn.Linear(64, 64, bias=False), TensorFactorized(prior_std=0.7))
    p = site.posterior
    nn.init.normal_(p.core_log_std, -1.0, 0.5)
    torch.testing.assert_close(
        bnn.kl(), kl_divergence(Normal(p.core_mean, p.core_log_std.exp()), Normal(p.core_mean * 0, 0.7)).sum()
    )
    # R = log2 D = 6 and D / R^2 = 1.8 inner cores; their random weights are about the D of WHVI's g
    assert p.core_mean.shape == (2, 6, 6)
    assert sum(q.numel() for q in bnn.parameters()) == 2 * 64 * 6 + 2 * 2 * 36
    assert all(q.is_contiguous() for q in bnn.parameters())  # FSDP needs it


@pytest.mark.parametrize("width", [64, 1024])
def test_initial_weights_have_the_variance_of_he(width: int) -> None:
    squares = []
    for _ in range(20):
        _, site = _convert(nn.Linear(width, width), TensorFactorized())
        squares.append(site.posterior.mean(site)[0].detach().square().mean())
    squares = torch.stack(squares)
    assert abs(squares.mean() - 2 / width) < 5 * squares.std() / 20**0.5
    assert squares.std() < 2 / width


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rank": 0}, "rank must be a whole number of at least 1, got 0"),
        ({"cores": 1.5}, "cores must be"),
        ({"prior_std": 0.0}, "prior_std must be"),
        ({"initial_std": math.inf}, "initial_std must be"),
    ],
)
def test_errors(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TensorFactorized(**fields)
