"""Transforms and Walsh-Hadamard layers on a GPU: the sizes of tiles and of the grid of programs."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bayesify.native.switch import load_kernels

__all__ = ["LARGEST_LAYER", "LARGEST_ROW", "layer", "layer_gradient", "sizes", "tile_rows", "transform"]

LARGEST_LAYER = 2**12  # units, whose gradients of a tile fit into registers, but for 100 to 200 bytes
LARGEST_ROW = 2**14  # elements of a transform that a program exchanges in 64 KB of shared memory
_LARGEST_OF_LIBRARY = 2**15
_TILE = 1024  # elements, of one row or several
_PER_WARP = 256  # elements
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


def layer(tensors: Sequence[Tensor]) -> None:
    """Run the forward kernel: x, s1, s2, mean, std, eps, shift and the output, as in `bayesify.native.hadamard_layer`."""
    rows, blocks, n = tensors[5].shape
    tile = tile_rows(rows, n)
    _launch("layer", (-(-rows // tile), blocks), (*tensors, rows, blocks), tile, n)


def layer_gradient(tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Gradients for grad, x, s1, s2, mean, std and eps: of x (R, n), and of s1, s2, mean, std and the shift (5, K, n)."""
    rows, blocks, n = tensors[6].shape
    tile = tile_rows(rows, n)
    tiles = -(-rows // (tile * max(1, _PROGRAMS // blocks)))  # per program
    chunks = -(-rows // (tile * tiles))
    by_x, sums = tensors[1].new_empty(blocks, rows, n), tensors[1].new_empty(chunks, 5, blocks, n)
    _launch("layer_gradient", (chunks, blocks), (*tensors, by_x, sums, rows, blocks, tiles), tile, n)
    return by_x[0] if blocks == 1 else by_x.sum(0), sums[0] if chunks == 1 else sums.sum(0)


def tile_rows(rows: int, n: int) -> int:
    """The rows of a tile, a power of two."""
    return max(1, min(_TILE // n, 1 << (rows - 1).bit_length()))


def sizes(tile: int, n: int) -> tuple[dict[str, int], int]:
    """The constants of a kernel for tiles of rows, and the number of warps."""
    elements = tile * n
    constants = {"ROWS": tile, "N": n, "BITS": n.bit_length() - 1, "RANK": elements.bit_length() - 1}
    return constants, max(1, min(16, elements // _PER_WARP))


def _launch(name: str, grid: tuple[int, ...], arguments: Sequence[Any], tile: int, n: int) -> None:
    kernel, (constants, warps) = getattr(load_kernels("hadamard_kernels", "triton"), name), sizes(tile, n)
    with torch.cuda.device_of(arguments[0]):
        kernel[grid](*arguments, **constants, num_warps=warps)


@cache
def _fast_hadamard_transform() -> Any:
    try:
        return importlib.import_module("fast_hadamard_transform")
    except ImportError:
        return None
