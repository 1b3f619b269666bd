"""The fast Walsh-Hadamard transform in registers, and layers of Walsh-Hadamard variational inference in one pass.

A program has a tile of rows of n elements. With PRODUCTS, for n of at least 256, each is a matrix X and its transform H X H', two
products on tensor cores. Otherwise the tile is a cube with 2 elements along every axis, between which a stage of the transform adds
and subtracts; Triton exchanges them within a thread, between the threads of a warp, or in shared memory, as the axis requires.

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
def _hadamard(N: tl.constexpr):
    """The Hadamard matrix of at most 128 rows: the parity of the bits that row and column share."""
    shared = tl.arange(0, N)[:, None] & tl.arange(0, N)[None, :]
    shared ^= shared >> 4
    shared ^= shared >> 2
    shared ^= shared >> 1
    return (1 - 2 * (shared & 1)).to(tl.float32)


@triton.jit
def _first_bits(x):
    """The first 11 bits of numbers, all that tensor cores use of a float32."""
    return (x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def _product(x, signs):
    """A product with a matrix of signs by tensor cores, of the three parts of 11 bits that a float32 consists of."""
    high = _first_bits(x)
    middle = _first_bits(x - high)
    y = tl.dot(high, signs, input_precision="tf32")
    y = tl.dot(middle, signs, y, input_precision="tf32")
    return tl.dot(x - high - middle, signs, y, input_precision="tf32")


@triton.jit
def _by_stages(tile, BITS: tl.constexpr, RANK: tl.constexpr):
    cube = tl.reshape(tile, [2] * RANK)
    for i in tl.static_range(BITS):
        cube = _stage(cube, RANK - 1 - i, RANK)
    return tl.reshape(cube, tile.shape)


@triton.jit
def _by_products(tile, BITS: tl.constexpr, RANK: tl.constexpr):
    """A row as a matrix X of a x b: H X H'."""
    rows: tl.constexpr = 2 ** (RANK - BITS)
    a: tl.constexpr = 2 ** (BITS // 2)
    b: tl.constexpr = 2 ** (BITS - BITS // 2)
    y = _product(tl.reshape(tile, [rows * a, b]), _hadamard(b))
    y = tl.permute(tl.reshape(y, [rows, a, b]), [0, 2, 1])
    y = _product(tl.reshape(y, [rows * b, a]), _hadamard(a))
    y = tl.permute(tl.reshape(y, [rows, b, a]), [0, 2, 1])
    return tl.reshape(y, tile.shape)


@triton.jit
def _transform(tile, BITS: tl.constexpr, RANK: tl.constexpr, PRODUCTS: tl.constexpr):
    """The transform of the rows of a tile (ROWS, N) of float32."""
    return _by_products(tile, BITS, RANK) if PRODUCTS else _by_stages(tile, BITS, RANK)


@triton.jit
def fwht(source, target, rows, ROWS: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr, RANK: tl.constexpr, PRODUCTS: tl.constexpr):
    """Transform rows of n elements, in float32 whatever the dtype."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    at = row * N + tl.arange(0, N)[None, :]
    tile = tl.load(source + at, mask=row < rows, other=0).to(tl.float32)
    tl.store(target + at, _transform(tile, BITS, RANK, PRODUCTS), mask=row < rows)


@triton.jit
def layer(
    x, s1, s2, mean, std, eps, shift, y, rows, blocks,
    ROWS: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr, RANK: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """Rows of y = s1 H((mean + std eps) H(s2 x)) + shift: x (R, n), eps and y (R, K, n), all others (K, n)."""
    k, column = tl.program_id(1), tl.arange(0, N)[None, :]
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    own, at, used = k * N + column, (row * blocks + k) * N + column, row < rows
    v = _transform(tl.load(s2 + own) * tl.load(x + row * N + column, mask=used, other=0), BITS, RANK, PRODUCTS)
    v *= tl.load(mean + own) + tl.load(std + own) * tl.load(eps + at, mask=used, other=0)
    v = _transform(v, BITS, RANK, PRODUCTS)
    tl.store(y + at, v * tl.load(s1 + own) + tl.load(shift + own), mask=used)


@triton.jit
def layer_gradient(
    grad, x, s1, s2, mean, std, eps, by_x, sums, rows, blocks, tiles,
    ROWS: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr, RANK: tl.constexpr, PRODUCTS: tl.constexpr,
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
        u, g = _transform(second * inputs, BITS, RANK, PRODUCTS), center + spread * noise
        by_s1 += upstream * _transform(g * u, BITS, RANK, PRODUCTS)
        by_shift += upstream
        v = _transform(upstream * first, BITS, RANK, PRODUCTS)
        by_mean += u * v
        by_std += u * v * noise
        v = _transform(v * g, BITS, RANK, PRODUCTS)
        by_s2 += v * inputs
        tl.store(by_x + (k.to(tl.int64) * rows + row) * N + column, v * second, mask=used)
    column = tl.arange(0, N)
    place = sums + (chunk * 5 * blocks + k) * N + column
    tl.store(place, tl.sum(by_s1, 0))
    tl.store(place + blocks * N, tl.sum(by_s2, 0))
    tl.store(place + 2 * blocks * N, tl.sum(by_mean, 0))
    tl.store(place + 3 * blocks * N, tl.sum(by_std, 0))
    tl.store(place + 4 * blocks * N, tl.sum(by_shift, 0))
