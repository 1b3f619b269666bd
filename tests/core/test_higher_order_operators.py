"""Networks with `flex_attention`, `torch.cond` and other operators that take functions, which PyTorch's compiler is called for."""

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.while_loop import while_loop
from torch.func import functional_call

from bayesify import BayesifyWarning, MeanField, bayesify, unbayesify
from bayesify.errors import PassError
from bayesify.testing.trial import captured_weights

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}")
    for text in ("flex_attention called without", "every draw takes a separate pass", "the network does not use")
]
INPUT = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).abs() + 0.1


class Net(nn.Module):
    """A hidden layer, a function of the network, its hidden values and its inputs, and an output layer."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.first, self.inner, self.last, self.function = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2), function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self, self.first(x).tanh(), x))


def _attention(net: Net, h: Tensor, x: Tensor) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    q = h.view(len(h), 1, 4, 2).expand(-1, -1, -1, 2).repeat(1, 1, 1, 4)
    return flex_attention(q, q * 2, q, score_mod=lambda score, b, h, i, j: score + (i - j)).sum(2).flatten(1)  # pyright: ignore


def _centering(net: Net, h: Tensor, x: Tensor) -> Tensor:
    return torch.cond(x.mean() < 0, lambda h: h - h.mean(0), lambda h: h.clone(), (h,))


def _layer_in_branch(net: Net, h: Tensor, x: Tensor) -> Tensor:
    return torch.cond(x.mean() < 0, lambda h: net.inner(h).sin(), lambda h: net.inner(h).cos(), (h,))


def _random_branch(net: Net, h: Tensor, x: Tensor) -> Tensor:
    return torch.cond(h.sum() < 0, lambda h: h.sin(), lambda h: h * 3, (h,))


def _loop(net: Net, h: Tensor, x: Tensor) -> Tensor:
    steps = (x[0, 0] * 0).long()
    return while_loop(lambda i, h: i < x.abs().sum().sqrt(), lambda i, h: (i + 1, net.inner(h).sin()), (steps, h))[1]


def _mapped(net: Net, h: Tensor, x: Tensor) -> Tensor:
    return map_rows(lambda row: net.inner(row.unsqueeze(0)).squeeze(0), h)


def _made(function: Callable[..., Tensor]) -> tuple[Any, nn.Module]:
    """A Bayesian network and the plain one."""
    torch.manual_seed(0)
    bnn = bayesify(Net(function), MeanField(initial_std=0.3)).eval()
    return bnn, unbayesify(copy.deepcopy(bnn))


def _check_draws(bnn: Any, plain: nn.Module, x: Tensor) -> None:
    """Draws are the plain network with their weights."""
    with captured_weights(bnn) as weights, torch.no_grad():
        draws = bnn(x, samples=3, coherent=True).outputs
        expected = torch.stack([functional_call(plain, weight, (x,)) for weight in weights[-3:]])
    torch.testing.assert_close(draws, expected)
    assert float((draws[0] - draws[1]).abs().max()) > 1e-3


@pytest.mark.parametrize("function", [_attention, _centering, _random_branch])
def test_draws_are_the_plain_network(function: Callable[..., Tensor]) -> None:
    """Whatever the branch that other inputs take."""
    bnn, plain = _made(function)
    for x in (INPUT, -INPUT, INPUT[:2]):
        _check_draws(bnn, plain, x)


@pytest.mark.parametrize("function", [_layer_in_branch, _loop, _mapped])
def test_random_layers_in_functions_of_operators_need_eager_mode(function: Callable[..., Tensor]) -> None:
    bnn, plain = _made(function)
    with pytest.raises(PassError, match="force_eager"):
        bnn(INPUT, samples=2)
    with torch.compiler.set_stance("force_eager"):
        for x in (INPUT, -INPUT, INPUT[:2]):
            _check_draws(bnn, plain, x)


@pytest.mark.parametrize("function", [_attention, _centering])
@torch.no_grad()
def test_attention_and_decisions_by_inputs_share_a_pass(function: Callable[..., Tensor]) -> None:
    bnn, _ = _made(function)
    calls = list[int]()
    bnn.net.first.register_forward_hook(lambda layer, inputs, output: calls.append(len(output)))
    bnn(INPUT, samples=4)
    calls.clear()
    bnn(INPUT, samples=4)
    assert calls == [4 * len(INPUT)]


@pytest.mark.parametrize(("function", "reason"), [(_random_branch, "random values .cond"), (_loop, "while_loop")])
@torch.no_grad()
def test_decisions_by_random_values_are_told(function: Callable[..., Tensor], reason: str) -> None:
    bnn, _ = _made(function)
    with torch.compiler.set_stance("force_eager"), pytest.warns(BayesifyWarning, match=reason):
        bnn(INPUT, samples=2)


_FIRST_USE = """
import sys, torch, warnings
from torch import nn
from bayesify import BayesifyWarning, MeanField, bayesify
from torch.nn.attention.flex_attention import flex_attention
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.o = nn.Linear(16, 16), nn.Linear(16, 3)
    def forward(self, x):
        q = self.q(x).unsqueeze(1)
        return self.o(flex_attention(q, q, q).squeeze(1).mean(1))
assert "torch._dynamo" not in sys.modules
warnings.filterwarnings("error", category=BayesifyWarning)
x = torch.randn(4, 6, 16)
with torch.no_grad():
    print(*bayesify(Net(), MeanField()).eval()(x, samples=2).outputs.shape)
    print(*Net()(x).shape)
"""


def test_first_use_of_the_compiler_in_an_examination_leaves_it_intact() -> None:
    run = subprocess.run([sys.executable, "-c", _FIRST_USE], check=False, capture_output=True, text=True)
    assert run.stdout.split() == ["2", "4", "3", "4", "3"], run.stderr
