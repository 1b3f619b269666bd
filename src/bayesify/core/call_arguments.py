"""The arguments of a network, from inputs that are one object: a tensor, a tuple, or a dict."""

from __future__ import annotations

from typing import Any

__all__ = ["arguments_of"]


def arguments_of(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments: the elements of a tuple or list, the items of a dict, or a single object."""
    if isinstance(inputs, dict):
        return (), inputs
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}
