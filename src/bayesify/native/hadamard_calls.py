"""Calls of the kernels of a Walsh-Hadamard layer on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from bayesify.native.switch import load_kernels
from bayesify.native.threads import THREAD, over_rows

__all__ = ["layer", "layer_gradient"]

_ROWS, _CHUNK = 8, 32  # rows that a thread takes at once; rows whose parameter gradients are summed together
_THREAD = THREAD // 4  # two transforms and more take longer than a pass


def layer(tensors: Sequence[Tensor], unit: float, outputs: int) -> Tensor:
    """Outputs (R, O) for x, s1, s2, mean, log_std, eps, and with a bias its mean, log_std and noise (`native.hadamard_layer`)."""
    x, (rows, blocks, n) = tensors[0], tensors[5].shape
    kernels = _kernels(x)
    words, _memory = _words(tensors, outputs, _ROWS, 2 * n)
    y = x.new_empty(rows, outputs)
    words.append(y.data_ptr())
    over_rows(kernels["layer"], words, -(-rows // _ROWS), _THREAD // (_ROWS * blocks * n), (unit,), kernels["prepare"])
    return y


def layer_gradient(grad: Tensor, tensors: Sequence[Tensor], unit: float) -> list[Tensor]:
    """Gradients of x, s1, s2, mean, log_std, and with a bias of its mean and log_std, for that of the outputs (R, O)."""
    x, (rows, blocks, n) = tensors[0], tensors[5].shape
    kernels, new, outputs = _kernels(x), x.new_empty, grad.shape[1]
    gradients = [new(rows, x.shape[1]), *[new(blocks, n) for _ in tensors[1:5]], *[new(outputs) for _ in tensors[6:8]]]
    words, _memory = _words(tensors, outputs, _CHUNK, 6 * (blocks + 1) * n)
    words += [grad.data_ptr(), *[t.data_ptr() for t in gradients], *[0] * (7 - len(gradients))]
    chunks, least = -(-rows // _CHUNK), _THREAD // (_CHUNK * blocks * n)
    over_rows(kernels["layer_gradient"], words, chunks, least, (unit,), kernels["prepare"], kernels["finish"])
    return gradients


def _words(tensors: Sequence[Tensor], outputs: int, chunk: int, scratch: int) -> tuple[list[int], Tensor]:
    """The words that all kernels get: addresses, 0 without a bias, and sizes; and the memory for them, which has to be kept.

    Args:
        tensors: those of `layer`.
        outputs: O.
        chunk: the rows of a chunk.
        scratch: the elements that the kernel needs per chunk.
    """
    x, (rows, blocks, n) = tensors[0], tensors[5].shape
    draws = len(tensors[8]) if len(tensors) > 6 else 0
    work = x.new_empty(2 * blocks * n + -(-draws * outputs // n) * n + -(-rows // chunk) * scratch)
    addresses = [*[t.data_ptr() for t in tensors], *[0] * (9 - len(tensors)), work.data_ptr()]
    return [*addresses, n, blocks, x.shape[1], outputs, draws, rows, chunk], work


def _kernels(x: Tensor) -> dict[str, Any]:
    """The kernels for the dtype of a tensor, by name."""
    module = load_kernels("hadamard_layer_kernels")
    assert module is not None
    return module.KERNELS[x.dtype]
