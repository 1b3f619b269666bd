"""Weights that somebody has put work into: what `bayesify` says where a method does not take them."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from bayesify import WHVI, BayesifyWarning, MeanField, Method, TensorFactorized, bayesify
from bayesify.core.initialization import looks_initialized

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: nn.Linear(8, 16),
    "Conv2d": lambda: nn.Conv2d(4, 8, 3, groups=2),
    "ConvTranspose1d": lambda: nn.ConvTranspose1d(4, 8, 3),
    "Embedding": lambda: nn.Embedding(20, 5),
    "Embedding, padded": lambda: nn.Embedding(20, 5, padding_idx=0),
    "BatchNorm2d": lambda: nn.BatchNorm2d(3),
    "LayerNorm": lambda: nn.LayerNorm(7),
    "GroupNorm": lambda: nn.GroupNorm(2, 6),
}


def trained(layer: nn.Module, steps: int = 30) -> nn.Module:
    """After a few steps of Adam toward larger weights."""
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        sum((p.sign().detach() * p).sum() for p in layer.parameters()).neg().backward()
        optimizer.step()
    return layer


@pytest.mark.parametrize("name", LAYERS)
def test_what_pytorch_draws_is_known_and_what_was_trained_is_not(name: str) -> None:
    for seed in range(50):
        torch.manual_seed(seed)
        layer = LAYERS[name]()
        assert looks_initialized(type(layer), layer.get_parameter("weight")), f"seed {seed}"
    assert not looks_initialized(type(layer), trained(layer).weight)


@pytest.mark.parametrize(
    "init", [nn.init.kaiming_normal_, nn.init.orthogonal_, nn.init.zeros_, lambda w: nn.init.normal_(w, std=0.02)]
)
def test_initializations_of_others_are_not_pytorchs(init: Callable[[torch.Tensor], torch.Tensor]) -> None:
    layer = nn.Linear(64, 64)
    init(layer.weight)
    assert not looks_initialized(nn.Linear, layer.weight)


@pytest.mark.parametrize("method", [WHVI(), TensorFactorized()], ids=["WHVI", "TensorFactorized"])
def test_methods_that_start_at_random_warn_of_weights_that_were_trained(method: Method) -> None:
    def net() -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bayesify(net(), method)
        bayesify(trained(net()), MeanField())
        if isinstance(method, WHVI):
            bayesify(trained(net()), method.replace(initial="pretrained"))
    half = net()
    trained(half[2])
    with pytest.warns(BayesifyWarning, match="weights of layers were dropped, and these start at random: 2;"):
        bayesify(half, method)
    with pytest.warns(BayesifyWarning, match="weights of layers were dropped, and these start at random: 0, 2;"):
        bayesify(trained(net()), method)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("layer", [nn.Linear(1, 1), nn.Conv1d(1, 1, 1), nn.Embedding(1, 1)])
def test_a_single_weight_has_no_spread(layer: nn.Module) -> None:
    """PyTorch warns of its standard deviation."""
    assert looks_initialized(type(layer), layer.get_parameter("weight"))
