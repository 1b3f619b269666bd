"""A network without noise: what it draws itself (dropout) is replaced by constants, so that two passes can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["NoiseFree", "buffers_kept", "can_compare", "modes_kept"]

_CONSTANTS = {"bernoulli": 1.0, "rand": 0.5, "uniform": 0.5, "randn": 0.0, "normal": 0.0, "exponential": 1.0}


class NoiseFree(TorchDispatchMode):
    """Random operators return constants: a mask drops nothing, a normal draw is its mean."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to say so, PyTorch would import its compiler, which takes a second

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.rstrip("_").removesuffix("_like")
        if name == "native_dropout":
            return args[0].clone(), torch.ones_like(result[1])
        if name in _CONSTANTS and isinstance(result, Tensor):
            result.fill_(_CONSTANTS[name])
        return result


@contextmanager
def modes_kept(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Every module is in its own train or eval mode again afterwards."""
    modes = [(module, module.training) for module in modules]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def buffers_kept(net: nn.Module) -> Iterator[None]:
    """Buffers that are changed in place inside (running statistics) have their values back afterwards."""
    kept = [(buffer, buffer.clone()) for buffer in net.buffers()]
    try:
        yield
    finally:
        for buffer, value in kept:
            # Written only where it must be: autograd may hold it. Batch normalisation changes no version counter.
            if not torch.equal(buffer, value):
                buffer.copy_(value)


def can_compare(net: nn.Module) -> bool:
    """Whether tensors have values now: not while operators are traced, inside transforms of `torch.func`, or on the meta device."""
    if torch.compiler.is_compiling() or any(parameter.is_meta for parameter in net.parameters()):
        return False
    return torch._C._len_torch_dispatch_stack() == 0 and cast(Any, torch._C)._functorch.peek_interpreter_stack() is None
