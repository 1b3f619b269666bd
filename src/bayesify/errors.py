"""The errors and warnings of bayesify, as types: nothing is decided by the text of a message."""

from __future__ import annotations

__all__ = ["BayesifyError", "BayesifyWarning", "ContractError", "NothingRandomError", "StaleFunctionError"]


class BayesifyError(Exception):
    """The base of all errors that bayesify defines."""


class NothingRandomError(BayesifyError, ValueError):
    """`bayesify` made nothing random."""


class StaleFunctionError(BayesifyError, RuntimeError):
    """A function from `bnn.function(seed)` outlived further training or a change of the network."""


class ContractError(BayesifyError, AssertionError):
    """A method breaks the contract that `bayesify.testing.check_method` checks."""


class BayesifyWarning(UserWarning):
    """Something works differently from what one would expect: slower, or less of the network is random."""
