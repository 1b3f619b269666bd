"""Weights of a model directory: compared with the configuration before anything is built, and loaded without conversion."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesify.errors import DataError, ModelFileError
from bayesify.likelihoods import Likelihood, Ordinal

__all__ = ["NOT_SIZES", "SIZES", "check_outputs", "check_sizes", "load_state"]

SIZES = ("chains", "components", "cores", "draws", "features", "flow_units", "flows", "members", "rank", "transforms")
"""Fields of methods that determine how many numbers a posterior has."""
NOT_SIZES = ("burn_in", "invert_every", "max_tree_depth", "snapshots", "thinning", "warmup")
"""Other fields of methods that are whole numbers."""
_BINS = 16  # of the piecewise linear encoding, per input
_UNCOMPRESSED = 2**27  # weights that structured posteriors may have beyond the numbers in the file
_LARGEST = 1e15  # beyond the range of the scales that likelihoods and priors accept
_BOUNDS = (".lower", ".upper")  # of the piecewise linear encoding, infinite at the ends


def check_sizes(path: Path, config: Mapping[str, Any], state: Mapping[str, Tensor]) -> None:
    """Check that the weights file is as large as the network of a valid configuration, before the network is built.

    Raises:
        ModelFileError: more layers, members or weights than the file can hold.
    """
    network, method = config["network"], config["params"]["method"]
    encoded = len(network.get("encoded", ()))
    widths = [network["in_features"] + _BINS * encoded, *(config["params"]["hidden"] or ()), network["out_features"]]
    sizes = dict(_sizes(method)) if isinstance(method, dict) else {}
    members = sizes.pop("members", 1)
    tensors, numbers = len(state), sum(x.numel() for x in state.values())
    layers = members * (len(widths) - 1)
    if layers > tensors:
        raise ModelFileError(f"{path} does not fit its weights file: {layers:,} layers need more than {tensors:,} tensors")
    weights = members * sum(a * b for a, b in itertools.pairwise(widths))
    if weights > numbers + _UNCOMPRESSED:
        raise ModelFileError(f"{path} does not fit its weights file: {weights:,} weights need more than {numbers:,} numbers")
    for name, size in sizes.items():
        if size > max(1000, numbers) or size * weights > 1000 * numbers + _UNCOMPRESSED:
            raise ModelFileError(f"{path} does not fit its weights file: {name}={size:,} needs more than {numbers:,} numbers")


def check_outputs(likelihood: Likelihood, config: Mapping[str, Any]) -> None:
    """Check that the network has the outputs that likelihood and target need.

    Raises:
        DataError: it has not.
    """
    width, target = config["network"]["out_features"], config["target"]
    outputs = torch.zeros((), dtype=torch.float32).expand(1, 1, width)
    likelihood.check_outputs(outputs)
    if config["task"] == "classification":
        classes = likelihood.classes if isinstance(likelihood, Ordinal) else width
        if classes != len(target["classes"]):
            raise DataError(f"network and likelihood must have the classes of the target, {len(target['classes'])}, got {classes}")
    shape = likelihood.target_shape(outputs)
    if config["task"] == "regression" and shape != (1, len(target["mean"])):
        raise DataError(f"network.out_features={width} does not fit a target of {len(target['mean'])} numbers")


def load_state(path: Path, module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load parameters and buffers that have the names, shapes and types of the module's, and finite values.

    Raises:
        ModelFileError: they have not.
    """
    own = module.state_dict()
    for name, x in state.items():
        if name in own and x.dtype != own[name].dtype:
            raise ModelFileError(f"{path} cannot be loaded: {name} has type {x.dtype} instead of {own[name].dtype}")
        if not x.is_floating_point() or name.endswith(_BOUNDS):
            continue
        largest = float(x.abs().max()) if x.numel() else 0.0
        if not largest <= _LARGEST and not (name in dict(module.named_buffers()) and largest < torch.inf):
            raise ModelFileError(
                f"{path} cannot be loaded: {name} has a value of {largest:g}; training makes none above {_LARGEST:g}"
            )
    try:
        module.load_state_dict(dict(state))
    except RuntimeError as error:
        raise ModelFileError(f"{path} cannot be loaded: {error}") from error


def _sizes(method: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Sizes of a method and of the method in its field `base`."""
    for name, value in method.items():
        if isinstance(value, dict):
            yield from _sizes(value)
        elif name in SIZES and isinstance(value, int) and not isinstance(value, bool):
            yield name, value
