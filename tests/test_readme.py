"""The README: its Python blocks run, and its commands exist."""

import importlib
import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_python_blocks_run(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"readme_block_{number}"
    (tmp_path / f"{name}.py").write_text(BLOCKS[number])
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module(name)  # as a module, because pickling needs importable classes


def test_commands_exist() -> None:
    from bayesify.cli.app import app

    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert set(re.findall(r"^bayesify (\w+)", README.read_text(), re.MULTILINE)) <= commands
