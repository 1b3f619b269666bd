"""The errors and the warning that this library raises for reasons of its own."""

from __future__ import annotations

import sys
import warnings

__all__ = ["BayesifyError", "BayesifyWarning", "ContractError", "NothingRandomError", "StaleFunctionError", "warn"]


class BayesifyError(Exception):
    """Base class of the errors below; each is also the built-in exception that fits it."""


class NothingRandomError(BayesifyError, ValueError):
    """`bayesify` found no layer to make random."""


class StaleFunctionError(BayesifyError, RuntimeError):
    """A function drawn by `Bayesian.function` was called after its network had been trained or changed."""


class ContractError(BayesifyError, AssertionError):
    """A method breaks the contract that `check_method` tests."""


class BayesifyWarning(UserWarning):
    """Something works in another way than one might expect: slower, or on fewer layers."""


def warn(message: str) -> None:
    """Issue a `BayesifyWarning` that points at the first caller outside this library and PyTorch."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("bayesify", "torch"):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, BayesifyWarning, stacklevel=level)
