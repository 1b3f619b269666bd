"""Likelihoods for counts: Poisson and negative binomial, with means on a log scale.

Shapes: S draws, B batch, D outputs.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bayesify.errors import ConfigurationError, DataError
from bayesify.functional import at_least_float32, at_most
from bayesify.likelihoods.base import Likelihood, check_draws
from bayesify.likelihoods.per_output import check_width, scales_of
from bayesify.predictive.base import without_single
from bayesify.predictive.count_distribution import count_log_prob
from bayesify.predictive.counts import CountPredictive
from bayesify.predictive.targets import check_counts

__all__ = ["NegativeBinomial", "Poisson"]

_MOST = math.log(1e9)  # of the log mean
_DISPERSIONS = 1e-5, 1e5


class Poisson(Likelihood):
    r"""Counts with a variance equal to the mean: $\log p(y) = y\log\mu - \mu - \log y!$, $\mu = c\,e^f$.

    Outputs are log means (S, B), (S, B, 1) or (S, B, D), relative to the scale c; targets whole numbers of at least 0 of any dtype,
    (B,), (B, 1) or (B, D). Means are at most 1e9.

    Args:
        scale: c, the mean count where the output is 0, a number or one per output; the mean of the targets speeds up training.

    Example:
        >>> Poisson(scale=2.0).log_prob(torch.zeros(1, 2, 1), torch.tensor([0, 2]))
        tensor([[-2.0000, -1.3069]])
    """

    closed_form = True
    log_scale: Tensor

    def __init__(self, scale: float | Sequence[float] = 1.0) -> None:
        scales = scales_of("scale", scale)
        super().__init__(scale=scales)
        self.register_buffer("log_scale", torch.tensor(scales).log())

    def check_outputs(self, outputs: Tensor) -> None:
        check_draws(outputs, 2, "(S, B), (S, B, 1) or (S, B, D)")
        check_width("scale", self.log_scale, outputs, outputs.shape[-1] if outputs.dim() > 2 else 1)

    def check_values(self, y: Tensor, outputs: Tensor | None) -> None:
        check_counts(y)

    def terms(self, outputs: Tensor, y: Tensor) -> Tensor:
        return count_log_prob(y, self._log_means(outputs), None).to(outputs.dtype)

    def expected_terms(self, mean: Tensor, std: Tensor, y: Tensor) -> Tensor:
        r"""Of normal outputs with mean m and standard deviation s: $y (\log c + m) - c\,e^{m + s^2 / 2} - \log y!$."""
        log_means = self._log_means(mean.double())  # large rates cancel
        rate = at_most(log_means + 0.5 * std.double().square(), _MOST).exp()
        return (count_log_prob(y, log_means, None) + log_means.exp() - rate).to(mean.dtype)

    def mixture(self, outputs: Tensor) -> CountPredictive:
        return CountPredictive(without_single(self._log_means(outputs).exp()))

    def _log_means(self, outputs: Tensor) -> Tensor:
        return at_most(outputs + at_least_float32(self.log_scale), _MOST)


class NegativeBinomial(Likelihood):
    r"""Counts with a variance above the mean: $\mathrm{Var}\,y = \mu + \alpha\mu^2$, $\mu = c\,e^f$.

    $$p(y) = \frac{\Gamma(y + r)}{\Gamma(r)\,y!} \left(\frac{\alpha\mu}{1 + \alpha\mu}\right)^y (1 + \alpha\mu)^{-r}, \quad
    r = \frac1\alpha$$

    It is a Poisson distribution whose rate has a gamma distribution of mean $\mu$ and variance $\alpha\mu^2$. The dispersion
    $\alpha$ is a parameter of the likelihood, one for all rows, or with `per_row` the network predicts it.

    Outputs are log means (S, B), (S, B, 1) or (S, B, D), relative to the scale c; with `per_row` (S, B, 2D), the D log means, then
    D log dispersions relative to `dispersion`. Targets as for `Poisson`. Means are at most 1e9, dispersions from 1e-5 to 1e5.

    Args:
        dispersion: $\alpha$, a number or one per output: the initial value, or the value where the network's output is 0.
        per_row: whether the network predicts the dispersion of every row; give `likelihood.parameters()` to the optimizer
            otherwise.
        scale: c, as for `Poisson`.

    Raises:
        ConfigurationError: a dispersion outside of 1e-5 to 1e5, or a scale that is not above 0.

    Source: Hilbe, *Negative binomial regression* (2011), equation (8.10), the NB2 model.

    Example:
        >>> NegativeBinomial(dispersion=1.0).log_prob(torch.zeros(1, 2, 1), torch.tensor([0, 2])).exp()
        tensor([[0.5000, 0.1250]], grad_fn=<ExpBackward0>)
    """

    log_dispersion: Tensor
    log_scale: Tensor

    def __init__(
        self, dispersion: float | Sequence[float] = 1.0, per_row: bool = False, scale: float | Sequence[float] = 1.0
    ) -> None:
        dispersions, scales = scales_of("dispersion", dispersion), scales_of("scale", scale)
        for value in dispersions if isinstance(dispersions, list) else [dispersions]:
            if not _DISPERSIONS[0] <= value <= _DISPERSIONS[1]:
                raise ConfigurationError(f"dispersion must be between 1e-5 and 1e+5, got {value!r}; use Poisson for 0")
        super().__init__(dispersion=dispersions, per_row=per_row, scale=scales)
        self.per_row = per_row
        log_dispersion = torch.tensor(dispersions).log()
        if per_row:
            self.register_buffer("log_dispersion", log_dispersion)
        else:
            self.log_dispersion = nn.Parameter(log_dispersion)
        self.register_buffer("log_scale", torch.tensor(scales).log())

    @property
    def dispersion(self) -> Tensor:
        r"""Current $\alpha$: scalar or (D,); with `per_row` where the network's output is 0."""
        return _bounded(at_least_float32(self.log_dispersion)).exp()

    def check_outputs(self, outputs: Tensor) -> None:
        if not self.per_row:
            check_draws(outputs, 2, "(S, B), (S, B, 1) or (S, B, D)")
        else:
            check_draws(outputs, 3, "(S, B, 2D), log means before log dispersions")
            if outputs.shape[-1] % 2:
                raise DataError(
                    f"outputs must have a log mean and a log dispersion per target, (S, B, 2D), got {tuple(outputs.shape)}"
                )
        width = outputs.shape[-1] // (1 + self.per_row) if outputs.dim() > 2 else 1
        check_width("dispersion", self.log_dispersion, outputs, width)
        check_width("scale", self.log_scale, outputs, width)

    def target_shape(self, outputs: Tensor) -> tuple[int, ...]:
        return (*outputs.shape[1:-1], outputs.shape[-1] // 2) if self.per_row else super().target_shape(outputs)

    def check_values(self, y: Tensor, outputs: Tensor | None) -> None:
        check_counts(y)

    def terms(self, outputs: Tensor, y: Tensor) -> Tensor:
        log_means, log_dispersions = self._moments(outputs)
        return count_log_prob(y, log_means, log_dispersions.exp()).to(outputs.dtype)

    def mixture(self, outputs: Tensor) -> CountPredictive:
        log_means, log_dispersions = self._moments(outputs)
        dispersions = log_dispersions.detach().exp().to(outputs.dtype).expand_as(log_means)
        return CountPredictive(without_single(log_means.exp()), without_single(dispersions))

    def _moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Log means (S, B, *) and log dispersions that broadcast with them."""
        means, excess = outputs.chunk(2, -1) if self.per_row else (outputs, 0)
        log_means = at_most(means + at_least_float32(self.log_scale), _MOST)
        return log_means, _bounded(at_least_float32(self.log_dispersion) + excess)


def _bounded(log_dispersion: Tensor) -> Tensor:
    least, most = map(math.log, _DISPERSIONS)
    return at_most(-at_most(-log_dispersion, -least), most)
