"""What a check raises: explicit errors, which `python -O` does not remove as it removes `assert`.

Shapes: n draws first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesify.errors import ContractError

__all__ = ["NotApplicable", "require", "require_close", "require_equal_means"]


class NotApplicable(Exception):  # noqa: N818 - like unittest.SkipTest, it is no error
    """A check has no meaning for a method; the message says why."""


def require(condition: object, message: str) -> None:
    """Raise a ContractError with the message unless the condition holds."""
    if not condition:
        raise ContractError(message)


def require_close(actual: object, expected: object, what: str, rtol: float = 1e-7, atol: float = 1e-9) -> None:
    """Raise a ContractError unless two tensors (or nested tensors) have equal shapes and, but for rounding, equal values."""
    try:
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)
    except AssertionError as error:
        raise ContractError(f"{what}: {error}") from error


def require_equal_means(a: Tensor, b: Tensor, what: str) -> None:
    """Raise a ContractError unless means over dimension 0 agree within 6 standard errors in every element."""
    error = 6 * torch.sqrt(a.var(0) / a.shape[0] + b.var(0) / b.shape[0]) + 1e-9
    gap = (a.mean(0) - b.mean(0)).abs()
    worst = (gap - error).flatten().argmax()
    require((gap <= error).all(), f"{what} differs by {gap.flatten()[worst]:.4g}, tolerance {error.flatten()[worst]:.4g}")
