"""Runs of training in MLflow and TensorBoard, through Lightning's loggers.

A run is opened before any work, so that a server which does not answer is an error at once. Later, tracking never costs a result:
an error becomes one warning, what was to be logged is kept in memory, and is sent when the run ends, if that is possible then.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bayesify.environment import environment
from bayesify.errors import BayesifyError, ConfigurationError, MissingDependencyError, TrackingError, warn
from bayesify.files import write_atomically

if TYPE_CHECKING:
    from lightning.fabric.loggers.logger import Logger

__all__ = ["Run", "check_track", "open_run"]

Status = Literal["success", "failed", "interrupted"]
_FORM = "'mlflow', 'mlflow:URI', 'tensorboard' or 'tensorboard:FOLDER'"
_MLFLOW, _TENSORBOARD = "sqlite:///mlflow.db", "runs"  # MLflow's and TensorBoard's own defaults
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}  # MLflow's own would wait for minutes


class Run:
    """A run of a tracking server, or a folder of TensorBoard.

    Args:
        logger: MLflow's or TensorBoard's logger of Lightning, or any other of Fabric's.
        continued: whether the run has entries of an interrupted one: what it has is not logged again.
    """

    def __init__(self, logger: Logger, *, continued: bool = False) -> None:
        self.logger, self.continued = logger, continued
        self._kept: list[Callable[[], object]] = []  # since an error
        self._known: dict[str, set[tuple[int, float]]] = {}
        self._settings: dict[str, str] = {}  # not logged yet

    @property
    def client(self) -> Any:
        """The `MlflowClient` of an MLflow run; None for other loggers."""
        client = getattr(self.logger, "experiment", None)
        return client if hasattr(client, "log_artifact") else None

    @property
    def run_id(self) -> Any:
        """The id of an MLflow run, and the version of another logger."""
        return self.logger.version

    def open(self) -> None:
        """Create the run, or continue it; errors are those of the library."""
        if self.client is not None:
            if self.continued:
                self.client.update_run(self.run_id, status="RUNNING")
        else:
            _ = self.logger.version

    def configure(self, settings: Mapping[str, Any], facts: Mapping[str, object] | None = None) -> None:
        """Log settings, nested ones as "a/b", and the environment: `facts`, by default those of this process."""
        self._try(lambda: self._configure(_flat(settings), _flat({"environment": facts or environment()})))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers of a step, such as those of an epoch."""
        plain = {re.sub(r"[^\w/. -]", "", name): float(value) for name, value in values.items()}  # what MLflow takes
        self._try(lambda: self._log(plain, step))

    def add_file(self, path: Path) -> None:
        """Log a copy of a file as an artifact; TensorBoard gets it next to its events, Markdown also as text."""
        self._try(lambda: self._add_file(path))

    def flush(self) -> None:
        """Write what the logger keeps in memory."""
        self._try(self._write_settings)
        self._try(self.logger.save)

    def end(self, status: Status = "success") -> None:
        """End the run, after another attempt to log what could not be logged."""
        self._try(self._write_settings)
        self._try(lambda: self.logger.finalize("KILLED" if status == "interrupted" else status))
        with contextlib.suppress(Exception):  # of which a warning has told
            for action in self._kept:
                action()

    def _try(self, action: Callable[[], object]) -> None:
        if self._kept:
            self._kept.append(action)
            return
        try:
            action()
        except Exception as error:  # noqa: BLE001 - of a server, a network or a disk; of any type
            self._kept.append(action)
            warn(
                f"tracking has stopped: {_reason(error)}. Training goes on, and what is missing is logged at its end if "
                f"{type(self.logger).__name__} can be reached then"
            )

    def _configure(self, settings: dict[str, str], facts: dict[str, str]) -> None:
        if self.client is None:
            self._settings |= settings | facts
            return
        known = self.client.get_run(self.run_id).data.params  # MLflow refuses other values
        tags = facts | {f"resumed/{name}": value for name, value in settings.items() if known.get(name, value[:250]) != value[:250]}
        for name, value in tags.items():
            self.client.set_tag(self.run_id, name, value)
        self.logger.log_hyperparams({name: value for name, value in settings.items() if name not in known})

    def _write_settings(self) -> None:
        """Log the settings before the first numbers: TensorBoard shows those that are logged first."""
        settings, self._settings = self._settings, {}
        if settings:
            with contextlib.suppress(NotImplementedError):  # Fabric's CSVLogger has numbers alone
                self.logger.log_hyperparams(settings)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        self._write_settings()
        if self.continued and self.client is not None:
            values = {name: value for name, value in values.items() if (step, value) not in self._entries(name)}
        if values:
            self.logger.log_metrics(dict(values), step)

    def _entries(self, name: str) -> set[tuple[int, float]]:
        if name not in self._known:
            entries = self.client.get_metric_history(self.run_id, name)
            self._known[name] = {(entry.step, entry.value) for entry in entries}
        return self._known[name]

    def _add_file(self, path: Path) -> None:
        if self.client is not None:
            self.client.log_artifact(self.run_id, str(path))
        elif (folder := self.logger.log_dir) is not None:
            place = Path(folder, "artifacts")
            place.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place / path.name)
            if path.suffix == ".md":
                self.logger.experiment.add_text(path.name, path.read_text(encoding="utf-8"))  # pyright: ignore[reportAttributeAccessIssue]


def check_track(track: str) -> tuple[str, str]:
    """Return the kind of a value of `track`, and the address, with the defaults.

    Raises:
        ConfigurationError: neither "mlflow", "mlflow:URI", "tensorboard" nor "tensorboard:FOLDER".

    Example:
        >>> check_track("tensorboard"), check_track("mlflow:http://127.0.0.1:5000")
        (('tensorboard', 'runs'), ('mlflow', 'http://127.0.0.1:5000'))
    """
    kind, colon, address = track.partition(":") if isinstance(track, str) else ("", "", "")
    if kind not in ("mlflow", "tensorboard") or (colon and not address):
        raise ConfigurationError(f"a run is tracked in {_FORM}, got {track!r}")
    default = _TENSORBOARD if kind == "tensorboard" else os.environ.get("MLFLOW_TRACKING_URI") or _MLFLOW
    return kind, address or default


def open_run(track: str, *, name: str | None = None, group: str = "bayesify", state: Path | None = None) -> Run:
    """Open a run, or continue the one of `state`.

    Args:
        track: "mlflow", "mlflow:URI", "tensorboard" or "tensorboard:FOLDER"; without an address $MLFLOW_TRACKING_URI or the
            database mlflow.db, and the folder `runs`.
        name: of the run; None for one that MLflow invents.
        group: the experiment in MLflow. TensorBoard's folders are group/name/version.
        state: a file that says which run it is. It is written if it does not exist; otherwise its run is continued.

    Raises:
        ConfigurationError: another `track`.
        MissingDependencyError: MLflow or TensorBoard is not installed.
        TrackingError: the server does not answer, or the folder or database cannot be written.
        OSError: `state` cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = open_run(f"tensorboard:{folder}", name="first")
        ...     run.configure({"method": {"prior_std": 1.0}})
        ...     run.log({"loss": 0.5}, step=1)
        ...     run.end()
        ...     len(list(Path(folder).rglob("events*"))) > 0
        True
    """
    kind, address = check_track(track)
    known = _read(state).get(f"{kind}:{address}")
    try:
        run = Run(_logger(kind, address, name, group, known), continued=known is not None)
        run.open()
    except ModuleNotFoundError as error:
        package = {"mlflow": "MLflow", "tensorboard": "TensorBoard"}[kind]
        raise MissingDependencyError(f"tracking in {track!r}", package, extra="tracking") from error
    except Exception as error:
        raise TrackingError(f"tracking in {track!r} is not possible: {_reason(error)}") from error
    if state is not None and known is None:
        state.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(state, json.dumps({**_read(state), f"{kind}:{address}": run.run_id}).encode())
    return run


def _logger(kind: str, address: str, name: str | None, group: str, known: Any) -> Logger:
    if kind == "tensorboard":
        from lightning.fabric.loggers.tensorboard import TensorBoardLogger

        # Events of an interrupted run that were in memory are lost: all are logged again, and older ones dropped by readers.
        purge: dict[str, Any] = {} if known is None else {"purge_step": 0}
        return TensorBoardLogger(address, name="/".join(filter(None, (group, name))), version=known, **purge)
    from lightning.pytorch.loggers import MLFlowLogger

    for variable, value in _PATIENCE.items():
        os.environ.setdefault(variable, value)
    return MLFlowLogger(group, run_name=name, tracking_uri=address, run_id=known)


def _read(state: Path | None) -> dict[str, Any]:
    if state is None or not state.exists():
        return {}
    try:
        content = json.loads(state.read_bytes())
    except (OSError, ValueError) as error:
        raise TrackingError(f"{state}, which names the tracked run, is damaged: delete it to start another run") from error
    return content if isinstance(content, dict) else {}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings as text; nested ones as "a/b"."""
    items: Iterator[tuple[str, Any]] = ((f"{prefix}{name}", value) for name, value in settings.items())
    flat: dict[str, str] = {}
    for name, value in items:
        flat |= _flat(value, f"{name}/") if isinstance(value, Mapping) else {name: str(value)}
    return flat


def _reason(error: Exception) -> str:
    """The first sentence of an error, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return (text if isinstance(error, BayesifyError) or len(text) <= 200 else f"{text[:197]}...").rstrip(".")
