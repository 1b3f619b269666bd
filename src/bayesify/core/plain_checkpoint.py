"""Checkpoints of plain networks, whose weights a random layer takes over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from bayesify.core.values import not_finite

if TYPE_CHECKING:
    from bayesify.core.layer import BayesianLayer

__all__ = ["adopt_plain_weights"]


def adopt_plain_weights(
    layer: BayesianLayer, state_dict: dict[str, Any], prefix: str, missing_keys: list[str], error_msgs: list[str]
) -> None:
    """Start a posterior from the weights of a plain layer; report missing ones and wrong shapes as PyTorch does."""
    like = next(iter((*layer.posterior.parameters(), *layer.parameters())))
    values = {name: state_dict.get(f"{prefix}{name}") for name in ("weight", "bias")}
    shapes = {"weight": layer.weight_shape, "bias": layer.bias_shape}
    mismatched = [name for name, value in values.items() if value is not None and tuple(value.shape) != shapes[name]]
    if invalid := not_finite(values):
        error_msgs.extend(
            f"{prefix}{name} has NaN or infinite values; the checkpoint is damaged, or its training diverged." for name in invalid
        )
    elif not mismatched:
        with torch.no_grad():
            weight, bias = (None if value is None else value.to(like) for value in values.values())
            assert weight is not None
            layer.posterior.adopt(layer, weight, bias)
    for name, shape in shapes.items():
        if layer._parameters.get(name) is None and shape is not None:  # replaced by the posterior: PyTorch does not check it
            key, value = f"{prefix}{name}", state_dict.pop(f"{prefix}{name}", None)
            if value is None:
                missing_keys.append(key)
            elif name in mismatched:
                error_msgs.append(
                    f"size mismatch for {key}: copying a param with shape {value.shape} from checkpoint, "
                    f"the shape in current model is {torch.Size(shape)}."
                )
    state_dict.update({f"{prefix}posterior.{key}": value for key, value in layer.posterior.state_dict().items()})
