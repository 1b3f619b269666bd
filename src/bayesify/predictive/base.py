"""What every predictive distribution can be asked, and the shape rules its kinds share.

Shapes: S draws, N rows, K classes, D outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

__all__ = ["Predictive", "align_targets", "sum_from", "without_single"]


class Predictive(ABC):
    """What a model believes about N rows: an equal-weight mixture over S draws of its weights."""

    # What other kinds have and this one cannot, and the sentence that says what to use.
    foreign: ClassVar[tuple[str, ...]] = ()
    advice: ClassVar[str] = ""

    @property
    @abstractmethod
    def samples(self) -> int:
        """S, the number of draws."""

    @abstractmethod
    def __len__(self) -> int:
        """N, the number of rows."""

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """The mean of y: (N, ...)."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """The variance of y: shaped like `mean`."""

    @property
    @abstractmethod
    def aleatoric(self) -> Tensor:
        """The uncertainty that every draw agrees on, noise in the data: squared units (numbers) or nats (classes)."""

    @property
    @abstractmethod
    def epistemic(self) -> Tensor:
        """The uncertainty from disagreement between draws, which more data would remove: squared units or nats."""

    @abstractmethod
    def log_prob(self, y: Tensor) -> Tensor:
        """The log of the mean over draws of the density or probability of y: (N,) nats."""

    @abstractmethod
    def mix(self, *others: Any) -> Self:
        """More draws of the same rows, from predictives of the same kind: every draw weighs the same."""

    @abstractmethod
    def cat(self, *others: Any) -> Self:
        """More rows with the same number of draws, from predictives of the same kind."""

    def to(self, device: torch.device | str) -> Self:
        """A copy on that device."""
        tensors = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return type(self)(**{**vars(self), **tensors})

    def __repr__(self) -> str:
        return f"{type(self).__name__}(mean={tuple(self.mean.shape)}, samples={self.samples})"

    def __getattr__(self, name: str) -> Any:
        reason = f": {type(self).advice}" if name in type(self).foreign else ""
        raise AttributeError(f"a {type(self).__name__} has no {name!r}{reason}")

    def _check_same(self, others: tuple[Any, ...], attribute: str) -> None:
        for other in others:
            if type(other) is not type(self):
                raise TypeError(f"cannot combine a {type(self).__name__} with a {type(other).__name__}")
            mine, its = (len(p) if attribute == "rows" else p.samples for p in (self, other))
            if mine != its:
                raise ValueError(f"the parts must have the same number of {attribute}, got {mine} and {its}")


def align_targets(y: Tensor, shape: tuple[int, ...]) -> Tensor:
    """View y as `shape`; the two may differ in one trailing dimension of size 1, and nothing is ever broadcast.

    Raises:
        ValueError: other shapes.

    Example:
        >>> align_targets(torch.zeros(5), (5, 1)).shape
        torch.Size([5, 1])
    """
    if tuple(y.shape) == tuple(shape):
        return y
    if (*y.shape, 1) == tuple(shape):
        return y.unsqueeze(-1)
    if tuple(y.shape) == (*shape, 1):
        return y.squeeze(-1)
    raise ValueError(
        f"y has shape {tuple(y.shape)} but the outputs ask for {tuple(shape)}: one target per row and output (or "
        "token, where classes are the last dimension of the outputs); reshape y or the outputs"
    )


def sum_from(x: Tensor, dim: int) -> Tensor:
    """Sum over dimension `dim` and all that follow; `x` itself where there are none."""
    return x.flatten(dim).sum(-1) if x.dim() > dim else x


def without_single(x: Tensor) -> Tensor:
    """Draws (S, N, 1) as (S, N), all others as they are."""
    return x.squeeze(-1) if x.dim() == 3 and x.shape[-1] == 1 else x
