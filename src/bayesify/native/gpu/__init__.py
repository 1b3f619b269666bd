"""Kernels for GPUs in Triton, which PyTorch for CUDA installs, and their calls.

They are off by default, because no GPU has run them yet: `use_native(True, "cuda")`, or `BAYESIFY_NATIVE_CUDA=1`, turns them on.
The tests compare their values with PyTorch's operators in Triton's interpreter, and on the GPU where there is one, and compile them
for GPUs without one.
"""
