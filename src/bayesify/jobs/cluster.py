"""Jobs as tasks of a Ray cluster: connection, checks before the work, and the events of a run.

Ray's calls are made by a thread: when the head of a cluster is lost, some of them block for a minute and then end the process.
"""

from __future__ import annotations

import contextlib
import platform
import queue
import socket
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from bayesify.errors import ClusterError, MissingDependencyError, warn
from bayesify.jobs.where import RayCluster
from bayesify.jobs.worker import Channel, Mailbox, Outcome, check_versions, run_job, versions

__all__ = ["Event", "connected", "run_jobs", "slots"]

_TICK = 0.5  # seconds between looks into the mailbox
_SILENCE = 10.0  # seconds without an answer after which the connection is examined
_SECONDS_TO_END = 5.0
_HEAD = "node:__internal_head__"  # a resource that the machine of the head has


class Event(NamedTuple):
    """What happens to a job: it starts (`value` is `machine()`), sends messages and shares done, and has a result or an error.

    The value of an error is a pair, an exception and the traceback of the job.
    """

    job: int
    kind: Literal["start", "message", "progress", "result", "error"]
    value: Any


@contextlib.contextmanager
def connected(cluster: RayCluster) -> Iterator[Any]:
    """Connect to a cluster, or use the existing connection of this process; yields the module `ray`.

    Raises:
        MissingDependencyError: Ray is not installed.
        ClusterError: no connection, or another version of Ray or Python.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError(f"on={str(cluster)!r}", "Ray", extra="ray") from error
    if ray.is_initialized():
        yield ray
        return
    try:
        ray.init(cluster.address)
    except (OSError, RuntimeError, ValueError) as error:
        raise ClusterError(f"on={str(cluster)!r}: no connection to the Ray cluster: {' '.join(str(error).split())}") from error
    try:
        yield ray
    finally:  # without its head, this may block
        _in_time(ray.shutdown)


def _in_time(function: Callable[[], object]) -> None:
    """Call a function and wait for some seconds."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(_SECONDS_TO_END)


def slots(ray: Any, cluster: RayCluster) -> int:
    """Return how many jobs the machines that are alive can run at a time, at least 1."""
    return max(1, sum(_fitting(node["Resources"], cluster) for node in ray.nodes() if node["Alive"]))


def _fitting(resources: dict[str, float], cluster: RayCluster) -> int:
    count = resources.get("CPU", 0) // cluster.num_cpus
    return int(min(count, resources.get("GPU", 0) // cluster.num_gpus) if cluster.num_gpus else count)


def run_jobs(function: Callable[[Any, Channel], Any], arguments: Sequence[Any], cluster: RayCluster) -> Generator[Event | None]:
    """Run `function(argument, channel)` for every argument in the processes of a cluster, in this order as far as resources allow.

    A job whose process or machine dies is started again, up to `max_retries` times, with what it had sent in `channel.sent`. The
    other jobs go on after an error of one.

    Yields:
        Events as they happen, and None about twice a second.

    Raises:
        MissingDependencyError: Ray is not installed.
        ClusterError: no connection, the connection is lost, or a machine cannot run jobs.
        ConfigurationError: a machine has other versions than this process.
    """
    with connected(cluster) as ray:
        _check_machines(ray, cluster)
        events: queue.Queue[Event | Exception | None] = queue.Queue()
        stopped = threading.Event()
        jobs = threading.Thread(target=_drive, args=(ray, function, arguments, cluster, events, stopped), daemon=True)
        jobs.start()
        head = _head(ray, cluster)
        left = len(arguments)
        try:
            while left:
                try:
                    event = events.get(timeout=_SILENCE)
                except queue.Empty:
                    if head is None or _answers(head):
                        continue
                    raise ClusterError(f"the connection to the Ray cluster {cluster} is lost: its head does not answer") from None
                if isinstance(event, Exception):
                    reason = " ".join(str(event).split())[:200]
                    raise ClusterError(f"the connection to the Ray cluster {cluster} is lost: {reason}") from event
                left -= event is not None and event.kind in ("result", "error")
                yield event
        finally:
            stopped.set()
            jobs.join(_SECONDS_TO_END)


def _head(ray: Any, cluster: RayCluster) -> tuple[str, int] | None:
    """Return host and port that answer while the cluster is there; None if they are not known."""
    address = (cluster.address or "").removeprefix("ray://") if (cluster.address or "").startswith("ray://") else ""
    address = address or ray.get_runtime_context().gcs_address
    host, _, port = address.rpartition(":")
    return (host, int(port)) if host and port.isdigit() else None


def _answers(place: tuple[str, int]) -> bool:
    try:
        socket.create_connection(place, timeout=_SECONDS_TO_END).close()
    except OSError:
        return False
    return True


def _check_machines(ray: Any, cluster: RayCluster) -> None:
    """Check that every machine has this library in the same version, and warn if none has the resources of a job."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    expected, nodes = versions(), [node for node in ray.nodes() if node["Alive"]]
    if not any(_fitting(node["Resources"], cluster) for node in nodes):
        warn(f"no machine of the cluster has num_cpus={cluster.num_cpus} and num_gpus={cluster.num_gpus:g} now; jobs wait for one")
    here = platform.node()
    others = [node for node in nodes if node["NodeManagerHostname"] != here]
    strategy = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in others]
    answers = [ray.remote(num_cpus=0)(versions).options(scheduling_strategy=place).remote() for place in strategy]
    for node, answer in zip(others, answers, strict=True):
        name = node["NodeManagerHostname"]
        try:
            found = ray.get(answer)
        except ray.exceptions.RayTaskError as error:
            raise ClusterError(f"the machine {name} of the cluster cannot run bayesify: {error.cause}; install it there") from error
        except ray.exceptions.RayError:
            continue  # it has left the cluster
        check_versions(expected, found, name)


def _drive(
    ray: Any,
    function: Callable[[Any, Channel], Any],
    arguments: Sequence[Any],
    cluster: RayCluster,
    events: queue.Queue[Event | Exception | None],
    stopped: threading.Event,
) -> None:
    """Submit the jobs and put their events into a queue; an exception ends it."""
    pending: dict[Any, int] = {}
    try:
        mailbox = ray.remote(num_cpus=0, resources={_HEAD: 0.001})(Mailbox).remote()
        remote = ray.remote(num_cpus=cluster.num_cpus, num_gpus=cluster.num_gpus, max_retries=cluster.max_retries)(run_job)
        common = mailbox, versions(), cluster.num_cpus
        pending = {remote.remote(function, argument, job, *common): job for job, argument in enumerate(arguments)}
        read = 0
        while pending and not stopped.is_set():
            done, _ = ray.wait(list(pending), num_returns=len(pending), timeout=_TICK)
            messages, shares = ray.get(mailbox.read.remote(read))
            read += len(messages)
            for message in messages:
                events.put(Event(*message))
            for job, share in shares.items():
                events.put(Event(job, "progress", share))
            for reference in done:
                events.put(_end(ray, reference, pending.pop(reference), cluster))
            events.put(None)
        for reference in pending:
            ray.cancel(reference, force=True)
    except Exception as error:  # noqa: BLE001 - raised by the thread that reads the queue
        events.put(error)


def _end(ray: Any, reference: Any, job: int, cluster: RayCluster) -> Event:
    """The last event of a job."""
    try:
        outcome: Outcome = ray.get(reference)
    except (ray.exceptions.OutOfMemoryError, ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
        reason = " ".join(str(error).split())[:300]
        return Event(job, "error", (ClusterError(f"its process died {cluster.max_retries + 1} times: {reason}"), ""))
    except ray.exceptions.RayTaskError as error:
        return Event(job, "error", (ClusterError(str(error.cause)), str(error)))
    if outcome.error is not None:
        return Event(job, "error", (outcome.error, outcome.details))
    return Event(job, "result", outcome.result)
