r"""The KL of a dropout posterior from the log-uniform prior and its approximations: Kingma, Salimans & Welling (2015), figure 2.

The exact KL of the library, the paper's cubic and its lower bound of -KL, and the sigmoid form of Molchanov et al. (2017),
against a Monte Carlo estimate of

$$\mathrm{KL}(\alpha) = -\tfrac12\log\alpha + \mathrm{E}\log|1 + \sqrt\alpha z| + \tfrac12(\gamma + \log 2), \quad z \sim N(0, 1).$$

The prior is improper, so the constant is a convention: the library's KL is 0 at infinite alpha, the paper's at alpha = 1. The
figure follows the paper; the cubic, which has no constant, equals the exact KL there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesify.core.checks import check_integer
from bayesify.errors import ConfigurationError
from bayesify.functional import log_uniform_kl, log_uniform_kl_cubic, log_uniform_kl_sigmoid
from experiments.harness.numbers import Estimate, markdown
from experiments.harness.protocol import ByJob, Context, Job, Protocol, Table, Unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["KLCurves", "expected_log_noise"]

_CONSTANT = 0.5 * (0.5772156649015329 + math.log(2))  # with Euler's gamma: KL = 0 at infinite alpha


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What `config.toml` may set.

    Attributes:
        lowest, highest: the range of log alpha.
        points: of an even grid over it.
        draws: of the Monte Carlo estimate, the same for every alpha.
    """

    lowest: float
    highest: float
    points: int
    draws: int

    def __post_init__(self) -> None:
        check_integer("points", self.points, least=2)
        check_integer("draws", self.draws, least=2)
        if not self.lowest < 0 < self.highest:
            raise ConfigurationError(f"lowest and highest must enclose log alpha = 0, got {self.lowest} and {self.highest}")


def bound(log_alpha: Tensor) -> Tensor:
    """The KL without the term E log|epsilon|, the negative of the paper's lower bound of -KL."""
    return _CONSTANT - 0.5 * log_alpha


FORMS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "exact": ("exact (bayesify)", log_uniform_kl),
    "cubic": ("cubic of the paper", log_uniform_kl_cubic),
    "sigmoid": ("sigmoid form (Molchanov et al.)", log_uniform_kl_sigmoid),
    "bound": ("lower bound of the paper", bound),
}


def expected_log_noise(log_alpha: Tensor, draws: int, seed: int) -> list[Estimate]:
    r"""Monte Carlo estimates of $\mathrm{E}\log|1 + \sqrt\alpha z|$ with their standard errors, for log alpha (P,)."""
    z = torch.randn(draws, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    found = []
    for log_std in (0.5 * log_alpha).tolist():
        values = (1 + math.exp(log_std) * z).abs_().log_()
        found.append(Estimate(float(values.mean()), float(values.std() / math.sqrt(draws))))
    return found


class KLCurves(Protocol):
    """One job; a unit is a seed of the Monte Carlo estimate and has the curves."""

    name = "kl-curves"

    def jobs(self, table: Table) -> list[Job]:
        return [Job("curves", dataclasses.asdict(Settings(**table.settings)), ("0",))]

    def run(self, job: Job, units: Sequence[str], context: Context) -> Mapping[str, Unit]:
        settings = Settings(**job.settings)
        grid = torch.linspace(settings.lowest, settings.highest, settings.points, dtype=torch.float64).round(decimals=9)
        curves: Unit = {"log alpha": grid.tolist()}
        for name, (_, form) in FORMS.items():
            at = grid.clone().requires_grad_()
            value = form(at)
            (slope,) = torch.autograd.grad(value.sum(), at)
            curves |= {name: value.detach().tolist(), f"{name} slope": slope.tolist()}
        results = {}
        for unit in units:
            log_noise = expected_log_noise(grid, settings.draws, int(unit))
            values = [e.mean - 0.5 * x + _CONSTANT for e, x in zip(log_noise, grid.tolist(), strict=True)]
            results[unit] = curves | {"Monte Carlo": values, "Monte Carlo error": [e.error for e in log_noise]}
        return results

    def report(self, table: Table, jobs: Sequence[Job], results: ByJob) -> str:
        unit = results["curves"]["0"]
        domain = table.published["domain"]
        grid = unit["log alpha"]
        inside = [i for i, x in enumerate(grid) if domain[0] <= x <= domain[1]]
        below, above = range(inside[0]), range(inside[-1] + 1, len(grid))
        at_one = min(range(len(grid)), key=lambda i: abs(grid[i]))

        gap = unit["cubic"][0] - unit["exact"][0]

        def worst(name: str, where: Sequence[int], what: str = "") -> str:
            return f"{max(abs(unit[name + what][i] - unit['exact' + what][i]) for i in where):.3g}" if where else "-"

        rows = [
            [FORMS[name][0], *(worst(name, where) for where in (inside, below, above)), worst(name, inside, " slope")]
            for name in FORMS
            if name != "exact"
        ]
        scores = [(m - e) / s for m, e, s in zip(unit["Monte Carlo"], unit["exact"], unit["Monte Carlo error"], strict=True)]
        claims = [
            [
                "cubic and exact are indistinguishable on the domain",
                f"differ by up to {worst('cubic', inside)} nats, their slopes by up to {worst('cubic', inside, ' slope')}",
            ],
            [
                "cubic and bound become exact as log alpha falls to minus infinity",
                f"at {grid[0]:g} the bound is off by {unit['bound'][0] - unit['exact'][0]:+.4f} nats, the cubic by {gap:+.4f}, or "
                f"by {-gap:+.4f} at alpha = 1 with another constant: no constant fits both ends",
            ],
            [
                "-E log|epsilon| is at least 0 for every alpha, so that the bound holds",
                f"its sign changes at alpha = {_sign_change(unit):.3f}: the bound holds only below",
            ],
            [
                "alpha is at most 1 while training",
                f"necessary with the cubic: at log alpha = {grid[-1]:g} its KL is {unit['cubic'][-1]:.4g} nats, the exact one "
                f"{unit['exact'][-1]:.4g}",
            ],
        ]
        return "\n\n".join(
            [
                f"Largest distance from the exact KL (nats per noise variable) for log alpha in [{domain[0]:g}, {domain[1]:g}], "
                "the domain of the paper's figure (dropout rates of about 0.05 to 0.5), below it and above it; last, of the "
                "slopes by log alpha, on the domain:",
                markdown(["form", "domain", f"below, to {grid[0]:g}", f"above, to {grid[-1]:g}", "slope"], rows),
                f"Against the Monte Carlo estimate at {len(grid)} values of log alpha, the exact form is off by "
                f"{max(abs(score) for score in scores):.1f} standard errors at most (the largest of them is "
                f"{max(unit['Monte Carlo error']):.1g} nats; all values share their draws). KL(1) = {unit['exact'][at_one]:.8f}.",
                "Statements of the paper:",
                markdown(["paper", "found"], claims, left=2),
            ]
        )

    def figure(self, table: Table, jobs: Sequence[Job], results: ByJob) -> Figure | None:
        from matplotlib.figure import Figure

        from bayesify.plots.style import BLUE, INK, MUTED, ORANGE, axes, label, legend

        unit = results["curves"]["0"]
        grid, domain = torch.tensor(unit["log alpha"], dtype=torch.float64), table.published["domain"]
        pinned = float(log_uniform_kl(torch.zeros((), dtype=torch.float64)))
        look = {"exact": (INK, "-"), "cubic": (ORANGE, "--"), "sigmoid": (BLUE, "-."), "bound": (MUTED, ":")}
        figure = Figure(figsize=(9.0, 3.6), layout="constrained")
        left, right = (axes(ax) for ax in figure.subplots(1, 2))
        shown = (grid >= domain[0]) & (grid <= domain[1])
        for name, (color, line) in look.items():
            values = torch.tensor(unit[name])
            left.plot(grid[shown], pinned - values[shown], color=color, linestyle=line, label=FORMS[name][0])
            if name not in ("exact", "bound"):
                right.plot(grid, values - torch.tensor(unit["exact"]), color=color, linestyle=line, label=FORMS[name][0])
        marks = shown.nonzero().flatten()[:: max(1, int(shown.sum()) // 12)]
        left.plot(
            grid[marks], pinned - torch.tensor(unit["Monte Carlo"])[marks], "o", color=INK, markersize=3.5, label="Monte Carlo"
        )
        right.axhline(0, color=INK, linewidth=1.0, label=FORMS["exact"][0])
        right.axvspan(*domain, color=MUTED, alpha=0.12, linewidth=0, label="domain of the paper")
        right.set_ylim(-0.05, 0.05)
        label(left, "log alpha", "negative KL (nats), 0 at alpha = 1")
        label(right, "log alpha", "approximate minus exact KL (nats)")
        legend(left, loc="upper left")
        legend(right, loc="lower left")
        return figure


def _sign_change(unit: Unit) -> float:
    """The alpha at which E log|epsilon|, the KL minus the bound, turns from negative to positive; linear between two points."""
    values = [kl - without for kl, without in zip(unit["exact"], unit["bound"], strict=True)]
    index = next((i for i in range(1, len(values)) if values[i - 1] < 0 <= values[i]), None)
    if index is None:
        return math.nan
    low, high = unit["log alpha"][index - 1 : index + 1]
    return math.exp(low + (high - low) * values[index - 1] / (values[index - 1] - values[index]))
