"""Processes that torchrun or SLURM started, and whether the arguments of `fit` match them."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch

from bayesify.core.checks import check_integer
from bayesify.core.shards import is_distributed
from bayesify.errors import ConfigurationError, warn
from bayesify.plain_numbers import is_integer, plain

__all__ = ["Launch", "check_one_process", "launched", "processes_of"]

_INTERACTIVE = "bash", "interactive"  # names of jobs whose processes Fabric does not take for those of srun


class Launch(NamedTuple):
    """Processes that were started from outside.

    Attributes:
        by: what started them.
        nodes: the number of hosts, or of agents of torchrun.
        devices: the number of processes per host.
    """

    by: str
    nodes: int
    devices: int


def launched() -> Launch | None:
    """Return what started this process and others together, by their environment variables; None for a process of its own.

    Raises:
        ConfigurationError: hosts have different numbers of processes.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        _warn_of_shared_store()
        by, names = "torchrun", ("WORLD_SIZE", "GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE")
    elif "SLURM_STEP_ID" in os.environ and os.environ.get("SLURM_JOB_NAME") not in _INTERACTIVE:
        by, names = "SLURM", ("SLURM_NTASKS", "SLURM_NNODES", "SLURM_NTASKS_PER_NODE")
    elif "LOCAL_WORLD_SIZE" in os.environ and is_distributed():
        world, devices = torch.distributed.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])  # Ray Train
        return Launch("the launcher", max(1, world // devices), devices)
    else:
        return None
    if by == "SLURM" and names[2] not in os.environ and os.environ.get(names[0], "1") != "1":
        raise ConfigurationError("SLURM was not told the number of processes per host; use --ntasks-per-node in place of --ntasks")
    world, nodes = (int(os.environ.get(name, "1")) for name in names[:2])
    devices = int(os.environ.get(names[2], str(max(1, world // nodes))))
    if nodes * devices != world:
        raise ConfigurationError(
            f"{by} started {world} processes on {nodes} hosts, with {devices} on this one; start the same number on every host"
        )
    return Launch(by, nodes, devices)


def processes_of(devices: int | list[int] | None, num_nodes: int | None) -> tuple[int | list[int], int]:
    """Return `devices` and `num_nodes`, each checked or, if None, that of torchrun or SLURM, otherwise 1.

    Raises:
        ConfigurationError: a number below 1, or one that does not match what torchrun or SLURM started.
    """
    if devices is not None and not (is_integer(devices) and devices >= 1) and not (isinstance(devices, list) and devices):
        raise ConfigurationError(f"devices must be a number of at least 1, or a list of GPUs such as [0, 1], got {devices!r}")
    if num_nodes is not None:
        check_integer("num_nodes", num_nodes)
    launch, devices = launched(), plain(devices)
    count = len(devices) if isinstance(devices, list) else devices
    if launch is None:
        nodes = num_nodes or 1
        _check_rendezvous(count or 1, nodes)
        return devices or 1, nodes
    for name, value, found in (("num_nodes", num_nodes, launch.nodes), ("devices", count, launch.devices)):
        if value not in (None, found):
            raise ConfigurationError(
                f"{name}={value} does not match {launch.by}, which started {launch.devices} processes on each of "
                f"{launch.nodes} hosts; pass {name}={found}, or leave it out"
            )
    return devices or launch.devices, launch.nodes


def check_one_process(what: str) -> None:
    """Raise a `ConfigurationError` if torchrun or SLURM started several processes."""
    launch = launched()
    if launch is not None and launch.nodes * launch.devices > 1:
        raise ConfigurationError(
            f"{what} independently, which needs one process, but {launch.by} started {launch.nodes * launch.devices}; start one, "
            "and use on='ray' for several hosts"
        )


def _warn_of_shared_store() -> None:
    """Warn if processes that torchrun starts again would read the addresses of their predecessors (PyTorch issue 135712)."""
    variables = ("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE", "RANK")
    restarts, shared, rank = (os.environ.get(name) for name in variables)
    if restarts not in (None, "0") and shared == "True" and rank == "0":
        warn(
            "processes that torchrun starts again may not find each other; set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the "
            "environment of torchrun to make --max-restarts work"
        )


def _check_rendezvous(devices: int, nodes: int) -> None:
    """Raise a `ConfigurationError` if processes would wait for others that nobody starts, or whose addresses they do not know."""
    if devices * nodes > 1 and "SLURM_NTASKS" in os.environ and os.environ.get("SLURM_JOB_NAME") not in _INTERACTIVE:
        raise ConfigurationError(
            f"devices={devices} and num_nodes={nodes} need {devices * nodes} processes, which srun starts in a job of SLURM; write "
            f"srun before the command, with --ntasks-per-node={devices} and --nodes={nodes}"
        )
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK") if name not in os.environ]
    if nodes > 1 and missing:
        raise ConfigurationError(
            f"num_nodes={nodes} needs the address of the first host; start the script on every host with torchrun --nnodes={nodes} "
            f"or srun, or set {', '.join(missing)}"
        )
