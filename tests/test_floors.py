"""The house: imports only go down, `import bayesify` needs torch alone, every public name is there and documented."""

import ast
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

import bayesify

SOURCE = Path(bayesify.__file__).parent
FLOORS = (
    (
        "functional",
        "native",
        "checksums",
        "errors",
        "environment",
        "files",
        "formatting",
        "jobs",
        "plain_numbers",
        "progress",
        "schema",
        "tracking",
    ),
    ("core",),
    (
        "methods",
        "likelihoods",
        "predictive",
        "objectives",
        "prediction",
        "metrics",
        "diagnostics",
        "testing",
        "conformal",
        "calibration",
        "stacking",
    ),
    ("data", "datasets", "train", "estimators", "persistence", "plots", "report", "integrations", "inspection"),
    ("cli", "_public"),
)
FLOOR = {part: floor for floor, parts in enumerate(FLOORS) for part in parts}
MODULES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))
OPTIONAL = (
    *("lightning", "torchmetrics", "sklearn", "skops", "safetensors", "pandas", "pyarrow"),
    *(
        "transformers",
        "peft",
        "accelerate",
        "matplotlib",
        "jinja2",
        "typer",
        "rich",
        "scipy",
        "mpmath",
        "numba",
        "llvmlite",
        "optuna",
        "pooch",
        "ray",
        "mlflow",
        "tensorboard",
        "pytest",
    ),
)


def _imports(path: Path, source: str, modules: Collection[str] = ()) -> list[str]:
    """Absolute names of all imported modules, wherever in the file; those for type checkers alone do not count.

    Of `modules`, `from package import module` imports the module and not the package.
    """
    tree = ast.parse(source)
    typing_only = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    skipped = {id(child) for node in typing_only for statement in node.body for child in ast.walk(statement)}
    package = ("bayesify", *path.parent.parts)
    names = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            members = [f"{module}.{alias.name}" for alias in node.names]
            names += [member if module == "bayesify" or member in modules else module for member in members]
    return names


def _violations(path: Path, source: str) -> list[str]:
    """Imports that go up, and imports between methods."""
    part = path.parts[0].removesuffix(".py")
    found = []
    for name in _imports(path, source):
        root, *rest = name.split(".")
        if root != "bayesify" or rest == ["__version__"]:
            continue
        if not rest or FLOOR.get(rest[0], 99) > FLOOR[part]:
            found.append(f"{path} imports {name}, which is above it")
        if part == "methods" and path.stem != "__init__" and rest[:1] == ["methods"] and not rest[-1].startswith("_"):
            found.append(f"{path} imports {name}: a method never imports another")
    return found


def test_every_module_has_a_floor():
    parts = {Path(module).parts[0].removesuffix(".py") for module in MODULES}
    assert parts - FLOOR.keys() - {"_version"} == {"__init__"}


@pytest.mark.parametrize("module", [m for m in MODULES if m not in ("__init__.py", "_version.py")])
def test_imports_only_go_down(module):
    assert not _violations(Path(module), (SOURCE / module).read_text())


def test_the_files_of_core_are_listed_in_the_order_of_their_imports():
    text = (
        (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text().partition("Files of `core`")[2].partition("\n\nIn `train`")[0]
    )
    listed = [name.removesuffix(".py").rstrip("/") for name in re.findall(r"^\| `(\S+)` \|", text, re.MULTILINE)]
    paths = {name: [Path(m) for m in MODULES if m == f"core/{name}.py" or m.startswith(f"core/{name}/")] for name in listed}
    assert sorted(listed) == sorted({Path(m).parts[1].removesuffix(".py") for m in MODULES if m.startswith("core/")} - {"__init__"})
    for place, name in enumerate(listed):
        imported = {
            module.split(".")[2]
            for path in paths[name]
            for module in _imports(path, (SOURCE / path).read_text())
            if _in_core(module)
        }
        assert imported <= {*listed[: place + 1]}, f"core/{name} imports what is listed below it"


def _in_core(module: str) -> bool:
    return module.startswith("bayesify.core.")


@pytest.mark.parametrize(
    ("path", "source", "violations"),
    [
        ("functional/kl.py", "from bayesify.core.checks import check_positive", 1),
        ("functional/kl.py", "def f():\n    import bayesify.cli", 1),
        ("core/model.py", "from bayesify import objectives, functional", 1),
        ("core/model.py", "import bayesify", 1),
        ("core/model.py", "from ..train import fit\nfrom .sites import Site\nfrom . import sites\nfrom .. import predict", 2),
        ("core/model.py", "if TYPE_CHECKING:\n    from bayesify.train import fit", 0),
        ("core/model.py", "from bayesify.core.sites import Site\nfrom bayesify.functional import kl", 0),
        ("methods/new.py", "from bayesify.methods.mean_field import MeanField", 1),
        ("methods/new.py", "from bayesify.methods._new_root import Root", 0),
        ("report/page.py", "from bayesify import __version__", 0),
        ("methods/__init__.py", "from bayesify.methods.mean_field import MeanField", 0),
        ("train/fitting.py", "from bayesify.prediction import predict\nfrom bayesify.nowhere import x", 1),
    ],
)
def test_the_import_check_finds_violations(path, source, violations):
    assert len(_violations(Path(path), source)) == violations


def _graph(sources: dict[str, str]) -> dict[str, list[str]]:
    """Which modules import which; `sources` are their texts by path."""
    named = {f"bayesify/{path}".removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in sources}
    return {name: sorted({*_imports(Path(path), sources[path], named)} & named.keys()) for name, path in named.items()}


def _circle(graph: dict[str, list[str]]) -> list[str]:
    """The modules of one import circle; none if nothing is left when modules that import none of the others are taken away."""
    left = {name: set(imports) for name, imports in graph.items()}
    while done := {name for name, imports in left.items() if not imports}:
        left = {name: imports - done for name, imports in left.items() if name not in done}
    path: list[str] = []
    name = min(left, default="")
    while name and name not in path:  # what is left imports something that is left
        path.append(name)
        name = min(left[name])
    return path[path.index(name) :] if path else []


def test_no_import_goes_in_a_circle():
    assert not _circle(_graph({module: (SOURCE / module).read_text() for module in MODULES if module != "__init__.py"}))


@pytest.mark.parametrize(
    ("sources", "circle"),
    [
        ({"a.py": "from bayesify.b import x", "b.py": "import bayesify.c", "c.py": "def f():\n    from bayesify import a"}, "abc"),
        ({"d.py": "from bayesify import a", "a.py": "from . import b", "b.py": "from .a import x"}, "ab"),
        ({"a/__init__.py": "from bayesify.a.b import x", "a/b.py": "from bayesify.a import y"}, ["a", "a.b"]),
        ({"a/__init__.py": "from bayesify.a.b import x", "a/b.py": "from bayesify.a import c", "a/c.py": ""}, []),
        ({"a.py": "import bayesify.a"}, "a"),
        ({"a/__init__.py": "", "a/b.py": "from .c import x", "a/c.py": "from . import b"}, ["a.b", "a.c"]),
        ({"a.py": "from bayesify.b import x", "b.py": "if TYPE_CHECKING:\n    from bayesify.a import y"}, []),
        ({"a.py": "from bayesify.b import x\nfrom bayesify.c import x", "b.py": "import bayesify.c", "c.py": "import torch"}, []),
    ],
)
def test_the_circle_check_finds_circles(sources, circle):
    assert _circle(_graph(sources)) == [f"bayesify.{name}" for name in circle]


_BLOCKER = """
import sys
class Blocker:
    blocked = {blocked!r}
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.blocked:
            raise ModuleNotFoundError("blocked: " + name, name=name)
sys.meta_path.insert(0, Blocker())
"""


def _run(code: str, blocked: tuple[str, ...] = OPTIONAL) -> subprocess.CompletedProcess:
    environment = {"PYTHONPATH": str(SOURCE.parent), "OMP_NUM_THREADS": "1", "PATH": ""}
    code = _BLOCKER.format(blocked=blocked) + code
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)


def test_submodules_are_not_hidden_by_functions():
    """`import bayesify.x` gives the module: no public function of a package has the name of one of its modules."""
    for module in MODULES:
        package = "bayesify." + module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        if module.endswith("/__init__.py") or module == "__init__.py":
            package = package.removesuffix(".__init__")
            submodules = {path.stem for path in (SOURCE / module).parent.glob("*.py")}
            hidden = submodules.intersection(getattr(importlib.import_module(package), "__all__", ())) - {"functional"}
            assert not hidden, f"{package} has functions and modules of the same names: {hidden}"


def test_bayesify_needs_torch_alone():
    result = _run(
        """
import torch
from bayesify import *
bnn = bayesify(torch.nn.Linear(2, 1), MeanField())
draws = bnn(torch.zeros(3, 2), samples=2)
(-elbo(draws, -draws.outputs.square().sum(-1), n=3)).backward()
print(summary(bnn))
""",
        blocked=(*OPTIONAL, "numpy"),
    )
    assert result.returncode == 0, result.stderr
    assert "1 of 1 layers are random" in result.stdout


@pytest.mark.extended
def test_every_package_works_with_torch_alone_or_names_its_extra():
    result = _run(
        """
import importlib, pkgutil, bayesify
from bayesify.errors import MissingDependencyError
for package in pkgutil.iter_modules(bayesify.__path__, "bayesify."):
    try:
        importlib.import_module(package.name)
    except MissingDependencyError as error:
        assert "pip install" in str(error)
""",
        blocked=(*OPTIONAL, "numpy"),
    )
    assert result.returncode == 0, result.stderr


def test_importing_bayesify_imports_nothing_else():
    """Only a public name needs torch; type checkers and `dir` see all of them."""
    result = _run(
        """
import bayesify, bayesify.errors, bayesify.files, pickle
assert "torch" not in sys.modules
assert not hasattr(bayesify, "no_such_name")
assert set(dir(bayesify)) > {"MeanField", "predict", "__version__"}
assert bayesify.Method.named("vsd") is bayesify.methods.VSD
assert pickle.loads(pickle.dumps(bayesify.fit)) is bayesify.fit
assert bayesify.metrics.__name__ == "bayesify.metrics"  # a submodule without public names here
"""
    )
    assert result.returncode == 0, result.stderr


def test_the_blocker_blocks():
    for code, blocked in (("import numpy.linalg", "numpy"), ("from bayesify import predict", "torch")):
        result = _run(code, blocked=(blocked,))
        assert result.returncode == 1
        assert f"ModuleNotFoundError: blocked: {blocked}" in result.stderr
    assert _run("import json", blocked=("numpy",)).returncode == 0


def test_public_names_exist_and_are_documented():
    assert len(set(bayesify.__all__)) == len(bayesify.__all__)
    undocumented = [name for name in bayesify.__all__ if not (getattr(bayesify, name).__doc__ or "").strip()]
    # a dataclass without a docstring gets its signature for one
    generated = [name for name in bayesify.__all__ if (getattr(bayesify, name).__doc__ or "").startswith(f"{name}(")]
    assert not undocumented + generated


@pytest.mark.parametrize("module", MODULES)
def test_errors_have_types(module):
    """Errors that users may catch are those of `bayesify.errors`, besides `TypeError` and errors of the operating system."""
    untyped = {"Exception", "RuntimeError", "ValueError", "ImportError", "FloatingPointError", "ArithmeticError"}
    raised = [node.exc for node in ast.walk(ast.parse((SOURCE / module).read_text())) if isinstance(node, ast.Raise)]
    names = [ast.unparse(error.func if isinstance(error, ast.Call) else error) for error in raised if error is not None]
    assert not untyped.intersection(names)


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_it_is(module):
    tree = ast.parse((SOURCE / module).read_text())
    assert ast.get_docstring(tree), f"{module} has no docstring"


def test_every_public_name_of_the_lower_floors_is_documented():
    missing = []
    for module in MODULES:
        name = "bayesify." + module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        if module.endswith(("_kernels.py", "native/vectors.py")) and importlib.util.find_spec("numba") is None:
            continue
        if module == "__init__.py" or FLOOR.get(name.split(".")[1], 99) > 1:
            continue
        loaded = importlib.import_module(name)
        for public in getattr(loaded, "__all__", ()):
            thing = getattr(loaded, public)
            if (inspect.isclass(thing) or inspect.isfunction(thing)) and not inspect.getdoc(thing):
                missing.append(f"{name}.{public}")
    assert not missing
