"""WHVI compared with dense matrices: the distribution of W x, the KL by densities, parameter counts, projection."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence

from bayesify import WHVI, Bayesian, BayesianLayer, MCDropout, MeanField, bayesify, summary, unbayesify
from bayesify.functional import hadamard_matrix, planar_flow_inverse

F64 = torch.float64
LAMBDA = 0.01


def _convert(layer: nn.Module, method: WHVI) -> tuple[Bayesian, BayesianLayer]:
    bnn = bayesify(nn.Sequential(layer.double()), method)
    return bnn, next(site for _, site in bnn.random_layers())


def _scatter(site: BayesianLayer, scale: float = 0.5) -> None:
    """Parameters that differ from one another."""
    for name, parameter in site.named_parameters():
        nn.init.normal_(parameter, -0.5 if name.endswith("log_std") else 0.3, scale)


def _factor(site: BayesianLayer) -> Tensor:
    """The Cholesky factor of the covariance of g, (K, D, D), in units of the prior's standard deviation."""
    p = site.posterior
    factor = p.g.log_std.exp().diag_embed()
    if p.g.tril is not None:
        for k in range(len(factor)):
            place = 0
            for i in range(p.blocks.size):
                for j in range(i):
                    factor[k, i, j] = p.g.tril[k, place]
                    place += 1
    return factor


def _dense(site: BayesianLayer, g: Tensor, structure: str = "S1HGHS2") -> Tensor:
    """W from the definition, block by block, of g (K or 1, D) in units of the prior's standard deviation."""
    p = site.posterior
    h = hadamard_matrix(p.blocks.size, dtype=F64)
    blocks = []
    for k in range(p.blocks.count):
        core = torch.diag(p.method.prior_std * g[min(k, len(g) - 1)])
        s1, s2 = (None if s is None else torch.diag(s[k]) for s in (p.s1, p.s2))
        blocks.append(
            {
                "S1HGHS2": lambda core=core, s1=s1, s2=s2: s1 @ h @ core @ h @ s2,
                "S1HGHS2H": lambda core=core, s1=s1, s2=s2: s1 @ h @ core @ h @ s2 @ h,
                "SHGH": lambda core=core, s1=s1, s2=s2: s1 @ h @ core @ h,
                "GH": lambda core=core, s1=s1, s2=s2: core @ h,
            }[structure]()
        )
    rows, columns = site.weight_shape[0], math.prod(site.weight_shape[1:])
    whole = torch.cat(blocks)
    if p.blocks.reshaped:
        return whole.flatten()[: rows * columns].reshape(site.weight_shape)
    return whole[:rows, :columns].reshape(site.weight_shape)


LAYERS = {
    "square": (lambda: nn.Linear(4, 4), (4,)),
    "stacked and cut": (lambda: nn.Linear(3, 9), (3,)),
    "narrow": (lambda: nn.Linear(8, 3, bias=False), (8,)),
    "vector": (lambda: nn.Linear(5, 1), (5,)),
    "column": (lambda: nn.Linear(1, 6), (1,)),
    "single": (lambda: nn.Linear(1, 1), (1,)),
    "sequence": (lambda: nn.Linear(3, 2), (2, 3)),
}


@pytest.mark.parametrize("vectors", ["square", "stack"])
@pytest.mark.parametrize("blocks", ["independent", "tied"])
@pytest.mark.parametrize("structure", ["S1HGHS2", "S1HGHS2H", "SHGH", "GH"])
@pytest.mark.parametrize("layer", LAYERS)
def test_both_routes_are_the_definition_without_spread(layer: str, structure: str, blocks: str, vectors: str) -> None:
    make, shape = LAYERS[layer]
    bnn, site = _convert(make(), WHVI(structure=structure, blocks=blocks, vectors=vectors, prior_std=LAMBDA**0.5))
    _scatter(site)
    for name, parameter in site.posterior.named_parameters():
        if name.endswith("log_std"):
            nn.init.constant_(parameter, -40.0)
    weight = _dense(site, site.posterior.g.mean, structure)
    x = torch.randn(3, *shape, dtype=F64)
    expected = torch.nn.functional.linear(x, weight, site.bias)
    torch.testing.assert_close(site.posterior.mean(site)[0], weight)
    for coherent in (False, True):
        torch.testing.assert_close(bnn(x, samples=2, coherent=coherent).outputs, expected.expand(2, *expected.shape))


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("blocks", ["independent", "tied"])
@pytest.mark.parametrize("layer", ["square", "stacked and cut", "vector", "sequence"])
def test_joint_law_of_the_outputs_of_an_example(layer: str, blocks: str, covariance: str) -> None:
    make, shape = LAYERS[layer]
    bnn, site = _convert(make(), WHVI(blocks=blocks, covariance=covariance, prior_std=LAMBDA**0.5))
    _scatter(site)
    x, draws = torch.randn(2, *shape, dtype=F64), 40_000
    with torch.no_grad():
        y = bnn(x, samples=draws).outputs.flatten(1)
        # W x is linear in g and b: columns by unit vectors, from the definition
        k, d = site.posterior.g.mean.shape
        units = torch.eye(k * d, dtype=F64).reshape(-1, k, d)
        linear = torch.stack([(x @ _dense(site, unit).T).reshape(2, -1) for unit in units], -1)  # (B, outputs, K D)
        factor = torch.block_diag(*_factor(site))
        expected = torch.block_diag(*((a @ factor) @ (a @ factor).T for a in linear))  # examples have their own g
        positions = math.prod(shape[:-1])
        noise = torch.diag(site.posterior.bias_log_std.exp() ** 2)  # one draw for both
        expected = expected + noise.repeat(2 * positions, 2 * positions)
        mean = (x @ _dense(site, site.posterior.g.mean).T + site.bias).flatten()
    variances = expected.diag()
    assert ((y.mean(0) - mean).abs() < 5 * (variances / draws).sqrt()).all()
    error = 5.5 * torch.sqrt((variances[:, None] * variances + expected**2) / draws)
    assert ((torch.cov(y.T) - expected).abs() < error).all()


def test_draws_of_the_weight_have_the_moments_of_the_diagnostics() -> None:
    for covariance in ("diagonal", "full"):
        _, site = _convert(nn.Linear(4, 4), WHVI(covariance=covariance, prior_std=LAMBDA**0.5))
        _scatter(site)
        with torch.no_grad():
            weight = site.posterior.sample(site, 40_000)[0] - site.posterior.mean(site)[0]
            u, v = (moment[0] for moment in site.posterior.second_moments())
            for product, expected in ((weight @ weight.mT, u), (weight.mT @ weight, v * u.trace())):
                error = 5 * product.std(0) / len(weight) ** 0.5
                assert ((product.mean(0) - expected).abs() < error).all()


@pytest.mark.parametrize("layer", ["square", "stacked and cut", "narrow"])
@pytest.mark.parametrize("method", [WHVI(), WHVI(blocks="tied"), WHVI(covariance="full"), WHVI(scales="variational")])
def test_kl(layer: str, method: WHVI) -> None:
    bnn, site = _convert(LAYERS[layer][0](), method.replace(bias_prior_std=0.3**0.5))
    _scatter(site)
    p = site.posterior
    expected = torch.zeros((), dtype=F64)
    for mean, factor in zip(p.g.mean, _factor(site), strict=True):
        q = MultivariateNormal(1e-5**0.5 * mean, scale_tril=1e-5**0.5 * factor)
        expected = expected + kl_divergence(
            q, MultivariateNormal(torch.zeros_like(mean), 1e-5 * torch.eye(p.blocks.size, dtype=F64))
        )
    if site.bias is not None:
        expected = expected + kl_divergence(Normal(site.bias, p.bias_log_std.exp()), Normal(site.bias * 0, 0.3**0.5)).sum()
    if method.scales == "variational":
        for s, log_std, unit in ((p.s1, p.s1_log_std, p.s1_prior_std), (p.s2, p.s2_log_std, p.s2_prior_std)):
            expected = expected + kl_divergence(Normal(s, log_std.exp()), Normal(s * 0, unit.expand_as(s))).sum()
    torch.testing.assert_close(bnn.kl(), expected, rtol=1e-10, atol=0)


def _flow_log_prob(site: BayesianLayer, g: Tensor) -> Tensor:
    """log q(g), (S,), for g (S, 1, D), through the inverse maps and the Jacobian of autograd."""
    p = site.posterior
    z = g
    for u, w, b in reversed(list(zip(p.g.flow_u, p.g.flow_w, p.g.flow_b, strict=True))):
        z = planar_flow_inverse(z, u, w, b)
    noise = (z - p.g.mean) / p.g.log_std.exp()
    jacobians = torch.func.vmap(torch.func.jacrev(lambda v: p.g.draw(1, v[None])[0][0]))(noise)
    log_det = torch.linalg.slogdet(jacobians.reshape(-1, p.blocks.size, p.blocks.size)).logabsdet
    return Independent(Normal(torch.zeros_like(p.g.mean), 1.0), 2).log_prob(noise) - log_det


def test_kl_with_flows_is_an_unbiased_estimate() -> None:
    bnn, site = _convert(nn.Linear(4, 4, bias=False), WHVI(flows=3))
    _scatter(site, 1.0)
    with torch.no_grad():
        estimates = torch.stack([bnn.kl() for _ in range(1000)])
        g, _ = site.posterior.g.draw(20_000)
        prior = Independent(Normal(torch.zeros_like(site.posterior.g.mean), 1.0), 2)
        ratios = _flow_log_prob(site, g) - prior.log_prob(g)
        base = kl_divergence(Normal(site.posterior.g.mean, site.posterior.g.log_std.exp()), Normal(0 * site.posterior.g.mean, 1.0))
    error = 5 * math.hypot(ratios.std() / 20_000**0.5, estimates.std() / 1000**0.5)
    assert abs(estimates.mean() - ratios.mean()) < error
    assert abs(base.sum() - ratios.mean()) > 2 * error, "the KL of the base would pass too: the flows do too little"


def test_flows_start_as_the_identity_and_give_back_their_mean() -> None:
    bnn, site = _convert(nn.Linear(4, 4, bias=False), WHVI(flows=3))
    with torch.no_grad():
        noise = torch.randn(5, 1, 4, dtype=F64)
        g, log_det = site.posterior.g.draw(5, noise)
        # parameters are made in single precision
        torch.testing.assert_close(g, site.posterior.g.mean + site.posterior.g.log_std.exp() * noise, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(log_det, torch.zeros(5, dtype=F64), rtol=0, atol=1e-6)
        _scatter(site)
        drawn = site.posterior.sample(site, 100_000)[0]
        mean = site.posterior.mean(site)[0]
    assert ((drawn.mean(0) - mean).abs() < 5 * drawn.std(0) * math.sqrt(1 / 100_000 + 1 / 2**14)).all()
    assert isinstance(net := unbayesify(bnn), nn.Sequential)
    assert torch.equal(net[0].weight, mean)


@pytest.mark.parametrize(("flows", "expected"), [(0, 1541), (10, 4141)])
def test_parameter_counts_of_the_papers_figure_4(flows: int, expected: int) -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(1, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1))

    paper = {"4": MeanField(), "*": WHVI(blocks="tied", vectors="stack", flows=flows)}
    noise = 1  # the variance of the observations is learned too
    assert sum(p.numel() for p in bayesify(net(), paper).parameters()) + noise == expected
    own = {"4": MeanField(), "*": WHVI(vectors="stack")}
    assert sum(p.numel() for p in bayesify(net(), own).parameters()) + noise == 1795
    # a vector of 128 as 16 x 16: s1, s2, mean and deviation of g
    square = bayesify(nn.Linear(128, 1, bias=False), WHVI())
    assert sum(p.numel() for p in square.parameters()) == 4 * 16


def test_parameter_count_of_the_papers_alexnet() -> None:
    # table 7, whose first linear layer must have 256 x 2 x 2 inputs for the 23.3 M parameters of section 3.4
    channels = [(3, 64), (64, 192), (192, 384), (384, 256), (256, 256)]
    net = nn.Sequential(
        *[nn.Conv2d(i, o, 3, padding=1, device="meta") for i, o in channels],
        *[nn.Linear(i, o, device="meta") for i, o in ((1024, 4096), (4096, 4096), (4096, 10))],
    )
    assert sum(p.numel() for p in net.parameters()) == 23_272_266
    filters = sum(i * o * 9 + o for i, o in channels)
    whvi = {"[567]": WHVI(), "*": MCDropout()}  # linear layers; the filters keep their parameters
    own = sum(p.numel() for p in bayesify(copy.deepcopy(net), whvi).parameters())
    assert own == filters + (4 * 4 * 1024 + 2 * 4096) + (4 * 4096 + 2 * 4096) + (4 * 4096 + 2 * 10) == 2_317_140
    assert own / 23_272_266 < 0.1  # the paper's 2.3 M, 9.9 %
    flows = {"[567]": WHVI(blocks="tied", flows=3), "*": MCDropout()}
    assert round(sum(p.numel() for p in bayesify(net, flows).parameters()) / 1e6, 1) == 2.4


@pytest.mark.parametrize("structure", ["S1HGHS2", "S1HGHS2H", "SHGH", "GH"])
@pytest.mark.parametrize("width", [16, 200])
@pytest.mark.parametrize("prior_std", [3e-3, 1.0])
def test_initial_weights_have_the_variance_of_he(structure: str, width: int, prior_std: float) -> None:
    method = WHVI(structure=structure, prior_std=prior_std)
    sites = [_convert(nn.Linear(width, width), method)[1] for _ in range(40)]
    squares = torch.stack([site.posterior.mean(site)[0].detach().square().mean() for site in sites])
    assert (squares.mean() - 2 / width).abs() < 5 * squares.std() / 40**0.5
    assert squares.std() < 2 / width


@pytest.mark.parametrize(("width", "depth"), [(64, 1), (64, 8), (300, 4), (512, 8), (4096, 2)])
@pytest.mark.default("64-*", "300-4", extended=["512-8"])
def test_activations_and_gradients_keep_their_size_at_the_start(width: int, depth: int) -> None:
    torch.manual_seed(0)
    sizes = []
    for _ in range(max(2, 4096 // width)):
        hidden = [part for _ in range(depth - 1) for part in (nn.ReLU(), nn.Linear(width, width))]
        net = nn.Sequential(nn.Linear(width, width), *hidden)
        for layer in net:
            if isinstance(layer, nn.Linear):
                nn.init.zeros_(layer.bias)
        x = torch.randn(16, width, requires_grad=True)
        y = bayesify(net, WHVI())(x).outputs[0]
        (gradient,) = torch.autograd.grad(y, x, torch.randn_like(y))
        sizes.append(torch.stack([y.detach().square().mean(), gradient.square().mean()]).log())
    sizes = torch.stack(sizes)
    # entries of variance 2 / fan-in double the square of what no rectifier has halved, at one end of the net
    error = 4 * sizes.std(0) / len(sizes) ** 0.5 + 0.1 + sizes.var(0) / 2  # of the mean of logarithms
    assert ((sizes.mean(0) - math.log(2)).abs() < error).all(), sizes
    assert (sizes.std(0) < 0.9).all(), sizes


def test_pretrained_weights_are_projected_and_the_loss_is_reported() -> None:
    source = WHVI(prior_std=LAMBDA**0.5)
    _, origin = _convert(nn.Linear(8, 16), source)
    layer = nn.Linear(8, 16).double()
    with torch.no_grad():
        layer.weight.copy_(origin.posterior.mean(origin)[0])
    plain = copy.deepcopy(layer)
    bnn, site = _convert(layer, WHVI(initial="pretrained"))
    torch.testing.assert_close(site.posterior.mean(site)[0], plain.weight, rtol=1e-3, atol=1e-3)
    assert site.posterior.residual < 1e-3
    assert "projected from its weight, relative error 0.0%" in str(summary(bnn))

    assert "initialized at random, without regard to its previous weight" in str(summary(bayesify(copy.deepcopy(plain), WHVI())))

    plain = nn.Linear(64, 64, bias=False).double()
    bnn, site = _convert(copy.deepcopy(plain), WHVI(initial="pretrained"))
    missed = (site.posterior.mean(site)[0] - plain.weight).norm() / plain.weight.norm()
    torch.testing.assert_close(site.posterior.residual, missed.detach())
    assert f"relative error {missed.item():.1%}" in str(summary(bnn))
    assert missed > 0.8  # a random matrix is not of the family, and the summary does not hide it
    g = site.posterior.g.mean
    torch.testing.assert_close(g.square().mean(-1), torch.ones_like(g[:, 0]))  # in the middle of its prior
    assert site.posterior.second_moments()[0].shape == (1, 64, 64)


def test_projection_of_vectors_and_convolutions() -> None:
    for plain in (nn.Linear(3, 1), nn.Conv2d(2, 5, 3)):
        _, site = _convert(copy.deepcopy(plain), WHVI(initial="pretrained"))
        missed = (site.posterior.mean(site)[0] - plain.weight).norm() / plain.weight.norm()
        torch.testing.assert_close(site.posterior.residual, missed.detach())


def test_a_fit_of_something_simple() -> None:
    torch.manual_seed(1)
    x = torch.linspace(-2, 2, 128).unsqueeze(1)
    y = torch.sin(2 * x)
    for depth, width in ((1, 64), (4, 32)):
        hidden = [part for _ in range(depth - 1) for part in (nn.Linear(width, width), nn.ReLU())]
        bnn = bayesify(nn.Sequential(nn.Linear(1, width), nn.ReLU(), *hidden, nn.Linear(width, 1)), WHVI())
        optimizer = torch.optim.Adam(bnn.parameters(), lr=1e-2)
        for _ in range(150):
            optimizer.zero_grad()
            draws = bnn(x)
            loss = 50 * (draws.outputs[0] - y).square().mean() + draws.kl / 1000
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            error = (bnn(x, samples=32).outputs.mean(0) - y).square().mean()
        assert error < 0.1 * y.var(), (depth, width, float(error))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prior_std": 0.0}, "prior_std must be a finite number above 0, got 0.0"),
        ({"bias_prior_std": -1.0}, "bias_prior_std must be"),
        ({"initial_std": math.nan}, "initial_std must be"),
        ({"flows": -1}, "flows must be a whole number of at least 0, got -1"),
        ({"covariance": "low-rank"}, "covariance must be one of 'diagonal', 'full'"),
        ({"structure": "HGH"}, "structure must be one of 'S1HGHS2'"),
        ({"scales": "fixed"}, "scales must be"),
        ({"blocks": "both"}, "blocks must be"),
        ({"vectors": "column"}, "vectors must be"),
        ({"noise": "none"}, "noise must be"),
        ({"initial": "zero"}, "initial must be"),
        ({"initial": "pretrained", "structure": "GH"}, "requires structure=.*got structure='GH'"),
        ({"initial": "pretrained", "flows": 2}, "flows=0, got structure='S1HGHS2' and flows=2"),
    ],
)
def test_errors(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WHVI(**fields)


def test_second_moments_say_what_they_need() -> None:
    _, site = _convert(nn.Linear(4, 4), WHVI(flows=1))
    with pytest.raises(ValueError, match="second moments require"):
        site.posterior.second_moments()
