"""Temperature scaling: class probabilities that fit held-out rows, by one number."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from bayesify.errors import DivergenceError
from bayesify.functional.golden_section import golden_section
from bayesify.predictive import Predictive

__all__ = ["fit_temperature"]

_LOWEST, _HIGHEST = 0.1, 10.0
_GRID, _TOLERANCE = 9, 2e-3  # temperatures to bracket the best one, and the last interval of its logarithm


def fit_temperature(predictive_at: Callable[[float], Predictive], y: Tensor) -> float:
    r"""Return the temperature that minimizes the negative log-likelihood of held-out rows, between 0.1 and 10.

    $$T = \arg\min_T -\sum_i \log \frac1S \sum_s \mathrm{softmax}(f_s(x_i) / T)_{y_i}$$

    Above 1 the model is overconfident, below 1 underconfident. With one draw, the most probable class does not change.

    Source: Guo, Pleiss, Sun & Weinberger (2017), section 4.2, here for the mean probabilities of S draws.

    Args:
        predictive_at: the predictive distribution of the held-out rows at a temperature, such as
            `lambda t: predict(bnn, x, Categorical(temperature=t), seed=0)`; the same draws at every temperature.
        y: (N,) labels of rows that the model was not trained on.

    Raises:
        DivergenceError: the likelihood is not finite at any temperature.

    Example:
        >>> from bayesify.predictive import CategoricalPredictive
        >>> logits, y = torch.tensor([[[4.0, 0.0]]]).expand(1, 10, 2), torch.tensor([0] * 8 + [1] * 2)
        >>> fit_temperature(lambda t: CategoricalPredictive.from_logits(logits / t), y)  # 4 / T = log(8 / 2)
        2.88...
    """

    def loss(log_temperature: float) -> float:
        value = -predictive_at(math.exp(log_temperature)).log_prob(y).mean().item()
        return value if math.isfinite(value) else math.inf

    low, high = math.log(_LOWEST), math.log(_HIGHEST)
    step = (high - low) / (_GRID - 1)
    losses = [loss(low + i * step) for i in range(_GRID)]
    if min(losses) == math.inf:
        raise DivergenceError("the likelihood of the held-out rows is not finite; train with a smaller learning rate")
    best = low + losses.index(min(losses)) * step
    low, high = max(low, best - step), min(high, best + step)
    return math.exp(golden_section(loss, low, high, _TOLERANCE))
