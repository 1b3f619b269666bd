"""Kernels on several threads: those of PyTorch's operators, whose OpenMP library runs machine code of others as well."""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import torch

__all__ = ["THREAD", "over_rows"]

THREAD = 2**14  # elements per thread in a pass over memory, below which another thread takes longer
_POOLED = 8  # times as many, where threads have to be started by the interpreter
_PLAIN = 0  # flags of GOMP_parallel


def _openmp() -> Callable[[int, int, int, int], None] | None:
    """Return `GOMP_parallel` of the OpenMP library that PyTorch is linked with, or None without one.

    The library's threads wait on all cores for some time after an operator, and other threads would share a core with them.
    """
    try:
        run = ctypes.CDLL(cast(Any, torch._C).__file__).GOMP_parallel
    except (AttributeError, OSError):
        return None
    run.argtypes, run.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    return run


_team = _openmp()
_pools: dict[int, ThreadPoolExecutor] = {}  # by number of threads
_is_forked = False


def _forked() -> None:
    """Threads do not survive a fork, after which those of OpenMP cannot be started."""
    global _is_forked  # noqa: PLW0603 - of the process
    _is_forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def over_rows(
    kernel: Any,
    integers: Iterable[int],
    rows: int = 1,
    least: int = 1,
    reals: Sequence[float] = (),
    before: Any = None,
    after: Any = None,
) -> None:
    """Call a kernel until it has taken all rows, on up to `torch.get_num_threads()` threads.

    Args:
        kernel: a `bayesify.native.compilation.Kernel`.
        integers: its integers, addresses among them.
        rows: the number of rows.
        least: the fewest rows that are worth a thread.
        reals: its reals.
        before, after: kernels that get the same record, and are called once.
    """
    least = max(least, 1) * (_POOLED if _team is None else 1)
    parts = 1 if _is_forked else max(1, min(torch.get_num_threads(), rows // least))
    record = array("q", (0, -(-rows // parts), rows))
    if reals:
        record.frombytes(array("d", reals).tobytes())
    record.extend(integers)
    address = record.buffer_info()[0]
    if before is not None:
        before.call(address)
        record[0] = 0
    if parts > 1 and _team is not None:
        _team(kernel.address, address, parts, _PLAIN)
    elif parts > 1:
        if parts not in _pools:
            _pools[parts] = ThreadPoolExecutor(parts - 1, thread_name_prefix="bayesify")
        others = [_pools[parts].submit(kernel.call, address) for _ in range(1, parts)]
        kernel.call(address)
        for other in others:
            other.result()
    while record[0] < parts:  # one part without other threads, or fewer threads than asked for
        kernel.call(address)
    if after is not None:
        after.call(address)
