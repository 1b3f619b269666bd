"""The outputs of passes, draw by draw: one leaf of what the net returns at a time.

Shapes: S draws, B batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["stack", "unfold"]


def unfold(y: Any, samples: int, batch: int) -> Any:
    """(S*B, ...) to (S, B, ...)."""
    _check_output(y, batch, 0, samples)
    return y.unflatten(0, (samples, batch)) if isinstance(y, Tensor) else y


def stack(runs: tuple[Any, ...], batch: int, batch_dim: int) -> Any:
    """Outputs of a pass per draw, with the batch in any dimension, to (S, B, ...)."""
    for y in runs:
        _check_output(y, batch, batch_dim, 1)
    return torch.stack([y.movedim(batch_dim, 0) for y in runs]) if isinstance(runs[0], Tensor) else runs[0]


def _check_output(y: Any, batch: int, batch_dim: int, samples: int) -> None:
    """Every tensor the net returns has a batch; an object that may hide tensors cannot be split into draws."""
    if not isinstance(y, Tensor):
        if y is not None and not isinstance(y, bool | int | float | str):
            raise TypeError(
                f"the net returned a {type(y).__name__}, whose tensors cannot be told apart by draw; return tensors, or tuples, "
                "lists or dicts of them, or register the type with torch.utils._pytree.register_pytree_node"
            )
    elif y.dim() <= batch_dim or y.shape[batch_dim] != samples * batch:
        raise ValueError(
            f"the net returned a tensor of shape {tuple(y.shape)} for {batch} examples and {samples} draws in one pass; its "
            f"dimension {batch_dim} must be the batch ({samples * batch} rows). If the batch is another dimension, "
            "say so: bayesify(net, method, batch_dim=1)"
        )
