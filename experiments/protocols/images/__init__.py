"""Image classification: error, likelihood, calibration and out-of-distribution images, for several methods, networks and sets.

Hyperparameters are chosen on the last rows of the training set; every network is trained on the other rows, and the test images are
used once, by the networks with the chosen values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from bayesify.core.checks import check_choice, check_integer
from bayesify.errors import ConfigurationError
from experiments.harness.protocol import ByJob, Context, Job, Protocol, Table, Unit, plain
from experiments.protocols.images.figure import draw_scores
from experiments.protocols.images.results import published_of
from experiments.protocols.images.settings import Setup
from experiments.protocols.images.tables import write_tables
from experiments.protocols.images.units import Work, total_epochs, unit_names
from experiments.protocols.shared.configuration import list_of, method_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ImageClassification"]

_GENERAL = ("datasets", "nets", "methods", "seeds", "ensemble", "near")
_SECONDS = 3.0  # per epoch over 50,000 small images; only orders jobs and estimates the remaining time


class ImageClassification(Protocol):
    """Several methods in several networks on several image sets.

    Settings are those of `Setup` and `datasets`, a list of names; `nets`, tables as for `make_net` by name; `methods`, a list of
    tables with a `name` and settings that override the others; `seeds`, the number of networks; `ensemble`, whether their average
    is evaluated, too; `near`, names of out-of-distribution sets that the report averages as near ones, the others as far ones.
    """

    name: ClassVar[str] = "images"
    version: ClassVar[int] = 1
    setting_types: ClassVar[Mapping[str, type]] = {"setup": Setup}

    def jobs(self, table: Table) -> list[Job]:
        settings = table.settings
        general = {key: value for key, value in settings.items() if key not in _GENERAL}
        seeds, ensemble = settings.get("seeds", 1), settings.get("ensemble", False)
        check_integer("seeds", seeds)
        check_choice("ensemble", ensemble, (False, True))
        published_of(table.published)
        near = settings.get("near", [])
        if unknown := set(near) - set(settings.get("ood", [])):
            raise ConfigurationError(f"near must name sets of ood, got {', '.join(sorted(unknown))}")
        jobs = []
        for dataset in list_of("datasets", settings.get("datasets"), str):
            for net, fields in _nets(settings.get("nets")).items():
                for method in list_of("methods", settings.get("methods"), Mapping):
                    name = method_name(method)
                    own = {"dataset": dataset, "net": fields, **general, **method}
                    del own["name"]
                    try:
                        setup = Setup.from_dict(own)
                    except (TypeError, ValueError) as error:
                        raise ConfigurationError(f"{name}, {net} on {dataset}: {error}") from error
                    units = unit_names(setup, seeds, ensemble)
                    jobs.append(
                        Job(
                            key=f"{dataset}-{net}-{plain(name)}",
                            settings={"dataset": dataset, "method": name, "net": net, "setup": setup.to_dict()},
                            units=units,
                            data=tuple(dict.fromkeys((dataset, *setup.ood))),
                            cost=_SECONDS * total_epochs(setup, units) / len(units),
                        )
                    )
        return jobs

    def run(self, job: Job, units: Sequence[str], context: Context) -> Mapping[str, Unit]:
        return Work(job, context, units).run()

    def report(self, table: Table, jobs: Sequence[Job], results: ByJob) -> str:
        return write_tables(jobs, results, published_of(table.published), table.settings.get("near", []))

    def figure(self, table: Table, jobs: Sequence[Job], results: ByJob) -> Figure | None:
        return draw_scores(jobs, results, published_of(table.published))


def _nets(value: object) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(value, Mapping) or not value or not all(isinstance(fields, Mapping) for fields in value.values()):
        raise ConfigurationError(f"nets must be tables by name, such as [nets] small = {{ kind = 'lenet' }}, got {value!r}")
    return value
