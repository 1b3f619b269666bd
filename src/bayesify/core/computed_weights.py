"""Weights that are computed when they are read: what is written into them would be lost in silence."""

from __future__ import annotations

from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from bayesify.core.values import may_look_at
from bayesify.formatting import listing

__all__ = ["lost_changes", "shown"]

T = TypeVar("T", bound="Tensor | None")
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size in bytes


class _Copy(NamedTuple):
    """What a reader got, the checksum of its values, and whether an earlier one has changed since."""

    value: Tensor  # itself, as `value.data = ...` is not seen by others that share its memory
    checksum: Tensor
    another_changed: bool

    @property
    def is_changed(self) -> bool:
        return self.another_changed or not torch.equal(_checksum(self.value), self.checksum)


_copies: WeakKeyDictionary[nn.Module, dict[str, _Copy]] = WeakKeyDictionary()  # those read since the last pass


def shown(module: nn.Module, name: str, value: T) -> T:
    """Return a computed value that a reader gets for the parameter `name` of a module, and observe it until the next pass."""
    if type(value) is Tensor and may_look_at(value) and not value.is_inference():
        copies = _copies.setdefault(module, {})
        copies[name] = _Copy(value, _checksum(value), name in copies and copies[name].is_changed)
    return value


def lost_changes(net: nn.Module) -> str:
    """Which computed parameters something was written into since the last call: a sentence, or an empty string."""
    if not _copies or not may_look_at():
        return ""
    names = [
        f"{prefix}.{name}".lstrip(".")
        for prefix, module in net.named_modules()
        for name, copy in _copies.pop(module, {}).items()
        if copy.is_changed
    ]
    if not names:
        return ""
    return (
        f"{listing(map(repr, names), most=3)} changed in place, which has no effect, as such weights are computed when they are "
        "read; change them before `bayesify`, or load a checkpoint of the plain network into bnn.net"
    )


@torch.no_grad()
def _checksum(value: Tensor) -> Tensor:
    """The sum of the values as integers, modulo 2**64, which does not depend on the order of summation."""
    return value.detach().contiguous().view(_INTEGERS[value.element_size()]).sum(dtype=torch.int64)
