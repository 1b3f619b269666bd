"""The loggers of `fit`: functions of an epoch's record, Fabric loggers, and runs of MLflow and TensorBoard."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bayesify.errors import ConfigurationError
from bayesify.tracking import Run, open_run
from bayesify.train.arguments import Settings, SingleModelOptions, Training
from bayesify.train.history import History

__all__ = ["Loggers", "configuration"]


class Loggers:
    """Loggers while they are in use; as a context manager, it ends the runs that it has opened, and flushes the others.

    An error of a function is raised, one of another logger is a warning.

    Args:
        loggers: functions of an epoch's record, Fabric loggers, runs, and values of `track` for `open_run`.
        checkpoint: of the training; next to it is the file that names the runs to continue with it.
        resume: whether they are continued.

    Attributes:
        opened: functions and runs.
    """

    def __init__(self, loggers: Iterable[Any], checkpoint: Path | None = None, resume: bool = True) -> None:
        self.opened: list[Run | Callable[[dict[str, float]], object]] = []
        self._own: list[Run] = []
        for logger in loggers:
            if isinstance(logger, str):
                self._own.append(open_run(logger, state=_state(checkpoint, resume)))
                self.opened.append(self._own[-1])
            else:
                self.opened.append(_as_run(logger))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for run in self.runs:
            if run in self._own:
                run.end("success" if kind is None else "failed" if issubclass(kind, Exception) else "interrupted")
            else:
                run.flush()

    @property
    def runs(self) -> list[Run]:
        """The loggers that are not functions."""
        return [logger for logger in self.opened if isinstance(logger, Run)]

    def start(self, settings: Mapping[str, Any], history: History | None = None) -> None:
        """Log settings and, of a resumed training, the epochs that the interrupted one may not have logged."""
        for run in self.runs:
            run.configure(settings)
            if history is not None and run.continued:
                for epoch, record in _records(history):
                    run.log(record, epoch)

    def log(self, epoch: int, record: Mapping[str, float]) -> None:
        """Log an epoch."""
        for logger in self.opened:
            if isinstance(logger, Run):
                logger.log(record, epoch)
            else:
                logger({"epoch": epoch, **record})

    def log_all(self, history: History, prefix: str = "") -> None:
        """Log all epochs of a training that is over, with a prefix of the names."""
        for epoch, record in _records(history):
            self.log(epoch, {f"{prefix}{name}": value for name, value in record.items()})


def configuration(training: Training, settings: Settings, options: SingleModelOptions) -> dict[str, object]:
    """Return the settings of a training, with those of the network."""
    bnn = training.bnn
    fields = [layer.method.to_dict() for layer in bnn.report if layer.method is not None]
    own = {name: getattr(training, name) for name in ("seed", "beta", "learning_rate", "n")}
    left_out = ("loggers", "progress", "resume")
    common = {field.name: getattr(options, field.name) for field in dataclasses.fields(options) if field.name not in left_out}
    return {
        "network": type(bnn.net).__name__,
        "method": {method.pop("method"): method for method in fields} or type(bnn).__name__,
        "parameters": sum(p.numel() for p in bnn.parameters()),
        "likelihood": " ".join(repr(training.likelihood).split()),
        "local_beta": training.local_weight,
        **own,
        **vars(settings),
        **common,
    }


def _as_run(logger: Any) -> Run | Callable[[dict[str, float]], object]:
    from lightning.fabric.loggers.logger import Logger

    if isinstance(logger, Logger):
        return Run(logger)
    if not callable(logger) and not isinstance(logger, Run):
        raise ConfigurationError(
            f"loggers must be functions, Fabric loggers, 'mlflow[:URI]' or 'tensorboard[:FOLDER]', got {type(logger).__name__}"
        )
    return logger


def _state(checkpoint: Path | None, resume: bool) -> Path | None:
    """Return the file that names the runs of a checkpoint; without an interrupted training, it is removed."""
    if checkpoint is None:
        return None
    state = checkpoint.with_name(f"{checkpoint.name}.tracking")
    others = [path for path in checkpoint.parent.glob(f"{checkpoint.name}*") if path != state]
    if not resume or not others:
        state.unlink(missing_ok=True)
    return state


def _records(history: History) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the epochs of a history, from 1, with their records."""
    lists = {name: values for name, values in vars(history).items() if isinstance(values, list)}
    for epoch in range(len(history)):
        yield epoch + 1, {name: values[epoch] for name, values in lists.items() if epoch < len(values)}
