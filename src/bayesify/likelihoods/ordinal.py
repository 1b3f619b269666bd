"""Likelihood for classes with an order: cumulative logits (proportional odds).

Shapes: S draws, B batch, K classes, * any further dimensions (tokens).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.core.checks import check_integer
from bayesify.functional import at_least_float32, at_most
from bayesify.likelihoods.base import Likelihood, check_draws
from bayesify.predictive.base import without_single
from bayesify.predictive.discrete import CategoricalPredictive
from bayesify.predictive.targets import check_labels

__all__ = ["Ordinal"]

_NARROWEST, _WIDEST = 1e-6, 1e6  # distances of cut points
# The parameters are cut points / 10. Adam moves every number by one learning rate per step. The outputs, sums over hundreds of
# weights, would grow long before the distances, and a narrow class in the middle cannot be likely.
_UNIT = 10.0


class Ordinal(Likelihood):
    r"""One of K ordered classes per example, with learned cut points.

    $$P(y \le k) = \mathrm{sigmoid}(c_k - f), \qquad c_0 < c_1 < \dots < c_{K - 2}$$

    It is the class of a logistic variable with mean f among the intervals between the K - 1 cut points. A larger output moves
    probability to higher classes.

    Outputs are (S, B), (S, B, 1) or (S, B, *), targets integers from 0 to K - 1, (B,) or (B, *). Give `likelihood.parameters()` to
    the optimizer. Initially, all classes have probability 1 / K where the output is 0.

    Args:
        classes: K, at least 2.

    Raises:
        ConfigurationError: fewer than two classes.

    Source: McCullagh, *Regression models for ordinal data* (1980), equation (2.4).

    Example:
        >>> Ordinal(classes=4).log_prob(torch.zeros(1, 2), torch.tensor([0, 3])).exp()
        tensor([[0.2500, 0.2500]], grad_fn=<ExpBackward0>)
    """

    def __init__(self, classes: int) -> None:
        check_integer("classes", classes, least=2)
        super().__init__(classes=classes)
        self.classes = classes
        cuts = torch.logit(torch.arange(1, classes, dtype=torch.float64) / classes)
        self.first_cut = nn.Parameter(cuts[:1].float() / _UNIT)
        self.log_gaps = nn.Parameter(cuts.diff().log().float() / _UNIT)

    @property
    def cuts(self) -> Tensor:
        """Current cut points, ascending, (K - 1,)."""
        first = _UNIT * at_least_float32(self.first_cut)
        return torch.cat([first, first + self._gaps().cumsum(0)])

    def check_outputs(self, outputs: Tensor) -> None:
        check_draws(outputs, 2, "(S, B), (S, B, 1) or (S, B, ...), one number per target")

    def check_values(self, y: Tensor, outputs: Tensor | None) -> None:
        check_labels(y, self.classes)

    def terms(self, outputs: Tensor, y: Tensor) -> Tensor:
        if y.is_floating_point():
            raise TypeError(f"y must have integer class labels, got {y.dtype}; use y.long() if they are whole numbers")
        labels = y.long().expand(outputs.shape).unsqueeze(-1)
        return self._log_probs(outputs).gather(-1, labels).squeeze(-1)

    def mixture(self, outputs: Tensor) -> CategoricalPredictive:
        return CategoricalPredictive.from_logits(self._log_probs(without_single(outputs)).detach())

    def _gaps(self) -> Tensor:
        log_gaps = _UNIT * at_least_float32(self.log_gaps)
        return at_most(-at_most(-log_gaps, -math.log(_NARROWEST)), math.log(_WIDEST)).exp()

    def _log_probs(self, outputs: Tensor) -> Tensor:
        """Log probabilities of the classes, (S, B, *, K)."""
        distance = self.cuts - outputs.unsqueeze(-1)
        # sigmoid(b) - sigmoid(a) = sigmoid(b) sigmoid(-a) (1 - exp(a - b)) has digits in both tails
        below, above = F.pad(F.logsigmoid(distance), (0, 1)), F.pad(F.logsigmoid(-distance), (1, 0))
        return below + above + F.pad((-torch.expm1(-self._gaps())).log(), (1, 1))
