"""The README: its Python blocks run, and its commands exist."""

import importlib
import re
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)

CHECKING = next(number for number, block in enumerate(BLOCKS) if "check_method" in block)


@pytest.mark.parametrize("number", [number for number in range(len(BLOCKS)) if number != CHECKING])
def test_python_blocks_run(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(number, tmp_path, monkeypatch)


@pytest.mark.usefixtures("layers_of_examples")
def test_a_method_of_ones_own_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(CHECKING, tmp_path, monkeypatch)


def _run(number: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"readme_block_{number}"
    (folder / f"{name}.py").write_text(BLOCKS[number])
    monkeypatch.syspath_prepend(folder)
    sys.modules.pop(name, None)
    importlib.import_module(name)  # as a module, because pickling needs importable classes


def test_commands_exist() -> None:
    from bayesify.cli.app import app

    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert set(re.findall(r"^bayesify (\w+)", README.read_text(), re.MULTILINE)) <= commands
