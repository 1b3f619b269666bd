"""Files of a model directory: atomic writing and verified reading."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from bayesify.errors import ConfigurationError, ModelFileError
from bayesify.files import write_atomically

__all__ = [
    "CHECKPOINT",
    "CONFIG",
    "FORMAT",
    "PREPROCESSING",
    "WEIGHTS",
    "check_destination",
    "load_config",
    "read_verified",
    "write_directory",
]

FORMAT = 2  # 2: columns have quantiles and shares; format 1 is read as well
KIND = "bayesify-model"
CHECKPOINT = "training.ckpt"  # of the training run whose model will be saved in the directory
CONFIG, WEIGHTS, PREPROCESSING = "config.json", "weights.safetensors", "preprocessing.skops"


def check_destination(directory: str | os.PathLike[str]) -> Path:
    """Check that a model can be saved to a directory, and resolve its links; call this before training.

    Raises:
        ConfigurationError: the path is a file, or a folder with files that are not a model.
        OSError: the parent folder does not exist or is not writable.
    """
    path = Path(directory).resolve()
    if path.is_dir():
        names = {entry.name for entry in path.iterdir() if not _is_transient(entry.name)}
        if names and not _is_model(path):
            examples = ", ".join(sorted(names)[:5])
            raise ConfigurationError(f"{path} contains files that are not a bayesify model ({examples}); choose another folder")
    elif path.exists():
        raise ConfigurationError(f"{path} is a file; choose a new or empty folder")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist; create it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"the folder {path.parent} is not writable; choose another one")
    return path


def write_directory(
    directory: str | os.PathLike[str], config: dict[str, Any], files: Mapping[str, bytes], companions: Mapping[str, bytes]
) -> None:
    """Write a model directory atomically: the configuration with checksums, the files they belong to, and companions.

    Raises:
        ConfigurationError: an invalid directory (see `check_destination`) or an invalid companion name.
        OSError: no space or no permission; nothing has changed.
    """
    if invalid := [name for name in companions if Path(name).name != name or name in (CONFIG, *files) or _is_transient(name)]:
        raise ConfigurationError(f"companions must be file names other than those of the model, got {invalid}")
    checksums = {name: _sha256(content) for name, content in files.items()}
    config = {"format": KIND, "format_version": FORMAT, **config, "companions": sorted(companions), "files": checksums}
    config["checksum"] = _checksum(config)
    text = json.dumps(config, indent=1, ensure_ascii=False, allow_nan=False)

    path = check_destination(directory)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        draft.mkdir()
        for name, content in {**files, **companions, CONFIG: text.encode()}.items():
            write_atomically(draft / name, content)
        _replace(path, draft)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise OSError(f"the model could not be saved to {path}: {error}; the directory is unchanged") from error


def load_config(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Load and verify the `config.json` of a model directory: task, target, columns, metrics and all settings.

    Raises:
        ModelFileError: not a model directory, or a damaged, edited or newer configuration.
    """
    path = Path(directory)
    if not path.is_dir():
        backups = sorted(path.absolute().parent.glob(f".{path.name}.*.old"))
        hint = f"; an interrupted save left the previous model in {backups[-1]}: rename it to restore it" if backups else ""
        raise ModelFileError(f"{path} {'is not a folder' if path.exists() else 'does not exist'}{hint}")
    if not (path / CONFIG).is_file():
        raise ModelFileError(f"{path} is not a model directory: it has no {CONFIG}")
    content = _read(path / CONFIG)
    try:
        config = json.loads(content)
    except ValueError as error:
        raise ModelFileError(f"{path / CONFIG} is damaged: it is not valid JSON ({error})") from None
    if not isinstance(config, dict) or config.get("format") != KIND:
        raise ModelFileError(f"{path} is not a model directory: its {CONFIG} was not written by bayesify")
    version = config.get("format_version")
    if isinstance(version, int) and version > FORMAT:
        raise ModelFileError(
            f"{path} was saved in format {version} by bayesify {config.get('bayesify')}; this version reads formats up to "
            f"{FORMAT}: pip install --upgrade bayesify"
        )
    if config.get("checksum") != _checksum(config):
        raise ModelFileError(f"{path / CONFIG} was edited or damaged: its checksum does not match its content")
    return config


def read_verified(directory: str | os.PathLike[str], config: Mapping[str, Any], name: str) -> bytes:
    """Read a file of a model directory and verify its checksum.

    Raises:
        ModelFileError: the file is missing, damaged or from another model.
    """
    content = _read(Path(directory) / name)
    if _sha256(content) != config["files"].get(name):
        raise ModelFileError(f"{Path(directory) / name} is damaged or from another model: its checksum does not match {CONFIG}")
    return content


def _replace(directory: Path, draft: Path) -> None:
    """Replace a directory with its draft, and keep its files that are not part of the model."""
    if not directory.exists():
        os.replace(draft, directory)
        return
    model_files = {CONFIG, WEIGHTS, PREPROCESSING}
    if _is_model(directory):
        config = json.loads((directory / CONFIG).read_bytes())
        model_files.update(config.get("companions", []), config.get("files", {}))
    backup = draft.with_suffix(".old")
    os.replace(directory, backup)
    try:
        os.replace(draft, directory)
    except OSError:
        os.replace(backup, directory)
        raise
    for path in backup.iterdir():
        if path.name not in model_files and not _is_transient(path.name) and not (directory / path.name).exists():
            os.replace(path, directory / path.name)
    shutil.rmtree(backup, ignore_errors=True)


def _is_transient(name: str) -> bool:
    """Whether a file is a training checkpoint, of which an ensemble may have several, or a draft of one left by a crash."""
    return name == CHECKPOINT or fnmatchcase(name, f"{CHECKPOINT}.*") or fnmatchcase(name, f".{CHECKPOINT}.*.tmp")


def _is_model(directory: Path) -> bool:
    try:
        config = json.loads((directory / CONFIG).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("format") == KIND


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ModelFileError(f"{path.parent} is incomplete: {path.name} is missing") from None
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error}") from error


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _checksum(config: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in config.items() if name != "checksum"}
    return _sha256(json.dumps(rest, sort_keys=True).encode())
