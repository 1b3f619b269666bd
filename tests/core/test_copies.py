"""Copies of networks that keep tensors of their last pass, which `copy.deepcopy` refuses."""

import copy

import pytest
import torch
from torch import Tensor, nn

from bayesify import BayesifyWarning, DeepEnsemble, MeanField, bayesify
from bayesify.core.copies import copied_module


class Remembers(nn.Module):
    """Keeps what it computed, for a look at it, and the same tensor once more in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = self.first(x)
        self.kept = {"maps": [self.hidden]}
        return self.last(self.hidden.relu())


def test_values_are_copied_without_a_graph():
    net = Remembers()
    y = net(torch.randn(5, 3))
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(net)
    other = copied_module(net)
    assert torch.equal(other.hidden, net.hidden)
    assert not other.hidden.requires_grad
    assert other.hidden.data_ptr() != net.hidden.data_ptr()
    assert other.kept["maps"][0] is other.hidden
    y.sum().backward()  # the graph of the original is left
    assert net.first.weight.grad is not None
    assert other.first.weight.grad is None


def test_shared_objects_are_not_copied():
    net, shared = Remembers(), object()
    net.shared = shared
    assert copied_module(net, {id(shared): shared}).shared is shared


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_draws_after_a_pass_with_gradients():
    torch.manual_seed(0)
    old = nn.utils.weight_norm(nn.Linear(2, 2))
    bnn, x = bayesify(nn.Sequential(Remembers(), old), {"0.*": MeanField(initial_std=0.5)}), torch.randn(5, 3)
    bnn(x, samples=2)
    drawn = bnn.sample_network(3)
    assert type(drawn[0].first) is nn.Linear
    torch.testing.assert_close(drawn.eval()(x), bnn.function(3)(x))


def test_members_of_an_ensemble_made_from_a_network_after_a_pass():
    net = Remembers()
    net(torch.randn(5, 3))
    bnn = bayesify(net, DeepEnsemble(members=3))
    assert bnn(torch.randn(5, 3), samples=3).outputs.shape == (3, 5, 2)


class Taps(nn.Module):
    """Uses what a hook, or a function in an attribute, takes from itself."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.last, self.kept = nn.Linear(3, 4), nn.Linear(4, 2), dict[str, Tensor]()
        kept = self.kept
        if kind == "module":
            self.first.register_forward_hook(lambda layer, x, y: self.kept.__setitem__("y", y))
        elif kind == "dict":
            self.first.register_forward_hook(lambda layer, x, y: kept.__setitem__("y", y))
        elif kind == "attribute":
            self.function = lambda x: self.first(x) + 0
        elif kind == "method":
            self.first.register_forward_hook(self.keep)

    def keep(self, layer: nn.Module, x: object, y: Tensor) -> None:
        self.kept["y"] = y

    def forward(self, x: Tensor) -> Tensor:
        h = self.function(x) if hasattr(self, "function") else self.first(x)
        return self.last(self.kept.get("y", h).tanh())


@pytest.mark.parametrize("kind", ["module", "dict", "attribute"])
def test_functions_that_copies_share_are_told(kind: str) -> None:
    bnn = bayesify(Taps(kind), MeanField())
    with pytest.warns(BayesifyWarning, match="shares functions that use the network itself"):
        bnn.sample_network(seed=0)
    with pytest.warns(BayesifyWarning, match="shares functions that use the network itself"):
        bayesify(Taps(kind), DeepEnsemble(members=2))


def test_methods_are_copied_with_the_network() -> None:
    bnn, x = bayesify(Taps("method"), MeanField(initial_std=0.3)).eval(), torch.randn(5, 3)
    bnn(torch.randn(5, 3))
    torch.testing.assert_close(bnn.sample_network(seed=0)(x), bnn.function(seed=0)(x))
