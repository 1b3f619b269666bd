"""Networks that mix rows in states, sizes and values other than those of their first call."""

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from bayesify import BayesifyWarning, MeanField, bayesify, unbayesify
from bayesify.testing.trial import captured_weights

INPUT = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Net(nn.Module):
    """Centers its hidden values over the batch where a function of itself and of the input says so."""

    def __init__(self, mixes: Callable[[Any, Tensor], Any] = lambda net, x: False, bias: bool = True) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8, bias=bias), nn.Linear(8, 2)
        self.mixes, self.flag, self.text, self.count, self.strength = mixes, False, "none", 0, 0.0
        self.part = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).tanh()
        return self.last(self.part(h - h.mean(0) if self.mixes(self, x) else h))


class Center(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h - h.mean(0)


class Gated(nn.Module):
    """A path from other rows behind a gate that is closed before training."""

    def __init__(self, closed: float = 0.0) -> None:
        super().__init__()
        self.first, self.last, self.gate = nn.Linear(4, 8), nn.Linear(8, 2), nn.Parameter(torch.full((8,), closed))
        self.closed = closed

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).tanh()
        return self.last(h + (self.gate - self.closed) * h.mean(0))


class Experts(nn.Module):
    """Experts with a number of places in proportion to the tokens of the batch, that of Switch and GShard; late tokens get none."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.embedding, self.router, self.last = nn.Embedding(20, 8), nn.Linear(8, 4), nn.Linear(8, 2)
        self.experts, self.factor = nn.ModuleList(nn.Linear(8, 8) for _ in range(4)), factor

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).flatten(0, 1)
        p = self.router(x).softmax(-1)
        chosen = F.one_hot(p.argmax(-1), 4).to(p)
        has_place = (chosen.cumsum(0) * chosen).sum(-1) <= self.factor * len(x) / 4
        y = (torch.stack([expert(x) for expert in self.experts], 1) * (chosen * p).unsqueeze(-1)).sum(1)
        return self.last((x + y * has_place.unsqueeze(-1)).view(*tokens.shape, 8).mean(1))


def _made(net: nn.Module) -> Any:
    torch.manual_seed(0)
    return bayesify(net.double(), MeanField(initial_std=0.3)).eval()


def _check_draws(bnn: Any, x: Tensor) -> None:
    """Draws are the plain network with their weights."""
    plain = unbayesify(copy.deepcopy(bnn))
    with captured_weights(bnn) as weights, torch.no_grad():
        draws = bnn(x, samples=4, coherent=True).outputs
        expected = torch.stack([functional_call(plain, weight, (x,)) for weight in weights[-4:]])
    torch.testing.assert_close(draws, expected)


def _train_gate(bnn: Any) -> None:
    bnn.net.gate.data.add_(1.0)


CHANGES: dict[str, tuple[nn.Module, Callable[[Any], object]]] = {
    "flag": (Net(lambda net, x: net.flag), lambda bnn: setattr(bnn.net, "flag", True)),
    "text": (Net(lambda net, x: net.text == "center"), lambda bnn: setattr(bnn.net, "text", "center")),
    "integer": (Net(lambda net, x: net.count == 3), lambda bnn: setattr(bnn.net, "count", 3)),
    "number": (Net(lambda net, x: net.strength > 0.5), lambda bnn: setattr(bnn.net, "strength", 0.7)),
    "hook": (Net(), lambda bnn: bnn.net.first.register_forward_hook(lambda layer, inputs, h: h - h.mean(0))),
    "submodule": (Net(), lambda bnn: setattr(bnn.net, "part", Center())),
    "gate": (Gated(), _train_gate),
    "gate of one": (Gated(1.0), _train_gate),
}


@pytest.mark.filterwarnings("ignore:every draw takes a separate pass", "ignore:12% of the parameters")
@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_the_network_after_its_first_call(name: str) -> None:
    net, change = CHANGES[name]
    bnn = _made(copy.deepcopy(net))
    _check_draws(bnn, INPUT)
    change(bnn)
    _check_draws(bnn, INPUT)


def test_changes_without_effect_on_rows_are_not_told() -> None:
    bnn = _made(Net())
    _check_draws(bnn, INPUT)
    bnn.net.flag, bnn.net.text = True, "other"
    bnn.net.first.register_forward_hook(lambda layer, inputs, h: h * 2)
    _check_draws(bnn, INPUT)


def test_a_network_is_examined_once_in_each_of_two_states() -> None:
    """Flags that change in every call do not make it slow."""
    bnn = _made(Net())
    calls = list[int]()
    for i in range(6):
        bnn.net.flag = i % 2 == 0
        bnn.net.mixes = lambda net, x: calls.append(len(x))  # returns None
        bnn(INPUT, samples=2)
        if i == 1:
            calls.clear()
    assert calls == [12] * 4


def test_counters_are_not_settings() -> None:
    """A network with an attribute that counts its calls is examined a few times."""
    bnn, calls = _made(Net()), list[int]()

    def counted(net: Any, x: Tensor) -> None:
        net.count += 1
        calls.append(len(x))

    bnn.net.mixes = counted
    for _ in range(20):
        bnn.net.count += 1
        bnn(INPUT, samples=2)
    calls.clear()
    for _ in range(20):
        bnn(INPUT, samples=2)
    assert calls == [12] * 20


@pytest.mark.filterwarnings("ignore:every draw takes a separate pass")
def test_longer_sequences() -> None:
    bnn = _made(Net(lambda net, x: x.shape[1] > 7))
    for length in (4, 5, 9, 4, 20):
        _check_draws(bnn, torch.randn(6, length, 4, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore:every draw takes a separate pass")
@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_a_first_call_with_values_that_show_nothing(value: float) -> None:
    bnn = _made(Net(lambda net, x: True, bias=False))
    bnn(torch.full_like(INPUT, value), samples=4)
    _check_draws(bnn, INPUT)


@pytest.mark.parametrize("rows", [0, 6])
def test_values_that_show_nothing_do_not_forbid_to_fold(rows: int) -> None:
    bnn = _made(Net(bias=False))
    assert bnn(torch.zeros_like(INPUT[:rows]), samples=4).outputs.shape == (4, rows, 2)
    calls = list[int]()
    bnn.net.mixes = lambda net, x: calls.append(len(x))  # returns None
    _check_draws(bnn, INPUT)
    calls.clear()
    bnn(INPUT, samples=4)
    assert calls == [24]


@pytest.mark.parametrize("factor", [1.0, 2.0, 3.0])
def test_places_at_experts_in_proportion_to_the_batch(factor: float) -> None:
    """Whatever the first batch takes of them."""
    for seed in range(3):
        torch.manual_seed(seed)
        bnn = _made(Experts(factor))
        with pytest.warns(BayesifyWarning, match="affect each other"):
            bnn(torch.randint(20, (16, 6)), samples=4)
        _check_draws(bnn, torch.full((16, 6), 7))


@pytest.mark.filterwarnings("ignore:every draw takes a separate pass", "ignore:12% of the parameters")
def test_a_closed_gate_stays_closed() -> None:
    """The examination, which opens it, changes neither its value nor the version that autograd has noted."""
    bnn = _made(Gated())
    y = bnn(INPUT.clone().requires_grad_()).outputs.sum()
    bnn(INPUT.expand(2, 6, 4).transpose(0, 1), samples=2)  # of another kind, so it is examined
    y.backward()
    assert not bnn.net.gate.any()
    assert bnn.net.gate.grad is not None


def _above(h: Tensor) -> Tensor:
    """Rows beyond a threshold take from all rows."""
    return torch.where(h.mean(1, keepdim=True).abs() > 2, h + h.mean(0), h)


def _largest_of_batch(h: Tensor) -> Tensor:
    """The largest half of all values of the batch, as in sparse autoencoders."""
    return torch.where(h >= h.flatten().topk(h.numel() // 2)[0][-1], h, 0.1 * h).relu()


class Applied(nn.Module):
    """Applies a function to its hidden values."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(4, 8), nn.Linear(8, 2), function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


@pytest.mark.parametrize("seed", range(4))
def test_rows_beyond_a_threshold_take_from_others(seed: int) -> None:
    """None of the first batch is."""
    torch.manual_seed(seed)
    bnn = _made(Applied(_above))
    with pytest.warns(BayesifyWarning, match="affect each other"):
        _check_draws(bnn, 0.1 * INPUT)
    _check_draws(bnn, 10 * INPUT)


@pytest.mark.parametrize("seed", range(10))
def test_values_that_compete_in_the_whole_batch(seed: int) -> None:
    torch.manual_seed(seed)
    bnn = bayesify(Applied(_largest_of_batch).double(), MeanField(initial_std=0.3)).eval()
    with pytest.warns(BayesifyWarning, match="affect each other"):
        bnn(INPUT[:3], samples=2)


def test_a_first_call_with_equal_rows() -> None:
    """Rows that are above the median of their copies are above that of two draws."""
    bnn = _made(Applied(lambda h: torch.where(h >= h.topk(1 + len(h) // 2, 0)[0][-1:], h, 0.1 * h)))
    with pytest.warns(BayesifyWarning, match="affect each other"):
        bnn(INPUT[:1].expand(3, 4), samples=4)


@pytest.mark.filterwarnings("ignore:every draw takes a separate pass")
@pytest.mark.parametrize("training", [False, True])
def test_what_begins_while_a_network_is_trained(training: bool) -> None:
    """Rates that a training loop raises are numbers, which choose in Python code."""
    bnn = _made(Net(lambda net, x: net.rate > 0.5)).train(training)
    optimizer = torch.optim.SGD(bnn.parameters(), 1e-3)
    for step in range(8):
        bnn.net.rate = step / 4
        optimizer.zero_grad()
        bnn(INPUT, samples=2).outputs.sum().backward()
        optimizer.step()
    _check_draws(bnn.eval(), INPUT)


def test_a_network_that_is_trained_is_examined_after_ever_more_steps() -> None:
    calls = list[int]()
    bnn = _made(Net(lambda net, x: calls.append(len(x)))).train()  # returns None
    optimizer = torch.optim.SGD(bnn.parameters(), 1e-3)
    examined = list[int]()
    for step in range(70):
        calls.clear()
        optimizer.zero_grad()
        bnn(INPUT, samples=1).outputs.sum().backward()
        optimizer.step()
        examined += [step] * (len(calls) > 1)
    assert examined == [0, 4, 16, 64]


class Choice(nn.Module):
    """Calls one of its layers, chosen anew in every pass."""

    def __init__(self, choose: Callable[[], int]) -> None:
        super().__init__()
        self.layers, self.last, self.choose = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)), nn.Linear(4, 2), choose

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers[self.choose()](x).tanh())


@pytest.mark.filterwarnings("ignore:the network does not use", "ignore:the network draws random numbers")
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("choose", [lambda: int(torch.randint(3, ())), lambda: random.randrange(3)], ids=["torch", "python"])
def test_layers_that_are_chosen_at_random(choose: Callable[[], int], samples: int) -> None:
    random.seed(0)
    bnn = _made(Choice(choose))
    with pytest.warns(BayesifyWarning, match="chooses among its random layers"):
        outputs = [bnn(INPUT, samples=samples).outputs for _ in range(10)]
    assert len({float(y.sum()) for y in outputs}) == 10
