"""What mixtures share whose draws have equal weights: how they are combined, and the nodes at which they are scored."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from bayesify.predictive.base import NumericPredictive

__all__ = ["EqualDraws", "thinned"]


class EqualDraws(NumericPredictive):
    """A mixture of S draws of weight 1 / S."""

    def mix(self, *others: Any, weights: Sequence[float] | None = None) -> Self:
        if weights is not None:
            raise NotImplementedError(f"draws of a {type(self).__name__} have equal weights; leave weights out")
        self._check_same(others, "rows")
        return self._join((self, *others), 0)

    def cat(self, *others: Any) -> Self:
        self._check_same(others, "samples")
        return self._join((self, *others), 1)

    @abstractmethod
    def _join(self, parts: tuple[Any, ...], dim: int) -> Self:
        """Concatenate in the dimension of draws (0) or of rows (1)."""


def thinned(nodes: Tensor, most: int) -> Tensor:
    """At most `most` of the nodes (G, N) of every row, which are sorted, at which its cumulative probability F is evaluated."""
    if len(nodes) <= most:
        return nodes
    # the error of an interval is that of n dF^2: more nodes where the candidates, of about the same dF, are far apart
    weight = torch.cat([torch.zeros_like(nodes[:1]), nodes.diff(dim=0).pow(1 / 3).cumsum(0)]).T.contiguous()
    wanted = weight[:, -1:] * torch.linspace(0, 1, most, dtype=nodes.dtype, device=nodes.device)
    return nodes.gather(0, torch.searchsorted(weight, wanted).clamp_max(len(nodes) - 1).T)
