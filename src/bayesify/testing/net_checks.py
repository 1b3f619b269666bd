"""All checks of whole networks: each is one function of a method, run once, whatever layers the method supports.

It raises ContractError where the method, or the core under it, gets the network wrong, and NotApplicable where it has no meaning.
"""

from __future__ import annotations

from collections.abc import Callable

from bayesify.core.method import Method
from bayesify.testing.net_checks_layers import LAYER_USE_CHECKS
from bayesify.testing.net_checks_passes import PASS_CHECKS
from bayesify.testing.net_checks_rows import ROW_CHECKS

__all__ = ["NET_CHECKS"]

NET_CHECKS: tuple[Callable[[Method], None], ...] = (*ROW_CHECKS, *LAYER_USE_CHECKS, *PASS_CHECKS)
