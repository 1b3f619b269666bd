"""Copies of networks, also of those that keep tensors of their last pass."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

__all__ = ["copied_module"]

_Module = TypeVar("_Module", bound=nn.Module)


def copied_module(module: _Module, shared: Mapping[int, Any] | None = None) -> _Module:
    """Copy a module deeply.

    PyTorch copies no tensor that a pass computed with gradients, as attention maps kept for a look at them, or the weight of the
    old `torch.nn.utils.weight_norm`. Their values are copied here.

    Args:
        module: what to copy.
        shared: objects that the copy shares with the module, by their id.
    """
    memo = dict(shared or {})
    for part in module.modules():
        attributes = {name: value for name, value in vars(part).items() if name not in ("_parameters", "_modules")}
        for x in tree_leaves(attributes):
            if isinstance(x, Tensor) and not x.is_leaf:
                memo[id(x)] = x.detach().clone()
    return copy.deepcopy(module, memo)
