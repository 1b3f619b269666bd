"""A table with columns of all kinds, a regression target, and settings of a fast fit."""

from typing import Any

import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
X = pd.DataFrame(
    {
        "size": np.where(rng.random(60) < 0.1, np.nan, rng.normal(100, 10, 60)),
        "city": rng.choice(["Bonn", "Ulm", "Köln"], 60),
        "garden": rng.random(60) < 0.5,
        "sold": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 1000, 60), unit="D"),
        "same": 1,
    }
)
y = 1e6 + 100 * rng.normal(size=60)
FAST: dict[str, Any] = {"epochs": 2, "samples": 5, "hidden": (8,), "random_state": 0}
