"""Replace the noise that a network draws itself (dropout) with constants, so that two passes can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from bayesify.core.comparison import close
from bayesify.core.modes import is_compiler_loaded, without_compiler

__all__ = ["NOISE_IN_EVAL_MODE", "NoiseFree", "depends_on_noise"]

NOISE_IN_EVAL_MODE = (
    "the network draws random numbers in eval mode, too, and its outputs depend on them (F.dropout without "
    "training=self.training, sampled latent variables): predictions count this noise as epistemic uncertainty. Switch it off in "
    "eval mode, or ignore this if it is meant"
)
_CONSTANTS = {"bernoulli": 1.0, "rand": 0.5, "uniform": 0.5, "randn": 0.5, "normal": 0.5, "exponential": 1.0, "multinomial": 0}
_CONSTANTS |= dict.fromkeys(("log_normal", "cauchy", "geometric", "poisson", "binomial", "_standard_gamma"), 1)
_INTEGERS = {"randint": 0, "randint_like": 1, "random": 1}  # the position of the least one among the arguments


class NoiseFree(TorchDispatchMode):
    """Make random operators return constants: a mask drops nothing, a permutation reverses the order.

    Constants that have an effect show what the noise is multiplied with, and rows that are put in another order.

    Compiled parts run as eager code, if the compiler was loaded before.

    Attributes:
        replaced: whether there was noise.
    """

    replaced = False
    supports_higher_order_operators = True  # such as flex_attention

    def __enter__(self) -> Self:
        self._had_compiler = is_compiler_loaded()
        self._uncompiled = without_compiler()
        self._uncompiled.__enter__()
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        try:
            super().__exit__(*exception)
        finally:
            self._uncompiled.__exit__(*exception)
            if is_compiler_loaded() and not self._had_compiler:
                torch._dynamo.reset()  # it has compiled code, with this mode, that would fail without

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the default imports PyTorch's compiler, which takes a second

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(func, HigherOrderOperator):  # what its functions draw stays random, which keeps draws apart
            return result
        operator = func.overloadpacket.__name__.rstrip("_")
        name = operator.removesuffix("_like")
        if name == "native_dropout":
            self.replaced = True
            return args[0].clone(), torch.ones_like(result[1])
        if name in _CONSTANTS and isinstance(result, Tensor):
            self.replaced = True
            result.fill_(_CONSTANTS[name])
        elif operator in _INTEGERS:
            self.replaced = True
            result.fill_(_least(func, args, _INTEGERS[operator]))
        elif operator == "randperm":
            self.replaced = True
            result.copy_(torch.arange(len(result), device=result.device).flip(0))
        return result


def _least(func: Any, args: tuple[Any, ...], place: int) -> int:
    """The least of the integers that an operator draws: an argument of some of its overloads."""
    return args[place] if func._overloadname.startswith(("low", "from")) else 0


def depends_on_noise(run: Callable[[], Sequence[Tensor]]) -> bool:
    """Whether the network's noise changes the outputs of a pass, by more than 1 %; noise of few values may be equal by chance."""
    with without_compiler():
        first = run()
        return any(not close(a, b, eps=1e-5) for _ in range(3) for a, b in zip(first, run(), strict=False))
