"""Nodes of the autograd graph that are written by hand: what they share."""

import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["signed"]


def signed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the signature of a node's `forward`: PyTorch asks for it in every call, and finding it takes longer than a small layer.

    Example:
        >>> @signed
        ... def forward(x, bound): ...
        >>> forward.__signature__
        <Signature (x, bound)>
    """
    forward.__signature__ = inspect.signature(forward)
    return forward
