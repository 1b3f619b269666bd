"""The contracts: methods as records that survive JSON, the registry, and posteriors with nothing but the definition."""

import dataclasses
import json
import pickle

import pytest
import torch
from torch import Tensor, nn

from bayesify import (
    BayesianLayer,
    Deterministic,
    MCDropout,
    MeanField,
    Method,
    NothingRandomError,
    Posterior,
    VariationalDropout,
    bayesify,
)
from bayesify.testing import LAYERS, References, check_method

METHODS = [
    Deterministic(),
    Deterministic(prior_std=2.0),
    MCDropout(p=0.25, prior_std=1),
    MeanField(noise="shared", prior="scale-mixture", mixture_weight=0.3),
    VariationalDropout(noise="weight", alpha_per="weight", max_alpha=None, learn=False),
]


@pytest.mark.parametrize("method", METHODS)
def test_methods_survive_json_pickle_and_repr(method):
    fields = method.to_dict()
    assert fields["method"] == type(method).__name__
    assert Method.from_dict(json.loads(json.dumps(fields))) == method
    assert Method.from_dict(fields) == method
    assert fields == method.to_dict(), "reading must not change what it reads"
    assert pickle.loads(pickle.dumps(method)) == method
    assert hash(method) == hash(dataclasses.replace(method))
    assert eval(repr(method), {type(method).__name__: type(method)}) == method


def test_missing_fields_take_their_defaults():
    assert Method.from_dict({"method": "meanfield"}) == MeanField()
    assert Method.from_dict({"method": "MCDROPOUT", "p": 0.5}) == MCDropout(p=0.5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method": "MeanFeld"}, r"unknown method 'MeanFeld'; did you mean MeanField\?"),
        ({}, "unknown method None"),
        ({"p": 0.5}, "unknown method None"),
        ({"method": "MCDropout", "rate": 0.5, "P": 1}, "MCDropout has no field 'P', 'rate'; its fields are p, prior_std"),
        ({"method": "MCDropout", "p": 1.0}, r"p must be a number in \[0, 1\), got 1.0"),
        ({"method": "MCDropout", "p": "0.5"}, r"p must be a number in \[0, 1\), got '0.5'"),
        ({"method": "MeanField", "noise": "loud"}, "noise must be one of 'local', 'shared', 'flipout', got 'loud'"),
        ({"method": "Deterministic", "prior_std": True}, "prior_std must be a finite number above 0, got True"),
    ],
)
def test_bad_records_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Method.from_dict(fields)


def test_methods_are_found_in_any_case():
    for name in ("VariationalDropout", "variationaldropout", "VARIATIONALDROPOUT"):
        assert Method.named(name) is VariationalDropout
    for name in ("", "variational dropout", None, MeanField, "Method"):
        with pytest.raises(ValueError, match="unknown method"):
            Method.named(name)


def test_methods_are_frozen_and_keyword_only():
    method = MCDropout(p=0.5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.p = 0.1
    with pytest.raises(TypeError, match="positional"):
        MCDropout(0.5)
    assert method.replace(p=0.25) == MCDropout(p=0.25)
    assert method.p == 0.5
    with pytest.raises(ValueError, match="p must be"):
        method.replace(p=2.0)
    with pytest.raises(TypeError, match="rate"):
        method.replace(rate=2.0)


class _Uniform(Posterior):
    """A uniform distribution around the weight; only what a posterior must have."""

    def __init__(self, layer: BayesianLayer) -> None:
        super().__init__()
        self.log_width = nn.Parameter(torch.full(layer.weight_shape, -1.0))

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.mean(layer)
        noise = torch.rand(samples, *weight.shape, dtype=weight.dtype) - 0.5
        return weight + self.log_width.exp() * noise, None if bias is None else bias.expand(samples, *bias.shape)

    def kl(self, layer: BayesianLayer) -> Tensor:
        # from the uniform distribution on [-e^3, e^3], which holds all the small layers of these tests
        return (3.0 + torch.tensor(2.0).log() - self.log_width).to(torch.promote_types(self.log_width.dtype, torch.float32)).sum()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Uniform(Method):
    """Random weights for layers that contract."""

    def build(self, layer: BayesianLayer) -> Posterior | None:
        return _Uniform(layer) if layer.contracts else None


# Naming it made it known; the other tests in this process must not meet it.
_KNOWN = Method.registry.pop("Uniform")


@pytest.mark.extended
def test_a_new_method_is_a_posterior_and_a_record(monkeypatch):
    monkeypatch.setitem(Method.registry, "Uniform", _KNOWN)
    assert Method.named("uniform") is _KNOWN is Uniform
    collapse = References(collapse=lambda site: nn.init.constant_(site.posterior.log_width, -40.0))
    layers = {name: LAYERS[name] for name in ("Linear", "Conv2d", "LayerNorm")}
    assert check_method(Uniform(), layers, collapse) == ["Linear", "Conv2d"]


def test_the_base_class_leaves_everything_as_it_is():
    assert Method().build(nn.Linear(2, 2)) is None
    with pytest.raises(NothingRandomError, match="Method leaves Linear as it is"):
        bayesify(nn.Linear(2, 2), Method())
    with pytest.raises(TypeError, match="abstract"):
        Posterior()
