"""Replace the noise that a network draws itself (dropout) with constants, so that two passes can be compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bayesify.core.modes import without_compiler

__all__ = ["NoiseFree"]

_CONSTANTS = {"bernoulli": 1.0, "rand": 0.5, "uniform": 0.5, "randn": 0.0, "normal": 0.0, "exponential": 1.0}


class NoiseFree(TorchDispatchMode):
    """Make random operators return constants: a mask drops nothing, a normal draw is its mean. Compiled parts run as eager code.

    Attributes:
        replaced: whether there was noise.
    """

    replaced = False

    def __enter__(self) -> Self:
        self._uncompiled = without_compiler()
        self._uncompiled.__enter__()
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        try:
            super().__exit__(*exception)
        finally:
            self._uncompiled.__exit__(*exception)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the default imports PyTorch's compiler, which takes a second

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.rstrip("_").removesuffix("_like")
        if name == "native_dropout":
            self.replaced = True
            return args[0].clone(), torch.ones_like(result[1])
        if name in _CONSTANTS and isinstance(result, Tensor):
            self.replaced = True
            result.fill_(_CONSTANTS[name])
        return result
