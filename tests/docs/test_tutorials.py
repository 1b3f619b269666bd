"""The tutorials run as they are, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    "concepts.md",
    "conformal.md",
    "graph-networks.md",
    "out-of-distribution.md",
    "reading-a-report.md",
    "sequences.md",
    "serving.md",
    "start.md",
    "tracking.md",
]
LONG = [  # many steps, or a cluster
    "active-learning.md",
    "bayesian-optimization.md",
    "calibration.md",
    "clusters.md",
    "image-classifier.md",
    "large-data.md",
    "pretrained-transformers.md",
]


@pytest.mark.extended
@pytest.mark.parametrize("page", [*PAGES, *(pytest.param(page, marks=pytest.mark.slow) for page in LONG)])
def test_python_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert blocks
    if page == "serving.md":
        pytest.importorskip("fastapi")
        pytest.importorskip("httpx")
    if page == "tracking.md":
        pytest.importorskip("mlflow")
    if page == "clusters.md":
        pytest.importorskip("ray")
    (tmp_path / "tutorial.py").write_text("\n".join(blocks))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(DOCS.parent / "examples"), os.environ.get("PYTHONPATH", "")]))
    run = subprocess.run([sys.executable, "tutorial.py"], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert "BayesifyWarning" not in run.stderr
