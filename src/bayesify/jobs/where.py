"""The argument `on`: this machine, or a Ray cluster with the resources of a job."""

from __future__ import annotations

import dataclasses
import math

from bayesify.errors import ConfigurationError
from bayesify.plain_numbers import is_integer, is_number

__all__ = ["LOCAL", "RayCluster", "cluster_of"]

LOCAL = "local"
_FORM = "'local', 'ray' (the cluster of RAY_ADDRESS or of this machine), 'ray://HOST:PORT' or RayCluster(...)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RayCluster:
    """A Ray cluster, and what a job needs there; the fields are those of `ray.init` and `ray.remote`.

    Args:
        address: "ray://HOST:PORT" (Ray Client), "HOST:PORT" (from a machine of the cluster), or None for that of `ray.init()`: the
            environment variable RAY_ADDRESS, a cluster that runs on this machine, or one that is started for the call.
        num_cpus: cores per job, also the number of PyTorch's threads.
        num_gpus: GPUs per job.
        max_retries: how often a job is started again after its process or machine has died. Errors of the job are not retried.
        jobs: the number of jobs into which `fit_many` divides its models; None for one per job that the cluster can run at a time.
            Models of one job share their operators, so equal results to the last bit need an equal number of jobs.

    Raises:
        ConfigurationError: a number out of its range.

    Example:
        >>> RayCluster(address="ray://head:10001", num_cpus=4).num_cpus
        4
    """

    address: str | None = None
    num_cpus: int = 1
    num_gpus: float = 0
    max_retries: int = 3
    jobs: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("num_cpus", 1), ("max_retries", 0), ("jobs", 1)):
            value = getattr(self, name)
            if not (name == "jobs" and value is None) and (not is_integer(value) or value < least):
                raise ConfigurationError(f"{name} must be an integer of at least {least}, got {value!r}")
        if not is_number(self.num_gpus) or not 0 <= self.num_gpus < math.inf:
            raise ConfigurationError(f"num_gpus must be a number of at least 0, got {self.num_gpus!r}")

    def __str__(self) -> str:
        return "ray" if self.address is None else self.address


def cluster_of(on: str | RayCluster) -> RayCluster | None:
    """Return the cluster that `on` describes; None for "local".

    Raises:
        ConfigurationError: neither "local", "ray", an address "ray://HOST:PORT", nor a `RayCluster`.

    Example:
        >>> cluster_of("local"), cluster_of("ray://head:10001").address
        (None, 'ray://head:10001')
    """
    if isinstance(on, RayCluster):
        return on
    if on == LOCAL:
        return None
    if on == "ray":
        return RayCluster()
    if isinstance(on, str) and on.startswith("ray://") and len(on) > len("ray://"):
        return RayCluster(address=on)
    raise ConfigurationError(f"on must be {_FORM}, got {on!r}")
