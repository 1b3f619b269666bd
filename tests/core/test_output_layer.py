"""Methods of the output layer say so if the layer that is registered last is not the output layer."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayesify import EMP, SNGP, SWAG, VIFO, Laplace, MeanField, Method, bayesify
from bayesify.core.output_layer import last_layer
from bayesify.errors import BayesifyWarning


class _Net(nn.Module):
    """`head` comes after `body`, and is registered before it."""

    def __init__(self, body: nn.Module, skips: bool = False) -> None:
        super().__init__()
        self.head, self.body, self.skips = nn.Linear(4, 2), body, skips

    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.body(x))
        return (self.head(x), h) if self.skips else self.head(h)


def _findings(net: nn.Module, method: Method | dict[str, Method]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bnn = bayesify(net, method)
        for _ in range(2):
            bnn(torch.randn(3, 4))
    return [
        str(each.message) for each in caught if issubclass(each.category, BayesifyWarning) and "output layer" in str(each.message)
    ]


@pytest.mark.parametrize("method", [Laplace(), EMP(), {"*": Laplace()}, EMP(where="bn+out")], ids=str)
@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 4), lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))])
def test_a_layer_before_the_output_layer_is_noticed_once(method, make):
    net = _Net(make())
    last = "body" if isinstance(net.body, nn.Linear) else "body.2"
    (finding,) = _findings(net, method)
    assert finding.startswith(f"the method takes {last!r} for the output layer")
    assert "passes its outputs on to 'head'; name the output layer" in finding


def test_it_is_noticed_if_the_output_layer_is_random_too():
    (finding,) = _findings(_Net(nn.Linear(4, 4)), EMP(prior_std=1.0))
    assert "'head'" in finding


@pytest.mark.parametrize(
    "method",
    [
        pytest.param({"head": Laplace()}, id="named"),
        pytest.param({"body": MeanField(), "*": EMP(where="out+bn+head")}, id="last one of another method"),
        pytest.param(EMP(where="body"), id="chosen"),
        pytest.param(Laplace(layers="all"), id="all"),
        pytest.param(SWAG(), id="no method of the output layer"),
    ],
)
def test_what_someone_chose_is_not(method):
    assert not _findings(_Net(nn.Linear(4, 4)), method)


def test_parts_of_attention_and_recurrent_networks_are_no_output_layers():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.cell = nn.Linear(4, 2), nn.GRUCell(4, 4)
            self.attention = nn.MultiheadAttention(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.cell(x))

    for method in (EMP(), Laplace(), VIFO(), SNGP()):
        net = Net()
        assert last_layer(dict(net.named_modules())) == "attention.out_proj"  # as in the plain network
        del net.attention
        bnn = bayesify(net, method)
        bnn(torch.randn(3, 4))
        assert "head" in [name for name, layer in bnn.random_layers() if layer.posterior.is_random or isinstance(method, Laplace)]
        assert not bnn.findings


def test_nor_the_last_of_several_outputs():
    assert not _findings(_Net(nn.Linear(4, 4), skips=True), Laplace())
    assert not _findings(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), Laplace())
