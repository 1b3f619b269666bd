"""By what a network may choose what it computes: flags, texts and numbers of its attributes, hooks, submodules, trained weights."""

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
_MOST_NUMBERS = 8  # values of attributes that are numbers, after which they are counters rather than settings
_STANDARD = len(vars(nn.Module()))  # attributes that every module has, which are set first


class Switches:
    """Numbers the states of a network's switches, in the order of their appearance, and follows its training.

    Code that `torch.compile` traces has the state of the last call before.
    """

    def __init__(self) -> None:
        self._states = Recent[tuple[object, ...], int]()
        self._current = self._count = 0
        self._numbers: set[tuple[float, ...]] | None = set()
        self._first_version: int | None = None

    def number(self, net: nn.Module) -> tuple[int, int]:
        """The number of the current state, and the order of magnitude of the number of updates of the weights, in powers of 4.

        Updates are counted from the first call, and not in code that is traced, which a new number would make invalid.
        """
        if torch.compiler.is_compiling():
            return self._current, 0
        state, numbers, version = _state(net)
        if self._first_version is None:
            self._first_version = version
        if self._numbers is not None:
            self._numbers.add(numbers)
            if len(self._numbers) > _MOST_NUMBERS:
                self._numbers = None
            else:
                state += numbers
        if state not in self._states:
            self._states[state] = self._count
            self._count += 1
        self._current = self._states[state]
        updates = max(0, version - self._first_version)  # copies, and tensors in place of parameters, have smaller versions
        return self._current, (updates.bit_length() + 1) // 2


def observer(hook: H) -> H:
    """Mark a hook that changes nothing: with it, a network is in the same state as without."""
    setattr(hook, _OBSERVES, True)
    return hook


def _state(net: nn.Module) -> tuple[tuple[object, ...], tuple[float, ...], int]:
    """The classes of all modules, their attributes that are flags, texts or numbers, and how many hooks they have; no modes.

    Of random layers, only the hooks count: what passes reveal is stored in their attributes.

    Returns:
        The state without numbers, the numbers, and how often a random layer was updated, the largest such count. Sharded
        parameters have none.
    """
    found: list[object] = []
    numbers: list[float] = []
    version = 0
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
            for x in islice(attributes.values(), _STANDARD, None):
                kind = x.__class__
                if kind is bool or kind is str:
                    found.append(x)
                elif kind is float or kind is int:
                    numbers.append(x)
            stack += [child for child in module._modules.values() if child is not None]
        else:
            for p in (*module._parameters.values(), *module.posterior._parameters.values()):
                if p is not None and p.__class__ is nn.Parameter and not p.is_inference():
                    version = max(version, p._version)
    return tuple(found), tuple(numbers), version
