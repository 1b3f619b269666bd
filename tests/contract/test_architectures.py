"""Architectures of torchvision, timm and transformers: what `summary` says of them is what their passes do.

The table of what was found: pytest -m slow -s tests/contract/test_architectures.py
"""

import copy
import importlib
import importlib.util

import pytest
import torch
from architectures import ARCHITECTURES, load_torchvision
from scan import scan
from torch import nn

from bayesify import EMP, WHVI, MCDropout, MeanField, bayesify, unbayesify
from bayesify.core.method import Method
from bayesify.errors import NothingRandomError

METHODS: list[Method] = [MeanField(), MCDropout(p=0.2), WHVI()]  # the last takes the place of the weights


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architecture(name: str, method: Method) -> None:
    package = name.split()[0]
    if importlib.util.find_spec(package) is None:  # not importorskip: torchvision needs stand-ins before it can be imported
        pytest.skip(f"{package} is not installed")
    torch.manual_seed(0)
    try:
        net, x = ARCHITECTURES[name]()
    except ModuleNotFoundError as error:  # what the package itself needs
        pytest.skip(str(error))
    try:
        found = scan(net, x, method)
    except NothingRandomError:
        pytest.skip(f"{type(method).__name__} supports none of its layers")
    print(f"\n{name:33} {type(method).__name__:10} {found}", end="")
    for problem in found.problems:
        print(f"\n      {problem}", end="")
    assert not found.problems


@pytest.mark.slow
def test_a_normalization_of_timm_is_random_with_its_activation() -> None:
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    load_torchvision()
    kind = importlib.import_module("timm.layers").BatchNormAct2d
    for training in (False, True):
        plain, x = nn.Sequential(nn.Conv2d(2, 3, 1), kind(3)).double().train(training), torch.randn(4, 2, 3, 3).double()
        bnn = bayesify(copy.deepcopy(plain), EMP(where="bn", spread=0.0))
        expected = plain(x)
        torch.testing.assert_close(bnn(x, samples=2).outputs, expected.expand(2, *expected.shape))
        assert type(unbayesify(bnn)[1]) is kind
