"""The distance of matrices from the Walsh-Hadamard family, against a general minimizer."""

import numpy as np
import pytest
import torch
from experiments.harness.protocol import Context, Table
from experiments.protocols.hadamard_distance import HadamardDistance
from scipy import linalg, optimize


@pytest.mark.slow
def test_distances_are_those_of_a_general_minimizer(tmp_path) -> None:
    table = Table("whvi/test", "t", "s", "hadamard-distance", {"sizes": [4], "matrices": 2, "sweeps": 500}, {}, tmp_path)
    protocol = HadamardDistance()
    (job,) = protocol.jobs(table)
    shares: list[float] = []
    found = protocol.run(job, ["4"], Context(None, shares.append, lambda units: None))["4"]["distances"]
    assert shares[-1] == pytest.approx(1.0)

    h = linalg.hadamard(4)
    generator = torch.Generator().manual_seed(4)
    random = np.random.default_rng(0)
    for distance in found:
        matrix = (2 * torch.rand(1, 4, 4, dtype=torch.float64, generator=generator) - 1)[0].numpy()

        def missed(x: np.ndarray, matrix: np.ndarray = matrix) -> np.ndarray:
            s1, g, s2 = x.reshape(3, 4)
            return (matrix - np.diag(s1) @ h @ np.diag(g) @ h @ np.diag(s2)).ravel()

        costs = [optimize.least_squares(missed, random.normal(size=12)).cost for _ in range(12)]
        least = np.sqrt(2 * min(costs)) / 4
        assert least - 1e-6 <= distance <= least + 0.12  # a local minimum, of four starts
    assert any(distance < 0.95 * 0.577 for distance in found)


def test_sizes_are_powers_of_two(tmp_path) -> None:
    settings = {"sizes": [6], "matrices": 1, "sweeps": 1}
    with pytest.raises(ValueError, match="sizes must be powers of two, got 6"):
        HadamardDistance().jobs(Table("whvi/test", "t", "s", "hadamard-distance", settings, {}, tmp_path))
