"""Likelihoods for classification: categorical and Bernoulli.

Shapes: S draws, B batch, K classes, D labels, * any further dimensions (tokens).
"""

import torch.nn.functional as F
from torch import Tensor

from bayesify.errors import DataError
from bayesify.likelihoods.base import Likelihood, check_draws
from bayesify.predictive.discrete import BernoulliPredictive, CategoricalPredictive, check_binary, check_labels

__all__ = ["Bernoulli", "Categorical"]


class Categorical(Likelihood):
    r"""One of K classes per example, or per token: $\log p(y) = \log\mathrm{softmax}(f)_y$.

    Outputs are logits (S, B, K) or (S, B, *, K), targets integers (B,) or (B, *).

    Args:
        ignore_index: a label whose targets are ignored (padding).

    Example:
        >>> Categorical().log_prob(torch.zeros(1, 2, 4), torch.tensor([3, 0]))
        tensor([[-1.3863, -1.3863]])
    """

    impossible = True

    def __init__(self, ignore_index: int = -100) -> None:
        super().__init__(ignore_index=ignore_index)
        self.ignore_index = ignore_index

    def check_outputs(self, outputs: Tensor) -> None:
        check_draws(outputs, 3, "(S, B, K) or (S, B, ..., K), classes last")
        if outputs.shape[-1] < 2:
            raise DataError(f"Categorical needs at least 2 classes, got outputs {tuple(outputs.shape)}; one logit needs Bernoulli")

    def target_shape(self, outputs: Tensor) -> tuple[int, ...]:
        return tuple(outputs.shape[1:-1])

    def check_values(self, y: Tensor, outputs: Tensor | None) -> None:
        check_labels(y[y != self.ignore_index], None if outputs is None else outputs.shape[-1])

    def terms(self, outputs: Tensor, y: Tensor) -> Tensor:
        if y.is_floating_point():
            raise TypeError(f"y must have integer class labels, got {y.dtype}; use y.long() if they are whole numbers")
        labels = y.long().expand(outputs.shape[:-1])
        losses = F.cross_entropy(outputs.flatten(0, -2), labels.flatten(), ignore_index=self.ignore_index, reduction="none")
        return -losses.view(labels.shape)

    def mixture(self, outputs: Tensor) -> CategoricalPredictive:
        return CategoricalPredictive.from_logits(outputs, self.ignore_index)


class Bernoulli(Likelihood):
    r"""Binary targets, one per example or one per label: $\log p(y) = \log\mathrm{sigmoid}((2y - 1) f)$.

    Outputs are logits (S, B), (S, B, 1) or (S, B, D), targets zeros and ones of any dtype, (B,), (B, 1) or (B, D).

    Example:
        >>> Bernoulli().log_prob(torch.zeros(1, 2), torch.tensor([1, 0]))
        tensor([[-0.6931, -0.6931]])
    """

    impossible = True

    def check_outputs(self, outputs: Tensor) -> None:
        check_draws(outputs, 2, "(S, B), (S, B, 1) or (S, B, D)")

    def check_values(self, y: Tensor, outputs: Tensor | None) -> None:
        check_binary(y)

    def terms(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.logsigmoid((2 * y.to(outputs.dtype) - 1) * outputs)

    def mixture(self, outputs: Tensor) -> BernoulliPredictive:
        return BernoulliPredictive.from_logits(outputs)
