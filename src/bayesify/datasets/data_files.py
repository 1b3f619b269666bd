"""Files of benchmark data: the folders that are searched, verification, and downloads.

Layout of a data folder: `uci/*.npz`, `uci-class/*.npz`, `images/{mnist,fashion-mnist,kmnist}/*-ubyte.gz`, `images/cifar10/*`.
"""

from __future__ import annotations

import dataclasses
import errno
import gzip
import hashlib
import http.client
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from bayesify.errors import DataError, MissingDependencyError

__all__ = ["File", "cache_dir", "damaged_file", "data_dirs", "download", "fetch", "find_file", "read_file"]

_VARIABLE = "BAYESIFY_DATA"
_SHARED = Path("../shared/data")
# Network, server answers of the wrong kind or content, and a missing optional package; anything else is a bug.
_SOURCE_ERRORS = (OSError, EOFError, zlib.error, http.client.HTTPException, ValueError, ImportError)
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO)  # other addresses would fail alike


@dataclasses.dataclass(frozen=True)
class File:
    """A file of a data set.

    Args:
        path: relative to a data folder.
        sha256: of the content; for a .gz file other than an archive, of the decompressed content.
        urls: public addresses, tried in this order.
    """

    path: str
    sha256: str
    urls: tuple[str, ...] = ()

    def content(self, path: Path) -> bytes:
        """Read and verify the file at `path`; a .gz file other than an archive is decompressed.

        Raises:
            DataError: the file cannot be decompressed, or has another checksum.
        """
        content = path.read_bytes()
        if PurePosixPath(self.path).suffixes == [".gz"]:
            try:
                content = gzip.decompress(content)
            except (OSError, EOFError, zlib.error) as error:
                raise DataError(f"it cannot be decompressed ({error})") from error
        if (sha256 := hashlib.sha256(content).hexdigest()) != self.sha256:
            raise DataError(f"its content has the SHA-256 {sha256} instead of {self.sha256}")
        return content


def cache_dir() -> Path:
    """Folder of downloaded files: `bayesify/data` in `$XDG_CACHE_HOME`, by default `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bayesify" / "data"


def data_dirs(data_dir: str | os.PathLike[str] | None = None) -> tuple[Path, ...]:
    """Folders to search: the first of `data_dir`, `$BAYESIFY_DATA` and `../shared/data` (if it exists), then `cache_dir()`.

    Raises:
        NotADirectoryError: `data_dir` or `$BAYESIFY_DATA` is not a folder.
    """
    for name, folder in (("data_dir", data_dir), (_VARIABLE, os.environ.get(_VARIABLE))):
        if folder:
            path = Path(folder).expanduser()
            if not path.is_dir():
                raise NotADirectoryError(
                    f"{name} must be the folder of uci/, uci-class/ and images/, got {str(folder)!r}, which is not a folder "
                    f"(working directory: {Path.cwd()}); omit it to download missing files to {cache_dir()}"
                )
            return path, cache_dir()
    return (_SHARED, cache_dir()) if _SHARED.is_dir() else (cache_dir(),)


def find_file(path: str, dirs: tuple[Path, ...]) -> Path | None:
    """The file in the first folder that has it."""
    return next((folder / path for folder in dirs if (folder / path).is_file()), None)


def read_file(file: File, dirs: tuple[Path, ...]) -> bytes:
    """Return the verified content of a file, downloaded to `cache_dir()` if no folder has it.

    Raises:
        FileNotFoundError: no folder has it, and every download failed.
        DataError: the file is damaged.
    """

    def source(url: str) -> Callable[[Path], object]:
        return lambda path: (download(url, path), file.content(path))

    path = find_file(file.path, dirs) or fetch(file.path, {url: source(url) for url in file.urls}, dirs)
    try:
        return file.content(path)
    except DataError as error:
        raise damaged_file(path, error) from error


def damaged_file(path: Path, error: DataError) -> DataError:
    """The error for a damaged file in a data folder, with what to do about it."""
    return DataError(f"{path} is damaged: {error}; delete it to download it again, or replace it with an intact copy")


def fetch(path: str, sources: Mapping[str, Callable[[Path], object]], dirs: tuple[Path, ...]) -> Path:
    """Create a missing file in `cache_dir()` from the first source that works; on failure, nothing is left behind.

    Args:
        path: relative to a data folder.
        sources: by address, a function that writes the verified file to the path it gets.
        dirs: the searched folders, for the error message.

    Raises:
        FileNotFoundError: every source failed, or the cache cannot be written; the message says why, and what to do.
    """
    target = cache_dir() / path
    failures = []
    for address, write in sources.items():
        with _into_cache(path, dirs), tempfile.TemporaryDirectory(dir=_made(cache_dir()), prefix="download-") as folder:
            draft = Path(folder) / target.name
            try:
                write(draft)
            except _SOURCE_ERRORS as error:
                if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
                    raise
                failures.append(f"\n  {address}: {type(error).__name__}: {error}")
            else:
                draft.replace(_made(target.parent) / target.name)
                return target
    reason = f"Downloading it failed:{''.join(failures)}\n" if failures else "It has no public source.\n"
    raise FileNotFoundError(
        f"{path} was not found in {', '.join(map(str, dirs))}. {reason}"
        f"Put it at {target}, or at the same path in a folder given as data_dir or {_VARIABLE}; "
        "loading the data set on a machine with internet access creates the file there."
    )


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _into_cache(path: str, dirs: tuple[Path, ...]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileNotFoundError(
            f"{path} was not found in {', '.join(map(str, dirs))}, and the cache {cache_dir()} cannot be written "
            f"({type(error).__name__}: {error}); set XDG_CACHE_HOME to another folder"
        ) from error


def download(url: str, path: Path) -> None:
    """Download a file.

    Raises:
        OSError: the server cannot be reached, or does not have the file.
        MissingDependencyError: pooch is not installed.
    """
    try:
        import pooch
    except ImportError as error:
        raise MissingDependencyError("downloading", "pooch", extra="data") from error
    pooch.create(path=path.parent, base_url="", registry={path.name: None}, urls={path.name: url}).fetch(path.name)
