"""Base classes of predictive distributions, and their shape rules.

Shapes: S draws, N rows, K classes, D outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from bayesify.core.checks import check_fraction
from bayesify.errors import ConfigurationError, DataError

__all__ = ["NumericPredictive", "Predictive", "align_targets", "sum_from", "without_single"]


class Predictive(ABC):
    """Predictive distribution of N rows: an equal-weight mixture over S draws of the weights.

    Example:
        >>> p = predict(bayesify(nn.Linear(3, 1), MeanField()), torch.zeros(5, 3), Gaussian(std=0.1), samples=8, seed=0)
        >>> p.samples, len(p), p.mean.shape, torch.allclose(p.variance, p.aleatoric + p.epistemic)
        (8, 5, torch.Size([5]), True)
    """

    # attributes of other subclasses that this one lacks, and a hint for the error message
    missing: ClassVar[tuple[str, ...]] = ()
    hint: ClassVar[str] = ""

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
        """Uncertainty within draws, from noise in the data: squared units (regression) or nats (classification)."""

    @property
    @abstractmethod
    def epistemic(self) -> Tensor:
        """Uncertainty between draws, which more data would reduce: squared units (regression) or nats (classification)."""

    @abstractmethod
    def log_prob(self, y: Tensor) -> Tensor:
        """The log of the mean over draws of the density or probability of y: (N,) nats.

        Raises:
            TypeError, DataError: targets of another type or shape, or that this distribution cannot have.
        """

    @abstractmethod
    def mix(self, *others: Any, weights: Sequence[float] | None = None) -> Self:
        """Combine with more draws of the same rows, from predictives of the same type.

        Args:
            others: the predictives.
            weights: of this one and the others, at least 0, with the sum 1; None for equal weights of all draws.

        Raises:
            TypeError: predictives of another type.
            DataError: predictives of other rows.
            ConfigurationError: weights that are negative or do not sum to 1.
            NotImplementedError: `weights`, where all draws of this type have equal weights.
        """

    @abstractmethod
    def cat(self, *others: Any) -> Self:
        """Concatenate with more rows of equally many draws, from predictives of the same type.

        Raises:
            TypeError: predictives of another type.
            DataError: predictives with other numbers of draws or components.
        """

    def average(self, *others: Any) -> Self:
        """Average with predictives of the same draws and rows for other inputs: the distribution if the inputs are uncertain.

        Raises:
            TypeError: predictives of another type.
            DataError: predictives of other rows or draws.
            NotImplementedError: the average has no distribution of this type; use `mix`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no average; combine the draws with mix")

    @abstractmethod
    def select(self, rows: Tensor | slice) -> Self:
        """The predictive distribution of some rows: indices, in any order, or a slice."""

    def to(self, device: torch.device | str) -> Self:
        """A copy on that device."""
        return self._map(lambda tensor: tensor.to(device))

    def detach(self) -> Self:
        """A copy without gradients."""
        return self._map(Tensor.detach)

    def double(self) -> Self:
        """A copy in float64, in which small deviations from a large mean keep their digits."""
        return self._map(Tensor.double)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        tensors = {name: function(value) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return type(self)(**{**vars(self), **tensors})

    def __repr__(self) -> str:
        return f"{type(self).__name__}(mean={tuple(self.mean.shape)}, samples={self.samples})"

    def __getattr__(self, name: str) -> Any:
        hint = f": {type(self).hint}" if name in type(self).missing else ""
        raise AttributeError(f"{type(self).__name__} has no {name!r}{hint}")

    def _check_same(self, others: tuple[Any, ...], attribute: str) -> None:
        for other in others:
            if type(other) is not type(self):
                raise TypeError(f"cannot combine a {type(self).__name__} with a {type(other).__name__}")
            ours, theirs = (len(p) if attribute == "rows" else p.samples for p in (self, other))
            if ours != theirs:
                raise DataError(f"predictives must have the same number of {attribute}, got {ours} and {theirs}")

    def _check_weights(self, others: tuple[Any, ...], weights: Sequence[float] | None) -> list[float]:
        """Return the weight of every part; of parts that only have draws of equal weight, their shares of the draws."""
        parts = (self, *others)
        if weights is None:
            return [p.samples / sum(p.samples for p in parts) for p in parts]
        if len(weights) != len(parts) or min(weights) < 0 or abs(sum(weights) - 1) > 1e-3:
            raise ConfigurationError(f"weights must be {len(parts)} numbers of at least 0 with the sum 1, got {list(weights)}")
        return [float(weight) / sum(weights) for weight in weights]


class NumericPredictive(Predictive):
    """Predictive distribution of numbers (regression): D outputs per row, each a mixture over S draws."""

    missing: ClassVar[tuple[str, ...]] = (
        "probs",
        "entropy",
        "expected_entropy",
        "mutual_information",
        "prediction",
        "log_probs",
    )
    hint: ClassVar[str] = "it is for regression; use mean, std, interval(0.95), aleatoric or epistemic"

    integers: ClassVar[bool] = False
    """Whether targets are whole numbers of at least 0."""

    @property
    @abstractmethod
    def draw_means(self) -> Tensor:
        """The mean of y under every draw: (S, N) or (S, N, D)."""

    @property
    def variance(self) -> Tensor:
        return self.aleatoric + self.epistemic

    @property
    def std(self) -> Tensor:
        """The square root of `variance`."""
        return self.variance.sqrt()

    @abstractmethod
    def cdf(self, y: Tensor) -> Tensor:
        """P(Y <= y) per output, shaped like `mean`."""

    @abstractmethod
    def pit(self, y: Tensor) -> Tensor:
        """Probability integral transform of y per output, shaped like `mean`: uniform on [0, 1] if y has this distribution."""

    @abstractmethod
    def quantile(self, q: float) -> Tensor:
        """The q-quantile of the mixture per output, q in (0, 1), shaped like `mean`.

        Raises:
            ConfigurationError: q is not in (0, 1).
        """

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Central interval that contains y with probability `level`: lower and upper, each shaped like `mean`.

        Raises:
            ConfigurationError: `level` is not in [0, 1).
        """
        check_fraction("level", level)
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    @abstractmethod
    def crps(self, y: Tensor) -> Tensor:
        """Continuous ranked probability score of y per output, in the unit of y, shaped like `mean`; smaller is better."""

    @abstractmethod
    def output(self, index: int) -> NumericPredictive:
        """The marginal distribution of one of D outputs."""

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One target per draw, noise included: (S, N) or (S, N, D); of draws with weights, S for every row, chosen by weight."""


def align_targets(y: Tensor, shape: tuple[int, ...]) -> Tensor:
    """View y as `shape`; they may differ by one trailing dimension of size 1. Nothing is broadcast.

    Raises:
        DataError: another shape, or complex values.

    Example:
        >>> align_targets(torch.zeros(5), (5, 1)).shape
        torch.Size([5, 1])
    """
    if y.is_complex():
        raise DataError(f"y must have real values, got {y.dtype}; split it into real and imaginary parts")
    if tuple(y.shape) == tuple(shape):
        return y
    if (*y.shape, 1) == tuple(shape):
        return y.unsqueeze(-1)
    if tuple(y.shape) == (*shape, 1):
        return y.squeeze(-1)
    raise DataError(
        f"y has shape {tuple(y.shape)} but the outputs require {tuple(shape)}: one target per row and output, or per row and token "
        "where classes are last; reshape y or the outputs"
    )


def sum_from(x: Tensor, dim: int) -> Tensor:
    """Sum over dimension `dim` and all that follow; `x` itself if there are none."""
    return x.flatten(dim).sum(-1) if x.dim() > dim else x


def without_single(x: Tensor) -> Tensor:
    """Squeeze draws (S, N, 1) to (S, N); others are unchanged."""
    return x.squeeze(-1) if x.dim() == 3 and x.shape[-1] == 1 else x
