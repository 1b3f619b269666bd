"""Every method of the registry on the small networks that a root can get wrong; and that broken methods are rejected."""

from collections.abc import Callable, Iterator

import pytest
import torch
from _pytest.mark import ParameterSet
from contract_methods import METHODS, ROOTS, identify

from bayesify import (
    ECMP,
    EMP,
    SWAG,
    VIFO,
    VSD,
    WHVI,
    DeepEnsemble,
    Deterministic,
    MCDropout,
    MeanField,
    VariationalDropout,
)
from bayesify.core.method import Method
from bayesify.testing import NET_CHECKS, NotApplicable

# The methods of the papers, and one of every kind, meet all networks; the others those that depend on more than shared code.
_EVERYWHERE = (MeanField, VariationalDropout, VSD, WHVI, EMP, ECMP, VIFO, MCDropout, DeepEnsemble, SWAG, Deterministic)
_FOR_ALL = (
    "graph_network",
    "batch_normalization_in_training",
    "tied_embedding",
    "nested_inputs",
    "checkpointed_layers",
    "functions",
    "members_in_training",
    "weight_of_the_local_kl",
)


def _methods() -> Iterator[tuple[Method, bool]]:
    """All settings; the first of every method is a quick test (of EMP and ECMP, the first whose components differ)."""
    seen: set[type[Method]] = set()
    for method in (*(m for m, _ in METHODS), *(m for _, m, _ in ROOTS)):
        quick = type(method) not in seen and getattr(method, "spread", None) != 0.0
        yield method, quick
        if quick:
            seen.add(type(method))


def _cases() -> Iterator[ParameterSet]:
    for method, first in _methods():
        for check in NET_CHECKS:
            name = check.__name__.removeprefix("check_")
            quick = first and (type(method) in _EVERYWHERE or name in _FOR_ALL)
            yield pytest.param(method, check, marks=() if quick else pytest.mark.slow, id=f"{identify(method)}-{name}")


@pytest.mark.parametrize(("method", "check"), [*_cases()])
def test_method_on_net(method: Method, check: Callable[[Method], None]) -> None:
    torch.manual_seed(11)
    try:
        check(method)
    except NotApplicable as reason:
        pytest.skip(str(reason))
