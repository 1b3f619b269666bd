"""The fast Walsh-Hadamard transform in registers, and layers of Walsh-Hadamard variational inference in one pass.

A program has a tile of rows of n elements as a cube with 2 elements along every axis, between which a stage of the transform adds
and subtracts. Triton exchanges them within a thread, between the threads of a warp, or in shared memory, as the axis requires.

ROWS, N: the tile's rows and n. BITS, RANK: log2 of n, and of the tile's elements.
"""
# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def _stage(cube, axis: tl.constexpr, RANK: tl.constexpr):
    bits = cube.to(tl.int32, bitcast=True)
    other = (bits ^ tl.xor_sum(bits, axis, keep_dims=True)).to(tl.float32, bitcast=True)  # the neighbor along the axis
    position = tl.reshape(tl.arange(0, 2), [1] * axis + [2] + [1] * (RANK - 1 - axis))
    return tl.where(position == 0, cube + other, other - cube)


@triton.jit
def _transform(tile, BITS: tl.constexpr, RANK: tl.constexpr):
    """The transform of the rows of a tile (ROWS, N) of float32."""
    cube = tl.reshape(tile, [2] * RANK)
    for i in tl.static_range(BITS):
        cube = _stage(cube, RANK - 1 - i, RANK)
    return tl.reshape(cube, tile.shape)


@triton.jit
def fwht(source, target, rows, ROWS: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr, RANK: tl.constexpr):
    """Transform rows of n elements, in float32 whatever the dtype."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    at = row * N + tl.arange(0, N)[None, :]
    tile = tl.load(source + at, mask=row < rows, other=0).to(tl.float32)
    tl.store(target + at, _transform(tile, BITS, RANK), mask=row < rows)


@triton.jit
def layer(
    x, s1, s2, mean, std, eps, shift, y, rows, blocks,
    ROWS: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """Rows of y = s1 H((mean + std eps) H(s2 x)) + shift: x (R, n), eps and y (R, K, n), all others (K, n)."""
    k, column = tl.program_id(1), tl.arange(0, N)[None, :]
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    own, at, used = k * N + column, (row * blocks + k) * N + column, row < rows
    v = _transform(tl.load(s2 + own) * tl.load(x + row * N + column, mask=used, other=0), BITS, RANK)
    v *= tl.load(mean + own) + tl.load(std + own) * tl.load(eps + at, mask=used, other=0)
    v = _transform(v, BITS, RANK)
    tl.store(y + at, v * tl.load(s1 + own) + tl.load(shift + own), mask=used)


@triton.jit
def layer_gradient(
    grad, x, s1, s2, mean, std, eps, by_x, sums, rows, blocks, tiles,
    ROWS: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """Gradients of `layer`: by_x (K, R, n) of every block, and of the others sums (C, 5, K, n) over C chunks of tiles of rows."""
    chunk, k, column = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, N)[None, :]
    own = k * N + column
    first, second, center, spread = tl.load(s1 + own), tl.load(s2 + own), tl.load(mean + own), tl.load(std + own)
    by_s1 = tl.zeros([ROWS, N], tl.float32)
    by_s2 = tl.zeros([ROWS, N], tl.float32)
    by_mean = tl.zeros([ROWS, N], tl.float32)
    by_std = tl.zeros([ROWS, N], tl.float32)
    by_shift = tl.zeros([ROWS, N], tl.float32)
    for tile in range(tiles):
        row = (chunk * tiles + tile) * ROWS + tl.arange(0, ROWS)[:, None]
        at, used = (row * blocks + k) * N + column, row < rows
        inputs = tl.load(x + row * N + column, mask=used, other=0)
        noise, upstream = tl.load(eps + at, mask=used, other=0), tl.load(grad + at, mask=used, other=0)
        u, g = _transform(second * inputs, BITS, RANK), center + spread * noise
        by_s1 += upstream * _transform(g * u, BITS, RANK)
        by_shift += upstream
        v = _transform(upstream * first, BITS, RANK)
        by_mean += u * v
        by_std += u * v * noise
        v = _transform(v * g, BITS, RANK)
        by_s2 += v * inputs
        tl.store(by_x + (k.to(tl.int64) * rows + row) * N + column, v * second, mask=used)
    column = tl.arange(0, N)
    place = sums + (chunk * 5 * blocks + k) * N + column
    tl.store(place, tl.sum(by_s1, 0))
    tl.store(place + blocks * N, tl.sum(by_s2, 0))
    tl.store(place + 2 * blocks * N, tl.sum(by_mean, 0))
    tl.store(place + 3 * blocks * N, tl.sum(by_std, 0))
    tl.store(place + 4 * blocks * N, tl.sum(by_shift, 0))
