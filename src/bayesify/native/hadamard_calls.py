"""Calls of the kernels of a Walsh-Hadamard layer on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from bayesify.native.switch import kernel_for
from bayesify.native.threads import THREAD, over_rows

__all__ = ["layer", "layer_gradient"]

_MODULE = "hadamard_layer_kernels"
_ROWS, _CHUNK = 8, 32  # rows that a thread takes at once; rows whose parameter gradients are summed together
_THREAD = THREAD // 4  # two transforms and more take longer than a pass


def layer(
    tensors: Sequence[Tensor], unit: float, outputs: int, bias_prior_std: float, key: tuple[int, int] | None
) -> tuple[Tensor, Tensor]:
    """Outputs and KL of `native.hadamard_layer`.

    Args:
        tensors: x, s1, s2, mean, log_std, eps, and with a bias its mean, log_std and noise.
        key: that of a draw (`native.draws.draw_key`), which is written to eps, or None.
    """
    x, (rows, blocks, n) = tensors[0], tensors[5].shape
    kl = x.new_empty(())
    words, _memory = _words(tensors, outputs, _ROWS, 2 * n, kl.data_ptr())
    y = x.new_empty(rows, outputs)
    words += [y.data_ptr(), 0, 0, 0] if key is None else [y.data_ptr(), 1, *key]
    reals = unit, bias_prior_std, 0.0
    prepare, run = (kernel_for(x.dtype, _MODULE, name) for name in ("prepare", "layer"))
    over_rows(run, words, -(-rows // _ROWS), _THREAD // (_ROWS * blocks * n), reals, prepare)
    return y, kl


def layer_gradient(
    grad: Tensor, by_kl: Tensor | None, tensors: Sequence[Tensor], unit: float, bias_prior_std: float
) -> list[Tensor]:
    """Gradients of x, s1, s2, mean, log_std, and with a bias its mean and log_std, for those of the outputs (R, O) and KL."""
    x, (rows, blocks, n) = tensors[0], tensors[5].shape
    new, outputs = x.new_empty, grad.shape[1]
    gradients = [new(rows, x.shape[1]), *[new(blocks, n) for _ in tensors[1:5]], *[new(outputs) for _ in tensors[6:8]]]
    words, _memory = _words(tensors, outputs, _CHUNK, 6 * (blocks + 1) * n)
    words += [grad.data_ptr(), *[t.data_ptr() for t in gradients], *[0] * (7 - len(gradients))]
    chunks, least = -(-rows // _CHUNK), _THREAD // (_CHUNK * blocks * n)
    reals = unit, bias_prior_std, 0.0 if by_kl is None else float(by_kl)
    prepare, run, finish = (kernel_for(x.dtype, _MODULE, name) for name in ("prepare", "layer_gradient", "finish"))
    over_rows(run, words, chunks, least, reals, prepare, finish)
    return gradients


def _words(tensors: Sequence[Tensor], outputs: int, chunk: int, scratch: int, kl: int = 0) -> tuple[list[int], Tensor]:
    """The words that all kernels get: addresses, 0 without a bias, and sizes; and the memory for them, which has to be kept.

    Args:
        tensors: those of `layer`.
        outputs: O.
        chunk: the rows of a chunk.
        scratch: the elements that the kernel needs per chunk.
        kl: the address of the KL, or 0.
    """
    x, (rows, blocks, n) = tensors[0], tensors[5].shape
    draws = len(tensors[8]) if len(tensors) > 6 else 0
    work = x.new_empty(2 * blocks * n + -(-draws * outputs // n) * n + -(-rows // chunk) * scratch)
    addresses = [*[t.data_ptr() for t in tensors], *[0] * (9 - len(tensors)), work.data_ptr()]
    return [*addresses, n, blocks, x.shape[1], outputs, draws, rows, chunk, kl], work
