"""Kernels for GPUs in Triton, which PyTorch for CUDA installs, and their calls.

The tests compare their values with PyTorch's operators, on the GPU where there is one and otherwise in Triton's interpreter, and
compile them for GPUs without one.
"""
