"""Every method of the registry on the small networks that a root can get wrong; and that broken methods are rejected."""

from collections.abc import Callable, Iterator

import pytest
import torch
from _pytest.mark import ParameterSet
from contract_methods import METHODS, ROOTS, identify

from bayesify.core.method import Method
from bayesify.testing import NET_CHECKS, NotApplicable


def _methods() -> Iterator[tuple[Method, bool]]:
    """All settings; the first of every method is a quick test (of EMP and ECMP, the first whose components differ)."""
    seen: set[type[Method]] = set()
    for method in (*(m for m, _ in METHODS), *(m for _, m, _ in ROOTS)):
        quick = type(method) not in seen and getattr(method, "spread", None) != 0.0
        yield method, quick
        if quick:
            seen.add(type(method))


def _cases() -> Iterator[ParameterSet]:
    for method, quick in _methods():
        for check in NET_CHECKS:
            name = check.__name__.removeprefix("check_")
            yield pytest.param(method, check, marks=() if quick else pytest.mark.slow, id=f"{identify(method)}-{name}")


@pytest.mark.parametrize(("method", "check"), [*_cases()])
def test_method_on_net(method: Method, check: Callable[[Method], None]) -> None:
    torch.manual_seed(11)
    try:
        check(method)
    except NotApplicable as reason:
        pytest.skip(str(reason))
