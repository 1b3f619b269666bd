"""Model directories as files: what belongs to one, writing it in one piece or not at all, reading it with every check."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = [
    "CHECKPOINT",
    "CONFIG",
    "FORMAT",
    "PREPROCESSING",
    "WEIGHTS",
    "ModelError",
    "check_destination",
    "load_config",
    "read_verified",
    "write_directory",
]

FORMAT = 1
KIND = "bayesify-model"
CHECKPOINT = "training.ckpt"  # a run's state may lie in the directory of the model it is going to become
CONFIG, WEIGHTS, PREPROCESSING = "config.json", "weights.safetensors", "preprocessing.skops"
_PASSING = (CHECKPOINT, f"{CHECKPOINT}.tmp")


class ModelError(ValueError):
    """A directory that is not a bayesify model, a damaged one, or a model that cannot be saved; the message says what is wrong."""


def check_destination(directory: str | os.PathLike[str]) -> Path:
    """The place a model can be saved to, links resolved; call it before training.

    Raises:
        ModelError: a file, or a folder that holds something other than a model.
        OSError: the parent folder does not exist or cannot be written to.
    """
    place = Path(directory).resolve()
    if place.is_dir():
        names = {path.name for path in place.iterdir()} - set(_PASSING)
        if names and not _is_model(place):
            raise ModelError(
                f"{place} holds files that are not a bayesify model ({', '.join(sorted(names)[:5])}); choose a new or empty folder"
            )
    elif place.exists():
        raise ModelError(f"{place} is a file; choose the name of a new folder")
    if not place.parent.is_dir():
        raise FileNotFoundError(f"the folder {place.parent} does not exist; create it first")
    if not os.access(place.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"the folder {place.parent} is not writable; choose another place")
    return place


def write_directory(
    directory: str | os.PathLike[str], config: dict[str, Any], files: Mapping[str, bytes], companions: Mapping[str, bytes]
) -> None:
    """Write a model directory in one piece: the configuration, with checksums added, the files it vouches for, and companions.

    Raises:
        ModelError: a directory that holds something else, companions with names of bayesify's own.
        OSError: no space or no permission; nothing has changed.
    """
    if wrong := [name for name in companions if Path(name).name != name or name in (CONFIG, *files, *_PASSING)]:
        raise ModelError(f"companions must be plain file names other than bayesify's own, got {', '.join(map(repr, wrong))}")
    checksums = {name: _sha256(content) for name, content in files.items()}
    config = {"format": KIND, "format_version": FORMAT, **config, "companions": sorted(companions), "files": checksums}
    config["checksum"] = _checksum(config)
    text = json.dumps(config, indent=1, ensure_ascii=False, allow_nan=False)

    place = check_destination(directory)
    fresh = place.with_name(f".{place.name}.{secrets.token_hex(4)}.new")
    try:
        fresh.mkdir()
        for name, content in {**files, **companions, CONFIG: text.encode()}.items():
            _write(fresh / name, content)
        _swap(fresh, place)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise OSError(f"the model could not be saved to {place}: {error}; what was there is as it was") from error


def load_config(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """The verified `config.json` of a model directory: task, target, columns, metrics and everything else but the weights.

    Raises:
        ModelError: no model, or a damaged, edited or newer configuration.
    """
    place = Path(directory)
    if not place.is_dir():
        aside = sorted(place.absolute().parent.glob(f".{place.name}.*.old"))
        hint = f"; an interrupted save left the earlier model in {aside[-1]}, rename it to get it back" if aside else ""
        raise ModelError(f"{place} {'is not a folder' if place.exists() else 'does not exist'}{hint}")
    if not (place / CONFIG).is_file():
        raise ModelError(f"{place} is not a model directory: it has no {CONFIG}")
    try:
        config = json.loads(_read(place / CONFIG))
    except ValueError as error:
        raise ModelError(f"{place / CONFIG} is damaged, it is no valid JSON ({error})") from None
    if not isinstance(config, dict) or config.get("format") != KIND:
        raise ModelError(f"{place} is not a model directory: its {CONFIG} is not bayesify's")
    version = config.get("format_version")
    if isinstance(version, int) and version > FORMAT:
        raise ModelError(
            f"{place} was saved in format {version} by bayesify {config.get('bayesify')}, this version reads formats up to "
            f"{FORMAT}: pip install --upgrade bayesify"
        )
    if config.get("checksum") != _checksum(config):
        raise ModelError(f"{place / CONFIG} was edited or damaged: its checksum does not fit its content")
    return config


def read_verified(directory: str | os.PathLike[str], config: Mapping[str, Any], name: str) -> bytes:
    """The content of a file that the configuration vouches for.

    Raises:
        ModelError: the file is missing, or not the one that was saved.
    """
    content = _read(Path(directory) / name)
    if _sha256(content) != config["files"].get(name):
        raise ModelError(f"{Path(directory) / name} is damaged or from another model: its checksum is not the one in {CONFIG}")
    return content


def _swap(fresh: Path, place: Path) -> None:
    """Put `fresh` in the place of `place`, and into it what is not bayesify's."""
    if not place.exists():
        os.replace(fresh, place)
        return
    ours = {CONFIG, WEIGHTS, PREPROCESSING, *_PASSING}
    if _is_model(place):
        ours.update(json.loads((place / CONFIG).read_bytes()).get("companions", []))
    aside = fresh.with_suffix(".old")
    os.replace(place, aside)
    try:
        os.replace(fresh, place)
    except OSError:
        os.replace(aside, place)
        raise
    for path in aside.iterdir():
        if path.name not in ours and not (place / path.name).exists():
            os.replace(path, place / path.name)
    shutil.rmtree(aside, ignore_errors=True)


def _is_model(place: Path) -> bool:
    try:
        config = json.loads((place / CONFIG).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("format") == KIND


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{path.parent} is incomplete: {path.name} is missing") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error}") from error


def _write(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _checksum(config: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in config.items() if name != "checksum"}
    return _sha256(json.dumps(rest, sort_keys=True).encode())
