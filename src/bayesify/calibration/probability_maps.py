"""Maps of class probabilities that are fitted to held-out rows: vector scaling, isotonic regression and histogram binning.

Shapes: N rows, K classes, T thresholds, E edges between bins.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from bayesify.core.checks import check_integer
from bayesify.errors import DataError, MissingDependencyError
from bayesify.predictive import CategoricalPredictive

__all__ = ["HistogramBinning", "IsotonicCalibration", "ProbabilityMap", "VectorScaling"]

_ROUNDS = 200  # of L-BFGS
_PRIOR_STD = 10.0  # of factors and offsets: an underconfident model of a few held-out rows may need a factor of 10


@dataclasses.dataclass(frozen=True)
class ProbabilityMap:
    """Base of maps of the mean probabilities; the epistemic share of the entropy stays as it is."""

    @classmethod
    @abstractmethod
    def fit(cls, predictive: CategoricalPredictive, y: Tensor) -> Self:
        """Fit the map to labels y (N,) of rows that the model was not trained on.

        Raises:
            DataError: another number of rows, tokens, or fewer than two rows.
        """

    @abstractmethod
    def log_probs(self, log_probs: Tensor) -> Tensor:
        """Map log probabilities (..., K)."""

    def __call__(self, predictive: CategoricalPredictive) -> CategoricalPredictive:
        """Return the predictive distribution with mapped probabilities."""
        mapped = dataclasses.replace(predictive, log_probs=self.log_probs(predictive.log_probs))
        share = (predictive.expected_entropy / predictive.entropy.clamp_min(torch.finfo(mapped.log_probs.dtype).tiny)).clamp(0, 1)
        return dataclasses.replace(mapped, expected_entropy=share * mapped.entropy)

    def to_dict(self) -> dict[str, Any]:
        """Return the type and the fields, ready for JSON."""
        return {"type": type(self).__name__, **dataclasses.asdict(self)}

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> ProbabilityMap:
        """Restore a map from the result of `to_dict`."""
        kinds: dict[str, type[ProbabilityMap]] = {
            kind.__name__: kind for kind in (VectorScaling, IsotonicCalibration, HistogramBinning)
        }
        return kinds[fields["type"]](**{name: _tuples(value) for name, value in fields.items() if name != "type"})


@dataclasses.dataclass(frozen=True)
class VectorScaling(ProbabilityMap):
    r"""Log probabilities with a factor and an offset per class: $q = \mathrm{softmax}(w \odot \log p + b)$.

    Fitted by maximum likelihood, with the penalty $(\lVert w - 1 \rVert^2 + \lVert b \rVert^2) / 2 s^2$ of a normal prior, s = 10,
    in nats per data set, so that a class without held-out rows keeps a finite offset.

    Source: Guo, Pleiss, Sun & Weinberger (2017), arXiv 1706.04599, section 4.2, on the log of the mean probabilities in place of
    logits; the penalty is ours.

    Args:
        scale, shift: w and b, K numbers each.

    Example:
        >>> p = CategoricalPredictive.from_logits(torch.tensor([[[4.0, 0.0]]]).expand(1, 100, 2))
        >>> VectorScaling.fit(p, torch.tensor([0] * 80 + [1] * 20))(p).probs[0].round(decimals=1)
        tensor([0.8000, 0.2000])
    """

    scale: tuple[float, ...]
    shift: tuple[float, ...]

    @classmethod
    def fit(cls, predictive: CategoricalPredictive, y: Tensor) -> Self:
        log_probs, y = _checked(predictive, y)
        log_probs = log_probs.clamp_min(torch.finfo(log_probs.dtype).min / 1e10)  # an impossible class stays so
        scale = torch.ones(log_probs.shape[1], dtype=log_probs.dtype, requires_grad=True)
        shift = torch.zeros_like(scale, requires_grad=True)
        optimizer = torch.optim.LBFGS([scale, shift], max_iter=_ROUNDS, line_search_fn="strong_wolfe", tolerance_grad=1e-9)

        def loss() -> Tensor:
            optimizer.zero_grad()
            with torch.enable_grad():
                nll = torch.nn.functional.cross_entropy(scale * log_probs + shift, y, reduction="sum")
                value = nll + ((scale - 1).square().sum() + shift.square().sum()) / (2 * _PRIOR_STD**2)
                value.backward()
            return value

        optimizer.step(loss)
        return cls(tuple(scale.tolist()), tuple(shift.tolist()))

    def log_probs(self, log_probs: Tensor) -> Tensor:
        return (log_probs.new_tensor(self.scale) * log_probs + log_probs.new_tensor(self.shift)).log_softmax(-1)


@dataclasses.dataclass(frozen=True)
class IsotonicCalibration(ProbabilityMap):
    """The frequency of every class as a nondecreasing function of its probability; the results are divided by their sum.

    A frequency is at least 1 / (2 N), as that of N rows without a label would give it probability 0. With two classes, the order of
    the rows stays, up to ties.

    Source: Zadrozny & Elkan, *Transforming classifier scores into accurate multiclass probability estimates* (2002), section 4,
    by scikit-learn's `IsotonicRegression`; between thresholds it is linear.

    Args:
        thresholds, frequencies: T numbers of every class, of different T.

    Example:
        >>> p = CategoricalPredictive.from_logits(torch.tensor([[[4.0, 0.0]]]).expand(1, 100, 2))
        >>> IsotonicCalibration.fit(p, torch.tensor([0] * 80 + [1] * 20))(p).probs[0]
        tensor([0.8000, 0.2000])
    """

    thresholds: tuple[tuple[float, ...], ...]
    frequencies: tuple[tuple[float, ...], ...]

    @classmethod
    def fit(cls, predictive: CategoricalPredictive, y: Tensor) -> Self:
        try:
            from sklearn.isotonic import IsotonicRegression
        except ImportError as error:
            raise MissingDependencyError("isotonic calibration", "scikit-learn", extra="tables") from error
        log_probs, y = _checked(predictive, y)
        least = 0.5 / len(y)
        curves = []
        for k, probs in enumerate(log_probs.exp().T):
            curve = IsotonicRegression(y_min=least, y_max=1 - least).fit(probs.numpy(), (y == k).double().numpy())
            curves.append((tuple(curve.X_thresholds_.tolist()), tuple(curve.y_thresholds_.tolist())))
        return cls(*(tuple(part) for part in zip(*curves, strict=True)))

    def log_probs(self, log_probs: Tensor) -> Tensor:
        columns = [
            _interpolate(p, *(p.new_tensor(curve) for curve in curves))
            for p, *curves in zip(log_probs.exp().movedim(-1, 0), self.thresholds, self.frequencies, strict=True)
        ]
        return _normalized(columns)


@dataclasses.dataclass(frozen=True)
class HistogramBinning(ProbabilityMap):
    """The frequency of every class in the bin of its probability; the results are divided by their sum.

    The bins of a class have equal numbers of rows, up to ties, which are in one bin. A frequency is at least 1 / (2 N), as that of
    N rows without a label would give it probability 0. Unlike in isotonic regression, it need not rise with the probability.

    Source: Zadrozny & Elkan, *Obtaining calibrated probability estimates from decision trees and naive Bayesian classifiers*
    (2001), with ten bins; for several classes, Zadrozny & Elkan (2002), one class against the others.

    Args:
        edges: E numbers of every class, rising, of different E; a bin contains its upper edge.
        frequencies: E + 1 numbers of every class.

    Example:
        >>> p = CategoricalPredictive.from_logits(torch.tensor([[[4.0, 0.0]]]).expand(1, 100, 2))
        >>> HistogramBinning.fit(p, torch.tensor([0] * 80 + [1] * 20))(p).probs[0]
        tensor([0.8000, 0.2000])
    """

    edges: tuple[tuple[float, ...], ...]
    frequencies: tuple[tuple[float, ...], ...]

    @classmethod
    def fit(cls, predictive: CategoricalPredictive, y: Tensor, bins: int = 10) -> Self:
        """Fit as in `ProbabilityMap.fit`, with at most `bins` bins per class.

        Raises:
            ConfigurationError: `bins` is below 1.
            DataError: as in `ProbabilityMap.fit`.
        """
        check_integer("bins", bins)
        log_probs, y = _checked(predictive, y)
        columns = [_histogram(probs, (y == k).to(probs), bins) for k, probs in enumerate(log_probs.exp().T)]
        return cls(*(tuple(part) for part in zip(*columns, strict=True)))

    def log_probs(self, log_probs: Tensor) -> Tensor:
        columns = [
            p.new_tensor(frequencies)[torch.bucketize(p.contiguous(), p.new_tensor(edges))]
            for p, edges, frequencies in zip(log_probs.exp().movedim(-1, 0), self.edges, self.frequencies, strict=True)
        ]
        return _normalized(columns)


def _histogram(probs: Tensor, is_class: Tensor, bins: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return edges and frequencies of one class; every bin has a row."""
    n = len(probs)
    values, order = probs.sort()
    ends = torch.tensor([n * b // bins for b in range(1, bins)], dtype=torch.long)
    ends = torch.searchsorted(values, values[ends[ends > 0] - 1], right=True).unique()  # behind the ties of a bin's last row
    ends = ends[ends < n]
    sizes = torch.diff(ends, prepend=ends.new_tensor([0]), append=ends.new_tensor([n]))
    counts = torch.stack([part.sum() for part in is_class[order].split(sizes.tolist())])
    edges = (values[ends - 1] + values[ends]) / 2
    return tuple(edges.tolist()), tuple((counts / sizes).clamp(0.5 / n, 1 - 0.5 / n).tolist())


def _normalized(columns: Sequence[Tensor]) -> Tensor:
    """Return log probabilities (..., K) from the frequencies (...,) of every class."""
    frequencies = torch.stack(list(columns), -1)
    return (frequencies / frequencies.sum(-1, keepdim=True)).log()


def _interpolate(x: Tensor, thresholds: Tensor, values: Tensor) -> Tensor:
    """Piecewise linear interpolation, constant beyond the ends."""
    right = torch.searchsorted(thresholds, x.contiguous()).clamp(1, max(1, len(thresholds) - 1))
    left, right = right - 1, right.clamp_max(len(thresholds) - 1)
    width = thresholds[right] - thresholds[left]
    share = torch.where(width > 0, (x - thresholds[left]) / width.clamp_min(torch.finfo(x.dtype).tiny), 0).clamp(0, 1)
    return values[left] + share * (values[right] - values[left])


def _checked(predictive: CategoricalPredictive, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log probabilities (N, K) in float64, and the labels."""
    predictive.log_prob(y)  # checks the labels
    if predictive.log_probs.dim() != 2 or len(y) < 2:
        raise DataError(f"calibration needs two rows or more, with a single label each, got labels {tuple(y.shape)}")
    return predictive.log_probs.detach().double().cpu(), y.long().cpu()


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
