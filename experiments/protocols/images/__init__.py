"""Image classification: error, likelihood, calibration and unfamiliar images, for several methods, nets and image sets.

Hyper-parameters are chosen on the last rows of the training set; every net then trains on the others alone, and the test images
are looked at once, by the nets with the chosen values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from bayesify.core.checks import check_choice, check_integer
from experiments.harness.protocol import Context, Job, Protocol, Table, Unit, plain
from experiments.protocols.images.picture import draw_scores
from experiments.protocols.images.rows import published_of
from experiments.protocols.images.setup import Setup
from experiments.protocols.images.tables import write_tables
from experiments.protocols.images.work import Work, total_epochs, unit_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ImageClassification"]

_GENERAL = ("datasets", "nets", "methods", "seeds", "ensemble")
_SECONDS = 3.0  # of an epoch over 50,000 small images, for the order of jobs and the time left alone


class ImageClassification(Protocol):
    """Several methods in several nets on several image sets.

    Settings are those of `Setup` and `datasets`, a list of names; `nets`, tables as for `make_net` by names of one's own;
    `methods`, a list of tables with a `name` and settings of their own, which come before the others; `seeds`, how many nets each;
    `ensemble`, whether their average is tested, too.
    """

    name: ClassVar[str] = "images"
    version: ClassVar[int] = 1

    def jobs(self, table: Table) -> list[Job]:
        settings = table.settings
        general = {key: value for key, value in settings.items() if key not in _GENERAL}
        seeds, ensemble = settings.get("seeds", 1), settings.get("ensemble", False)
        check_integer("seeds", seeds)
        check_choice("ensemble", ensemble, (False, True))
        published_of(table.published)
        jobs = []
        for dataset in _list_of("datasets", settings.get("datasets"), str):
            for net, fields in _nets(settings.get("nets")).items():
                for method in _list_of("methods", settings.get("methods"), Mapping):
                    own = {"dataset": dataset, "net": fields, **general, **method}
                    name = own.pop("name", None)
                    if not isinstance(name, str):
                        raise ValueError(f"every method needs a name, got {dict(method)}")
                    try:
                        setup = Setup.from_dict(own)
                    except (TypeError, ValueError) as error:
                        raise ValueError(f"{name}, {net} on {dataset}: {error}") from error
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

    def report(self, table: Table, results: Mapping[str, Mapping[str, Unit]]) -> str:
        return write_tables(self.jobs(table), results, published_of(table.published))

    def figure(self, table: Table, results: Mapping[str, Mapping[str, Unit]]) -> Figure | None:
        return draw_scores(self.jobs(table), results, published_of(table.published))


def _list_of(name: str, value: object, kind: type) -> list[Any]:
    if not isinstance(value, list) or not value or not all(isinstance(entry, kind) for entry in value):
        what = "names" if kind is str else f"tables, [[{name}]]"
        raise ValueError(f"{name} must be a list of {what}, got {value!r}")
    return value


def _nets(value: object) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(value, Mapping) or not value or not all(isinstance(fields, Mapping) for fields in value.values()):
        raise ValueError(f"nets must be tables by name, such as [nets] small = {{ kind = 'lenet' }}, got {value!r}")
    return value
