"""Sites: every layer type acts as the layer it was, for one weight, for S weights, for noise on channels and for variances."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayesify import (
    EMP,
    BayesianLayer,
    Deterministic,
    DropConnect,
    MeanField,
    NothingRandomError,
    bayesify,
    register_layer,
    summary,
    unbayesify,
)
from bayesify.core.forward_pass import ForwardPass
from bayesify.core.layers import _RECOGNIZED, _TYPES, layer_type
from bayesify.core.layers.linear import BayesLinear
from bayesify.errors import PassError
from bayesify.testing import LAYERS

LINEAR = [name for name in LAYERS if name != "Conv2d, standardized"]  # in their weight
CONTRACTING = [name for name in LINEAR if name.startswith(("Linear", "Conv"))]
NORMALIZING = [name for name in LAYERS if "Norm" in name]


def _site(make) -> tuple[nn.Module, BayesianLayer, Tensor]:
    """The plain layer in eval mode, its deterministic site and an input, in float64."""
    layer, x = make()
    plain = layer.double().eval()
    bnn = bayesify(copy.deepcopy(plain), Deterministic())
    return plain, bnn.net, x.double() if x.is_floating_point() else x


def _draws(site: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
    weight = torch.randn(samples, *site.weight_shape, dtype=torch.float64)
    bias = None if site.bias_shape is None else torch.randn(samples, *site.bias_shape, dtype=torch.float64)
    return weight, bias


def _with(plain: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Module:
    layer = copy.deepcopy(plain)
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
        if isinstance(layer, nn.Embedding) and layer.padding_idx is not None:
            layer.weight[layer.padding_idx] = 0
    return layer


def test_every_site_is_the_layer_it_was():
    for original, site in _TYPES.items():
        assert site.original is original
        assert issubclass(site, original)
        assert issubclass(site, BayesianLayer)
    tested = {kind for make in LAYERS.values() if (kind := type(make()[0])).__module__.startswith("torch.nn.")}
    assert tested == {kind for kind in _TYPES if kind.__module__.startswith("torch.nn.")}, "others are derived or registered"


@pytest.mark.parametrize("name", LAYERS)
def test_many_weights_are_a_loop_over_plain_layers(name):
    plain, site, x = _site(LAYERS[name])
    weight, bias = _draws(site, 3)
    folded = torch.cat([x, x.roll(1, 0), x.flip(0)])
    rows = folded.unflatten(0, (3, -1))
    biases = [None] * 3 if bias is None else bias
    expected = torch.cat([_with(plain, weight[s], biases[s])(rows[s]) for s in range(3)])
    torch.testing.assert_close(site.op(site.prepare(folded), weight, bias), expected, rtol=1e-12, atol=1e-12)
    one = site.op(site.prepare(x), weight[:1], None if bias is None else bias[:1])
    torch.testing.assert_close(one, _with(plain, weight[0], biases[0])(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(site(x), plain(x), rtol=1e-12, atol=1e-12)


def _assert_channel_noise_is_weight_noise(site: BayesianLayer, x: Tensor) -> None:
    weight, bias = _draws(site, 2)
    v = torch.randn(2, site.input_channels, dtype=torch.float64)
    folded = torch.cat([x, x.flip(0)])
    noisy = folded * site.over_channels(v.repeat_interleave(len(x), 0), folded)
    torch.testing.assert_close(site.op(noisy, weight, bias), site.op(folded, weight * site.over_weight(v), bias))
    shared = site.op(x * site.over_channels(v[:1], x), weight[0], None)
    torch.testing.assert_close(shared, site.op(x, weight[0] * site.over_weight(v[0]), None))


@pytest.mark.parametrize("name", CONTRACTING)
def test_channel_noise_is_weight_noise(name):
    _, site, x = _site(LAYERS[name])
    assert site.contracts
    _assert_channel_noise_is_weight_noise(site, x)


GROUPED = {
    "Conv1d": lambda: (nn.Conv1d(6, 9, 2, groups=3), torch.randn(2, 6, 4)),
    "Conv2d, depthwise": lambda: (nn.Conv2d(4, 8, 3, groups=4, padding="same", padding_mode="replicate"), torch.randn(2, 4, 5, 4)),
    "Conv3d": lambda: (nn.Conv3d(4, 6, (1, 2, 2), groups=2), torch.randn(2, 4, 2, 3, 3)),
    "ConvTranspose1d": lambda: (nn.ConvTranspose1d(6, 9, 3, stride=2, groups=3), torch.randn(2, 6, 4)),
    "ConvTranspose2d, depthwise": lambda: (nn.ConvTranspose2d(4, 8, 2, groups=4), torch.randn(2, 4, 3, 3)),
    "ConvTranspose3d": lambda: (nn.ConvTranspose3d(4, 6, (1, 2, 2), groups=2), torch.randn(2, 4, 2, 3, 3)),
}


@pytest.mark.parametrize("name", GROUPED)
def test_channel_noise_is_weight_noise_in_groups(name):
    _, site, x = _site(GROUPED[name])
    _assert_channel_noise_is_weight_noise(site, x)


@pytest.mark.parametrize("name", [*LINEAR, *GROUPED])
def test_squares_propagate_variances(name):
    """The output is linear in the independent weights, so Var y is the sum of (dy/dw)^2 Var w: the Jacobian by autograd."""
    _, site, x = _site({**GROUPED, **LAYERS}[name])
    variances = [v.square()[0] for v in _draws(site, 1) if v is not None]
    jacobians = torch.autograd.functional.jacobian(
        lambda *theta: site.op(site.prepare(x), theta[0], theta[1] if len(theta) > 1 else None),
        tuple(torch.randn_like(v) for v in variances),
    )
    enumerated = sum((jac.square() * var).flatten(-var.dim()).sum(-1) for jac, var in zip(jacobians, variances, strict=True))
    propagated = site.op(site.square(site.prepare(x)), variances[0], variances[1] if len(variances) > 1 else None)
    torch.testing.assert_close(propagated, enumerated, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in (*CONTRACTING, *GROUPED) if "stride" not in n])
def test_fan_in_counts_the_weights_of_an_output(name):
    """For a weight of ones and inputs of ones, an output inside the image is the number of weights in it."""
    _, site, x = _site({**GROUPED, **LAYERS}[name])
    outputs = site.op(torch.ones_like(x), torch.ones(site.weight_shape, dtype=torch.float64), None)
    if "Transpose" in name:  # positions differ in their number: no output has more than max, their mean bounds it from below
        assert outputs.min() <= site.fan_in <= outputs.max()
    else:
        assert site.fan_in == outputs.max()


@pytest.mark.parametrize("shape", [(5, 4), (5, 2, 4), (5, 3, 2, 4)])
def test_linear_on_more_dimensions(shape):
    plain, site, x = _site(lambda: (nn.Linear(4, 3), torch.randn(shape)))
    weight, bias = _draws(site, 2)
    expected = torch.cat([_with(plain, weight[s], bias[s])(x) for s in range(2)])
    torch.testing.assert_close(site.op(torch.cat([x, x]), weight, bias), expected)
    swapped = torch.cat([x, x]).transpose(0, 1).contiguous().transpose(0, 1)  # not contiguous
    torch.testing.assert_close(site.op(swapped, weight, bias), expected)
    _assert_channel_noise_is_weight_noise(site, x)


@pytest.mark.parametrize("kind", [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d])
def test_transposed_convolution_with_output_size(kind):
    dims = {nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3}[kind]
    plain, site, x = _site(lambda: (kind(2, 3, 3, stride=2), torch.randn(2, 2, *[4] * dims)))
    for size in ([9] * dims, [10] * dims):
        torch.testing.assert_close(site(x, output_size=size), plain(x, output_size=size))
    with pytest.raises(ValueError, match="requested an output size"):
        site(x, output_size=[20] * dims)
    assert site.output_padding == plain.output_padding, "a failed call must not leave its padding behind"
    torch.testing.assert_close(site(x), plain(x))


STATISTICS = {
    "default": {"track_running_stats": True},
    "cumulative": {"track_running_stats": True, "momentum": None},
    "no running statistics": {"track_running_stats": False},
    "slow": {"track_running_stats": True, "momentum": 0.01, "eps": 0.1},
}


@pytest.mark.parametrize("options", STATISTICS)
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (nn.BatchNorm1d, ()),
        (nn.BatchNorm1d, (3,)),
        (nn.BatchNorm2d, (3, 2)),
        (nn.InstanceNorm1d, (3,)),
        (nn.InstanceNorm2d, (3, 2)),
    ],
)
def test_statistics_in_both_modes(kind, shape, options):
    norm = kind(4, affine=True, **STATISTICS[options])
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    bnn = bayesify(copy.deepcopy(norm), Deterministic())
    for training in (True, True, False, True):
        x = torch.randn(6, 4, *shape) * 3 + 1
        norm.train(training)
        bnn.train(training)
        torch.testing.assert_close(bnn(x).outputs[0], norm(x))
        for (name, expected), found in zip(norm.named_buffers(), bnn.net.buffers(), strict=True):
            torch.testing.assert_close(found, expected, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", STATISTICS)
@pytest.mark.parametrize("kind", [nn.BatchNorm2d, nn.InstanceNorm2d])
def test_several_draws_are_normalized_as_several_passes(kind, options, training):
    """By the statistics of their own batch each, which move the running ones one after the other."""
    torch.manual_seed(1)
    norm = kind(4, affine=True, **STATISTICS[options]).double().train(training)
    bnn = bayesify(copy.deepcopy(norm), Deterministic())
    weight, bias = _draws(bnn.net, 3)
    rows = torch.randn(3, 6, 4, 2, 2, dtype=torch.float64) * torch.tensor([1.0, 2.0, 5.0]).reshape(3, 1, 1, 1, 1)
    expected = []
    for s in range(3):
        with torch.no_grad():
            norm.weight.copy_(weight[s])
            norm.bias.copy_(bias[s])
        expected.append(norm(rows[s]))
    before = copy.deepcopy(bnn.net)
    torch.testing.assert_close(bnn.net.prepared_op(rows.flatten(0, 1), weight, bias), torch.cat(expected))
    for expected_buffer, found in zip(norm.buffers(), bnn.net.buffers(), strict=True):
        torch.testing.assert_close(found, expected_buffer)
    before.passes.current = ForwardPass(3)
    torch.testing.assert_close(before.op(before.prepare(rows.flatten(0, 1)), weight, bias), torch.cat(expected))


def test_batch_normalization_checks_its_input():
    bnn = bayesify(nn.BatchNorm2d(4), MeanField())
    with pytest.raises(ValueError, match="expected 4D input"):
        bnn(torch.randn(3, 4))


def test_instance_normalization_needs_a_batch():
    bnn = bayesify(nn.Sequential(nn.InstanceNorm1d(3, affine=True), nn.Linear(4, 2)), MeanField())
    with pytest.raises(PassError, match=r"a random InstanceNorm1d needs inputs with a batch dimension.*got shape \(3, 4\)"):
        bnn(torch.randn(3, 4))


def test_embedding_padding_has_neither_noise_nor_gradient():
    bnn = bayesify(nn.Embedding(5, 3, padding_idx=1), MeanField(initial_std=1.0))
    tokens = torch.tensor([[1, 0], [4, 1]])
    for coherent in (False, True):
        outputs = bnn(tokens, samples=3, coherent=coherent).outputs
        assert outputs[:, tokens == 1].abs().max() < 1e-15
        assert outputs[:, tokens != 1].abs().min() > 1e-6
    outputs.sum().backward()
    assert torch.equal(bnn.net.weight.grad[1], torch.zeros(3))


@pytest.mark.parametrize("name", [*NORMALIZING, "Embedding"])
def test_layers_that_do_not_contract_say_so(name):
    _, site, x = _site(LAYERS[name])
    assert not site.contracts
    assert site.fan_in == 1
    for ask in (lambda: site.input_channels, lambda: site.over_channels(x, x), lambda: site.over_weight(x)):
        with pytest.raises(NotImplementedError, match=f"{type(site).__name__} does not contract over input channels"):
            ask()


# Layer types of others


class Named(nn.Linear):
    """By another name; it does not override `forward`."""


class NormAct(nn.BatchNorm2d):
    """A normalization with an activation of its own and a setting, for which it is not recognized."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.act, self.gain = nn.ReLU(), 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.after(super().forward(x))

    def after(self, y: Tensor) -> Tensor:
        return self.gain * self.act(y)


class Cosine(nn.Linear):
    """A linear layer of normalized inputs: another action on its input."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(nn.functional.normalize(x, dim=-1), self.weight, self.bias)


class BayesCosine(BayesLinear):
    """How `Cosine` acts on its input."""

    def prepare(self, x: Tensor) -> Tensor:
        return nn.functional.normalize(x, dim=-1)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layer types that only this test knows."""
    known = [(types, dict(types)) for types in (_TYPES, _RECOGNIZED)]
    yield
    for types, before in known:
        types.clear()
        types.update(before)


def _others() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 3, 1), NormAct(3), nn.Flatten(), Named(12, 4), Cosine(4, 2)).double()


def _taught() -> None:
    register_layer(NormAct, like=nn.BatchNorm2d, then=NormAct.after)
    register_layer(Cosine, like=BayesCosine)


@pytest.mark.usefixtures("known")
def test_layer_types_of_others_before_and_after_they_are_registered() -> None:
    reasons = {report.name: report.reason for report in bayesify(_others(), MeanField()).report}
    assert reasons.pop("1") == "a subclass of BatchNorm2d that overrides forward; see register_layer(..., like=..., then=...)"
    assert set(reasons.values()) == {""}, "Named is a linear layer, and Cosine one with its own forward"
    _taught()
    assert not any(report.reason for report in bayesify(_others(), MeanField()).report)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("coherent", [False, True])
def test_registered_types_act_as_they_did(coherent: bool, training: bool) -> None:
    _taught()
    plain, x = _others().train(training), torch.randn(3, 2, 2, 2, dtype=torch.float64)
    nn.init.normal_(plain[1].bias)
    bnn = bayesify(copy.deepcopy(plain), {"1": EMP(spread=0.0), "3": Deterministic(), "4": DropConnect(p=0.0)})
    assert [type(bnn.net[i]) for i in (1, 3, 4)] == [layer_type(kind) for kind in (NormAct, Named, Cosine)]
    assert all(isinstance(bnn.net[i], kind) for i, kind in ((1, NormAct), (3, Named), (4, Cosine)))
    expected = plain(x)
    torch.testing.assert_close(bnn(x, samples=2, coherent=coherent).outputs, expected.expand(2, *expected.shape))
    assert (bnn.net[1](bnn.net[0](x)) == 0).any(), "its activation is there"


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda bnn: pickle.loads(pickle.dumps(bnn))], ids=["deepcopy", "pickle"])
def test_copies_of_derived_types(copied: Callable[[Any], Any]) -> None:
    _taught()
    bnn, x = bayesify(_others(), MeanField(initial_std=1.0)).eval(), torch.randn(3, 2, 2, 2, dtype=torch.float64)
    other = copied(bnn)
    assert [type(a) for a in other.net] == [type(a) for a in bnn.net]
    outputs = []
    for each in (bnn, other):
        torch.manual_seed(1)
        outputs.append(each(x, samples=3).outputs)
    torch.testing.assert_close(*outputs, rtol=0, atol=0)
    assert {id(p) for p in other.parameters()}.isdisjoint(id(p) for p in bnn.parameters())
    assert [type(layer) for layer in unbayesify(other)] == [nn.Conv2d, NormAct, nn.Flatten, Named, Cosine]


@pytest.mark.usefixtures("known")
def test_a_pickle_of_types_that_are_not_registered_says_so() -> None:
    _taught()
    data = pickle.dumps(bayesify(_others(), MeanField()))
    del _TYPES[NormAct]
    with pytest.raises(TypeError, match="NormAct is not registered here; call register_layer as before the network was pickled"):
        pickle.loads(data)


@pytest.mark.usefixtures("known")
def test_unbayesify_gives_back_types_of_others() -> None:
    _taught()
    plain = _others().eval()
    x = torch.randn(3, 2, 2, 2, dtype=torch.float64)
    expected, state = plain(x), copy.deepcopy(plain.state_dict())
    net = unbayesify(bayesify(plain, MeanField()))
    assert [type(layer) for layer in net] == [nn.Conv2d, NormAct, nn.Flatten, Named, Cosine]
    torch.testing.assert_close(net(x), expected)
    assert net.state_dict().keys() == state.keys()


@pytest.mark.usefixtures("known")
def test_what_register_layer_refuses() -> None:
    for cls in ("Linear", nn.Linear(2, 1), dict):
        with pytest.raises(TypeError, match=r"cls must be a subclass of torch\.nn\.Module, got"):
            register_layer(cls, like=nn.Linear)
    for like in (nn.LSTM, nn.Linear(2, 1), "Linear", Cosine):
        with pytest.raises(TypeError, match=r"like must be a BayesianLayer or one of Linear, Conv1d, .*, got"):
            register_layer(Named, like=like)
    with pytest.raises(TypeError, match="then must be a function of the layer and its output, got 'relu'"):
        register_layer(Cosine, like=nn.Linear, then="relu")
    assert layer_type(Cosine) is None, "nothing is registered by a call that fails"


@pytest.mark.usefixtures("known")
def test_nothing_random_is_an_error_that_names_the_remedy() -> None:
    class Conditional(nn.Linear):
        def forward(self, x: Tensor, factor: float = 1.0) -> Tensor:
            return factor * super().forward(x)

    net = nn.Sequential(Conditional(3, 3), NormAct(3))
    with pytest.raises(
        NothingRandomError, match=r"0 \(Conditional\): a subclass of Linear that overrides forward; see register_layer"
    ):
        bayesify(net, EMP())
    with pytest.raises(NothingRandomError, match=r"EMP\(where=.*\) matches no layer"):
        bayesify(nn.Sequential(nn.Linear(3, 3)), EMP(where="bn"))
    assert "0 of 1 layers are random" in str(summary(bayesify(nn.Sequential(nn.Linear(3, 3)), Deterministic())))


def test_random_layers_inside_random_layers_and_shared_ones_are_found_once_in_order():
    """By the fast search of passes as by the public one."""

    class Adapted(nn.Linear):
        def __init__(self, inputs, outputs):
            super().__init__(inputs, outputs)
            self.low = nn.Linear(outputs, outputs)

        def forward(self, input):
            return self.low(super().forward(input))

    register_layer(Adapted, like=nn.Linear, then=lambda layer, y: layer.low(y))
    shared = nn.Linear(4, 4)
    net = nn.Sequential(Adapted(3, 4), shared, nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(), shared), nn.Linear(4, 2))
    bnn = bayesify(net, MeanField())
    assert [name for name, _ in bnn.random_layers()] == ["0", "0.low", "1", "2.0", "3"]
    assert bnn._layers() == [layer for _, layer in bnn.random_layers()]
