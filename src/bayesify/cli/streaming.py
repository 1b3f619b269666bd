"""Predictions for many Parquet files, in bounded memory: one file of predictions per file, here or on a Ray cluster."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bayesify.checksums import sha256
from bayesify.cli.predictions import check_kept, prediction_table
from bayesify.cli.tables import TextOptions, open_model
from bayesify.cli.terminal import UsageError, say
from bayesify.errors import DataError, warn
from bayesify.estimators import BayesianEstimator
from bayesify.files import atomic_file, write_atomically
from bayesify.formatting import plural
from bayesify.jobs import RayCluster, run_jobs
from bayesify.progress import ProgressBar

if TYPE_CHECKING:
    from bayesify.jobs import Channel

__all__ = ["Request", "predict_files"]

_ROWS = 16_384  # in memory at a time
_RECORD = "predictions.json"


@dataclasses.dataclass(frozen=True)
class Request:
    """What to predict: a model directory, and the options of `bayesify predict`."""

    model: Path
    level: float
    samples: int | None
    keep: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        """Return what the predictions of a file depend on besides the file, ready for JSON."""
        config = sha256((self.model / "config.json").read_bytes())
        return {"model": config, "level": self.level, "samples": self.samples, "keep": list(self.keep)}


@dataclasses.dataclass(frozen=True)
class _Part:
    """A file, and where its predictions are written."""

    request: Request
    source: Path
    out: Path


@dataclasses.dataclass
class _Count:
    """Rows predicted, and those with a warning."""

    rows: int = 0
    unusual: int = 0


def predict_files(request: Request, files: Sequence[Path], out: Path, cluster: RayCluster | None = None) -> None:
    """Write the predictions of every file to a file of its name in the folder `out`.

    A file is written as a whole or not at all. The same command leaves out those that are finished.

    Args:
        request: model and options.
        files: Parquet files.
        out: a folder, which is created; its file `predictions.json` records the request.
        cluster: a Ray cluster whose machines share this file system, one job per file; None for this process.

    Raises:
        UsageError: `out` has other predictions, or a file cannot be predicted; the others are finished.
        ClusterError: the cluster cannot be reached, or is lost.
    """
    open_model(request.model, TextOptions())  # errors before any work
    request = dataclasses.replace(request, model=request.model.absolute())
    parts = [_Part(request, source.absolute(), path) for source, path in zip(files, _targets(files, out), strict=True)]
    if clash := {part.source.resolve() for part in parts} & {part.out.resolve() for part in parts}:
        raise UsageError(f"--out {out} would overwrite {min(clash)}; choose another folder")
    _prepare(out, request, parts)
    left = [part for part in parts if not part.out.exists() or part.out.stat().st_mtime < part.source.stat().st_mtime]
    if len(left) < len(parts):
        say(f"{plural(len(parts) - len(left), 'file')} of {len(parts)} in {out} are finished")
    with ProgressBar("predicting", None, total=len(left)) as bar:
        counts = _predict_here(left, bar.advance) if cluster is None else _predict_on(cluster, left, bar.advance)
    rows, unusual = sum(count.rows for count in counts), sum(count.unusual for count in counts)
    if unusual:
        warn(
            f"{unusual:,} of {rows:,} rows have values unlike those of training, see the column warning; beyond the range of "
            "training, uncertainty may be too small"
        )
    say(f"{plural(rows, 'row')} of {plural(len(left), 'file')}: {out}")


def _targets(files: Sequence[Path], out: Path) -> list[Path]:
    """Files of predictions: the paths of `files` below their common folder."""
    common = os.path.commonpath([str(path.absolute().parent) for path in files])
    return [out.absolute() / path.absolute().relative_to(common) for path in files]


def _prepare(out: Path, request: Request, parts: Sequence[_Part]) -> None:
    """Create the folder, or check that what it has belongs to the same request."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} must be a folder for the predictions of several files")
    record, facts = out / _RECORD, request.facts()
    if record.exists():
        try:
            before = json.loads(record.read_bytes())
        except (OSError, ValueError):
            before = None
        if before != facts:
            raise UsageError(f"{out} has predictions of another model or with other options; choose another --out, or delete it")
    elif existing := [part.out for part in parts if part.out.exists()]:
        raise UsageError(f"{existing[0]} exists and is not a prediction of this command; choose another --out")
    for folder in {out, *(part.out.parent for part in parts)}:
        folder.mkdir(parents=True, exist_ok=True)
    write_atomically(record, (json.dumps(facts, indent=1) + "\n").encode())


def _predict_here(parts: Sequence[_Part], advance: Callable[[float], object]) -> list[_Count]:
    counts = []
    for part in parts:
        try:
            counts.append(_predict(part))
        except (DataError, OSError, pa.ArrowException) as error:
            raise UsageError(f"{part.source}: {error}") from error
        advance(1)
    return counts


def _predict_on(cluster: RayCluster, parts: Sequence[_Part], advance: Callable[[float], object]) -> list[_Count]:
    counts, failures = [], []
    with closing(run_jobs(_job, parts, cluster)) as events:
        for event in events:
            if event is None or event.kind not in ("result", "error"):
                continue
            advance(1)
            if event.kind == "result":
                counts.append(event.value)
            else:
                failures.append(f"{parts[event.job].source}: {event.value[0]}")
    if failures:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        raise UsageError(f"{failures[0]}{more}; the other files are finished, and the same command continues")
    return counts


def _job(part: _Part, channel: Channel) -> _Count:
    return _predict(part)


def _predict(part: _Part) -> _Count:
    """Write the predictions of one file, batch by batch."""
    request, count, writer = part.request, _Count(), None
    estimator, tables = open_model(request.model, TextOptions())
    estimator.set_params(progress=False, **({} if request.samples is None else {"samples": request.samples}))
    with pq.ParquetFile(part.source) as source, atomic_file(part.out) as file:
        names = check_kept(source.schema_arrow.names, request.keep)
        for batch in source.iter_batches(batch_size=_ROWS):
            table = batch.to_pandas()
            features = tables.features(table).reset_index(drop=True)
            result = _predictions(estimator, features, request.level, count)
            for position, name in enumerate(names):
                result = result.add_column(position, batch.schema.field(name), batch.column(name))
            writer = writer or pq.ParquetWriter(file, result.schema)
            writer.write_table(result.cast(writer.schema))
        if writer is None:
            raise DataError("the file has no rows; remove it")
        writer.close()
    return count


def _predictions(estimator: BayesianEstimator, features: pd.DataFrame, level: float, count: _Count) -> pa.Table:
    """Predictions of a batch; the column `warning` is there in every batch, null where there is none."""
    table = prediction_table(estimator, features, estimator.predictive(features), features.index, level)
    warnings = estimator.unusual(features)
    count.rows, count.unusual = count.rows + len(table), count.unusual + int((warnings != "").sum())
    result = pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata()
    texts = pa.array([text or None for text in warnings], pa.string())
    return result.append_column("warning", texts)
