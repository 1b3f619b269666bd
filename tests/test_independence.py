"""The data of a test do not depend on the tests that ran before it."""

import ast
from pathlib import Path

import pytest
import torch

FILES = sorted(Path(__file__).parent.rglob("*.py"))
GENERATORS = {"default_rng", "RandomState", "Random", "Generator", "manual_seed"}


def shared_generators(source: str) -> list[str]:
    """The functions that draw from a generator of their module or class."""
    module = ast.parse(source)
    bodies = [module.body, *(part.body for part in module.body if isinstance(part, ast.ClassDef))]
    made = [line for body in bodies for line in body if isinstance(line, ast.Assign) and isinstance(line.value, ast.Call)]
    names = {
        target.id
        for line in made
        if getattr(line.value.func, "attr", getattr(line.value.func, "id", None)) in GENERATORS
        for target in line.targets
        if isinstance(target, ast.Name)
    }
    return [part.name for part in ast.walk(module) if isinstance(part, ast.FunctionDef) and _free_names(part) & names]


def _free_names(function: ast.FunctionDef) -> set[str]:
    names = [part for part in ast.walk(function) if isinstance(part, ast.Name)]
    own = {part.id for part in names if isinstance(part.ctx, ast.Store)} | {part.arg for part in function.args.args}
    return {part.id for part in names} - own


def test_no_test_draws_from_the_generator_of_its_module():
    found = {str(path): functions for path in FILES if (functions := shared_generators(path.read_text()))}
    assert not found, "use the fixture rng"


def test_such_tests_are_found():
    source = (
        "rng = np.random.default_rng(0)\nx = rng.normal()\ndef test_a():\n    rng.normal()\ndef test_b(rng):\n    rng.normal()\n"
    )
    assert shared_generators(source) == ["test_a"]


AT_IMPORT = torch.rand(1)


@pytest.fixture(scope="module")
def shared():
    return torch.rand(1)


def test_modules_and_shared_fixtures_begin_at_a_seed(shared):
    first = torch.rand(1, generator=torch.Generator().manual_seed(0))
    assert first == AT_IMPORT
    assert shared == first
