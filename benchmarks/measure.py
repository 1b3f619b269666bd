"""Interleaved timing: all candidates in turn, many rounds, medians of per-round ratios, so that a drifting machine harms none."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

import bayesify

__all__ = ["interleave", "machine", "write"]


def interleave(candidates: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 2) -> dict[str, dict[str, float]]:
    """Time every candidate once per round.

    Returns:
        For each candidate the median milliseconds and the median, over rounds, of its ratio to the first candidate, with quartiles.
    """
    for run in list(candidates.values()) * warmup:
        run()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    reference = times[next(iter(candidates))]
    results = {}
    for name, values in times.items():
        ratios = [value / base for value, base in zip(values, reference, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4) if rounds > 1 else ratios * 3
        results[name] = {
            "milliseconds": round(1e3 * statistics.median(values), 4),
            "ratio": round(middle, 3),
            "ratio_quartiles": [round(low, 3), round(high, 3)],
        }
    return results


def machine() -> dict[str, object]:
    """What the numbers were measured on."""
    cpu = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), platform.processor()
    )
    return {
        "cpu": cpu,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "bayesify": bayesify.__version__,
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip(),
    }


def write(name: str, content: Mapping[str, object]) -> Path:
    """Write results as JSON beside this file."""
    path = Path(__file__).parent / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []
