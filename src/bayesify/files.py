"""Atomic file writing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = ["atomic_file", "write_atomically"]


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a temporary binary file that replaces `path` on exit, flushed to disk.

    After an exception or a crash, `path` is unchanged.

    Raises:
        OSError: no such folder, no permission, disk full.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic_file(Path(folder, "a.txt")) as file:
        ...         _ = file.write(b"content")
        ...     Path(folder, "a.txt").read_bytes()
        b'content'
    """
    path = Path(os.path.realpath(path))  # follow links rather than replace them
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    draft = Path(name)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.chmod(path.stat().st_mode if path.exists() else 0o666 & ~_umask())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace `path` with a file of this content, or leave it unchanged."""
    with atomic_file(path) as file:
        file.write(content)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    """Flush a new file name to disk; Windows cannot open folders."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
