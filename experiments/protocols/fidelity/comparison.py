r"""Predictive distributions as probabilities, and their distance from those of the reference.

With probabilities q of a method and p of the reference, averaged over the inputs of a region:

- total variation $\tfrac12 \sum_k |q_k - p_k|$,
- Wasserstein distance $\int |Q(y) - P(y)|\,dy$ of regressions, by the distribution functions at the edges of the bins,
- agreement: the share of inputs with the same most probable class,
- confidence: the mean difference of the largest probabilities (classification),
- the ratio of epistemic standard deviations (geometric mean; regression).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bayesify.predictive import CategoricalPredictive, GaussianPredictive, Predictive
from experiments.harness.numbers import Estimate, estimate
from experiments.harness.protocol import Unit

__all__ = ["SCORES", "compare", "distances", "probabilities_of", "rounded", "targets_scored"]

SCORES = {"log_likelihood": "log-likelihood", "coverage_95": "95 % coverage", "accuracy": "accuracy"}  # of targets, with titles
_EDGES = torch.linspace(-3, 3, 31, dtype=torch.float64)  # of the bins of the target
_WIDTH = float(_EDGES[1] - _EDGES[0])


def probabilities_of(predictive: Predictive) -> Tensor:
    """Probabilities of the bins of the target, or of the classes, (N, K)."""
    if isinstance(predictive, CategoricalPredictive):
        return predictive.probs
    assert isinstance(predictive, GaussianPredictive)
    edges = _EDGES[1:-1]
    below = torch.stack([predictive.cdf(edge.expand(predictive.mean.shape)).flatten() for edge in edges], 1)
    return torch.diff(below, dim=1, prepend=torch.zeros_like(below[:, :1]), append=torch.ones_like(below[:, :1]))


def rounded(values: Tensor) -> Any:
    """Four decimals, ready for JSON."""
    return values.double().round(decimals=4).tolist()


def targets_scored(predictive: Predictive, y: Tensor) -> dict[str, float]:
    """Mean log-likelihood of targets (nats per row), and the share of them in their central 95 % interval or predicted rightly."""
    scores = {"log_likelihood": float(predictive.log_prob(y).mean())}
    if isinstance(predictive, CategoricalPredictive):
        return scores | {"accuracy": float((predictive.probs.argmax(1) == y).double().mean())}
    assert isinstance(predictive, GaussianPredictive)
    below = predictive.cdf(y)
    return scores | {"coverage_95": float(((below >= 0.025) & (below <= 0.975)).double().mean())}


def compare(
    units: Mapping[str, Unit], reference: Mapping[str, Unit], regions: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, Estimate]:
    """The scores of a method against the reference of the same seed, over seeds, by "score, region".

    Args:
        units, reference: by seed.
        regions: masks of the test inputs, by seed and region.
    """
    columns: dict[str, list[float]] = {}
    for seed, unit in units.items():
        for region, mask in regions[seed].items():
            for name, value in distances(unit, reference[seed], mask).items():
                columns.setdefault(f"{name}, {region}", []).append(value)
        for name in SCORES:
            if name in unit:
                columns.setdefault(name, []).append(unit[name])
    return {name: estimate(values) for name, values in columns.items()}


def distances(unit: Unit, reference: Unit, mask: Tensor) -> dict[str, float]:
    """Distances over the inputs of a mask."""
    q, p = (torch.tensor(u["probabilities"], dtype=torch.float64)[mask] for u in (unit, reference))
    scores = {
        "variation": float(0.5 * (q - p).abs().sum(1).mean()),
        "agreement": float((q.argmax(1) == p.argmax(1)).double().mean()),
        "confidence": float((q.amax(1) - p.amax(1)).mean()),
    }
    if "epistemic" in unit:
        ours, theirs = (torch.tensor(u["epistemic"], dtype=torch.float64)[mask] for u in (unit, reference))
        scores["ratio"] = float((0.5 * (ours.clamp_min(1e-8) / theirs.clamp_min(1e-8)).log()).mean().exp())
        scores["wasserstein"] = float(_WIDTH * (q - p).cumsum(1)[:, :-1].abs().sum(1).mean())
    return scores
