"""Weights that a network looks at, such as for their dtype, and does not compute with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from bayesify.core.pass_values import NewReadError
from bayesify.core.tensor_functions import takes_values, tensors_in, values_taken

if TYPE_CHECKING:
    from bayesify.core.layer import BayesianLayer

__all__ = ["as_unread", "joined"]


class _Unread(Tensor):
    """The posterior mean of a weight with which the network has not computed so far; doing so raises a `NewReadError`."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if takes_values(name, result):
            for x in tensors_in(values_taken(name, args, kwargs or {})):
                if isinstance(x, _Unread):
                    raise NewReadError(vars(x)["bayesify_layer"])
        return result


def as_unread(mean: Tensor, layer: BayesianLayer) -> Tensor:
    """A posterior mean as a tensor to look at; those of other classes, such as sharded ones, stay as they are."""
    if type(mean) not in (Tensor, nn.Parameter):
        return mean
    looked_at = cast(Any, mean.as_subclass(_Unread))
    looked_at.bayesify_layer, looked_at._is_param = layer, isinstance(mean, nn.Parameter)
    return looked_at


def joined(values: Sequence[Tensor]) -> Tensor:
    """Concatenate weights of several layers; to look at, if one of them is."""
    unread = next((x for x in values if isinstance(x, _Unread)), None)
    if unread is None:
        return torch.cat(list(values))
    with torch._C.DisableTorchFunctionSubclass():
        return as_unread(torch.cat(list(values)), vars(unread)["bayesify_layer"])
