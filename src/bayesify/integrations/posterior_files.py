"""The two files that hold a posterior next to the plain weights of other libraries: `bayesify.json`, `bayesify.safetensors`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from bayesify import __version__
from bayesify.errors import MissingDependencyError, ModelFileError
from bayesify.files import write_atomically

try:
    import safetensors
    import safetensors.torch
except ImportError as error:
    raise MissingDependencyError("saving and loading pretrained networks", "safetensors", extra="transformers") from error

__all__ = ["CONFIG", "STATE", "read_config", "read_state", "verify", "write_posterior"]

CONFIG, STATE = "bayesify.json", "bayesify.safetensors"
FORMAT = 1
KIND = "bayesify-posterior"


def write_posterior(directory: Path, config: Mapping[str, Any], state: Mapping[str, Tensor], others: Iterable[Path]) -> None:
    """Write the files of a posterior; the configuration comes last, so that an interrupted save is incomplete.

    Args:
        directory: an existing folder.
        config: JSON values.
        state: tensors without shared memory.
        others: files in the same folder that belong to the posterior and are verified with it.
    """
    contiguous = {name: x.detach().cpu().contiguous() for name, x in state.items()}
    write_atomically(directory / STATE, safetensors.torch.save(contiguous, {"format": "pt"}))
    checksums = {path.name: _sha256(path) for path in (directory / STATE, *sorted(others))}
    full = {"format": KIND, "format_version": FORMAT, "bayesify": __version__, **config, "files": checksums}
    full["checksum"] = _checksum(full)
    write_atomically(directory / CONFIG, json.dumps(full, indent=1, ensure_ascii=False).encode())


def read_config(directory: Path) -> dict[str, Any]:
    """Read and verify the configuration.

    Raises:
        ModelFileError: missing, damaged, edited, of another library or of a newer version.
    """
    path = directory / CONFIG
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelFileError(
            f"{directory} has no {CONFIG}: it was not saved by bayesify's save_pretrained, or the save was interrupted; plain "
            "weights load with the library that wrote them, and bayesify(net, method) makes them Bayesian"
        ) from None
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise ModelFileError(f"{path} is damaged: it is not valid JSON ({error}); save the network again") from None
    if not isinstance(config, dict) or config.get("format") != KIND:
        raise ModelFileError(f"{path} was not written by bayesify's save_pretrained; choose the folder of a saved network")
    version = config.get("format_version")
    if isinstance(version, int) and version > FORMAT:
        raise ModelFileError(
            f"{path} has format {version}, written by bayesify {config.get('bayesify')}; this version reads up to {FORMAT}: "
            "pip install --upgrade bayesify"
        )
    if config.get("checksum") != _checksum(config):
        raise ModelFileError(f"{path} was edited or damaged: its checksum does not match its content; save the network again")
    return config


def read_state(directory: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Read and verify the tensors.

    Raises:
        ModelFileError: missing, damaged, or of another network.
    """
    verify(directory, config, [STATE])
    try:
        return safetensors.torch.load_file(directory / STATE)
    except (OSError, safetensors.SafetensorError) as error:
        raise ModelFileError(f"{directory / STATE} cannot be read: {error}") from error


def verify(directory: Path, config: Mapping[str, Any], names: Iterable[str]) -> None:
    """Compare files with their checksums.

    Raises:
        ModelFileError: one is missing or was changed.
    """
    for name in names:
        try:
            content = _sha256(directory / name)
        except FileNotFoundError:
            raise ModelFileError(
                f"{directory} is incomplete: {name} is missing; copy it there, or save the network again"
            ) from None
        except OSError as error:
            raise ModelFileError(f"{directory / name} cannot be read: {error}") from error
        if content != config["files"].get(name):
            raise ModelFileError(
                f"{directory / name} is damaged or from another network: its checksum does not match {CONFIG}; save the network "
                "again"
            )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksum(config: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in config.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
