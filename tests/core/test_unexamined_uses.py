"""What a network does otherwise than in the passes that examined it: branches, caches, and what it remembers of its passes."""

import copy
import dataclasses
import functools
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from bayesify import EMP, WHVI, BatchEnsemble, Bayesian, BayesifyWarning, MCDropout, MeanField, Method, bayesify, unbayesify
from bayesify.errors import PassError
from bayesify.testing.trial import captured_weights

pytestmark = pytest.mark.filterwarnings("ignore:every draw takes a separate pass")
METHODS = [MeanField(initial_std=0.3), MCDropout(p=0.5), EMP(where="*", prior_std=1.0), WHVI(), BatchEnsemble()]
INPUT = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Net(nn.Module):
    """Computes with the weights of two layers where a function of itself and the input says so, and calls them elsewhere."""

    def __init__(self, reads: Callable[[nn.Module, Tensor], Any], mixes: Callable[..., Any] = lambda *_: False) -> None:
        super().__init__()
        self.first, self.second, self.reads, self.mixes, self.flag = nn.Linear(4, 8), nn.Linear(8, 2), reads, mixes, False

    def forward(self, x: Tensor, *how: Any) -> Tensor:
        if self.reads(self, x):
            h = F.linear(x, self.first.weight, self.first.bias).tanh()
            return F.linear(h, self.second.weight, self.second.bias)
        h = self.first(x).tanh()
        return self.second(h - h.mean(0) if self.mixes(self, x, *how) else h)


def _never(net: nn.Module, x: Tensor) -> bool:
    return False


def _made(net: nn.Module, method: Method) -> tuple[Bayesian, nn.Module]:
    torch.manual_seed(0)
    plain = copy.deepcopy(net.double())
    bnn = bayesify(net, method)
    return bnn.eval(), unbayesify(copy.deepcopy(bnn)).train(plain.training)


def _check_draws(bnn: Bayesian, plain: nn.Module, *inputs: Any, samples: int, coherent: bool = True) -> None:
    """Draws are the plain network with their weights, and differ."""
    plain.train(bnn.training)
    with captured_weights(bnn) as weights:
        draws = bnn(*inputs, samples=samples, coherent=coherent).outputs
    for drawn, weight in zip(draws, weights[-samples:], strict=True):
        torch.testing.assert_close(drawn, functional_call(plain, weight, inputs))
    assert samples == 1 or float((draws[0] - draws[1]).detach().abs().max()) > 1e-3


READS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "in training": lambda net, x: net.training,
    "for large values": lambda net, x: x.abs().max() > 4,
    "for long sequences": lambda net, x: x.dim() == 3 and x.shape[1] > 6,
    "after a change": lambda net, x: net.flag,
    "with gradients": lambda net, x: torch.is_grad_enabled(),
}


def _reaches(bnn: Bayesian, case: str) -> Tensor:
    """Make the network take the branch in its next pass, for the returned input."""
    bnn(torch.randn(6, 5, 4).double() if case == "for long sequences" else INPUT, samples=2)
    bnn.train(case == "in training")
    bnn.net.flag = True
    return {"for large values": 9 * INPUT, "for long sequences": torch.randn(6, 9, 4).double()}.get(case, INPUT)


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("case", READS)
def test_weights_that_are_read_in_a_new_branch_are_those_of_the_draw(case, samples):
    bnn, plain = _made(Net(READS[case]), MeanField(initial_std=0.3))
    x = _reaches(bnn, case)
    plain.flag = True
    _check_draws(bnn, plain, x, samples=samples)
    assert any("reads the weights" in finding or "decides by values" in finding for finding in bnn.findings)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_weights_that_are_read_in_training_alone_are_random(method):
    bnn, _ = _made(Net(READS["in training"]), method)
    bnn(INPUT)
    bnn.train()
    draws = torch.cat([bnn(INPUT).outputs.detach() for _ in range(8)])
    assert float(draws.std(0).max()) > 1e-3


def test_a_weight_that_is_looked_at_in_training_stays_folded(recwarn):
    bnn, plain = _made(Net(lambda net, x: net.training and net.first.weight.dtype == torch.float32), MeanField(initial_std=0.3))
    bnn.train()
    _check_draws(bnn, plain, INPUT, samples=3)
    assert not recwarn


@pytest.mark.extended
def test_an_exported_network_that_was_not_examined_draws_the_weights_it_reads():
    bnn, _ = _made(Net(lambda net, x: True), MeanField(initial_std=0.3))

    class Draws(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bnn = bnn

        def forward(self, x: Tensor) -> Tensor:
            return self.bnn(x, samples=8).outputs

    draws = torch.export.export(Draws(), (INPUT,)).module()(INPUT)
    assert float(draws.std(0).mean()) > 0.01


class Fused(nn.Module):
    """Computes with a product of weights that is computed once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.product = nn.Linear(4, 8, bias=False), nn.Linear(8, 2, bias=False), None

    def forward(self, x: Tensor) -> Tensor:
        if self.product is None:
            self.product = self.second.weight @ self.first.weight
        return F.linear(x, self.product)


def test_results_of_weights_that_are_kept_in_an_attribute_are_refused():
    bnn, _ = _made(Fused(), MeanField())
    with pytest.raises(PassError, match="keeps results of random layers"):
        bnn(INPUT)


def test_results_of_weights_that_are_kept_elsewhere_are_told():
    class Remembering(Fused):
        def __init__(self) -> None:
            super().__init__()
            self.weights = functools.lru_cache(lambda: self.second.weight @ self.first.weight)

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weights())

    bnn, _ = _made(Remembering(), MeanField())
    with pytest.warns(BayesifyWarning, match="does not use 'first', 'second' in a second pass .* draws mix"):
        bnn(INPUT)


class Memory(nn.Module):
    """Standardizes inputs by its first batch, and counts its passes in every way."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.mean, self.steps = nn.Linear(4, 2), None, 0
        self.sizes, self.by_size, self.seen = [], {0: 0}, {0}
        self.average = torch.zeros(())
        self.register_buffer("last", torch.zeros(()))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.mean is None:
            self.mean = x.mean(0)
        self.steps += 1
        self.sizes.append(len(x))
        self.by_size[len(x)] = self.steps
        self.seen.add(len(x))
        self.average.add_(1)
        self.last = x.new_tensor(float(len(x)))
        self.count.add_(1)
        self.another = self.steps
        return self.layer(x - self.mean)


def test_an_examination_leaves_no_trace_in_attributes():
    bnn, _ = _made(Memory(), MeanField())
    bnn(INPUT)
    net = bnn.net
    torch.testing.assert_close(net.mean, INPUT.mean(0))
    assert (net.steps, net.sizes, net.by_size, net.seen, net.another) == (1, [6], {0: 0, 6: 1}, {0, 6}, 1)
    assert (float(net.average), float(net.last), float(net.count)) == (1, 6, 1)


COMPARISONS = {
    "equal": lambda mask: torch.equal(mask, torch.ones_like(mask)),
    "allclose": lambda mask: torch.allclose(mask, torch.ones_like(mask)),
    "is_nonzero": lambda mask: torch.is_nonzero(mask.min()),
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_of_tensors_are_decisions(name):
    decides = COMPARISONS[name]
    bnn, plain = _made(Net(_never, lambda net, x, mask: not decides(mask)), MeanField(initial_std=0.3))
    bnn(INPUT, torch.ones(6), samples=3)
    _check_draws(bnn, plain, INPUT, torch.tensor([1.0, 1, 0, 1, 1, 1]), samples=3)


def test_one_draw_has_no_noise_per_row_in_a_branch_that_mixes_rows():
    bnn, plain = _made(Net(_never, lambda net, x: x.mean() < 0), MeanField(initial_std=0.3))
    bnn(INPUT.abs())
    _check_draws(bnn, plain, -INPUT.abs(), samples=1, coherent=False)


def test_networks_that_decide_ever_otherwise_are_not_examined_each_time(monkeypatch):
    bnn, plain = _made(Net(_never, lambda net, x: not [bool(value > 0) for value in x[:2].flatten()]), MeanField(initial_std=0.3))
    examined: list[bool] = []
    examine = bnn._examine
    monkeypatch.setattr(bnn, "_examine", lambda *args, **kwargs: examined.append(True) or examine(*args, **kwargs))
    for i in range(30):
        x = INPUT.clone()
        x[:2] = torch.tensor([(i >> bit & 1) - 0.5 for bit in range(8)]).view(2, 4)
        bnn(x, samples=2)
    assert len(examined) <= 20
    _check_draws(bnn, plain, INPUT, samples=2)


@dataclasses.dataclass(frozen=True)
class Options:
    center: bool = False


SETTINGS: dict[str, tuple[Any, Any, Callable[[Any], bool]]] = {
    "dataclass": (Options(), Options(True), lambda how: how.center),
    "namespace": (SimpleNamespace(center=False), SimpleNamespace(center=True), lambda how: how.center),
    "set": (set(), {"center"}, lambda how: "center" in how),
    "NumPy's bool": (np.bool_(False), np.bool_(True), bool),
    "NumPy's integer": (np.int64(0), np.int64(1), bool),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_other_settings_are_examined(name):
    off, on, decides = SETTINGS[name]
    bnn, plain = _made(Net(_never, lambda net, x, how: decides(how)), MeanField(initial_std=0.3))
    _check_draws(bnn, plain, INPUT, off, samples=3)
    _check_draws(bnn, plain, INPUT, on, samples=3)


def test_batch_normalization_in_training_mode_inside_a_network_in_eval_mode():
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    bnn, plain = _made(net, {"0": MeanField(initial_std=0.3), "2": MeanField(initial_std=0.3)})
    bnn(INPUT, samples=3)
    for root in (bnn.net, plain):
        root[1].train()
    with captured_weights(bnn) as weights, warnings.catch_warnings():
        warnings.simplefilter("ignore", BayesifyWarning)
        draws = bnn(INPUT, samples=3, coherent=True).outputs
    for drawn, weight in zip(draws, weights[-3:], strict=True):
        torch.testing.assert_close(drawn, functional_call(plain, weight, (INPUT,)))


@pytest.mark.parametrize("is_leaf", [True, False])
def test_derivatives_by_an_input_are_those_of_functions(is_leaf):
    bnn, plain = _made(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), MeanField(initial_std=0.3))
    x = INPUT.clone().requires_grad_()
    with captured_weights(bnn) as weights:
        y = bnn(x if is_leaf else 1 * x).outputs[0]
    (slope,) = torch.autograd.grad(y.sum(), x)
    (expected,) = torch.autograd.grad(functional_call(plain, weights[-1], (x,)).sum(), x)
    assert torch.allclose(slope, expected) == is_leaf, "of other inputs, gradients pass through noise for every row"
