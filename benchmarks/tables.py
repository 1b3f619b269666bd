"""Processor time and memory of the default estimator on tables, each size in a new process with one thread.

    python -m benchmarks.tables [--dry]

Synthetic regression on 20 numbers. `fit` includes what the first fit of a process loads; predictions are of 100,000 rows. Writes
results/tables.json.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time

from benchmarks.measure import parser, write

COLUMNS, PREDICTED = 20, 100_000
SIZES = (500, 10_000, 200_000)


def measure(rows: int) -> dict[str, float]:
    """Seconds of the processor, and the peak memory of the process in megabytes."""
    import numpy as np

    from bayesify.estimators import BayesianRegressor

    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, COLUMNS))
    y = np.sin(X[:, 0]) * X[:, 1] + 0.3 * rng.normal(size=rows)
    new = rng.normal(size=(PREDICTED, COLUMNS))
    start = time.process_time()
    model = BayesianRegressor(random_state=0, progress=False).fit(X, y)
    fitted = time.process_time()
    model.predict_interval(new)
    predicted = time.process_time()
    return {
        "fit_seconds": round(fitted - start, 2),
        "interval_seconds": round(predicted - fitted, 2),
        "peak_megabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rows", type=int, help="print the measurements of this size alone, as JSON")
    arguments = options.parse_args()
    if arguments.rows is not None:
        print(json.dumps(measure(arguments.rows)))
        return
    results = {}
    for rows in SIZES:
        command = [sys.executable, "-m", "benchmarks.tables", "--rows", str(rows)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        results[str(rows)] = json.loads(output)
        print(f"{rows:>8,} rows  {results[str(rows)]}", flush=True)
    if not arguments.dry:
        write("tables", {"settings": {"columns": COLUMNS, "predicted": PREDICTED}, "results": results})


if __name__ == "__main__":
    main()
