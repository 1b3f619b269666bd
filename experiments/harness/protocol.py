"""The contract of an experiment: a `Table` (one toml file) is expanded by its `Protocol` into `Job`s, whose units are run and kept.

A job is one row of work with settings of its own (a method on a data set); its units are what it is repeated over (splits, seeds).
Results are kept unit by unit, under a fingerprint of everything that decides them: what is there is not run again.
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

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Context", "Job", "Protocol", "Table", "Unit", "UnitError", "plain"]

Unit = dict[str, Any]
"""What one unit produced, ready for JSON: numbers by name, lists for curves. Numbers must be finite."""


def plain(name: str) -> str:
    """A name as part of a file's: "MC dropout (0.1)" as "MC-dropout-0.1"."""
    return re.sub(r"[^\w+.,]+", "-", name).strip("-")


class UnitError(Exception):
    """Some units could not be brought to an end; the message says which and why. The others have been saved."""


@dataclasses.dataclass(frozen=True)
class Table:
    """One table or figure, as its `config.toml` describes it.

    Attributes:
        name: "PAPER/TABLE", the folder below `experiments`.
        title: what it shows, in a line.
        source: the paper's table or figure it stands beside.
        protocol: the name of the protocol that runs it.
        settings: what the protocol takes, with the `[quick]` section laid over it in a quick run.
        published: the paper's numbers, as the protocol's report reads them.
        folder: where config, results and report lie.
        quick: whether this is a smoke run.
        remarks: what the results show, in words (Markdown); the report begins with them.
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
    """Work with settings of its own, repeated over units.

    Attributes:
        key: names the file of its results, such as "boston-MeanField".
        settings: everything that decides its results, ready for JSON. `--dataset` and `--method` look at those named "dataset" and
            "method".
        units: the splits or seeds, as words.
        data: names of the data sets it reads; their checksums are part of the fingerprint.
        cost: a rough guess of the seconds one unit takes, for the order of jobs and the time left.
    """

    key: str
    settings: Mapping[str, Any]
    units: tuple[str, ...]
    data: tuple[str, ...] = ()
    cost: float = 1.0

    def fingerprint(self, protocol: Protocol, checksums: Mapping[str, str]) -> str:
        """A digest of everything that decides the results of a unit; where units are many, it does not depend on which."""
        facts = [type(protocol).__name__, protocol.version, self.settings, {name: checksums[name] for name in self.data}]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Context:
    """What a running job is given.

    Attributes:
        data_dir: where the data lie; None looks in the usual places.
        progress: called with the share of the job that is done, in [0, 1].
        save: keeps units that are ready before the job ends, so that a kill loses less.
        ready: the job's units that earlier runs have kept, for units that build on others.
        cache: a folder for what is too large for results and can be made again; nobody else writes there. It need not exist, and
            may be None where nothing outlives the run.
    """

    data_dir: Path | None
    progress: Callable[[float], object]
    save: Callable[[Mapping[str, Unit]], object]
    ready: Mapping[str, Unit] = dataclasses.field(default_factory=dict)
    cache: Path | None = None


class Protocol(ABC):
    """A kind of experiment. Naming it makes it known to `config.toml`.

    Attributes:
        version: counts changes of the code that change results: results of other versions are stale.
    """

    registry: ClassVar[dict[str, type[Protocol]]] = {}
    name: ClassVar[str]
    version: ClassVar[int] = 1

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in vars(cls):  # what others build on has none
            Protocol.registry[cls.name] = cls

    @abstractmethod
    def jobs(self, table: Table) -> list[Job]:
        """What there is to run.

        Raises:
            ValueError: settings that do not fit, before any work.
        """

    @abstractmethod
    def run(self, job: Job, units: Sequence[str], context: Context) -> Mapping[str, Unit]:
        """Run some units of a job (as many at once as pays) and return their results by unit.

        Raises:
            UnitError: some did not come to an end, after the others were given to `context.save`.
        """

    @abstractmethod
    def report(self, table: Table, results: Mapping[str, Mapping[str, Unit]]) -> str:
        """The table as Markdown, paper | ours | difference, from results by job and unit (missing ones are missing)."""

    def figure(self, table: Table, results: Mapping[str, Mapping[str, Unit]]) -> Figure | None:
        """The figure, where the paper has one."""
        return None
