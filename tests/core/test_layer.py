"""Random layers from outside: weights that others read, and checkpoints of the plain network that are loaded into them."""

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify import (
    ECMP,
    ELRG,
    EMP,
    IVON,
    MNF,
    SLANG,
    VIFO,
    VMG,
    VOGN,
    VSD,
    WHVI,
    BatchEnsemble,
    Bayesian,
    ConcreteDropout,
    DeepEnsemble,
    Deterministic,
    DropConnect,
    MCDropout,
    MeanField,
    Method,
    NoisyAdam,
    NoisyKFAC,
    Radial,
    Rank1,
    TensorFactorized,
    VariationalDropout,
    bayesify,
    unbayesify,
)
from bayesify.functional import hadamard_projection
from bayesify.testing.trial import captured_weights

F64 = torch.float64
REPLACING: list[Method] = [WHVI(), TensorFactorized(), EMP(where="*", components=3, spread=1.0), ECMP(where="*", components=3)]
METHODS: list[Method] = [
    *(
        MeanField(),
        MeanField(noise="shared"),
        MeanField(noise="flipout"),
        MeanField(prior_mean="pretrained"),
        MCDropout(),
        DropConnect(),
        VariationalDropout(),
    ),
    *(VSD(), VSD(hierarchical=True), Deterministic(prior_std=1.0), VIFO(), VIFO(separate_std=True), *REPLACING),
    *(EMP(where="*", learn_probabilities=True), EMP(where="*", components=1)),
    ELRG(),
    IVON(),
    VOGN(),
    NoisyAdam(),
    NoisyKFAC(),
    SLANG(),
    VMG(),
    MNF(),
    Radial(),
    Rank1(spread=0.0),
    BatchEnsemble(spread=0.0),
    ConcreteDropout(),
    *(WHVI(initial="pretrained"), WHVI(scales="variational"), WHVI(covariance="full", blocks="tied")),
]


def identify(value: object) -> str:
    return type(value).__name__


class Asking(nn.Module):
    """Asks for the dtype and the device of a weight, as many nets do, and casts its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.layer.weight
        h = self.layer(x.to(weight.dtype).to(weight.device))
        assert tuple(weight.shape) == (3, 4)
        return self.head(torch.tanh(h))


class Reading(nn.Module):
    """Computes with a weight itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(F.linear(x, self.layer.weight, self.layer.bias)))


@pytest.mark.parametrize("dtype", [F64, torch.bfloat16])
@pytest.mark.parametrize("method", REPLACING, ids=identify)
def test_a_weight_read_outside_a_pass_is_the_mean(method: Method, dtype: torch.dtype) -> None:
    bnn = bayesify(nn.Sequential(nn.Linear(4, 3), nn.Conv1d(4, 3, 2, bias=False)).to(dtype), method)
    bnn.net[0](torch.randn(5, 4, dtype=dtype))
    weights = [(layer.weight.detach().clone(), layer.bias) for layer in bnn.net]
    assert [(tuple(w.shape), w.dtype, w.device.type) for w, _ in weights] == [((3, 4), dtype, "cpu"), ((3, 4, 2), dtype, "cpu")]
    assert weights[1][1] is None
    assert isinstance(weights[0][1], Tensor)
    plain = unbayesify(bnn)
    for layer, (weight, _) in zip(plain, weights, strict=True):
        torch.testing.assert_close(layer.weight.detach(), weight, rtol=0, atol=0)


@pytest.mark.parametrize("method", [MeanField(), *REPLACING], ids=identify)
def test_a_net_that_asks_for_dtype_and_device_still_folds(method: Method) -> None:
    bnn, x, rows = bayesify(Asking().double(), {"layer": method}), torch.randn(5, 4, dtype=F64), []
    bnn(x, samples=3)
    bnn.net.register_forward_pre_hook(lambda module, args: rows.append(len(args[0])))
    outputs = bnn(x.float(), samples=3).outputs.detach()
    assert rows[-1] == 15
    assert not bnn.findings
    assert not bnn.net.layer.is_read
    assert not torch.allclose(outputs[0], outputs[1])


@pytest.mark.default("*-eager", "MeanField-compiled first", extended=["E*MP*"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled first"])
@pytest.mark.parametrize("method", [MeanField(initial_std=1.0), *REPLACING], ids=identify)
def test_a_weight_that_the_net_computes_with_is_this_draw(method: Method, compiled: bool) -> None:
    torch.manual_seed(2)
    plain = Reading().double()
    bnn, x = bayesify(copy.deepcopy(plain), {"layer": method, "head": MeanField(noise="shared")}), torch.randn(5, 4, dtype=F64)
    if compiled:
        with pytest.warns(match="reads the weights of its layers"):
            first = torch.compile(bnn, backend="aot_eager")(x, samples=3).outputs.detach()
        assert not torch.allclose(first[0], first[1])
        torch.compiler.reset()
    with captured_weights(bnn) as weights:
        outputs = bnn(x, samples=3).outputs
    expected = [torch.func.functional_call(plain, each, (x,)) for each in weights[-3:]]
    torch.testing.assert_close(outputs, torch.stack(expected), rtol=1e-10, atol=1e-12)
    assert not torch.allclose(weights[-1]["layer.weight"], weights[-2]["layer.weight"]) or isinstance(method, EMP)


# Checkpoints of the plain network


def net(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)).double()


def loaded(method: Method) -> tuple[nn.Sequential, Bayesian, dict[str, Tensor]]:
    """A plain network, a Bayesian one of other weights that has loaded its checkpoint, and the state of that before."""
    plain = net(5)
    bnn = bayesify(net(6), method)
    before = copy.deepcopy(bnn.net.state_dict())
    assert bnn.net.load_state_dict(plain.state_dict(), strict=True) == ([], [])
    return plain, bnn, before


def means(bnn: Bayesian) -> dict[str, Tensor]:
    return {
        f"{name}.{kind}": value.detach()
        for name, layer in bnn.random_layers()
        for kind, value in zip(("weight", "bias"), layer.posterior.mean(layer), strict=True)
    }


@pytest.mark.parametrize("method", METHODS, ids=identify)
def test_a_plain_checkpoint_loads_strictly_and_the_posterior_keeps_its_spread(method: Method) -> None:
    plain, bnn, before = loaded(method)
    after = bnn.net.state_dict()
    assert after.keys() == before.keys()
    for name, value in after.items():
        if name in plain.state_dict():
            assert torch.equal(value, plain.state_dict()[name]), name
        elif name.endswith(("log_std", "log_alpha", "logits", "tril")):
            assert torch.equal(value, before[name]), name
    bnn.net.load_state_dict(before)
    for name, value in bnn.net.state_dict().items():
        assert torch.equal(value, before[name]), f"{name}: a checkpoint of the Bayesian network is not taken for a plain one"
    if not isinstance(method, WHVI | TensorFactorized | EMP | VSD):
        _, bnn, _ = loaded(method)
        for name, value in means(bnn).items():
            torch.testing.assert_close(value, plain.get_parameter(name), msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("method", METHODS, ids=identify)
def test_members_of_an_ensemble_load_it_too(method: Method) -> None:
    plain = net(5)
    bnn = bayesify(nn.Linear(16, 3).double(), DeepEnsemble(members=2, base=method))
    for member in bnn.members:
        assert member.net.load_state_dict(plain[3].state_dict(), strict=True) == ([], [])


@pytest.mark.parametrize("kind", [EMP, ECMP])
def test_components_are_spread_around_the_loaded_weights(kind: type[EMP]) -> None:
    plain, bayesian = nn.Linear(100, 400).double(), nn.Linear(100, 400).double()
    bnn = bayesify(bayesian, kind(components=3, spread=0.2))
    bnn.net.load_state_dict(plain.state_dict())
    offsets = bnn.net.posterior.weight.detach() - plain.weight.detach()
    torch.testing.assert_close(offsets.std((1, 2)), torch.full((3,), 0.2 / math.sqrt(100), dtype=F64), rtol=0.03, atol=0)
    assert abs(torch.corrcoef(offsets.flatten(1))[0, 1]) < 0.03, "independent components"
    torch.testing.assert_close(bnn.net.posterior.bias.detach().mean(0), plain.bias.detach(), rtol=0, atol=6 * 0.02 / math.sqrt(3))
    exact = bayesify(nn.Linear(3, 2).double(), kind(components=3, spread=0.0))
    exact.net.load_state_dict((other := nn.Linear(3, 2).double()).state_dict())
    for value, expected in zip(exact.net.posterior.mean(exact.net), other.parameters(), strict=True):
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("method", [WHVI(), WHVI(scales="variational"), WHVI(blocks="tied"), WHVI(initial="pretrained")])
def test_whvi_takes_the_projection_of_the_loaded_weights(method: WHVI) -> None:
    plain = nn.Linear(16, 32, bias=False).double()
    bnn = bayesify(nn.Linear(16, 32, bias=False).double(), method)
    bnn.net.load_state_dict(plain.state_dict(), strict=True)
    blocks = plain.weight.detach().reshape(2, 16, 16)
    *_, error = hadamard_projection(blocks, torch.ones_like(blocks) > 0, tied=method.blocks == "tied")
    missed = (bnn.net.posterior.mean(bnn.net)[0] - plain.weight).norm() / plain.weight.norm()
    torch.testing.assert_close(missed.detach(), error.double(), rtol=1e-6, atol=1e-9)
    assert error < 0.97, "a weight that has nothing to do with it would miss by more than all"


def test_tensor_factorization_takes_the_best_approximation_of_its_rank() -> None:
    plain = nn.Linear(9, 7).double()
    bnn = bayesify(nn.Linear(9, 7).double(), TensorFactorized(rank=3, cores=2))
    bnn.net.load_state_dict(plain.state_dict(), strict=True)
    u, s, v = torch.linalg.svd(plain.weight.detach())
    best = u[:, :3] @ torch.diag(s[:3]) @ v[:3]
    torch.testing.assert_close(bnn.net.posterior.mean(bnn.net)[0].detach(), best, rtol=1e-9, atol=1e-10)
    wide = bayesify(nn.Linear(2, 7).double(), TensorFactorized(rank=4))
    wide.net.load_state_dict((other := nn.Linear(2, 7).double()).state_dict())
    torch.testing.assert_close(wide.net.posterior.mean(wide.net)[0], other.weight, rtol=1e-9, atol=1e-10)


def test_a_pretrained_prior_is_centered_on_the_loaded_weights() -> None:
    plain, bnn, _ = loaded(MeanField(prior_mean="pretrained", initial_std=1.0, prior_std=0.5))
    for name, layer in bnn.random_layers():
        assert torch.equal(layer.posterior.weight_prior_mean, plain.get_parameter(f"{name}.weight"))
        assert torch.equal(layer.posterior.bias_prior_mean, plain.get_parameter(f"{name}.bias"))
    spread = sum(
        torch.distributions.kl_divergence(
            torch.distributions.Normal(0.0 * log_std, log_std.exp()), torch.distributions.Normal(0.0 * log_std, 0.5)
        ).sum()
        for _, layer in bnn.random_layers()
        for log_std in layer.posterior.parameters()
    )
    torch.testing.assert_close(bnn.kl(), spread, msg="the means cost nothing")


@pytest.mark.parametrize("changed", ["0.weight", "3.weight", "3.bias"])
@pytest.mark.parametrize("method", METHODS, ids=identify)
def test_wrong_shapes_are_pytorchs_own_error(method: Method, changed: str) -> None:
    bnn, checkpoint = bayesify(net(6), method), net(5).state_dict()
    checkpoint[changed] = torch.zeros(5, dtype=F64)
    with pytest.raises(RuntimeError, match=rf"size mismatch for {changed}: copying a param with shape torch.Size\(\[5\]\)"):
        bnn.net.load_state_dict(checkpoint)


@pytest.mark.parametrize("method", METHODS, ids=identify)
def test_missing_and_unexpected_keys_are_pytorchs_own_errors(method: Method) -> None:
    bnn, checkpoint = bayesify(net(6), method), dict(net(5).state_dict())
    del checkpoint["3.bias"]
    checkpoint["3.scale"] = torch.zeros(3)
    with pytest.raises(RuntimeError) as error:
        bnn.net.load_state_dict(checkpoint)
    assert '"3.bias"' in str(error.value)
    assert '"3.scale"' in str(error.value)
    found: Any = bnn.net.load_state_dict(checkpoint, strict=False)
    assert found.unexpected_keys == ["3.scale"]
    assert found.missing_keys == ["3.bias"]


@pytest.mark.parametrize("method", METHODS, ids=identify)
def test_a_bias_too_many_is_unexpected(method: Method) -> None:
    bnn = bayesify(nn.Sequential(nn.Linear(4, 3, bias=False)), method)
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "0.bias"'):
        bnn.net.load_state_dict(nn.Sequential(nn.Linear(4, 3)).state_dict())
