"""Variational dropout: covariances of both noise types in closed form, KL terms, the bound on alpha, and plain Gaussian dropout."""

import copy
import math

import pytest
import torch
from normal_draws import assert_normal
from scipy import optimize, stats
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from bayesify import Bayesian, BayesianLayer, VariationalDropout, bayesify

DRAWS = 40_000
# KL at alpha = 1 and at alpha = e, in nats (quadrature of the definition, see test_kl.py)
KL_AT_ONE, KL_AT_E = 0.426685604296, 0.173193859243

LAYERS = {
    "linear": lambda: (nn.Linear(3, 4), torch.tensor([[1.0, -2.0, 0.5]])),
    "convolution": lambda: (nn.Conv1d(3, 2, 2), torch.randn(1, 3, 4)),
    "grouped convolution": lambda: (nn.Conv1d(4, 2, 2, groups=2), torch.randn(1, 4, 3)),
    "transposed convolution": lambda: (nn.ConvTranspose1d(2, 2, 2), torch.randn(1, 2, 2)),
}


def _convert(layer: nn.Module, method: VariationalDropout) -> tuple[Bayesian, BayesianLayer]:
    bnn = bayesify(nn.Sequential(layer.double()), method)
    return bnn, next(site for _, site in bnn.random_layers())


def _spread_rates(site: BayesianLayer) -> None:
    nn.init.uniform_(site.posterior.log_alpha, -3.0, 0.0)


@pytest.mark.parametrize("coherent", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_input_noise_is_shared_by_the_weights_of_an_input(layer: str, coherent: bool) -> None:
    plain, x = LAYERS[layer]()
    bnn, site = _convert(copy.deepcopy(plain), VariationalDropout(p=0.3))
    _spread_rates(site)
    plain, x = plain.double(), x.double()
    with torch.no_grad():
        mean = plain(x).flatten()
        # A layer is linear in its input: what channel i adds to the output, alone, is what its noise multiplies.
        parts = []
        for i in range(x.shape[1]):
            alone = torch.zeros_like(x)
            alone[:, i] = x[:, i]
            parts.append((plain(alone) - plain(torch.zeros_like(x))).flatten())
        covariance = sum(alpha * torch.outer(part, part) for alpha, part in zip(site.posterior.log_alpha.exp(), parts, strict=True))
        assert (covariance - covariance.diag().diag()).abs().max() > 0.1 * covariance.diag().max(), "outputs are correlated"
        assert_normal(bnn(x, samples=DRAWS, coherent=coherent).outputs.flatten(1), mean, covariance)


def _alpha_of_every_weight(site: BayesianLayer, alpha_per: str) -> Tensor:
    """alpha in the shape of the weight, one entry at a time."""
    alpha, shape = site.posterior.log_alpha.exp(), site.weight.shape
    if alpha_per != "unit":
        return alpha.expand(shape).clone()
    full = torch.empty(shape, dtype=torch.float64)
    for index in torch.cartesian_prod(*[torch.arange(size) for size in shape]).tolist():
        if isinstance(site, nn.ConvTranspose1d):
            channel = index[0]
        else:
            groups = getattr(site, "groups", 1)
            channel = index[0] // (shape[0] // groups) * shape[1] + index[1]
        full[tuple(index)] = alpha[channel]
    return full


@pytest.mark.parametrize("route", ["gradients wanted", "none wanted", "coherent"])
@pytest.mark.parametrize("alpha_per", ["layer", "unit", "weight"])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.default("*-weight-*", "*-layer-coherent")
def test_weight_noise_is_independent(layer: str, alpha_per: str, route: str) -> None:
    plain, x = LAYERS[layer]()
    bnn, site = _convert(copy.deepcopy(plain), VariationalDropout(noise="weight", alpha_per=alpha_per, p=0.3))
    _spread_rates(site)
    plain, x = plain.double(), x.double()
    weight = plain.weight.detach()

    def act(w: Tensor) -> Tensor:
        return torch.func.functional_call(plain, {"weight": w}, (x,)).flatten()

    with torch.no_grad():
        slopes = torch.func.jacrev(act)(weight).flatten(1)
        variances = _alpha_of_every_weight(site, alpha_per) * weight**2
        covariance = slopes @ variances.flatten().diag() @ slopes.T
        if route != "coherent":
            # one draw per output element: its own variance, nothing in common with its neighbors
            covariance = covariance.diag().diag()
        with torch.set_grad_enabled(route == "gradients wanted"):
            drawn = bnn(x, samples=DRAWS, coherent=route == "coherent").outputs.detach()
        assert_normal(drawn.flatten(1), act(weight), covariance)


@pytest.mark.parametrize("noise", ["input", "weight"])
def test_noise_is_independent_across_examples(noise: str) -> None:
    bnn, _ = _convert(nn.Linear(3, 1), VariationalDropout(noise=noise, p=0.4))
    x = torch.tensor([[1.0, -2.0, 0.5]]).double().expand(2, 3)
    with torch.no_grad():
        y = bnn(x, samples=DRAWS).outputs.flatten(1)
    assert torch.corrcoef(y.T)[0, 1].abs() < 5 / DRAWS**0.5


# 12 weights in the linear layer, 2 * 6 * 3 in the convolution: of 12 input channels each output sees 6
COUNTS = [
    ("input", "layer", {"linear": 3, "convolution": 12}),
    ("input", "unit", {"linear": 3, "convolution": 12}),
    ("weight", "layer", {"linear": 12, "convolution": 36}),
    ("weight", "unit", {"linear": 12, "convolution": 36}),
    ("weight", "weight", {"linear": 12, "convolution": 36}),
]


@pytest.mark.parametrize(("noise", "alpha_per", "terms"), COUNTS)
def test_kl_has_one_term_per_noise_variable(noise: str, alpha_per: str, terms: dict[str, int]) -> None:
    layers = {"linear": nn.Linear(3, 4), "convolution": nn.Conv1d(12, 2, 3, groups=2)}
    for name, layer in layers.items():
        bnn, _ = _convert(layer, VariationalDropout(noise=noise, alpha_per=alpha_per, p=0.5))
        assert bnn.kl().item() == pytest.approx(terms[name] * KL_AT_ONE, rel=1e-9)


@pytest.mark.parametrize(("noise", "per_unit"), [("input", 1), ("weight", 4)])
def test_kl_adds_different_rates(noise: str, per_unit: int) -> None:
    bnn, site = _convert(nn.Linear(3, 4), VariationalDropout(noise=noise, max_alpha=None))
    with torch.no_grad():
        site.posterior.log_alpha.copy_(torch.tensor([0.0, 1.0, 1.0]))
    assert bnn.kl().item() == pytest.approx(per_unit * (KL_AT_ONE + 2 * KL_AT_E), rel=1e-9)


@pytest.mark.parametrize(("noise", "per_unit"), [("input", 1), ("weight", 4)])
def test_kl_of_ard_is_that_from_the_best_prior_variance(noise: str, per_unit: int) -> None:
    """The smallest KL from a normal of mean zero, by numerical search over its variance, for any weight."""
    bnn, site = _convert(nn.Linear(3, 4), VariationalDropout(noise=noise, prior="ard", max_alpha=None))
    log_alphas, expected = torch.tensor([-4.0, 0.3, 2.0]).double(), 0.0
    with torch.no_grad():
        site.posterior.log_alpha.copy_(log_alphas)
    for log_alpha, theta in zip(log_alphas, (0.4, -2.0, 1.0), strict=True):
        q = Normal(torch.tensor(theta).double(), abs(theta) * (0.5 * log_alpha).exp())
        found = optimize.minimize_scalar(
            lambda s, q=q: float(kl_divergence(q, Normal(torch.zeros(()).double(), math.exp(s)))),
            bounds=(-6, 6),
            options={"xatol": 1e-9},
        )
        expected += found.fun
    assert bnn.kl().item() == pytest.approx(per_unit * expected, rel=1e-8)


@pytest.mark.parametrize(("p", "alpha"), [(0.5, 1.0), (0.2, 0.25), (0.05, 0.05 / 0.95)])
def test_alpha_starts_at_the_odds_of_the_rate(p: float, alpha: float) -> None:
    _, site = _convert(nn.Linear(3, 4), VariationalDropout(p=p))
    assert site.posterior.log_alpha.exp().tolist() == pytest.approx([alpha] * 3, rel=1e-6)


@pytest.mark.parametrize(("noise", "alpha_per"), [("input", "unit"), ("weight", "weight")])
def test_alpha_is_bounded_and_can_return(noise: str, alpha_per: str) -> None:
    method = VariationalDropout(noise=noise, alpha_per=alpha_per, p=0.4, max_alpha=1.0)
    x = torch.tensor([[1.0, -2.0, 0.5]]).double()
    outputs, kls = {}, {}
    for log_alpha in (0.0, 3.0):
        bnn, site = _convert(nn.Linear(3, 4), method)
        with torch.no_grad():
            site.weight.fill_(0.3)
            site.bias.zero_()
            site.posterior.log_alpha.fill_(log_alpha)
        torch.manual_seed(3)
        draws = bnn(x, samples=200)
        outputs[log_alpha], kls[log_alpha] = draws.outputs.detach(), draws.kl.item()
    assert torch.equal(outputs[0.0], outputs[3.0])
    assert kls[0.0] == kls[3.0]
    # beyond the bound: the KL alone would push alpha further up and gets no gradient, noise that costs likelihood pulls it back
    (of_kl,) = torch.autograd.grad(draws.kl, site.posterior.log_alpha, retain_graph=True)
    assert (of_kl == 0).all()
    loss = (draws.outputs - draws.outputs.mean(0)).square().mean()
    (of_noise,) = torch.autograd.grad(loss, site.posterior.log_alpha)
    assert (of_noise > 0).any()


def test_without_a_bound_alpha_may_exceed_one() -> None:
    bnn, site = _convert(nn.Linear(1, 1, bias=False), VariationalDropout(p=0.9, max_alpha=None))
    nn.init.ones_(site.weight)
    with torch.no_grad():
        y = bnn(torch.ones(1, 1).double(), samples=DRAWS).outputs
    assert y.var().item() == pytest.approx(9.0, rel=5 * (2 / DRAWS) ** 0.5)


@pytest.mark.parametrize("noise", ["input", "weight"])
def test_fixed_rates_are_no_parameters_but_travel_with_the_state(noise: str) -> None:
    bnn, site = _convert(nn.Linear(3, 4), VariationalDropout(noise=noise, learn=False))
    assert [name for name, _ in bnn.named_parameters()] == ["net.0.weight", "net.0.bias"]
    assert "net.0.posterior.log_alpha" in bnn.state_dict()
    assert not site.posterior.log_alpha.requires_grad


def test_fixed_input_noise_is_gaussian_dropout() -> None:
    plain = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    x = torch.tensor([[0.7, -1.0, 2.0]]).double()
    std = math.sqrt(0.3 / 0.7)
    with torch.no_grad():
        hidden = plain[0](x * (1 + std * torch.randn(DRAWS, 3).double())).tanh()
        expected = plain[2](hidden * (1 + std * torch.randn(DRAWS, 5).double()))
        bnn = bayesify(copy.deepcopy(plain), VariationalDropout(p=0.3, learn=False))
        y = bnn(x, samples=DRAWS).outputs
    assert stats.ks_2samp(y.flatten().numpy(), expected.flatten().numpy()).pvalue > 1e-3


def test_what_cannot_have_input_noise_stays_as_it_is() -> None:
    bnn = bayesify(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), VariationalDropout())
    assert [name for name, _ in bnn.random_layers()] == ["0"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"noise": "output"}, "noise must be one of 'input', 'weight', got 'output'"),
        ({"prior": "normal"}, "prior must be one of 'log-uniform', 'ard', got 'normal'"),
        ({"alpha_per": "channel"}, "alpha_per must be one of"),
        ({"alpha_per": "weight"}, 'alpha_per="weight" requires noise="weight"'),
        ({"p": 0.0}, r"p must be a number in \(0, 1\), got 0.0; for no noise use Deterministic"),
        ({"p": 1.0}, r"p must be a number in \(0, 1\), got 1.0"),
        ({"max_alpha": 0.0}, "max_alpha must be a finite number above 0"),
        ({"p": 0.6}, "p=0.6 is an initial alpha of 1.5, above max_alpha=1.0"),
    ],
)
def test_errors(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VariationalDropout(**fields)


@pytest.mark.parametrize("noise", ["input", "weight"])
def test_a_prior_adds_minus_its_log_density_to_the_kl(noise: str) -> None:
    plain, site = _convert(nn.Linear(3, 2), VariationalDropout(noise=noise))
    priors, _ = _convert(nn.Linear(3, 2), VariationalDropout(noise=noise, prior_std=0.3))
    priors.load_state_dict(plain.state_dict())
    log_prob = stats.norm(scale=0.3).logpdf
    weights = torch.cat([site.weight.detach().flatten(), site.bias.detach()]).numpy()
    expected = float((log_prob(0.0) - log_prob(weights)).sum())
    assert float(priors.kl().detach() - plain.kl().detach()) == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"prior_std must be a finite number above 0, got -1\.0"):
        VariationalDropout(prior_std=-1.0)
