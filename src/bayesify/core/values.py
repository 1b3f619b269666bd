"""Whether code may look at the values of tensors."""

from typing import Any, cast

import torch
from torch import Tensor, nn

__all__ = ["may_look_at"]


def may_look_at(*tensors: Tensor) -> bool:
    """Whether the values of tensors can decide what is done next: not in compiled or vectorized code, nor without storage."""
    if torch.compiler.is_compiling() or cast(Any, torch._C)._functorch.peek_interpreter_stack() is not None:
        return False
    if any(x.is_cuda for x in tensors) and torch.cuda.is_current_stream_capturing():
        return False
    return all(type(x) in (Tensor, nn.Parameter) and not x.is_meta for x in tensors)
