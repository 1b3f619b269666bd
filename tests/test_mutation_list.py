"""The list of planted faults (`tools/mutation.py`) fits the source: a changed line must not drop a fault without notice."""

import ast
import tomllib
from pathlib import Path

import pytest
from tools.mutation import plant

ROOT = Path(__file__).parents[1]
FAULTS = tomllib.loads((ROOT / "tools" / "mutations.toml").read_text())["fault"]


def test_every_fault_can_be_planted() -> None:
    misfits: list[str] = []
    for fault in FAULTS:
        try:
            ast.parse(plant(fault, ROOT / "src"))
        except (SystemExit, SyntaxError) as error:
            misfits.append(f"{fault['name']}: {error}")
    assert not misfits


def test_every_fault_has_a_name_of_its_own_and_tests_that_exist() -> None:
    names = [fault["name"] for fault in FAULTS]
    assert len(set(names)) == len(names)
    paths = {argument.split("::")[0] for fault in FAULTS for argument in fault["tests"] if argument.startswith(("tests/", "src/"))}
    assert not [path for path in sorted(paths) if not (ROOT / path).exists()]


def test_a_fault_whose_line_has_changed_is_refused() -> None:
    fault = {"name": "a fault", "file": FAULTS[0]["file"], "old": "no such line", "new": "", "tests": []}
    with pytest.raises(SystemExit, match=r"a fault: .* 0 times, not once; update the list of faults"):
        plant(fault, ROOT / "src")
