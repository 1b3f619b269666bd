"""Whether code may look at the values of tensors, and what values of variances may be."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from bayesify.core.shards import local_part

__all__ = ["may_look_at", "not_finite", "spread_errors"]

_LARGEST_LOG_STD = math.log(1e15)  # as for hyperparameters; single precision holds its square


def may_look_at(*tensors: Tensor) -> bool:
    """Whether the values of tensors can decide what is done next: not in traced or vectorized code, nor without storage."""
    if torch.compiler.is_compiling() or cast(Any, torch._C)._functorch.peek_interpreter_stack() is not None:
        return False
    if cast(Any, torch._C)._len_torch_dispatch_stack():  # `make_fx` traces tensors of the usual type
        return False
    if any(x.is_cuda for x in tensors) and torch.cuda.is_current_stream_capturing():
        return False
    return all(type(x) in (Tensor, nn.Parameter) and not x.is_meta for x in tensors)


def not_finite(values: Mapping[str, Tensor | None]) -> list[str]:
    """Names of the tensors that have NaN or infinite values."""
    known = {name: local_part(x) for name, x in values.items() if x is not None and not x.is_meta}
    return [name for name, x in known.items() if not bool(x.isfinite().all())]


def spread_errors(state: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """What is wrong with the logarithms of spreads in a checkpoint: with larger ones, variances and the KL would be infinite."""
    for name, x in state.items():
        if not name.startswith(prefix) or not name.endswith(("log_std", "log_alpha")) or not isinstance(x, Tensor) or x.is_meta:
            continue
        values = local_part(x)
        largest = float(values.max()) if values.numel() else 0.0
        if not largest <= _LARGEST_LOG_STD:
            yield (
                f"{name} has a value of {largest:g}, but the logarithm of a spread must be at most {_LARGEST_LOG_STD:.1f}; the "
                "checkpoint is damaged, or its training diverged."
            )
