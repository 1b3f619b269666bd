"""`NaturalPosterior`, the base class of posteriors that an optimizer updates by natural gradients, and what it gets for a step.

The posterior is an ordinary one: means and spreads are parameters with the gradient of the loss, so drawing, KL, saving and copies
need nothing else. The step of the optimizer, `bnn.optimizer(likelihood)`, calls `NaturalPosterior.update` for every layer.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.per_example import Record

__all__ = ["NaturalPosterior", "NaturalStep"]

_LEAST_BETA = 1e-3  # weight of the KL that sets the spread where a schedule starts at 0


@dataclasses.dataclass(frozen=True)
class NaturalStep:
    r"""What `NaturalPosterior.update` gets for one step.

    Attributes:
        learning_rate: of the step.
        n, beta: number of examples in the training set and weight of the KL in the loss, $-\mathrm{ELBO} / n$, that was descended.
        state: the optimizer's state of a parameter, a dict of tensors and numbers.
        observed: what `NaturalPosterior.observe` returned for the layer, averaged over the passes since the last step.
    """

    learning_rate: float
    n: float
    beta: float
    state: Callable[[Tensor], dict[str, Any]]
    observed: Mapping[str, Tensor]

    @property
    def kl_weight(self) -> float:
        """Weight of the KL in the loss, beta / n."""
        return self.beta / self.n

    @property
    def ess(self) -> float:
        """Effective sample size n / beta; a beta below 0.001 counts as 0.001."""
        return self.n / max(self.beta, _LEAST_BETA)


class NaturalPosterior(Posterior):
    """A posterior that `bnn.optimizer(...)` updates by natural gradients.

    Its parameters have the gradient of the loss, so that another optimizer, which treats them as the parameters of any posterior,
    also maximizes the ELBO.

    Attributes:
        ess: effective sample size of the last step, n / beta; 0 before the first, where it counts as n.
        rate: weight of a step in the moving average of curvatures, where `precisions` returns them.
        samples_labels: with `observes`, whether the examples are observed with targets drawn from the model (Fisher information)
            instead of those of the data.
        stacks: with `observes`, whether statistics of passes are stacked along their first dimension, and scaled so that sums of
            products of two are averaged, instead of averaged themselves.
    """

    samples_labels: bool = False
    stacks: bool = False
    rate: float = 0.0
    ess: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ess", torch.zeros(()))

    def precisions(self, layer: BayesianLayer) -> Tensor | None:
        """Precisions of the weights, or their geometric mean; None if they are not a moving average of curvatures."""
        return None

    @abstractmethod
    def update(self, layer: BayesianLayer, step: NaturalStep) -> None:
        """Update the layer's parameters and those of the posterior, in place, by their `grad`; without a `grad` they stay."""

    def observe(self, layer: BayesianLayer, record: Record) -> dict[str, Tensor]:
        """Statistics of a call of the layer in training, for posteriors with `observes`: averages over draws and examples.

        Several calls of a layer in a pass are added. With `stacks`, they have one row per draw and example, divided by the root of
        their number.
        """
        raise NotImplementedError(f"{type(self).__name__} declares observes but does not implement `observe`")

    def remark(self) -> str:
        return "" if self.ess.is_meta or self.ess <= 0 else f"effective sample size {float(self.ess):.4g}"
