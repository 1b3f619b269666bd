"""Bernoulli noise of a fixed rate on a layer's own weight: what `MCDropout` and `DropConnect` share."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from bayesify.core.checks import check_fraction, check_scale
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.functional import dropout_kl

__all__ = ["BernoulliFields", "BernoulliPosterior"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BernoulliFields:
    """Fields of a method that drops inputs or weights with probability `p`."""

    p: float = 0.1
    prior_std: float | None = None

    def __post_init__(self) -> None:
        check_fraction("p", self.p)
        if self.prior_std is not None:
            check_scale("prior_std", self.prior_std)

    @property
    def is_random(self) -> bool:
        return self.p > 0


class BernoulliPosterior(Posterior):
    """The rate, and the KL from a normal prior."""

    def __init__(self, method: BernoulliFields) -> None:
        super().__init__()
        self.p = method.p
        self.prior_std = method.prior_std
        self.is_random = method.is_random

    def kl(self, layer: BayesianLayer) -> Tensor:
        return dropout_kl(*self.mean(layer), self.p, self.prior_std)
