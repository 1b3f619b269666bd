"""Likelihoods for regression: normal noise with one standard deviation, or one that the network predicts.

Shapes: S draws, B batch, D outputs.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_scale
from bayesify.errors import ConfigurationError, DataError
from bayesify.functional import at_least_float32, at_most
from bayesify.likelihoods.base import Likelihood, check_draws
from bayesify.likelihoods.per_output import check_width, scales_of
from bayesify.predictive.base import without_single
from bayesify.predictive.gaussian import GaussianPredictive
from bayesify.predictive.mixtures import normal_log_density
from bayesify.predictive.targets import check_numbers

__all__ = ["Gaussian", "HeteroscedasticGaussian", "bounded_log_std", "check_bounds"]


_SEVERAL = 3.0  # times as much as fixed noise, or as the targets vary
_ROWS = 8  # from which their variation is known
_EPOCHS, _SETTLED = 4, 0.8  # training has settled if the second half of at least 4 epochs reduces residuals by less than a fifth


class Gaussian(Likelihood):
    r"""Normal noise with one standard deviation for all examples: $y = f + \sigma\epsilon$, $\epsilon \sim N(0, 1)$.

    Outputs are means (S, B), (S, B, 1) or (S, B, D), targets (B,), (B, 1) or (B, D).

    Args:
        std: $\sigma$ in the unit of the targets, a number or one per output (the last dimension).
        learn: whether $\log\sigma$ is a parameter, initially that of `std`; give `likelihood.parameters()` to the optimizer.

    Raises:
        ConfigurationError: `std` is not above 0, empty, or a tensor.

    Example:
        >>> Gaussian(std=2.0).log_prob(torch.zeros(1, 2, 1), torch.tensor([0.0, 2.0]))
        tensor([[-1.6121, -2.1121]])
    """

    closed_form = True
    log_std: Tensor

    def __init__(self, std: float | Sequence[float] = 1.0, learn: bool = False) -> None:
        stds = scales_of("std", std)
        super().__init__(std=stds, learn=learn)
        log_std = torch.tensor([math.log(value) for value in stds] if isinstance(stds, list) else math.log(stds))
        if learn:
            self.log_std = nn.Parameter(log_std)
        else:
            self.register_buffer("log_std", log_std)

    @property
    def std(self) -> Tensor:
        """Current standard deviation of the noise: scalar or (D,)."""
        return at_least_float32(self.log_std).exp()

    def check_outputs(self, outputs: Tensor) -> None:
        check_draws(outputs, 2, "(S, B), (S, B, 1) or (S, B, D)")
        check_width("std", self.log_std, outputs, outputs.shape[-1] if outputs.dim() > 2 else 1)

    def check_values(self, y: Tensor, outputs: Tensor | None) -> None:
        check_numbers(y)

    def misfit(self, nll: Sequence[float], y: Tensor) -> str:
        if self.fields["learn"] or len(nll) < _EPOCHS:
            return ""
        half, last = (self._residual(nll[epoch] / y[0].numel()) for epoch in (len(nll) // 2, -1))
        if last < _SEVERAL or last < _SETTLED * half:
            return ""
        return (
            f"residuals after training are {last:.2g} times the fixed noise of {self!r}, so that intervals are too narrow: give "
            "std in the unit of the targets, or learn=True"
        )

    def _residual(self, nll: float) -> float:
        """Root mean square of residuals, in units of the noise, from the NLL per output: log(sigma sqrt(2 pi)) + r^2 / 2."""
        return math.sqrt(max(0.0, 2 * (nll - 0.5 * math.log(2 * math.pi) - float(self.log_std.mean()))))

    def misread(self, outputs: Tensor, y: Tensor | None) -> str:
        if self.fields["learn"] or y is None or len(y) < _ROWS:
            return ""
        ratio = float((self.std / y.to(self.std).std(0)).min())  # of all outputs, some of which may hardly vary
        if not _SEVERAL < ratio < math.inf:
            return ""
        return (
            f"the fixed noise of {self!r} is {ratio:.2g} times the standard deviation of the targets, so that there is nothing to "
            "learn and intervals are too wide: give std in the unit of the targets, or learn=True"
        )

    def terms(self, outputs: Tensor, y: Tensor) -> Tensor:
        return normal_log_density(y.to(outputs.dtype), outputs, at_least_float32(self.log_std))

    def expected_terms(self, mean: Tensor, std: Tensor, y: Tensor) -> Tensor:
        log_std = at_least_float32(self.log_std)
        return normal_log_density(y.to(mean.dtype), mean, log_std) - 0.5 * (std * torch.exp(-log_std)).square()

    def mixture(self, outputs: Tensor) -> GaussianPredictive:
        means = without_single(outputs)
        std = self.std.detach().to(means)
        return GaussianPredictive(means, std.reshape(()) if means.dim() == 2 else std)


class HeteroscedasticGaussian(Likelihood):
    r"""Normal noise with a variance that the network predicts for every example: $y = f_1 + e^{f_2 / 2}\epsilon$.

    Outputs are (S, B, 2D): D means, then D log variances; targets (B,) or (B, 1) where D = 1, else (B, D).

    The standard deviation is clamped to [min_std, max_std]. Beyond a bound the log variance keeps gradients that lead back inside
    and loses those that lead further out, so that outputs neither get stuck nor overflow.

    Args:
        min_std, max_std: bounds of the standard deviation, in the unit of the targets.

    Raises:
        ConfigurationError: bounds that are not above 0, or `min_std` not below `max_std`.

    Source: Nix & Weigend, *Estimating the mean and variance of the target probability distribution* (1994).

    Example:
        >>> HeteroscedasticGaussian().log_prob(torch.zeros(1, 2, 2), torch.tensor([0.0, 1.0]))
        tensor([[-0.9189, -1.4189]])
    """

    closed_form = True

    def __init__(self, min_std: float = 1e-4, max_std: float = 1e4) -> None:
        check_bounds(min_std, max_std)
        super().__init__(min_std=min_std, max_std=max_std)
        self.min_std = min_std
        self.max_std = max_std

    def check_outputs(self, outputs: Tensor) -> None:
        check_draws(outputs, 3, "(S, B, 2D), means before log variances")
        if outputs.shape[-1] % 2:
            raise DataError(f"outputs must have a mean and a log variance per target, (S, B, 2D), got {tuple(outputs.shape)}")

    def target_shape(self, outputs: Tensor) -> tuple[int, ...]:
        return (*outputs.shape[1:-1], outputs.shape[-1] // 2)

    def check_values(self, y: Tensor, outputs: Tensor | None) -> None:
        check_numbers(y)

    def terms(self, outputs: Tensor, y: Tensor) -> Tensor:
        return normal_log_density(y.to(outputs.dtype), *self._moments(outputs))

    def uncorrelated(self, mean: Tensor, covariance: Tensor) -> Tensor:
        """Weighting with exp(-l) moves the mean of m by minus its covariance with l, where the bounds of l have no effect.

        Source: Wu et al., *Deterministic variational inference* (2019, arXiv 1810.03958), section 5.
        """
        center, log_variance = mean.chunk(2, -1)
        shift = covariance.diagonal(offset=center.shape[-1], dim1=-2, dim2=-1)
        return torch.cat([center - shift, log_variance], -1)

    def expected_terms(self, mean: Tensor, std: Tensor, y: Tensor) -> Tensor:
        r"""Outputs are means m and log variances l with variances $s_m^2$ and $s_l^2$; the bounds apply to the mean of l.

        $$-\tfrac12[\log 2\pi + l + e^{-l + s_l^2 / 2} ((y - m)^2 + s_m^2)]$$
        """
        center, log_std = self._moments(mean)
        spread, log_spread = std.chunk(2, -1)
        # log of the mean of a log-normal precision, at most the square of the largest precision, so that it cannot overflow
        log_precision = at_most(0.5 * log_spread.square() - 2 * log_std, -4 * math.log(self.min_std))
        squares = (y.to(mean.dtype) - center).square() + spread.square()
        return -0.5 * (math.log(2 * math.pi) + 2 * log_std + log_precision.exp() * squares)

    def mixture(self, outputs: Tensor) -> GaussianPredictive:
        means, log_stds = self._moments(outputs)
        return GaussianPredictive(without_single(means), without_single(log_stds).exp())

    def _moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        means, log_variances = outputs.chunk(2, -1)
        return means, bounded_log_std(log_variances, self.min_std, self.max_std)


def check_bounds(min_std: float, max_std: float) -> None:
    """Raise a `ConfigurationError` unless these are bounds of a standard deviation."""
    check_scale("min_std", min_std)
    check_scale("max_std", max_std)
    if min_std >= max_std:
        raise ConfigurationError(f"min_std must be below max_std, got {min_std!r} and {max_std!r}")


def bounded_log_std(log_variance: Tensor, min_std: float, max_std: float) -> Tensor:
    """Log standard deviations within bounds, beyond which gradients that lead back inside are kept."""
    return at_most(-at_most(-0.5 * log_variance, -math.log(min_std)), math.log(max_std))
