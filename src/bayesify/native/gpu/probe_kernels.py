"""A kernel that does next to nothing, to find out whether kernels compile and run on this machine."""
# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false, reportIndexIssue=false

import torch
import triton
import triton.language as tl


@triton.jit
def _double(x, y):
    tl.store(y, 2 * tl.load(x))


def run() -> None:
    """Compile and run the kernel. It raises whatever Triton does, which needs a C compiler and a GPU that it knows."""
    x, y = torch.ones(1, device="cuda"), torch.empty(1, device="cuda")
    _double[(1,)](x, y)
