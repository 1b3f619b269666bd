"""Training of many models as jobs of a Ray cluster, each of which trains some of them as `fit_many` does."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from torch import Tensor

from bayesify.errors import ClusterError, warn
from bayesify.jobs import Channel, RayCluster, run_jobs
from bayesify.jobs.cluster import connected, slots
from bayesify.train.arguments import Training
from bayesify.train.history import History

__all__ = ["train_on_cluster"]


@dataclasses.dataclass(frozen=True)
class _Part:
    """Models of one job, and how they are trained."""

    first: int
    trainings: Sequence[Training]
    train: Callable[..., list[History]]
    settings: Mapping[str, Any]
    checkpoint: Path | None


@dataclasses.dataclass(frozen=True)
class _Trained:
    """A trained model: the history, and the states of network and likelihood."""

    history: History
    bnn: dict[str, Tensor]
    likelihood: dict[str, Tensor]


def train_on_cluster(
    train: Callable[..., list[History]],
    trainings: Sequence[Training],
    settings: Mapping[str, Any],
    cluster: RayCluster,
    checkpoint: Path | None,
    advance: Callable[[float], object],
) -> list[History]:
    """Train models in the processes of a cluster; copy their parameters and buffers into those of this process.

    Args:
        train: `fit_many`.
        trainings: the models, which are divided into consecutive parts of almost equal size, one per job.
        settings: arguments of `train`.
        cluster: where, and with what resources.
        checkpoint: file in a folder that all machines share; a part has a file with its numbers after the name.
        advance: called with the number of epochs done, summed over models.

    Returns:
        The history of each model, with a `failure` where the process of its job died too often.

    Raises:
        ClusterError: the cluster cannot be reached or is lost; the models of finished jobs are trained.
    """
    with ExitStack() as exits:
        ray = exits.enter_context(connected(cluster))
        count = min(len(trainings), cluster.jobs or slots(ray, cluster))
        bounds = [round(k * len(trainings) / count) for k in range(count + 1)]
        parts = [_Part(a, trainings[a:b], train, settings, checkpoint) for a, b in itertools.pairwise(bounds)]
        histories, shares = {}, [0.0] * count
        events = exits.enter_context(closing(run_jobs(_train, parts, cluster)))
        for event in events:
            if event is None or event.kind in ("start", "message"):
                continue
            part = parts[event.job]
            if event.kind == "error":
                error, details = event.value
                if not isinstance(error, ClusterError):
                    error.add_note(f"in a process of the cluster:\n{details}")
                    raise error
                histories |= {part.first + i: History(failure=str(error)) for i in range(len(part.trainings))}
            elif event.kind == "result":
                for i, (training, trained) in enumerate(zip(part.trainings, event.value, strict=True)):
                    training.bnn.load_state_dict(trained.bnn)
                    training.likelihood.load_state_dict(trained.likelihood)
                    histories[part.first + i] = trained.history
            share = event.value if event.kind == "progress" else 1.0
            advance((share - shares[event.job]) * len(part.trainings) * settings["epochs"])
            shares[event.job] = share
    return [histories[i] for i in range(len(trainings))]


def _train(part: _Part, channel: Channel) -> list[_Trained]:
    checkpoint = part.checkpoint
    if checkpoint is not None:
        numbers = f"{part.first}-{part.first + len(part.trainings) - 1}"
        shared = checkpoint.parent.is_dir()
        if not shared:
            warn(
                f"{checkpoint.parent} is no folder on this machine of the cluster, so an interrupted training starts again; give a "
                "checkpoint in a folder that all machines share"
            )
        checkpoint = checkpoint.with_name(f"{checkpoint.name}.models{numbers}") if shared else None
    histories = part.train(part.trainings, **part.settings, checkpoint=checkpoint, progress=channel.progress)
    trained = zip(part.trainings, histories, strict=True)
    return [_Trained(history, _state(model.bnn), _state(model.likelihood)) for model, history in trained]


def _state(module: Any) -> dict[str, Tensor]:
    return {name: value.cpu() for name, value in module.state_dict().items()}
