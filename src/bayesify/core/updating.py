"""Bayesian updating: the posterior becomes the prior of the next data."""

from __future__ import annotations

from typing import Any

import torch

from bayesify.core.model import Bayesian
from bayesify.errors import ConfigurationError

__all__ = ["update_prior"]


@torch.no_grad()
def update_prior(bnn: Bayesian) -> None:
    r"""Set the prior of every random layer to its posterior, in place, before training on further data.

    $$p(w \mid D_1, D_2) \propto p(D_2 \mid w)\, p(w \mid D_1) \approx p(D_2 \mid w)\, q_1(w)$$

    so that training with `fit(bnn, data_2, ...)` continues from what the first data said, without them. The KL is zero afterwards.
    What is not random (the noise of a likelihood, layers without a posterior) is trained on.

    Args:
        bnn: from `bayesify(net, MeanField(prior="sequential"))`.

    Raises:
        ConfigurationError: a layer whose prior is fixed; nothing is changed.

    Example:
        >>> from bayesify import MeanField, bayesify, update_prior
        >>> bnn = bayesify(torch.nn.Linear(2, 1), MeanField(prior="sequential"))
        >>> bnn.kl().item() > 0
        True
        >>> update_prior(bnn)
        >>> bnn.kl().item()
        0.0
    """
    layers = list(bnn.random_layers())
    for name, layer in layers:
        if not hasattr(layer.posterior, "become_prior"):
            method = type(layer.posterior).__name__
            raise ConfigurationError(f"layer {name!r} has a {method}, whose prior is fixed; use MeanField(prior='sequential')")
    for _, layer in layers:
        posterior: Any = layer.posterior
        posterior.become_prior(layer)
