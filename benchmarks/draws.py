"""Normal draws from a counter (Philox4x32-10, Box-Muller, compiled by numba) against `torch.randn`, float32, one thread.

    python -m benchmarks.draws [--sizes 1024 65536 1048576] [--rounds 15]

The generator is not a part of the library; this page measures whether it should be. It is checked against the known answers of
Random123 before anything is timed. Ratios are medians over interleaved rounds, of processor time. Writes results/draws.json.
"""
# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false, reportIndexIssue=false, reportCallIssue=false

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from numba import njit, uint32, uint64
from numpy import float32 as f32
from numpy import int32

from benchmarks.measure import interleave, parser, print_timings, repeat, write

_BLOCK = 1024  # counters per pass; the words of a block stay in the first cache
_ZERO, _ONES, _PI = (0, 0, 0, 0), (2**32 - 1,) * 4, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
_KNOWN = [  # counter, key, words: kat_vectors of Random123
    (_ZERO, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (_ONES, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (_PI, (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


@njit(inline="always", error_model="numpy")
def _philox(a: Any, b: Any, c: Any, d: Any, k: Any, m: Any) -> Any:
    for _ in range(10):
        p, q = uint64(a) * uint64(0xD2511F53), uint64(c) * uint64(0xCD9E8D57)
        a, b, c, d = uint32(uint32(q >> uint64(32)) ^ b ^ k), uint32(q), uint32(uint32(p >> uint64(32)) ^ d ^ m), uint32(p)
        k, m = uint32(k + uint32(0x9E3779B9)), uint32(m + uint32(0xBB67AE85))
    return a, b, c, d


@njit
def words(counter: Any, key: Any) -> Any:
    """The four words of a counter (4,) and a key (2,)."""
    return _philox(counter[0], counter[1], counter[2], counter[3], key[0], key[1])


@njit(error_model="numpy", fastmath={"contract", "nsz"})
def normal(out: Any, k: Any, m: Any, bits: Any) -> None:
    """Fill out (a multiple of 4 * 1024) with normal draws; bits (4, 1024) is scratch space."""
    w0, w1, w2, w3 = bits[0], bits[1], bits[2], bits[3]
    zero = uint32(0)
    for start in range(0, out.size // 4, _BLOCK):
        for i in range(_BLOCK):
            w0[i], w1[i], w2[i], w3[i] = _philox(uint32(start + i), zero, zero, zero, k, m)
        for pair in range(2):
            radius, angle = bits[2 * pair], bits[2 * pair + 1]
            uniform, whole = radius.view(f32), radius.view(int32)
            for i in range(_BLOCK):  # (0, 1]
                uniform[i] = f32(int32(radius[i] >> uint32(1))) * f32(2**-31) + f32(2**-32)
            base = 4 * start + 2 * pair * _BLOCK
            first, second = out[base : base + _BLOCK], out[base + _BLOCK : base + 2 * _BLOCK]
            for i in range(_BLOCK):  # the exponent, and the mantissa in [sqrt(1/2), sqrt(2))
                e = (whole[i] - int32(0x3F3504F3)) >> int32(23)
                first[i] = f32(int32(e))
                whole[i] = int32(whole[i] - (e << int32(23)))
            for i in range(_BLOCK):
                x = (uniform[i] - f32(1)) / (uniform[i] + f32(1))
                s = x * x
                log = f32(2) * x * (f32(1) + s * (f32(1 / 3) + s * (f32(1 / 5) + s * (f32(1 / 7) + s * f32(1 / 9)))))
                r = np.sqrt(max(f32(0), f32(-2) * (log + first[i] * f32(np.log(2)))))
                t = f32(int32(angle[i]) >> int32(2)) * f32(np.pi / 4 / 2**29)  # [-pi/4, pi/4)
                s = t * t
                sin = t * (f32(1) + s * (f32(-1 / 6) + s * (f32(1 / 120) + s * f32(-1 / 5040))))
                cos = f32(1) + s * (f32(-1 / 2) + s * (f32(1 / 24) + s * (f32(-1 / 720) + s * f32(1 / 40320))))
                swap, sign = angle[i] & uint32(1), f32(1) - f32(int32(angle[i] & uint32(2)))
                first[i] = r * sign * (sin if swap else cos)
                second[i] = r * sign * (-cos if swap else sin)


def check() -> None:
    """Raise an error unless the words are the known ones and the moments are those of a standard normal distribution."""
    for counter, key, expected in _KNOWN:
        found = tuple(int(word) for word in words(np.array(counter, np.uint32), np.array(key, np.uint32)))
        if found != expected:
            raise AssertionError(f"Philox4x32-10 returned {found} for {counter} and {key}, not {expected}")
    draws = np.empty(2**20, np.float32)
    normal(draws, np.uint32(1), np.uint32(2), np.empty((4, _BLOCK), np.uint32))
    wide = draws.astype(np.float64)
    for power, moment, std in ((1, 0, 1), (2, 1, 2**0.5), (3, 0, 15**0.5), (4, 3, 96**0.5)):
        if abs((wide**power).mean() - moment) > 5 * std / 2**10:
            raise AssertionError(f"moment {power} of the draws is {(wide**power).mean()}, not {moment}")


def main() -> None:
    options = parser(__doc__, rounds=15)
    options.add_argument("--sizes", type=int, nargs="+", default=[2**12, 2**16, 2**20], help="multiples of 4096")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    check()
    bits, results = np.empty((4, _BLOCK), np.uint32), dict[str, object]()
    for n in arguments.sizes:
        tensor = torch.empty(n)
        out = tensor.numpy()
        candidates = {
            "torch.randn": lambda n=n: torch.randn(n),
            "torch normal_": lambda t=tensor: t.normal_(),
            "Philox": lambda out=out: normal(out, np.uint32(1), np.uint32(2), bits),
        }
        repeats = max(3, 2**20 // n)
        repeated = {name: repeat(run, repeats) for name, run in candidates.items()}
        results[str(n)] = timings = interleave(repeated, arguments.rounds, warmup=2, clock=time.thread_time)
        print_timings(str(n), timings, repeats)
    if not arguments.dry:
        settings = {name: value for name, value in vars(arguments).items() if name != "dry"}
        write("draws", {"settings": settings, "results": results})


if __name__ == "__main__":
    main()
