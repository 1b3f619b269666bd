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

_CODE = ("src/*.py", "benchmarks/*.py", "experiments/*.py", "experiments/*.toml")


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
    """What the numbers were measured on, and with which code; `dirty` says that it was not (quite) that of the commit."""
    cpu = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), platform.processor()
    )
    facts: dict[str, object] = {
        "cpu": cpu,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "bayesify": bayesify.__version__,
        "commit": _git("rev-parse", "--short", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "--", *_CODE)),
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def write(name: str, content: Mapping[str, object]) -> Path:
    """Write results as JSON beside this file."""
    path = Path(__file__).parent / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def _git(*arguments: str) -> str:
    """The answer of git about this checkout; nothing where there is none."""
    try:
        run = subprocess.run(["git", *arguments], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return run.stdout.strip()
