"""Whether code may look at the values of tensors, whether these are finite, their dtypes, and what values variances may have."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from bayesify.core.shards import local_part
from bayesify.errors import DataError

__all__ = ["are_finite", "finite_models", "in_dtype", "may_look_at", "network_dtype", "not_finite", "spread_errors"]

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


def network_dtype(net: nn.Module) -> torch.dtype:
    """The dtype that a network computes in: that of its first parameter, quantized ones left out."""
    dtypes = (p.dtype for p in net.parameters() if p.is_floating_point() and p.dtype.itemsize > 1)
    return next(dtypes, torch.get_default_dtype())


def in_dtype(x: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """Convert floating-point data to a dtype; other data stay as they are.

    Raises:
        DataError: a finite value would become infinite.
    """
    if not x.is_floating_point() or x.dtype == dtype:
        return x
    largest = torch.finfo(dtype).max
    if torch.finfo(x.dtype).max > largest and may_look_at(x):
        values = x if x.layout is torch.strided else x.values() if x.layout is not torch.sparse_coo else x.coalesce().values()
        beyond = (values.abs() > largest) & values.isfinite()
        if beyond.any():
            raise DataError(
                f"{name} has {int(beyond.sum())} values beyond the range of {dtype}, in which it is used, such as "
                f"{float(values[beyond][0]):.1e}; standardize {name}, or use a network in float64: bnn.double()"
            )
    return x.to(dtype)


def not_finite(values: Mapping[str, Tensor | None]) -> list[str]:
    """Names of the tensors that have NaN or infinite values."""
    known = {name: local_part(x) for name, x in values.items() if x is not None and not x.is_meta}
    return [name for name, x in known.items() if not are_finite(x)]


def are_finite(x: Tensor) -> bool:
    """Whether a tensor has no NaN or infinity."""
    x = x.detach()
    # A finite sum shows it in a fraction of the time that `isfinite` takes, but may overflow; there is none of float8.
    return (x.element_size() > 1 and bool(x.sum().isfinite())) or bool(x.isfinite().all())


def finite_models(parameters: Sequence[Tensor]) -> Tensor:
    """Which of M models have no NaN or infinity in any of their stacked parameters (M, ...): booleans (M,)."""
    rows = [x.detach().flatten(1) if x.dim() > 1 else x.detach().unsqueeze(1) for x in parameters]
    finite = torch.stack([x.sum(1).abs().float().isfinite() for x in rows]).all(0)  # as in `are_finite`, on the device
    return finite if bool(finite.all()) else torch.stack([x.isfinite().all(1) for x in rows]).all(0)


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
