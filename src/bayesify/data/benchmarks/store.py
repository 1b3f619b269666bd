"""Where benchmark data lie: the folders they are looked for in, checksums of what is read, downloads of what is missing.

Layout of a data folder: `uci/*.npz`, `uci-class/*.npz`, `images/{mnist,fashion-mnist,kmnist}/*-ubyte.gz`, `images/cifar10/*`.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import os
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

__all__ = ["File", "cache_dir", "damaged", "data_dirs", "download", "find", "obtain", "read"]

_VARIABLE = "BAYESIFY_DATA"
_BESIDE = Path("../shared/data")


@dataclasses.dataclass(frozen=True)
class File:
    """A file of a data set.

    Args:
        path: where it lies below a data folder.
        sha256: of its content; of a plain .gz, of what it unpacks to, because every mirror packs it in its own way.
        urls: public addresses, tried in this order.
    """

    path: str
    sha256: str
    urls: tuple[str, ...] = ()

    def content(self, path: Path) -> bytes:
        """What the file at `path` holds, a plain .gz unpacked.

        Raises:
            ValueError: it cannot be unpacked, or is not the file that was published.
        """
        content = path.read_bytes()
        if PurePosixPath(self.path).suffixes == [".gz"]:
            try:
                content = gzip.decompress(content)
            except (OSError, EOFError, zlib.error) as error:
                raise ValueError(f"it cannot be unpacked ({error})") from error
        if (found := hashlib.sha256(content).hexdigest()) != self.sha256:
            raise ValueError(f"its content has the SHA-256 {found} instead of {self.sha256}")
        return content


def cache_dir() -> Path:
    """The folder of this user that downloads go to: `bayesify/data` below `$XDG_CACHE_HOME`, or else below `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bayesify" / "data"


def data_dirs(data_dir: str | os.PathLike[str] | None = None) -> tuple[Path, ...]:
    """The folders to look in: `data_dir`, or else `$BAYESIFY_DATA`, or else `../shared/data` where it exists; then `cache_dir()`.

    Raises:
        NotADirectoryError: the folder that was named does not exist.
    """
    for name, folder in (("data_dir", data_dir), (_VARIABLE, os.environ.get(_VARIABLE))):
        if folder:
            chosen = Path(folder).expanduser()
            if not chosen.is_dir():
                raise NotADirectoryError(
                    f"{name} is {str(folder)!r}, which is no folder (looked in {Path.cwd()}); name the folder that holds uci/, "
                    f"uci-class/ and images/, or leave it out to download what is missing into {cache_dir()}"
                )
            return chosen, cache_dir()
    return (_BESIDE, cache_dir()) if _BESIDE.is_dir() else (cache_dir(),)


def find(path: str, dirs: tuple[Path, ...]) -> Path | None:
    """The first of the folders that has the file."""
    return next((folder / path for folder in dirs if (folder / path).is_file()), None)


def read(file: File, dirs: tuple[Path, ...]) -> bytes:
    """The verified content of a file, downloaded into `cache_dir()` where no folder has it.

    Raises:
        FileNotFoundError: no folder has it, and it cannot be downloaded.
        ValueError: the file that was found is damaged.
    """

    def source(url: str) -> Callable[[Path], object]:
        return lambda path: (download(url, path), file.content(path))

    path = find(file.path, dirs) or obtain(file.path, {url: source(url) for url in file.urls}, dirs)
    try:
        return file.content(path)
    except ValueError as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> ValueError:
    """The error for a file that was found and is not what it should be."""
    return ValueError(f"{path} is damaged: {error}; delete it to have it downloaded again, or put a good copy there")


def obtain(path: str, sources: Mapping[str, Callable[[Path], object]], dirs: tuple[Path, ...]) -> Path:
    """Make a missing file in `cache_dir()`: all of it or, when no source works, nothing.

    Args:
        path: where it belongs below a data folder.
        sources: by address, what writes the finished file to the path it is given, and raises where that is not what it should be.
        dirs: where it was looked for, for the message.

    Raises:
        FileNotFoundError: no source works; says what to download from where, and where to put it.
    """
    target = cache_dir() / path
    failures = []
    for address, write in sources.items():
        try:
            cache_dir().mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache_dir(), prefix="download-") as folder:
                finished = Path(folder) / target.name
                write(finished)
                target.parent.mkdir(parents=True, exist_ok=True)
                finished.replace(target)
            return target
        except Exception as error:  # whatever ails this source, the next one is tried, and the reasons are all reported
            failures.append(f"\n  {address}: {type(error).__name__}: {error}")
    tried = f"Downloading it failed:{''.join(failures)}\n" if failures else "It has no public source.\n"
    raise FileNotFoundError(
        f"{path} is in none of {', '.join(map(str, dirs))}. {tried}"
        f"Put it at {target}, or below a folder of your own that data_dir or {_VARIABLE} names; "
        "loading the set on a machine with internet makes the file there."
    )


def download(url: str, path: Path) -> None:
    """Download a file.

    Raises:
        OSError: the server cannot be reached, or does not have it.
        ImportError: pooch is missing.
    """
    try:
        import pooch
    except ImportError as error:
        raise ImportError('downloading needs pooch: pip install "bayesify[data]"') from error
    pooch.create(path=path.parent, base_url="", registry={path.name: None}, urls={path.name: url}).fetch(path.name)
