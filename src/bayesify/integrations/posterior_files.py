"""The two files that hold a posterior next to the plain weights of other libraries: `bayesify.json`, `bayesify.safetensors`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from bayesify import __version__
from bayesify.checksums import file_sha256, read_sealed, seal, verify
from bayesify.errors import MissingDependencyError, ModelFileError
from bayesify.files import write_atomically
from bayesify.schema import check_json, listing_of, optional, record, require, text, truth, whole

try:
    import safetensors
    import safetensors.torch
except ImportError as error:
    raise MissingDependencyError("saving and loading pretrained networks", "safetensors", extra="transformers") from error

__all__ = ["CONFIG", "STATE", "read_config", "read_state", "write_posterior"]

CONFIG, STATE = "bayesify.json", "bayesify.safetensors"
FORMAT = 1
KIND = "bayesify-posterior"


_FIELDS = record(
    {
        "network": text,
        "methods": listing_of(record({"method": text})),
        "layers": listing_of(record({"name": text, "layer": text, "method": optional(whole(0, 10**6)), "reason": optional(text)})),
        "batch_dim": whole(0, 64),
        "fold": optional(truth),
        "unbatched": listing_of(text),
        "output": optional(record({})),
        "likelihood": optional(record({"likelihood": text})),
        "trained": listing_of(text),
    }
)


def _schema(place: str, config: Any) -> None:
    _FIELDS(place, config)
    methods = len(config["methods"])
    for index, layer in enumerate(config["layers"]):
        known = layer["method"] is None or layer["method"] < methods
        require(known, f"layers[{index}].method must be the index of one of {methods} methods, got {layer['method']}")
    part = (config["output"] or {}).get("part")
    require(part is None or isinstance(part, str | int), "output.part must be a key or a position")


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
    checksums = {path.name: file_sha256(path) for path in (directory / STATE, *sorted(others))}
    write_atomically(directory / CONFIG, seal(KIND, FORMAT, {"bayesify": __version__, **config}, checksums))


def read_config(directory: Path) -> dict[str, Any]:
    """Read and verify the configuration.

    Raises:
        ModelFileError: missing, damaged, edited, of another library or of a newer version.
    """
    if not (directory / CONFIG).is_file():
        raise ModelFileError(
            f"{directory} has no {CONFIG}: it was not saved by bayesify's save_pretrained, or the save was interrupted; plain "
            "weights load with the library that wrote them, and bayesify(net, method) makes them Bayesian"
        )
    config = read_sealed(directory / CONFIG, KIND, FORMAT)
    check_json(directory / CONFIG, config, _schema)
    return config


def read_state(directory: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Read and verify the tensors.

    Raises:
        ModelFileError: missing, damaged, or of another network.
    """
    verify(directory, config["files"], STATE)
    try:
        return safetensors.torch.load_file(directory / STATE)
    except (OSError, safetensors.SafetensorError) as error:
        raise ModelFileError(f"{directory / STATE} cannot be read: {error}") from error
