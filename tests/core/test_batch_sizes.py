"""Networks whose code depends on the number of rows, or on numbers taken from the batch: draws are those of single passes."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayesify import EMP, VIFO, Gaussian, MeanField, Method, bayesify, predict, summary
from bayesify.core.model import Bayesian
from bayesify.errors import BayesifyWarning
from bayesify.testing.trial import captured_weights
from bayesify.train import fit

OTHER_SIZE = "the network computes something else of a row among"


class Net(nn.Module):
    """Two linear layers, applied as a function says."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.score, self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 6), nn.Linear(6, 3)
        self.function = function

    def forward(self, *inputs: Any) -> Tensor:
        return self.function(self, *inputs)


def _inputs(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _nets(function: Callable[..., Tensor]) -> tuple[nn.Module, Bayesian]:
    torch.manual_seed(5)
    net, random = Net(function).double().eval(), MeanField(initial_std=0.4)
    return net, bayesify(copy.deepcopy(net), {"first": random, "second": random}).eval()


def _require_right(net: nn.Module, bnn: Bayesian, samples: int, *inputs: Any) -> None:
    """Require that coherent draws are single passes through the plain network with their weights."""
    with captured_weights(bnn) as weights, torch.no_grad():
        draws = bnn(*inputs, samples=samples, coherent=True).outputs
        expected = torch.stack([functional_call(net, each, inputs) for each in weights[-samples:]])
    torch.testing.assert_close(draws, expected, rtol=1e-6, atol=1e-8)


def _passes(bnn: Bayesian, x: Tensor, samples: int) -> int:
    """How often a call runs the network."""
    calls: list[None] = []
    handle = bnn.net.register_forward_hook(lambda *_: calls.append(None))
    bnn(x, samples=samples)
    handle.remove()
    return len(calls)


def _centered_above(net: Any, x: Tensor) -> Tensor:
    hidden = net.first(net.score(x))
    return net.second(hidden - hidden.mean(0) if len(x) > 32 else hidden)


def _centered_below(net: Any, x: Tensor) -> Tensor:
    hidden = net.first(x)
    return net.second(hidden - hidden.mean(0) if 4 <= x.shape[0] < 32 else hidden)


def _centered_if_odd(net: Any, x: Tensor) -> Tensor:
    hidden = net.first(x)
    return net.second(hidden - hidden.mean(0) if len(x) % 2 and len(x) > 3 else hidden)


def _top(net: Any, x: Tensor) -> Tensor:
    hidden = net.first(x)
    return net.second(hidden * (hidden >= hidden.topk(min(len(x), max(8, len(x) // 2)), 0).values[-1]))


def _upper_half(net: Any, x: Tensor) -> Tensor:
    hidden = net.first(x)
    return net.second(hidden * (hidden >= hidden.topk(1 + len(x) // 2, 0).values[-1]))


def _in_chunks(net: Any, x: Tensor) -> Tensor:
    parts = net.first(x).split(max(7, len(x) // 3))
    return torch.cat([net.second(part / part.norm(dim=0) if len(part) > 6 else part) for part in parts])


def _by_position(net: Any, x: Tensor) -> Tensor:
    return net.second(net.first(x) + torch.arange(len(x), dtype=x.dtype).sub(6).relu().unsqueeze(1))


def _noise_scale(net: Any, x: Tensor) -> Tensor:
    return net.second(net.first(x)) / max(1, x.size(0) // 10)


def _alone(net: Any, x: Tensor) -> Tensor:
    hidden = net.first(x)
    return net.second(hidden.softmax(0) if len(x) == 1 else hidden)


def _refusing(net: Any, x: Tensor) -> Tensor:
    return net.second(net.first(x) if len(x) not in (45, 60, 80) else x)  # sizes of several draws below


COUPLED = [
    _refusing,
    _centered_above,
    _centered_below,
    _centered_if_odd,
    _top,
    _upper_half,
    _in_chunks,
    _by_position,
    _noise_scale,
    _alone,
]


@pytest.mark.filterwarnings("ignore::bayesify.errors.BayesifyWarning")
@pytest.mark.parametrize(
    "calls",
    [[(5, 2), (20, 3), (40, 1), (8, 8)], [(40, 2), (5, 9), (1, 3)], [(1, 2), (11, 2), (11, 4), (64, 4)], [(1, 12), (1, 8), (2, 4)]],
    ids=str,
)
@pytest.mark.parametrize("function", COUPLED)
def test_draws_are_single_passes_at_every_size(function: Callable[..., Tensor], calls: list[tuple[int, int]]) -> None:
    net, bnn = _nets(function)
    for rows, samples in calls:
        _require_right(net, bnn, samples, _inputs(rows))


def _by_item(net: Any, x: Tensor) -> Tensor:
    hidden = net.first(x)
    return net.second(hidden - hidden.mean(0) if x.mean().item() < 0 else hidden)


def _by_float(net: Any, x: Tensor) -> Tensor:
    hidden = net.first(x)
    return net.second(hidden / (1 if float(x.sum()) > 0 else hidden.abs().max()))


def _by_list(net: Any, x: Tensor) -> Tensor:
    hidden = net.first(x)
    return net.second(hidden - hidden.mean(0) if min(x[:, 0].tolist()) < 0 else hidden)


def _by_array(net: Any, x: Tensor) -> Tensor:
    hidden = net.first(x)
    return net.second(hidden - hidden.mean(0) if x.numpy().min() < 0 else hidden)


@pytest.mark.parametrize("function", [_by_item, _by_float, _by_list, _by_array])
def test_numbers_taken_from_the_batch(function: Callable[..., Tensor]) -> None:
    net, bnn = _nets(function)
    with pytest.warns(BayesifyWarning, match=r"takes numbers from the values of its batch .*use fold=True"):
        _require_right(net, bnn, 3, _inputs(6).abs())
    for x in (-_inputs(6).abs(), _inputs(9)):
        _require_right(net, bnn, 3, x)


def test_the_warning_names_both_sizes_and_comes_once() -> None:
    net, bnn = _nets(_centered_above)
    with pytest.warns(BayesifyWarning, match=OTHER_SIZE + " 40 rows than among 20 "):
        _require_right(net, bnn, 2, _inputs(20))
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        _require_right(net, bnn, 2, _inputs(21))
    assert OTHER_SIZE in str(summary(bnn))


@pytest.mark.parametrize("rows", [40, 7])
def test_one_draw_of_a_larger_batch_whose_rows_affect_each_other(rows: int) -> None:
    """Noise for every row would have other moments than weights: the variance of h - h.mean(0), with the mean of one draw, is 0."""

    def deviation(net: Any, x: Tensor) -> Tensor:
        hidden = net.first(x)
        return hidden - hidden.mean(0) if len(x) > 6 else hidden

    bnn = bayesify(Net(deviation).double(), {"first": MeanField(initial_std=0.4)})
    x = _inputs(1).expand(rows, 4)
    bnn(x[:4])
    with pytest.warns(BayesifyWarning, match="the rows of a batch affect each other"):
        assert float(bnn(x).outputs.detach().abs().max()) < 1e-12


@pytest.mark.filterwarnings("ignore::bayesify.errors.BayesifyWarning")
def test_predictions_at_sizes_that_the_first_batch_did_not_have() -> None:
    """The part before the first random layer is replayed for B rows; the rest has S*B."""

    def centered(net: Any, x: Tensor) -> Tensor:
        hidden = net.first(net.score(x))
        return net.second(hidden - hidden.mean(0) if len(hidden) > 32 else hidden)

    net, bnn = _nets(centered)
    x = _inputs(20)
    options: dict[str, Any] = {"samples": 8, "chunk": 4, "seed": 0, "coherent": True}
    bnn.net.register_buffer("large", torch.zeros(20_000))  # which is counted in whether replay is worth it
    found = predict(bnn, x, Gaussian(std=1.0), **options).mean
    separate = bayesify(copy.deepcopy(net), {"first": MeanField(initial_std=0.4), "second": MeanField(initial_std=0.4)}, fold=False)
    torch.testing.assert_close(found, predict(separate, x, Gaussian(std=1.0), **options).mean)


@pytest.mark.filterwarnings("error::bayesify.errors.BayesifyWarning")
def test_every_size_is_compared_once() -> None:
    _, bnn = _nets(lambda net, x: net.second(net.first(x).relu()))
    first = _passes(bnn, _inputs(20), 4)
    assert [_passes(bnn, _inputs(20, seed), 4) for seed in (1, 2)] == [1, 1] < [first]
    assert _passes(bnn, _inputs(12), 4) == 4  # two single passes, a folded one, and the call
    assert _passes(bnn, _inputs(12), 4) == 1
    assert _passes(bnn, _inputs(30), 1) == 3  # a pass over few rows, one over all, and the call


def _convolutional() -> nn.Module:
    start = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.4)]
    return nn.Sequential(*start, nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))


@pytest.mark.filterwarnings("error::bayesify.errors.BayesifyWarning", "ignore:parameters of posteriors")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("training", [False, True])
def test_comparisons_leave_no_trace(training: bool, dtype: torch.dtype) -> None:
    """Noise of its own and running averages: no alarm, and outputs, random state and buffers as if nothing had been compared."""
    torch.manual_seed(0)
    bnn: Any = bayesify(_convolutional().to(dtype), {"0": MeanField(), "4": MeanField(), "7": MeanField()}).train(training)
    bnn.net[1].eval()
    x = torch.randn(9, 1, 8, 8).to(dtype)
    results = []
    for samples in (1, 3, 1, 3):
        torch.manual_seed(1)
        results.append((bnn(x, samples=samples).outputs, torch.get_rng_state()))
    for before, after in zip(results[:2], results[2:], strict=True):
        torch.testing.assert_close(before[0], after[0], rtol=0, atol=0)
        assert torch.equal(before[1], after[1])
    torch.testing.assert_close(bnn.net[1].running_mean, torch.zeros(8, dtype=dtype))


@pytest.mark.filterwarnings("ignore::bayesify.errors.BayesifyWarning")
def test_running_statistics_are_those_of_the_passes_alone() -> None:
    torch.manual_seed(0)
    plain: Any = _convolutional()
    bnn: Any = bayesify(copy.deepcopy(plain), {"7": MeanField()}).train()
    x = torch.randn(9, 1, 8, 8)
    plain.train()(x)
    bnn(x)
    for key in ("running_mean", "running_var", "num_batches_tracked"):
        torch.testing.assert_close(getattr(bnn.net[1], key), getattr(plain[1], key))


@pytest.mark.filterwarnings("ignore::bayesify.errors.BayesifyWarning")
def test_fold_true_compares_no_sizes_and_fold_false_is_right() -> None:
    net, _ = _nets(_centered_above)
    bnn = bayesify(copy.deepcopy(net), MeanField(), fold=True).eval()
    _passes(bnn, _inputs(3), 4)
    assert _passes(bnn, _inputs(20), 4) == 1
    bnn = bayesify(copy.deepcopy(net), {"first": MeanField(), "second": MeanField()}, fold=False).eval()
    for rows in (3, 20, 40):
        _require_right(net, bnn, 4, _inputs(rows))


def test_ever_new_numbers_as_arguments() -> None:
    """At most 64 of them are examined; with more, every draw takes a pass of its own, which is right whatever they choose."""

    def step(net: Any, x: Tensor, step: int) -> Tensor:
        hidden = net.first(x)
        return net.second(hidden - hidden.mean(0) if step >= 70 else hidden / (1 + step))

    net, bnn = _nets(step)
    calls: list[None] = []
    bnn.net.register_forward_hook(lambda *_: calls.append(None))
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        for number in range(64):
            bnn(_inputs(5), number)
    with pytest.warns(BayesifyWarning, match="more than 64 different values of arguments that are integers or strings"):
        _require_right(net, bnn, 2, _inputs(5), 64)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        for number in (69, 70, 71, 5, 500):
            _require_right(net, bnn, 2, _inputs(5), number)
        calls.clear()
        for number in range(72, 90):
            bnn(_inputs(5), number)
    assert len(calls) == 18


def test_a_setting_inside_a_dict_or_tuple() -> None:
    def centered(net: Any, x: Tensor, options: Any) -> Tensor:
        hidden = net.first(x)
        setting = options["mode"] if isinstance(options, dict) else options[0]
        return net.second(hidden - hidden.mean(0) if setting in ("batch", 1) else hidden)

    for settings in ([{"mode": "row"}, {"mode": "batch"}], [(0, None), (1, None)]):
        net, bnn = _nets(centered)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BayesifyWarning)
            for setting in (*settings, *settings):
                _require_right(net, bnn, 3, _inputs(6), setting)


@pytest.mark.slow  # compiles
@pytest.mark.filterwarnings("ignore::bayesify.errors.BayesifyWarning")
def test_compiled_code_of_a_network_that_branches_on_its_size() -> None:
    torch.compiler.reset()
    net, bnn = _nets(_centered_above)
    fast: Any = torch.compile(bnn, backend="eager")
    for rows, samples in ((6, 2), (6, 8), (20, 2), (40, 1)):
        torch.manual_seed(3)
        found = fast(_inputs(rows), samples=samples, coherent=True).outputs
        separate = bayesify(
            copy.deepcopy(net), {"first": MeanField(initial_std=0.4), "second": MeanField(initial_std=0.4)}, fold=False
        )
        torch.manual_seed(3)
        torch.testing.assert_close(found, separate.eval()(_inputs(rows), samples=samples, coherent=True).outputs)
    torch.compiler.reset()


class _ShapeError(Exception):
    """Of a user's own."""


@pytest.mark.parametrize("error", [ValueError, AssertionError, KeyError, ZeroDivisionError, AttributeError, _ShapeError])
@pytest.mark.parametrize("method", [MeanField(), EMP(), VIFO()], ids=lambda method: type(method).__name__)
def test_networks_may_raise_anything_for_other_numbers_of_rows(method: Method, error: type[Exception]) -> None:
    class Five(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            if len(x) != 5:
                raise error("five rows, please")
            return self.last(torch.tanh(self.first(x)))

    bnn, x = bayesify(Five(), method), torch.randn(20, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayesifyWarning)
        fit(bnn, (x, x[:, 0]), Gaussian(std=0.3), epochs=1, batch_size=5, accelerator="cpu", progress=False)
        draws = bnn(x[:5], samples=3)
        assert predict(bnn, x[:5], Gaussian(), samples=8, progress=False).mean.shape == (5,)
    assert draws.outputs.shape == (3, 5, 1)
    with pytest.raises(error, match="five rows"):
        bnn(x)


@pytest.mark.filterwarnings("ignore:every draw takes a separate pass")
def test_a_batch_that_the_plain_network_refuses_is_refused() -> None:
    """Frames of clips of two: the rows of two draws would be a multiple of it, where one has an odd number."""

    def shifted(net: Any, x: Tensor) -> Tensor:
        h = net.first(x)
        return net.second(h.view(-1, 2, 6).flip(1).view(h.shape))

    net, bnn = _nets(shifted)
    _require_right(net, bnn, 2, _inputs(4))
    for samples in (1, 2, 4):
        with pytest.raises(RuntimeError, match="invalid for input of size 30"):
            bnn(_inputs(5), samples=samples)
    _require_right(net, bnn, 2, _inputs(6))
