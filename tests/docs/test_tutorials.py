"""The tutorials run as they are, in an empty folder."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["concepts.md", "conformal.md", "large-data.md", "pretrained-transformers.md", "start.md"]
LONG = ["active-learning.md", "bayesian-optimization.md", "image-classifier.md"]  # of searches and of convolutions


@pytest.mark.parametrize("page", [*PAGES, *(pytest.param(page, marks=pytest.mark.slow) for page in LONG)])
def test_python_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert blocks
    (tmp_path / "tutorial.py").write_text("\n".join(blocks))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run = subprocess.run([sys.executable, "tutorial.py"], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert "BayesifyWarning" not in run.stderr
