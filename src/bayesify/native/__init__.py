"""Operators in machine code: for the CPU, used automatically if `bayesify[fast]` is installed; for GPUs in `bayesify.native.gpu`.

The extra installs numba, which compiles the kernels on first use, without a compiler on the machine. Everything works without it:
random numbers for a seed are then PyTorch's, and other results differ by rounding. `BAYESIFY_NATIVE=0` in the environment, or
`use_native(False)`, turns the operators off.

Kernels run on as many threads as `torch.get_num_threads()`, with results that do not depend on their number.
"""

from bayesify.native.layers import hadamard_layer, runs_fused
from bayesify.native.operators import native_fwht
from bayesify.native.switch import native_is_used, use_native

__all__ = ["hadamard_layer", "native_fwht", "native_is_used", "runs_fused", "use_native"]
