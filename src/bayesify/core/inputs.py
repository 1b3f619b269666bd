"""The inputs of one call of a network: which tensors have a row for every example, and how the rows are folded.

Shapes: S draws, B batch.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from bayesify.core.objects import is_object, tensors_in
from bayesify.errors import DataError

__all__ = ["NETWORK_ERRORS", "Arguments", "Inputs", "fold", "input_names", "input_parameters"]

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

NETWORK_ERRORS = Exception
"""What networks raise for inputs or operations that they do not take: anything, also exceptions of their own."""

_FEW = 4  # settings in a tuple or list
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def input_parameters(net: nn.Module) -> dict[str, inspect.Parameter]:
    """The parameters of a network's `forward`, by name."""
    return dict(inspect.signature(net.forward).parameters)


def input_names(net: nn.Module) -> list[str]:
    """The names of a network's positional inputs."""
    return [name for name, parameter in input_parameters(net).items() if parameter.kind in _POSITIONAL]


class Inputs:
    """Positional and keyword inputs.

    Attributes:
        batch: B; rows are examples, or parts of them, such as the nodes of graphs.
        objects: those that hold tensors, such as graphs.
        indivisible: why no input has rows that can be repeated: an object has all tensors, or all are `unbatched`; else empty.
        kind: numbers of dimensions, types, which inputs have rows, settings, and the state of the network; no sizes. Verdicts on
            folding are stored by it.
        family: `kind` without what may have ever new values: integers, strings, and the state.
        shared: whether several passes get these inputs; each then gets copies, which networks may change in place.

    Args:
        args, kwargs: the inputs of the network.
        names: names of the positional inputs; required if `unbatched` names some.
        unbatched: names of inputs without rows.
        batch_dim: the dimension of the rows.
        state: of the network; see `Switches`.
        updates: of its weights; see `Switches`.

    Raises:
        DataError: no input has a batch dimension, or a nested tensor has no sizes.
    """

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        names: list[str],
        unbatched: Collection[str] = (),
        batch_dim: int = 0,
        state: int = 0,
        updates: int = 0,
    ) -> None:
        self.args, self.kwargs, self.batch_dim, self.updates, self.shared = args, kwargs, batch_dim, updates, False
        tops = (*args, *kwargs.values())
        self.spec: TreeSpec | None = None  # of nested inputs only, because pytrees are slow
        self.leaves: list[Any] = list(tops)
        if not all(isinstance(x, Tensor) for x in tops):
            self.leaves, self.spec = tree_flatten((args, kwargs))
        top_names = [*(names[i] if i < len(names) else str(i) for i in range(len(args))), *kwargs]
        if not unbatched:
            self.may_have_rows = [True] * len(self.leaves)
        elif self.spec is None:
            self.may_have_rows = [name not in unbatched for name in top_names]
        else:
            self.may_have_rows = [name not in unbatched for name, x in zip(top_names, tops, strict=True) for _ in tree_leaves(x)]
        self.objects = [] if self.spec is None else [x for x in self.leaves if is_object(x) and any(True for _ in tensors_in(x))]
        self.indivisible = ""
        self.batch = self._batch(top_names)
        self.has_rows = [may and self._sized(x) for x, may in self.pairs()]
        kinds = tuple(
            (x.dim(), x.dtype, has) if isinstance(x, Tensor) else (type(x), x if isinstance(x, bool) else None)
            for x, has in zip(self.leaves, self.has_rows, strict=True)
        )
        self.family = tuple(kwargs), kinds
        self.kind = self.family, () if self.spec is None else tuple(map(_setting, tops)), state

    def pairs(self) -> Iterable[tuple[Any, bool]]:
        """Leaves, and whether they may have rows."""
        return zip(self.leaves, self.may_have_rows, strict=True)

    @property
    def are_differentiated(self) -> bool:
        """Whether an input that requires gradients is a leaf of the graph, so that the caller differentiates with respect to it."""
        leaves = [x for x in self.leaves if isinstance(x, Tensor) and x.requires_grad]
        return torch.is_grad_enabled() and any(x.is_leaf for x in leaves)

    @property
    def lengths(self) -> tuple[tuple[int, ...], ...]:
        """The orders of magnitude of all sizes but B: numbers of bits, which ever new lengths of sequences have few of."""
        skipped = [self.batch_dim if has else -1 for has in self.has_rows]
        return tuple(
            tuple(n.bit_length() for i, n in enumerate(x.shape) if i != dim and type(n) is int)  # those of nested tensors are not
            for x, dim in zip(self.leaves, skipped, strict=True)
            if isinstance(x, Tensor)
        )

    @property
    def say_little(self) -> bool:
        """Whether floating-point inputs are constant, have equal rows or are not finite: draws may agree whatever is computed."""
        chosen = [x for x, has in zip(self.leaves, self.has_rows, strict=True) if has and x.is_floating_point() and x.numel()]
        firsts = [x.narrow(self.batch_dim, 0, 1) if self.batch > 1 else x.reshape(-1)[0] for x in chosen]
        constant = all(bool((x == first).all()) for x, first in zip(chosen, firsts, strict=True))
        return bool(chosen) and (constant or not all(bool(x.isfinite().all()) for x in chosen))

    def without(self, positions: Collection[int]) -> None:
        """Treat these leaves as inputs without rows."""
        self.has_rows = [has and i not in positions for i, has in enumerate(self.has_rows)]

    def _sized(self, x: Any) -> bool:
        """Whether a leaf can be cut into rows and folded; sparse tensors cannot."""
        if not isinstance(x, Tensor) or x.layout is not torch.strided:
            return False
        return x.dim() > self.batch_dim and x.shape[self.batch_dim] == self.batch

    def _batch(self, names: list[str]) -> int:
        for x, may in self.pairs():
            if isinstance(x, Tensor) and x.is_nested and x.layout is torch.strided:
                raise DataError("nested tensors of PyTorch's first layout have no sizes; make them with layout=torch.jagged")
            if may and isinstance(x, Tensor) and x.dim() > self.batch_dim:
                return x.shape[self.batch_dim]
        for x in self.objects:
            for tensor in tensors_in(x):
                if tensor.dim() > self.batch_dim:
                    self.indivisible = f"its input is an object, a {type(x).__name__}, whose rows cannot be repeated"
                    return tensor.shape[self.batch_dim]
        for x in self.leaves:
            if isinstance(x, Tensor) and x.dim() > self.batch_dim:
                self.indivisible = "none of its inputs has rows (unbatched)"
                return x.shape[self.batch_dim]
        kinds = {name: type(x).__name__ for name, x in zip(names, (*self.args, *self.kwargs.values()), strict=True)}
        raise DataError(
            f"the network needs an input with a batch dimension {self.batch_dim}, a tensor or an object with tensors, got {kinds}"
        )

    def map(self, change: Callable[[Tensor], Tensor], chosen: Collection[bool] | None = None) -> Arguments:
        """Arguments with every chosen tensor changed, by default those that have rows, and copies of the others."""
        chosen = self.has_rows if chosen is None else chosen
        leaves = [
            change(x) if take else x.clone() if isinstance(x, Tensor) else x for x, take in zip(self.leaves, chosen, strict=True)
        ]
        if self.spec is None:
            count = len(self.args)
            return tuple(leaves[:count]), dict(zip(self.kwargs, leaves[count:], strict=True))
        args, kwargs = tree_unflatten(leaves, self.spec)
        return tuple(args), kwargs

    def folded(self, samples: int) -> Arguments:
        """(B, ...) to (S*B, ...), all rows of draw 0 first."""
        if samples == 1:
            return self.map(torch.clone) if self.shared else (self.args, self.kwargs)
        return self.map(lambda x: fold(x, samples))

    @property
    def can_be_cut(self) -> bool:
        """Whether the first rows are valid inputs: no tensor can hold indices of rows, as the edges of a graph do."""
        tensors = [x for x in self.leaves if isinstance(x, Tensor)]
        if self.indivisible or self.objects or any(x.layout is not torch.strided for x in tensors):  # the adjacency of a graph
            return False
        integers = list(map(_has_integers, tensors))
        return not any(integers) or (all(integers) and all(self.has_rows))

    def accepts(self, rows: int) -> bool:
        """Whether outputs may have this number of rows, B or another where rows are parts of examples, such as nodes of graphs.

        They may be if an object holds them, if no input has rows, or if a tensor has indices of them: edges, the offsets of
        tokens, or the number of the graph of each node.
        """
        if rows == self.batch:
            return True
        if self.can_be_cut:
            return False
        tensors = [(x, has) for x, has in zip(self.leaves, self.has_rows, strict=True) if isinstance(x, Tensor)]
        if self.indivisible or self.objects:
            return True
        if any(x.layout is not torch.strided or (_has_integers(x) and not has) for x, has in tensors):
            return True
        return any(_has_integers(x) and x.dim() == 1 and int(x.max()) + 1 == rows for x, _ in tensors)

    def examples(self, outputs: Any, dim: int) -> int:
        """The number of examples, which outputs have in this dimension."""
        if isinstance(outputs, Tensor) and outputs.dim() > dim and outputs.shape[dim] == self.batch:
            return self.batch
        rows = next((y.shape[dim] for y in tree_leaves(outputs) if isinstance(y, Tensor) and y.dim() > dim), self.batch)
        return rows if self.accepts(rows) else self.batch

    @property
    def ambiguous(self) -> list[int]:
        """Positions of leaves whose size may equal B by chance, such as a (T, T) mask with T = B: all after the first with rows."""
        return [i for i, has in enumerate(self.has_rows) if has][1:]


def _has_integers(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)


def _setting(x: Any) -> Any:
    """The value of an argument by which a network may choose what it computes; None for all others."""
    if type(x).__module__ == "numpy" and getattr(x, "ndim", None) == 0:
        x = x.item()
    if isinstance(x, types.SimpleNamespace):
        x = vars(x)
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        x = {field.name: getattr(x, field.name, None) for field in dataclasses.fields(x)}
    if isinstance(x, set | frozenset) and len(x) <= _FEW:
        return tuple(sorted(repr(part) for part in x if isinstance(part, str | int)))
    if isinstance(x, dict):
        return tuple((key, _setting(value)) for key, value in x.items())
    if isinstance(x, tuple | list) and len(x) <= _FEW:  # a longer one has a value for each row
        return tuple(map(_setting, x))
    if isinstance(x, float):
        return x > 0, x < 0  # such as the weight of a gradient reversal, which changes in every step
    constant = isinstance(x, str | enum.Enum) or (isinstance(x, int) and not torch.compiler.is_compiling())
    return x if constant else None


def fold(x: Tensor, samples: int) -> Tensor:
    """(B, ...) to (S*B, ...), all rows of draw 0 first; always a copy."""
    return x.repeat(samples, *[1] * (x.dim() - 1))
