"""The priors of `MeanField`: the KL of a tensor of normal weights from each of them, formulas and sources on its page."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from bayesify.functional import (
    at_least_float32,
    gaussian_kl,
    gaussian_kl_and_spread,
    standard_normal,
    vifo_empirical_bayes,
    vifo_mean,
    vifo_mean_variance,
)

if TYPE_CHECKING:
    from bayesify.methods.mean_field import MeanField

__all__ = ["COLLAPSED", "kl_and_spread"]

COLLAPSED = "mean", "mean-variance", "empirical-bayes"
"""Priors with learned parameters."""


def kl_and_spread(
    method: MeanField,
    mean: Tensor,
    log_std: Tensor,
    prior_mean: Tensor | None,
    prior_log_std: Tensor | None,
    power: Literal[1, 2],
) -> tuple[Tensor, Tensor]:
    """KL in nats, summed, and standard deviations (power 1) or variances (power 2) in the dtype of log_std.

    Args:
        method: which has the prior and its parameters.
        mean, log_std: of the weights, one shape.
        prior_mean: that of every weight, of the same shape; None for zero.
        prior_log_std: that of every weight; None for `method.prior_std`.
        power: of the standard deviations.
    """
    wide_mean, wide = at_least_float32(mean), at_least_float32(log_std)
    if method.prior == "scale-mixture":
        return _scale_mixture_kl(wide_mean, wide, method), torch.exp(power * log_std)
    if method.prior in COLLAPSED:
        return _collapsed_kl(wide_mean, wide, method), torch.exp(power * log_std)
    center = 0.0 if prior_mean is None else prior_mean
    if prior_log_std is not None:
        kl = gaussian_kl(wide_mean, wide, center, at_least_float32(prior_log_std).exp()).sum()
        return kl, torch.exp(power * log_std)
    kl, *spread = gaussian_kl_and_spread(wide_mean, wide, center, method.prior_std)
    return kl, spread[power - 1].to(log_std.dtype)


def _collapsed_kl(mean: Tensor, log_std: Tensor, method: MeanField) -> Tensor:
    """KL with the prior's parameters integrated out: a regularizer of VIFO of a single example."""
    q = mean.flatten().unsqueeze(0), log_std.exp().flatten().unsqueeze(0)
    if method.prior == "mean":
        return vifo_mean(*q, prior_std=method.prior_std, mean_prior_std=method.mean_prior_std).squeeze(0)
    given = {name: value for name, value in (("a", method.a), ("b", method.b)) if value is not None}
    if method.prior == "mean-variance":
        return vifo_mean_variance(*q, delta=method.delta, **given).squeeze(0)
    return vifo_empirical_bayes(*q, **given).squeeze(0)


def _scale_mixture_kl(mean: Tensor, log_std: Tensor, method: MeanField) -> Tensor:
    """Unbiased estimate: the entropy of q in closed form, the cross entropy with one draw."""
    negative_entropy = -(log_std + 0.5 * (1 + math.log(2 * math.pi))).sum()
    w = torch.addcmul(mean, log_std.exp(), standard_normal(*mean.shape, like=mean))
    components = [
        math.log(share) - math.log(std) - 0.5 * math.log(2 * math.pi) - 0.5 * (w / std) ** 2
        for share, std in ((method.mixture_weight, method.prior_std), (1 - method.mixture_weight, method.mixture_std))
    ]
    return negative_entropy - torch.logaddexp(*components).sum()
