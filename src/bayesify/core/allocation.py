"""Memory that a training step frees and the next one needs again."""

from __future__ import annotations

import torch

__all__ = ["keep_freed_memory"]

_BYTES = 31 * 2**20  # glibc adapts to blocks of up to 32 MB


def keep_freed_memory() -> None:
    """Let the C library keep up to 62 MB of freed memory for the process, where that is glibc.

    By default glibc returns more than 128 kB of free memory to the system, and raises this limit to twice the largest block that a
    program has freed. A step of a fully connected network frees many blocks of one or two MB, so that their sum is returned and
    requested again in every step. Blocks that are freed unused are never in memory.
    """
    torch.empty(_BYTES, dtype=torch.uint8, device="cpu")
