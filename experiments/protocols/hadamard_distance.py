r"""How far matrices without structure are from $S_1 H \mathrm{diag}(g) H S_2$: Rossi, Marmin & Filippone (2020), figure 11.

$$\min_{s_1, s_2, g} \frac1D \lVert \Gamma - S_1 H \mathrm{diag}(g) H S_2 \rVert_F, \qquad \Gamma_{ij} \sim U(-1, 1).$$

The paper minimises by gradient descent; here by alternating least squares (`hadamard_projection`), the best of four starts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from bayesify.core.checks import check_integer
from bayesify.functional import hadamard_projection
from experiments.harness.numbers import markdown
from experiments.harness.protocol import Context, Job, Protocol, Table, Unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["HadamardDistance"]

_ZERO = 1 / math.sqrt(3)  # the distance of a large matrix from zero, the root mean square of its entries


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What `config.toml` may set.

    Attributes:
        sizes: D, powers of two.
        matrices: how many of every size.
        sweeps: of the alternation.
    """

    sizes: list[int]
    matrices: int
    sweeps: int

    def __post_init__(self) -> None:
        check_integer("matrices", self.matrices)
        check_integer("sweeps", self.sweeps)
        for size in self.sizes:
            check_integer("sizes", size, least=2)
            if size & (size - 1):
                raise ValueError(f"sizes must be powers of two, got {size}")


class HadamardDistance(Protocol):
    """One job; a unit is a size."""

    name = "hadamard-distance"

    def jobs(self, table: Table) -> list[Job]:
        settings = Settings(**table.settings)
        common = {"matrices": settings.matrices, "sweeps": settings.sweeps}
        return [Job("distances", common, tuple(map(str, settings.sizes)))]

    def run(self, job: Job, units: Sequence[str], context: Context) -> Mapping[str, Unit]:
        results: dict[str, Unit] = {}
        for place, unit in enumerate(units):
            size, found = int(unit), []
            generator = torch.Generator().manual_seed(size)
            kept = torch.ones(size, size, dtype=torch.bool)
            for done in range(job.settings["matrices"]):
                matrix = 2 * torch.rand(1, size, size, dtype=torch.float64, generator=generator) - 1
                *_, error = hadamard_projection(matrix, kept, sweeps=job.settings["sweeps"])
                found.append(float(error * matrix.square().mean().sqrt()))
                context.progress((place + (done + 1) / job.settings["matrices"]) / len(units))
            results[unit] = {"distances": found}
            context.save({unit: results[unit]})
        return results

    def report(self, table: Table, results: Mapping[str, Mapping[str, Unit]]) -> str:
        rows = []
        for size, unit in results["distances"].items():
            found = torch.tensor(unit["distances"], dtype=torch.float64)
            expected = _ZERO * math.sqrt(max(0.0, 1 - 3 / int(size)))
            rows.append([size, *(f"{float(x):.4f}" for x in (found.median(), found.min(), found.max())), f"{expected:.4f}"])
        return "\n\n".join(
            [
                f"The root mean square distance of {table.settings['matrices']} random matrices of every size. The matrix 0 is at "
                f"{_ZERO:.4f}. Fitting 3 D numbers linearly, whatever they stand for, would leave the root of 1 - 3 / D of that "
                "(last column); the family is curved, and the best of its points a little closer.",
                markdown(["D", "median", "least", "largest", "of 3 D numbers"], rows),
                f"What the paper says: {table.published['claim']}",
            ]
        )

    def figure(self, table: Table, results: Mapping[str, Mapping[str, Unit]]) -> Figure | None:
        from matplotlib.figure import Figure

        from bayesify.plots.style import INK, MUTED, ORANGE, axes, label, legend

        figure = Figure(figsize=(6.0, 3.6), layout="constrained")
        ax = axes(figure.subplots())
        sizes = [int(size) for size in results["distances"]]
        for place, (size, unit) in enumerate(results["distances"].items()):
            found = unit["distances"]
            ax.plot([int(size)] * len(found), found, "o", color=ORANGE, markersize=4, label="" if place else "a matrix each")
        medians = [float(torch.tensor(unit["distances"]).median()) for unit in results["distances"].values()]
        ax.plot(sizes, medians, color=INK, linewidth=1.4, label="median")
        ax.axhline(_ZERO, color=MUTED, linestyle=":", label="the matrix 0")
        ax.set_xscale("log", base=2)
        ax.set_xticks(sizes, [str(size) for size in sizes], minor=False)
        ax.set_ylim(0, 0.7)
        label(ax, "D", "root mean square distance")
        legend(ax, loc="lower right")
        return figure
