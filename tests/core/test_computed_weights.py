"""Weights that are computed when they are read: writing into them has no effect, and is noticed."""

import gc
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from bayesify import (
    EMP,
    SNGP,
    VSD,
    WHVI,
    BayesifyWarning,
    ConfigurationError,
    MeanField,
    Method,
    TensorFactorized,
    VariationalDropout,
    bayesify,
    unbayesify,
)
from bayesify.core import computed_weights

X = torch.ones(2, 3)
COMPUTING = [EMP(), WHVI(), TensorFactorized(rank=2)]
MEANS = [MeanField(), VariationalDropout(), VSD()]


def _scale(layer: nn.Linear) -> None:
    with torch.no_grad():
        layer.weight.mul_(2)


def _initialize(layer: nn.Linear) -> None:
    nn.init.normal_(layer.weight)
    assert layer.weight.shape == (4, 3)  # read again


def _copy(layer: nn.Linear) -> None:
    layer.weight.data.copy_(torch.ones(4, 3))


def _exchange(layer: nn.Linear) -> None:
    layer.weight.data = torch.ones(4, 3)


WRITING: list[Callable[[nn.Linear], None]] = [_scale, _initialize, _copy, _exchange]


@pytest.mark.parametrize("method", COMPUTING, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("write", WRITING)
def test_writing_into_a_computed_weight_warns_once(method: Method, write: Callable[[nn.Linear], None]) -> None:
    bnn = bayesify(nn.Sequential(nn.Linear(3, 4)), method)
    bnn(X)
    write(bnn.net[0])
    with pytest.warns(BayesifyWarning, match=r"^'0\.weight' changed in place, which has no effect"):
        bnn(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bnn(X)


@pytest.mark.parametrize("method", MEANS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("write", WRITING)
def test_writing_into_a_mean_has_an_effect(method: Method, write: Callable[[nn.Linear], None]) -> None:
    torch.manual_seed(0)
    bnn = bayesify(nn.Sequential(nn.Linear(3, 4)), method)
    write(bnn.net[0])
    expected = bnn.net[0].weight.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bnn(X)
    assert torch.equal(unbayesify(bnn)[0].weight, expected)


def test_packed_weights_are_computed_too() -> None:
    bnn = bayesify(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), MeanField())
    bnn.net.self_attn.in_proj_weight.data.normal_()
    with pytest.warns(BayesifyWarning, match=r"^'self_attn\.in_proj_weight' changed in place"):
        bnn(torch.zeros(2, 5, 4))


@pytest.mark.filterwarnings("error")
def test_reading_is_no_news_and_is_forgotten() -> None:
    bnn = bayesify(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3)), EMP())
    penalty = sum(layer.weight.square().sum() for layer in bnn.net)
    assert isinstance(penalty, Tensor)
    penalty.backward()
    bnn(X)
    assert bnn.net[1] not in computed_weights._copies
    _scale(bnn.net[1])
    before = len(computed_weights._copies)
    del bnn
    gc.collect()
    assert len(computed_weights._copies) < before


@pytest.mark.parametrize("method", [*COMPUTING, SNGP()], ids=lambda method: type(method).__name__)
def test_a_replaced_parameter_cannot_be_assigned(method: Method) -> None:
    bnn = bayesify(nn.Sequential(nn.Linear(3, 4)), method)
    before = set(dict(bnn.named_parameters()))
    with pytest.raises(ConfigurationError, match=r"^the weight of this layer cannot be set, as \w+ has it in another form"):
        bnn.net[0].weight = nn.Parameter(torch.zeros(4, 3))
    assert set(dict(bnn.named_parameters())) == before
    if not isinstance(method, SNGP):
        plain = unbayesify(bnn)
        plain[0].weight = nn.Parameter(torch.zeros(4, 3))


@pytest.mark.parametrize("method", MEANS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize(
    "change", [lambda layer: prune.l1_unstructured(layer, "weight", 0.5), parametrizations.weight_norm, parametrizations.orthogonal]
)
def test_random_layers_cannot_be_pruned_or_parametrized(method: Method, change: Callable[[nn.Module], object]) -> None:
    bnn = bayesify(nn.Sequential(nn.Linear(3, 4)), method)
    with pytest.raises(ConfigurationError, match="the weight of a random Linear was pruned or parametrized after `bayesify`"):
        change(bnn.net[0])
