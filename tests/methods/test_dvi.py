"""DVI: moments of outputs against drawn weights, expected log likelihoods against Monte Carlo, what it refuses."""

import itertools
import json
import math
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from bayesify import (
    DVI,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Method,
    NothingRandomError,
    Poisson,
    bayesify,
    elbo,
    fit,
    predict,
)
from bayesify.core.model import Bayesian
from bayesify.estimators import BayesianRegressor
from bayesify.train.batch import Batch
from bayesify.train.objective import Objective

F64 = torch.float64
BOTH = pytest.mark.parametrize("covariance", ["full", "diagonal"])


def chain(*widths: int, bias: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).double()


def covariance_of(bnn: Bayesian, x: Tensor) -> tuple[Tensor, Tensor]:
    outputs = bnn.normal_outputs(x)
    assert outputs is not None
    assert outputs.covariance is not None
    torch.testing.assert_close(outputs.std.square(), outputs.covariance.diagonal(dim1=-2, dim2=-1))
    return outputs.mean, outputs.covariance


def drawn(bnn: Bayesian, x: Tensor, n: int = 40_000) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, covariance and standard error of the covariance of outputs with drawn weights."""
    with torch.no_grad():
        y = torch.cat([bnn(x, samples=n // 4, coherent=True).outputs for _ in range(4)])
    centered = y - y.mean(0)
    products = centered.unsqueeze(-1) * centered.unsqueeze(-2)
    return y.mean(0), products.mean(0), products.std(0) / n**0.5


@BOTH
def test_moments_with_one_hidden_layer_are_exact(covariance: Literal["full", "diagonal"]) -> None:
    torch.manual_seed(0)
    bnn, x = bayesify(chain(3, 6, 2), DVI(covariance=covariance, initial_std=0.8)), torch.randn(4, 3, dtype=F64)
    mean, matrix = covariance_of(bnn, x)
    reference, expected, error = drawn(bnn, x)
    spread = expected.diagonal(dim1=-2, dim2=-1).sqrt()
    assert ((mean - reference).abs() < 5 * spread / 200).all()
    assert ((matrix - expected).abs() < 5 * error).all()
    assert (error < 0.05 * spread.unsqueeze(-1) * spread.unsqueeze(-2)).all()


def test_full_covariances_are_better_than_variances_in_deep_networks() -> None:
    torch.manual_seed(1)
    x, errors = torch.rand(3, 4, dtype=F64), {}
    nets = {kind: bayesify(chain(4, 10, 10, 10, 2), DVI(covariance=kind, initial_std=0.5)) for kind in ("full", "diagonal")}
    with torch.no_grad():  # weights of one sign make hidden units correlated
        for _, layer in nets["full"].random_layers():
            layer.weight.abs_()
    nets["diagonal"].load_state_dict(nets["full"].state_dict())
    _, expected, _ = drawn(nets["full"], x)
    for kind, bnn in nets.items():
        ratio = covariance_of(bnn, x)[1].detach() / expected
        errors[kind] = float((ratio.diagonal(dim1=-2, dim2=-1) - 1).abs().max())
    assert errors["full"] < 0.1
    assert errors["diagonal"] > 2 * errors["full"]


@BOTH
def test_draws_have_the_moments(covariance: Literal["full", "diagonal"]) -> None:
    bnn, x = bayesify(chain(3, 5, 5, 2), DVI(covariance=covariance, initial_std=0.5)), torch.randn(2, 3, dtype=F64)
    mean, matrix = covariance_of(bnn, x)
    with torch.no_grad():
        y = bnn(x, samples=40_000).outputs
    centered = y - mean
    products = centered.unsqueeze(-1) * centered.unsqueeze(-2)
    assert (centered.mean(0).abs() < 5 * y.std(0) / 200).all()
    assert ((products.mean(0) - matrix).abs() < 5 * products.std(0) / 200).all()


@pytest.mark.parametrize("likelihood", [Gaussian(std=0.7), HeteroscedasticGaussian(), Poisson()])
def test_expected_log_likelihood_agrees_with_correlated_draws(likelihood: Likelihood) -> None:
    torch.manual_seed(2)
    outputs = 4 if isinstance(likelihood, HeteroscedasticGaussian) else 2
    bnn, x = bayesify(chain(3, 4, outputs), DVI(initial_std=0.6)), torch.randn(5, 3, dtype=F64)
    y = torch.randint(3, (5, 2)).double()
    mean, matrix = covariance_of(bnn, x)
    n, std = 200_000, matrix.diagonal(dim1=-2, dim2=-1).sqrt()
    z = mean + (torch.linalg.cholesky(matrix) @ torch.randn(n, 5, outputs, 1, dtype=F64)).squeeze(-1)
    draws = likelihood.log_prob(z, y)
    expected, error = likelihood.expected_log_prob(mean, std, y, matrix), 5 * draws.std(0) / n**0.5
    assert ((draws.mean(0) - expected).abs() < error).all()
    if isinstance(likelihood, HeteroscedasticGaussian):  # the correlation matters
        assert ((likelihood.expected_log_prob(mean, std, y) - expected).abs() > 2 * error).any()


def test_training_loss_is_the_mean_over_drawn_weights() -> None:
    torch.manual_seed(3)
    bnn, x, y = bayesify(chain(2, 5, 1), DVI(initial_std=0.6)), torch.randn(6, 2, dtype=F64), torch.randn(6, dtype=F64)
    likelihood = Gaussian(std=0.5).double()
    loss = Objective(bnn, likelihood)(Batch(x, y), 1, 60, 1.0, None)[0]
    with torch.no_grad():
        draws = bnn(x, samples=40_000, coherent=True)
        log_prob = likelihood.log_prob(draws.outputs, y)
    error = 5 * float(log_prob.mean(1).std()) / 200
    assert loss.item() == pytest.approx(-elbo(draws, log_prob, n=60).item(), abs=error)
    assert loss.item() == Objective(bnn, likelihood)(Batch(x, y), 1, 60, 1.0, None)[0].item(), "no noise"


def test_kl() -> None:
    bnn = bayesify(chain(3, 4, 2), DVI(prior_std=0.7, initial_std=0.5))
    expected = sum(
        kl_divergence(Normal(getattr(layer, name), getattr(layer.posterior, f"{name}_log_std").exp()), Normal(0.0, 0.7)).sum()
        for _, layer in bnn.random_layers()
        for name in ("weight", "bias")
    )
    torch.testing.assert_close(bnn.kl(), expected, rtol=1e-6, atol=0)
    # weights of mean zero tend to the variance of He initialization, 2 / fan-in
    alone = bayesify(nn.Linear(8, 4000, bias=False).double(), DVI(prior="empirical-bayes"))
    with torch.no_grad():
        dict(alone.named_parameters())["net.weight"].zero_()
        kls = [float(_with_std(alone, math.sqrt(factor * 2 / 8)).kl()) for factor in (0.5, 1.0, 2.0)]
    assert kls[1] == pytest.approx(0, abs=1e-6 * 32_000)
    assert min(kls[0], kls[2]) > -1e-6 * 32_000


def _with_std(bnn: Bayesian, std: float) -> Bayesian:
    nn.init.constant_(dict(bnn.named_parameters())["net.posterior.weight_log_std"], math.log(std))
    return bnn


@BOTH
def test_it_fits_without_noise_and_predicts(covariance: Literal["full", "diagonal"]) -> None:
    torch.manual_seed(4)
    x = torch.linspace(-1, 1, 64).unsqueeze(1)
    bnn, y = bayesify(chain(1, 16, 2).float(), DVI(covariance=covariance)), x.sin() + 0.1 * torch.randn(64, 1)
    history = fit(
        bnn, (x, y), HeteroscedasticGaussian(), epochs=60, batch_size=64, learning_rate=0.02, accelerator="cpu", progress=False
    )
    assert all(after < before + 0.05 for before, after in zip(history.loss, history.loss[1:], strict=False))
    predictive = predict(bnn, x, HeteroscedasticGaussian(), samples=200, seed=0)
    assert float((predictive.mean - y.squeeze(1)).square().mean().sqrt()) < 0.3
    f = bnn.function(0)
    torch.testing.assert_close(bnn.sample_network(0)(x), f(x))


def test_zero_inputs_without_bias_are_certain() -> None:
    bnn = bayesify(chain(2, 3, 1, bias=False).float(), DVI()).train()
    draws = bnn(torch.zeros(4, 2), samples=2)
    assert draws.outputs.abs().max() < 1e-5
    draws.outputs.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in bnn.net.parameters())


def test_what_comes_before_the_first_linear_layer_is_applied() -> None:
    relu = nn.ReLU()
    net = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(6, 4), relu, nn.Linear(4, 4), relu, nn.Linear(4, 1))).double()
    plain, x = chain(6, 4, 4, 1), torch.randn(5, 2, 3, dtype=F64)
    plain.load_state_dict({name.removeprefix("1."): value for name, value in net.state_dict().items()})
    nested = covariance_of(bayesify(net, DVI()), x)
    torch.testing.assert_close(nested, covariance_of(bayesify(plain, DVI()), x.flatten(1)))


def test_estimator_and_json() -> None:
    method = DVI(covariance="diagonal", prior="empirical-bayes")
    assert Method.from_dict(json.loads(json.dumps(method.to_dict()))) == method
    x = torch.randn(40, 3).numpy()
    model = BayesianRegressor(method="DVI", likelihood="heteroscedastic", hidden=(8,), epochs=3, encoding="piecewise").fit(
        x, x[:, 0]
    )
    assert np.shape(model.predict(x)) == (40,)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(x)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)), r"moments through '1' \(Tanh\) after .*; use MeanField\(\)"),
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)), r"through '1' \(BatchNorm1d\)"),
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU()), r"through '1' \(ReLU\) at the end"),
        (nn.Sequential(nn.Conv1d(2, 2, 1), nn.ReLU()), "DVI leaves it as it is"),
        (Residual(), r"DVI needs an nn.Sequential of linear layers and ReLUs, each used once, got Residual; use MeanField"),
        (nn.Sequential(Residual()), "DVI needs an nn.Sequential"),
    ],
)
def test_refused_networks(net: nn.Module, message: str) -> None:
    before = {name: type(module) for name, module in net.named_modules()}
    with pytest.raises(NothingRandomError, match=message):
        bayesify(net, DVI())
    assert before == {name: type(module) for name, module in net.named_modules()}


def test_refused_settings_and_inputs() -> None:
    with pytest.raises(ValueError, match="covariance must be one of"):
        DVI(covariance="none")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="prior must be one of"):
        DVI(prior="mean")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="initial_std must be"):
        DVI(initial_std=0.0)
    bnn = bayesify(nn.Sequential(nn.Linear(2, 1)), DVI())
    with pytest.raises(ValueError, match=r"DVI needs inputs \(B, I\) of the first linear layer, got shape \(3, 4, 2\)"):
        bnn(torch.zeros(3, 4, 2))
    with pytest.raises(ValueError, match="DVI needs one positional input"):
        bnn(input=torch.zeros(3, 2))
