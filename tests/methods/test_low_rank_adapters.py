"""BLoB and ScalaBL: KLs against torch.distributions and a dense matrix, moments of the full weight, layers."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from bayesify import Bayesian, BayesianLayer, BLoB, Categorical, Method, NothingRandomError, ScalaBL, bayesify, fit, unbayesify

F64 = torch.float64


class Adapted(nn.Module):
    """A frozen linear layer with an adapter, named as by peft."""

    def __init__(self, inputs: int = 5, outputs: int = 4, rank: int = 2) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(inputs, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, outputs, bias=False)})

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.lora_B["default"](self.lora_A["default"](x))

    def full_weight(self, a: Tensor) -> Tensor:
        """W0 + BA for A (..., r, I)."""
        return self.base.weight + self.lora_B["default"].weight @ a


def _convert(method: Method) -> tuple[Bayesian, Adapted, BayesianLayer]:
    torch.manual_seed(0)
    net = Adapted().double()
    bnn = bayesify(net, method)
    (layer,) = (layer for _, layer in bnn.random_layers())
    for parameter in layer.parameters():
        nn.init.normal_(parameter, 0.6, 0.3)
    return bnn, net, layer


@pytest.mark.parametrize("method", [BLoB(), ScalaBL()])
def test_only_the_first_matrix_of_adapters_is_random(method: Method) -> None:
    bnn = bayesify(Adapted(), method)
    assert [name for name, _ in bnn.random_layers()] == ["lora_A.default"]
    with pytest.raises(NothingRandomError, match=r"matches no layer, so the network has no LoRA adapter.*get_peft_model.*'0'"):
        bayesify(nn.Sequential(nn.Linear(3, 2)), method)
    named = bayesify(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)), {"1": method})
    assert [name for name, _ in named.random_layers()] == ["1"]


@pytest.mark.parametrize("method", [BLoB(), ScalaBL()])
def test_adapters_of_peft(method: Method) -> None:
    peft = pytest.importorskip("peft")
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    adapted = peft.get_peft_model(net, peft.LoraConfig(r=2, target_modules=["0", "2"]))
    bnn = bayesify(adapted, method)
    assert [name for name, _ in bnn.random_layers()] == [f"base_model.model.{k}.lora_A.default" for k in (0, 2)]
    assert bnn(torch.randn(5, 4), samples=3).outputs.shape == (3, 5, 3)


def test_blob_kl_is_that_of_independent_normals() -> None:
    bnn, _, layer = _convert(BLoB(prior_std=0.3))
    g = layer.posterior.get_parameter("g")
    with torch.no_grad():
        g[0] *= -1  # training may change its sign
    expected = kl_divergence(Normal(layer.weight, g**2), Normal(torch.zeros((), dtype=F64), 0.3)).sum()
    torch.testing.assert_close(bnn.kl(), expected, atol=0, rtol=1e-12)


def test_blob_kl_is_that_of_the_full_weight_under_the_low_rank_prior() -> None:
    """Both distributions of the full weight live in the range of A -> BA; there their densities exist."""
    bnn, net, layer = _convert(BLoB(prior_std=0.3))
    factor = net.lora_B["default"].weight.detach()
    variance = layer.posterior.get_parameter("g").detach() ** 4
    # column i of W is W0_i + B A_i, so its covariance is B diag(Omega_i^2) B^T, and sigma_p^2 B B^T under the prior
    basis = torch.linalg.qr(factor).Q  # orthonormal coordinates of the range of B
    total = torch.zeros((), dtype=F64)
    for i in range(layer.weight.shape[1]):
        project = basis.T @ factor
        q = MultivariateNormal(project @ layer.weight[:, i].detach(), project @ variance[:, i].diag() @ project.T)
        p = MultivariateNormal(torch.zeros(2, dtype=F64), 0.3**2 * project @ project.T)
        total += kl_divergence(q, p)
    torch.testing.assert_close(bnn.kl(), total, atol=0, rtol=1e-9)


def test_blob_full_weight_has_the_covariance_of_the_paper() -> None:
    _, net, layer = _convert(BLoB())
    draws = 40_000
    with torch.no_grad():
        drawn = net.full_weight(layer.posterior.sample(layer, draws)[0]).mT.flatten(1)  # vec stacks columns
        factor, variance = net.lora_B["default"].weight, layer.posterior.get_parameter("g") ** 4
        expected = torch.block_diag(*(factor @ variance[:, i].diag() @ factor.T for i in range(5)))
        error = 5 * torch.sqrt((expected.diag()[:, None] * expected.diag() + expected**2) / draws)
        assert ((torch.cov(drawn.T) - expected).abs() <= error + 1e-12).all()


def test_blob_starts_in_the_range_of_the_paper() -> None:
    torch.manual_seed(0)
    bnn = bayesify(Adapted(inputs=400, rank=8), BLoB(epsilon=0.05))
    (layer,) = (layer for _, layer in bnn.random_layers())
    g = layer.posterior.get_parameter("g")
    assert 0.05 / math.sqrt(2) <= g.min() < 0.0355
    assert 0.0498 < g.max() <= 0.05


def test_scalabl_kl_is_that_of_r_normals() -> None:
    bnn, _, layer = _convert(ScalaBL(prior_mean=0.5, prior_std=0.8))
    mean, log_std = (layer.posterior.get_parameter(f"scale_{name}") for name in ("mean", "log_std"))
    prior = Normal(torch.tensor(0.5, dtype=F64), 0.8)
    torch.testing.assert_close(bnn.kl(), kl_divergence(Normal(mean, log_std.exp()), prior).sum(), atol=0, rtol=1e-12)


@pytest.mark.parametrize("relative", [0.1, 0.5, 2.0])
def test_scalabl_kl_at_its_minimum_over_the_scale(relative: float) -> None:
    """The formula of the module, for a zero prior mean, against a grid of scales."""
    mean = torch.linspace(1e-3, 2, 200_001, dtype=F64)
    least = kl_divergence(Normal(mean, relative * mean), Normal(torch.zeros((), dtype=F64), 0.7)).min().item()
    assert least == pytest.approx(0.5 * math.log(1 + relative**-2), abs=1e-8)


def test_scalabl_adds_two_numbers_per_direction_and_keeps_the_adapter() -> None:
    net = Adapted(inputs=50, outputs=40, rank=3).double()
    plain, before = copy.deepcopy(net), sum(p.numel() for p in net.parameters())
    x = torch.randn(7, 50, dtype=F64)
    bnn = bayesify(net, ScalaBL(initial_std=1e-12))
    assert sum(p.numel() for p in bnn.parameters()) == before + 6
    torch.testing.assert_close(bnn(x).outputs[0], plain(x))
    torch.testing.assert_close(unbayesify(bnn)(x), plain(x))


def test_scalabl_covariance_of_outputs() -> None:
    """All outputs of an example share s, also at different positions of a sequence; examples do not."""
    bnn, net, layer = _convert(ScalaBL())
    x, draws = torch.randn(2, 3, 5, dtype=F64), 40_000
    with torch.no_grad():
        y = bnn(x, samples=draws).outputs.flatten(1)
        std = layer.posterior.get_parameter("scale_log_std").exp()
        # output (b, t) is a constant + B diag(s_b) A x_bt
        maps = torch.einsum("or,ri,bti->btor", net.lora_B["default"].weight, layer.weight, x).flatten(1, 2)
        expected = torch.block_diag(*(m @ std.square().diag() @ m.T for m in maps))
        error = 5 * torch.sqrt((expected.diag()[:, None] * expected.diag() + expected**2) / draws)
        assert ((torch.cov(y.T) - expected).abs() <= error + 1e-12).all()


def test_unbayesify_returns_the_posterior_mean_of_scaled_adapters() -> None:
    bnn, net, layer = _convert(ScalaBL())
    expected = layer.posterior.get_parameter("scale_mean").diag() @ layer.weight
    restored = unbayesify(bnn)
    assert restored is net
    torch.testing.assert_close(net.lora_A["default"].weight, expected)


@pytest.mark.parametrize("method", [BLoB(), ScalaBL()])
def test_training_moves_the_adapter_and_not_the_frozen_weights(method: Method) -> None:
    torch.manual_seed(0)
    net = Adapted()
    nn.init.zeros_(net.lora_B["default"].weight)
    base, x = net.base.weight.clone(), torch.randn(64, 5)
    y = (x[:, 0] > 0).long()
    bnn = bayesify(net, method)
    history = fit(bnn, (x, y), Categorical(), epochs=30, learning_rate=0.02, accelerator="cpu", progress=False)
    assert history.nll[-1] < 0.7 * history.nll[0]
    assert torch.equal(net.base.weight, base)


@pytest.mark.parametrize("kind", [BLoB, ScalaBL])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"where": ""}, "where must be a name pattern"),
        ({"prior_std": 0.0}, "prior_std must be a finite number above 0, got 0.0"),
    ],
)
def test_errors(kind: type[Method], fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**fields)


def test_more_errors() -> None:
    with pytest.raises(ValueError, match="epsilon must be a finite number above 0"):
        BLoB(epsilon=-1.0)
    with pytest.raises(ValueError, match="initial_std must be a finite number above 0"):
        ScalaBL(initial_std=math.inf)
    with pytest.raises(ValueError, match="prior_mean must be a finite number, got nan"):
        ScalaBL(prior_mean=math.nan)
