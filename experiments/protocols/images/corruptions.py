"""The part of an image table about corrupted test images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from bayesify.data import CORRUPTIONS, SEVERITIES
from bayesify.metrics_robustness import CorruptionErrors, corruption_errors
from experiments.harness.numbers import Estimate, estimate
from experiments.harness.protocol import Unit
from experiments.protocols.images.rows import Row, table_of

__all__ = ["write_corruptions"]


def write_corruptions(rows: Sequence[Row]) -> str:
    """Means over corruptions and severities, and the corruption errors beside the first method of the same data set and net."""
    baselines: dict[tuple[str, str], Row] = {}
    means, errors = [], []
    for row in rows:
        baseline = baselines.setdefault(row.place[:2], row)
        found = [_errors(unit["corrupted"], baseline) for unit in row.nets]
        cells = [str(estimate(_mean(unit["corrupted"], key) for unit in row.nets)) for key in ("error", "nll", "ece")]
        beside = [_of([result.mce for result in found]), _of([result.rmce for result in found])]
        means.append((row.place, [*cells, *beside]))
        errors.append((row.place, [_of([float(result.ce[i]) for result in found]) for i in range(len(found[0].ce))]))
    names = [name.replace("_", " ") for name in _names(rows[0].nets[0]["corrupted"])]
    return (
        "## Corrupted images\n\nmeans over corruptions and severities of the first test images; mCE and its relative form "
        "rmCE (what the corruption adds) are in per cent of the first method's, whose nets are taken together\n\n"
        f"{table_of(['error (%)', 'NLL', 'ECE', 'mCE (%)', 'rmCE (%)'], means)}\n\ncorruption errors, in per cent of the first "
        f"method's\n\n{table_of(names, errors)}"
    )


def _names(corrupted: Mapping[str, Mapping]) -> list[str]:
    return [name for name in CORRUPTIONS if name in corrupted]


def _mean(corrupted: Mapping[str, Mapping], key: str) -> float:
    values = [scores[key] for name in _names(corrupted) for scores in corrupted[name].values()]
    return math.fsum(values) / len(values)


def _shares(corrupted: Mapping[str, Mapping]) -> torch.Tensor:
    """Shares of wrong predictions (C, V)."""
    return torch.tensor(
        [[corrupted[name][str(v)]["error"] / 100 for v in SEVERITIES] for name in _names(corrupted)], dtype=torch.float64
    )


def _errors(corrupted: Mapping[str, Mapping], baseline: Row) -> CorruptionErrors:
    others: list[Unit] = [unit["corrupted"] for unit in baseline.nets]
    shares = torch.stack([_shares(other) for other in others]).mean(0)
    clean = math.fsum(other["none"]["error"] / 100 for other in others) / len(others)
    try:
        return corruption_errors(_shares(corrupted), corrupted["none"]["error"] / 100, shares, clean)
    except ValueError:  # a baseline that makes no errors, as in runs of a few images
        nowhere = torch.full((len(shares),), math.nan)
        return CorruptionErrors(nowhere, nowhere)


def _of(values: Sequence[float]) -> str:
    mean: Estimate = estimate(100 * value for value in values)
    return "-" if math.isnan(mean.mean) else str(mean)
