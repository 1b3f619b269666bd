"""Concrete dropout: the relaxed mask by quadrature, the KL as that of mixtures of narrow normals, learning of p."""

import math

import mpmath
import pytest
import torch
from scipy import integrate, stats
from torch import nn
from torch.distributions import Bernoulli, Categorical, MixtureSameFamily, Normal, kl_divergence
from torch.distributions.relaxed_bernoulli import RelaxedBernoulli

from bayesify import ConcreteDropout, bayesify, elbo
from bayesify.functional import concrete_mask

F64 = torch.float64


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_mask_is_a_relaxed_bernoulli(p: float) -> None:
    torch.manual_seed(0)
    logit, draws = torch.tensor(math.log(p / (1 - p)), dtype=F64), 20_000
    mask = concrete_mask((draws,), logit, 0.7) * (1 - p)
    reference = RelaxedBernoulli(torch.tensor(0.7, dtype=F64), probs=torch.tensor(1 - p, dtype=F64)).sample((draws,))
    assert stats.ks_2samp(mask.numpy(), reference.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("p", [0.05, 0.3, 0.8])
def test_its_moments_are_nearly_those_of_dropout(p: float) -> None:
    # by quadrature over the logistic noise: mean 1 and second moment 1 / (1 - p), up to terms in t^2 and t
    torch.manual_seed(0)
    logit, t, draws = math.log(p / (1 - p)), 0.1, 100_000
    mask = concrete_mask((draws,), torch.tensor(logit, dtype=F64), t)

    def moment(n: int) -> float:
        def integrand(a: float) -> float:
            return stats.logistic.pdf(a) * (1 / (1 - p) / (1 + math.exp((logit + a) / t))) ** n

        return integrate.quad(integrand, -30, 30, points=[-logit])[0]

    moments = [moment(1), moment(2)]
    for n, expected in zip((1, 2), moments, strict=True):
        powers = mask**n
        assert abs(powers.mean().item() - expected) < 5 * powers.std().item() / draws**0.5
    assert moments[0] == pytest.approx(1, abs=0.03)
    assert moments[1] == pytest.approx(1 / (1 - p), rel=0.1)


def test_gradients_of_the_mask() -> None:
    logit = torch.tensor(-0.4, dtype=F64, requires_grad=True)

    def run(logit: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(1)
        return concrete_mask((6,), logit, 0.5)

    assert torch.autograd.gradcheck(run, logit)


def test_the_kl_is_that_of_narrow_normals_up_to_a_constant() -> None:
    # one weight of one input: p N(0, e^2) + (1 - p) N(w / (1 - p), e^2) from N(0, s^2), by quadrature; p and w change the KL alike
    prior_std, width = 0.8, 0.01
    prior = Normal(torch.zeros((), dtype=F64), prior_std)

    def both(p: float, w: float) -> tuple[float, float]:
        bnn = bayesify(nn.Linear(1, 1, bias=False).double(), ConcreteDropout(p=p, prior_std=prior_std))
        nn.init.constant_(bnn.net.weight, w)
        means = torch.tensor([0.0, w / (1 - p)], dtype=F64)
        q = MixtureSameFamily(Categorical(torch.tensor([p, 1 - p], dtype=F64)), Normal(means, width))
        grid = torch.cat([m + torch.linspace(-9 * width, 9 * width, 4001, dtype=F64) for m in means])
        exact = sum(torch.trapezoid(q.log_prob(g).exp() * (q.log_prob(g) - prior.log_prob(g)), g).item() for g in grid.chunk(2))
        return bnn.kl().item(), exact

    (kl, exact), (other_kl, other_exact) = both(0.2, 0.5), both(0.6, -1.1)
    assert kl - other_kl == pytest.approx(exact - other_exact, abs=1e-6)
    assert abs(kl - other_kl) > 0.5


def test_the_kl_of_choices_counts_once_per_input_channel() -> None:
    bnn = bayesify(
        nn.Sequential(nn.Conv2d(3, 5, 2), nn.Flatten(), nn.Linear(20, 2)).double(), ConcreteDropout(p=0.3, prior_std=0.5)
    )
    choice = kl_divergence(Bernoulli(torch.tensor(0.3, dtype=F64)), Bernoulli(torch.tensor(0.5, dtype=F64)))
    expected = 23 * choice
    for _, site in bnn.random_layers():
        expected = expected + (site.weight.square().sum() / 0.7 + site.bias.square().sum()) / (2 * 0.25)
    torch.testing.assert_close(bnn.kl(), expected, rtol=1e-6, atol=0)


def test_drop_connect_has_one_choice_per_weight() -> None:
    bnn = bayesify(nn.Linear(4, 3).double(), ConcreteDropout(noise="weight", p=0.3, temperature=0.7, prior_std=0.5))
    choice = kl_divergence(Bernoulli(torch.tensor(0.3, dtype=F64)), Bernoulli(torch.tensor(0.5, dtype=F64)))
    squares = (bnn.net.weight.square().sum() / 0.7 + bnn.net.bias.square().sum()) / (2 * 0.25)
    torch.testing.assert_close(bnn.kl(), 12 * choice + squares, rtol=1e-6, atol=0)
    with torch.no_grad():
        masks = (bnn.net.sample(40_000)[0] / bnn.net.weight).flatten(1)
    reference = RelaxedBernoulli(torch.tensor(0.7, dtype=F64), probs=torch.tensor(0.7, dtype=F64)).sample((40_000,))
    for mask in masks.T:
        assert stats.ks_2samp((0.7 * mask).numpy(), reference.numpy()).pvalue > 1e-4
    assert (torch.corrcoef(masks.T) - torch.eye(12, dtype=F64)).abs().max() < 5 / 200
    x = torch.randn(3, 4, dtype=F64)
    first = bnn(x.expand(2, 3, 4).flatten(0, 1)).outputs[0]
    torch.testing.assert_close(first[:3], first[3:], msg="the batch shares a draw")


@pytest.mark.parametrize("logit", [-80.0, -20.0, -8.0, -0.5, 0.5, 5.0, 12.0, 17.0, 40.0])
def test_the_kl_has_its_digits_in_float32_for_rates_near_zero_and_one(logit: float) -> None:
    bnn = bayesify(nn.Linear(2, 1), ConcreteDropout())
    with torch.no_grad():
        bnn.net.posterior.logit.fill_(logit)
    squares = [mpmath.mpf(float(parameter.square().sum())) for parameter in (bnn.net.weight, bnn.net.bias)]

    def exact(x: mpmath.mpf) -> mpmath.mpf:
        p, keep = 1 / (1 + mpmath.exp(-x)), 1 / (1 + mpmath.exp(x))
        return (squares[0] / keep + squares[1]) / 2 + 2 * (mpmath.log(2) + p * mpmath.log(p) + keep * mpmath.log(keep))

    kl = bnn.kl()
    kl.backward()
    with mpmath.workdps(50):
        assert kl.item() == pytest.approx(float(exact(mpmath.mpf(logit))), rel=1e-5)
        slope = float(mpmath.diff(exact, mpmath.mpf(logit), h=mpmath.mpf(10) ** -20))
    assert bnn.net.posterior.logit.grad.item() == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize(("informative", "above"), [(True, False), (False, True)])
def test_p_falls_for_inputs_that_matter_and_rises_for_others(informative: bool, above: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(500, 3, dtype=F64)
    y = (3 * x.sum(1, keepdim=True) if informative else torch.zeros(500, 1, dtype=F64)) + 0.1 * torch.randn(500, 1, dtype=F64)
    bnn = bayesify(nn.Linear(3, 1).double(), ConcreteDropout(p=0.2))
    nn.init.constant_(bnn.net.weight, 3.0 if informative else 0.0)
    optimizer = torch.optim.Adam(bnn.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        draws = bnn(x)
        (-elbo(draws, Normal(draws.outputs, 0.5).log_prob(y).sum(-1), n=500)).backward()
        optimizer.step()
    p = bnn.net.posterior.probability().item()
    assert p > 0.4 if above else p < 0.05


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"noise": "output"}, "noise must be one of 'input', 'weight'"),
        ({"noise": "weight", "p": 0.0}, r"for a fixed p use DropConnect"),
        ({"p": 0.0}, r"p must be a number in \(0, 1\), got 0.0; for a fixed p use MCDropout"),
        ({"p": 1.0}, r"p must be a number in \(0, 1\)"),
        ({"temperature": 0.0}, "temperature must be"),
        ({"prior_std": 0.0}, "prior_std must be"),
    ],
)
def test_errors(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ConcreteDropout(**fields)
