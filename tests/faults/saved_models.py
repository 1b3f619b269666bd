"""A small table, an estimator, and edits of its model directory with valid checksums."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
X = pd.DataFrame({"size": rng.normal(100, 10, 60), "city": rng.choice(["Bonn", "Ulm"], 60), "garden": rng.random(60) < 0.5})
y = X["size"].to_numpy() + rng.normal(size=60)
FAST: dict[str, Any] = {"method": "MeanField", "epochs": 2, "samples": 5, "hidden": (4,), "random_state": 0}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def contents(directory: Path) -> dict[str, bytes]:
    """All files below a directory."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def with_checksums(files: dict[str, bytes]) -> dict[str, bytes]:
    """Files of a model directory whose configuration has the right checksums, if it can be read at all."""
    try:
        config = json.loads(files["config.json"])
        config["files"] = {name: sha256(files[name]) for name in config["files"]}
        rest = {name: value for name, value in config.items() if name != "checksum"}
        config["checksum"] = sha256(json.dumps(rest, sort_keys=True).encode())
        return files | {"config.json": json.dumps(config).encode()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return files
