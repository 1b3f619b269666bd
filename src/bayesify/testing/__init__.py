"""The contract of methods as a test suite: `check_method` checks a method of your own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from bayesify.core.method import Method
from bayesify.errors import ContractError, NothingRandomError
from bayesify.testing import folding_checks, layer_checks, pass_checks, state_checks, usage_checks
from bayesify.testing.cases import LAYERS, Case, References
from bayesify.testing.require import NotApplicable, require

__all__ = ["CHECKS", "LAYERS", "NET_CHECKS", "Case", "NotApplicable", "References", "check_method"]


def _checks_in(*modules: ModuleType) -> tuple[Callable[[Any], None], ...]:
    return tuple(check for module in modules for name, check in vars(module).items() if name.startswith("check_"))


CHECKS: tuple[Callable[[Case], None], ...] = _checks_in(layer_checks, state_checks)
NET_CHECKS: tuple[Callable[[Method], None], ...] = _checks_in(folding_checks, usage_checks, pass_checks)

# checks of the network's single random layer, without meaning for ensembles
_OF_SINGLE_LAYERS = (
    layer_checks.check_moments,
    layer_checks.check_kl,
    layer_checks.check_collapse,
    state_checks.check_declared_means,
    state_checks.check_plain_checkpoint,
    state_checks.check_return,
)


def check_method(
    method: Method,
    layers: Mapping[str, Callable[[], tuple[nn.Module, Tensor]]] | None = None,
    references: References | None = None,
    checks: Iterable[Callable[[Case], None]] | None = None,
    nets: Iterable[Callable[[Method], None]] | None = None,
) -> list[str]:
    """Check a method on every layer type it supports, then on small networks that are easy to get wrong.

    Args:
        method: the method, with the hyperparameters to test.
        layers: from names to functions that return a new layer and an input; default `LAYERS`, all supported types.
        references: independent references for the method, which enable more checks.
        checks: checks to run on every layer; default `CHECKS`, all of them. Those of a single random layer are skipped for
            ensembles.
        nets: checks to run on whole networks; default `NET_CHECKS`, all of them. A check that raises `NotApplicable` is skipped.

    Returns:
        The names of the supported layers, all of which passed.

    Raises:
        ContractError: a check failed; the message names the method, the layer and the check.

    Example:
        >>> check_method(Deterministic(), layers={"Linear": LAYERS["Linear"]}, nets=())
        ['Linear']
    """
    supported, reason = [], ""
    for name, make in (LAYERS if layers is None else layers).items():
        case = Case(method, make, references or References())
        try:
            ensemble = bool(case.fresh().members)
        except NothingRandomError as error:
            reason = f": {error}"
            continue
        except Exception as error:
            raise ContractError(f"{method} on {name} cannot be converted: {type(error).__name__}: {error}") from error
        for check in CHECKS if checks is None else checks:
            if not (ensemble and check in _OF_SINGLE_LAYERS):
                _run(check.__name__, partial(check, case), f"{method} on {name}")
        supported.append(name)
    require(supported, f"{method} supports none of the layers{reason}")
    for check in NET_CHECKS if nets is None else nets:
        _run(check.__name__, partial(check, method), str(method))
    return supported


def _run(name: str, check: Callable[[], None], subject: str) -> None:
    """Run one check with a fixed seed; any error of the method under test becomes a ContractError."""
    torch.manual_seed(11)
    try:
        check()
    except NotApplicable:
        pass
    except Exception as error:
        label = name.removeprefix("check_").replace("_", " ")
        raise ContractError(f"{subject} fails the check of {label}: {error}") from error
