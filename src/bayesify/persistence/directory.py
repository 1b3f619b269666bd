"""Files of a model directory: atomic writing and verified reading."""

from __future__ import annotations

import glob
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from bayesify.checksums import read_sealed, seal, sha256
from bayesify.errors import ConfigurationError, ModelFileError, warn
from bayesify.files import write_atomically
from bayesify.persistence.lock import locked
from bayesify.persistence.schema import check_schema

__all__ = [
    "CHECKPOINT",
    "CONFIG",
    "FORMAT",
    "PREPROCESSING",
    "WEIGHTS",
    "check_destination",
    "load_config",
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

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Path(folder, "thesis.docx").touch()
        ...     check_destination(folder)
        Traceback (most recent call last):
            ...
        bayesify.errors.ConfigurationError: ... contains files that are not a bayesify model (thesis.docx); choose another folder
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

    What an interrupted save has left next to the directory is removed.

    Raises:
        ConfigurationError: an invalid directory (see `check_destination`) or an invalid companion name.
        OSError: no space or no permission, or another process writes there; nothing has changed.
    """
    if invalid := [name for name in companions if Path(name).name != name or name in (CONFIG, *files) or _is_transient(name)]:
        raise ConfigurationError(f"companions must be file names other than those of the model, got {invalid}")
    checksums = {name: sha256(content) for name, content in files.items()}
    text = seal(KIND, FORMAT, {**config, "companions": sorted(companions)}, checksums)

    path = check_destination(directory)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    with locked(path):
        for leftover in _leftovers(path, "new"):
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            draft.mkdir()
            for name, content in {**files, **companions, CONFIG: text}.items():
                write_atomically(draft / name, content)
            _replace(path, draft)
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise OSError(f"the model could not be saved to {path}: {error}; the directory is unchanged") from error


def load_config(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Load and verify the `config.json` of a model directory: task, target, columns, metrics and all settings.

    Raises:
        ModelFileError: not a model directory, or a damaged, edited, invalid or newer configuration.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from bayesify.estimators import BayesianRegressor
        >>> from bayesify.persistence import save_model
        >>> X = np.linspace(-1, 1, 40)[:, None]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_model(BayesianRegressor(method="MCDropout", epochs=1, random_state=0).fit(X, X[:, 0]), folder, target="price")
        ...     config = load_config(folder)
        >>> config["task"], config["target"]["name"], [column["name"] for column in config["columns"]]
        ('regression', 'price', ['x0'])
    """
    path = Path(directory)
    if not path.is_dir():
        backups = sorted(path.absolute().parent.glob(f".{path.name}.*.old"))
        hint = f"; an interrupted save left the previous model in {backups[-1]}: rename it to restore it" if backups else ""
        hint = hint or "; give the folder that `bayesify fit` or `save_model` wrote"
        raise ModelFileError(f"{path} {'is not a folder' if path.exists() else 'does not exist'}{hint}")
    if not (path / CONFIG).is_file():
        raise ModelFileError(f"{path} is not a model directory: it has no {CONFIG}")
    config = read_sealed(path / CONFIG, KIND, FORMAT)
    check_schema(path / CONFIG, config)
    return config


def _replace(directory: Path, draft: Path) -> None:
    """Replace a directory with its draft, and keep its files that are not part of the model."""
    if not directory.exists():
        os.replace(draft, directory)
    else:
        backup = draft.with_suffix(".old")
        os.replace(directory, backup)
        try:
            os.replace(draft, directory)
        except OSError:
            os.replace(backup, directory)
            raise
    for backup in _leftovers(directory, "old"):
        try:
            _adopt(backup, directory)
        except OSError as error:  # the model is saved
            warn(f"the model is saved, but files in {backup} could not be moved back to {directory} ({error}); move them yourself")
        else:
            shutil.rmtree(backup, ignore_errors=True)


def _adopt(backup: Path, directory: Path) -> None:
    """Move the files that are not part of a model from a backup to the directory."""
    model_files = _model_files(backup)
    for path in backup.iterdir():
        if path.name not in model_files and not _is_transient(path.name) and not (directory / path.name).exists():
            os.replace(path, directory / path.name)


def _leftovers(directory: Path, ending: str) -> list[Path]:
    """Drafts ("new") or backups ("old") of a directory, the latest backup first."""
    pattern = f".{glob.escape(directory.name)}.{'[0-9a-f]' * 8}.{ending}"
    return sorted(directory.parent.glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)


def _model_files(directory: Path) -> set[str]:
    """The names of the files of the model in a directory."""
    names = {CONFIG, WEIGHTS, PREPROCESSING}
    if _is_model(directory):
        config = json.loads((directory / CONFIG).read_bytes())
        names.update(config.get("companions", []), config.get("files", {}))
    return names


def _is_transient(name: str) -> bool:
    """Whether a file is a training checkpoint, of which an ensemble may have several, or a draft of one left by a crash."""
    return name == CHECKPOINT or fnmatchcase(name, f"{CHECKPOINT}.*") or fnmatchcase(name, f".{CHECKPOINT}.*.tmp")


def _is_model(directory: Path) -> bool:
    try:
        config = json.loads((directory / CONFIG).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("format") == KIND
