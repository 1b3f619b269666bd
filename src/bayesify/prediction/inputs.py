"""Inputs of `predict`: batches, checked, and the numbers of rows and draws per call of the network."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from bayesify.core.model import Bayesian
from bayesify.core.objects import is_object, tensors_in
from bayesify.core.values import are_finite
from bayesify.errors import DataError, warn
from bayesify.formatting import plural

__all__ = ["batches_of", "draws_per_call", "leaves_of", "warn_of_lost_rows"]

_ROWS_PER_CALL = 2048
_BYTES_PER_CALL = 1_600_000  # of inputs on a CPU
_BYTES_OF_IMAGES = 400_000  # of those of all draws of a call: features of convolutions then fit the caches
_ROWS_ON_GPU, _BYTES_ON_GPU = 2**14, 50_000_000  # of inputs, where the number of operations determines the time


def batches_of(inputs: Any, batch_size: int | None, dim: int, device: torch.device | None) -> tuple[Iterable[Any], int | None]:
    """Checked batches and their number, None if unknown."""
    if isinstance(inputs, Tensor | tuple | Mapping):
        x = _checked(inputs, dim, "inputs")
        if sparse := [leaf.layout for leaf in tree_leaves(x) if leaf.layout is not torch.strided]:
            raise DataError(
                f"inputs are cut into batches, which a sparse tensor ({sparse[0]}) cannot be; give an iterable of batches: "
                "predict(bnn, [((x, adjacency),)], ...)"
            )
        sizes = {leaf.shape[dim] for leaf in tree_leaves(x)}
        if len(sizes) > 1:
            raise DataError(
                f"inputs must all have the same number of rows, got {sorted(sizes)}; with an input that all rows share, give an "
                "iterable of batches: predict(bnn, [((x, table),)], ...)"
            )
        (rows,) = sizes
        if batch_size is None:
            batch_size = min(1024, _rows_per_call(x, dim, device))
        starts = range(0, rows, batch_size)
        return (tree_map(lambda t, i=i: t.narrow(dim, i, min(batch_size, rows - i)), x) for i in starts), len(starts)
    if hasattr(inputs, "to") and not isinstance(inputs, Dataset) and _holds_tensors(inputs):  # a graph may be an iterable of parts
        return [_checked(inputs, dim, "inputs")], 1
    if not isinstance(inputs, Iterable) or isinstance(inputs, str | bytes):
        raise TypeError(
            f"inputs must be a tensor, a tuple or mapping of tensors or an iterable of batches, got {type(inputs).__name__}"
        )
    return (_checked(_without_targets(b, i), dim, f"batch {i}") for i, b in enumerate(inputs)), operator.length_hint(inputs) or None


def warn_of_lost_rows(inputs: Any) -> None:
    """Warn of a loader whose rows come in an order that is not known afterwards, or that leaves some out."""
    if not isinstance(inputs, DataLoader):
        return
    sampler = inputs.sampler
    if isinstance(sampler, RandomSampler | SubsetRandomSampler | WeightedRandomSampler) or getattr(sampler, "shuffle", False):
        warn(
            "the loader shuffles: predictions are in another order than the targets of its data set. Predict with "
            "DataLoader(..., shuffle=False)"
        )
    elif inputs.drop_last and inputs.batch_size and isinstance(sampler, Sized) and (lost := len(sampler) % inputs.batch_size):
        warn(f"the loader leaves out the last {plural(lost, 'row')}: predict with DataLoader(..., drop_last=False)")


def _without_targets(batch: Any, index: int) -> Any:
    if not isinstance(batch, list | tuple):
        return batch
    if len(batch) not in (1, 2):
        raise DataError(
            f"batch {index} must be (x,) or (x, y), got {len(batch)} elements; write several inputs as ((a, b), y) or as a mapping "
            "of names to tensors"
        )
    return batch[0]


def _checked(x: Any, dim: int, name: str) -> Any:
    """`x` as a tensor, tuple or dict, checked: every leaf is a tensor with rows and finite values."""
    x = dict(x) if isinstance(x, Mapping) else tuple(x) if isinstance(x, list | tuple) else x
    leaves = tree_leaves(x)
    for leaf in leaves:
        if _holds_tensors(leaf):  # not all of them are inputs: graphs have labels, which may be missing
            continue
        if not isinstance(leaf, Tensor):
            raise TypeError(f"{name} must be a tensor or consist of tensors, got {type(leaf).__name__}; use torch.as_tensor(...)")
        if leaf.dim() <= dim or leaf.shape[dim] == 0:
            raise DataError(f"{name} must have at least one row in dimension {dim}, got shape {tuple(leaf.shape)}")
        if leaf.is_meta:
            raise DataError(f"{name} must have values, got a tensor {tuple(leaf.shape)} on the meta device")
        if leaf.is_floating_point() and not are_finite(values := _values(leaf)):
            raise DataError(
                f"{name} must be finite, got {int((~values.isfinite()).sum())} NaN or infinite values in shape "
                f"{tuple(leaf.shape)}; impute or drop them first"
            )
    if not leaves:
        raise DataError(f"{name} must have at least one tensor, got {x!r}")
    return x


def _holds_tensors(x: Any) -> bool:
    return is_object(x) and any(True for _ in tensors_in(x))


def leaves_of(x: Any) -> list[Tensor]:
    """The tensors of a batch, also those in objects, such as graphs."""
    return [tensor for leaf in tree_leaves(x) for tensor in tensors_in(leaf)]


def draws_per_call(root: Bayesian | None, batch: Any, dim: int, device: torch.device | None, samples: int) -> int:
    """Default number of draws per call of the network."""
    # what precedes a single random layer, often the last, is replayed: the cost of a draw does not depend on the inputs' size
    single = root is not None and sum(layer.posterior.is_random for _, layer in root.random_layers()) == 1
    leaves = leaves_of(batch)
    images = any(leaf.dim() > 3 for leaf in leaves)
    size = math.inf if single else _BYTES_OF_IMAGES if images else _BYTES_PER_CALL
    rows = next((leaf.shape[dim] for leaf in leaves if leaf.dim() > dim and leaf.shape[dim]), 1)
    return samples if root is not None and root.one_pass else max(1, _rows_per_call(batch, dim, device, size) // rows)


def _rows_per_call(x: Any, dim: int, device: torch.device | None, most: float = _BYTES_PER_CALL) -> int:
    """Rows per call of the network, from the size of these rows and the device; on a CPU about `most` bytes."""
    leaves = [leaf for leaf in leaves_of(x) if leaf.dim() > dim and leaf.shape[dim]]
    size = max(1, sum(leaf.numel() * leaf.element_size() / leaf.shape[dim] for leaf in leaves))
    if device is None or device.type == "cpu":
        return int(max(64, min(_ROWS_PER_CALL, most / size)))
    if not all(leaf.is_floating_point() for leaf in leaves):  # tokens: their size says nothing of that of the features
        return _ROWS_PER_CALL
    return int(max(_ROWS_PER_CALL, min(_ROWS_ON_GPU, _BYTES_ON_GPU / size)))


def _values(x: Tensor) -> Tensor:
    """The values that a tensor stores: all, or those of a sparse one."""
    if x.layout is torch.strided:
        return x
    return (x.coalesce() if x.layout is torch.sparse_coo else x).values()
