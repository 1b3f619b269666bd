"""Kernels on several threads: a kernel releases the interpreter's lock and computes a range of rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

__all__ = ["over_rows"]

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}  # by process, because threads do not survive a fork, and number of threads


def over_rows(kernel: Callable[[int, int], object], rows: int, least: int) -> None:
    """Call a kernel with ranges of rows that cover all of them, on up to `torch.get_num_threads()` threads.

    Args:
        kernel: called with the first row and the number of rows.
        rows: the number of rows.
        least: the fewest rows that are worth a thread.
    """
    threads = min(torch.get_num_threads(), rows // max(least, 1))
    if threads < 2:
        kernel(0, rows)
        return
    key = os.getpid(), threads - 1
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(threads - 1, thread_name_prefix="bayesify")
    step = -(-rows // threads)
    others = [_pools[key].submit(kernel, start, min(step, rows - start)) for start in range(step, rows, step)]
    kernel(0, step)
    for other in others:
        other.result()
