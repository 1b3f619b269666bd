"""Outputs of passes, tensors or nested ones, separated by draw.

Shapes: S draws, B batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from bayesify.errors import ConfigurationError

__all__ = ["copied", "stack", "unfold"]


def copied(outputs: Any) -> Any:
    """Outputs in memory of their own: a network may write its next outputs where it wrote these (CUDA graphs, static buffers).

    Objects other than tensors, and tuples, lists and dicts of them, are returned as they are.
    """
    if isinstance(outputs, Tensor):
        return outputs.clone()
    if type(outputs) in (tuple, list):
        return type(outputs)(copied(y) for y in outputs)
    return {name: copied(y) for name, y in outputs.items()} if type(outputs) is dict else outputs


def unfold(outputs: Any, samples: int, batch: int) -> Any:
    """Reshape (S*B, ...) to (S, B, ...)."""

    def of_leaf(y: Any) -> Any:
        _check_output(y, batch, 0, samples)
        return y.unflatten(0, (samples, batch)) if isinstance(y, Tensor) else y

    return tree_map(of_leaf, outputs)


def stack(runs: Sequence[Any], batch: int, batch_dim: int) -> Any:
    """Stack the outputs of one pass per draw, with the batch in any dimension, to (S, B, ...)."""
    if isinstance(runs[0], Tensor):  # pytrees are slow
        return _stack(runs, batch, batch_dim)
    return tree_map(lambda *ys: _stack(ys, batch, batch_dim), *runs)


def _stack(runs: Sequence[Any], batch: int, batch_dim: int) -> Any:
    for y in runs:
        _check_output(y, batch, batch_dim, 1)
    if not isinstance(runs[0], Tensor):
        return runs[0]
    runs = [y.movedim(batch_dim, 0) if batch_dim else y for y in runs]
    return runs[0].unsqueeze(0) if len(runs) == 1 else torch.stack(runs)


def _check_output(y: Any, batch: int, batch_dim: int, samples: int) -> None:
    """Check that every output is a tensor with a batch, or a plain value; other objects may contain tensors."""
    if not isinstance(y, Tensor):
        if y is not None and not isinstance(y, bool | int | float | str):
            raise TypeError(
                f"the network returned a {type(y).__name__}, whose tensors cannot be separated by draw; select "
                'tensors with bayesify(net, method, output=...), such as "logits", a position or a function'
            )
    elif y.dim() <= batch_dim or y.shape[batch_dim] != samples * batch:
        if batch_dim == 0:
            way_out = (
                "For a batch in dimension 1 of inputs and outputs, use bayesify(net, method, batch_dim=1); if only the inputs have "
                "it there (an LSTM without batch_first=True), transpose them in the network's forward. One of several outputs, of "
                "graphs and not of nodes, is selected by bayesify(net, method, output=...). If rows of the inputs are parts of one "
                "example, such as a set or a graph, name all inputs: bayesify(net, method, unbatched=[...]). A network without a "
                "row per example, such as an object detector, gives one draw at a time: bnn.function(seed)(images)"
            )
        else:
            way_out = "It must be the same dimension in inputs and outputs: transpose one of them in the network's forward"
        raise ConfigurationError(
            f"the network returned a tensor of shape {tuple(y.shape)} for {batch} examples and {samples} draws in one pass; its "
            f"dimension {batch_dim} must be the batch ({samples * batch} rows). {way_out}"
        )
