"""Copies of networks, also of those that keep tensors of their last pass."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bayesify.errors import warn
from bayesify.formatting import listing

__all__ = ["copied_module"]

_Module = TypeVar("_Module", bound=nn.Module)


def copied_module(module: _Module, shared: Mapping[int, Any] | None = None) -> _Module:
    """Copy a module deeply.

    PyTorch copies no tensor that a pass computed with gradients, as attention maps kept for a look at them, or the weight of the
    old `torch.nn.utils.weight_norm`. Their values are copied here.

    Args:
        module: what to copy.
        shared: objects that the copy shares with the module, by their id.

    Warns of functions that the copy shares with the module.
    """
    if functions := _shared_functions(module):
        warn(
            "a copy of the network shares functions that use the network itself, and not the copy, in "
            f"{listing(functions, most=3)} (a lambda or inner function as a hook or attribute), so results may be those of the "
            "original. Make them methods of a module, or register hooks in every copy"
        )
    memo = dict(shared or {})
    for part in module.modules():
        attributes = {name: value for name, value in vars(part).items() if name not in ("_parameters", "_modules")}
        for x in tree_leaves(attributes):
            if isinstance(x, Tensor) and not x.is_leaf:
                memo[id(x)] = x.detach().clone()
    return copy.deepcopy(module, memo)


def _shared_functions(module: nn.Module) -> list[str]:
    """The names of modules whose hooks or attributes are functions that have parts of the network in their closure.

    Python copies no functions, unlike methods.
    """
    parts = list(module.modules())
    held = {id(x) for part in parts for x in (part, *part._parameters.values(), *vars(part).values()) if _is_state(x)}
    found = list[str]()
    for name, part in module.named_modules():
        functions = [*part._forward_hooks.values(), *part._forward_pre_hooks.values(), *vars(part).values()]
        if any(id(x) in held for function in functions for x in _enclosed(function)):
            found.append(repr(name) if name else "the network itself")
    return found


def _is_state(x: object) -> bool:
    return isinstance(x, nn.Module | Tensor | list | dict | set)


def _enclosed(function: object) -> Iterator[object]:
    """The values in the closure of a function; none of other objects."""
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # of a variable that has no value yet
            yield cell.cell_contents
