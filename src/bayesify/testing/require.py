"""Assertions of checks, which raise ContractError also under `python -O`.

Shapes: n draws first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesify.errors import ContractError

__all__ = ["NotApplicable", "require", "require_close", "require_equal_means"]


class NotApplicable(Exception):  # noqa: N818 - not an error, like unittest.SkipTest
    """A check does not apply to a method; the message is the reason.

    Example:
        >>> from bayesify.testing import LAYERS, NotApplicable, check_method
        >>> def check_images(method):
        ...     raise NotApplicable("the method takes vectors only")
        >>> check_method(MeanField(), {"Linear": LAYERS["Linear"]}, checks=(), nets=[check_images])
        ['Linear']
    """


def require(condition: object, message: str) -> None:
    """Raise ContractError unless the condition is true."""
    if not condition:
        raise ContractError(message)


def require_close(actual: object, expected: object, what: str, rtol: float = 1e-7, atol: float = 1e-9) -> None:
    """Raise ContractError unless two tensors (or nested tensors) have equal shapes and values, up to rounding."""
    try:
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)
    except AssertionError as error:
        raise ContractError(f"{what}: {error}") from error


def require_equal_means(a: Tensor, b: Tensor, what: str) -> None:
    """Raise ContractError unless means over dimension 0 agree within 6 standard errors in every element."""
    error = 6 * torch.sqrt(a.var(0) / a.shape[0] + b.var(0) / b.shape[0]) + 1e-9
    gap = (a.mean(0) - b.mean(0)).abs()
    worst = (gap - error).flatten().argmax()
    require((gap <= error).all(), f"{what} differs by {gap.flatten()[worst]:.4g}, tolerance {error.flatten()[worst]:.4g}")
