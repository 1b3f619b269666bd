"""Default network of the estimators.

Shapes: B batch, I inputs, C encoded inputs, T bins.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_choice, check_integer
from bayesify.errors import MissingDependencyError

try:
    import numpy as np
except ImportError as error:
    raise MissingDependencyError("the estimators", "scikit-learn and pandas", extra="tables") from error

__all__ = ["ACTIVATIONS", "PiecewiseLinearEncoding", "mlp"]

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


class PiecewiseLinearEncoding(nn.Module):
    r"""Inputs, followed by a piecewise linear encoding of some of them: (B, I) -> (B, I + C T).

    With the edges $b_0 < \dots < b_T$ of the bins, input x becomes the T numbers

    $$e_t = \frac{x - b_{t - 1}}{b_t - b_{t - 1}}, \text{ at least 0 for } t > 1 \text{ and at most 1 for } t < T$$

    so that a linear layer on them is a continuous function of x with another slope in every bin. Edges are quantiles of the
    training inputs; an input with fewer distinct values has fewer bins, and zeros for the others.

    Args:
        columns: indices of the C encoded inputs.
        bins: T.

    Source: Gorishniy, Rubachev & Babenko, *On embeddings for numerical features in tabular deep learning* (2022), equation (1),
    here besides x itself.

    Example:
        >>> encoding = PiecewiseLinearEncoding([0], bins=2)
        >>> encoding.fit(torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0]]))
        >>> encoding(torch.tensor([[3.0]]))
        tensor([[3.0000, 1.0000, 0.5000]])
    """

    columns: Tensor
    start: Tensor
    scale: Tensor
    lower: Tensor
    upper: Tensor

    def __init__(self, columns: Sequence[int], bins: int) -> None:
        super().__init__()
        check_integer("bins", bins)
        self.register_buffer("columns", torch.tensor(columns, dtype=torch.long))
        for name in ("start", "scale", "lower", "upper"):
            self.register_buffer(name, torch.zeros(len(columns), bins))

    @torch.no_grad()
    def fit(self, x: Tensor) -> None:
        """Set the edges to quantiles of x (N, I)."""
        bins = self.start.shape[1]
        for row, column in enumerate(self.columns.tolist()):
            values = x[:, column].double()
            distinct = values.unique()
            if len(distinct) <= bins:
                edges = distinct
            else:
                edges = torch.from_numpy(np.quantile(values.numpy(), np.linspace(0, 1, bins + 1))).unique()
            for buffer in (self.start, self.scale, self.lower, self.upper):
                buffer[row] = 0
            if (used := len(edges) - 1) < 1:
                continue
            self.start[row, :used] = edges[:-1]
            self.scale[row, :used] = 1 / edges.diff()
            self.lower[row, 0] = -torch.inf
            self.upper[row, :used] = 1
            self.upper[row, used - 1] = torch.inf

    def forward(self, x: Tensor) -> Tensor:
        encoded = (x[..., self.columns].unsqueeze(-1) - self.start) * self.scale
        return torch.cat([x, encoded.clamp(self.lower, self.upper).flatten(-2)], -1)


def mlp(
    in_features: int,
    out_features: int,
    hidden: Sequence[int] = (64, 64),
    activation: str = "relu",
    encoded: Sequence[int] = (),
    bins: int = 16,
) -> nn.Sequential:
    """Return linear layers with activations in between: (B, in_features) -> (B, out_features).

    Args:
        in_features: number of inputs.
        out_features: number of outputs.
        hidden: widths of the hidden layers; () for a linear model.
        activation: a name from `ACTIVATIONS`.
        encoded: indices of the inputs that a `PiecewiseLinearEncoding` precedes, in `bins` bins.
        bins: of the encoding.

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
    if not isinstance(hidden, Iterable) or isinstance(hidden, str):
        raise TypeError(f"hidden must be a sequence of widths, such as (32,), got {hidden!r}")
    for width in hidden:
        check_integer("hidden", width)
    widths = [in_features + bins * len(encoded), *map(int, hidden), out_features]
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), ACTIVATIONS[activation]())]
    return nn.Sequential(*([PiecewiseLinearEncoding(encoded, bins)] if encoded else []), *layers[:-1])
