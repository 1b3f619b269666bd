"""Tables of the report about corrupted test images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from bayesify.errors import DataError
from bayesify.metrics.robustness import CorruptionErrors, corruption_errors
from experiments.harness.numbers import Estimate, estimate
from experiments.harness.protocol import Unit
from experiments.protocols.images.corruption import CORRUPTIONS, SEVERITIES
from experiments.protocols.images.results import Row, table_of

__all__ = ["write_corruptions"]


def write_corruptions(rows: Sequence[Row]) -> str:
    """Means over corruptions and severities, and corruption errors relative to the first method of the same data set and net."""
    baselines: dict[tuple[str, str], Row] = {}
    means, errors = [], []
    for row in rows:
        baseline = baselines.setdefault(row.labels[:2], row)
        found = [_errors(unit["corrupted"], baseline) for unit in row.nets]
        cells = [str(estimate(_mean(unit["corrupted"], key) for unit in row.nets)) for key in ("error", "nll", "ece")]
        relative = [_of([result.mce for result in found]), _of([result.rmce for result in found])]
        means.append((row.labels, [*cells, *relative]))
        errors.append((row.labels, [_of([float(result.ce[i]) for result in found]) for i in range(len(found[0].ce))]))
    names = [name.replace("_", " ") for name in _names(rows[0].nets[0]["corrupted"])]
    return (
        "## Corrupted images\n\nMeans over corruptions and severities of the first test images. mCE and rmCE (the error that "
        "corruption adds) are in percent of the first method's, averaged over its networks.\n\n"
        f"{table_of(['error (%)', 'NLL', 'ECE', 'mCE (%)', 'rmCE (%)'], means)}\n\nCorruption errors, in percent of the first "
        f"method's:\n\n{table_of(names, errors)}"
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
    except DataError:  # a baseline without errors, as in quick runs
        undefined = torch.full((len(shares),), math.nan)
        return CorruptionErrors(undefined, undefined)


def _of(values: Sequence[float]) -> str:
    mean: Estimate = estimate(100 * value for value in values)
    return "-" if math.isnan(mean.mean) else str(mean)
