"""The contract of an experiment: a `Protocol` expands a `Table` (one toml file) into `Job`s and runs their units.

A job is one cell of a table (a method on a data set); its units are the repetitions (splits, seeds). Results are saved unit by unit
with a fingerprint of everything that determines them, and are not computed twice.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from experiments.harness.settings import without_defaults

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ByJob", "Context", "Job", "Protocol", "Table", "Unit", "UnitError", "digest", "plain"]

Unit = dict[str, Any]
"""Results of one unit, ready for JSON: finite numbers by name, lists for curves."""

ByJob = Mapping[str, Mapping[str, Unit]]
"""Results by job key and unit."""


def digest(facts: object) -> str:
    """Sixteen hexadecimal digits of the SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def plain(name: str) -> str:
    """The name as part of a file name: "MC dropout (0.1)" as "MC-dropout-0.1"."""
    return re.sub(r"[^\w+.,]+", "-", name).strip("-")


class UnitError(Exception):
    """Some units failed; the message says which and why. The others have been saved."""


@dataclasses.dataclass(frozen=True)
class Table:
    """One table or figure, as its `config.toml` describes it.

    Attributes:
        name: "PAPER/TABLE", the folder below `experiments`.
        title: one line.
        source: the paper's table or figure.
        protocol: name of the protocol that runs it.
        settings: for the protocol, with the `[quick]` section applied in a quick run.
        published: the paper's numbers, in the form the protocol's report takes.
        folder: of config, results and report.
        quick: whether this is a smoke run.
        remarks: what the results show and what they do not (Markdown); the report begins with them.
    """

    name: str
    title: str
    source: str
    protocol: str
    settings: Mapping[str, Any]
    published: Mapping[str, Any]
    folder: Path
    quick: bool = False
    remarks: str = ""


@dataclasses.dataclass(frozen=True)
class Job:
    """One configuration, run for several units.

    Attributes:
        key: name of its results file without extension, such as "boston-MeanField".
        settings: everything that determines its results, complete and ready for JSON. `--dataset` and `--method` filter by those
            named "dataset" and "method".
        units: splits or seeds, as text.
        data: names of the data sets it reads; their checksums are part of the fingerprint.
        cost: rough estimate of seconds per unit, for the order of jobs and the remaining time.
    """

    key: str
    settings: Mapping[str, Any]
    units: tuple[str, ...]
    data: tuple[str, ...] = ()
    cost: float = 1.0

    def fingerprint(self, protocol: Protocol, checksums: Mapping[str, str]) -> str:
        """Digest of protocol, version, settings that differ from their defaults, and data; independent of the units."""
        settings = without_defaults(self.settings, protocol.setting_types)
        return digest([type(protocol).__name__, protocol.version, settings, {name: checksums[name] for name in self.data}])


@dataclasses.dataclass(frozen=True)
class Context:
    """The environment of a running job.

    Attributes:
        data_dir: folder of the data; None for the default ones.
        progress: called with the share of the job that is done, in [0, 1].
        save: saves finished units before the job ends, so that an interruption loses less.
        ready: units of the job from earlier runs, for units that depend on others.
        cache: folder for large intermediate results, used by this job alone. It may not exist yet; None for no cache.
    """

    data_dir: Path | None
    progress: Callable[[float], object]
    save: Callable[[Mapping[str, Unit]], object]
    ready: Mapping[str, Unit] = dataclasses.field(default_factory=dict)
    cache: Path | None = None


class Protocol(ABC):
    """A kind of experiment. A subclass with a `name` is registered for `config.toml`.

    Attributes:
        version: raised by a change of the code that changes results; results of other versions are stale.
        setting_types: dataclasses by the name of the setting that holds their fields: defaults are left out of fingerprints.
    """

    registry: ClassVar[dict[str, type[Protocol]]] = {}
    name: ClassVar[str]
    version: ClassVar[int] = 1
    setting_types: ClassVar[Mapping[str, type]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in vars(cls):  # base classes have none
            Protocol.registry[cls.name] = cls

    @abstractmethod
    def jobs(self, table: Table) -> list[Job]:
        """Expand a table into jobs.

        Raises:
            ConfigurationError: invalid settings.
        """

    @abstractmethod
    def run(self, job: Job, units: Sequence[str], context: Context) -> Mapping[str, Unit]:
        """Run units of a job, several at once where that is faster, and return their results by unit.

        Raises:
            UnitError: some units failed, after `context.save` got the others.
        """

    @abstractmethod
    def report(self, table: Table, jobs: Sequence[Job], results: ByJob) -> str:
        """The table as Markdown, paper | ours | difference.

        Args:
            table: with the paper's numbers.
            jobs: of the table, as `jobs` returned them.
            results: by job key and unit; jobs and units without results are missing.
        """

    def figure(self, table: Table, jobs: Sequence[Job], results: ByJob) -> Figure | None:
        """The figure; None for a table without one. Arguments are those of `report`."""
        return None
