"""Variational structured dropout: the law of its outputs and its KL against dense matrices, and what it learns."""

import copy
import math
from collections.abc import Callable
from typing import Literal

import pytest
import torch
from normal_draws import assert_normal
from scipy import stats
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from bayesify import VSD, Bayesian, BayesianLayer, Method, bayesify, elbo, unbayesify
from bayesify.functional import vsd_hierarchical_kl

DRAWS = 20_000
LAYERS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "linear": lambda: (nn.Linear(3, 4), torch.tensor([[1.0, -2.0, 0.5]])),
    "one input": lambda: (nn.Linear(1, 3), torch.tensor([[-1.5]])),
    "convolution": lambda: (nn.Conv1d(3, 2, 2), torch.randn(1, 3, 4)),
    "grouped convolution": lambda: (nn.Conv1d(4, 6, 2, groups=2, bias=False), torch.randn(1, 4, 3)),
    "transposed convolution": lambda: (nn.ConvTranspose1d(4, 6, 2, groups=2), torch.randn(1, 4, 2)),
}
CONV_NOISE = ("kernel", "input")


def _convert(layer: nn.Module, method: Method) -> tuple[Bayesian, BayesianLayer]:
    bnn = bayesify(nn.Sequential(layer.double()), method)
    return bnn, next(site for _, site in bnn.random_layers())


def _spread_rates(site: BayesianLayer) -> None:
    nn.init.uniform_(site.posterior.log_alpha, -3.0, 0.0)


def _covariance_of_noise(site: BayesianLayer) -> Tensor:
    """U diag(alpha) U', reflection by reflection, as matrices."""
    u = torch.eye(len(site.posterior.log_alpha)).double()
    for v in site.posterior.vectors().detach():
        u = (torch.eye(len(v)).double() - 2 * torch.outer(v, v) / v.dot(v)) @ u
    return u @ torch.diag(site.posterior.log_alpha.detach().exp()) @ u.T


def _is_kernel(site: BayesianLayer, conv_noise: str) -> bool:
    return conv_noise == "kernel" and not isinstance(site, nn.Linear)


def _parts(plain: nn.Module, x: Tensor, per_kernel: bool) -> Tensor:
    """What each noise variable multiplies in the (flat) output: one input channel alone, or one output channel, without bias."""
    bias = plain(torch.zeros_like(x))
    if per_kernel:
        y = plain(x) - bias
        return torch.stack([_alone(y, o).flatten() for o in range(y.shape[1])])
    return torch.stack([(plain(_alone(x, i)) - bias).flatten() for i in range(x.shape[1])])


def _alone(x: Tensor, channel: int) -> Tensor:
    return torch.zeros_like(x).index_copy(1, torch.tensor([channel]), x[:, channel : channel + 1])


@pytest.mark.parametrize("coherent", [False, True])
@pytest.mark.parametrize("conv_noise", CONV_NOISE)
@pytest.mark.parametrize("layer", LAYERS)
def test_outputs_are_normal_with_the_covariance_of_the_noise(layer: str, conv_noise: str, coherent: bool) -> None:
    plain, x = LAYERS[layer]()
    bnn, site = _convert(copy.deepcopy(plain), VSD(transforms=2, conv_noise=conv_noise))
    _spread_rates(site)
    plain, x = plain.double(), x.double()
    with torch.no_grad():
        parts = _parts(plain, x, _is_kernel(site, conv_noise))
        covariance = parts.T @ _covariance_of_noise(site) @ parts
        assert_normal(bnn(x, samples=DRAWS, coherent=coherent).outputs.flatten(1), plain(x).flatten(), covariance)


def test_every_example_has_noise_of_its_own_unless_coherent() -> None:
    bnn, _ = _convert(nn.Linear(3, 1), VSD(p=0.5))
    x = torch.randn(1, 3).double().expand(2, 3)
    with torch.no_grad():
        apart, same = bnn(x, samples=DRAWS).outputs, bnn(x, samples=DRAWS, coherent=True).outputs
    assert abs(torch.corrcoef(apart[..., 0].T)[0, 1]) < 5 / DRAWS**0.5
    assert torch.equal(same[:, 0], same[:, 1])


@pytest.mark.parametrize("method", [VSD(transforms=3, rank=2), VSD(transforms=1), VSD(transforms=0), VSD(conv_noise="input")])
@pytest.mark.parametrize("layer", LAYERS)
def test_kl_of_all_weights_agrees_with_dense_matrices(layer: str, method: VSD) -> None:
    bnn, site = _convert(LAYERS[layer]()[0], method)
    _spread_rates(site)
    covariance, k = _covariance_of_noise(site), len(site.posterior.log_alpha)
    # Rows of W share a noise variable, with equally many weights each; drawing the noise of one variable identifies its row.
    variable = site.posterior._over_weight(torch.arange(k).double(), site).expand(site.weight.shape)
    theta = torch.stack([site.weight.detach()[variable == i] for i in range(k)])
    total = 0.0
    for column in theta.T:
        marginal = MultivariateNormal(column, torch.diag(column) @ covariance @ torch.diag(column))
        best = Normal(torch.zeros(k).double(), (column**2 * (1 + covariance.diag())).sqrt())
        total += kl_divergence(marginal, MultivariateNormal(best.mean, torch.diag(best.variance))).item()
    assert bnn.kl().item() == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("transforms", [0, 1])
def test_without_reflections_it_is_gaussian_dropout(transforms: Literal[0, 1]) -> None:
    bnn, site = _convert(nn.Linear(3, 5), VSD(transforms=transforms))
    _spread_rates(site)
    if transforms:
        nn.init.zeros_(site.posterior.first_vector)  # reflects nothing
    else:
        assert [name for name, _ in site.posterior.named_parameters()] == ["log_alpha"]
    alpha = site.posterior.log_alpha.detach().exp()
    assert bnn.kl().item() == pytest.approx(5 / 2 * torch.log1p(1 / alpha).sum().item(), rel=1e-9)
    with torch.no_grad():
        assert_normal(site.posterior.noise(site, DRAWS), torch.ones(3).double(), torch.diag(alpha))
        kl = bnn.kl()
        site.weight.mul_(3.0)
    assert bnn.kl() == kl, "the KL does not depend on the weight"


def _hierarchical(layer: nn.Module, **fields: object) -> tuple[Bayesian, BayesianLayer]:
    bnn, site = _convert(layer, VSD(hierarchical=True, **fields))
    with torch.no_grad():
        site.posterior.log_scale_mean.uniform_(-0.5, 0.5)
        site.posterior.log_scale_log_std.fill_(math.log(0.4))
    return bnn, site


@pytest.mark.parametrize("coherent", [False, True])
@pytest.mark.parametrize("layer", [name for name in LAYERS if name != "one input"])
def test_the_scale_is_log_normal_and_shared_by_the_batch(layer: str, coherent: bool) -> None:
    plain, x = LAYERS[layer]()
    bnn, site = _hierarchical(copy.deepcopy(plain), conv_noise="kernel")
    nn.init.constant_(site.posterior.log_alpha, -60.0)  # only z is left
    plain, x = plain.double(), x.double()
    with torch.no_grad():
        parts = _parts(plain, x, _is_kernel(site, "kernel"))
        y = bnn(x.expand(3, *x.shape[1:]), samples=DRAWS, coherent=coherent).outputs.flatten(2)
        torch.testing.assert_close(y, y[:, :1].expand_as(y))
        z = torch.linalg.lstsq(parts.T, (y[:, 0] - plain(torch.zeros_like(x)).flatten()).T).solution.T
    for values, mean in zip(z.T, site.posterior.log_scale_mean.tolist(), strict=True):
        assert stats.kstest(values.log().numpy(), "norm", (mean, 0.4)).pvalue > 1e-4
    assert (torch.corrcoef(z.T) - torch.eye(z.shape[1]).double()).abs().max() < 5 / DRAWS**0.5


def test_a_layer_used_twice_in_a_pass_has_one_scale() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([self.layer(x), self.layer(x)], 1)

    bnn = bayesify(Twice(), VSD(hierarchical=True))
    nn.init.constant_(bnn.net.layer.posterior.log_alpha, -60.0)
    outputs = bnn(torch.randn(4, 3), samples=5).outputs
    torch.testing.assert_close(outputs[:, :, 0], outputs[:, :, 1])
    assert not torch.allclose(outputs[0], outputs[1])
    alone = bnn.net.layer  # outside a pass, where no draw is shared
    assert not torch.allclose(alone(torch.ones(1, 3)), alone(torch.ones(1, 3)))


@pytest.mark.parametrize("hyperprior", ["inverse-gamma", "gamma", "half-cauchy"])
def test_hierarchical_kl_and_mean(hyperprior: str) -> None:
    bnn, site = _hierarchical(nn.Linear(3, 4), hyperprior=hyperprior, concentration=3.0, rate=1.5)
    posterior, g, d = site.posterior, site.posterior.log_scale_mean.detach(), torch.full((3,), 0.16).double()
    expected = vsd_hierarchical_kl(posterior.log_alpha, posterior.vectors(), 4, g, d, 3.0, 1.5, hyperprior)
    torch.testing.assert_close(bnn.kl(), expected)
    theta = site.weight.detach().clone()
    net = unbayesify(bnn)
    torch.testing.assert_close(net[0].weight.detach(), theta * torch.exp(g + 0.08))


@pytest.mark.parametrize(
    ("transforms", "rank", "parameters"), [(1, None, 0), (1, 2, 0), (2, None, 30), (3, None, 60), (2, 2, 27), (3, 2, 54)]
)
def test_vectors_follow_one_another(transforms: int, rank: int | None, parameters: int) -> None:
    _, site = _convert(nn.Linear(5, 2), VSD(transforms=transforms, rank=rank))
    posterior = site.posterior
    assert sum(p.numel() for p in posterior.parameters()) == 5 + 5 + parameters
    state = {name: p.detach() for name, p in posterior.named_parameters()}
    v = state["first_vector"][0]
    expected = [v]
    for t in range(transforms - 1):
        if rank is None:
            v = state[f"connections.{t}.weight"] @ v + state[f"connections.{t}.bias"]
        else:
            hidden = (state[f"connections.{t}.0.weight"] @ v + state[f"connections.{t}.0.bias"]).clamp_min(0)
            v = state[f"connections.{t}.2.weight"] @ hidden + state[f"connections.{t}.2.bias"]
        expected.append(v)
    torch.testing.assert_close(posterior.vectors(), torch.stack(expected))


def test_dead_hidden_units_may_leave_no_vector() -> None:
    bnn, site = _convert(nn.Linear(5, 2), VSD(transforms=2, rank=3))
    first, _, last = site.posterior.connections[0]
    nn.init.constant_(first.bias, -100.0)
    nn.init.zeros_(last.bias)
    assert (site.posterior.vectors()[1] == 0).all()
    draws = bnn(torch.randn(4, 5).double())
    (-elbo(draws, -draws.outputs.square().sum(-1), n=4)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in bnn.parameters())


@pytest.mark.parametrize(("p", "alpha"), [(0.5, 1.0), (0.2, 0.25), (0.9, 9.0)])
def test_alpha_starts_at_the_odds_of_the_rate_and_has_no_bound(p: float, alpha: float) -> None:
    bnn, site = _convert(nn.Linear(3, 4), VSD(p=p))
    assert site.posterior.log_alpha.exp().tolist() == pytest.approx([alpha] * 3, rel=1e-6)
    with torch.no_grad():
        y = bnn(torch.ones(1, 3).double(), samples=DRAWS).outputs
        expected = alpha * site.weight.square().sum(1)  # equal variances in all directions: U does not matter
    torch.testing.assert_close(y.var(0)[0], expected, atol=0, rtol=5 * (2 / DRAWS) ** 0.5)


def test_autocast_leaves_the_noise_in_the_precision_of_the_kl() -> None:
    bnn = bayesify(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 2)), VSD(hierarchical=True))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        noise = {site.posterior.noise(site, 2).dtype for _, site in bnn.random_layers()}
        draws = bnn(torch.randn(3, 1, 4, 4), samples=2)
    assert noise == {torch.float32}
    assert draws.outputs.dtype == torch.bfloat16
    draws.outputs.float().sum().backward()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"transforms": -1}, "transforms must be a whole number of at least 0, got -1"),
        ({"transforms": 4}, "transforms must be one of 0, 1, 2, 3, got 4"),
        ({"transforms": True}, "transforms must be a whole number of at least 0, got True"),
        ({"rank": 0}, "rank must be a whole number of at least 1, got 0"),
        ({"hierarchical": "yes"}, "hierarchical must be one of False, True, got 'yes'"),
        ({"hyperprior": "beta"}, "hyperprior must be one of 'inverse-gamma', 'gamma', 'half-cauchy', got 'beta'"),
        ({"conv_noise": "output"}, "conv_noise must be one of 'kernel', 'input', got 'output'"),
        ({"concentration": 0.0}, "concentration must be a finite number above 0"),
        ({"rate": -1.0}, "rate must be a finite number above 0"),
        ({"initial_scale_std": 0.0}, "initial_scale_std must be a finite number above 0"),
        ({"p": 0.0}, r"p must be a number in \(0, 1\), got 0.0; for no noise use Deterministic"),
        ({"p": 1.0}, r"p must be a number in \(0, 1\), got 1.0"),
    ],
)
def test_errors(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VSD(**fields)


@pytest.mark.parametrize("hierarchical", [False, True])
def test_a_prior_adds_minus_its_log_density_to_the_kl(hierarchical: bool) -> None:
    plain, site = _convert(nn.Linear(3, 2), VSD(hierarchical=hierarchical))
    priors, _ = _convert(nn.Linear(3, 2), VSD(hierarchical=hierarchical, prior_std=0.3))
    priors.load_state_dict(plain.state_dict())
    prior = Normal(torch.zeros(()).double(), 0.3)
    weights = torch.cat([site.weight.detach().flatten(), site.bias.detach()])
    expected = prior.log_prob(torch.zeros(8).double()).sum() - prior.log_prob(weights).sum()
    torch.testing.assert_close(priors.kl() - plain.kl(), expected)
    found = priors(torch.ones(5, 3).double())
    torch.testing.assert_close(found.kl, priors.kl())  # also where a pass finds it on its way


def test_a_prior_keeps_the_weights_small() -> None:
    sizes = []
    for prior_std in (None, 0.05):
        torch.manual_seed(0)
        bnn, site = _convert(nn.Linear(2, 1, bias=False), VSD(transforms=1, p=0.01, prior_std=prior_std))
        x = torch.randn(64, 2).double()
        optimizer = torch.optim.Adam(bnn.parameters(), lr=0.05)
        for _ in range(200):
            outputs = bnn(x)
            loss = (outputs.outputs[0] - x.sum(1, keepdim=True)).square().mean() + outputs.kl / 64
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        sizes.append(float(site.weight.detach().norm()))
    assert sizes[1] < 0.5 * sizes[0]


def test_a_prior_std_must_be_positive() -> None:
    with pytest.raises(ValueError, match=r"prior_std must be a finite number above 0, got 0\.0"):
        VSD(prior_std=0.0)


@pytest.mark.parametrize("rank", [None, 3])
def test_a_posterior_holds_no_layers_of_the_net(rank: int | None) -> None:
    """What wraps, counts or quantizes each `nn.Linear` (FSDP) would meet them."""
    bnn = bayesify(nn.Sequential(nn.Linear(4, 3), nn.Conv1d(3, 2, 1)), VSD(transforms=3, rank=rank))
    assert [name for name, module in bnn.named_modules() if isinstance(module, nn.Linear)] == ["net.0"]
