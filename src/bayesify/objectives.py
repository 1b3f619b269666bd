"""The evidence lower bound, and schedules for the weight of its KL."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from bayesify.core.checks import check_integer, check_nonnegative, check_positive, check_rate
from bayesify.core.values import may_look_at
from bayesify.errors import ConfigurationError, DataError, DivergenceError, warn

if TYPE_CHECKING:
    from bayesify.core.outputs import Draws

__all__ = ["Constant", "Cyclical", "KLSchedule", "LinearWarmup", "elbo"]


def elbo(draws: Draws, log_prob: Tensor, n: int, beta: float | Tensor = 1.0, local_beta: float | Tensor | None = None) -> Tensor:
    r"""Evidence lower bound per example, estimated from one minibatch; `-elbo(...)` is the loss.

    $$\frac{1}{SB}\sum_{s,b} \log p(y_b \mid x_b, w_s) \;-\; \frac{\beta}{n}\,\mathrm{KL}
      \;-\; \frac{\beta_\mathrm{local}}{B}\sum_b \mathrm{KL}_b$$

    With both betas 1, n times its expectation is a lower bound of the log evidence $\log p(y_{1..n} \mid x_{1..n})$.

    Args:
        draws: output of the Bayesian network for the minibatch.
        log_prob: log likelihood (S, B) of each example under each draw, in nats, summed over the dimensions of one example. With
            `draws.score`, its values also enter the gradient of the probabilities of discrete choices.
        n: number of examples in the whole training set. The KL counts once per data set, so 1/n of it per example.
        beta: weight of the KL, as from a `KLSchedule`; 1 is the bound, below 1 a cold posterior.
        local_beta: weight of the per-example KL of methods that have one; None for that of the method (`draws.local_beta`).

    Returns:
        Nats per example, a scalar to maximize.

    Raises:
        ConfigurationError: `n` is not a positive finite number; a weight is negative, NaN or infinite.
        DataError: `log_prob` is not (S, B), or not of floating point.
        DivergenceError: on the CPU, the KL is NaN or infinite, or `log_prob` has NaN, or in training infinite values.

    On a GPU these values pass through, because looking for them would wait for it in every step; `fit` looks once per epoch, and
    names the layers. A negative log likelihood in place of `log_prob` cannot be told from a density.

    Source: Kingma, Salimans & Welling (2015), equations (1) to (3), divided by the size N of the data set.

    Example:
        >>> draws = Draws(outputs=torch.zeros(2, 3, 1), kl=torch.tensor(30.0), local_kl=torch.zeros(3))
        >>> elbo(draws, log_prob=torch.full((2, 3), -1.0), n=10)
        tensor(-4.)
    """
    looks = draws.kl.device.type == "cpu" and may_look_at(draws.kl, log_prob)
    if looks and draws.observation is not None and not _is_finite(draws.kl + log_prob.sum()):  # before the optimizer gets them
        _check_divergence(draws, log_prob)
    bound = lower_bound(draws, log_prob, n, beta, local_beta)
    if looks and not _is_finite(bound):
        _check_divergence(draws, log_prob)
    if looks and bound.requires_grad:
        _Bounds.observe(draws, bound, beta, draws.local_beta if local_beta is None else local_beta)
    return bound


class _Bounds:
    """Notices in the backward pass that a loss has several bounds of the same draws, each with the KL."""

    of_kl: ClassVar[WeakIdKeyDictionary] = WeakIdKeyDictionary()

    def __init__(self, whole: float) -> None:
        self.whole = whole
        self.weights: list[float] = []  # of the KL in the loss, times n if it is that of the data set

    @classmethod
    def observe(cls, draws: Draws, bound: Tensor, beta: float | Tensor, local_beta: float | Tensor) -> None:
        is_global = draws.kl.requires_grad
        kl, weight, whole = (draws.kl, beta, 1.0) if is_global else (draws.local_kl, local_beta, draws.local_beta)
        if not kl.requires_grad:
            return
        if kl not in cls.of_kl:
            cls.of_kl[kl] = cls(whole)
            kl.register_hook(cls.of_kl[kl].check)  # after those of the bounds
        bounds = cls.of_kl[kl]
        bound.register_hook(lambda gradient: bounds.weights.append(abs(float(gradient)) * float(weight)))

    def check(self, gradient: Tensor) -> None:
        weights, self.weights = [weight for weight in self.weights if weight > 0], []
        if len(weights) > 1 and sum(weights) > 1.01 * self.whole:
            warn(
                f"the loss has {len(weights)} bounds of the same draws, each with their KL, so that it counts too much: call elbo "
                "once, with the sum of the log likelihoods, elbo(draws, log_prob_1 + log_prob_2, n), or with beta=0 and "
                "local_beta=0 in all bounds but one"
            )


def _is_finite(value: Tensor) -> bool:
    return math.isfinite(value.item())


def _check_divergence(draws: Draws, log_prob: Tensor) -> None:
    """Raise a `DivergenceError` for values from which no gradient can be computed."""
    if not draws.kl.isfinite():
        raise DivergenceError(
            f"the KL is {float(draws.kl.detach()):g}: a mean or standard deviation of a posterior is too large, or NaN; lower the "
            "learning rate, or clip gradients"
        )
    if log_prob.requires_grad and log_prob.isinf().any():
        raise DivergenceError(
            f"log_prob is infinite in {int(log_prob.isinf().sum())} of {log_prob.numel()} values, whose gradients are NaN: outputs "
            "or the standard deviation of a posterior are too large, or the likelihood gives a target the probability 0; lower the "
            "learning rate, or clip gradients"
        )
    if log_prob.isnan().any():
        raise DivergenceError(
            f"log_prob has NaN in {int(log_prob.isnan().sum())} of {log_prob.numel()} values: inputs or targets have NaN, or "
            "training diverged; lower the learning rate, or clip gradients"
        )


def lower_bound(draws: Draws, log_prob: Tensor, n: int, beta: float | Tensor, local_beta: float | Tensor | None) -> Tensor:
    """`elbo`, without a look at values."""
    if not torch.compiler.is_compiling():  # n and the weights are numbers outside the graph
        _check_numbers(n, beta, local_beta, log_prob)
    outputs = draws.outputs
    samples = outputs.shape[0] if isinstance(outputs, Tensor) else log_prob.shape[0]  # a network may return several tensors
    if log_prob.dim() != 2 or log_prob.shape[0] != samples or log_prob.shape[1] != draws.local_kl.shape[0]:
        raise DataError(
            f"log_prob must have shape (S, B) = ({samples}, {draws.local_kl.shape[0]}), got {tuple(log_prob.shape)}; "
            "sum it over the dimensions of one example, with draws first; for some rows alone, such as labeled nodes, take "
            "draws.rows(mask)"
        )
    if draws.observation is not None:
        draws.observation(draws.outputs, log_prob, n, beta)
    if draws.score is not None:
        log_prob = log_prob + draws.score.unsqueeze(1) * _advantage(log_prob.detach())
    local_beta = draws.local_beta if local_beta is None else local_beta
    weight = beta / n
    mean, kl = log_prob.mean(), draws.kl
    bound = mean - weight * kl if isinstance(weight, Tensor) else torch.sub(mean, kl, alpha=weight)
    if isinstance(local_beta, int | float) and local_beta == 0 and not draws.local_kl.requires_grad:
        return bound
    return bound - local_beta * draws.local_kl.mean()


def _check_numbers(n: float, beta: float | Tensor, local_beta: float | Tensor | None, log_prob: Tensor) -> None:
    """Check the arguments of `elbo` that are no tensors."""
    if isinstance(n, bool) or not 0 < n < math.inf:
        raise ConfigurationError(f"n must be the number of training examples, a finite number above 0, got {n!r}")
    for name, weight in (("beta", beta), ("local_beta", local_beta)):
        if isinstance(weight, int | float):
            check_nonnegative(name, weight)
    if not log_prob.is_floating_point():
        raise DataError(f"log_prob must be floating point, got {log_prob.dtype}")
    if log_prob.dim() == 2 and n < log_prob.shape[1]:
        warn(
            f"n={n} is smaller than the batch of {log_prob.shape[1]} examples: the KL counts too much, unless the batch has "
            "copies; n is the number of examples in the whole training set, not of batches"
        )


def _advantage(log_prob: Tensor) -> Tensor:
    """`log_prob` minus the mean of the other draws, an unbiased baseline of the score-function gradient."""
    samples = log_prob.shape[0]
    return log_prob if samples == 1 else (log_prob - log_prob.mean(0)) * (samples / (samples - 1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class KLSchedule:
    """Weight of the KL as a function of training progress.

    Args:
        beta: the final weight, above 0; 1 is that of the evidence lower bound.

    Raises:
        ConfigurationError: a field out of its range, in all schedules.

    Example:
        >>> schedule = LinearWarmup(fraction=0.5)
        >>> [schedule(progress) for progress in (0.0, 0.25, 0.5, 1.0)]
        [0.0, 0.5, 1.0, 1.0]
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        check_positive("beta", self.beta)

    def __call__(self, progress: float) -> float:
        """Return the KL weight at `progress`, the share of training steps done, in [0, 1]."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constant(KLSchedule):
    """Constant weight `beta`.

    Example:
        >>> Constant(beta=0.3)(0.1)
        0.3
    """

    def __call__(self, progress: float) -> float:
        return self.beta


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearWarmup(KLSchedule):
    """Linear from 0 to `beta` over the first `fraction` of training, then constant.

    Args:
        beta: the final weight.
        fraction: of training, in (0, 1].

    Raises:
        ConfigurationError: `beta` is not above 0, or `fraction` is not in (0, 1].

    Source: Sonderby et al., *Ladder variational autoencoders* (2016), section 2.3.

    Example:
        >>> LinearWarmup(beta=2.0, fraction=0.5)(0.25)
        1.0
    """

    fraction: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rate("fraction", self.fraction)

    def __call__(self, progress: float) -> float:
        return self.beta * min(1.0, progress / self.fraction)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cyclical(KLSchedule):
    """`cycles` equal cycles, each a linear warm-up over `fraction` of the cycle, then constant at `beta`.

    Args:
        beta: the highest weight.
        cycles: their number.
        fraction: of a cycle, in (0, 1].

    Raises:
        ConfigurationError: `beta` is not above 0, `cycles` is below 1, or `fraction` is not in (0, 1].

    Source: Fu et al., *Cyclical annealing schedule* (2019), equation (6) with the linear function.

    Example:
        >>> [Cyclical(cycles=2)(progress) for progress in (0.0, 0.25, 0.5, 0.625)]
        [0.0, 1.0, 0.0, 0.5]
    """

    cycles: int = 4
    fraction: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("cycles", self.cycles)
        check_rate("fraction", self.fraction)

    def __call__(self, progress: float) -> float:
        if progress >= 1:
            return self.beta
        return self.beta * min(1.0, math.fmod(progress * self.cycles, 1.0) / self.fraction)
