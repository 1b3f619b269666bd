"""Networks that are made alike are trained together, as one stack: what roots store must not make them differ."""

import pytest
from torch import nn

from bayesify import EMP, VIFO, VSD, BatchEnsemble, MCDropout, MeanField, VariationalDropout, bayesify
from bayesify.core.method import Method
from bayesify.core.module_comparison import same_function


def _net(width: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1))


METHODS = [MeanField(), VariationalDropout(), VSD(), MCDropout(), EMP(), VIFO(), BatchEnsemble()]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_new_networks_with_one_method_are_alike(method: Method) -> None:
    assert same_function(bayesify(_net(), method), bayesify(_net(), method))
    assert not same_function(bayesify(_net(), method), bayesify(_net(5), method))


def test_other_fields_of_a_method_make_other_functions() -> None:
    assert not same_function(bayesify(_net(), MeanField(prior_std=1.0)), bayesify(_net(), MeanField(prior_std=2.0)))
