"""Architectures of torchvision, timm and transformers: what `summary` says of them is what their passes do.

The table of what was found: pytest -m slow -s tests/contract/test_architectures.py
"""

import importlib.util

import pytest
import torch
from architectures import ARCHITECTURES
from scan import scan

from bayesify import WHVI, MCDropout, MeanField
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
