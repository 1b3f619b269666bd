r"""Distance of unstructured matrices from $S_1 H \mathrm{diag}(g) H S_2$: Rossi, Marmin & Filippone (2020), figure 11.

$$\min_{s_1, s_2, g} \frac1D \lVert \Gamma - S_1 H \mathrm{diag}(g) H S_2 \rVert_F, \qquad \Gamma_{ij} \sim U(-1, 1).$$

The paper minimizes by gradient descent; here by alternating least squares (`hadamard_projection`), the best of four starts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from bayesify.core.checks import check_integer
from bayesify.errors import ConfigurationError
from bayesify.functional import hadamard_projection
from experiments.harness.numbers import markdown
from experiments.harness.protocol import ByJob, Context, Job, Protocol, Table, Unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["HadamardDistance"]

_ZERO = 1 / math.sqrt(3)  # root mean square of the entries, the distance from the zero matrix


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What `config.toml` may set.

    Attributes:
        sizes: D, powers of two.
        matrices: number per size.
        sweeps: of alternating least squares.
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
                raise ConfigurationError(f"sizes must be powers of two, got {size}")


class HadamardDistance(Protocol):
    """One job with a unit per size."""

    name = "hadamard-distance"

    def jobs(self, table: Table) -> list[Job]:
        settings = Settings(**table.settings)
        common = {"matrices": settings.matrices, "sweeps": settings.sweeps}
        return [Job("distances", common, tuple(map(str, settings.sizes)))]

    def run(self, job: Job, units: Sequence[str], context: Context) -> Mapping[str, Unit]:
        results: dict[str, Unit] = {}
        for index, unit in enumerate(units):
            size, distances = int(unit), []
            generator = torch.Generator().manual_seed(size)
            mask = torch.ones(size, size, dtype=torch.bool)
            for done in range(job.settings["matrices"]):
                matrix = 2 * torch.rand(1, size, size, dtype=torch.float64, generator=generator) - 1
                *_, error = hadamard_projection(matrix, mask, sweeps=job.settings["sweeps"])
                distances.append(float(error * matrix.square().mean().sqrt()))
                context.progress((index + (done + 1) / job.settings["matrices"]) / len(units))
            results[unit] = {"distances": distances}
            context.save({unit: results[unit]})
        return results

    def report(self, table: Table, jobs: Sequence[Job], results: ByJob) -> str:
        rows = []
        for size, unit in results["distances"].items():
            found = torch.tensor(unit["distances"], dtype=torch.float64)
            expected = _ZERO * math.sqrt(max(0.0, 1 - 3 / int(size)))
            rows.append([size, *(f"{float(x):.4f}" for x in (found.median(), found.min(), found.max())), f"{expected:.4f}"])
        return "\n\n".join(
            [
                f"Root mean square distance of {table.settings['matrices']} random matrices of every size. That of the zero "
                f"matrix is {_ZERO:.4f}. A linear family with 3 D parameters would leave sqrt(1 - 3 / D) of that (last column); "
                "the Walsh-Hadamard family is nonlinear and its best points are slightly closer.",
                markdown(["D", "median", "least", "largest", "linear, 3 D parameters"], rows),
                f"Statement of the paper: {table.published['claim']}",
            ]
        )

    def figure(self, table: Table, jobs: Sequence[Job], results: ByJob) -> Figure | None:
        from matplotlib.figure import Figure

        from bayesify.plots.style import INK, MUTED, ORANGE, axes, label, legend

        figure = Figure(figsize=(6.0, 3.6), layout="constrained")
        ax = axes(figure.subplots())
        sizes = [int(size) for size in results["distances"]]
        for index, (size, unit) in enumerate(results["distances"].items()):
            found = unit["distances"]
            ax.plot([int(size)] * len(found), found, "o", color=ORANGE, markersize=4, label="" if index else "one matrix")
        medians = [float(torch.tensor(unit["distances"]).median()) for unit in results["distances"].values()]
        ax.plot(sizes, medians, color=INK, linewidth=1.4, label="median")
        ax.axhline(_ZERO, color=MUTED, linestyle=":", label="zero matrix")
        ax.set_xscale("log", base=2)
        ax.set_xticks(sizes, [str(size) for size in sizes], minor=False)
        ax.set_ylim(0, 0.7)
        label(ax, "D", "root mean square distance")
        legend(ax, loc="lower right")
        return figure
