"""Training on Parquet files that are larger than the memory in use: peak memory and rows per second.

    python -m benchmarks.out_of_core [--rows 20000000] [--files 20] [--method Deterministic]
        [--batch-size 1024] [--folder FOLDER]

Generates a table of 20 columns (14 numbers, 2 integers, 2 of text, a date, the target), unless the folder has it, and trains on it
with `fit_files` in one pass. Writes results/out_of_core.json: the peak of the process's memory, and rows per second of processor
time.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bayesify.data import ParquetTable
from bayesify.estimators import BayesianRegressor
from benchmarks.measure import machine, parser, write

__all__ = ["generate", "main"]

_NUMBERS, _CHUNK = 14, 250_000  # columns of floats; rows of a row group


def frame(rows: int, seed: int) -> pd.DataFrame:
    """Rows whose target depends on half of the columns, with noise of standard deviation 0.5."""
    generator = np.random.default_rng(seed)
    numbers = generator.standard_normal((rows, _NUMBERS))
    table = pd.DataFrame({f"x{i}": numbers[:, i] for i in range(_NUMBERS)})
    table["count"] = generator.poisson(3, rows)
    table["code"] = generator.integers(0, 1000, rows)
    group = generator.integers(0, 5, rows)
    table["group"] = np.array(["a", "b", "c", "d", "e"], dtype=object)[group]
    table["shop"] = np.array([f"shop {i}" for i in range(200)], dtype=object)[generator.integers(0, 200, rows)]
    table["day"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(generator.integers(0, 1500, rows), "D")
    effect = np.sin(numbers[:, 0]) + numbers[:, 1] * numbers[:, 2] + 0.3 * table["count"].to_numpy() + 0.5 * group
    table["target"] = effect + 0.5 * generator.standard_normal(rows)
    table.loc[generator.random(rows) < 0.02, "x3"] = np.nan
    return table


def generate(folder: Path, rows: int, files: int) -> None:
    """Write the table to a folder, a row group at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    share = rows // files
    for number in range(files):
        path = folder / f"part{number:03d}.parquet"
        if path.exists():
            continue
        draft, writer = path.with_suffix(".draft"), None
        for start in range(0, share, _CHUNK):
            table = pa.Table.from_pandas(frame(min(_CHUNK, share - start), number * share + start), preserve_index=False)
            writer = writer or pq.ParquetWriter(draft, table.schema)
            writer.write_table(table)
        assert writer is not None
        writer.close()
        draft.rename(path)


def train(folder: Path, method: str, batch_size: int) -> dict[str, Any]:
    """Train in one pass; return sizes, seconds of processor time, the peak of memory and the error on held-out rows."""
    imported = _peak()
    started = time.process_time()
    table = ParquetTable(folder, "target", test_fraction=0.01)
    test = table.sample.test
    first = time.process_time()
    epochs: list[float] = []

    def log(record: dict[str, float]) -> None:
        epochs.append(time.process_time())
        print(f"part {len(epochs)}: validation NLL {record['validation_nll']:.4f}, peak {_peak():.0f} MB", flush=True)

    shared: dict[str, Any] = {"epochs": 1, "validation_fraction": 0.01, "random_state": 0, "progress": False}
    model = BayesianRegressor(method=method, batch_size=batch_size, **shared)
    model.fit_files(table, loggers=[log] if method != "DeepEnsemble" else ())
    finished = time.process_time()
    residuals = model.predict(test.X) - test.y.to_numpy()
    return {
        "rows": table.rows,
        "training rows": model.history_.n,
        "parts": len(model.history_),
        "seconds of the first pass": round(first - started, 1),
        "seconds of the second pass and of training": round(finished - first, 1),
        "seconds of the last part": round(epochs[-1] - epochs[-2], 1) if len(epochs) > 1 else 0.0,
        "rows per second": round(table.rows / (finished - started)),
        "peak MB": round(_peak()),
        "MB after imports": round(imported),
        "RMSE": round(float(np.sqrt(np.mean(residuals**2))), 4),
    }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rows", type=int, default=20_000_000)
    options.add_argument("--files", type=int, default=20)
    options.add_argument("--method", default="Deterministic")
    options.add_argument("--batch-size", type=int, default=1024)
    options.add_argument("--folder", type=Path, default=Path("out-of-core"))
    arguments = options.parse_args()
    folder = arguments.folder / f"{arguments.rows}"
    generate(folder, arguments.rows, arguments.files)
    size = sum(path.stat().st_size for path in folder.glob("*.parquet"))
    results: dict[str, object] = {"method": arguments.method, "GB of files": round(size / 1e9, 2)}
    results |= train(folder, arguments.method, arguments.batch_size)
    for name, value in results.items():
        print(f"{name}: {value}")
    if not arguments.dry:
        write("out_of_core", {"machine": machine(), "results": results})


if __name__ == "__main__":
    main()
