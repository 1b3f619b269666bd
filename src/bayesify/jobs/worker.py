"""What runs on the machines of a cluster: jobs, and the mailbox between them and the process that started them."""

from __future__ import annotations

import dataclasses
import pickle
import platform
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch

from bayesify.environment import machine
from bayesify.errors import ConfigurationError
from bayesify.native import native_is_used

__all__ = ["Channel", "Mailbox", "Outcome", "check_versions", "portable", "run_job", "versions"]

_SECONDS = 0.2  # between two reports of progress


class Mailbox:
    """Messages of all jobs, kept to the end of the run: what a job had sent before its machine died is not lost.

    An actor on the machine of the cluster's head, whose loss ends the run anyway.
    """

    def __init__(self) -> None:
        self.messages: list[tuple[int, str, Any]] = []
        self.shares: dict[int, float] = {}

    def start(self, job: int, facts: Mapping[str, Any]) -> list[Any]:
        """Note that a job starts; return the messages of its earlier attempts."""
        self.messages.append((job, "start", facts))
        return [value for number, kind, value in self.messages if number == job and kind == "message"]

    def send(self, job: int, message: Any) -> None:
        """Keep a message."""
        self.messages.append((job, "message", message))

    def progress(self, job: int, share: float) -> None:
        """Replace the share of a job that is done."""
        self.shares[job] = share

    def read(self, after: int) -> tuple[list[tuple[int, str, Any]], dict[int, float]]:
        """Return the messages from number `after`, and the shares reported since the last call."""
        shares, self.shares = self.shares, {}
        return self.messages[after:], shares


class Channel:
    """A job's connection to the process that started it.

    Attributes:
        sent: messages of earlier attempts, whose process or machine has died.
    """

    def __init__(self, job: int, mailbox: Any) -> None:
        import ray

        self._job, self._mailbox, self._get, self._due = job, mailbox, ray.get, 0.0
        self.sent: list[Any] = ray.get(mailbox.start.remote(job, machine()))

    def send(self, message: Any) -> None:
        """Deliver a message; when this returns, it outlives the job."""
        self._get(self._mailbox.send.remote(self._job, message))

    def progress(self, share: float) -> None:
        """Report the share of the job that is done, in [0, 1]."""
        if time.perf_counter() >= self._due:
            self._mailbox.progress.remote(self._job, float(share))
            self._due = time.perf_counter() + _SECONDS


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a job, or its error and the traceback."""

    result: Any = None
    error: Exception | None = None
    details: str = ""


def run_job(
    function: Callable[[Any, Channel], Any], argument: Any, job: int, mailbox: Any, expected: Mapping[str, str], threads: int
) -> Outcome:
    """Run a job in a process of the cluster."""
    try:
        check_versions(expected, versions(), platform.node())  # of a machine that has joined later, too
        torch.set_num_threads(threads)
        return Outcome(function(argument, Channel(job, mailbox)))
    except Exception as error:  # noqa: BLE001 - raised again, or reported, by the process that started the job
        return Outcome(error=portable(error), details=traceback.format_exc())


def versions() -> dict[str, str]:
    """Return the versions that have to be equal on all machines: in a source checkout the commit, otherwise that of bayesify."""
    facts = machine()
    if facts["commit"]:
        facts["bayesify"] = ""  # of the commit that was last installed, which may differ between equal checkouts
    native = {"native operators": "on" if native_is_used() else "off"}  # which decide the random numbers
    return {name: str(facts[name]) for name in ("python", "torch", "bayesify", "commit")} | native


def check_versions(expected: Mapping[str, str], found: Mapping[str, str], place: str) -> None:
    """Check that a machine has the versions of the process that started the run.

    Raises:
        ConfigurationError: it has others.
    """
    differing = [name for name, version in expected.items() if found.get(name) != version]
    if differing:
        here, there = (", ".join(f"{name} {facts.get(name) or 'unknown'}" for name in differing) for facts in (expected, found))
        raise ConfigurationError(
            f"version mismatch: this process has {here}, the machine {place} of the cluster {there}; install the same"
        )


def portable(error: Exception) -> Exception:
    """Return the error, or one of the same text if its type cannot be sent to another process."""
    try:
        return error if type(pickle.loads(pickle.dumps(error))) is type(error) else RuntimeError(str(error))
    except Exception:  # noqa: BLE001 - constructors of errors may take anything
        return RuntimeError(f"{type(error).__name__}: {error}")
