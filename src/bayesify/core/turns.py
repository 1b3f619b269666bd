"""Turns: the threads of a process run passes and predictions one after the other.

The random generators of PyTorch belong to the process, and the mode and the current pass to a network. A pass in another thread in
the middle of a prediction would draw from its seeded noise and change what it draws next.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from bayesify.errors import PassError, warn

__all__ = ["TurnError", "has_turn", "turn"]

_LIMIT = 600.0  # seconds that a thread waits


class TurnError(PassError):
    """Another thread does not end its pass or prediction."""


class _Turns:
    """A lock that its thread may take again, and that a forked process does not inherit from a thread it does not have."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner: threading.Thread | None = None
        self._depth = 0
        self._lost = False
        self._is_new_fork = False

    def __enter__(self) -> None:
        self.take(_LIMIT)

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
        self._lock.release()

    def take(self, limit: float) -> None:
        if self._lost:
            raise PassError(
                "this process was forked while another thread was in a pass or prediction, which may have left its networks "
                "half-way; fork before, or start processes with multiprocessing.get_context('spawn')"
            )
        if not self._lock.acquire(timeout=limit):
            name = "another thread" if self._owner is None else f"thread {self._owner.name!r}"
            raise TurnError(
                f"{name} has been in a pass or prediction for {limit:g} s, and the threads of a process take turns; predict fewer "
                "rows at a time, or in several processes. Neither a network nor the data it gets may wait for a pass in another "
                "thread"
            )
        self._depth += 1
        self._owner = threading.current_thread()
        if self._is_new_fork:
            self._is_new_fork = False
            _use_one_thread()

    @contextmanager
    def taken(self, limit: float) -> Iterator[None]:
        self.take(limit)
        try:
            yield
        finally:
            self.__exit__()

    def is_mine(self) -> bool:
        return self._owner is threading.current_thread()

    def forked(self) -> None:
        """Make the lock usable in a new process, which has the thread that forked alone."""
        self._is_new_fork = True
        if not self.is_mine():
            self._lost = self._owner is not None
            self._lock, self._depth, self._owner = threading.RLock(), 0, None


def _use_one_thread() -> None:
    """PyTorch's threads for operations do not survive a fork: a child that waits for them, or starts new ones, hangs."""
    if torch.get_num_threads() > 1:
        torch.set_num_threads(1)
        warn(
            "this process was forked, and PyTorch's threads do not survive that, so it computes on one thread; start processes "
            "with multiprocessing.get_context('spawn') for more"
        )


_turns = _Turns()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_turns.forked)


def turn(limit: float | None = None) -> AbstractContextManager[None]:
    """A context in which no other thread runs a pass or prediction; a thread may enter it again.

    Compiled code has no state of passes, and does not wait.

    Args:
        limit: how many seconds to wait; ten minutes by default.

    Raises:
        TurnError: another thread was in the context all that time.
        PassError: another thread was in it when this process was forked.
    """
    if torch.compiler.is_compiling():
        return nullcontext()
    return _turns if limit is None else _turns.taken(limit)


def has_turn() -> bool:
    """Whether this thread is in the context of `turn`."""
    return _turns.is_mine()
