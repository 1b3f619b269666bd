"""ELRG: the KL of dense normals, and the joint covariance of weights and of outputs, by draws."""

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.func import functional_call, jacrev

from bayesify import ELRG, Bayesian, BayesianLayer, bayesify

F64 = torch.float64


def _converted(layer: nn.Module, method: ELRG) -> tuple[Bayesian, BayesianLayer]:
    """A layer with means, standard deviations and factors of order one."""
    torch.manual_seed(0)
    bnn = bayesify(nn.Sequential(layer.double()), method)
    site = next(site for _, site in bnn.random_layers())
    with torch.no_grad():
        for name, parameter in site.posterior.named_parameters():
            nn.init.normal_(parameter, -0.5 if name.endswith("log_std") else 0.0, 0.4)
    return bnn, site


def _covariance(site: BayesianLayer) -> Tensor:
    """The dense covariance of the weight's elements, then the bias's."""
    p = site.posterior
    factor = torch.cat([v.detach().flatten(1) for v in (p.weight_factor, p.bias_factor) if v is not None], 1)
    stds = torch.cat([v.detach().flatten() for v in (p.weight_log_std, p.bias_log_std) if v is not None])
    return torch.diag((2 * stds).exp().expand(factor.shape[1])) + factor.T @ factor


LAYERS = [lambda: nn.Linear(3, 2), lambda: nn.Linear(4, 1, bias=False), lambda: nn.Conv1d(2, 2, 2), lambda: nn.LayerNorm([2, 2])]


@pytest.mark.parametrize("diagonal", ["weight", "layer"])
@pytest.mark.parametrize("make", LAYERS)
def test_kl_is_that_of_dense_normals(make, diagonal: str) -> None:
    bnn, site = _converted(make(), ELRG(rank=3, diagonal=diagonal, prior_std=0.7))
    q = MultivariateNormal(torch.cat([v.detach().flatten() for v in (site.weight, site.bias) if v is not None]), _covariance(site))
    prior = MultivariateNormal(torch.zeros_like(q.mean), 0.49 * torch.eye(len(q.mean), dtype=F64))
    torch.testing.assert_close(bnn.kl(), kl_divergence(q, prior), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("diagonal", ["weight", "layer"])
def test_weights_have_the_dense_covariance(diagonal: str) -> None:
    _, site = _converted(nn.Linear(3, 2), ELRG(rank=2, diagonal=diagonal))
    with torch.no_grad():
        weight, bias = site.posterior.sample(site, 40_000)
    _check_covariance(torch.cat([weight.flatten(1), bias], 1), _covariance(site))


@pytest.mark.parametrize("coherent", [False, True])
def test_outputs_of_one_example_have_the_joint_covariance(coherent: bool) -> None:
    bnn, site = _converted(nn.Linear(3, 4), ELRG(rank=2))
    x = torch.randn(1, 3, dtype=F64)
    jacobian = torch.cat([torch.kron(torch.eye(4, dtype=F64), x), torch.eye(4, dtype=F64)], 1)
    with torch.no_grad():
        y = bnn(x, samples=40_000, coherent=coherent).outputs[:, 0]
    _check_covariance(y, jacobian @ _covariance(site) @ jacobian.T)


def test_positions_of_a_convolution_share_the_low_rank_part() -> None:
    bnn, site = _converted(nn.Conv1d(2, 2, 2), ELRG(rank=2))
    nn.init.constant_(site.posterior.weight_log_std, -40.0)
    nn.init.constant_(site.posterior.bias_log_std, -40.0)
    x, plain = torch.randn(1, 2, 4, dtype=F64), nn.Conv1d(2, 2, 2).double()
    values = {"weight": site.weight.detach(), "bias": site.bias.detach()}
    jacobians = jacrev(lambda values: functional_call(plain, values, (x,)).flatten())(values)
    jacobian = torch.cat([jacobians["weight"].flatten(1), jacobians["bias"]], 1)
    y = torch.cat([bnn(x, samples=4000).outputs.detach().flatten(1) for _ in range(5)])
    _check_covariance(y, jacobian @ _covariance(site) @ jacobian.T)


def _check_covariance(draws: Tensor, expected: Tensor) -> None:
    """Within 5 standard errors."""
    deviations = draws - draws.mean(0)
    products = deviations[:, :, None] * deviations[:, None]
    assert ((products.mean(0) - expected).abs() < 5 * products.std(0) / len(draws) ** 0.5).all()


@pytest.mark.parametrize("diagonal", ["weight", "layer"])
def test_initial_variance_is_equal_for_both_parts(diagonal: str) -> None:
    torch.manual_seed(0)
    bnn = bayesify(nn.Linear(100, 200), ELRG(rank=4, diagonal=diagonal, initial_std=0.3))
    p = bnn.net.posterior
    diagonal_variance = (2 * p.weight_log_std).exp().mean()
    torch.testing.assert_close(diagonal_variance, torch.tensor(0.09 / 100), rtol=1e-4, atol=0)
    torch.testing.assert_close(p.weight_factor.square().sum(0).mean(), diagonal_variance, rtol=0.03, atol=0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rank": 0}, "rank must be a whole number of at least 1, got 0"),
        ({"diagonal": "unit"}, "diagonal must be one of 'weight', 'layer', got 'unit'"),
        ({"prior_std": 0.0}, "prior_std must be"),
        ({"initial_std": -1.0}, "initial_std must be"),
    ],
)
def test_errors(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ELRG(**fields)
