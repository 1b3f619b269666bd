"""JSON configurations with checksums, of themselves and of the files next to them: written once, read with verification."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from bayesify.errors import ModelFileError, warn

__all__ = ["file_sha256", "read_sealed", "read_verified", "seal", "sha256", "verify"]

_RELEASE = re.compile(r"(\d+(?:\.\d+)*)")


def seal(kind: str, version: int, config: Mapping[str, Any], files: Mapping[str, str]) -> bytes:
    """Return a configuration as JSON text, with its kind and format, the checksums of files, and its own.

    Raises:
        ValueError: NaN or infinity.
    """
    full = {"format": kind, "format_version": version, **config, "files": dict(files)}
    full["checksum"] = _checksum(full)
    return json.dumps(full, indent=1, ensure_ascii=False, allow_nan=False).encode()


def read_sealed(path: Path, kind: str, newest: int) -> dict[str, Any]:
    """Read and verify the result of `seal`; a newer version of bayesify in the same format is a warning.

    Args:
        path: an existing file.
        kind: as for `seal`.
        newest: the newest format that this version reads; the oldest is 1.

    Raises:
        ModelFileError: unreadable, not JSON, of another kind or a newer format, edited or damaged, or with invalid checksums.
    """
    content = _read(path)
    try:
        config = json.loads(content, parse_constant=_not_finite, parse_float=_finite)
        checksum = _checksum(config) if isinstance(config, dict) else ""
    except (ValueError, RecursionError) as error:
        problem = "it is nested too deeply" if isinstance(error, RecursionError) else f"it is not valid JSON ({error})"
        raise ModelFileError(f"{path} is damaged: {problem}; save the model again") from None
    if not isinstance(config, dict) or config.get("format") != kind:
        raise ModelFileError(f"{path.parent} is not a saved model: its {path.name} was not written by bayesify")
    version = config.get("format_version")
    if type(version) is int and version > newest:
        release = f"{config.get('bayesify')!s:.40}"
        raise ModelFileError(
            f"{path.parent} was saved in format {version} by bayesify {release}; this version reads formats up to {newest}: "
            "pip install --upgrade bayesify"
        )
    if config.get("checksum") != checksum:
        raise ModelFileError(f"{path} was edited or damaged: its checksum does not match its content; save the model again")
    if type(version) is not int or version < 1:
        raise ModelFileError(f"{path} is invalid: format_version must be a whole number from 1 to {newest}, got {version!r:.40}")
    _check_files(path, config.get("files"))
    _check_release(path, config.get("bayesify"))
    return config


def verify(directory: Path, checksums: Mapping[str, str], name: str) -> None:
    """Compare a file with its checksum.

    Raises:
        ModelFileError: it is missing, unreadable or changed.
    """
    _compare(directory / name, checksums, lambda: file_sha256(directory / name))


def read_verified(directory: Path, checksums: Mapping[str, str], name: str) -> bytes:
    """Read a file and compare it with its checksum.

    Raises:
        ModelFileError: as for `verify`.
    """
    content = _read(directory / name)
    _compare(directory / name, checksums, lambda: sha256(content))
    return content


def sha256(content: bytes) -> str:
    """Return the SHA-256 of bytes, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits; the file need not fit into memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _compare(path: Path, checksums: Mapping[str, str], actual: Any) -> None:
    try:
        checksum = actual()
    except OSError as error:
        raise _unreadable(path, error) from error
    if checksum != checksums.get(path.name):
        raise ModelFileError(
            f"{path} is damaged or from another model: its checksum does not match the configuration; save the model again"
        )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> ModelFileError:
    if isinstance(error, FileNotFoundError):
        return ModelFileError(f"{path.parent} is incomplete: {path.name} is missing; copy it there, or save the model again")
    return ModelFileError(f"{path} cannot be read: {error}")


def _check_files(path: Path, files: object) -> None:
    """Checksums are a mapping of plain file names to text."""
    if not isinstance(files, dict):
        raise ModelFileError(f"{path} is invalid: files must map names to checksums, got {type(files).__name__}")
    for name, checksum in files.items():
        if not isinstance(checksum, str) or Path(name).name != name or name == path.name:
            raise ModelFileError(f"{path} is invalid: files must map plain file names to checksums, got {name!r:.80}")


def _check_release(path: Path, release: object) -> None:
    from bayesify import __version__  # the package may still be loading when this module is imported

    if not isinstance(release, str) or not (found := _RELEASE.match(release)) or len(release) > 80:
        raise ModelFileError(f"{path} is invalid: bayesify must be the version that saved it, got {release!r:.80}")
    own = _RELEASE.match(__version__)
    if own and _numbers(found[1]) > _numbers(own[1]):
        warn(
            f"{path.parent} was saved by bayesify {release}, newer than this version ({__version__}), which may read it "
            "differently: pip install --upgrade bayesify"
        )


def _numbers(release: str) -> list[int]:
    return [int(part) for part in release.split(".")]


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _not_finite(text)


def _not_finite(text: str) -> NoReturn:
    raise json.JSONDecodeError(f"{text[:40]} is not a finite number", text, 0)


def _checksum(config: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in config.items() if name != "checksum"}
    return sha256(json.dumps(rest, sort_keys=True).encode())
