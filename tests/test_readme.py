"""The README: its Python blocks run, and its commands exist."""

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_python_blocks_run(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"readme_block_{number}"
    (tmp_path / f"{name}.py").write_text(BLOCKS[number])
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop(name, None)
    importlib.import_module(name)  # as a module, because pickling needs importable classes


def test_commands_exist() -> None:
    from bayesify.cli.app import app

    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert set(re.findall(r"^bayesify (\w+)", README.read_text(), re.MULTILINE)) <= commands


def test_the_page_on_the_package_index_has_no_relative_links_and_images() -> None:
    """The substitutions of pyproject.toml, as the build applies them."""
    settings = tomllib.loads((README.parent / "pyproject.toml").read_text())
    page = README.read_text()
    for each in settings["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        page = re.sub(each["pattern"], each["replacement"], page)
    outside = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)]+)\)", outside)
    assert len(targets) > 30
    assert all(target.startswith("https://") for target in targets)
    assert "![" not in outside
    assert "<!--" not in page
    assert "[Start]" not in page
    assert "Start has a method of 20 lines" in page


def test_length() -> None:
    lines = README.read_text().splitlines()
    assert len(lines) <= 130
    assert max(map(len, lines)) <= 132
