"""The lock of a model directory: one process at a time trains or saves a model there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bayesify.errors import MissingDependencyError

try:
    from filelock import FileLock, Timeout
except ImportError as error:
    raise MissingDependencyError("saving models", "filelock", extra="tables") from error

__all__ = ["locked"]


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory, which the operating system releases if the process is killed; nested calls share it.

    Args:
        directory: it need not exist, but its parent must. The lock is a file next to it, as saving replaces the directory.

    Raises:
        BlockingIOError: another process holds it.
        OSError: no permission to make files in the parent.
    """
    path = directory.with_name(f".{directory.name}.lock")
    lock = FileLock(path, thread_local=False, is_singleton=True)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BlockingIOError(
            f"another process is training or saving a model in {directory}; wait until it has finished, or choose another folder"
        ) from None
    try:
        yield
    finally:
        if lock.lock_counter == 1:
            with suppress(OSError):  # Windows keeps open files
                path.unlink()  # while it is held: who has opened it meanwhile finds that it has no name, and tries again
        lock.release()
