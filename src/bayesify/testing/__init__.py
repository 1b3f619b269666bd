"""The contract every method fulfils, as a test suite: run `check_method` on your own method before you trust it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from bayesify.core.method import Method
from bayesify.testing.cases import LAYERS, Case, References
from bayesify.testing.checks import CHECKS, OF_ONE_LAYER

__all__ = ["CHECKS", "LAYERS", "Case", "References", "check_method"]


def check_method(
    method: Method,
    layers: Mapping[str, Callable[[], tuple[nn.Module, Tensor]]] | None = None,
    references: References | None = None,
    checks: Iterable[Callable[[Case], None]] | None = None,
) -> list[str]:
    """Run the contract suite over a method and every layer type it supports.

    Args:
        method: the method, with the hyperparameters to test.
        layers: name to a function that returns a new layer and an input; default `LAYERS`, all supported types.
        references: independent knowledge about the method, which makes more checks possible.
        checks: which checks to run; default `CHECKS`, all of them. Of an ensemble's network, those about its one random layer are
            left out.

    Returns:
        The names of the layers the method supports, all of which passed.

    Raises:
        AssertionError: a check failed; the message names the method, the layer and the check.

    Example:
        >>> check_method(Deterministic(), layers={"Linear": LAYERS["Linear"]})
        ['Linear']
    """
    supported = []
    for name, make in (LAYERS if layers is None else layers).items():
        case = Case(method, make, references or References())
        try:
            ensemble = bool(case.fresh().members)
        except ValueError as error:
            if not re.search(r"\w+ leaves \w+ as it is", str(error)):
                raise
            continue
        for check in CHECKS if checks is None else checks:
            if ensemble and check in OF_ONE_LAYER:
                continue
            try:
                torch.manual_seed(11)
                check(case)
            except Exception as error:
                label = check.__name__.removeprefix("check_").replace("_", " ")
                raise AssertionError(f"{method} on {name} fails the check of {label}: {error}") from error
        supported.append(name)
    assert supported, f"{method} supports none of the layers"
    return supported
