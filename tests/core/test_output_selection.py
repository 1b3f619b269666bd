"""Parts of outputs: selected by key, attribute, position or function, in passes, predictions and functions."""

import copy
import pickle
from typing import NamedTuple

import pytest
import torch
from torch import nn

from bayesify import VIFO, Categorical, DeepEnsemble, MCDropout, MeanField, bayesify, elbo, predict
from bayesify.errors import ConfigurationError


class Cache:
    """No tensor, and no pytree."""


class Result(NamedTuple):
    logits: torch.Tensor
    cache: Cache


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.layer, self.head = kind, nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        result = Result(self.head(self.layer(x).tanh()), Cache())
        return {"dict": result._asdict(), "named": result, "tuple": tuple(result)}[self.kind]


SELECTIONS = [("dict", "logits"), ("named", "logits"), ("tuple", 0), ("tuple", -2), ("dict", lambda y: y["logits"])]
METHODS = [MeanField(), MCDropout(p=0.5), VIFO(), DeepEnsemble(members=2), DeepEnsemble(members=2, base=MeanField())]


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize(("kind", "output"), SELECTIONS)
def test_selected_outputs_are_those_of_a_network_that_returns_nothing_else(kind, output, method):
    class Only(Net):
        def forward(self, x):
            return super().forward(x)["logits"]

    torch.manual_seed(0)
    net, plain, x = Net(kind), Only("dict"), torch.randn(6, 4)
    plain.load_state_dict(net.state_dict())
    torch.manual_seed(1)
    expected = bayesify(plain, method)
    torch.manual_seed(1)
    bnn = bayesify(net, method, output=output)
    results = []
    for model in (bnn, expected):
        torch.manual_seed(2)
        draws = model(x, samples=3)
        results.append((draws.outputs, model.function(seed=0)(x), predict(model, x, Categorical(), samples=4, seed=0).probs))
    for selected, whole in zip(*results, strict=True):
        torch.testing.assert_close(selected, whole, rtol=0, atol=0)
    loss = -elbo(draws, Categorical().log_prob(draws.outputs, torch.zeros(6, dtype=torch.long)), n=6)
    loss.backward()


def test_selections_are_copied_and_pickled():
    bnn, x = bayesify(Net("dict"), MeanField(), output="logits"), torch.randn(2, 4)
    for twin in (copy.deepcopy(bnn), pickle.loads(pickle.dumps(bnn))):
        assert twin(x).outputs.shape == (1, 2, 3)


@pytest.mark.parametrize(
    ("kind", "output", "message"),
    [
        ("dict", "logit", "output='logit', but the network returned a dict with the parts 'logits', 'cache'"),
        ("named", "logit", "output='logit', but the network returned a Result with the parts 'logits', 'cache'"),
        ("tuple", "logits", "output='logits', but the network returned a tuple without named parts"),
        ("tuple", 2, "output=2, but the network returned a tuple of 2 parts"),
        ("dict", 0, "output=0, but the network returned a dict without positions"),
    ],
)
def test_what_the_output_does_not_have_is_named(kind, output, message):
    with pytest.raises(ConfigurationError, match=message):
        bayesify(Net(kind), MeanField(), output=output)(torch.randn(2, 4))


def test_outputs_that_cannot_be_separated_say_how_to_select():
    with pytest.raises(TypeError, match=r"returned a Cache, .*; select tensors with bayesify\(net, method, output=\.\.\.\)"):
        bayesify(Net("dict"), MeanField())(torch.randn(2, 4))


@pytest.mark.parametrize("output", [True, 1.5, ["logits"]])
def test_other_types_are_refused(output):
    with pytest.raises(TypeError, match="output must be a key"):
        bayesify(Net("dict"), MeanField(), output=output)
