"""Likelihood for regression with targets of any distribution: a mixture of normal distributions that the network predicts.

Shapes: S draws, B batch, M components, D outputs.
"""

import torch
from torch import Tensor

from bayesify.core.checks import check_integer
from bayesify.errors import DataError
from bayesify.likelihoods.base import Likelihood, check_draws
from bayesify.likelihoods.gaussian import bounded_log_std, check_bounds
from bayesify.predictive.base import sum_from
from bayesify.predictive.gaussian import GaussianPredictive
from bayesify.predictive.mixtures import normal_log_density
from bayesify.predictive.targets import check_numbers

__all__ = ["GaussianMixture"]


class GaussianMixture(Likelihood):
    r"""Mixture of M normal distributions, whose weights, means and variances the network predicts (a mixture density network).

    $$p(y) = \sum_m \mathrm{softmax}(a)_m \prod_d N(y_d;\, \mu_{md}, e^{l_{md}})$$

    Skewed, heavy-tailed and multimodal targets need no transform. Outputs are (S, B, M + 2 M D): M logits a, then the means
    $\mu$ of the D outputs under the first component, under the second, ..., then the log variances l in the same order. Targets
    are (B,) or (B, 1) where D = 1, else (B, D); the outputs of one example share its component.

    Standard deviations are bounded as in `HeteroscedasticGaussian`. Where many targets are equal (numbers rounded in the table),
    the density under a narrow component would grow without limit: choose `min_std` not below the rounding.

    Args:
        components: M.
        min_std, max_std: bounds of the standard deviations, in the unit of the targets.

    Raises:
        ConfigurationError: no component, bounds that are not above 0, or `min_std` not below `max_std`.

    Source: Bishop, *Mixture density networks* (1994), equations (21) to (23).

    Example:
        >>> GaussianMixture(components=2).log_prob(torch.zeros(1, 2, 6), torch.tensor([0.0, 1.0]))
        tensor([[-0.9189, -1.4189]])
    """

    def __init__(self, components: int = 3, min_std: float = 1e-3, max_std: float = 1e4) -> None:
        check_integer("components", components)
        check_bounds(min_std, max_std)
        super().__init__(components=components, min_std=min_std, max_std=max_std)
        self.components, self.min_std, self.max_std = components, min_std, max_std

    def check_outputs(self, outputs: Tensor) -> None:
        m = self.components
        check_draws(outputs, 3, f"(S, B, {m} + {2 * m} D), logits before means before log variances")
        if outputs.dim() > 3 or outputs.shape[-1] < 3 * m or (outputs.shape[-1] - m) % (2 * m):
            raise DataError(
                f"outputs must have {m} logits, and {m} means and {m} log variances per target, (S, B, {m} + {2 * m} D), got "
                f"{tuple(outputs.shape)}; for one target the network needs {3 * m} outputs"
            )

    def target_shape(self, outputs: Tensor) -> tuple[int, ...]:
        return (outputs.shape[1], (outputs.shape[-1] - self.components) // (2 * self.components))

    def check_values(self, y: Tensor, outputs: Tensor | None) -> None:
        check_numbers(y)

    def terms(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log density (S, B) of the D targets of an example together, nats."""
        log_weights, means, log_stds = self._moments(outputs)
        log_density = normal_log_density(y.to(outputs.dtype).unsqueeze(-2), means, log_stds)
        return torch.logsumexp(log_weights + sum_from(log_density, 3), -1)

    def mixture(self, outputs: Tensor) -> GaussianPredictive:
        log_weights, means, log_stds = self._moments(outputs)
        weights = log_weights.exp() / len(outputs)
        means, stds, weights = (x.movedim(2, 1).flatten(0, 1) for x in (means, log_stds.exp(), weights))
        if means.shape[-1] == 1:
            means, stds = means.squeeze(-1), stds.squeeze(-1)
        return GaussianPredictive(means, stds, weights, components=self.components)

    def _moments(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights (S, B, M), means and log standard deviations (S, B, M, D)."""
        m = self.components
        logits, rest = outputs[..., :m], outputs[..., m:]
        means, log_variances = rest.unflatten(-1, (2, m, -1)).unbind(-3)
        return logits.log_softmax(-1), means, bounded_log_std(log_variances, self.min_std, self.max_std)
