"""EMP, ECMP: what is patched, what is drawn, equation (6) against enumeration and Monte Carlo, gradients of the definition."""

import copy
import itertools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal
from torch.func import functional_call

from bayesify import (
    ECMP,
    EMP,
    Bayesian,
    DeepEnsemble,
    DropConnect,
    MCDropout,
    MeanField,
    Method,
    bayesify,
    elbo,
    predict,
    summary,
    unbayesify,
)
from bayesify import Categorical as CategoricalLikelihood

F64 = torch.float64


def _net() -> nn.Sequential:
    """Linear, normalization, the smallest net with an input, a middle and an output layer."""
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)).double()


def _patched(bnn: Bayesian) -> list[str]:
    return [name for name, site in bnn.random_layers() if site.posterior.log_ensemble_size(site) > 0]


@pytest.mark.parametrize("prior_std", [None, 1.0])
@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("bn+out", ["1", "4", "5"]),
        ("bn", ["1", "4"]),
        ("bn+in+out", ["0", "1", "4", "5"]),
        ("out", ["5"]),
        ("3 + bn", ["1", "3", "4"]),
        ("[03]", ["0", "3"]),
        ("*", ["0", "1", "3", "4", "5"]),
    ],
)
def test_where(where: str, names: list[str], prior_std: float | None) -> None:
    bnn = bayesify(_net(), EMP(where=where, prior_std=prior_std))
    assert _patched(bnn) == names
    assert [name for name, _ in bnn.random_layers()] == (names if prior_std is None else ["0", "1", "3", "4", "5"])


def test_a_pattern_names_layers_and_the_star_leaves_the_choice_to_the_method() -> None:
    assert _patched(bayesify(_net(), {"3": EMP(where="bn"), "0": MCDropout(p=0.0)})) == ["3"]
    mixed = bayesify(_net(), {"5": MCDropout(p=0.5), "*": EMP(prior_std=None)})
    assert {r.name: r.method for r in mixed.report} == {
        "0": None, "1": EMP(prior_std=None), "3": None, "4": EMP(prior_std=None), "5": MCDropout(p=0.5)
    }  # fmt: skip


def test_the_input_may_be_an_embedding_and_the_output_one_that_cannot_be_patched() -> None:
    net = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.utils.parametrizations.weight_norm(nn.Linear(4, 5)))
    bnn = bayesify(net, EMP(where="in+out"))
    assert _patched(bnn) == ["0"]
    assert "its weight is computed, by weight_norm" in {r.name: r.reason for r in bnn.report}["2"]


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"EMP\(where='bn'\) matches no layer; the layers are '0' \(Linear\)"):
        bayesify(nn.Sequential(nn.Linear(2, 1)), EMP(where="bn"))
    with pytest.raises(ValueError, match=r"'head.\*' in where='bn\+head.\*' matches no layer"):
        bayesify(_net(), EMP(where="bn+head.*"))
    for fields, message in (
        ({"components": 0}, "components"), ({"where": "bn+"}, "where"), ({"spread": -1.0}, "spread"),
        ({"prior_std": -1.0}, "prior_std"),
        ({"prior_std": 0.0}, "prior_std"), ({"bias_prior_std": -0.1}, "bias_prior_std"),
        ({"decay": "none"}, "decay"), ({"probabilities": (0.5, 0.5)}, "5 numbers"),
        ({"components": 2, "probabilities": (0.5, 0.6)}, "add up"), ({"components": 2, "probabilities": (1.0, 0.0)}, "above 0"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            ECMP(**fields)


def test_components_start_at_the_weights_plus_the_spread() -> None:
    torch.manual_seed(1)
    layer = nn.Linear(100, 400)
    weight = layer.weight.detach().clone()
    site = bayesify(layer, EMP(components=3, spread=0.2)).net
    offsets = site.posterior.weight.detach() - weight
    assert offsets.shape == (3, 400, 100)
    torch.testing.assert_close(offsets.std((1, 2)), torch.full((3,), 0.2 / math.sqrt(100)), rtol=0.03, atol=0)  # 6 standard errors
    assert abs(torch.corrcoef(offsets.flatten(1))[0, 1]) < 0.03, "independent components"
    same = bayesify(nn.Linear(4, 2), EMP(components=3, spread=0.0)).net.posterior.weight
    assert torch.equal(same[0], same[2])
    embedding = bayesify(nn.Embedding(5, 4, padding_idx=2), EMP(where="in", components=3)).net
    assert (embedding.posterior.weight[:, 2] == 0).all()


def test_patches_of_frozen_layers_are_trained_and_the_restored_layer_is_frozen() -> None:
    net = nn.LayerNorm(3).requires_grad_(False)
    bnn = bayesify(net, {"": EMP(components=2)})
    bnn(torch.randn(4, 3), samples=8).outputs.square().sum().backward()
    assert (bnn.net.posterior.weight.grad != 0).any()
    assert not unbayesify(bnn).weight.requires_grad


def _frequencies(counts: Tensor, p: Tensor) -> None:
    """Counts (C,) of independent draws have the probabilities p (C,), within 5 standard errors."""
    n = counts.sum()
    assert ((counts / n - p).abs() <= 5 * (p * (1 - p) / n).sqrt()).all(), counts / n


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("p", [None, (0.6, 0.3, 0.1)])
@pytest.mark.parametrize("kind", [EMP, ECMP])
def test_draws_have_the_probabilities(kind: type[EMP], p: tuple[float, ...] | None, learn: bool) -> None:
    site = bayesify(nn.Linear(1, 1).double(), kind(components=3, probabilities=p, learn_probabilities=learn)).net
    n, expected = 20_000, torch.tensor(p or (1 / 3,) * 3)
    with torch.no_grad():
        weight, bias = site.posterior.sample(site, n)
    w, b = (
        (drawn.reshape(n, 1) == components.reshape(1, 3)).double().argmax(1)
        for drawn, components in ((weight, site.posterior.weight), (bias, site.posterior.bias))
    )
    _frequencies(w.bincount(minlength=3), expected)
    _frequencies(b.bincount(minlength=3), expected)
    if kind is EMP:
        assert torch.equal(w, b), "weight and bias of a draw are of one component"
    else:
        _frequencies((3 * w + b).bincount(minlength=9), torch.outer(expected, expected).flatten())


def test_emp_draws_one_component_per_layer_for_the_whole_batch() -> None:
    bnn = bayesify(_net(), EMP(components=2, spread=1.0)).eval()
    x = torch.randn(1, 3, dtype=F64).expand(6, 3)
    outputs = bnn(x, samples=60).outputs.detach()
    torch.testing.assert_close(outputs, outputs[:, :1].expand_as(outputs))
    assert len({tuple(row) for row in outputs[:, 0].mul(1e9).round().tolist()}) == 8, "2 components in each of 3 layers"


def _points(bnn: Bayesian, site_name: str) -> tuple[Tensor, Tensor]:
    posterior = dict(bnn.random_layers())[site_name].posterior
    return posterior.weight.detach().flatten(1), posterior.bias.detach().flatten(1)


def test_kl_is_the_part_of_the_true_kl_that_the_means_decide() -> None:
    """Mixtures of narrow normals that do not overlap: the KL by Monte Carlo differs from ours by a constant."""
    sigma, tau, n, p = 1e-3, 0.7, 200_000, torch.tensor([0.6, 0.3, 0.1], dtype=F64)
    gaps = []
    for seed in (0, 1, 2):
        torch.manual_seed(seed)
        method = EMP(components=3, spread=1.0 + seed, prior_std=tau**-0.5, probabilities=tuple(p.tolist()))
        bnn = bayesify(nn.Linear(2, 1).double(), method)
        mu = torch.cat(_points(bnn, ""), 1)
        q = MixtureSameFamily(Categorical(p), Independent(Normal(mu, sigma), 1))
        draws = q.sample((n,))
        ratio = q.log_prob(draws) - Normal(0.0, 1 / math.sqrt(tau)).log_prob(draws).sum(1)
        gaps.append((ratio.mean() - bnn.kl().detach(), ratio.std() / math.sqrt(n)))
    # E4 of the constant: 3 parameters of width sigma, and log K
    constant = 1.5 * (tau * sigma**2 - 1 - math.log(tau * sigma**2)) - math.log(3)
    for gap, error in gaps:
        assert abs(gap - constant) < 5 * error
        assert error < 0.01


@pytest.mark.parametrize("kind", [EMP, ECMP])
@pytest.mark.parametrize("apart", [0.0, 1.5])
def test_kl_of_normals_bounds_that_of_the_mixture(kind: type[EMP], apart: float) -> None:
    """By Monte Carlo: equal for equal components, above it by log K per choice where they do not overlap."""
    sigma, tau, n = 0.2, 0.7, 100_000
    method = kind(components=3, spread=0.0, prior_std=tau**-0.5, component_std=sigma)
    bnn = bayesify(nn.Linear(2, 1).double(), method)
    with torch.no_grad():
        for parameter in (bnn.net.posterior.weight, bnn.net.posterior.bias):
            parameter.add_(apart * torch.arange(3).reshape(3, *[1] * (parameter.dim() - 1)))
        weight, bias = bnn.net.sample(n)
    draws = torch.cat([weight.flatten(1), bias], 1)
    mu = torch.cat(_points(bnn, ""), 1)
    if kind is ECMP:
        log_q = (Normal(mu, sigma).log_prob(draws.unsqueeze(1)).logsumexp(1) - math.log(3)).sum(1)
    else:
        log_q = MixtureSameFamily(Categorical(torch.full((3,), 1 / 3, dtype=F64)), Independent(Normal(mu, sigma), 1)).log_prob(
            draws
        )
    ratio = log_q - Normal(0.0, 1 / math.sqrt(tau)).log_prob(draws).sum(1)
    gap = (3 if kind is ECMP else 1) * math.log(3) if apart else 0.0
    assert abs(bnn.kl().detach() - ratio.mean() - gap) < 5 * ratio.std() / math.sqrt(n) < 0.1


def test_draws_around_components_and_shared_weights_have_the_width() -> None:
    method = EMP(components=2, where="out", spread=1.0, component_std=0.3, prior_std=None)
    bnn = bayesify(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)).double(), method)
    assert [row.random for row in summary(bnn).layers] == [True, True]
    assert math.isinf(summary(bnn).log_ensemble)
    assert float(bnn.kl()) == 0
    shared, patched = bnn.net
    with torch.no_grad():
        for site, centers in ((shared, shared.weight[None]), (patched, patched.posterior.weight)):
            drawn = site.sample(20_000)[0]
            covariance = torch.cov(drawn.flatten(1).T)
            between = torch.cov(centers.flatten(1).T, correction=0) if len(centers) > 1 else torch.zeros_like(covariance)
            torch.testing.assert_close(covariance, 0.09 * torch.eye(len(covariance)).double() + between, rtol=0.05, atol=0.02)
    assert EMP(components=1, component_std=0.3).is_random
    with pytest.raises(ValueError, match="component_std must be"):
        EMP(component_std=-0.1)


@pytest.mark.parametrize("kind", [EMP, ECMP])
def test_kl_of_all_choices_by_enumeration(kind: type[EMP]) -> None:
    """E_z[precision/2 |w_z|^2] over every choice, plus the KL of the choices' distribution from the uniform one."""
    p, tau, rho = (0.5, 0.3, 0.2), 0.7, 3.0
    torch.manual_seed(2)
    bnn = bayesify(
        nn.Linear(2, 1).double(), kind(components=3, spread=1.0, prior_std=tau**-0.5, bias_prior_std=rho**-0.5, probabilities=p)
    )
    weight, bias = _points(bnn, "")
    expected = 0.0
    for z in itertools.product(range(3), repeat=3) if kind is ECMP else [(k, k, k) for k in range(3)]:
        share = math.prod(p[k] for k in z) if kind is ECMP else p[z[0]]
        number = 27 if kind is ECMP else 3
        squares = tau / 2 * (weight[z[0], 0] ** 2 + weight[z[1], 1] ** 2) + rho / 2 * bias[z[2], 0] ** 2
        expected += share * (float(squares) + math.log(share * number))
    assert float(bnn.kl().detach()) == pytest.approx(expected, rel=1e-12)


def test_shared_and_patched_layers_each_pay_their_own_sum() -> None:
    net = _net()
    squares = {n: float(p.detach().square().sum()) for n, p in net.named_parameters()}
    bnn = bayesify(net, EMP(components=4, spread=0.0, prior_std=2**0.5, bias_prior_std=0.5**0.5))
    weights, biases = (sum(v for n, v in squares.items() if n.endswith(end)) for end in ("weight", "bias"))
    assert float(bnn.kl().detach()) == pytest.approx(0.25 * weights + 1.0 * biases, rel=1e-12)
    plain = bayesify(unbayesify(bnn), EMP(components=4, spread=0.0, prior_std=2**0.5, decay="plain"))
    decay = sum(float(p.detach().square().sum()) for p in plain.parameters())
    assert float(plain.kl().detach()) == pytest.approx(0.25 * decay, rel=1e-12), "one weight decay on all parameters"


def _choices(bnn: Bayesian, plain: nn.Module) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """Every net there is to draw from: its probability, and its parameters, as functions of those of the EMP net."""
    sites = dict(bnn.random_layers())
    shared = {f"{name}.{kind}": p for name, site in sites.items() for kind, p in site._parameters.items() if p is not None}
    patched = [site.posterior for name, site in sites.items() if site.posterior.weight is not None]
    names = [name for name, site in sites.items() if site.posterior.weight is not None]
    result = []
    for z in itertools.product(*[range(len(posterior.weight)) for posterior in patched]):
        shares, parameters = [torch.ones((), dtype=F64)], dict(shared)
        for name, posterior, k in zip(names, patched, z, strict=True):
            parameters |= {f"{name}.weight": posterior.weight[k], f"{name}.bias": posterior.bias[k]}
            p = posterior.method.probabilities or (1 / posterior.method.components,) * posterior.method.components
            shares.append(torch.tensor(p[k]) if posterior.logits is None else posterior.logits.softmax(0)[k])
        assert parameters.keys() == dict(plain.named_parameters()).keys()
        result.append((torch.stack([share.double() for share in shares]).prod(), parameters))
    return result


@pytest.mark.default("*-5", extended=["method0-1"])
@pytest.mark.parametrize("samples", [1, 5])
@pytest.mark.parametrize(
    "method",
    [
        EMP(components=2, spread=1.0),
        EMP(components=2, spread=1.0, probabilities=(0.8, 0.2)),
        EMP(components=2, spread=1.0, learn_probabilities=True),
    ],
)
def test_gradients_are_unbiased_in_train_mode(method: Method, samples: int) -> None:
    """Against all 8 nets there are, each with batch statistics of its own; 5 standard errors, and those are small."""
    torch.manual_seed(3)
    plain, x, y = _net(), torch.randn(7, 3, dtype=F64), torch.randn(7, 2, dtype=F64)
    bnn = bayesify(copy.deepcopy(plain), method)
    nets = _choices(bnn, plain)
    loss = sum(share * (functional_call(plain, net, (x,)) - y).square().sum(-1).mean() for share, net in nets) + bnn.kl() / 20
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(bnn.parameters()))])
    found = []
    for _ in range(1000 // samples):
        bnn.zero_grad()
        draws = bnn(x, samples=samples)
        (-elbo(draws, -(draws.outputs - y).square().sum(-1), n=20)).backward()
        found.append(torch.cat([p.grad.flatten() for p in bnn.parameters()]))
    mean, error = torch.stack(found).mean(0), torch.stack(found).std(0) / math.sqrt(len(found))
    assert ((mean - expected).abs() <= 5 * error + 1e-12).all()
    assert expected.norm() > 5 * error.norm(), "a factor of two would show"
    logits = torch.cat([torch.full_like(p, float("logits" in name)).flatten() for name, p in bnn.named_parameters()]) == 1
    if logits.any():
        assert (expected[logits].abs() > 5 * error[logits]).any(), "also in the probabilities"


def test_accumulated_gradients_of_cross_patches_are_unbiased_in_train_mode() -> None:
    """ECMP, two batches with batch statistics of their own and draws of their own, against all 2^4 * 2^3 nets on each."""
    torch.manual_seed(8)
    plain = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Tanh(), nn.Linear(2, 1)).double()
    batches = [(torch.randn(rows, 2, dtype=F64), torch.randn(rows, 1, dtype=F64)) for rows in (5, 4)]
    bnn = bayesify(copy.deepcopy(plain), ECMP(components=2, spread=1.0, probabilities=(0.7, 0.3)))
    shared, patches = bnn.net[0], {name: bnn.net[int(name)].posterior for name in ("1", "3")}
    expected = [torch.zeros_like(p) for p in bnn.parameters()]
    for z in itertools.product(range(2), repeat=7):
        own = {"0.weight": shared.weight, "0.bias": shared.bias}
        taken = iter(z)
        for name, posterior in patches.items():
            for kind, components in (("weight", posterior.weight), ("bias", posterior.bias)):
                flat = components.flatten(1)
                own[f"{name}.{kind}"] = torch.stack([flat[next(taken), j] for j in range(flat.shape[1])]).reshape(
                    components.shape[1:]
                )
        loss = sum((functional_call(plain, own, (x,)) - y).square().mean() for x, y in batches) / 2
        gradients = torch.autograd.grad(math.prod((0.7, 0.3)[k] for k in z) * loss, list(bnn.parameters()))
        expected = [total + g for total, g in zip(expected, gradients, strict=True)]
    penalty = torch.autograd.grad(bnn.kl() / 9, list(bnn.parameters()))
    definition = torch.cat([(total + g).flatten() for total, g in zip(expected, penalty, strict=True)])
    found = []
    for _ in range(500):
        bnn.zero_grad()
        for x, y in batches:
            draws = bnn(x, samples=2)
            (-elbo(draws, -(draws.outputs - y).square().sum(-1), n=9) / 2).backward()
        found.append(torch.cat([p.grad.flatten() for p in bnn.parameters()]))
    mean, error = torch.stack(found).mean(0), torch.stack(found).std(0) / math.sqrt(len(found))
    assert ((mean - definition).abs() <= 5 * error + 1e-12).all()
    assert definition.norm() > 5 * error.norm(), "a factor of two would show"


def test_a_seeded_draw_has_the_gradient_of_its_net_alone() -> None:
    """Zero for the components that were not drawn, and that of the plain net for the one that was."""
    torch.manual_seed(4)
    plain, x = _net(), torch.randn(7, 3, dtype=F64)
    bnn = bayesify(copy.deepcopy(plain), EMP(components=3, where="out", spread=1.0))
    output = bnn(x).outputs[0]
    output.sum().backward()
    nets = [functional_call(plain, net, (x,)) for _, net in _choices(bnn, plain)]
    (k,) = [k for k, net in enumerate(nets) if torch.allclose(net, output)]
    posterior = bnn.net[5].posterior
    assert (posterior.weight.grad[[i for i in range(3) if i != k]] == 0).all()
    torch.testing.assert_close(posterior.bias.grad[k], torch.full((2,), 7.0, dtype=F64))


def test_probabilities_are_learned() -> None:
    """One of two components is right: its probability goes toward 1."""
    torch.manual_seed(5)
    bnn = bayesify(nn.Linear(1, 1, bias=False).double(), EMP(components=2, prior_std=None, learn_probabilities=True))
    posterior = bnn.net.posterior
    with torch.no_grad():
        posterior.weight.copy_(torch.tensor([0.0, 1.0]).reshape(2, 1, 1))
    posterior.weight.requires_grad_(False)
    optimizer = torch.optim.Adam([posterior.logits], lr=0.1)
    x = torch.randn(20, 1, dtype=F64)
    for _ in range(60):
        optimizer.zero_grad()
        draws = bnn(x, samples=4)
        (-elbo(draws, -2 * (draws.outputs - x).square().sum(-1), n=1000)).backward()
        optimizer.step()
    assert posterior.logits.softmax(0)[1] > 0.95
    torch.testing.assert_close(posterior.mean(bnn.net)[0], posterior.logits.softmax(0)[1].reshape(1, 1))


def test_prediction_averages_probabilities_over_the_draws_there_were() -> None:
    """No phantom sample (E1), and no average of logits (E10)."""
    torch.manual_seed(6)
    plain, x = _net().eval(), torch.randn(5, 3, dtype=F64)
    bnn = bayesify(copy.deepcopy(plain), EMP(components=2, spread=1.5)).eval()
    probs = [functional_call(plain, net, (x,)).softmax(-1).detach() for _, net in _choices(bnn, plain)]
    single = predict(bnn, x, CategoricalLikelihood(), samples=1, seed=0, progress=False).probs
    assert any(torch.allclose(single, p) for p in probs)
    samples, stacked = 2000, torch.stack(probs)
    many = predict(bnn, x, CategoricalLikelihood(), samples=samples, seed=0, progress=False).probs
    error = stacked.std(0, correction=0) / math.sqrt(samples)
    assert ((many - stacked.mean(0)).abs() <= 5 * error + 1e-9).all()
    logits = torch.stack([functional_call(plain, net, (x,)).detach() for _, net in _choices(bnn, plain)]).mean(0).softmax(-1)
    assert ((logits - stacked.mean(0)).abs() > 10 * error).any(), "averaged logits would be noticed"


def test_the_way_back_is_the_mean() -> None:
    torch.manual_seed(7)
    bnn = bayesify(nn.Linear(2, 1).double(), ECMP(components=2, spread=1.0, probabilities=(0.9, 0.1)))
    weight, bias = _points(bnn, "")
    layer = unbayesify(bnn)
    torch.testing.assert_close(layer.weight.flatten(), 0.9 * weight[0] + 0.1 * weight[1])
    torch.testing.assert_close(layer.bias, 0.9 * bias[0] + 0.1 * bias[1])


def test_effective_ensemble_sizes() -> None:
    """Table 3: K per layer, K per element; 2 per input of dropout, 2 per weight of DropConnect."""
    sizes = {
        EMP(where="*", components=3): [3.0, 3.0],
        ECMP(where="*", components=3): [3.0**8, 3.0**3],
        MCDropout(p=0.5): [2.0**3, 2.0**2],
        DropConnect(p=0.5): [2.0**6, 2.0**2],
        MCDropout(p=0.0): [1.0, 1.0],
    }
    for method, expected in sizes.items():
        result = summary(bayesify(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), method))
        assert [math.exp(row.log_ensemble) for row in result.layers] == pytest.approx(expected)
        assert result.log_ensemble == pytest.approx(math.log(math.prod(expected)))
        assert ("ensemble" in str(result)) == (method != MCDropout(p=0.0))
    text = str(summary(bayesify(nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 1)), {"0": ECMP(components=10), "1": MeanField()})))
    assert text.splitlines()[2].split()[-1] == "10^620"
    assert text.splitlines()[5].split()[-1] == "infinite"


def _block(n_in: int, n_out: int, stride: int) -> nn.Module:
    """The layers of a basic residual block (He et al., 2016); how they are connected has no parameters."""
    layers = [nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False), nn.BatchNorm2d(n_out)]
    layers += [nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False), nn.BatchNorm2d(n_out)]
    if stride > 1:
        layers += [nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)]
    return nn.ModuleList(layers)


def _resnet18() -> nn.Sequential:
    """ResNet-18 for 1000 classes, without values."""
    with torch.device("meta"):
        stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        blocks = [_block(64, 64, 1), _block(64, 64, 1)]
        for n in (128, 256, 512):
            blocks += [_block(n // 2, n, 2), _block(n, n, 1)]
        return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


@pytest.mark.parametrize(
    ("method", "parameters", "layers"),
    [
        (EMP(), 13_779_912, 21),
        (ECMP(prior_std=None), 13_779_912, None),
        (EMP(where="bn"), 11_689_512 + 38_400, 20),
        (EMP(where="*"), 58_447_560, 41),
        (EMP(components=1), 11_689_512, 0),
    ],
)
def test_parameters_are_those_of_the_paper(method: EMP, parameters: int, layers: int | None) -> None:
    """Tables 3 and 4."""
    result = summary(bayesify(_resnet18(), method))
    assert (result.plain, result.parameters) == (11_689_512, parameters)
    # per element: 4,800 scales, as many shifts, and the output layer
    assert result.log_ensemble == pytest.approx(math.log(5) * (2 * 4800 + 513_000 if layers is None else layers))


def _pyramidnet() -> nn.ModuleList:
    """PyramidNet of depth 110 and alpha = 270 (Han et al., 2017) for 100 classes: 54 blocks, each 5 channels wider; no values."""
    with torch.device("meta"):
        layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16)]
        for n in range(16, 286, 5):
            layers += [nn.BatchNorm2d(n), nn.Conv2d(n, n + 5, 3, bias=False), nn.BatchNorm2d(n + 5)]
            layers += [nn.Conv2d(n + 5, n + 5, 3, bias=False), nn.BatchNorm2d(n + 5)]
        return nn.ModuleList([*layers, nn.BatchNorm2d(286), nn.Linear(286, 100)])


def test_parameters_of_pyramidnet_are_those_of_the_paper() -> None:
    """Table 3, and the overhead of 1.10 % of table 1."""
    result = summary(bayesify(_pyramidnet(), ECMP()))
    assert (result.plain, result.parameters) == (28_511_307, 28_825_299)
    (total,) = [line for line in str(result).splitlines() if line.startswith("total")]
    assert total.split()[2] == "+1.1%"


def test_an_explicit_ensemble_has_as_many_networks_as_members() -> None:
    """Table 3, and for members that are random themselves the sum over members."""
    result = summary(bayesify(_resnet18(), DeepEnsemble(members=5)))
    assert (result.plain, result.parameters) == (11_689_512, 58_447_560)
    assert result.log_ensemble == pytest.approx(math.log(5))
    mixed = summary(bayesify(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), DeepEnsemble(members=2, base=EMP(where="*"))))
    assert math.exp(mixed.log_ensemble) == pytest.approx(2 * 5**2)
    assert (mixed.plain, mixed.parameters) == (11, 2 * 5 * 11)
    (total,) = [line for line in str(mixed).splitlines() if line.startswith("total")]
    assert total.split()[1:] == ["110", "+900.0%", "50"]


def test_only_layers_that_differ_between_draws_count_as_random() -> None:
    """The prior on shared layers does not make them random."""
    assert "3 of 5 layers are random" in str(summary(bayesify(_net(), EMP())))


def test_a_perceptron_has_the_overhead_of_its_layers() -> None:
    """Section 3.3: 2 (K - 1) N for a batch normalization, (K - 1) (I + 1) O for the output layer."""
    net = nn.Sequential(nn.Linear(7, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 3))
    result = summary(bayesify(net, EMP(components=4)))
    assert [row.parameters - row.plain for row in result.layers] == [0, 2 * 3 * 30, 3 * 31 * 3]


@pytest.mark.parametrize("kind", [EMP, ECMP])
@pytest.mark.parametrize("first", [False, True], ids=["converted first", "moved first"])
def test_convolutions_in_channels_last(kind: type[EMP], first: bool) -> None:
    torch.manual_seed(9)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, (1, 2), groups=2)).double().eval()
    x, method = torch.randn(5, 3, 6, 6, dtype=F64), kind(where="*", components=3, spread=1.0)
    reference = bayesify(copy.deepcopy(plain), method)
    if first:
        bnn = bayesify(copy.deepcopy(plain).to(memory_format=torch.channels_last), method)
        bnn.load_state_dict(reference.state_dict())
    else:
        bnn = copy.deepcopy(reference).to(memory_format=torch.channels_last)
    for name, parameter in bnn.named_parameters():
        torch.testing.assert_close(parameter, reference.get_parameter(name), rtol=0, atol=0)
    kernels = bnn.net[0].posterior.weight
    if not first:
        assert kernels.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    results = []
    for root, inputs in ((reference, x), (bnn, x.to(memory_format=torch.channels_last))):
        torch.manual_seed(1)
        draws = root(inputs, samples=4)
        (draws.outputs.square().sum() + draws.kl).backward()
        results.append((draws.outputs, [p.grad for p in root.parameters()]))
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-12)


def test_the_score_is_zero_with_the_gradient_of_the_log_probability() -> None:
    """So that the ELBO keeps its value."""
    torch.manual_seed(7)
    bnn = bayesify(nn.Linear(2, 1).double(), EMP(components=3, learn_probabilities=True))
    logits = bnn.net.posterior.logits
    score = bnn(torch.randn(4, 2, dtype=F64), samples=50).score
    assert (score == 0).all()
    (gradient,) = torch.autograd.grad(score.sum(), logits)
    # the sum over draws of 1[k] - p is the counts minus their expectation
    counts = gradient + 50 * logits.softmax(0).detach()
    torch.testing.assert_close(counts, counts.round())
    assert counts.sum() == pytest.approx(50)
