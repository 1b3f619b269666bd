"""Default network of the estimators."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import nn

from bayesify.core.checks import check_choice, check_integer

__all__ = ["ACTIVATIONS", "mlp"]

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


def mlp(in_features: int, out_features: int, hidden: Sequence[int] = (64, 64), activation: str = "relu") -> nn.Sequential:
    """Return linear layers with activations in between: (B, in_features) -> (B, out_features).

    Args:
        in_features: number of inputs.
        out_features: number of outputs.
        hidden: widths of the hidden layers; () for a linear model.
        activation: a name from `ACTIVATIONS`.

    Raises:
        ConfigurationError: a width below 1, an unknown activation.

    Example:
        >>> mlp(3, 1, hidden=(8,), activation="tanh")
        Sequential(
          (0): Linear(in_features=3, out_features=8, bias=True)
          (1): Tanh()
          (2): Linear(in_features=8, out_features=1, bias=True)
        )
    """
    check_choice("activation", activation, sorted(ACTIVATIONS))
    for width in hidden:
        check_integer("hidden", width)
    widths = [in_features, *hidden, out_features]
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), ACTIVATIONS[activation]())]
    return nn.Sequential(*layers[:-1])
