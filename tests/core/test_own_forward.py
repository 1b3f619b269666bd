"""Linear layers and convolutions with a `forward` of their own: it runs with drawn weights, or the layer stays deterministic."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import functional_call

from bayesify import (
    DVI,
    EMP,
    SLANG,
    SNGP,
    VIFO,
    VOGN,
    VSD,
    WHVI,
    BatchEnsemble,
    Laplace,
    MCDropout,
    MeanField,
    NoisyKFAC,
    SpectralNorm,
    VariationalDropout,
    bayesify,
    unbayesify,
)
from bayesify.core.layers.own_forward import OwnForward
from bayesify.diagnostics import spectrum
from bayesify.errors import NothingRandomError
from bayesify.testing.trial import captured_weights

F64 = torch.float64


class Standardized(nn.Conv2d):
    """As in BiT: the weight of every output channel has mean 0 and variance 1."""

    def forward(self, x):
        weight = F.batch_norm(self.weight.reshape(1, self.out_channels, -1), None, None, training=True, momentum=0.0, eps=1e-6)
        return F.conv2d(x, weight.reshape_as(self.weight), self.bias, self.stride, self.padding, self.dilation, self.groups)


class Scaled(Standardized):
    """As in NFNet: with a factor of every output channel."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.gain = nn.Parameter(torch.rand(self.out_channels, 1, 1, 1) + 0.5)

    def forward(self, x):
        return super().forward(x) * self.gain.view(1, -1, 1, 1)


class Same(nn.Conv2d):
    """As in TensorFlow: as much padding as the size of the input asks for, more of it at the end."""

    def forward(self, x):
        rest = [max((-(-n // s) - 1) * s + k - n, 0) for n, s, k in zip(x.shape[-2:], self.stride, self.kernel_size, strict=True)]
        x = F.pad(x, [rest[1] // 2, rest[1] - rest[1] // 2, rest[0] // 2, rest[0] - rest[0] // 2])
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class Masked(nn.Linear):
    """As in autoregressive flows."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.register_buffer("mask", torch.ones(outputs, inputs).tril())

    def forward(self, x):
        return F.linear(x, self.mask * self.weight, self.bias)


class Equalized(nn.Linear):
    """As in StyleGAN: a factor that depends on the number of inputs, and an activation of its own."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.act = nn.LeakyReLU(0.2)

    def forward(self, x):
        return self.act(F.linear(x, self.weight * self.in_features**-0.5, self.bias))


class Remembering(nn.Linear):
    """It computes its weight once in eval mode."""

    kept = None

    def forward(self, x):
        if self.training or self.kept is None:
            self.kept = self.weight / self.weight.norm()
        return F.linear(x, self.kept, self.bias)


class Storing(nn.Linear):
    """What it stores may be of consequence at another time."""

    def forward(self, x):
        self.last = x
        return 2 * super().forward(x)


class Counting(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return 2 * super().forward(x)


class Bounded(nn.Linear):
    """It changes its weight in place."""

    def forward(self, x):
        with torch.no_grad():
            self.weight.clamp_(-0.1, 0.1)
        return super().forward(x)


class Stored(nn.Linear):
    """It takes its weight from where PyTorch stores it."""

    def forward(self, x):
        return F.linear(x, 2 * self._parameters["weight"], self.bias)


class Unused(nn.Linear):
    """Its outputs do not depend on its weight."""

    def forward(self, x):
        return x[..., : self.out_features] + 0 * super().forward(x)


class Adapted(nn.Linear):
    """An adapter has weights of its own, of which there would be no posterior."""

    def __init__(self, inputs, outputs, rank=2):
        super().__init__(inputs, outputs)
        self.down, self.up = nn.Parameter(torch.randn(rank, inputs)), nn.Parameter(torch.randn(outputs, rank))

    def forward(self, x):
        return super().forward(x) + x @ self.down.T @ self.up.T


class Nested(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.inner = nn.Linear(outputs, outputs)

    def forward(self, x):
        return self.inner(super().forward(x))


class Conditional(nn.Linear):
    def forward(self, x, scale=1.0):
        return scale * super().forward(x)


def _name(method):
    return type(method).__name__


def _net():
    torch.manual_seed(1)
    convolutions = Same(2, 4, 3, stride=2), Scaled(4, 4, 3, padding=1, groups=2), nn.ReLU(), Standardized(4, 3, 2)
    return nn.Sequential(*convolutions, nn.Flatten(), Equalized(12, 5), Masked(5, 3)).double()


_X = torch.randn(4, 2, 5, 5, dtype=F64, generator=torch.Generator().manual_seed(3))
_NAMES = ["0", "1", "3", "5", "6"]
_METHODS = [MeanField(), MeanField(noise="flipout"), VariationalDropout(), VSD(), MCDropout(p=0.3), EMP(), BatchEnsemble(), WHVI()]


@pytest.mark.parametrize("method", _METHODS, ids=_name)
@pytest.mark.parametrize("training", [False, True])
def test_outputs_are_those_of_plain_layers_with_the_drawn_weights(method, training):
    plain = _net().train(training)
    bnn = bayesify(copy.deepcopy(plain), dict.fromkeys(_NAMES, method))
    assert [name for name, _ in bnn.random_layers()] == _NAMES
    bnn(_X, samples=3)  # examined
    with captured_weights(bnn) as weights:
        outputs = bnn(_X, samples=3).outputs
    for s in range(3):
        torch.testing.assert_close(outputs[s], functional_call(plain, weights[s], (_X,)))
    assert not torch.allclose(outputs[0], outputs[-1])


def test_gradients_of_means_are_those_of_the_drawn_weights():
    plain = _net()
    bnn = bayesify(copy.deepcopy(plain), MeanField())
    bnn(_X)  # examined
    with captured_weights(bnn) as weights:
        bnn(_X).outputs.square().sum().backward()
    drawn = {name: value.requires_grad_() for name, value in weights[0].items()}
    functional_call(plain, drawn, (_X,)).square().sum().backward()
    for name, value in drawn.items():
        torch.testing.assert_close(bnn.net.get_parameter(name).grad, value.grad)


def test_moments_of_outputs_are_those_of_weights_drawn_by_hand():
    """Noise of outputs, as if they were linear in the weight, would have another variance."""
    plain = nn.Sequential(Standardized(2, 3, 3)).double()
    bnn = bayesify(copy.deepcopy(plain), MeanField(initial_std=0.5))
    layer, draws = bnn.net[0], 4000
    generator, by_hand = torch.Generator().manual_seed(5), []
    x = _X[:2, :, :4, :4]
    with torch.no_grad():
        for _ in range(draws):
            weights = {
                f"0.{name}": getattr(layer, name)
                + getattr(layer.posterior, f"{name}_log_std").exp() * torch.randn(shape, generator=generator, dtype=F64)
                for name, shape in (("weight", (3, 2, 3, 3)), ("bias", (3,)))
            }
            by_hand.append(functional_call(plain, weights, (x,)))
        outputs, expected = bnn(x, samples=draws).outputs, torch.stack(by_hand)
    error = (outputs.var(0) + expected.var(0)).sqrt() / draws**0.5
    assert ((outputs.mean(0) - expected.mean(0)).abs() < 5 * error).all()
    torch.testing.assert_close(outputs.std(0), expected.std(0), rtol=0.08, atol=0.0)  # standard error 0.016


def test_rows_of_a_draw_share_a_weight():
    x = _X[:1].expand(4, -1, -1, -1)
    outputs = bayesify(_net(), MeanField())(x, samples=2).outputs
    torch.testing.assert_close(outputs, outputs[:, :1].expand_as(outputs))


def test_what_is_saved_loaded_copied_and_restored():
    plain = _net()
    bnn = bayesify(copy.deepcopy(plain), MeanField())
    nn.init.normal_(plain[5].weight)
    bnn.net.load_state_dict(plain.state_dict(), strict=False)
    for other in (copy.deepcopy(bnn), pickle.loads(pickle.dumps(bnn))):
        outputs = []
        for each in (bnn, other):
            torch.manual_seed(2)
            outputs.append(each(_X, samples=2).outputs)
        torch.testing.assert_close(*outputs, rtol=0.0, atol=0.0)
    drawn = bnn.sample_network(seed=0)
    assert [type(layer) for layer in drawn] == [type(layer) for layer in plain]
    assert not torch.allclose(drawn(_X), plain(_X))
    restored = unbayesify(bnn)
    assert [vars(layer).keys() for layer in restored] == [vars(layer).keys() for layer in plain]
    torch.testing.assert_close(restored(_X), plain(_X), rtol=0.0, atol=0.0)


def test_compiled_in_one_graph_and_once():
    bnn, counter = bayesify(_net(), MeanField()), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(bnn, fullgraph=True, backend=counter)
    outputs = []
    for each in (bnn, compiled, compiled):
        torch.manual_seed(2)
        outputs.append(each(_X, samples=2).outputs)
    torch.testing.assert_close(outputs[1], outputs[0])
    torch.testing.assert_close(outputs[2], outputs[0])
    assert counter.frame_count == 1


@pytest.mark.parametrize("kind", [Remembering, Storing, Counting, Bounded, Stored, Unused, Adapted, Nested, Conditional])
def test_layers_that_do_not_compute_with_given_weights_alone_stay_as_they_are(kind):
    layer = kind(4, 4)
    state = copy.deepcopy(layer.state_dict())
    bnn = bayesify(nn.Sequential(layer, nn.Linear(4, 2)), MeanField())
    assert "0" not in dict(bnn.random_layers())
    assert getattr(layer, "calls", 0) == 0
    assert bnn.report[0].reason == "a subclass of Linear that overrides forward; see register_layer(..., like=..., then=...)"
    assert all(torch.equal(layer.get_parameter(name), value) for name, value in state.items() if name != "calls")


def test_layers_of_a_class_that_differ_in_settings_are_tried_one_by_one():
    class Chosen(nn.Linear):
        remembers, kept = False, None

        def forward(self, x):
            if self.remembers and self.kept is None:
                self.kept = self.weight / self.weight.norm()
            return F.linear(x, self.kept if self.remembers else self.weight, self.bias)

    net = nn.Sequential(Chosen(3, 3), Chosen(3, 3))
    net[1].remembers = True
    bnn = bayesify(net, MeanField())
    assert bnn.report[0].reason == ""
    assert bnn.report[1].reason == "it does not compute what other layers of its class do; see register_layer"


def test_a_frozen_weight_stays_frozen_although_a_factor_of_it_is_trained():
    net = _net()
    net[1].weight.requires_grad_(False)
    net[1].bias.requires_grad_(False)
    bnn = bayesify(net, MeanField())
    assert [name for name, _ in bnn.random_layers()] == ["0", "3", "5", "6"]
    assert bnn.report[1].reason == "it is frozen; a pattern that names it makes it random"


@pytest.mark.parametrize("method", [Laplace(), NoisyKFAC(), VOGN(), SLANG(), SpectralNorm(), SNGP(), DVI(), VIFO()], ids=_name)
def test_methods_that_are_right_only_for_linear_layers_refuse(method):
    with pytest.raises(NothingRandomError, match=f"{_name(method)} needs layers that are linear in their weight, and Masked has"):
        bayesify(nn.Sequential(Masked(4, 3)), {"0": method})


def test_other_layers_of_a_network_become_random_with_these_methods():
    bnn = bayesify(nn.Sequential(Masked(4, 3), nn.Linear(3, 2)), SLANG())
    assert [name for name, _ in bnn.random_layers()] == ["1"]


def test_layers_that_compute_what_a_supported_one_does_need_not_draw_weights():
    class Spelled(nn.Linear):
        def forward(self, x):
            return x @ self.weight.T + self.bias

    net = bayesify(nn.Sequential(nn.Conv2d(2, 3, 1), nn.Flatten(), Spelled(12, 3), Masked(3, 3)), MeanField()).net
    assert [isinstance(layer, OwnForward) for layer in net] == [False, False, False, True]


def test_spectra_leave_out_weights_that_are_not_those_of_the_operator():
    bnn = bayesify(nn.Sequential(Masked(4, 3), nn.Linear(3, 2)), MeanField())
    assert [row.name for row in spectrum(bnn)] == ["1"]
