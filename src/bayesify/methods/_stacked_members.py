"""Members of an ensemble in one vectorized call of their network, with stacked parameters.

Shapes: M members, B batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.conv import _ConvNd

from bayesify.core.module_comparison import same_function

if TYPE_CHECKING:
    from bayesify.methods._ensemble_root import PlainMember

__all__ = ["StackedMembers"]

# Raised by branches on values, by operators and functions without a vmap rule, and by outputs that are no tensors.
_ERRORS = (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError)


class StackedMembers:
    """Calls plain members together where that gives the outputs and the buffers of separate calls.

    Random layers draw other numbers, from the same distribution.

    Attributes:
        able: whether the networks can be called together, and it pays; None before the first call.
    """

    def __init__(self) -> None:
        self.able: bool | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StackedMembers)  # ensembles with equal networks compute the same function

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def call(
        self, members: Sequence[PlainMember], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Tensor]] | None:
        """Return outputs and trained parameters, every tensor (M, ...), and update buffers.

        None, and nothing has changed, where it is impossible.
        """
        if self.able is False or not _is_plain(members):
            return None
        if self.able is None and (
            _is_slower(members[0]) or not all(same_function(members[0].net, member.net) for member in members[1:])
        ):
            self.able = False
            return None
        states = [{**dict(member.net.named_parameters()), **dict(member.net.named_buffers())} for member in members]
        names = [name for name, _ in members[0].net.named_buffers()]
        net, select = members[0].net, members[0].passes.select

        def call(state: dict[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
            state = dict(state)
            y = functional_call(net, state, args, kwargs)  # which puts changed buffers into the state
            return y if select is None else select(y), {name: state[name] for name in names}

        try:
            stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}
            outputs, buffers = vmap(call, randomness="different")(stacked)
        except _ERRORS:
            self.able = self.able or False  # a later error may be that of a wrong input
            return None
        self.able = True
        with torch.no_grad():
            for name, values in buffers.items():
                for state, value in zip(states, values, strict=True):
                    state[name].copy_(value)
        return outputs, {name: stacked[name] for name, p in members[0].net.named_parameters() if p.requires_grad}


def _is_plain(members: Sequence[PlainMember]) -> bool:
    """Whether the present call is one that vmap serves: eager, without autocast and hooks, all members in the same mode."""
    if len(members) == 1 or torch.compiler.is_compiling() or torch.is_autocast_enabled(_device(members[0]).type):
        return False
    modules = [list(member.modules()) for member in members]
    modes = [[module.training for module in each] for each in modules]
    return all(mode == modes[0] for mode in modes) and not any(_has_hooks(module) for each in modules for module in each)


def _is_slower(member: PlainMember) -> bool:
    """Whether single calls are faster: convolutions use a processor fully, and together they become grouped ones."""
    return _device(member).type == "cpu" and any(isinstance(module, _ConvNd) for module in member.modules())


def _device(member: PlainMember) -> torch.device:
    return next((p.device for p in member.parameters()), torch.device("cpu"))


def _has_hooks(module: nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(len(each) > 0 for each in hooks)
