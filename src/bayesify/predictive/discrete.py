"""Predictive distributions for classification: categorical and Bernoulli. Their memory does not depend on the number of draws.

Shapes: S draws, N rows, K classes, D labels.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.functional import at_least_float32
from bayesify.predictive.base import Predictive, align_targets, sum_from, without_single
from bayesify.predictive.targets import check_binary, check_labels

__all__ = ["BernoulliPredictive", "CategoricalPredictive", "DirichletPredictive"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _Discrete(Predictive):
    """Base of both: mean probabilities and mean entropy over draws."""

    log_probs: Tensor  # log of the mean probabilities, (N, ..., K)
    expected_entropy: Tensor  # mean over draws of the entropy, (N, ...) nats
    draws: int  # S

    missing: ClassVar[tuple[str, ...]] = ("std", "quantile", "interval", "cdf", "crps", "rescale", "sample", "means", "stds")
    hint: ClassVar[str] = "it is for classification; use probs, prediction, entropy or mutual_information"

    @property
    def samples(self) -> int:
        return self.draws

    def __len__(self) -> int:
        return self.log_probs.shape[0]

    @property
    @abstractmethod
    def probs(self) -> Tensor:
        """The mean over draws of the probabilities."""

    @property
    def mean(self) -> Tensor:
        """The mean of the class indicators: `probs`."""
        return self.probs

    @property
    def variance(self) -> Tensor:
        """The variance of the class indicators, $p (1 - p)$."""
        return self.probs * (1 - self.probs)

    @property
    def entropy(self) -> Tensor:
        """The entropy of the mean probabilities, aleatoric + epistemic: (N, ...) nats."""
        return _entropy(self.log_probs)

    @property
    def mutual_information(self) -> Tensor:
        """Mutual information of class and weights: entropy of the mean minus mean entropy, at least 0, (N, ...) nats."""
        return (self.entropy - self.expected_entropy).clamp_min(0)

    @property
    def aleatoric(self) -> Tensor:
        return self.expected_entropy

    @property
    def epistemic(self) -> Tensor:
        return self.mutual_information

    @property
    def prediction(self) -> Tensor:
        """The most probable class: (N, ...), int64."""
        return self.log_probs.argmax(-1)

    def mix(self, *others: Any, weights: Sequence[float] | None = None) -> Self:
        self._check_same(others, "rows")
        shares = self._check_weights(others, weights)
        parts = [(p, share) for p, share in zip((self, *others), shares, strict=True) if share]
        log_probs = _normalized(functools.reduce(torch.logaddexp, (p.log_probs + math.log(share) for p, share in parts)))
        entropy = torch.stack([p.expected_entropy * share for p, share in parts]).sum(0)
        return dataclasses.replace(self, log_probs=log_probs, expected_entropy=entropy, draws=sum(p.draws for p in (self, *others)))

    def cat(self, *others: Any) -> Self:
        self._check_same(others, "samples")
        parts = (self, *others)
        entropy = torch.cat([p.expected_entropy for p in parts])
        return dataclasses.replace(self, log_probs=torch.cat([p.log_probs for p in parts]), expected_entropy=entropy)

    def average(self, *others: Any) -> Self:
        """Average with predictives of the same draws and rows for other inputs: the distribution if the inputs are uncertain.

        What the inputs add to the entropy is epistemic, because single draws, which would tell, are not stored.
        """
        self._check_same(others, "samples")
        return dataclasses.replace(self.mix(*others), draws=self.draws)

    def select(self, rows: Tensor | slice) -> Self:
        return dataclasses.replace(self, log_probs=self.log_probs[rows], expected_entropy=self.expected_entropy[rows])

    @classmethod
    def _of_draws(cls, log_probs: Tensor, **fields: Any) -> Self:  # (S, N, ..., K)
        mean = _normalized(torch.logsumexp(log_probs, 0) - math.log(log_probs.shape[0]))
        return cls(log_probs=mean, expected_entropy=_entropy(log_probs).mean(0), draws=log_probs.shape[0], **fields)

    def _log_prob(self, labels: Tensor) -> Tensor:
        return self.log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CategoricalPredictive(_Discrete):
    r"""One of K classes per row, or per token of a row.

    $$p_k = \frac1S\sum_s \mathrm{softmax}(f_s)_k$$

    Stores the log of the mean probabilities, which is exact in the tails. Tokens are treated as independent predictions, as their
    joint distribution would need every draw.

    Example:
        >>> p = CategoricalPredictive.from_logits(torch.tensor([[[9.0, -9.0]], [[-9.0, 9.0]]]))  # two draws that disagree
        >>> p.probs, p.mutual_information.round(decimals=2)
        (tensor([[0.5000, 0.5000]]), tensor([0.6900]))
    """

    ignore_index: int = -100

    @classmethod
    def from_logits(cls, logits: Tensor, ignore_index: int = -100) -> Self:
        """Build it from logits (S, N, ..., K)."""
        return cls._of_draws(_log_softmax(at_least_float32(logits)), ignore_index=ignore_index)

    @property
    def probs(self) -> Tensor:
        """The mean over draws of the probabilities: (N, ..., K)."""
        return self.log_probs.exp()

    def log_prob(self, y: Tensor) -> Tensor:
        """Log of the mean probability of the labels y (N, ...): (N,) nats, summed over tokens except those of `ignore_index`.

        Raises:
            TypeError, DataError: labels that are not integers, another shape, or labels that are not among the classes.
        """
        y = align_targets(y, tuple(self.log_probs.shape[:-1]))
        valid = y != self.ignore_index
        check_labels(y[valid], self.log_probs.shape[-1])
        return sum_from(torch.where(valid, self._log_prob(torch.where(valid, y, 0).long()), 0), 1)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class DirichletPredictive(CategoricalPredictive):
    r"""One of K classes per row, from S draws of a Dirichlet distribution of the class probabilities.

    $$p_k = \frac1S\sum_s \frac{\alpha_{sk}}{\alpha_{s0}}, \quad \text{aleatoric} = \frac1S\sum_s \Bigl[\psi(\alpha_{s0} + 1) -
    \sum_k \frac{\alpha_{sk}}{\alpha_{s0}} \psi(\alpha_{sk} + 1)\Bigr], \quad \alpha_0 = \sum_k \alpha_k$$

    The epistemic part is the mutual information of the class with the draw and the probabilities together.

    Source: Malinin & Gales, *Predictive uncertainty estimation via prior networks* (2018), arXiv 1802.10501, equation (19).

    Example:
        >>> p = DirichletPredictive.from_concentrations(torch.ones(1, 1, 2))
        >>> p.probs, p.vacuity, p.mutual_information.round(decimals=2)
        (tensor([[0.5000, 0.5000]]), tensor([1.]), tensor([0.1900]))
    """

    vacuity: Tensor = dataclasses.field(kw_only=True)
    """Mean over draws of K / alpha_0, in (0, 1], which is 1 without evidence: (N, ...)."""

    @classmethod
    def from_concentrations(cls, alpha: Tensor, ignore_index: int = -100) -> Self:
        """Build it from concentrations (S, N, ..., K), above 0."""
        dtype, alpha = at_least_float32(alpha).dtype, alpha.double()  # digamma functions of large concentrations cancel
        total = alpha.sum(-1, keepdim=True)
        probs = alpha / total
        entropy = torch.digamma(total.squeeze(-1) + 1) - (probs * torch.digamma(alpha + 1)).sum(-1)
        vacuity = (alpha.shape[-1] / total).squeeze(-1).mean(0)
        log_probs, entropy, vacuity = (x.to(dtype) for x in (probs.mean(0).log(), entropy.mean(0), vacuity))
        return cls(log_probs, entropy, len(alpha), ignore_index, vacuity=vacuity)

    def mix(self, *others: Any, weights: Sequence[float] | None = None) -> Self:
        mixed, shares = super().mix(*others, weights=weights), self._check_weights(others, weights)
        vacuity = torch.stack([p.vacuity * share for p, share in zip((self, *others), shares, strict=True)]).sum(0)
        return dataclasses.replace(mixed, vacuity=vacuity)

    def select(self, rows: Tensor | slice) -> Self:
        return dataclasses.replace(super().select(rows), vacuity=self.vacuity[rows])

    def cat(self, *others: Any) -> Self:
        return dataclasses.replace(super().cat(*others), vacuity=torch.cat([p.vacuity for p in (self, *others)]))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BernoulliPredictive(_Discrete):
    r"""Binary targets, one per row or one per label: $p = \frac1S\sum_s \mathrm{sigmoid}(f_s)$.

    The last dimension of `log_probs` is y = 0 and y = 1. Labels are treated as independent predictions.

    Example:
        >>> BernoulliPredictive.from_logits(torch.tensor([[0.0, 9.0], [0.0, 9.0]])).prediction
        tensor([0, 1])
    """

    @classmethod
    def from_logits(cls, logits: Tensor) -> Self:
        """Build it from logits (S, N), (S, N, 1) or (S, N, D)."""
        logits = at_least_float32(without_single(logits))
        return cls._of_draws(torch.stack([F.logsigmoid(-logits), F.logsigmoid(logits)], -1))

    @property
    def probs(self) -> Tensor:
        """The mean over draws of P(y = 1): (N,) or (N, D)."""
        return self.log_probs[..., 1].exp()

    def log_prob(self, y: Tensor) -> Tensor:
        """Log of the mean probability of y (N,) or (N, D), zeros and ones: (N,) nats, summed over labels.

        Raises:
            DataError: another shape, or values other than 0 and 1.
        """
        y = align_targets(y, tuple(self.log_probs.shape[:-1]))
        check_binary(y)
        return sum_from(self._log_prob(y.long()), 1)


def _log_softmax(logits: Tensor) -> Tensor:
    """As PyTorch's, with the digits of a largest value near 0, because the sum of exponentials is that of the others."""
    largest, top = logits.max(-1, keepdim=True)
    shifted = logits - largest
    others = shifted.exp().scatter(-1, top, 0).sum(-1, keepdim=True)
    return shifted - others.log1p()


def _normalized(log_probs: Tensor) -> Tensor:
    """Log probabilities (..., K), the largest as that of 1 minus the others: sums of exponentials leave it no digits near 0."""
    top = log_probs.argmax(-1, keepdim=True)
    others = log_probs.exp().scatter(-1, top, 0).sum(-1, keepdim=True)
    largest = torch.where(others < 0.5, torch.log1p(0 - others), log_probs.gather(-1, top))  # 0 - 0 is not -0
    return log_probs.scatter(-1, top, largest)


def _entropy(log_probs: Tensor) -> Tensor:
    # clamped, as 0 * -inf of an impossible class is 0 here
    return -(log_probs.exp() * log_probs.clamp_min(torch.finfo(log_probs.dtype).min)).sum(-1)
