"""Locks of files and folders between processes; one process at a time trains or saves a model in a directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bayesify.errors import MissingDependencyError

try:
    from filelock import FileLock, Timeout
except ImportError as error:
    raise MissingDependencyError("saving models", "filelock", extra="tables") from error

__all__ = ["held", "locked"]


@contextmanager
def held(path: Path, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock of a file or folder, which the operating system releases if the process is killed; nested calls share it.

    Args:
        path: it need not exist, but its parent must. The lock is a file next to it, as both may be replaced.
        wait: seconds to wait for another process.

    Raises:
        BlockingIOError: another process holds it.
        OSError: no permission to make files in the parent.
    """
    path = path.with_name(f".{path.name}.lock")
    lock = FileLock(path, thread_local=False, is_singleton=True)
    before = lock.lock_counter
    try:  # entered before the lock is acquired: an interrupt may come at once
        try:
            lock.acquire(timeout=wait)
        except Timeout:
            raise BlockingIOError(f"another process holds {path}") from None
        yield
    finally:
        if lock.lock_counter > before:
            if not before:
                with suppress(OSError):  # Windows keeps open files
                    path.unlink()  # while it is held: who has opened it meanwhile finds that it has no name, and tries again
            lock.release()


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a model directory.

    Raises:
        BlockingIOError: another process holds it.
        OSError: no permission to make files in the parent.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, locked(Path(folder, "model")):
        ...     print([path.name for path in Path(folder).iterdir()])
        ['.model.lock']
    """
    advice = "wait until it has finished, or choose another folder"
    with ExitStack() as exits:
        try:
            exits.enter_context(held(directory))
        except BlockingIOError:
            raise BlockingIOError(f"another process is training or saving a model in {directory}; {advice}") from None
        yield
