"""By what a network may choose what it computes, beside its inputs: flags and texts among its attributes, hooks, and submodules."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import nn

from bayesify.core.layer import BayesianLayer
from bayesify.core.recent import Recent

__all__ = ["Switches", "observer"]

H = TypeVar("H", bound=Callable[..., Any])
_OBSERVES = "bayesify_observes"
_STANDARD = len(vars(nn.Module()))  # attributes that every module has, which are set first


class Switches:
    """Numbers the states of a network's switches, in the order of their appearance.

    Code that `torch.compile` traces has the state of the last call before.
    """

    def __init__(self) -> None:
        self._states = Recent[tuple[object, ...], int]()
        self._current = self._count = 0

    def number(self, net: nn.Module) -> int:
        """The number of the current state."""
        if not torch.compiler.is_compiling():
            state = _state(net)
            if state not in self._states:
                self._states[state] = self._count
                self._count += 1
            self._current = self._states[state]
        return self._current


def observer(hook: H) -> H:
    """Mark a hook that changes nothing: with it, a network is in the same state as without."""
    setattr(hook, _OBSERVES, True)
    return hook


def _state(net: nn.Module) -> tuple[object, ...]:
    """The classes of all modules, their attributes that are flags or texts, and how many hooks they have; no modes.

    Of random layers, only the hooks count: what passes reveal is stored in their attributes.
    """
    found: list[object] = []
    seen: set[nn.Module] = set()
    stack = [net]
    while stack:
        module = stack.pop()
        if module in seen:
            continue
        seen.add(module)
        attributes = module.__dict__
        found.append(module.__class__.__qualname__)  # classes made by the conversion cannot be pickled
        hooks = attributes.get("_forward_hooks"), attributes.get("_forward_pre_hooks")
        if any(hooks) and (count := sum(not hasattr(hook, _OBSERVES) for kind in hooks if kind for hook in kind.values())):
            found.append(count)
        if not isinstance(module, BayesianLayer):
            found += [x for x in islice(attributes.values(), _STANDARD, None) if x.__class__ is bool or x.__class__ is str]
            stack += [child for child in module._modules.values() if child is not None]
    return tuple(found)
