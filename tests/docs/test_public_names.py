"""Every public name has a page: checked against what modules define and what the documents import, not against `__all__`."""

import ast
import importlib
import pkgutil
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "generator"))

import bayesify

pytest.importorskip("method_pages", reason="needs bayesify[cli]", exc_type=ImportError)
from reference_pages import PAGES, entries

DOCUMENTED = {entry.path for names in entries().values() for entry in names}
MODULES = sorted({module for page in PAGES.values() for module in page.modules} - {"core"})
OF_THE_LIBRARY = {
    "errors": {"warn"},
    "integrations.pretrained": {"CONFIG", "STATE"},
    "objectives": {"lower_bound"},
    "prediction": {"batches_of", "draws_per_call", "fast_pooling", "leaves_of", "warn_of_lost_rows"},
    "testing": {"require"},
}
"""Names without an underscore that other modules of the library use, and users do not."""


def defined(module: str) -> Iterator[str]:
    """Names without an underscore that a module or package of the library defines, in any of its files, and that it holds."""
    path = f"bayesify.{module}"
    for name, value in vars(importlib.import_module(path)).items():
        home = str(getattr(value, "__module__", path))
        public = not name.startswith("_") and name != "TYPE_CHECKING" and not isinstance(value, types.ModuleType)
        if public and (home == path or home.startswith(f"{path}.")):
            yield name


def has_page(module: str, name: str) -> bool:
    return bool({f"bayesify.{module}.{name}", f"bayesify.{name}"} & DOCUMENTED)


@pytest.mark.parametrize("module", MODULES)
def test_every_name_of_a_public_module_has_a_page(module: str) -> None:
    for extra in re.findall(r"integrations\.(\w+)", module):
        pytest.importorskip("lightning" if extra == "lightning" else "transformers")
    missing = {name for name in defined(module) if not has_page(module, name)}
    assert missing == OF_THE_LIBRARY.get(module, set()), "document the name, or begin it with an underscore"


def test_a_new_name_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    import bayesify.metrics

    def new_score() -> None: ...

    new_score.__module__ = "bayesify.metrics.scores"
    monkeypatch.setattr(bayesify.metrics, "new_score", new_score, raising=False)
    assert [name for name in defined("metrics") if not has_page("metrics", name)] == ["new_score"]


def test_all_public_modules_are_considered() -> None:
    """Modules of the library without a page hold nothing that the package exports, except methods."""
    found = {module.name for module in pkgutil.iter_modules(bayesify.__path__) if not module.name.startswith("_")}
    homes = {
        str(getattr(getattr(bayesify, name), "__module__", "")).split(".")[1] for name in bayesify.__all__ if name != "functional"
    }
    assert homes & found <= {module.partition(".")[0] for module in MODULES} | {"core", "methods"}


def imports(code: str) -> Iterator[tuple[str, str]]:
    """Module and name of all imports from the library in a piece of code."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except SyntaxError:  # an excerpt
        return
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "bayesify":
            yield from ((str(node.module).removeprefix("bayesify").removeprefix("."), each.name) for each in node.names)


def test_what_the_documents_import_has_a_page() -> None:
    blocks = {
        f"{file.name}, block {number}": block
        for file in [ROOT / "README.md", *ROOT.glob("docs/*.md")]
        for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", file.read_text("utf-8"), re.DOTALL | re.MULTILINE), 1)
    }
    found = {(where, module, name) for where, block in blocks.items() for module, name in imports(block)}
    assert len({(module, name) for _, module, name in found}) > 40
    assert not sorted(where for where in found if not has_page(*where[1:]))
