"""Helper of custom autograd functions."""

import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["signed"]


def signed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Cache the signature of the `forward` of an autograd function, which PyTorch inspects in every call.

    Example:
        >>> @signed
        ... def forward(x, bound): ...
        >>> forward.__signature__
        <Signature (x, bound)>
    """
    forward.__signature__ = inspect.signature(forward)
    return forward
