"""Mean field: its KL against quadrature, its gradients against exact moments, and the local reparameterization's smaller noise."""

import copy
import math
from typing import Literal

import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, MixtureSameFamily, Normal, kl_divergence

from bayesify import Bayesian, BayesianLayer, MeanField, bayesify, elbo

Route = Literal["local", "per example", "shared", "flipout"]


def _convert(layer: nn.Module, method: MeanField) -> tuple[Bayesian, BayesianLayer]:
    bnn = bayesify(nn.Sequential(layer.double()), method)
    return bnn, next(site for _, site in bnn.random_layers())


def _scatter(site: BayesianLayer) -> None:
    """Means and standard deviations that differ from weight to weight."""
    for parameter in site.parameters():
        nn.init.normal_(parameter, -0.5, 0.5)


@pytest.mark.parametrize("bias", [True, False])
def test_kl_sums_over_weights_and_biases(bias: bool) -> None:
    bnn, site = _convert(nn.Linear(4, 3, bias=bias), MeanField(prior_std=0.7))
    _scatter(site)
    pairs = [(site.weight, site.posterior.weight_log_std)] + [(site.bias, site.posterior.bias_log_std)] * bias
    expected = sum(kl_divergence(Normal(mean, log_std.exp()), Normal(mean * 0, 0.7)).sum() for mean, log_std in pairs)
    torch.testing.assert_close(bnn(torch.zeros(2, 4).double()).kl, expected, atol=0, rtol=1e-12)


def test_kl_of_a_network_sums_over_layers() -> None:
    net = nn.Sequential(nn.Linear(4, 30), nn.ReLU(), nn.Linear(30, 2)).double()
    bnn = bayesify(net, MeanField(prior_std=2.0))
    expected = sum(
        kl_divergence(Normal(getattr(site, name), getattr(site.posterior, f"{name}_log_std").exp()), Normal(0.0, 2.0)).sum()
        for _, site in bnn.random_layers()
        for name in ("weight", "bias")
    )
    torch.testing.assert_close(bnn.kl(), expected, atol=0, rtol=1e-6)


# mean and standard deviation of the posterior: within the narrow component, across both, in the tail of the wide one
@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.05), (0.3, 0.5), (-1.0, 0.2)])
def test_scale_mixture_kl_and_its_gradient_are_unbiased(mean: float, std: float) -> None:
    copies = 50_000
    method = MeanField(prior="scale-mixture", mixture_weight=0.3, prior_std=0.8, mixture_std=0.05)
    bnn, site = _convert(nn.Linear(1, copies, bias=False), method)
    nn.init.constant_(site.weight, mean)
    nn.init.constant_(site.posterior.weight_log_std, math.log(std))

    m = torch.tensor(mean, dtype=torch.float64, requires_grad=True)
    log_std = torch.tensor(math.log(std), dtype=torch.float64, requires_grad=True)
    z = torch.linspace(-10, 10, 20_001, dtype=torch.float64)
    prior = MixtureSameFamily(
        Categorical(torch.tensor([0.3, 0.7]).double()), Normal(torch.zeros(2).double(), torch.tensor([0.8, 0.05]).double())
    )
    ratio = Normal(m, log_std.exp()).log_prob(m + log_std.exp() * z) - prior.log_prob(m + log_std.exp() * z)
    expected = torch.trapezoid(Normal(torch.zeros_like(z), 1.0).log_prob(z).exp() * ratio, z)
    expected.backward()

    with torch.no_grad():
        values = torch.stack([bnn.kl() for _ in range(20)]) / copies
    assert (values.mean() - expected).abs() < 5 * values.std() / 20**0.5
    assert values.std() < 0.05, "a loose tolerance would prove nothing"
    bnn.kl().backward()
    for gradient, reference in ((site.weight.grad, m.grad), (site.posterior.weight_log_std.grad, log_std.grad)):
        assert (gradient.mean() - reference).abs() < 5 * gradient.std() / copies**0.5


def test_noise_is_independent_across_examples_and_outputs_unless_it_is_shared() -> None:
    x = torch.tensor([[1.0, 2.0, -1.0], [0.5, 1.0, 1.0]], dtype=torch.float64)
    draws = 40_000
    for noise in ("local", "shared", "flipout"):
        torch.manual_seed(1)
        bnn, site = _convert(nn.Linear(3, 2), MeanField(noise=noise))
        _scatter(site)
        with torch.no_grad():
            y = bnn(x, samples=draws).outputs.flatten(1)
            inputs = torch.cat([x, torch.ones(2, 1).double()], 1)
            variances = torch.cat([site.posterior.weight_log_std.T, site.posterior.bias_log_std[None]]).exp() ** 2
            # by output: the covariance of two examples is sum_i x_i x'_i var_i
            blocks = torch.einsum("ai,bi,io->abo", inputs, inputs, variances)
            if noise != "shared":
                blocks = blocks * torch.eye(2).double()[..., None]
            expected = torch.einsum("abo,op->aobp", blocks, torch.eye(2).double()).reshape(4, 4)
            error = 5 * torch.sqrt((expected.diag()[:, None] * expected.diag() + expected**2) / draws)
            assert ((torch.cov(y.T) - expected).abs() < error).all()


def _gradients(route: Route, x: Tensor, y: Tensor, mean: Tensor, std: Tensor, copies: int) -> tuple[Tensor, Tensor]:
    """Gradients of the mean log likelihood with respect to means and log standard deviations, (copies, I), independent draws.

    Each output unit of one wide layer is a copy of the same problem with noise of its own.
    """
    bnn, site = _convert(nn.Linear(len(mean), copies, bias=False), MeanField(noise="shared" if route == "per example" else route))
    with torch.no_grad():
        site.weight.copy_(mean.expand(copies, -1))
        site.posterior.weight_log_std.copy_(std.log().expand(copies, -1))
    if route == "per example":
        outputs = site.op(x, *site.posterior.sample(site, len(x)))[None]
        draws = bnn(x)._replace(outputs=outputs)
    else:
        draws = bnn(x)
    log_prob = -0.5 * (y[:, None] - draws.outputs).square().sum(-1)
    elbo(draws, log_prob, n=1, beta=0.0).backward()
    return site.weight.grad, site.posterior.weight_log_std.grad


def _exact_gradient_moments(route: Route, x: Tensor, y: Tensor, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean and variance of the same gradients, from the moments of normal variables."""
    residual, share = y - x @ mean, x**2 * std**2  # (B,), (B, I)
    variance, batch = share.sum(1, keepdim=True), len(x)
    expected = residual @ x / batch, -share.mean(0)
    second = x.T @ x / batch
    if route == "local":
        of_mean = (variance * x**2).sum(0) / batch**2
        of_std = (share**2 / variance * (residual[:, None] ** 2 + 2 * variance)).sum(0) / batch**2
    elif route == "per example":
        of_mean = (variance * x**2).sum(0) / batch**2
        of_std = (share * (residual[:, None] ** 2 + variance + share)).sum(0) / batch**2
    elif route == "flipout":  # of the shared draw, only squares are common to all examples
        of_mean = (variance * x**2).sum(0) / batch**2
        of_std = (share * (residual[:, None] ** 2 + variance - share)).sum(0) / batch**2 + 2 * share.mean(0) ** 2
    else:
        of_mean = second**2 @ std**2
        pull = residual @ x / batch
        of_std = std**2 * (pull**2 + second**2 @ std**2 + second.diag() ** 2 * std**2)
    return *expected, of_mean, of_std


def test_local_reparameterization_gradients_are_unbiased_and_less_noisy() -> None:
    x = torch.randn(16, 3, dtype=torch.float64) + 0.5
    y = torch.randn(16, dtype=torch.float64)
    problem = (x, y, torch.tensor([0.5, -0.3, 0.2]).double(), torch.tensor([0.4, 0.8, 0.6]).double())
    copies, noise = 20_000, {}
    for route in ("local", "per example", "shared"):
        exact = _exact_gradient_moments(route, *problem)
        for gradient, mean, variance in zip(_gradients(route, *problem, copies), exact[:2], exact[2:], strict=True):
            squares = (gradient - mean) ** 2
            assert ((gradient.mean(0) - mean).abs() < 5 * gradient.std(0) / copies**0.5).all(), f"{route} is biased"
            assert ((squares.mean(0) - variance).abs() < 5 * squares.std(0) / copies**0.5).all(), f"{route}: variance"
            noise[route] = squares.mean(0).sum()
    # of the gradient of the log standard deviations (appendix D); the three lie clearly apart
    assert noise["local"] < 0.8 * noise["per example"]
    assert noise["per example"] < 0.8 * noise["shared"]


def test_flipout_gradients_are_unbiased_and_of_the_exact_variance() -> None:
    """Copies of the problem share the signs of inputs, so that passes are independent and copies are not."""
    x, y = torch.randn(16, 3, dtype=torch.float64) + 0.5, torch.randn(16, dtype=torch.float64)
    problem = (x, y, torch.tensor([0.5, -0.3, 0.2]).double(), torch.tensor([0.4, 0.8, 0.6]).double())
    exact = _exact_gradient_moments("flipout", *problem)
    passes = [_gradients("flipout", *problem, copies=300) for _ in range(400)]
    assert exact[2].sum() < 0.5 * _exact_gradient_moments("shared", *problem)[2].sum()
    for k, (mean, variance) in enumerate(zip(exact[:2], exact[2:], strict=True)):
        gradient = torch.stack([gradients[k] for gradients in passes])
        averages, squares = gradient.mean(1), (gradient - mean).square().mean(1)
        for values, expected in ((averages, mean), (squares, variance)):
            error = 5 * values.std(0) / len(passes) ** 0.5
            assert ((values.mean(0) - expected).abs() < error).all()
        assert (error < 0.2 * variance).all(), "a loose tolerance would prove nothing"


@pytest.mark.parametrize("layer", [nn.Linear(3, 2), nn.Conv1d(4, 2, 2, groups=2), nn.ConvTranspose1d(2, 3, 2)])
def test_flipout_of_an_example_is_a_draw_of_weights(layer: nn.Module) -> None:
    """The covariance of all outputs of an example, between positions too, is that of drawn weights."""
    torch.manual_seed(0)
    bnn, site = _convert(copy.deepcopy(layer), MeanField(noise="flipout"))
    _scatter(site)
    x = torch.randn(1, 2, 3) if isinstance(layer, nn.Linear) else torch.randn(1, layer.in_channels, 3)
    with torch.no_grad():
        y = bnn(x.double(), samples=40_000).outputs.flatten(1)
        reference = bnn(x.double(), samples=40_000, coherent=True).outputs.flatten(1)
    covariance, expected = torch.cov(y.T), torch.cov(reference.T)
    error = 5 * torch.sqrt(2 * (expected.diag()[:, None] * expected.diag() + expected**2) / len(y))
    assert ((covariance - expected).abs() < error).all()
    assert (expected.abs() > 2 * error).sum() > len(expected), "some positions are correlated"
    torch.testing.assert_close(y.mean(0), reference.mean(0), rtol=0, atol=7 * float((expected.diag().max() / 40_000).sqrt()))


@pytest.mark.parametrize("width", [4, 400])
@pytest.mark.parametrize("noise", ["local", "shared", "flipout"])
def test_initial_noise_does_not_depend_on_the_width(width: int, noise: str) -> None:
    units = 3000
    layers = {"linear": (nn.Linear(width, units, bias=False), (1, width))}
    layers["convolution"] = (nn.Conv1d(width, units, 3, bias=False), (1, width, 3))
    for layer, shape in layers.values():
        bnn, _ = _convert(layer, MeanField(noise=noise, initial_std=0.25))
        x = torch.randint(0, 2, shape).double() * 2 - 1
        with torch.no_grad():
            first, second = bnn(x, samples=2).outputs
        # variance 2 * 0.25^2 within 5 standard errors
        assert (first - second).square().mean().item() == pytest.approx(2 * 0.25**2, rel=5 * (2 / units) ** 0.5)


def test_prior_around_pretrained_weights() -> None:
    bnn, site = _convert(nn.Linear(4, 3), MeanField(prior_mean="pretrained", prior_std=0.7, initial_std=0.3))
    spread = kl_divergence(Normal(torch.zeros(()).double(), 0.3 / 2), Normal(torch.zeros(()).double(), 0.7))
    torch.testing.assert_close(bnn.kl(), 15 * spread, atol=0, rtol=1e-6)
    with torch.no_grad():
        site.weight += 0.1
        site.bias -= 0.2
    moved = 15 * spread + (12 * 0.1**2 + 3 * 0.2**2) / (2 * 0.7**2)
    torch.testing.assert_close(bnn.kl(), moved, atol=0, rtol=1e-6)
    other, _ = _convert(nn.Linear(4, 3), MeanField(prior_mean="pretrained", prior_std=0.7, initial_std=0.3))
    other.load_state_dict(bnn.state_dict())
    torch.testing.assert_close(other.kl(), moved, atol=0, rtol=1e-6, msg="the center of the prior is not in the state dict")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"noise": "none"}, "noise must be one of 'local', 'shared', 'flipout', got 'none'"),
        ({"prior": "laplace"}, "prior must be one of"),
        ({"prior_mean": 0.0}, "prior_mean must be one of"),
        ({"prior_std": 0.0}, "prior_std must be a finite number above 0, got 0.0"),
        ({"initial_std": -1.0}, "initial_std must be"),
        ({"mixture_std": math.inf}, "mixture_std must be"),
        ({"mixture_weight": 1.0}, r"mixture_weight must be a number in \(0, 1\), got 1.0"),
        ({"prior": "scale-mixture", "prior_mean": "pretrained"}, "'scale-mixture' is centered on zero"),
    ],
)
def test_errors(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MeanField(**fields)


@pytest.mark.parametrize("layer", [nn.Conv2d(2, 3, 3, stride=2), nn.ConvTranspose2d(2, 3, 3, stride=2)])
@pytest.mark.default("layer0")
def test_convolutions_draw_outputs_with_and_without_gradients(layer: nn.Module) -> None:
    """Predictions have the noise of training; their mean and variance are those of the moments."""
    torch.manual_seed(0)
    bnn = bayesify(copy.deepcopy(layer).double(), MeanField(initial_std=1.0))
    x = torch.randn(1, 2, 7, 7).double().expand(30, -1, -1, -1)
    drawn = bnn(x, samples=2).outputs
    assert not torch.allclose(drawn[0, 0], drawn[0, 1]), "every row has its own noise"
    mean, variance = (moment[0] for moment in bnn.net.posterior.moments(bnn.net, x))
    with torch.no_grad():
        drawn = bnn(x, samples=2000).outputs
        assert not torch.allclose(drawn[:, 0], drawn[:, 1])
    error = (variance / 2000).sqrt()
    assert ((drawn[:, 0].mean(0) - mean).abs() < 5 * error).all()
    assert ((drawn[:, 0].var(0) / variance - 1).abs() < 5 * (2 / 2000) ** 0.5).all()


def _collapsed(kind: str, mean: float, std: float, method: MeanField) -> float:
    """The smallest bound over distributions of the prior's parameters: -log E_prior[exp(E_q log p(w))] - entropy, by quadrature."""

    def expected_log_density(m: float, v: float) -> float:
        return -0.5 * (math.log(2 * math.pi * v) + ((mean - m) ** 2 + std**2) / v)

    if kind == "mean":

        def integrand(m: float) -> float:
            prior = scipy.stats.norm.pdf(m, scale=method.mean_prior_std)
            return math.exp(expected_log_density(m, method.prior_std**2)) * float(prior)

        evidence = scipy.integrate.quad(integrand, -30, 30, points=[mean], limit=200)[0]
    else:
        t = method.delta / (1 - method.delta)
        variance = scipy.stats.invgamma(0.5, scale=0.01)

        def given_log_variance(u: float) -> float:
            v = math.exp(u)

            def integrand(z: float) -> float:
                return math.exp(expected_log_density(z * (v / t) ** 0.5, v)) * float(scipy.stats.norm.pdf(z))

            return scipy.integrate.quad(integrand, -12, 12, limit=200)[0] * float(variance.pdf(v)) * v

        evidence = scipy.integrate.quad(given_log_variance, -12, 18, limit=400)[0]
    return -math.log(evidence) - float(scipy.stats.norm.entropy(scale=std))


@pytest.mark.parametrize("kind", ["mean", "mean-variance"])
@pytest.mark.default("mean")
def test_kl_with_integrated_prior_parameters_matches_quadrature(kind: Literal["mean", "mean-variance"]) -> None:
    method = MeanField(prior=kind, prior_std=0.6, mean_prior_std=1.3, delta=0.3)
    bnn, site = _convert(nn.Linear(2, 1), method)
    _scatter(site)
    pairs = [(site.weight, site.posterior.weight_log_std), (site.bias, site.posterior.bias_log_std)]
    expected = sum(
        _collapsed(kind, m, math.exp(s), method)
        for mean, log_std in pairs
        for m, s in zip(mean.flatten().tolist(), log_std.flatten().tolist(), strict=True)
    )
    assert bnn.kl().item() == pytest.approx(expected, rel=1e-5)


def test_kl_of_empirical_bayes_is_at_the_best_variance_of_each_tensor() -> None:
    bnn, site = _convert(nn.Linear(4, 3), MeanField(prior="empirical-bayes", a=3.0, b=0.7))
    _scatter(site)
    total = 0.0
    for mean, log_std in ((site.weight, site.posterior.weight_log_std), (site.bias, site.posterior.bias_log_std)):
        q = Normal(mean.detach(), log_std.detach().exp())

        def kl(log_variance: float, q: Normal = q) -> float:
            return kl_divergence(q, Normal(torch.zeros_like(q.mean), math.exp(0.5 * log_variance))).sum().item()

        def objective(log_variance: float, kl=kl) -> float:
            return kl(log_variance) - float(scipy.stats.invgamma.logpdf(math.exp(log_variance), 3.0, scale=0.7))

        best = scipy.optimize.minimize_scalar(objective, bounds=(-6, 6), method="bounded", options={"xatol": 1e-9})
        total += kl(best.x)
    assert bnn.kl().item() == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("prior", ["mean", "mean-variance", "empirical-bayes"])
def test_learned_priors_share_the_pass_and_keep_the_draws(prior: Literal["mean", "mean-variance", "empirical-bayes"]) -> None:
    bnn, site = _convert(nn.Linear(4, 3), MeanField(prior=prior))
    _scatter(site)
    torch.testing.assert_close(bnn(torch.zeros(2, 4).double()).kl, bnn.kl())
    plain, other = _convert(nn.Linear(4, 3), MeanField())
    other.load_state_dict(site.state_dict())
    x = torch.randn(5, 4).double()
    drawn = []
    for network in (bnn, plain):
        torch.manual_seed(0)
        drawn.append(network(x, samples=3).outputs)
    torch.testing.assert_close(*drawn)
    bnn.kl().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in site.parameters())
