r"""How much of a natural-gradient posterior's precision is left from initialization, where training began with a new posterior.

The likelihood's part of a precision, $\lambda h$, follows a moving average of curvatures with the rate $\rho$. After T steps
$(1-\rho)^T \lambda h_0$ of it are initialization. Where that is most of the precision, standard deviations say nothing of the data,
and steps of the means, divided by h, are too small by as much. Neither is visible in a prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from bayesify.core.layer import BayesianLayer
    from bayesify.core.natural import NaturalPosterior

__all__ = ["InitialPrecision"]

_MOST = 0.5  # of the precision
_FORGOTTEN = 10.0  # moving averages over a tenth of the steps keep exp(-10) of what they began with


class InitialPrecision:
    """Precisions of the layers of an optimizer when it was made, of posteriors that had not been updated before."""

    def __init__(self, posteriors: Mapping[BayesianLayer, NaturalPosterior]) -> None:
        new = {layer: each for layer, each in posteriors.items() if not each.ess.is_meta and each.ess == 0}
        found = {layer: (each, each.precisions(layer)) for layer, each in new.items()}
        self._found = {layer: (each, start.mean()) for layer, (each, start) in found.items() if start is not None}

    @torch.no_grad()
    def share(self, steps: int, n: float) -> float:
        """The share of the precision that is left from the start, after steps with n examples: a mean over weights, in [0, 1]."""
        shares: list[Tensor] = []
        for layer, (posterior, start) in self._found.items():
            now = posterior.precisions(layer)
            if now is not None and posterior.ess > 0:
                left = (1 - posterior.rate) ** steps * start * posterior.ess / n
                shares.append((left / now).clamp(max=1).mean().expand(layer.weight.numel()))
        return float(torch.cat(shares).mean()) if shares else 0.0

    def complaint(self, steps: int, n: float) -> str:
        """What to say after training of this many steps; empty if the data determine the precision."""
        share = self.share(steps, n) if steps else 0.0
        if share < _MOST:
            return ""
        rate = next(posterior.rate for posterior, _ in self._found.values())
        return (
            f"{share:.0%} of the posterior's precision is that of initialization: {steps} steps are too few for moving averages of "
            f"curvatures with a rate of {rate:g}. Uncertainties are therefore arbitrary, and steps of the means were too small. "
            f"Train for more steps, or with a rate of about {min(1.0, _FORGOTTEN / steps):.1g} (hessian_rate, fisher_rate), and "
            "compare learning rates by the loss"
        )
