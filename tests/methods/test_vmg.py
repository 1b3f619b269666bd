"""VMG: dense Kronecker covariances of weights and outputs, by closed forms and by draws."""

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from bayesify import VMG, Bayesian, BayesianLayer, bayesify

F64 = torch.float64
LAYERS = {
    "linear": (lambda: nn.Linear(3, 4), (1, 3)),
    "convolution": (lambda: nn.Conv2d(2, 3, 2, padding=1, stride=2), (1, 2, 3, 4)),
    "grouped": (lambda: nn.Conv1d(4, 2, 2, groups=2), (1, 4, 3)),
    "transposed": (lambda: nn.ConvTranspose1d(2, 3, 2), (1, 2, 3)),
}


def _converted(layer: nn.Module) -> tuple[Bayesian, BayesianLayer]:
    torch.manual_seed(0)
    bnn = bayesify(nn.Sequential(layer.double()), VMG(prior_std=0.7))
    site = next(site for _, site in bnn.random_layers())
    for parameter in site.posterior.parameters():
        nn.init.normal_(parameter, -0.5, 0.4)
    return bnn, site


def _covariance(site: BayesianLayer) -> Tensor:
    """Of the elements of the weight: the Kronecker product of the covariances of rows and columns."""
    p = site.posterior
    return torch.kron(p.row_log_std.exp().square().diag(), p.column_log_std.exp().square().diag()).detach()


@pytest.mark.parametrize("name", LAYERS)
def test_kl_is_that_of_dense_normals(name: str) -> None:
    bnn, site = _converted(LAYERS[name][0]())
    covariance = _covariance(site)
    q = MultivariateNormal(site.weight.flatten(), covariance)
    prior = MultivariateNormal(torch.zeros(len(covariance), dtype=F64), 0.49 * torch.eye(len(covariance), dtype=F64))
    bias = Normal(site.bias, site.posterior.bias_log_std.exp())
    expected = kl_divergence(q, prior) + kl_divergence(bias, Normal(torch.zeros_like(site.bias), 0.7)).sum()
    torch.testing.assert_close(bnn.kl(), expected, rtol=1e-10, atol=1e-10)


def test_weights_have_the_kronecker_covariance() -> None:
    _, site = _converted(nn.Linear(3, 4))
    with torch.no_grad():
        draws = site.posterior.sample(site, 40_000)[0].flatten(1)
    deviations = draws - site.weight.detach().flatten()
    products = deviations[:, :, None] * deviations[:, None]
    assert ((products.mean(0) - _covariance(site)).abs() < 5 * products.std(0) / len(draws) ** 0.5).all()


@pytest.mark.parametrize("name", LAYERS)
def test_variances_of_outputs_are_those_of_the_dense_covariance(name: str) -> None:
    make, shape = LAYERS[name]
    _, site = _converted(make())
    plain, x = make().double(), torch.randn(shape, dtype=F64)
    mean, variance = site.posterior.moments(site, x)

    def outputs(weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(plain, {"weight": weight, "bias": bias}, (x,)).flatten()

    by_weight, by_bias = torch.func.jacrev(outputs, (0, 1))(site.weight, site.bias)
    by_weight = by_weight.flatten(1)
    expected = by_weight @ _covariance(site) @ by_weight.T + by_bias @ (2 * site.posterior.bias_log_std).exp().diag() @ by_bias.T
    torch.testing.assert_close(mean.flatten(), outputs(site.weight, site.bias))
    torch.testing.assert_close(variance.flatten(), expected.diag())


def test_initial_standard_deviation() -> None:
    bnn = bayesify(nn.Linear(25, 4), VMG(initial_std=0.5))
    p = bnn.net.posterior
    torch.testing.assert_close((p.row_log_std[:, None] + p.column_log_std).exp(), torch.full((4, 25), 0.1))
    torch.testing.assert_close(p.bias_log_std.exp(), torch.full((4,), 0.1))


@pytest.mark.parametrize("field", ["prior_std", "initial_std"])
def test_errors(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be a finite number above 0, got 0"):
        VMG(**{field: 0.0})
