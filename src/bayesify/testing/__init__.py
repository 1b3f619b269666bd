"""The contract every method fulfils, as a test suite: run `check_method` on your own method before you trust it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from bayesify.core.method import Method
from bayesify.errors import ContractError, NothingRandomError
from bayesify.testing.cases import LAYERS, Case, References
from bayesify.testing.checks import CHECKS, OF_ONE_LAYER
from bayesify.testing.net_checks import NET_CHECKS
from bayesify.testing.require import NotApplicable, require

__all__ = ["CHECKS", "LAYERS", "NET_CHECKS", "Case", "NotApplicable", "References", "check_method"]


def check_method(
    method: Method,
    layers: Mapping[str, Callable[[], tuple[nn.Module, Tensor]]] | None = None,
    references: References | None = None,
    checks: Iterable[Callable[[Case], None]] | None = None,
    nets: Iterable[Callable[[Method], None]] | None = None,
) -> list[str]:
    """Run the contract suite over a method: every layer type it supports, then small networks that use layers in unusual ways.

    Args:
        method: the method, with the hyperparameters to test.
        layers: name to a function that returns a new layer and an input; default `LAYERS`, all supported types.
        references: independent knowledge about the method, which makes more checks possible.
        checks: which checks to run on every layer; default `CHECKS`, all of them. Of an ensemble's network, those about its one
            random layer are left out.
        nets: which checks of whole networks to run; default `NET_CHECKS`, all of them. Each raises `NotApplicable` where it has
            no meaning for the method, and is then left out.

    Returns:
        The names of the layers the method supports, all of which passed.

    Raises:
        ContractError: a check failed; the message names the method, the layer and the check.

    Example:
        >>> check_method(Deterministic(), layers={"Linear": LAYERS["Linear"]}, nets=())
        ['Linear']
    """
    supported = []
    for name, make in (LAYERS if layers is None else layers).items():
        case = Case(method, make, references or References())
        try:
            ensemble = bool(case.fresh().members)
        except NothingRandomError:
            continue
        for check in CHECKS if checks is None else checks:
            if not (ensemble and check in OF_ONE_LAYER):
                _run(check.__name__, partial(check, case), f"{method} on {name}")
        supported.append(name)
    require(supported, f"{method} supports none of the layers")
    for check in NET_CHECKS if nets is None else nets:
        _run(check.__name__, partial(check, method), str(method))
    return supported


def _run(name: str, check: Callable[[], None], subject: str) -> None:
    """Run one check, seeded; every error becomes a ContractError that says what failed."""
    torch.manual_seed(11)
    try:
        check()
    except NotApplicable:
        pass
    except Exception as error:
        label = name.removeprefix("check_").replace("_", " ")
        raise ContractError(f"{subject} fails the check of {label}: {error}") from error
