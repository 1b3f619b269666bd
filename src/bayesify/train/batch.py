"""One batch: its rows, the move to the device, the call of the network, and the checks before use."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from bayesify.core.call_arguments import arguments_of
from bayesify.core.inputs import NETWORK_ERRORS
from bayesify.core.modes import eval_mode
from bayesify.core.objects import is_object, moved
from bayesify.core.values import are_finite, in_dtype, network_dtype
from bayesify.errors import DataError

if TYPE_CHECKING:
    from bayesify.core.model import Bayesian
    from bayesify.likelihoods import Likelihood

__all__ = [
    "Batch",
    "Inputs",
    "ToDevice",
    "Weighted",
    "apply",
    "as_batch",
    "batched",
    "check_batch",
    "check_output_shape",
    "select_inputs",
    "select_rows",
]

T = TypeVar("T")
Inputs = Tensor | tuple[Any, ...] | list[Any] | dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Weighted:
    r"""Tensors whose examples have weights: the log likelihood of example i counts $w_i$ times.

    Training maximizes $\sum_i w_i (\mathrm{E} \log p(y_i \mid x_i, \theta) - \mathrm{KL}_i) - \mathrm{KL}$, with the KL of the
    example where a method has one. The weight 2 thus has the effect of two copies, and the scale of the weights matters.
    Validation averages with the weights.

    Args:
        data: `(inputs, y)` as for `fit`, tensors.
        weights: (N,), finite, at least 0 and not all 0.

    Raises:
        DataError: other weights.

    Example:
        >>> from bayesify.train import Weighted
        >>> data = Weighted((torch.zeros(3, 2), torch.zeros(3)), torch.tensor([1.0, 2.0, 0.5]))
    """

    data: tuple[Inputs, Tensor]
    weights: Tensor

    def __post_init__(self) -> None:
        rows = len(as_batch("data", self.data).y)
        if self.weights.shape != (rows,) or not self.weights.is_floating_point():
            shape, dtype = tuple(self.weights.shape), self.weights.dtype
            raise DataError(f"weights must be floating point, one per example ({rows},), got {shape}, {dtype}")
        if not bool((self.weights.isfinite() & (self.weights >= 0)).all() & (self.weights > 0).any()):
            raise DataError("weights must be finite, at least 0 and not all 0; drop examples whose weight is unknown")


class Batch:
    """Inputs and targets; not a pytree, because Fabric would round tensors in a call's arguments, targets included, to half."""

    __slots__ = ("auxiliary", "inputs", "size", "weights", "y")

    def __init__(self, inputs: Inputs, y: Tensor, weights: Tensor | None = None, auxiliary: Inputs | None = None) -> None:
        self.inputs, self.y, self.size, self.weights, self.auxiliary = inputs, y, y.shape[0], weights, auxiliary

    @property
    def data(self) -> tuple[Inputs, Tensor] | Weighted:
        """Inputs and targets as an argument of `fit`."""
        return (self.inputs, self.y) if self.weights is None else Weighted((self.inputs, self.y), self.weights)

    @property
    def tensors(self) -> tuple[Any, ...]:
        """Inputs, targets and, if there are any, weights: what `Batch(*tensors)` takes."""
        return (self.inputs, self.y) if self.weights is None else (self.inputs, self.y, self.weights)


def apply(function: Callable[..., T], inputs: Inputs, **kwargs: Any) -> T:
    """Call a function, such as a network, with the network's inputs and further keyword arguments."""
    args, named = arguments_of(inputs)
    return function(*args, **named, **kwargs)


def select_rows(batch: Batch, index: Tensor, batch_dim: int, unbatched: tuple[str, ...]) -> Batch:
    """Return the rows `index` of a batch."""
    weights = None if batch.weights is None else batch.weights.index_select(0, index)
    return Batch(select_inputs(batch.inputs, index, batch_dim, unbatched), batch.y.index_select(0, index), weights)


def select_inputs(inputs: Inputs, index: Tensor, batch_dim: int, unbatched: tuple[str, ...]) -> Inputs:
    """Return the rows `index` of inputs; keyword inputs named in `unbatched` are passed on."""
    rows = tree_map(lambda x: x.index_select(batch_dim, index.to(x.device)), batched(inputs, unbatched))
    return {**inputs, **rows} if isinstance(inputs, dict) else rows


def batched(inputs: Inputs, unbatched: tuple[str, ...]) -> Inputs:
    """Return the inputs with one row per example: all but the keyword inputs named in `unbatched`."""
    return {name: x for name, x in inputs.items() if name not in unbatched} if isinstance(inputs, dict) else inputs


class ToDevice:
    """Move batches to a device, floating point inputs in the network's dtype, targets in at least float32."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self.ahead = device.type == "cuda"  # nothing waits for a copy to the CPU, which would be read before it has arrived
        self.target_dtype = torch.promote_types(dtype, torch.float32)

    def __call__(self, batch: Batch) -> Batch:
        weights = self._move(batch.weights, self.target_dtype, "weights")
        return Batch(self.inputs(batch.inputs), self._move(batch.y, self.target_dtype, "y"), weights)

    def inputs(self, inputs: Inputs) -> Inputs:
        """Move inputs alone."""
        return tree_map(lambda x: self._move(x, self.dtype, "inputs"), inputs)

    def _move(self, x: Any, dtype: torch.dtype, name: str) -> Any:
        return in_dtype(x, dtype, name).to(self.device, non_blocking=self.ahead) if isinstance(x, Tensor) else moved(x, self.device)


def as_batch(name: str, item: Any) -> Batch:
    """Return the batch of `(inputs, y)`, `(input_1, ..., input_k, y)`, these `Weighted`, or an object with inputs and `y`, a graph.

    `name` is that of the data in errors.

    Raises:
        TypeError: another structure or type.
    """
    if isinstance(item, Weighted):
        batch = as_batch(name, item.data)
        return Batch(batch.inputs, batch.y, item.weights.to(batch.y.device))
    if is_object(item) and isinstance(y := getattr(item, "y", None), Tensor):
        item = item, y
    if not isinstance(item, tuple | list) or len(item) < 2:
        raise TypeError(f"{name} must be (inputs, y), got {type(item).__name__}")
    *inputs, y = item
    for x in tree_leaves((inputs, y)):
        if not isinstance(x, Tensor) and type(x).__module__.partition(".")[0] in ("numpy", "pandas"):
            raise TypeError(f"{name} contains a {type(x).__name__}; use torch.as_tensor(...)")
    if not isinstance(y, Tensor) or y.dim() == 0:
        kind = "a single number" if isinstance(y, Tensor) else type(y).__name__
        raise TypeError(f"y of {name} must be a tensor with one row per example, got {kind}")
    return Batch(inputs[0] if len(inputs) == 1 else tuple(inputs), y)


def check_batch(
    name: str, batch: Batch, likelihood: Likelihood, batch_dim: int | None = None, unbatched: tuple[str, ...] = ()
) -> None:
    """Check that values are finite, that the likelihood takes the targets and, with `batch_dim`, the rows of every tensor.

    Raises:
        TypeError, DataError: a check fails.
    """
    if batch.size == 0:
        raise DataError(f"{name} is empty: y has shape {tuple(batch.y.shape)}")
    for path, x in _named_leaves(batch.inputs):
        if not isinstance(x, Tensor):
            if batch_dim is not None and path not in unbatched:
                way_out = "; give batches of objects, a DataLoader" if is_object(x) else ""
                raise TypeError(f"{path or 'inputs'} of {name} must be a tensor, got {type(x).__name__}{way_out}")
            continue
        if batch_dim is not None and path not in unbatched and (x.dim() <= batch_dim or x.shape[batch_dim] != batch.size):
            raise DataError(
                f"{path or 'inputs'} of {name} must have {batch.size} rows in dimension {batch_dim}, one per target in y "
                f"{tuple(batch.y.shape)}, got shape {tuple(x.shape)}"
            )
        _check_finite(f"{path or 'inputs'} of {name}", x)
    _check_finite(f"y of {name}", batch.y)
    likelihood.check_targets(batch.y)


def _named_leaves(inputs: Inputs) -> Iterator[tuple[str, Any]]:
    if not isinstance(inputs, tuple | list | dict):  # a tensor or an object
        yield "", inputs
        return
    parts = inputs.items() if isinstance(inputs, dict) else ((f"inputs[{i}]", x) for i, x in enumerate(inputs))
    for key, part in parts:
        yield from ((key, leaf) for leaf in tree_leaves(part))


def _check_finite(name: str, x: Tensor) -> None:
    if x.is_floating_point() and not are_finite(x):
        nonfinite = (~x.isfinite()).flatten(1).any(1) if x.dim() > 1 else ~x.isfinite()
        rows = nonfinite.nonzero().flatten()
        raise DataError(
            f"{name} has NaN or infinity in {len(rows)} of {len(nonfinite)} rows, first in row {int(rows[0])}; drop or impute them"
        )


def check_output_shape(data: Batch, bnn: Bayesian, likelihood: Likelihood, batch_size: int = 1) -> None:
    """Check the targets against the shape of the network's outputs, from a pass of the first example, or of as many as it takes.

    Raises:
        TypeError, DataError: of the network or the likelihood.
    """
    to_device, sizes = ToDevice(next(bnn.parameters()).device, network_dtype(bnn)), (1, min(batch_size, data.size))
    outputs = None
    for size in sizes:
        examples = to_device(select_rows(data, torch.arange(size, device=data.y.device), bnn.batch_dim, bnn.unbatched))
        try:
            with torch.no_grad(), eval_mode(bnn):
                outputs = apply(bnn, examples.inputs, samples=1).outputs
            outputs = outputs[:, :1] if size > 1 and isinstance(outputs, Tensor) else outputs
            break
        except NETWORK_ERRORS:
            if size == sizes[-1]:
                raise
    if isinstance(outputs, Tensor):
        likelihood.check_targets(data.y.to(outputs.device), outputs.expand(outputs.shape[0], data.size, *outputs.shape[2:]))
