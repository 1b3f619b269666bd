"""Normal priors with a mean, and for sequential inference a standard deviation, of every weight, stored next to the posterior."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.errors import ConfigurationError

__all__ = ["StoredPrior"]


class StoredPrior(Posterior):
    """A normal posterior with log standard deviations `weight_log_std` and `bias_log_std`, and buffers for its prior.

    Attributes:
        method: has the fields `prior`, `prior_std` and `prior_mean`.
        weight_prior_mean, bias_prior_mean: None for zero.
        weight_prior_log_std, bias_prior_log_std: None for the logarithm of `method.prior_std`.
    """

    method: Any
    weight_prior_mean: Tensor | None
    bias_prior_mean: Tensor | None
    weight_prior_log_std: Tensor | None
    bias_prior_log_std: Tensor | None

    def register_prior(self, name: str, mean: Tensor | None) -> None:
        """Register the buffers for the weight or bias of a layer, where the method needs them."""
        method, center, spread = self.method, None, None
        if mean is not None and method.prior_mean == "pretrained":
            center = mean.detach().clone()
        if mean is not None and method.prior == "sequential":
            center = torch.zeros_like(mean.detach()) if center is None else center
            spread = torch.full_like(center, math.log(method.prior_std))
        self.register_buffer(f"{name}_prior_mean", center)
        self.register_buffer(f"{name}_prior_log_std", spread)

    def adopt(self, layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> None:
        if self.method.prior_mean == "pretrained":
            for name, value in (("weight", weight), ("bias", bias)):
                if value is not None:
                    self.get_buffer(f"{name}_prior_mean").copy_(value)

    def become_prior(self, layer: BayesianLayer) -> None:
        """Set the prior to the posterior."""
        if self.method.prior != "sequential":
            kind = type(self.method).__name__
            raise ConfigurationError(f'prior={self.method.prior!r} is fixed; convert with {kind}(prior="sequential")')
        for name, mean in zip(("weight", "bias"), self.mean(layer), strict=True):
            if mean is not None:
                self.get_buffer(f"{name}_prior_mean").copy_(mean)
                self.get_buffer(f"{name}_prior_log_std").copy_(self.get_parameter(f"{name}_log_std"))
