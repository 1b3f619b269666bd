"""Networks that could differ from the plain network with the weights of a draw, without an error: each is right, or announced."""

import copy
import enum
import re
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from bayesify import (
    EMP,
    SNGP,
    VSD,
    WHVI,
    Deterministic,
    Gaussian,
    MCDropout,
    MeanField,
    Method,
    TensorFactorized,
    bayesify,
    predict,
    summary,
)
from bayesify.core.model import Bayesian
from bayesify.core.switches import observer
from bayesify.errors import BayesifyWarning, ConfigurationError, DataError, PassError
from bayesify.testing.trial import captured_weights, require_equal_moments


class Net(nn.Module):
    """Computes with two linear layers as a function says, which keeps what it likes in `memory`."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.score = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(4, 1)
        self.function, self.memory = function, Memory()
        self.register_buffer("average", torch.zeros(6))

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self, *inputs)


class Center(enum.Enum):
    NO, YES = 1, 2


class Memory:
    """What a network keeps where attributes of modules do not show it."""

    hidden: Tensor | None = None


def _inputs(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _nets(function: Callable[..., Tensor]) -> tuple[nn.Module, Bayesian]:
    """The plain network and the Bayesian one, with a standard deviation of the weights of 0.4."""
    torch.manual_seed(5)
    net = Net(function).double().eval()
    return net, bayesify(copy.deepcopy(net), {"first": MeanField(initial_std=0.4), "second": MeanField(initial_std=0.4)}).eval()


def _require_right(net: nn.Module, bnn: Bayesian, *inputs: Any) -> None:
    """Require that coherent draws are the plain network with their weights."""
    with captured_weights(bnn) as weights, torch.no_grad():
        draws = bnn(*inputs, samples=4, coherent=True).outputs
        expected = torch.stack([functional_call(net, each, inputs) for each in weights[-4:]])
    torch.testing.assert_close(draws, expected, rtol=1e-6, atol=1e-8)


def _gated(net: Any, x: Tensor) -> Tensor:
    hidden = net.first(x)
    return net.second(hidden * (hidden.mean(0) > 0))


def _clipped(net: Any, x: Tensor) -> Tensor:
    hidden = net.first(x)
    return net.second(hidden.tanh()) / hidden.abs().max().clamp(min=50)


def _branching(net: Any, x: Tensor) -> Tensor:
    hidden = net.first(x)
    return net.second(hidden - hidden.mean(0) if x.mean() < 0 else hidden)


def _sorted(net: Any, x: Tensor, keys: Tensor) -> Tensor:
    order = keys.argsort(stable=True)
    return net.second(net.first(x[order]).tanh()[order.argsort()])


def _sorted_by_scores(net: Any, x: Tensor) -> Tensor:
    return _sorted(net, x, net.first(1e-3 * x)[:, 0])  # the bias decides, which is that of the draw


@pytest.mark.parametrize(
    ("function", "batches"),
    [
        (_gated, [(_inputs(6),), (_inputs(6, 1),), (_inputs(9, 2),)]),
        (_clipped, [(_inputs(6),), (100 * _inputs(6),)]),  # rows affect each other in the second batch only
        (_branching, [(_inputs(6).abs(),), (-_inputs(6).abs(),), (_inputs(6).abs(),)]),
        (_sorted, [(_inputs(6), torch.full((6,), 2)), (_inputs(6, 1), torch.tensor([3, 1, 2, 3, 1, 2]))]),
        (_sorted_by_scores, [(_inputs(6),), (_inputs(6, 1),), (_inputs(9, 2),)]),
    ],
)
@pytest.mark.filterwarnings("ignore::bayesify.errors.BayesifyWarning")
def test_coupling_that_the_first_batch_does_not_show(function, batches) -> None:
    net, bnn = _nets(function)
    for _ in range(3):
        for inputs in batches:
            _require_right(net, bnn, *inputs)


@pytest.mark.filterwarnings("ignore::bayesify.errors.BayesifyWarning")
@pytest.mark.parametrize(
    "settings",
    [(False, True), ("none", "batch"), (0, 1), (0.0, 0.5), (None, 2.0), ({"center": False}, {"center": True}), tuple(Center)],
    ids=str,
)
def test_coupling_that_another_argument_switches_on(settings: tuple[Any, Any]) -> None:
    def centered(net: Any, x: Tensor, setting: Any) -> Tensor:
        hidden = net.first(x)
        return net.second(hidden - hidden.mean(0) if setting == settings[1] else hidden)

    net, bnn = _nets(centered)
    for setting in (*settings, *settings):
        _require_right(net, bnn, _inputs(6), setting)


@pytest.mark.filterwarnings("ignore::bayesify.errors.BayesifyWarning")
def test_a_sort_that_keeps_rows_in_place_is_named() -> None:
    _, bnn = _nets(_sorted)
    bnn(_inputs(6), torch.full((6,), 2), samples=2)  # of equal keys
    assert "the network sorts the rows of its batch" in str(summary(bnn))


@pytest.mark.filterwarnings("error::bayesify.errors.BayesifyWarning")
def test_branches_whose_rows_are_independent_fold() -> None:
    def padded(net: Any, x: Tensor) -> Tensor:
        return net.second(net.first(x).tanh() if (x > 0).all() else net.first(x * 2).relu())

    net, bnn = _nets(padded)
    for x in (_inputs(6).abs(), _inputs(6), _inputs(6, 1).abs(), _inputs(5)):
        _require_right(net, bnn, x)
    calls: list[None] = []
    bnn.net.register_forward_hook(observer(lambda *_: calls.append(None)))
    bnn(_inputs(6), samples=4)
    assert len(calls) == 1


@pytest.mark.filterwarnings("ignore::bayesify.errors.BayesifyWarning")
def test_predictions_of_other_branches() -> None:
    """The branch is decided before the first random layer, whose result is replayed."""

    def centered(net: Any, x: Tensor) -> Tensor:
        score = net.score(x).tanh()
        hidden = net.first(x * score)
        return net.second(hidden - hidden.mean(0) if x.mean() < 0 else hidden)

    torch.manual_seed(5)
    bnn = bayesify(Net(centered).double(), {"first": MeanField(), "second": MeanField()}).eval()
    x = torch.cat([_inputs(3).abs(), _inputs(3).abs()])
    for other in (x, torch.cat([x[:3], -9 * x[3:]])):  # of which a few rows decide as before
        assert "affect each other" not in str(summary(bnn))
        predict(bnn, other, Gaussian(std=1.0), samples=6, chunk=3, seed=0)
    assert "affect each other" in str(summary(bnn))


@pytest.mark.parametrize("sign", [1, -1])
def test_coupling_that_begins_beyond_a_bound_on_either_side(sign: int) -> None:
    def bounded(net: Any, x: Tensor) -> Tensor:
        """The sum over the batch has the sign of the bias of `first`, and passes its bound only with the other one."""
        return net.second(x.new_ones(len(x), 6)) * (sign * net.first(1e-3 * x).sum() > -1e3).to(x)

    torch.manual_seed(5)
    net = Net(bounded).double().eval()
    nn.init.constant_(net.first.bias, sign)
    bnn = bayesify(net, {"first": MeanField(), "second": MeanField()})
    with pytest.warns(BayesifyWarning, match="the rows of a batch affect each other"):
        bnn(_inputs(5), samples=2)


@pytest.mark.filterwarnings("error::bayesify.errors.BayesifyWarning")
@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_extreme_weights_of_another_draw_do_not_separate_independent_rows(rows: int) -> None:
    net, bnn = _nets(lambda net, x: net.second(F.layer_norm(net.first(x), (6,)).relu()).softmax(-1))
    _require_right(net, bnn, _inputs(rows))


def _by_parameters(net: Any, x: Tensor) -> Tensor:
    weight, bias = list(net.first.parameters())[:2]
    return net.second(F.linear(x, weight, bias).tanh())


def _by_functional_call(net: Any, x: Tensor) -> Tensor:
    doubled = {name: 2 * p for name, p in net.first.named_parameters()}
    return net.second(functional_call(net.first, doubled, (x,)).tanh())


def _by_copy(net: Any, x: Tensor) -> Tensor:
    return net.second(copy.deepcopy(net.first)(x) + net.first(x))


def _by_class(net: Any, x: Tensor) -> Tensor:
    return net.second(net.first(x) if type(net.first) is nn.Linear else x.new_zeros(len(x), 6))


@pytest.mark.parametrize("function", [_by_parameters, _by_functional_call, _by_copy, _by_class])
def test_a_layer_that_the_network_does_not_call_as_a_layer_is_named(function) -> None:
    net, bnn = _nets(function)
    with pytest.warns(BayesifyWarning, match=r"does not compute what .* same weights, because of 'first': .* leave them out"):
        bnn(_inputs(5))
    assert "does not compute what it does with plain layers" in str(summary(bnn))
    torch.testing.assert_close(bnn.net.get_parameter("first.weight"), net.get_parameter("first.weight"))  # and is unchanged
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = bayesify(copy.deepcopy(net), {"second": MeanField(initial_std=0.4)}).eval()  # the way out
        _require_right(net, other, _inputs(5))


@pytest.mark.filterwarnings("error::bayesify.errors.BayesifyWarning")
def test_a_normalization_in_lower_precision_than_the_network_is_no_difference() -> None:
    class RMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(4)), 1e-6

        def forward(self, x: Tensor) -> Tensor:
            lower = x.float()
            return self.weight * (lower * torch.rsqrt(lower.square().mean(-1, keepdim=True) + self.eps)).to(x)

    bnn = bayesify(nn.Sequential(RMSNorm(), nn.Linear(4, 2)).double(), MeanField())
    assert len(list(bnn.random_layers())) == 2
    bnn(_inputs(5), samples=2)


@pytest.mark.filterwarnings("error::bayesify.errors.BayesifyWarning")
def test_an_output_of_another_dtype_under_autocast_is_no_difference() -> None:
    class Projection(nn.Module):
        """x @ W has the lower precision, and with the bias float32; `F.linear` keeps the lower one."""

        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight + self.bias

    plain, x = Projection(), _inputs(5).float()
    bnn = bayesify(nn.Sequential(copy.deepcopy(plain)), MeanField(initial_std=1e-6))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = bnn(x, samples=2).outputs
    torch.testing.assert_close(outputs.float(), plain(x).expand(2, -1, -1), rtol=0.02, atol=0.02)


def _penalized(names: Callable[[str], bool]) -> Callable[..., Tensor]:
    """A network that keeps a penalty on parameters, which the outputs do not show."""

    def function(net: Any, x: Tensor) -> Tensor:
        assert next(net.parameters()).dtype == x.dtype
        net.memory.penalty = sum(p.square().sum() for name, p in net.named_parameters() if names(name))
        return net.second(net.first(x).tanh())

    return function


@pytest.mark.parametrize("method", [MeanField(), WHVI(), EMP(), VSD(), SNGP()])
def test_a_penalty_on_parameters_of_posteriors_is_announced(method: Method) -> None:
    net = _nets(_penalized(lambda name: True))[0]
    bnn = bayesify(net, {"second": method}).eval()
    with pytest.warns(BayesifyWarning, match="of the posteriors of 'second'.* names with \"\\.posterior\\.\""):
        bnn(_inputs(5))


@pytest.mark.parametrize("method", [MeanField(), MCDropout(), Deterministic()])
@pytest.mark.filterwarnings("error::bayesify.errors.BayesifyWarning")
def test_a_penalty_on_weights_is_that_of_the_plain_network(method: Method) -> None:
    net, bnn = _nets(_penalized(lambda name: ".posterior." not in name))
    other = bayesify(copy.deepcopy(net), {"second": method}).eval()
    _require_right(net, bnn, _inputs(5))
    torch.testing.assert_close(_penalty(other), _penalty(net))


def _penalty(net: Any) -> Tensor:
    net(_inputs(5))
    return getattr(net, "net", net).memory.penalty.detach()


def _by_name(net: Any, x: Tensor) -> Tensor:
    parameters = dict(net.named_parameters())
    return F.linear(net.first(x).tanh(), parameters["second.weight"], parameters["second.bias"])


def _by_state(net: Any, x: Tensor) -> Tensor:
    return F.linear(net.first(x).tanh(), net.state_dict()["second.weight"], net.second.bias)


def _by_dictionary(net: Any, x: Tensor) -> Tensor:
    return F.linear(net.first(x).tanh(), net.second._parameters["weight"], net.second.bias)


def _in_training_mode(net: Any, x: Tensor) -> Tensor:
    return (_by_name if net.training else _by_attribute)(net, x)


def _by_attribute(net: Any, x: Tensor) -> Tensor:
    return F.linear(net.first(x).tanh(), net.second.weight, net.second.bias)


@pytest.mark.parametrize("method", [WHVI(), TensorFactorized(rank=2), SNGP(), EMP()])
@pytest.mark.parametrize("function", [_by_name, _by_state, _by_dictionary, _in_training_mode])
def test_a_parameter_that_the_method_replaced_is_named(function, method: Method) -> None:
    if function is _in_training_mode and isinstance(method, SNGP):
        function = _by_name  # reading the weight of a Gaussian process is an error in any mode
    net = _nets(function)[0]
    bnn = bayesify(net, {"second": method}).train()
    with pytest.raises(PassError, match=r"takes the weight of 'second' from parameters\(\).* leave the layer out by patterns"):
        bnn(_inputs(5), samples=2)


def test_errors_of_the_network_itself_stay_as_they_are() -> None:
    def failing(net: Any, x: Tensor) -> Tensor:
        return net.second({}["missing"])

    with pytest.raises(KeyError, match="missing"):
        bayesify(_nets(failing)[0], {"second": WHVI()})(_inputs(5))


@pytest.mark.parametrize("method", [WHVI(), EMP()])
def test_outputs_that_cannot_be_split_are_not_blamed_on_a_replaced_parameter(method: Method) -> None:
    def recording(net: Any, x: Tensor) -> Any:
        return SimpleNamespace(y=net.second(net.first(x)))

    with pytest.raises(TypeError, match="returned a SimpleNamespace, whose tensors cannot be separated by draw"):
        bayesify(_nets(recording)[0], {"second": method})(_inputs(5))


@pytest.mark.parametrize("method", [EMP(), Deterministic()])
@pytest.mark.parametrize("samples", [1, 3])
def test_weights_of_point_estimates_may_be_read(method: Method, samples: int) -> None:
    net = _nets(_by_attribute)[0]
    bnn = bayesify(copy.deepcopy(net), {"first": MeanField(), "second": method}).eval()
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        draws = bnn(_inputs(5), samples=samples, coherent=True).outputs
    assert not any("does not compute what it does with plain layers" in str(w.message) for w in caught)
    assert draws.shape == (samples, 5, 3)


def _remembering(net: Any, x: Tensor) -> Tensor:
    hidden = net.first(x)
    before, net.memory.hidden = net.memory.hidden, hidden.detach()
    return net.second(hidden if before is None or before.shape != hidden.shape else hidden + before)


def _averaging(net: Any, x: Tensor) -> Tensor:
    hidden = net.first(x)
    outputs = net.second(hidden - net.average)
    net.average.lerp_(hidden.detach().mean(0), 0.5)
    return outputs


@pytest.mark.parametrize("function", [_remembering, _averaging])
def test_a_network_that_keeps_results_between_calls_is_announced(function) -> None:
    _, bnn = _nets(function)
    with pytest.warns(BayesifyWarning, match="gives other outputs when it is called again with the same inputs and weights"):
        bnn(_inputs(5), samples=2)


def test_a_network_that_differentiates_its_layers_gets_one_function_per_draw() -> None:
    """A gradient with respect to the inputs is not that of the weights if outputs have noise of their own."""

    def forces(net: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = net.second(net.first(x).tanh())[:, :1].sum()
            return torch.autograd.grad(energy, x, create_graph=True)[0]

    net, bnn = _nets(forces)
    x = _inputs(3)
    _require_right(net, bnn, x)
    with torch.no_grad():
        weights = bnn.passes.draw((layers := dict(bnn.random_layers())).values(), 2000)
        drawn = torch.cat([bnn(x, samples=20).outputs.detach() for _ in range(100)])
        expected = []
        for s in range(2000):
            named = {f"{name}.weight": weights[layer][0][s] for name, layer in layers.items()}
            named |= {f"{name}.bias": bias[s] for name, layer in layers.items() if (bias := weights[layer][1]) is not None}
            expected.append(functional_call(net, named, (x,)).detach())
    require_equal_moments(drawn, torch.stack(expected))


def test_a_scripted_submodule_stays_as_it_is() -> None:
    net = nn.Sequential(nn.Linear(4, 6), torch.jit.script(nn.Sequential(nn.Linear(6, 6), nn.Tanh())), nn.Linear(6, 3)).double()
    bnn = bayesify(copy.deepcopy(net), MeanField())
    assert [name for name, _ in bnn.random_layers()] == ["0", "2"]
    _require_right(net, bnn, _inputs(5))


def test_a_scripted_network_is_refused() -> None:
    for make in (torch.jit.script, lambda net: torch.jit.trace(net, _inputs(5).float())):
        with pytest.raises(ConfigurationError, match=r"a scripted network has no layers .* convert the network it was made from"):
            bayesify(make(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))), MeanField())


@pytest.mark.filterwarnings("ignore::bayesify.errors.BayesifyWarning", "ignore::UserWarning")
def test_nested_tensors() -> None:
    def padded(net: Any, x: Tensor) -> Tensor:
        return net.second(net.first(x).to_padded_tensor(0.0).sum(1))

    net, bnn = _nets(padded)
    parts = [_inputs(n) for n in (3, 6, 2)]
    _require_right(net, bnn, torch.nested.nested_tensor(parts, layout=torch.jagged))
    with pytest.raises(DataError, match=re.escape("layout=torch.jagged")):
        bnn(torch.nested.nested_tensor(parts))


def test_a_parametrized_bias_stays_as_it_is() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)).double()
    nn.utils.parametrize.register_parametrization(net[0], "bias", nn.Softplus())
    bnn = bayesify(copy.deepcopy(net), MeanField())
    assert {report.name: report.reason for report in bnn.report}["0"] == "its bias is parametrized"
    _require_right(net, bnn, _inputs(5))


def _convolved(net: Any, x: Tensor, adjacency: Tensor) -> Tensor:
    return net.second((adjacency @ net.first(x)).tanh())


@pytest.mark.filterwarnings("ignore::bayesify.errors.BayesifyWarning")
def test_predictions_of_a_graph_with_a_dense_or_sparse_adjacency_agree() -> None:
    x, adjacency = _inputs(5), torch.softmax(torch.randn(5, 5).double(), -1)
    options: dict[str, Any] = {"samples": 6, "seed": 0, "coherent": True}
    means = []
    for matrix in (adjacency, adjacency.to_sparse(), adjacency.to_sparse_csr()):
        net, bnn = _nets(_convolved)
        _require_right(net, bnn, x, matrix)
        means.append(predict(bnn, [((x, matrix),)], Gaussian(std=1.0), **options).mean)
    torch.testing.assert_close(predict(bnn, (x, adjacency), Gaussian(std=1.0), **options).mean, means[0])
    for mean in means[1:]:
        torch.testing.assert_close(mean, means[0])
    with pytest.raises(DataError, match=re.escape("a sparse tensor (torch.sparse_coo) cannot be; give an iterable of batches")):
        predict(bnn, (x, adjacency.to_sparse()), Gaussian(std=1.0), **options)
