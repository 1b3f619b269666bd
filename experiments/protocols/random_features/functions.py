"""Functions of the analysis of computer experiments (Surjanovic & Bingham, *Virtual library of simulation experiments*).

Each takes inputs (N, D) in [0, 1], which it scales to the ranges of the literature, and returns (N,).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["FUNCTIONS", "Function"]


class Function(NamedTuple):
    """A function, its number of inputs, and the number of rows in the paper (table 5)."""

    value: Callable[[Tensor], Tensor]
    inputs: int
    rows: int


def borehole(x: Tensor) -> Tensor:
    """Flow of water through a borehole, in cubic meters per year."""
    low = x.new_tensor([0.05, 100.0, 63070.0, 990.0, 63.1, 700.0, 1120.0, 9855.0])
    high = x.new_tensor([0.15, 50000.0, 115600.0, 1110.0, 116.0, 820.0, 1680.0, 12045.0])
    radius, influence, upper, upper_head, lower, lower_head, length, conductivity = (low + (high - low) * x).unbind(1)
    log_ratio = torch.log(influence / radius)
    resistance = 1 + 2 * length * upper / (log_ratio * radius**2 * conductivity) + upper / lower
    return 2 * math.pi * upper * (upper_head - lower_head) / (log_ratio * resistance)


def hartman6(x: Tensor) -> Tensor:
    """Four wells in six dimensions; the least value is -3.32237."""
    alpha = x.new_tensor([1.0, 1.2, 3.0, 3.2])
    a = x.new_tensor([[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]])
    p = x.new_tensor(
        [[1312, 1696, 5569, 124, 8283, 5886], [2329, 4135, 8307, 3736, 1004, 9991], [2348, 1451, 3522, 2883, 3047, 6650],
         [4047, 8828, 8732, 5743, 1091, 381]]
    )  # fmt: skip
    return -(alpha * torch.exp(-(a * (x.unsqueeze(1) - 1e-4 * p).square()).sum(2))).sum(1)


def rastrigin5(x: Tensor) -> Tensor:
    """A bowl with a lattice of minima, on [-5.12, 5.12]; zero in the middle."""
    z = 10.24 * x - 5.12
    return 10 * x.shape[1] + (z.square() - 10 * torch.cos(2 * math.pi * z)).sum(1)


def robot(x: Tensor) -> Tensor:
    """Distance of the end of a robot arm of four segments from its base: four angles, then four lengths."""
    angles, lengths = 2 * math.pi * x[:, :4].cumsum(1), x[:, 4:]
    return torch.hypot((lengths * angles.cos()).sum(1), (lengths * angles.sin()).sum(1))


def otlcircuit(x: Tensor) -> Tensor:
    """Midpoint voltage of a push-pull circuit without output transformer."""
    low, high = x.new_tensor([50.0, 25.0, 0.5, 1.2, 0.25, 50.0]), x.new_tensor([150.0, 70.0, 3.0, 2.5, 1.2, 300.0])
    b1, b2, f, c1, c2, gain = (low + (high - low) * x).unbind(1)
    current = gain * (c2 + 9)
    total = current + f
    return (12 * b2 / (b1 + b2) + 0.74) * current / total + 11.35 * f / total + 0.74 * f * current / (total * c1)


FUNCTIONS = {
    "borehole": Function(borehole, 8, 200_000),
    "hartman6": Function(hartman6, 6, 30_000),
    "rastrigin5": Function(rastrigin5, 5, 10_000),
    "robot": Function(robot, 8, 150_000),
    "otlcircuit": Function(otlcircuit, 6, 20_000),
}
