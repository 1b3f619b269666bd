"""Likelihoods for classification: categorical and Bernoulli.

Shapes: S draws, B batch, K classes, D labels, * any further dimensions (tokens).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.core.checks import check_integer, check_positive
from bayesify.errors import DataError
from bayesify.likelihoods.base import Likelihood, check_draws
from bayesify.predictive.discrete import BernoulliPredictive, CategoricalPredictive
from bayesify.predictive.targets import check_binary, check_labels

__all__ = ["Bernoulli", "Categorical"]

_ROUNDING = 0.01  # of sums of probabilities in half precision
_RESHAPING = (
    "Alias", "Cat", "Clone", "Expand", "Permute", "ReshapeAlias", "Select", "Slice", "Squeeze", "Stack", "ToCopy", "Transpose",
    "Unflatten", "UnsafeView", "Unsqueeze", "View",
)  # fmt: skip


class Categorical(Likelihood):
    r"""One of K classes per example, or per token: $\log p(y) = \log\mathrm{softmax}(f)_y$.

    Outputs are logits (S, B, K) or (S, B, *, K), targets integers (B,) or (B, *).

    Args:
        ignore_index: a label whose targets are ignored (padding).
        class_dim: the dimension of the classes in the outputs (B, ...) of the network: -1, the last, or 1 for segmentation maps
            (B, K, H, W). Predictive distributions have it last.
        temperature: by which logits are divided; `bayesify.calibration.fit_temperature` finds it on held-out rows.

    Raises:
        ConfigurationError: `class_dim` is neither -1 nor at least 1, or the temperature is not above 0.

    Example:
        >>> Categorical().log_prob(torch.zeros(1, 2, 4), torch.tensor([3, 0]))
        tensor([[-1.3863, -1.3863]])
    """

    impossible = True

    def __init__(self, ignore_index: int = -100, class_dim: int = -1, temperature: float = 1.0) -> None:
        if class_dim != -1:
            check_integer("class_dim", class_dim)
        check_positive("temperature", temperature)
        super().__init__(ignore_index=ignore_index, class_dim=class_dim, temperature=temperature)
        self.ignore_index, self.class_dim, self.temperature = ignore_index, class_dim, temperature

    def check_outputs(self, outputs: Tensor) -> None:
        layout = "(S, B, K) or (S, B, ..., K), classes last" if self.class_dim == -1 else f"with class_dim={self.class_dim}"
        check_draws(outputs, max(3, self.class_dim + 2), layout)
        if self._classes_last(outputs).shape[-1] < 2:
            raise DataError(
                f"Categorical needs at least 2 classes in dimension {self.class_dim}, got outputs {tuple(outputs.shape)}; one "
                "logit needs Bernoulli, and segmentation maps (B, K, H, W) need class_dim=1"
            )

    def target_shape(self, outputs: Tensor) -> tuple[int, ...]:
        return tuple(self._classes_last(outputs).shape[1:-1])

    def check_values(self, y: Tensor, outputs: Tensor | None) -> None:
        check_labels(y[y != self.ignore_index], None if outputs is None else self._classes_last(outputs).shape[-1])

    def misread(self, outputs: Tensor, y: Tensor | None) -> str:
        rows = self._classes_last(outputs.detach())
        sums = rows.sum(-1, dtype=torch.float64)
        if sums.numel() > 1 and bool((rows >= 0).all()) and bool(((sums - 1).abs() < _ROUNDING).all()):
            return "the outputs are probabilities, but Categorical expects logits: leave out the softmax at the end of the network"
        return ""

    def terms(self, outputs: Tensor, y: Tensor) -> Tensor:
        if y.is_floating_point():
            raise TypeError(f"y must have integer class labels, got {y.dtype}; use y.long() if they are whole numbers")
        outputs = self._logits(outputs)
        labels = y.long().expand(outputs.shape[:-1])
        try:
            losses = F.cross_entropy(outputs.flatten(0, -2), labels.flatten(), ignore_index=self.ignore_index, reduction="none")
        except IndexError:  # on a CPU
            self.check_values(y, outputs if self.class_dim == -1 else outputs.movedim(-1, self.class_dim + 1))
            raise
        return -losses.view(labels.shape)

    def mixture(self, outputs: Tensor) -> CategoricalPredictive:
        return CategoricalPredictive.from_logits(self._logits(outputs), self.ignore_index)

    def _logits(self, outputs: Tensor) -> Tensor:
        """Logits (S, B, *, K), divided by the temperature."""
        logits = self._classes_last(outputs)
        return logits if self.temperature == 1 else logits / self.temperature

    def _classes_last(self, outputs: Tensor) -> Tensor:
        """Outputs (S, B, *, K)."""
        return outputs if self.class_dim == -1 else outputs.movedim(self.class_dim + 1, -1)


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

    def misread(self, outputs: Tensor, y: Tensor | None) -> str:
        node = outputs.grad_fn  # logits between 0 and 1 are possible, so that values tell nothing
        while node is not None and node.name().startswith(_RESHAPING):
            node = node.next_functions[0][0]
        if node is not None and node.name().startswith("SigmoidBackward"):
            return "the outputs are probabilities, but Bernoulli expects logits: leave out the sigmoid at the end of the network"
        return ""

    def terms(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.logsigmoid((2 * y.to(outputs.dtype) - 1) * outputs)

    def mixture(self, outputs: Tensor) -> BernoulliPredictive:
        return BernoulliPredictive.from_logits(outputs)
