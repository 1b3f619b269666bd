"""Interleaved timing, and the command line, tables and files that all benchmarks share."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bayesify.environment import machine

__all__ = ["RESULTS", "interleave", "parser", "print_timings", "read", "repeat", "write"]

RESULTS = Path(__file__).parent / "results"


def parser(description: str | None, rounds: int | None = None) -> argparse.ArgumentParser:
    """Command line with `--dry`, and `--rounds` with this default."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if rounds is not None:
        result.add_argument("--rounds", type=int, default=rounds)
    result.add_argument("--dry", action="store_true", help="print, write nothing")
    return result


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings of a run, for its results."""
    return {name: value for name, value in vars(arguments).items() if name != "dry"}


def interleave(
    candidates: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[str, Any]]:
    """Time every candidate once per round, so that drift of the machine affects all of them alike.

    Args:
        candidates: what to time, by name.
        rounds: the number of rounds.
        warmup: rounds before that are not timed.
        clock: `time.thread_time` for work on one thread of a machine that others use.

    Returns:
        For each candidate the median milliseconds and the median, over rounds, of its ratio to the first candidate, with quartiles.
    """
    for run in list(candidates.values()) * warmup:
        run()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            start = clock()
            run()
            times[name].append(clock() - start)
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


def repeat(step: Callable[[], object], times: int) -> Callable[[], None]:
    """A function that runs the step several times, for steps too short to be timed alone."""

    def run() -> None:
        for _ in range(times):
            step()

    return run


def print_timings(title: str, timings: Mapping[str, Mapping[str, Any]], repeats: int = 1) -> None:
    """Print the results of `interleave`; `repeats` is the number of steps per run."""
    print(title)
    for name, row in timings.items():
        memory = f"  {row['extra_megabytes']:+d} MB" if "extra_megabytes" in row else ""
        ratio = f"x{row['ratio']:.3f}  {row['ratio_quartiles']}"
        print(f"  {name:34s} {row['milliseconds'] / repeats:9.3f} ms   {ratio}{memory}", flush=True)


def write(name: str, content: Mapping[str, object], *, measured: bool = True) -> Path:
    """Write results to a JSON file, with the machine if they were measured on it, and return the path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({**({"machine": machine()} if measured else {}), **content}, indent=1) + "\n")
    print(path)
    return path


def read(name: str) -> dict[str, Any]:
    """Read the results of a benchmark."""
    return json.loads((RESULTS / f"{name}.json").read_text())
