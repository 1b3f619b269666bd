"""One batch: what it is, how it reaches the device and the net, what is checked before it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from bayesify.core.modes import modes_kept

if TYPE_CHECKING:
    from bayesify.core.model import Bayesian
    from bayesify.core.outputs import Draws
    from bayesify.likelihoods import Likelihood

__all__ = ["Batch", "Inputs", "Place", "apply", "as_batch", "call", "check_batch", "check_targets", "take"]

T = TypeVar("T")
Inputs = Tensor | tuple[Any, ...] | list[Any] | dict[str, Any]


class Batch:
    """Inputs and targets, opaque on purpose: Fabric rounds tensors in a model's arguments to half precision, targets included."""

    __slots__ = ("auxiliary", "inputs", "size", "y")

    def __init__(self, inputs: Inputs, y: Tensor, auxiliary: Inputs | None = None) -> None:
        self.inputs, self.y, self.size, self.auxiliary = inputs, y, y.shape[0], auxiliary


def apply(function: Callable[..., T], inputs: Inputs, **kwargs: Any) -> T:
    """A function of the net's inputs: a tuple of inputs is passed as positional arguments, a dict as keyword arguments."""
    if isinstance(inputs, dict):
        return function(**inputs, **kwargs)
    return function(*inputs, **kwargs) if isinstance(inputs, tuple | list) else function(inputs, **kwargs)


def call(bnn: Bayesian, inputs: Inputs, samples: int) -> Draws:
    """The net's draws."""
    return apply(bnn, inputs, samples=samples)


def take(batch: Batch, index: Tensor, batch_dim: int, shared: tuple[str, ...]) -> Batch:
    """The rows `index` of a batch; keyword inputs named in `shared` belong to every row."""
    y, inputs = batch.y.index_select(0, index), batch.inputs
    if isinstance(inputs, Tensor):
        return Batch(inputs.index_select(batch_dim, index), y)

    def rows(x: Any) -> Any:
        return tree_map(lambda leaf: leaf.index_select(batch_dim, index), x)

    if isinstance(inputs, dict):
        return Batch({name: x if name in shared else rows(x) for name, x in inputs.items()}, y)
    return Batch(tuple(rows(x) for x in inputs), y)


class Place:
    """Moves a batch to the device, floating point inputs in the net's dtype, targets in at least float32."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self.target_dtype = torch.promote_types(dtype, torch.float32)

    def __call__(self, batch: Batch) -> Batch:
        return Batch(tree_map(lambda x: self._move(x, self.dtype), batch.inputs), self._move(batch.y, self.target_dtype))

    def _move(self, x: Any, dtype: torch.dtype) -> Any:
        if not isinstance(x, Tensor):
            return x
        return x.to(self.device, dtype if x.is_floating_point() else x.dtype, non_blocking=True)


def as_batch(name: str, item: Any) -> Batch:
    """The last element is y; one element before it is the inputs, several are a tuple of inputs."""
    if not isinstance(item, tuple | list) or len(item) < 2:
        raise TypeError(f"{name} must be (inputs, y), got {type(item).__name__}")
    *first, y = item
    for x in tree_leaves((first, y)):
        if not isinstance(x, Tensor) and type(x).__module__.partition(".")[0] in ("numpy", "pandas"):
            raise TypeError(f"{name} holds a {type(x).__name__}; use torch.as_tensor(...)")
    if not isinstance(y, Tensor) or y.dim() == 0:
        kind = "a single number" if isinstance(y, Tensor) else type(y).__name__
        raise TypeError(f"y of {name} must be a tensor with one row per example, got {kind}")
    return Batch(first[0] if len(first) == 1 else tuple(first), y)


def check_batch(
    name: str, batch: Batch, likelihood: Likelihood, batch_dim: int | None = None, shared: tuple[str, ...] = ()
) -> None:
    """Finite values, targets of the right kind and, where `batch_dim` is given, one row per example in every tensor."""
    if batch.size == 0:
        raise ValueError(f"{name} is empty: y has shape {tuple(batch.y.shape)}")
    for path, x in _named(batch.inputs):
        if not isinstance(x, Tensor):
            if batch_dim is not None and path not in shared:
                raise TypeError(f"{path or 'inputs'} of {name} must be a tensor, got {type(x).__name__}")
            continue
        if batch_dim is not None and path not in shared and (x.dim() <= batch_dim or x.shape[batch_dim] != batch.size):
            raise ValueError(
                f"{path or 'inputs'} of {name} must have {batch.size} rows in dimension {batch_dim}, one per target in y "
                f"{tuple(batch.y.shape)}, got shape {tuple(x.shape)}"
            )
        _check_finite(f"{path or 'inputs'} of {name}", x)
    _check_finite(f"y of {name}", batch.y)
    likelihood.check_targets(batch.y)


def _named(inputs: Inputs) -> Iterator[tuple[str, Any]]:
    if isinstance(inputs, Tensor):
        yield "", inputs
        return
    parts = inputs.items() if isinstance(inputs, dict) else ((f"inputs[{i}]", x) for i, x in enumerate(inputs))
    for key, part in parts:
        yield from ((key, leaf) for leaf in tree_leaves(part))


def _check_finite(name: str, x: Tensor) -> None:
    if x.is_floating_point() and not bool(x.isfinite().all()):
        wrong = (~x.isfinite()).flatten(1).any(1) if x.dim() > 1 else ~x.isfinite()
        rows = wrong.nonzero().flatten()
        raise ValueError(
            f"{name} has NaN or infinity in {len(rows)} of {len(wrong)} rows, first in row {int(rows[0])}; drop or impute them"
        )


def check_targets(whole: Batch, bnn: Bayesian, likelihood: Likelihood) -> None:
    """Send one example through the net: the shape of its outputs says which targets the likelihood can take.

    Raises:
        TypeError, ValueError: what the net or the likelihood has to say.
    """
    parameter = next(bnn.parameters())
    first = torch.zeros(1, dtype=torch.int64, device=whole.y.device)
    example = Place(parameter.device, parameter.dtype)(take(whole, first, bnn.batch_dim, bnn.shared))
    with torch.no_grad(), modes_kept(bnn.modules()):
        bnn.eval()
        outputs = call(bnn, example.inputs, samples=1).outputs
    if isinstance(outputs, Tensor):
        likelihood.check_targets(whole.y.to(outputs.device), outputs.expand(outputs.shape[0], whole.size, *outputs.shape[2:]))
