"""Rank-1 factors: members against explicit networks, shared components, the KL of mixtures, moments."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal, kl_divergence

from bayesify import BatchEnsemble, Bayesian, Rank1, bayesify, summary

F64 = torch.float64


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def _members(plain: nn.Sequential, bnn: Bayesian) -> list[nn.Sequential]:
    """The network of each component, as W times s r' written out."""
    members: list[nn.Sequential] = []
    for k in range(bnn.net[0].posterior.method.components):
        member = copy.deepcopy(plain)
        for i in (0, 2):
            p = bnn.net[i].posterior
            member[i].weight.data *= torch.outer(p.output_mean[k], p.input_mean[k]).detach()
        members.append(member)
    return members


def _which(outputs: Tensor, members: list[nn.Sequential], x: Tensor) -> list[int]:
    """For every draw the member that gives it."""
    expected = torch.stack([member(x) for member in members])
    agree = (outputs[:, None] - expected).abs().flatten(2).amax(2) < 1e-10
    assert (agree.sum(1) == 1).all(), "a draw is no member: layers used different components"
    return agree.int().argmax(1).tolist()


@torch.no_grad()
@pytest.mark.parametrize("coherent", [False, True])
def test_every_draw_is_one_member_in_all_layers(coherent: bool) -> None:
    plain = _net()
    bnn, x = bayesify(copy.deepcopy(plain), BatchEnsemble(components=4)), torch.randn(5, 3, dtype=F64)
    members = _members(plain, bnn)
    for _ in range(5):
        assert sorted(_which(bnn(x, samples=8, coherent=coherent).outputs, members, x)) == [0, 0, 1, 1, 2, 2, 3, 3]
    single = torch.cat([bnn(x, coherent=coherent).outputs for _ in range(400)])
    counts = torch.bincount(torch.tensor(_which(single, members, x)), minlength=4)
    assert (counts - 100).abs().max() < 5 * math.sqrt(400 * 0.25 * 0.75)


@torch.no_grad()
def test_functions_and_networks_that_are_drawn_are_members() -> None:
    plain = _net()
    bnn, x = bayesify(copy.deepcopy(plain), BatchEnsemble(components=3)), torch.randn(5, 3, dtype=F64)
    members, seeds = _members(plain, bnn), range(20)
    functions = _which(torch.stack([bnn.function(seed)(x) for seed in seeds]), members, x)
    assert set(functions) == {0, 1, 2}
    assert _which(torch.stack([bnn.sample_network(seed)(x) for seed in seeds]), members, x) == functions
    with bnn.drawn(seed=4) as net:
        assert _which(net(x)[None], members, x) == functions[4:5]


def test_a_step_trains_all_members() -> None:
    bnn, x = bayesify(_net(), BatchEnsemble(components=4)), torch.randn(5, 3, dtype=F64)
    bnn(x, samples=4).outputs.square().sum().backward()
    for _, site in bnn.random_layers():
        assert (site.posterior.input_mean.grad.abs().amax(1) > 0).all()
        assert (site.posterior.output_mean.grad.abs().amax(1) > 0).all()


def test_summary_counts_members_of_the_network() -> None:
    assert round(math.exp(summary(bayesify(_net(), BatchEnsemble(components=4))).log_ensemble)) == 4
    assert summary(bayesify(_net(), Rank1())).log_ensemble == math.inf


@torch.no_grad()
@pytest.mark.parametrize("coherent", [False, True])
def test_moments_of_one_component(coherent: bool) -> None:
    # E y = s (W (r x)) + b; Var y = E s^2 (E h^2) - (E s E h)^2, h = W (x r) with variance W^2 (std_r x)^2
    bnn = bayesify(nn.Sequential(nn.Linear(3, 2).double()), Rank1(components=1, initial_std=0.4, spread=0.5))
    site, x = bnn.net[0], torch.randn(1, 3, dtype=F64)
    p, draws = site.posterior, 60_000
    mean, variance = site.weight @ (p.input_mean[0] * x[0]), site.weight.square() @ (p.input_log_std[0].exp() * x[0]).square()
    s_mean, s_variance = p.output_mean[0], (2 * p.output_log_std[0]).exp()
    expected = (s_mean.square() + s_variance) * (mean.square() + variance) - (s_mean * mean).square()
    y = bnn(x, samples=draws, coherent=coherent).outputs[:, 0]
    assert ((y.mean(0) - (s_mean * mean + site.bias)).abs() < 5 * y.std(0) / draws**0.5).all()
    squares = (y - y.mean(0)).square()
    assert ((squares.mean(0) - expected).abs() < 5 * squares.std(0) / draws**0.5).all()


def test_kl_is_the_mean_over_components_and_the_decay_of_the_weight() -> None:
    bnn = bayesify(_net(), Rank1(components=3, prior_std=0.2, spread=0.5, weight_prior_std=0.7))
    expected = torch.zeros((), dtype=F64)
    for _, site in bnn.random_layers():
        p = site.posterior
        nn.init.normal_(p.input_log_std, -1.0, 0.5)
        for mean, log_std in ((p.input_mean, p.input_log_std), (p.output_mean, p.output_log_std)):
            for k in range(3):
                q = Normal(mean[k], log_std[k].exp())
                expected = expected + kl_divergence(q, Normal(torch.ones_like(mean[k]), 0.2)).sum() / 3
        for weight in (site.weight, site.bias):
            expected = expected + weight.square().sum() / (2 * 0.49)
    torch.testing.assert_close(bnn.kl(), expected)


@torch.no_grad()
def test_the_bound_is_within_log_k_of_the_kl_of_the_mixture() -> None:
    bnn = bayesify(_net(), Rank1(components=3, prior_std=0.5, initial_std=0.3, spread=0.5))
    sites = [site.posterior for _, site in bnn.random_layers()]
    mean = torch.cat([m for p in sites for m in (p.input_mean, p.output_mean)], 1)
    std = torch.cat([s for p in sites for s in (p.input_log_std, p.output_log_std)], 1).exp()
    q = MixtureSameFamily(Categorical(torch.ones(3, dtype=F64)), Independent(Normal(mean, std), 1))
    v = q.sample((20_000,))
    ratio = q.log_prob(v) - Normal(torch.ones_like(mean[0]), 0.5).log_prob(v).sum(1)
    error = 5 * ratio.std() / len(ratio) ** 0.5
    slack = bnn.kl() - ratio.mean()
    assert error < 0.2
    assert 0.5 * math.log(3) < slack < math.log(3) + error


def test_factors_start_around_one() -> None:
    torch.manual_seed(0)
    p = bayesify(nn.Linear(400, 300), Rank1(spread=0.2, initial_std=0.03)).net.posterior
    torch.testing.assert_close(p.input_mean.mean(), torch.tensor(1.0), rtol=0, atol=0.03)
    torch.testing.assert_close(p.output_mean.std(), torch.tensor(0.2), rtol=0.1, atol=0)
    torch.testing.assert_close(p.output_log_std.exp(), torch.full((4, 300), 0.03))


@pytest.mark.parametrize(
    ("method", "fields", "message"),
    [
        (Rank1, {"components": 0}, "components must be a whole number of at least 1, got 0"),
        (Rank1, {"prior_std": 0.0}, "prior_std must be"),
        (Rank1, {"initial_std": 0.0}, "initial_std must be"),
        (Rank1, {"spread": -1.0}, "spread must be"),
        (BatchEnsemble, {"components": 1.5}, "components must be"),
        (BatchEnsemble, {"weight_prior_std": -1.0}, "weight_prior_std must be"),
    ],
)
def test_errors(method: type, fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        method(**fields)
