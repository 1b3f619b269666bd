"""The page for authors of methods: its Python runs, and its excerpts are lines of the library."""

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "writing-a-method.md").read_text()
MARKED = re.compile(r"(?:<!-- excerpt: (\S+) -->\n)?```python\n(.*?)```", re.DOTALL)
EXCERPTS = [(source, code) for source, code in MARKED.findall(PAGE) if source]


@pytest.mark.extended
@pytest.mark.usefixtures("layers_of_examples")
def test_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [code for source, code in MARKED.findall(PAGE) if not source]
    assert blocks
    (tmp_path / "writing_a_method.py").write_text("\n".join(blocks))
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("writing_a_method", None)
    importlib.import_module("writing_a_method")  # as a module, because what cannot be imported cannot be pickled


@pytest.mark.parametrize(("source", "code"), EXCERPTS, ids=[source for source, _ in EXCERPTS])
def test_excerpts_are_lines_of_the_library_in_their_order(source: str, code: str) -> None:
    lines = iter((ROOT / "src" / "bayesify" / source).read_text().splitlines())
    for line in code.splitlines():
        if line.strip() not in ("", "..."):
            assert any(line == known for known in lines), f"{source} has no line {line!r} at this place"
