"""Loss of a batch in training, log predictive density of a batch in validation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from bayesify.core.outputs import Draws
from bayesify.core.turns import turn
from bayesify.core.weight_decay import variational_parameters
from bayesify.objectives import lower_bound
from bayesify.train.batch import Batch, apply

if TYPE_CHECKING:
    from bayesify.core.model import Bayesian
    from bayesify.likelihoods import Likelihood

__all__ = ["Objective", "log_density"]


class Objective(nn.Module):
    """Network and likelihood as one module, so that data parallelism and precision apply to all parameters.

    Args:
        auxiliary: draws auxiliary inputs, for a network that is regularized at some where batches have none.
    """

    def __init__(self, bnn: Bayesian, likelihood: Likelihood, auxiliary: nn.Module | None = None) -> None:
        super().__init__()
        self.bnn, self.likelihood, self.auxiliary = bnn, likelihood, auxiliary

    def forward(
        self, batch: Batch, samples: int, n: int, beta: float | Tensor, local_beta: float | Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        r"""Return the loss, $-\mathrm{ELBO} / n$ and any penalty, the negative log likelihood per example, and the KL, in nats."""
        with turn():  # also labels and auxiliary inputs are drawn from the generators of the process
            return self._loss(batch, samples, n, beta, local_beta)

    def _loss(
        self, batch: Batch, samples: int, n: int, beta: float | Tensor, local_beta: float | Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        draws, log_prob = self._expectation(batch) or self._draws(batch, samples)
        penalty = self.likelihood.penalty(draws.outputs, batch.y)
        target = log_prob if penalty is None else log_prob - beta * penalty
        if batch.weights is not None:
            target = target * batch.weights
            draws = draws._replace(local_kl=draws.local_kl * batch.weights)
            if draws.observation is not None:
                draws.observation.weights = batch.weights
        loss = -lower_bound(draws, target, n, beta, local_beta)
        inputs = batch.auxiliary if self.auxiliary is None else self.auxiliary(batch.inputs)
        if inputs is not None:
            loss = loss + self.bnn.auxiliary_beta * apply(self.bnn.regularizer, inputs).mean()
        return loss, -log_prob.detach().mean(), draws.kl.detach()

    def without_decay(self) -> dict[str, nn.Parameter]:
        """Return the parameters that weight decay is wrong for, which would pull their variances to 1."""
        parts = {"bnn": variational_parameters(self.bnn), "likelihood": dict(self.likelihood.named_parameters())}
        return {f"{part}.{name}": parameter for part, named in parts.items() for name, parameter in named.items()}

    def log_prob(self, batch: Batch, samples: int) -> Tensor:
        """Return the log likelihood (S, B) of a batch."""
        return self._draws(batch, samples)[1]

    def _draws(self, batch: Batch, samples: int) -> tuple[Draws, Tensor]:
        draws = apply(self.bnn, batch.inputs, samples=samples)
        return draws, self.likelihood.log_prob(draws.outputs, batch.y)

    def _expectation(self, batch: Batch) -> tuple[Draws, Tensor] | None:
        """Return the expected log likelihood, as that of one draw, if it has a closed form; otherwise None."""
        outputs = apply(self.bnn.normal_outputs, batch.inputs) if self.likelihood.closed_form else None
        if outputs is None:
            return None
        log_prob = self.likelihood.expected_log_prob(outputs.mean, outputs.std, batch.y, outputs.covariance)
        draws = Draws(outputs.mean.unsqueeze(0), outputs.kl, outputs.local_kl, local_beta=outputs.local_beta)
        return draws, log_prob.unsqueeze(0)


def log_density(log_prob: Callable[[int], Tensor], size: int, samples: int, draws: int) -> Tensor:
    r"""Return the log predictive density of a batch, $\log\frac1S\sum_s p(y_i \mid x_i, w_s)$, with bounded memory.

    Args:
        log_prob: the log likelihood (..., s, B) of s draws.
        size: B.
        samples: draws per example in training; the minimum number of draws per call.
        draws: S.

    Returns:
        (..., B), nats.
    """
    chunk = max(samples, 1024 // size)
    parts = [log_prob(min(chunk, draws - done)) for done in range(0, draws, chunk)]
    return torch.cat(parts, -2).logsumexp(-2) - math.log(draws)
