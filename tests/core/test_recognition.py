"""Layers of other libraries: which are recognized, that they keep their function, and that look-alikes are refused."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayesify import EMP, MNF, VSD, WHVI, MCDropout, MeanField, bayesify, register_layer, unbayesify
from bayesify.core import layers
from bayesify.core.layers import network_trials
from bayesify.core.layers.own_forward import OwnForward
from bayesify.core.layers.recognition import recognized
from bayesify.errors import PassError
from bayesify.testing.trial import captured_weights

F64 = torch.float64


class RMSNorm(nn.Module):
    """As in Llama and T5, with settings of its look-alikes."""

    def __init__(self, size, eps=1e-6, offset=0.0, eps_outside=False):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size) + 0.5)
        self.variance_epsilon, self.offset, self.eps_outside = eps, offset, eps_outside

    def forward(self, hidden_states):
        mean = hidden_states.pow(2).mean(-1, keepdim=True)
        if self.eps_outside:
            return (self.offset + self.weight) * hidden_states / (mean.sqrt() + self.variance_epsilon)
        return (self.offset + self.weight) * hidden_states * torch.rsqrt(mean + self.variance_epsilon)


class Conv1D(nn.Module):
    """As in GPT-2."""

    def __init__(self, outputs, inputs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.size()[:-1], -1)


class OutputMajor(Conv1D):
    """A weight of the same shape where inputs and outputs are equally many, used the other way round."""

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class Spelled(nn.Linear):
    """As in Falcon."""

    def forward(self, input):
        product = input @ self.weight.T
        return product if self.bias is None else product + self.bias


class Standardized(nn.Linear):
    """A weight that is computed in `forward`."""

    def forward(self, input):
        return F.linear(input, self.weight / self.weight.std(), self.bias)


class Bounded(OutputMajor):
    """A weight that is changed in `forward`; then it is a linear layer."""

    def forward(self, x):
        with torch.no_grad():
            self.weight.clamp_(-0.1, 0.1)
        return super().forward(x)


class OwnLinear(nn.Module):
    """As in torch_geometric, which saves the weight as an attribute."""

    def __init__(self, inputs, outputs, bias=True):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))
        self.register_parameter("bias", nn.Parameter(torch.randn(outputs)) if bias else None)

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        destination[prefix + "weight"] = self.weight if keep_vars else self.weight.detach()
        if self.bias is not None:
            destination[prefix + "bias"] = self.bias if keep_vars else self.bias.detach()


class Scaled(Conv1D):
    def forward(self, x):
        return 2 * super().forward(x)


class NormAct(nn.BatchNorm2d):
    """As in timm: the function of the base class spelled out, then dropout and an activation."""

    def __init__(self, size, p=0.0, act=None, scale=None):
        super().__init__(size)
        self.drop, self.act = nn.Dropout(p), nn.ReLU(inplace=True) if act is None else act
        if scale is not None:
            self.scale = scale

    def forward(self, x):
        if self.training:
            self.num_batches_tracked.add_(1)
        x = F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps)
        return self.act(self.drop(x))


class GroupNormAct(nn.GroupNorm):
    def __init__(self, groups, size):
        super().__init__(groups, size)
        self.act, self.fast = nn.SiLU(), False

    def forward(self, x):
        return self.act(F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps))


class LayerNorm2d(nn.LayerNorm):
    """As in ConvNeXt, of either order of dimensions."""

    def __init__(self, size, data_format="channels_first"):
        super().__init__(size)
        self.data_format = data_format

    def forward(self, x):
        if self.data_format == "channels_last":
            return super().forward(x)
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class OwnLayerNorm(nn.Module):
    """As in Segment Anything, and in older transformers."""

    def __init__(self, size, first):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(size) + 0.5), nn.Parameter(torch.randn(size))
        self.eps, self.dim = 1e-6, 1 if first else -1

    def forward(self, x):
        mean = x.mean(self.dim, keepdim=True)
        x = (x - mean) / torch.sqrt((x - mean).pow(2).mean(self.dim, keepdim=True) + self.eps)
        shape = (-1, *[1] * (x.dim() - 2)) if self.dim == 1 else (-1,)
        return self.weight.view(shape) * x + self.bias.view(shape)


class GhostNorm(nn.BatchNorm2d):
    """Batches that are larger than its own are split."""

    size = 2

    def __init__(self, size, ghost):
        super().__init__(size)
        self.ghost = ghost

    def forward(self, x):
        return torch.cat([super(GhostNorm, self).forward(part) for part in x.split(self.ghost)])


class ScaledNorm(NormAct):
    def forward(self, x):
        return 2 * super().forward(x)


class CountingNorm(NormAct):
    """It counts twice."""

    def forward(self, x):
        if self.training:
            self.num_batches_tracked.add_(1)
        return super().forward(x)


class WithMask(RMSNorm):
    def forward(self, hidden_states, mask):
        return super().forward(hidden_states) * mask


class Reversal(torch.autograd.Function):
    """As for adversarial training of features."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


# Functions that are linear at some weights and inputs, or linear with other gradients.
NEARLY_LINEAR = {
    "clamped weight": lambda x, weight, bias: F.linear(x, weight.clamp(-1, 1), bias),
    "pruned weight": lambda x, weight, bias: F.linear(x, F.hardshrink(weight, 1e-3), bias),
    "capped output": lambda x, weight, bias: F.hardtanh(F.linear(x, weight, bias), -50, 50),
    "clipped input": lambda x, weight, bias: F.linear(x.clamp(-1e3, 1e3), weight, bias),
    "detached input": lambda x, weight, bias: F.linear(x.detach(), weight, bias),
    "detached weight": lambda x, weight, bias: F.linear(x, weight.detach(), bias),
    "detached bias": lambda x, weight, bias: F.linear(x, weight, bias.detach()),
    "reversed gradient": lambda x, weight, bias: F.linear(Reversal.apply(x), weight, bias),
}


class Nearly(OutputMajor):
    """A module with a weight and bias."""

    def __init__(self, function, only_in=None):
        super().__init__(8, 8)
        self.function, self.only_in = function, only_in

    def forward(self, x):
        function = self.function if self.only_in in (None, self.training) else F.linear
        return function(x, self.weight, self.bias)


class Net(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(8, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@pytest.mark.parametrize(
    "layer",
    [
        RMSNorm(8),
        nn.RMSNorm(8),
        nn.RMSNorm(8, eps=0.1),
        Conv1D(8, 8),
        OutputMajor(8, 8),
        OwnLinear(8, 8),
        OwnLinear(8, 8, bias=False),
    ],
    ids=["foreign", "plain", "eps", "Conv1D", "output major", "linear", "linear without bias"],
)
def test_recognized_layers_keep_their_function(layer):
    net, x = Net(copy.deepcopy(layer)).double(), torch.randn(4, 5, 8, dtype=F64)
    names, expected = [name for name, _ in net.named_parameters()], net(x)
    bnn = bayesify(net, MeanField(initial_std=1e-9))
    assert [name for name, _ in bnn.random_layers()] == ["layers.0", "head"]
    for kwargs in ({"samples": 1}, {"samples": 3}, {"samples": 3, "coherent": True}):
        torch.testing.assert_close(bnn(x, **kwargs).outputs[-1], expected, rtol=1e-6, atol=1e-6)
    bnn.load_state_dict(pickle.loads(pickle.dumps(bnn)).state_dict())
    torch.testing.assert_close(copy.deepcopy(bnn)(x).outputs[0], expected, rtol=1e-6, atol=1e-6)
    plain = unbayesify(bnn)
    assert type(plain.layers[0]) is type(layer)
    assert [name for name, _ in plain.named_parameters()] == names
    assert vars(plain.layers[0]).keys() == vars(layer).keys()
    assert plain.layers[0]._parameters.keys() == layer._parameters.keys()
    torch.testing.assert_close(plain(x), expected, rtol=0, atol=0)


class Images(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.first, self.layer, self.head = nn.Conv2d(3, 8, 3), layer, nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layer(self.first(x)).mean((2, 3)))


class Both(Images):
    def __init__(self):
        super().__init__(LayerNorm2d(8))
        self.last = LayerNorm2d(8, "channels_last")

    def forward(self, x):
        return self.head(self.last(self.layer(self.first(x)).mean((2, 3))))


NORMALIZATIONS = {
    "batch norm and ReLU": lambda: NormAct(8),
    "batch norm, dropout and identity": lambda: NormAct(8, p=0.5, act=nn.Identity()),
    "group norm and SiLU": lambda: GroupNormAct(2, 8),
    "channels first": lambda: LayerNorm2d(8),
    "own class, channels first": lambda: OwnLayerNorm(8, first=True),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("method", [MeanField(initial_std=1e-9), EMP(spread=0)], ids=["MeanField", "EMP"])
@pytest.mark.parametrize("make", NORMALIZATIONS.values(), ids=NORMALIZATIONS)
def test_recognized_normalizations_keep_their_function(make, method, training):
    """Draws are those of passes one after the other, also their statistics and dropout."""
    torch.manual_seed(0)
    net, x = Images(make()).double().train(training), torch.randn(4, 3, 6, 6, dtype=F64)
    with torch.no_grad():
        net.layer.weight.copy_(torch.rand(8) + 0.5)
        net.layer.bias.normal_()
    plain, bnn = copy.deepcopy(net), bayesify(net, method, fold=False)
    assert "layer" in dict(bnn.random_layers())
    bnn(x)
    bnn.load_state_dict(bayesify(copy.deepcopy(plain), method).state_dict())  # statistics before the first pass
    torch.manual_seed(1)
    draws = bnn(x, samples=2, coherent=True).outputs
    torch.manual_seed(1)
    if not any(isinstance(module, nn.Dropout) and module.p for module in net.modules()) or not training:
        torch.testing.assert_close(draws, torch.stack([plain(x), plain(x)]), rtol=1e-6, atol=1e-6)
    else:
        assert (draws[0] - draws[1]).abs().max() > 1e-3
        plain(x), plain(x)
    for (name, one), (_, other) in zip(plain.named_buffers(), bnn.net.named_buffers(), strict=True):
        torch.testing.assert_close(one, other, msg=name)
    bnn = pickle.loads(pickle.dumps(bnn)).eval()
    torch.testing.assert_close(bnn(x, samples=3).outputs[2], plain.eval()(x), rtol=1e-6, atol=1e-6)
    restored = unbayesify(bnn)
    assert type(restored.layer) is type(plain.layer)
    torch.testing.assert_close(restored(x), plain(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "layer", [LayerNorm2d(8, "channels_last"), OwnLayerNorm(8, first=False)], ids=["channels last", "own class"]
)
def test_layer_normalizations_over_the_last_dimension_are_recognized(layer):
    net, x = Net(layer).double(), torch.randn(4, 5, 8, dtype=F64)
    expected, bnn = net(x), bayesify(net, MeanField(initial_std=1e-9))
    assert [name for name, _ in bnn.random_layers()] == ["layers.0", "head"]
    torch.testing.assert_close(bnn(x, samples=3).outputs[2], expected, rtol=1e-6, atol=1e-6)


def test_layers_of_one_class_may_be_of_two_kinds():
    """As the normalizations of ConvNeXt in transformers."""
    net, x = Both().double(), torch.randn(4, 3, 6, 6, dtype=F64)
    plain, bnn = copy.deepcopy(net), bayesify(net, MeanField(initial_std=1e-9))
    assert [name for name, _ in bnn.random_layers()] == ["first", "layer", "head", "last"]
    for each in (bnn, pickle.loads(pickle.dumps(bnn)), copy.deepcopy(bnn)):
        torch.testing.assert_close(each(x, samples=3).outputs[2], plain(x), rtol=1e-6, atol=1e-6)


def test_a_class_that_is_registered_after_it_was_recognized_is_what_it_is_registered_as(monkeypatch):
    class Later(RMSNorm):
        pass

    assert "layers.0" in dict(bayesify(Net(Later(8)), MeanField()).random_layers())
    monkeypatch.setitem(layers._TYPES, Later, layers._TYPES[Later])
    kind = register_layer(Later, like=nn.RMSNorm, then=lambda layer, y: -y)
    net, x = Net(Later(8, offset=1.0)), torch.randn(4, 8)
    bnn = bayesify(net, MeanField(initial_std=1e-9))
    assert type(bnn.net.layers[0]) is kind
    expected = bnn.net.head(-F.rms_norm(x, (8,), bnn.net.layers[0].weight, 1e-6))
    torch.testing.assert_close(bnn(x).outputs[0], expected, rtol=1e-5, atol=1e-5)


def test_a_scale_and_shift_that_are_drawn_are_those_before_the_activation():
    torch.manual_seed(0)
    net, x = Images(NormAct(8)).double().eval(), torch.randn(4, 3, 6, 6, dtype=F64)
    plain, bnn = copy.deepcopy(net), bayesify(net, {"layer": EMP(where="*", spread=1.0)})
    bnn(x)
    with captured_weights(bnn) as weights:
        draws = bnn(x, samples=3).outputs
    expected = torch.stack([torch.func.functional_call(plain, each, (x,)) for each in weights[-3:]])
    torch.testing.assert_close(draws, expected)
    assert not torch.allclose(draws[0], draws[1]) or not torch.allclose(draws[0], draws[2])


@pytest.mark.parametrize(
    "layer",
    [
        GhostNorm(8, ghost=256),
        ScaledNorm(8),
        CountingNorm(8),
        NormAct(8, act=nn.PReLU()),
        NormAct(8, scale=1.0),
        OwnLayerNorm(8, first=True).requires_grad_(False),
    ],
    ids=["ghost batches", "scaled", "counting", "learned activation", "a number", "frozen"],
)
def test_normalizations_that_may_do_more_stay_as_they_are(layer):
    bnn = bayesify(Images(layer), MeanField())
    assert [name for name, _ in bnn.random_layers()] == ["first", "head"]


@pytest.mark.parametrize("method", [MeanField(), WHVI(), VSD(), EMP(where="*")], ids=lambda method: type(method).__name__)
def test_checkpoints_of_the_plain_network_load_into_recognized_layers(method):
    layers = [RMSNorm(8), Conv1D(8, 8), OwnLinear(8, 8), LayerNorm2d(8, "channels_last")]
    net = Net(*layers).double()
    checkpoint = {name: value + torch.rand_like(value) for name, value in net.state_dict().items()}
    bnn = bayesify(net, method)
    assert not bnn.net.load_state_dict(checkpoint).missing_keys
    for name, layer in bnn.random_layers():
        if not layer.posterior.drops_weights and not layer.is_replaced:
            torch.testing.assert_close(layer.weight, checkpoint[f"{name}.weight"], msg=name)
    for each in (EMP, WHVI):
        if isinstance(method, each):
            assert any(layer.is_replaced for _, layer in bnn.random_layers())


@pytest.mark.parametrize(("inputs", "is_tried"), [(1200, True), (2**27 // 900 + 1, False)])
def test_layers_are_tried_up_to_a_size(inputs, is_tried):
    """Large ones in single precision."""
    with torch.device("meta"):
        tried = [Spelled(inputs, 900), Standardized(inputs, 900)]
    assert [recognized(layer) is not None for layer in tried] == [is_tried, is_tried]


def test_dropout_of_inputs_follows_the_orientation_of_the_weight():
    """With a single input left, an output is that row of the weight, scaled."""
    torch.manual_seed(0)
    layer = Conv1D(6, 8).double()
    bnn = bayesify(copy.deepcopy(layer), MCDropout(p=0.5))
    outputs = bnn(torch.eye(8, dtype=F64), samples=200).outputs - layer.bias
    kept = outputs.abs().amax(-1) > 1e-12  # (S, 8)
    assert 0.4 < kept.double().mean() < 0.6  # standard error 0.0125
    torch.testing.assert_close(outputs[kept], (2 * layer.weight).expand(200, 8, 6)[kept])


@pytest.mark.parametrize("method", [MeanField(), WHVI(), VSD(), MNF(), EMP()])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_of_a_class_of_its_own_is_linear(method, bias):
    """It has no `in_features`, another orientation of inputs than GPT-2's, and saves its weight as an attribute."""
    layer, x = OwnLinear(5, 3, bias), torch.randn(4, 5)
    bnn, plain = (bayesify(nn.Sequential(each), {"0": method}) for each in (layer, nn.Linear(5, 3, bias)))
    plain.load_state_dict(bnn.state_dict())
    outputs = []
    for each in (bnn, plain):
        torch.manual_seed(2)
        outputs.append(each(x, samples=3).outputs)
    torch.testing.assert_close(*outputs)
    bnn.load_state_dict(plain.state_dict())


def test_registered_linear_layers_need_no_attributes():
    class Activated(OwnLinear):
        def forward(self, x):
            return super().forward(x).tanh()

    register_layer(Activated, like=nn.Linear, then=lambda layer, y: y.tanh())
    assert bayesify(Activated(5, 3), MeanField())(torch.randn(4, 5), samples=2).outputs.abs().max() < 1


@pytest.mark.parametrize(
    "layer",
    [RMSNorm(8, offset=1.0), RMSNorm(8, eps_outside=True), Scaled(8, 8), Bounded(8, 8)],
    ids=["offset", "eps outside", "scaled", "bounded"],
)
def test_layers_with_another_function_are_not(layer):
    bnn = bayesify(Net(layer), MeanField())
    assert [name for name, _ in bnn.random_layers()] == ["head"]
    assert "register_layer" in bnn.report[0].reason


@pytest.mark.parametrize("training", [False, True])
def test_layers_that_do_more_in_training_mode_are_not_recognized(training):
    class Dropping(RMSNorm):
        def forward(self, hidden_states):
            return F.dropout(super().forward(hidden_states), 0.5, self.training)

    bnn = bayesify(Net(Dropping(8)).train(training), MeanField())
    assert [name for name, _ in bnn.random_layers()] == ["head"]


def test_layers_with_further_inputs_are_not_recognized():
    class Masked(nn.Sequential):
        def forward(self, x):
            return self[1](self[0](x, torch.ones(())))

    bnn = bayesify(Masked(WithMask(8), nn.Linear(8, 2)), MeanField())
    assert [name for name, _ in bnn.random_layers()] == ["1"]


def test_layers_that_refuse_other_shapes_are_not_recognized():
    class ByHead(nn.Module):
        """As the normalization of xLSTM."""

        def __init__(self):
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(4)), 1e-5

        def forward(self, x):
            assert x.dim() == 4, "x must be (B, H, T, D)"
            return F.rms_norm(x, (4,), self.weight, self.eps)

    assert recognized(ByHead()) is None
    bnn = bayesify(nn.Sequential(nn.Linear(3, 4), ByHead()), MeanField())
    assert bnn(torch.randn(2, 5, 6, 3), samples=3).outputs.shape == (3, 2, 5, 6, 4)


def test_layers_of_integers_are_not_tried():
    """Those of bitsandbytes warn if they are called with other weights."""
    calls = []

    class Packed(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4, bias=False)
            self.weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.uint8), requires_grad=False)

        def forward(self, x):
            calls.append(x)
            return F.linear(x, self.weight.to(x))

    bnn = bayesify(nn.Sequential(Packed(), nn.Linear(4, 2)), MeanField())
    assert not calls
    assert bnn.report[0].reason == "its weight is not of a real floating point type"


def test_modules_without_a_forward_method_are_left_alone():
    """As the manifolds of geoopt, which parameters refer to."""

    class Manifold(nn.Module):
        forward = NotImplemented

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8, 8))

    net = Net(nn.Identity())
    net.manifold = Manifold()
    bnn = bayesify(net, {"head": MeanField()})
    assert [name for name, _ in bnn.random_layers()] == ["head"]


def test_every_layer_of_a_class_is_verified():
    """Settings differ between layers of a class."""
    bnn = bayesify(Net(RMSNorm(8), RMSNorm(8, offset=1.0)), MeanField())
    assert [name for name, _ in bnn.random_layers()] == ["layers.0", "head"]
    assert "does not compute what other layers of its class do" in bnn.report[1].reason


def test_layers_that_are_alike_are_tried_once(monkeypatch):
    """Alike are those that differ in values of parameters, and of the statistics of a normalization."""
    tried = []
    monkeypatch.setattr(network_trials, "recognized", lambda layer: tried.append(layer) or recognized(layer))
    net = Net(*(RMSNorm(8) for _ in range(3)), *(Spelled(8, 8) for _ in range(3)), Spelled(8, 8, bias=False), RMSNorm(8, eps=1e-5))
    net.layers[1].weight.data.mul_(3)
    net.layers[4].eval()
    bnn = bayesify(net, MeanField())
    assert sorted(map(list(net.layers).index, tried)) == [0, 3, 6, 7]
    assert len(list(bnn.random_layers())) == 9
    acts = [NormAct(8), NormAct(8), NormAct(8, act=nn.ReLU(inplace=False)), NormAct(8, p=0.1), NormAct(8)]
    acts[1].running_mean.fill_(2.0)
    acts[4].drop.eval()
    tried.clear()
    bayesify(nn.Sequential(nn.Conv2d(3, 8, 1), *acts), MeanField())
    assert sorted(map(acts.index, tried)) == [0, 2, 3, 4]


def test_layers_with_buffers_are_each_verified():
    class Masked(nn.Linear):
        def __init__(self, mask):
            super().__init__(8, 8)
            self.register_buffer("mask", mask)

        def forward(self, input):
            return F.linear(input, self.weight * self.mask, self.bias * self.mask[0])

    masked = bayesify(Net(Masked(torch.ones(8, 8)), Masked(torch.zeros(8, 8))), MeanField())
    assert [report.method is not None for report in masked.report] == [True, False, True]


def test_settings_of_other_types_make_layers_differ():
    one, other = Flagged(8, 8), Flagged(8, 8)
    one.scale, other.scale = 1, True
    assert network_trials._function_of(one) != network_trials._function_of(other)


def test_pickles_are_loaded_where_nothing_has_been_recognized(monkeypatch):
    pickled = pickle.dumps(bayesify(Net(RMSNorm(8)), MeanField()))
    for table in (layers._TYPES, layers._RECOGNIZED):
        monkeypatch.delitem(table, RMSNorm)
    bnn = pickle.loads(pickled)
    assert bnn(torch.ones(2, 8)).outputs.shape == (1, 2, 3)
    assert type(unbayesify(bnn).layers[0]) is RMSNorm


@pytest.mark.parametrize("only_in", [None, False, True], ids=["both modes", "eval mode", "training mode"])
@pytest.mark.parametrize("function", NEARLY_LINEAR.values(), ids=NEARLY_LINEAR)
def test_functions_that_differ_at_other_scales_or_in_gradients_are_not_recognized(function, only_in):
    assert recognized(Nearly(F.linear, only_in)).kind is not None
    assert recognized(Nearly(function, only_in)) is None


@pytest.mark.parametrize(
    "mode",
    [lambda layer: layer.is_trained, lambda layer: vars(layer)["training"], lambda layer: copy.copy(layer).training],
    ids=["property", "dict", "copy"],
)
@pytest.mark.parametrize("base", [OutputMajor, nn.Linear])
def test_layers_that_compute_something_else_in_training_mode_are_not_recognized(base, mode):
    """Whichever way they ask for the mode: a trial in the second one is left out if they do not."""

    class Moody(base):
        is_trained = property(lambda layer: layer.training)

        def forward(self, x):
            if mode(self):
                self.weight.data.clamp_(-0.1, 0.1)
            return F.linear(x, self.weight, self.bias)

    assert recognized(Moody(8, 8)) is None


def test_layers_with_attributes_read_past_the_trial_are_tried_in_both_modes():
    class Moody(OutputMajor):
        def __getattribute__(self, name):
            value = super().__getattribute__(name)
            return -1.0 if name == "factor" and super().__getattribute__("training") else value

        def __init__(self, *sizes):
            super().__init__(*sizes)
            self.factor = 1.0

        def forward(self, x):
            return self.factor * F.linear(x, self.weight, self.bias)

    assert recognized(Moody(8, 8)) is None


@pytest.mark.parametrize(
    "function",
    [
        lambda x, layer: F.rms_norm(x.clamp(-1e3, 1e3), (8,), layer.weight, layer.variance_epsilon),
        lambda x, layer: F.rms_norm(x.detach(), (8,), layer.weight, layer.variance_epsilon),
        lambda x, layer: layer.weight * x * (x.square().mean(-1, keepdim=True) + layer.variance_epsilon).rsqrt().detach(),
        lambda x, layer: x.mul_((x.square().mean(-1, keepdim=True) + layer.variance_epsilon).rsqrt()) * layer.weight,
    ],
    ids=["clipped", "detached", "detached statistics", "in place"],
)
def test_normalizations_that_differ_at_other_scales_or_in_gradients_are_not_recognized(function):
    class Nearly(RMSNorm):
        def forward(self, hidden_states):
            return function(hidden_states, self)

    assert recognized(Nearly(8)) is None


@pytest.mark.parametrize("function", NEARLY_LINEAR.values(), ids=NEARLY_LINEAR)
def test_linear_layers_that_are_not_recognized_run_their_own_forward(function):
    """With large weights and inputs, values and gradients are those of the plain network with the drawn weights."""

    class NearlyLinear(nn.Linear):
        def forward(self, input):
            return function(input, self.weight, self.bias)

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 8), NearlyLinear(8, 8)).double()
    bnn = bayesify(copy.deepcopy(plain), MeanField())
    assert isinstance(bnn.net[1], OwnForward)
    with torch.no_grad():
        bnn.net[1].weight.mul_(20.0)
    results, x = [], 1e4 * torch.randn(4, 8, dtype=F64)
    bnn(x)  # examined
    with captured_weights(bnn) as weights:
        outputs = bnn(x, coherent=True).outputs[0]
    drawn = {name: value.detach().requires_grad_() for name, value in weights[0].items()}
    means, expected = dict(bnn.net.named_parameters()), torch.func.functional_call(plain, drawn, (x,))
    for y, leaves in ((outputs, means), (expected, drawn)):
        wanted = [leaves[name] for name in drawn]
        results.append((y, *torch.autograd.grad(y.square().sum(), wanted, allow_unused=True, materialize_grads=True)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


class Quantized(nn.Linear):
    on = False

    def forward(self, input):
        return F.linear(input, (self.weight * 4).round() / 4 if self.on else self.weight, self.bias)


class Gain(nn.Linear):
    gain = 1.0

    def forward(self, input):
        return super().forward(input) * self.gain


class WeightDropped(nn.Linear):
    """As DropConnect, with a probability that grows."""

    p = 0.0

    def forward(self, input):
        return F.linear(input, F.dropout(self.weight, self.p, self.training), self.bias)


@pytest.mark.parametrize(("kind", "name", "value"), [(Quantized, "on", True), (Gain, "gain", 0.1), (WeightDropped, "p", 0.5)])
def test_linear_layers_with_settings_follow_their_changes(kind, name, value):
    bnn, x = bayesify(nn.Sequential(kind(8, 3)).double(), MeanField()), torch.randn(4, 8, dtype=F64)
    bnn(x)
    setattr(bnn.net[0], name, value)
    plain = unbayesify(copy.deepcopy(bnn))
    with captured_weights(bnn) as weights:
        torch.manual_seed(1)
        outputs = bnn(x, coherent=True).outputs[0]
    torch.manual_seed(1)
    bnn.passes.draw([bnn.net[0]])  # the numbers of the weights precede those of dropout
    torch.testing.assert_close(outputs, torch.func.functional_call(plain, weights[0], (x,)))


class Flagged(OutputMajor):
    """A module whose `forward` cannot run with drawn weights."""

    def __init__(self, outputs, inputs):
        super().__init__(outputs, inputs)
        self.scale = 1.0

    def forward(self, x):
        return super().forward(x) * self.scale if not getattr(self, "off", False) else x


@pytest.mark.parametrize(
    ("layer", "name", "value"),
    [
        (Flagged(8, 8), "scale", 0.1),
        (Flagged(8, 8), "off", True),
        (RMSNorm(8), "offset", 1.0),
        (LayerNorm2d(8, "channels_last"), "data_format", "channels_first"),
    ],
    ids=["number", "new attribute", "offset", "order of dimensions"],
)
@pytest.mark.parametrize("is_examined", [False, True])
def test_a_setting_that_changes_after_the_conversion_is_an_error(layer, name, value, is_examined):
    bnn, x = bayesify(Net(copy.deepcopy(layer)), MeanField()), torch.randn(4, 8)
    if is_examined:
        bnn(x)
    for each in (bnn, pickle.loads(pickle.dumps(bnn)), copy.deepcopy(bnn)):
        before = getattr(layer, name, None)
        setattr(each.net.layers[0], name, value)
        with pytest.raises(PassError, match=f"the {name} of a random {type(layer).__name__} was {before!r} at the conversion"):
            each(x)
        setattr(each.net.layers[0], name, before)
        assert each(x).outputs.isfinite().all()


def test_a_setting_of_a_class_that_changes_is_an_error(monkeypatch):
    class OfClass(RMSNorm):
        scale = 1.0

        def forward(self, hidden_states):
            return super().forward(hidden_states) * self.scale

    bnn = bayesify(Net(OfClass(8)), MeanField())
    monkeypatch.setattr(OfClass, "scale", 2.0)
    with pytest.raises(PassError, match=r"the scale of a random OfClass was 1\.0 at the conversion and is 2\.0"):
        bnn(torch.randn(4, 8))


def test_settings_that_the_recognized_layer_uses_too_may_change():
    net, x = Net(RMSNorm(8)).double(), torch.randn(4, 8, dtype=F64)
    bnn = bayesify(net, MeanField(initial_std=1e-9))
    bnn.net.layers[0].variance_epsilon = 0.5
    torch.testing.assert_close(bnn(x).outputs[0], unbayesify(copy.deepcopy(bnn))(x), rtol=1e-6, atol=1e-6)
    bnn = bayesify(Images(NormAct(8)), MeanField())
    bnn.net.layer.momentum, bnn.net.layer.act = None, nn.Identity()
    assert bnn(torch.randn(4, 3, 6, 6)).outputs.isfinite().all()


def test_layers_that_read_what_may_change_unnoticed_are_not_recognized():
    class Configured(RMSNorm):
        def __init__(self, size):
            super().__init__(size)
            self.config = {"scale": 1.0}

        def forward(self, hidden_states):
            return super().forward(hidden_states) * self.config["scale"]

    assert recognized(Configured(8)) is None


def test_layers_that_store_what_others_may_read_are_not_recognized_and_trials_leave_no_trace():
    class Storing(RMSNorm):
        def forward(self, hidden_states):
            self.size = hidden_states.norm()
            return super().forward(hidden_states)

    class Appending(RMSNorm):
        def __init__(self, size):
            super().__init__(size)
            self.sizes = []

        def forward(self, hidden_states):
            self.sizes.append(hidden_states.norm())
            return super().forward(hidden_states)

    layers = Storing(8), Appending(8)
    assert [recognized(layer) for layer in layers] == [None, None]
    assert not hasattr(layers[0], "size")
    assert layers[1].sizes == []
    for layer in (Spelled(8, 8), Conv1D(8, 8), NormAct(8, p=0.5)):
        state = torch.get_rng_state()
        assert recognized(layer) is not None
        assert torch.equal(torch.get_rng_state(), state)


def test_settings_of_recognized_layers_are_compiled_in_one_graph():
    net, x = Net(RMSNorm(8), Flagged(8, 8), LayerNorm2d(8, "channels_last")).double(), torch.randn(4, 8, dtype=F64)
    bnn = bayesify(net, MeanField())
    outputs = []
    for each in (bnn, torch.compile(bnn, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(2)
        outputs.append(each(x, samples=2).outputs)
    torch.testing.assert_close(*outputs)
    bnn.net.layers[1].scale = 0.1
    with pytest.raises(Exception, match="the scale of a random Flagged"):
        torch.compile(bnn, backend="aot_eager")(x, samples=2)
