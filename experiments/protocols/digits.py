"""Classification error against the number of hidden units: Kingma, Salimans & Welling (2015), section 5 and figure 1a.

As in the paper: Adam with its default settings and temporal averaging. The selected epoch is the one whose averaged mean weights
have the lowest error on the validation part, the last rows of the training set.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bayesify.core.checks import check_fraction, check_integer, check_positive
from bayesify.errors import ConfigurationError
from bayesify.formatting import plural
from experiments.harness.numbers import Estimate, difference, estimate, markdown
from experiments.harness.protocol import ByJob, Context, Job, Protocol, Table, Unit
from experiments.protocols.digits_net import bayesian_net, digits, method_settings
from experiments.protocols.digits_training import train_and_test

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Digits"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What `config.toml` may set.

    Attributes:
        methods: tables with `name`, `posterior` (as for `Method.from_dict`, without `p`) and `beta`, the weight of the KL.
        rates: initial dropout rates of the "input" and the "hidden" units.
        hidden: numbers of units in each of the three hidden layers.
        epochs, batch_size, learning_rate: of training, by Adam.
        averaging: decay per step of the temporal average.
        validation: number of validation rows at the end of the training set.
        samples: draws of the predictive distribution.
        seeds: how many nets per method and size.
    """

    methods: list[dict[str, Any]]
    rates: dict[str, float]
    hidden: list[int]
    epochs: int
    batch_size: int
    learning_rate: float
    averaging: float
    validation: int
    samples: int
    seeds: int

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "validation", "samples", "seeds"):
            check_integer(name, getattr(self, name))
        check_positive("learning_rate", self.learning_rate)
        check_fraction("averaging", self.averaging)
        for number in self.hidden:
            check_integer("hidden", number)
        for method in self.methods:
            if set(method) != {"name", "posterior", "beta"}:
                raise ConfigurationError(f"every one of methods must have name, posterior and beta, got {method}")
            check_positive("beta", method["beta"])
            bayesian_net(1, 1, method["posterior"], self.rates, seed=0)


class Digits(Protocol):
    """One job per size and method, a net per seed."""

    name = "digits"

    def jobs(self, table: Table) -> list[Job]:
        settings = Settings(**table.settings)
        common = dataclasses.asdict(settings)
        for key in ("methods", "hidden", "seeds"):
            del common[key]
        units = tuple(str(seed) for seed in range(settings.seeds))
        return [
            Job(
                _key(method["name"], hidden),
                {
                    "method": method["name"],
                    "posterior": method_settings(method["posterior"], settings.rates),
                    "beta": method["beta"],
                    "hidden": hidden,
                    **common,
                },
                units,
                data=("mnist",),
                cost=settings.epochs * (1.0 + hidden / 150),
            )
            for hidden in settings.hidden
            for method in settings.methods
        ]

    def run(self, job: Job, units: Sequence[str], context: Context) -> Mapping[str, Unit]:
        (x, y), test = digits("train", context.data_dir), digits("test", context.data_dir)
        held_out = job.settings["validation"]
        if held_out >= len(x):
            raise ConfigurationError(f"validation must leave rows to train on, got {held_out} of {len(x)}")
        parts = (x[:-held_out], y[:-held_out]), (x[-held_out:], y[-held_out:]), test
        results: dict[str, Unit] = {}
        for index, unit in enumerate(units):
            results[unit] = train_and_test(
                job.settings, int(unit), *parts, lambda share, i=index: context.progress((i + share) / len(units))
            )
            context.save({unit: results[unit]})
        return results

    def report(self, table: Table, jobs: Sequence[Job], results: ByJob) -> str:
        settings = Settings(**table.settings)

        def rows(quantity: str) -> list[list[str]]:
            cells = [
                [str(e) if (e := _over_seeds(results, name, hidden, quantity)) else "-" for hidden in settings.hidden]
                for name in _names(settings)
            ]
            return [[name, *row] for name, row in zip(_names(settings), cells, strict=True)]

        header = ["method", *(f"{hidden} units" for hidden in settings.hidden)]
        seeds = max((len(units) for units in results.values()), default=0)
        images = f"{plural(seeds, 'network')} per cell" + (", ± is the standard error over them" if seeds > 1 else "")
        parts = [
            "The paper's figure has no numbers; its statements are checked below.",
            f"Test error (%) of the mean weights, {images}. The 10,000 test images alone give an error of 1.5 a standard error of "
            "about 0.12 (differences have a smaller one, as the images are the same).",
            markdown(header, rows("test error")),
            f"Test error (%) of the predictive mean over {settings.samples} draws:",
            markdown(header, rows("predictive error")),
            f"Test negative log likelihood (nats per image) over {settings.samples} draws:",
            markdown(header, rows("predictive nll")),
        ]
        for units in ("input", "hidden"):
            if rates := [row for row in rows(f"{units} rate") if set(row[1:]) != {"-"}]:
                start = f"Mean learned dropout rate alpha / (1 + alpha) of the {units} units ({settings.rates[units]} at first):"
                parts += [start, markdown(header, rates)]
        if claims := self._claims(table, results, settings):
            parts += ["Statements of the paper about the test error:", markdown(["paper", *header[1:]], claims)]
        parts += [f"Selected epoch, of {settings.epochs}:", markdown(header, rows("kept epoch"))]
        return "\n\n".join(parts)

    def _claims(self, table: Table, results: ByJob, settings: Settings) -> list[list[str]]:
        """For every claim of the configuration and size, the error claimed to be lower minus the other."""
        claims = []
        for claim in table.published.get("claims", []):
            row = [claim["text"]]
            for hidden in settings.hidden:
                pair = [_over_seeds(results, claim[which], hidden, "test error") for which in ("better", "worse")]
                row.append("-" if pair[0] is None or pair[1] is None else difference(pair[0], pair[1]))
            claims.append(row)
        return claims

    def figure(self, table: Table, jobs: Sequence[Job], results: ByJob) -> Figure | None:
        from matplotlib.figure import Figure

        from bayesify.plots.style import axes, label, legend

        settings = Settings(**table.settings)
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        ax = axes(figure.subplots())
        for index, name in enumerate(_names(settings)):
            points = [(hidden, e) for hidden in settings.hidden if (e := _over_seeds(results, name, hidden, "test error"))]
            color, marker, line = _LOOK[index % len(_LOOK)]
            ax.errorbar(
                [hidden for hidden, _ in points],
                [e.mean for _, e in points],
                yerr=[e.error for _, e in points] if settings.seeds > 1 else None,
                color=color, marker=marker, linestyle=line, markersize=5, capsize=2, label=name,
            )  # fmt: skip
        ax.set_xscale("log", base=2)
        ax.set_xticks(settings.hidden, [str(hidden) for hidden in settings.hidden], minor=False)
        label(ax, "units in each of three hidden layers", "test error of the mean weights (%)")
        legend(ax, loc="center left", bbox_to_anchor=(1.0, 0.5))
        return figure


# Fixed noise is dashed, learned noise solid; blue hues for type A, orange ones for type B.
_LOOK = (
    ("#6b7785", "x", ":"),
    ("#1f2933", "s", "--"),
    ("#56b4e9", "v", "--"),
    ("#e69f00", "^", "--"),
    ("#0072b2", "o", "-"),
    ("#009e73", "D", "-"),
    ("#d55e00", "o", "-"),
)


def _names(settings: Settings) -> list[str]:
    return [method["name"] for method in settings.methods]


def _key(method: str, hidden: int) -> str:
    return f"{method.replace(' ', '-').lower()}-{hidden}"


def _over_seeds(results: ByJob, method: str, hidden: int, quantity: str) -> Estimate | None:
    values = [unit[quantity] for unit in results.get(_key(method, hidden), {}).values() if quantity in unit]
    return estimate(values) if values else None
