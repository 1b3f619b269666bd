r"""Whether running averages of batch normalization can fit the draws of a trained network.

In eval mode every draw is normalized by the same averages. They fit where all draws have nearly the same mean and variance at the
inputs of the normalization. With means $m_s$ and variances $v_s$ of draw s over a batch, and $\bar m$, $\bar v$ their averages over
draws, the misfit of a channel is the KL divergence

$$\frac1S \sum_s \tfrac12 \left(\frac{(m_s - \bar m)^2}{\bar v} + \frac{v_s}{\bar v} - 1 - \log\frac{v_s}{\bar v}\right),$$

zero if nothing before the normalization is random. It does not depend on the averages themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from bayesify.core.generators import own_noise
from bayesify.core.modes import eval_mode
from bayesify.core.switches import observer
from bayesify.functional import at_least_float32
from bayesify.train.batch import apply

if TYPE_CHECKING:
    from bayesify.core.model import Bayesian
    from bayesify.train.batch import Batch, Inputs

__all__ = ["MISFIT", "misfits", "tell_of_misfits"]

MISFIT = 0.2
"""Misfit in nats, mean over channels, above which training ends with a warning; that of means 0.63 standard deviations apart."""

_DRAWS = 8


@torch.no_grad()
def misfits(bnn: Bayesian, inputs: Inputs, draws: int = _DRAWS) -> dict[str, float]:
    """Return the misfit in nats, mean over channels, by the name of each batch normalization with running averages.

    Args:
        bnn: a network whose draws are networks; noise per row averages out in the statistics of a batch.
        inputs: one batch.
        draws: S.
    """
    norms = _norms(bnn)
    if not norms:
        return {}
    statistics: dict[str, list[Tensor]] = {name: [] for name in norms}
    with eval_mode(bnn), own_noise(bnn.parameters()) as reseed:
        reseed(0)
        apply(bnn, inputs, samples=1)  # the first pass over inputs of a kind runs layers more than once
        hooks = [norm.register_forward_pre_hook(_recorder(statistics[name])) for name, norm in norms.items()]
        try:
            for _ in range(draws):
                apply(bnn, inputs, samples=1)
        finally:
            for hook in hooks:
                hook.remove()
    return {name: _misfit(torch.stack(found)) for name, found in statistics.items() if len(found) == draws}


def tell_of_misfits(bnn: Bayesian, batches: Iterable[Batch]) -> None:
    """Warn, and store for `summary`, if the draws of a trained network need different averages for the first of some batches."""
    if bnn.collects or not _norms(bnn):  # predictions of collected posteriors warn; data are read only where needed
        return
    bad = {name: value for name, value in misfits(bnn, next(iter(batches)).inputs).items() if value > MISFIT}
    if bad:
        worst = max(bad, key=lambda name: bad[name])
        bnn.tell(
            f"the inputs of batch normalization {worst!r} differ between draws (by {bad[worst]:.2g} nats per channel), so its "
            "running averages fit none of them, and predictions may be far off; predict with "
            "`bayesify.train.ensemble_of_draws(bnn, inputs)`, which recomputes the statistics for every draw, or make only layers "
            "random that no batch normalization follows"
        )


def _norms(bnn: Bayesian) -> dict[str, _NormBase]:
    """Batch normalizations with running averages, by name, of a network with random layers."""
    if not any(layer.posterior.is_random for _, layer in bnn.random_layers()):
        return {}
    return {name: part for name, part in bnn.net.named_modules() if isinstance(part, _NormBase) and part.running_mean is not None}


def _recorder(found: list[Tensor]) -> Callable[[nn.Module, Any], None]:
    @observer
    def record(norm: nn.Module, args: Any) -> None:
        x = at_least_float32(args[0]).transpose(0, 1).flatten(1)
        found.append(torch.stack([x.mean(1), x.var(1, correction=0)]))

    return record


def _misfit(statistics: Tensor) -> float:
    """Misfit of means and variances (S, 2, channels), mean over channels that vary."""
    mean, var = statistics.double().unbind(1)
    pooled = var.mean(0)
    alive = pooled > 0
    if not alive.any():
        return 0.0
    mean, ratio, pooled = mean[:, alive], (var[:, alive] / pooled[alive]).clamp_min(1e-12), pooled[alive]
    shift = (mean - mean.mean(0)).square() / pooled
    return float((0.5 * (shift + ratio - 1 - ratio.log())).mean())
