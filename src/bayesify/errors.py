"""The errors and the warning that this library raises for reasons of its own."""

from __future__ import annotations

__all__ = ["BayesifyError", "BayesifyWarning", "ContractError", "NothingRandomError", "StaleFunctionError"]


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
