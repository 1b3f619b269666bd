"""Networks that compute with the weight of a layer instead of calling it get its draws, however they compute."""

import copy
import warnings
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils.checkpoint import checkpoint

from bayesify import EMP, VSD, WHVI, BatchEnsemble, MeanField, bayesify
from bayesify.core.method import Method
from bayesify.errors import BayesifyWarning
from bayesify.testing.trial import captured_weights


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradients[0] @ weight, gradients[0].T @ x


@torch.jit.script
def _scripted(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.t()


def _assigned(x: Tensor, layer: nn.Linear) -> Tensor:
    """Puts the weight into a part of a larger matrix."""
    matrix = x.new_zeros(4, 3)
    matrix[:] = layer.weight
    return x @ matrix.T


def _copied(x: Tensor, layer: nn.Linear) -> Tensor:
    return x @ x.new_zeros(4, 3).copy_(layer.weight).T


def _called(x: Tensor, layer: nn.Linear) -> Tensor:
    return functional_call(nn.Linear(3, 4, bias=False), {"weight": layer.weight}, (x,))


WAYS: dict[str, Callable[[Tensor, nn.Linear], Tensor]] = {
    "linear": lambda x, layer: F.linear(x, layer.weight),
    "autograd": lambda x, layer: cast(Tensor, Product.apply(x, layer.weight)),
    "script": lambda x, layer: _scripted(x, layer.weight),
    "functional call": _called,
    "vmap over rows": lambda x, layer: vmap(lambda row: layer.weight @ row)(x),
    "vmap over weights": lambda x, layer: vmap(lambda row: x @ row)(layer.weight).T,
    "checkpoint": lambda x, layer: checkpoint(F.linear, x, layer.weight, use_reentrant=False),
    "loop": lambda x, layer: torch.stack([x @ row for row in layer.weight], -1),
    "assignment": _assigned,
    "copy": _copied,
    "data": lambda x, layer: x @ layer.weight.data.T,
    "parameter": lambda x, layer: x @ nn.Parameter(layer.weight).T,
    "numbers": lambda x, layer: x @ x.new_tensor(layer.weight.tolist()).T,
    "operator": lambda x, layer: torch.ops.aten.linear(x, layer.weight),
}


class Reading(nn.Module):
    """Computes with the weight of one layer and calls another."""

    def __init__(self, way: Callable[[Tensor, nn.Linear], Tensor]) -> None:
        super().__init__()
        self.read, self.called, self.way = nn.Linear(3, 4, bias=False), nn.Linear(4, 2), way

    def forward(self, x: Tensor) -> Tensor:
        return self.called(torch.tanh(self.way(x, self.read)))


class Normalizing(nn.Module):
    """Gives the weight of a random layer to another one, and to nothing else, as DeBERTa-v3 does with its positions."""

    def __init__(self, share: float = 1.0) -> None:
        super().__init__()
        self.positions, self.norm, self.last, self.share = nn.Embedding(4, 3), nn.LayerNorm(3), nn.Linear(4, 2), share

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.sum(-1, keepdim=True) + self.share * x @ self.norm(self.positions.weight).T)


class LooksAtDtype(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.to(self.first.weight.dtype).to(self.first.weight))
        return self.last(h.to(self.last.weight.device).type_as(self.last.weight) + self.first.weight.new_zeros(()))


def _check_draws(net: nn.Module, method: Method) -> None:
    plain, x = copy.deepcopy(net), torch.randn(5, 3, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayesifyWarning)
        bnn = bayesify(net, method).eval()
        bnn(x, samples=2)
        with captured_weights(bnn) as weights, torch.no_grad():
            draws = bnn(x, samples=3, coherent=True).outputs
    expected = torch.stack([functional_call(plain, each, (x,)) for each in weights[-3:]])
    torch.testing.assert_close(draws, expected.detach())
    assert not torch.allclose(draws[0], draws[1], rtol=1e-3)


METHODS = [MeanField(initial_std=0.3), VSD(), EMP(spread=0.3), BatchEnsemble(spread=0.5)]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("way", WAYS)
def test_a_weight_that_is_read_is_drawn(way: str, method: Method) -> None:
    torch.manual_seed(0)
    _check_draws(Reading(WAYS[way]).double(), method)


@pytest.mark.parametrize("method", [MeanField(initial_std=0.3), EMP(spread=0.3), WHVI()], ids=lambda method: type(method).__name__)
def test_a_weight_that_only_another_random_layer_gets_is_drawn(method: Method) -> None:
    torch.manual_seed(0)
    _check_draws(Normalizing().double(), method)


def test_a_weight_that_hardly_changes_the_outputs_is_drawn() -> None:
    """Positions of a network that has yet to learn to use them."""
    bnn = bayesify(Normalizing(share=1e-9), MeanField()).eval()
    bnn(torch.randn(5, 3), samples=2)
    assert bnn.net.positions.is_read


def test_looking_at_a_weight_is_not_reading_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        bnn = bayesify(LooksAtDtype(), MeanField()).eval()
        bnn(torch.randn(5, 3), samples=2)
    assert not any(layer.is_read for _, layer in bnn.random_layers())


def test_a_network_that_insists_on_parameters_keeps_a_mean_and_says_so() -> None:
    net = Reading(lambda x, layer: x @ layer.get_parameter("weight").T)
    bnn = bayesify(net, {"read": MeanField(initial_std=0.3)}).eval()
    with pytest.warns(
        BayesifyWarning,
        match=r"could not be examined, as it fails in eval mode with drawn weights.*not an nn.Parameter.*their means",
    ):
        draws = bnn(torch.randn(5, 3), samples=2).outputs
    torch.testing.assert_close(draws[0], draws[1])


def test_a_failed_call_leaves_no_warning_behind() -> None:
    bnn = bayesify(nn.Linear(3, 2), MeanField()).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        bnn(torch.randn(5, 3), samples=2)
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            bnn(torch.randn(5, 4), samples=2)
        bnn(torch.randn(5, 3), samples=2)


def test_a_network_that_runs_in_training_mode_alone_is_not_examined_and_says_so() -> None:
    class OnlyTrains(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                raise NotImplementedError("inference is done elsewhere")
            return super().forward(x)

    bnn = bayesify(nn.Sequential(nn.Linear(3, 4), OnlyTrains(4, 2)), {"0": MeanField(initial_std=0.3)})
    with pytest.warns(BayesifyWarning, match="could not be examined.*NotImplementedError: inference is done elsewhere"):
        draws = bnn(torch.randn(5, 3), samples=2).outputs
    assert not torch.allclose(draws[0], draws[1])
