"""A table with a column of every kind."""

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def mixed():
    return pd.DataFrame(
        {
            "size": [1.0, 2.0, np.nan, 4.0, 5.0, 6.0],
            "rooms": [1, 2, 3, 4, 5, 6],
            "city": ["Bonn", "Ulm", "Bonn", None, "Ulm", "Köln"],
            "garden": [True, False, True, True, False, False],
            "sold": pd.to_datetime(["2020-01-01", "2020-01-02", "2020-02-01", "2021-01-01", None, "2020-01-01"]),
            "same": [3] * 6,
        }
    )
