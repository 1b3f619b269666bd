"""Predicted cost on N devices: a training step with the batch divided, and scoring a table divided into files.

    python -m benchmarks.growth [--dry]

A step of N devices takes

    rows / N + weights + exchange

`rows` is what grows with the batch, `weights` is what every device does for every weight (optimizer, spread, KL, draws of shared
noise), and the exchange is a ring all-reduce of the gradients, 2 (N - 1) messages of 1/N of the bytes each:

    2 (N - 1) / N x bytes / bandwidth + 2 (N - 1) x buckets x latency

No overlap with the backward pass is assumed, so this is an upper bound. The model is compared with results/processes.json, then
applied to larger networks and to more devices. Writes results/growth.json.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.cost_model import ACCELERATOR, LARGE, METHODS, Counts, Extra, Machine, added, count, plain_seconds
from benchmarks.measure import parser, read, write
from benchmarks.nets import mlp
from benchmarks.processes import SIZES

PLAIN = Extra(0.0, 0, 0, 0, lambda n: 0.0)
OPTIMIZER = 7  # passes of Adam over values, gradients and two moments
BUCKET = 25 * 2**20  # bytes, of DDP
PARAMETERS = {"MeanField": 2, "MeanField, shared noise": 2}  # gradients per weight; others exchange those of the plain network
DEVICES = (1, 8, 64, 256, 1024)
SCALED = ("plain", "MeanField", "MeanField, shared noise", "VariationalDropout", "VIFO")
BATCHES = (8192, 1024)  # of all devices, for the networks of `LARGE`
ROWS, FILES, CORES = 1_000_000_000, (100, 1_000, 10_000, 100_000), (1, 32, 1024)


@dataclass(frozen=True)
class Link:
    """Bytes per second and seconds per message between two devices."""

    name: str
    bandwidth: float
    latency: float


# An assumption: 80 % of a port of 400 Gb/s per device, and 5 microseconds per message.
NETWORK = Link("a network of 400 Gb/s per device", 0.8 * 50e9, 5e-6)


def ring(size: float, devices: int, link: Link) -> float:
    """Seconds of a ring all-reduce of a number of bytes."""
    rounds = 2 * (devices - 1)
    return rounds / devices * size / link.bandwidth + rounds * math.ceil(size / BUCKET) * link.latency


def divided(counts: Counts, devices: int) -> Counts:
    """The counts of a device that gets 1/N of the batch: the weights stay."""
    rows = {name: getattr(counts, name) / devices for name in ("operations", "inputs", "outputs", "channels")}
    return replace(counts, **rows)


def parts(counts: Counts, extra: Extra, machine: Machine, plain: float, devices: int) -> tuple[float, float]:
    """Seconds of a device for its rows, and for the weights; `plain` is the plain network's step on one device."""
    nothing = replace(counts, operations=0.0, inputs=0.0, outputs=0.0, channels=0.0)
    optimizer = OPTIMIZER * 4 * counts.weights / machine.bandwidth
    weights = optimizer + added(nothing, extra, machine)
    rows = (plain - optimizer) / devices + added(divided(counts, devices), extra, machine) - added(nothing, extra, machine)
    return rows, weights


def compared(measured: dict[str, Any]) -> dict[str, Any]:
    """Predicted and measured: processor milliseconds per step and process, bytes exchanged, and all-reduces."""
    counts = count(mlp(*SIZES), (SIZES[0],), measured["batch"])
    runs = measured["processes"]
    plain = 1e-3 * runs["1"]["steps"]["plain"]
    machine = Machine("this", counts.operations / plain, **measured["constants"])
    biases = sum(SIZES[1:])
    steps, sent = {}, {}
    for name, alone in runs["1"]["steps"].items():
        extra = METHODS.get(name, PLAIN)
        _, weights = parts(counts, extra, machine, plain, 1)
        weights = min(weights, 1e-3 * alone)
        steps[name] = {
            number: (round(1e3 * weights + (alone - 1e3 * weights) / int(number), 2), round(run["steps"][name], 2))
            for number, run in runs.items()
        }
        sent[name] = (4 * PARAMETERS.get(name, 1) * int(counts.weights + biases), runs["2"]["sent"][name])
    return {"steps": steps, "sent": sent, "exchanges": _exchanges(runs)}


def _exchanges(runs: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Milliseconds of an all-reduce by size: those of two processes give the link, with which four are predicted."""
    two, four = ({int(size): seconds for size, seconds in runs[number]["exchanges"].items()} for number in ("2", "4"))
    small, large = min(two), max(two)
    latency = two[small] / 2
    link = Link("loopback", large / (two[large] - two[small]), latency)
    return {f"{size:,} bytes": (round(1e3 * ring(size, 4, link), 3), round(1e3 * four[size], 3)) for size in sorted(four)}


def predicted() -> dict[str, dict[str, Any]]:
    """Milliseconds per step on N devices by method, what part of it is the exchange and the weights, and the efficiency."""
    results: dict[str, dict[str, Any]] = {}
    for (name, (build, shape, _)), batch in zip(LARGE.items(), BATCHES, strict=True):
        with torch.device("meta"):
            counts = count(build().eval(), shape, batch)
        plain = plain_seconds(counts) + OPTIMIZER * 4 * counts.weights / ACCELERATOR.bandwidth
        results[f"{name.partition(',')[0]}, {batch:,} per step"] = {method: _growth(counts, method, plain) for method in SCALED}
    return results


def _growth(counts: Counts, method: str, plain: float) -> dict[str, dict[str, float]]:
    size = 4 * PARAMETERS.get(method, 1) * counts.weights
    growth: dict[str, dict[str, float]] = {}
    alone = sum(parts(counts, METHODS.get(method, PLAIN), ACCELERATOR, plain, 1))
    for devices in DEVICES:
        rows, weights = parts(counts, METHODS.get(method, PLAIN), ACCELERATOR, plain, devices)
        exchange = ring(size, devices, NETWORK)
        total = rows + weights + exchange
        growth[str(devices)] = {
            "milliseconds": float(f"{1e3 * total:.3g}"),
            "weights, %": round(100 * weights / total),
            "exchange, %": round(100 * exchange / total),
            "efficiency, %": round(100 * alone / devices / total),
        }
    return growth


def scored(scoring: dict[str, float]) -> dict[str, dict[str, float]]:
    """Core-hours of a billion rows by number of files, and hours on a number of cores, with a job per file."""
    results = {}
    for files in FILES:
        job = ROWS / files / scoring["rows_per_second"] + scoring["start"]
        hours = {f"hours, {cores:,} core{'s' * (cores > 1)}": math.ceil(files / cores) * job / 3600 for cores in CORES}
        results[str(files)] = {"rows per file": ROWS // files, "core-hours": files * job / 3600, **hours}
    return {files: {name: float(f"{value:.3g}") for name, value in row.items()} for files, row in results.items()}


def main() -> None:
    args = parser(__doc__).parse_args()
    measured = read("processes")
    content = {
        "compared": compared(measured),
        "predicted": predicted(),
        "scored": scored(measured["scoring"]),
        "on": f"{ACCELERATOR.name}, {NETWORK.name}",
    }
    for part, rows in content.items():
        print(part, rows)
    if not args.dry:
        write("growth", content, measured=False)


if __name__ == "__main__":
    main()
