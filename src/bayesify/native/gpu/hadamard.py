"""Transforms and Walsh-Hadamard layers on a GPU: the sizes of tiles and of the grid of programs."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.native.switch import load_kernels

__all__ = ["LARGEST_LAYER", "LARGEST_PRODUCTS", "LARGEST_ROW", "layer", "layer_gradient", "sizes", "tile_rows", "transform"]

LARGEST_LAYER = 2**12  # units, whose gradients of a tile fit into registers, but for 100 to 200 bytes
LARGEST_ROW = 2**14  # elements of a transform that a program exchanges in 64 KB of shared memory
_LARGEST_OF_LIBRARY = 2**15
_TILE = 1024  # elements, of one row or several
_PER_WARP = 256  # elements
_LEAST_PRODUCTS = 2**8  # elements of a row that is a matrix of at least 16 x 16
LARGEST_PRODUCTS = {"fwht": 2**12, "layer": 2**12, "layer_gradient": 2**10}  # that fit into registers
_PROGRAMS = 256  # that compute parts of the sums of a gradient


def transform(x: Tensor) -> Tensor:
    """The transform of float32 or half precision over the last dimension, by `fast_hadamard_transform` if it is installed."""
    n, library = x.shape[-1], _fast_hadamard_transform() if x.is_cuda else None
    largest = LARGEST_ROW if library is None else _LARGEST_OF_LIBRARY
    if n > largest:  # the product of two Hadamard matrices
        y = transform(x.reshape(-1, n // largest, largest))
        return transform(y.mT).mT.reshape(x.shape)
    x = x.contiguous()
    if library is not None:
        return library.hadamard_transform(x)
    y, rows = torch.empty_like(x), x.numel() // n
    if rows:
        tile = tile_rows(rows, n)
        _launch("fwht", (-(-rows // tile),), (x, y, rows), tile, n)
    return y


def layer(tensors: Sequence[Tensor], unit: float, outputs: int) -> Tensor:
    """Outputs (R, O) for x, s1, s2, mean, log_std, eps, and with a bias its mean, log_std and noise (`native.hadamard_layer`)."""
    x, s1, s2, mean, log_std, eps, *bias = tensors
    rows, blocks, n = eps.shape
    drawn = torch.addcmul(bias[0], bias[1].exp(), bias[2]) if bias else None
    joins = drawn is not None and len(drawn) == 1
    shift = _padded(drawn, blocks * n) if drawn is not None and joins else torch.zeros_like(mean)
    y, tile = torch.empty_like(eps), tile_rows(rows, n)
    inputs = _padded(x, n), s1 * unit, s2, mean, log_std.exp(), eps, shift
    _launch("layer", (-(-rows // tile), blocks), (*inputs, y, rows, blocks), tile, n)
    y = y.flatten(1)[:, :outputs]
    return y if drawn is None or joins else y + drawn.repeat_interleave(rows // len(drawn), 0)


def layer_gradient(grad: Tensor, tensors: Sequence[Tensor], unit: float) -> list[Tensor]:
    """Gradients of x, s1, s2, mean, log_std, and with a bias of its mean and log_std, for that of the outputs (R, O)."""
    x, s1, s2, mean, log_std, eps, *bias = tensors
    rows, blocks, n = eps.shape
    tile = tile_rows(rows, n)
    tiles = -(-rows // (tile * max(1, _PROGRAMS // blocks)))  # per program
    chunks = -(-rows // (tile * tiles))
    by_x, sums, std = x.new_empty(blocks, rows, n), x.new_empty(chunks, 5, blocks, n), log_std.exp()
    inputs = _padded(grad, blocks * n), _padded(x, n), s1 * unit, s2, mean, std, eps
    _launch("layer_gradient", (chunks, blocks), (*inputs, by_x, sums, rows, blocks, tiles), tile, n)
    by_x = by_x[0] if blocks == 1 else by_x.sum(0)
    by_s1, by_s2, by_mean, by_std, by_shift = sums[0] if chunks == 1 else sums.sum(0)
    gradients = [by_x[:, : x.shape[1]], by_s1 * unit, by_s2, by_mean, by_std * std]
    if not bias:
        return gradients
    _, bias_log_std, noise = bias
    by_drawn = by_shift.view(1, -1)[:, : grad.shape[1]] if len(noise) == 1 else grad.unflatten(0, (len(noise), -1)).sum(1)
    return [*gradients, by_drawn.sum(0), (by_drawn * noise).sum(0) * bias_log_std.exp()]


def tile_rows(rows: int, n: int) -> int:
    """The rows of a tile, a power of two."""
    return max(1, min(_TILE // n, 1 << (rows - 1).bit_length()))


def sizes(tile: int, n: int, name: str = "fwht") -> tuple[dict[str, int], int]:
    """The constants of a kernel for tiles of rows, and the number of warps."""
    elements = tile * n
    products = _LEAST_PRODUCTS <= n <= LARGEST_PRODUCTS[name]
    constants = {"ROWS": tile, "N": n, "BITS": n.bit_length() - 1, "RANK": elements.bit_length() - 1, "PRODUCTS": products}
    return constants, max(1, min(8 if products else 16, elements // _PER_WARP))


def _padded(x: Tensor, n: int) -> Tensor:
    """Rows of n elements, with zeros at their ends."""
    return F.pad(x, (0, n - x.shape[1])) if x.shape[1] < n else x


def _launch(name: str, grid: tuple[int, ...], arguments: Sequence[Any], tile: int, n: int) -> None:
    kernel, (constants, warps) = getattr(load_kernels("hadamard_kernels", "triton"), name), sizes(tile, n, name)
    with torch.cuda.device_of(arguments[0]):
        kernel[grid](*arguments, **constants, num_warps=warps)


@cache
def _fast_hadamard_transform() -> Any:
    try:
        return importlib.import_module("fast_hadamard_transform")
    except ImportError:
        return None
