"""Which tensors of a pass depend on its inputs, told by marks that PyTorch's functions pass on.

A folded pass needs it once: a random layer that is given something without the rows of the batch (positions, `torch.arange(T)`)
would take parts of it for different draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

if TYPE_CHECKING:
    from bayesify.core.sites import Site

__all__ = ["Rows", "RowsError", "Watch", "mark", "mark_of", "tensors_in"]


class Watch(Protocol):
    """What stands between a site and its posterior while a pass is looked at."""

    def layer(self, site: Site, x: Tensor) -> Tensor:
        """The site's output."""
        ...


class RowsError(RuntimeError):
    """A random layer met an input without the rows of the batch."""


class Rows(TorchFunctionMode):
    """Makes sure of a pass that its random layers are given rows of all draws.

    Args:
        rows: S*B.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def layer(self, site: Site, x: Tensor) -> Tensor:
        """The site's output.

        Raises:
            RowsError: x does not depend on the inputs, and has not their rows.
        """
        if mark_of(x) is None and (x.dim() == 0 or x.shape[0] != self.rows):
            raise RowsError
        with torch._C.DisableTorchFunction():
            return mark(site.sampled(x), True)

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(mark_of(x) for x in tensors_in((args, kwargs))):
            return tree_map_only(Tensor, lambda y: mark(y, True), result)
        return result


def mark(x: Tensor, value: bool) -> Tensor:
    """The tensor itself, marked."""
    cast(Any, x).bayesify_mark = value
    return x


def mark_of(x: Tensor) -> bool | None:
    """The tensor's mark; None where it has none."""
    return getattr(x, "bayesify_mark", None)


def tensors_in(values: Any) -> Iterator[Tensor]:
    """All tensors in nested arguments: `tree_leaves`, but quick."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from tensors_in(value)
    elif isinstance(values, dict):
        yield from tensors_in(list(values.values()))
