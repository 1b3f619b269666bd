"""The parts of `bayesify fit`: the estimator that the options describe, its directory, and training."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from bayesify.cli.settings import parse, split
from bayesify.cli.splits import Split
from bayesify.cli.terminal import UsageError, fail, interruptible, until_the_end
from bayesify.conformal import least_rows
from bayesify.core.method import Method
from bayesify.errors import CheckpointError, ConfigurationError, DivergenceError, warn
from bayesify.estimators import BayesianClassifier, BayesianEstimator, BayesianRegressor
from bayesify.estimators.conformal import calibration_rows
from bayesify.estimators.parameters import AUTO
from bayesify.jobs.where import cluster_of
from bayesify.persistence import CHECKPOINT, check_destination, locked
from bayesify.tracking import Run

__all__ = ["ESTIMATORS", "caution", "check_calibration", "checkpoints", "make_estimator", "prepare_directory", "train"]

_MANY_COPIES = 0.01  # of the test rows

ESTIMATORS: dict[str, type[BayesianEstimator]] = {"regression": BayesianRegressor, "classification": BayesianClassifier}


def make_estimator(
    task: str,
    method: str | None,
    settings: Sequence[str],
    seed: int,
    epochs: int | None,
    quiet: bool,
    time_limit: float | None = None,
    on: str = "local",
    conformal: bool = False,
) -> BayesianEstimator:
    """Build the estimator that the options describe; a time limit implies "auto" where no method is given.

    `conformal` is the option --conformal, of which `--set conformal=cross` says how.

    Raises:
        ConfigurationError: an unknown method or field, or a value that is not possible.
    """
    kind = ESTIMATORS[task]
    try:
        cluster_of(on)
    except ConfigurationError as error:
        raise UsageError(f"--on must be local, ray or ray://HOST:PORT, got {on!r}") from error
    if time_limit is not None and method is None:
        method = AUTO
    if method is not None and method.lower() != AUTO:
        Method.named(method)
    unset = kind(method=method)
    if time_limit is not None and not unset.is_stacked:
        raise UsageError(f"--time is for --method auto, got --method {method}; leave one of them out")
    default = unset.method_in_use()
    fields, params = split(parse(settings), type(default), kind)
    for name, value in (("epochs", epochs), ("time_limit", time_limit)):
        if value is not None:
            params[name] = value
    if conformal:
        params.setdefault("conformal", True)
    shared = {"random_state": seed, "on": on, "progress": False if quiet else None, **params}
    if unset.is_stacked:
        if fields:
            raise UsageError(f"--set {', '.join(fields)} is of a single method, and --method auto trains several; leave it out")
        return kind(method=AUTO, **shared)
    try:
        chosen = default.replace(**fields) if fields else default
    except TypeError as error:
        raise UsageError(f"--set {', '.join(fields)}: {error}") from error
    return kind(method=chosen, **shared)


def caution(split_rows: Split) -> None:
    """Warn about test rows that are copies of training rows, and about a training table with many columns for its rows."""
    tested, copies = len(split_rows.test_y), split_rows.copies
    if tested and copies >= _MANY_COPIES * tested:
        warn(
            f"{copies:,} of {tested:,} test rows are also training rows, target included: the results will be better than for new "
            "rows. Drop the duplicates, or keep copies together with --group COLUMN"
        )
    rows, columns = split_rows.features.shape
    if 2 * columns > rows:
        warn(
            f"{columns:,} columns for {rows:,} training rows: the network can fit their noise. Select columns first, such as by "
            "scikit-learn's SelectFromModel(LassoCV()), and compare with such a linear model"
        )


def check_calibration(estimator: BayesianEstimator, count: int, unit: str, *, random: bool) -> None:
    """Check what a conformal model needs: rows for level 95 %, and test rows that are not the latest of the table.

    Args:
        estimator: not fitted.
        count, unit: number of training rows ("row"), or of their groups ("group") with --group.
        random: whether the test rows are not the latest.

    Raises:
        UsageError: too few rows or groups.
    """
    if estimator.conformal and not random:
        warn("calibration rows are a random part of the training rows: the guarantee does not extend to later rows")
    if estimator.conformal and (given := calibration_rows(count, estimator.conformal)) < least_rows(0.95):
        cross = ", --set conformal=cross to calibrate with all of them," if given < least_rows(0.95) <= count else ""
        raise UsageError(
            f"--conformal needs at least {least_rows(0.95)} calibration {unit}s for level 95%, and {count:,} training {unit}s give "
            f"{given}; add {unit}s{cross} or leave it out"
        )


def prepare_directory(out: Path, overwrite: bool, restart: bool) -> Path:
    """Create the model directory, or check the existing one, and lock it for the rest of the command."""
    directory = check_destination(out)
    if (directory / "config.json").is_file() and not overwrite:
        raise UsageError(f"{out} already holds a model; add --overwrite to overwrite it, or choose another --out")
    until_the_end(locked(directory))
    until_the_end(_folder(directory))
    if restart:
        _discard(directory)
    return directory


@contextmanager
def _folder(directory: Path) -> Iterator[None]:
    """Create a folder; on exit, remove it if it was new and nothing was written to it."""
    is_new = not directory.exists()
    try:
        directory.mkdir(exist_ok=True)
        yield
    finally:
        if is_new:
            with suppress(OSError):  # it has files
                directory.rmdir()


def checkpoints(directory: Path) -> list[Path]:
    """Return the files of an interrupted run; an ensemble may have several."""
    return sorted(directory.glob(f"{CHECKPOINT}*"))


def _discard(place: Path) -> None:
    for path in checkpoints(place):
        path.unlink()


def train(
    estimator: BayesianEstimator,
    fit: Callable[[BayesianEstimator, Path, Sequence[Run]], object],
    place: Path,
    out: Path,
    runs: Sequence[Run] = (),
) -> None:
    """Fit with a checkpoint in the model directory, from which an interrupted run is resumed."""
    try:
        with interruptible():
            fit(estimator, place / CHECKPOINT, runs)
    except CheckpointError as error:
        raise UsageError(
            f"the interrupted run in {out} cannot be continued: {error.reason}. Use its settings and data, or add --restart to "
            "start afresh"
        ) from error
    except DivergenceError as error:
        _discard(place)  # it would diverge again, and no run with other settings could continue it
        event, rate = str(error).partition(". ")[0], estimator.in_use("learning_rate")
        raise UsageError(f"training diverged: {event}. Try a lower learning rate: --set learning_rate={rate / 10:g}") from error
    except KeyboardInterrupt:
        kept = f"; the same command goes on from the last epoch, kept in {out}" if checkpoints(place) else ""
        fail(f"interrupted{kept}", 130)
    finally:
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()
