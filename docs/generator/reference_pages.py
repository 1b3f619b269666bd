"""Pages of the API reference: every public name once, under its shortest import."""

import ast
import posixpath
from pathlib import Path
from typing import NamedTuple

from repository_files import ROOT

__all__ = ["PAGES", "Entry", "Page", "entries", "public_names", "reference_pages"]

SOURCE = ROOT / "src" / "bayesify"


class Page(NamedTuple):
    """A page of the reference.

    Attributes:
        title: heading.
        text: first paragraph.
        modules: whose public names it documents; of `core`, only what `bayesify` exports.
    """

    title: str
    text: str
    modules: tuple[str, ...]


class Entry(NamedTuple):
    """A documented name.

    Attributes:
        path: import path, as `bayesify.elbo`.
        page: address of the page that documents it.
    """

    path: str
    page: str


PAGES = {
    "networks": Page("Networks", "Converting a network, and the root module that runs it.", ("core",)),
    "likelihoods": Page("Likelihoods", "Distributions of the targets given the network's outputs.", ("likelihoods",)),
    "objectives": Page("Objectives", "The loss, and schedules for the weight of its KL.", ("objectives",)),
    "train": Page("Training", "Training loops and what they need.", ("train",)),
    "prediction": Page("Prediction", "From draws of a network to a predictive distribution.", ("prediction",)),
    "predictive": Page("Predictive distributions", "What `predict` returns, by likelihood.", ("predictive",)),
    "metrics": Page("Metrics", "Scores of predictive distributions.", ("metrics",)),
    "calibration": Page("Calibration", "Calibration of probabilities on held-out rows.", ("calibration",)),
    "conformal": Page("Conformal prediction", "Intervals and sets with guaranteed coverage.", ("conformal",)),
    "diagnostics": Page("Diagnostics", "What became random, and how strongly.", ("diagnostics",)),
    "estimators": Page("Estimators", "Estimators with scikit-learn's interface, for tables.", ("estimators",)),
    "inspection": Page("Inspection", "Which columns drive predictions and uncertainty.", ("inspection",)),
    "persistence": Page("Persistence", "Model directories that execute no code when they are loaded.", ("persistence",)),
    "data": Page("Tables", "Reading and encoding tables.", ("data",)),
    "datasets": Page("Data sets", "Benchmark data.", ("datasets",)),
    "plots": Page("Plots", "Figures with matplotlib.", ("plots",)),
    "report": Page("Reports", "HTML reports and their assessment in words.", ("report",)),
    "integrations": Page(
        "Integrations",
        "Hugging Face `transformers` and `peft`, and Lightning. The modules are imported from `bayesify.integrations`.",
        ("integrations.transformers", "integrations.pretrained", "integrations.lightning"),
    ),
    "testing": Page("Testing", "The checks that every method passes, for methods outside of the library, too.", ("testing",)),
    "functional": Page("Functional", "Tensor functions without state.", ("functional",)),
    "native": Page("Native operators", "Operators in machine code, an optional speedup on the CPU.", ("native",)),
    "jobs": Page("Clusters", "The argument `on`: training and prediction as jobs of a Ray cluster.", ("jobs",)),
    "tracking": Page("Tracking", "Runs of training in MLflow and TensorBoard.", ("tracking",)),
    "errors": Page("Errors", "All errors derive from `BayesifyError`, and from the built-in type that they refine.", ("errors",)),
}


def public_names(module: str) -> list[str]:
    """`__all__` of a module of the library, read without importing it.

    Args:
        module: its path below `bayesify`; "" for `bayesify` itself.
    """
    file, found = _file(module or "_public"), list[str]()
    for node in ast.parse(file.read_text("utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name("__all__")], value=names):
                found = ast.literal_eval(names)
            case ast.AugAssign(target=ast.Name("__all__"), value=ast.Attribute(value=ast.Name(part), attr="__all__")):
                found += public_names(part)
    if not found:
        raise LookupError(f"{file} does not assign __all__")
    return found


def entries() -> dict[str, list[Entry]]:
    """The entries of every page; a name that `bayesify` exports is listed with its short path."""
    top = _origins()
    found = {}
    for key, page in PAGES.items():
        address = f"api/{key}.md"
        paths = [f"bayesify.{name}" for name, module in top.items() if _belongs(module, page.modules) and name != "functional"]
        for module in page.modules:
            if module != "core":
                names = [name for name in public_names(module) if (module, name) != ("errors", "warn")]  # for the library itself
                paths += [f"bayesify.{module}.{name}" for name in names if name not in top]
        found[key] = [Entry(path, address) for path in sorted(set(paths), key=lambda path: path.rpartition(".")[2].lower())]
    found["methods"] = [Entry(f"bayesify.{name}", f"methods/{name}.md") for name in public_names("methods")]
    return found


def reference_pages() -> dict[str, str]:
    """Markdown of all pages, by address."""
    listed = entries()
    pages = {f"api/{key}.md": _page(PAGES[key], listed[key]) for key in PAGES}
    lines = [
        "# API reference\n",
        "All public names. Names that are not listed here may change without notice.\n",
    ]
    for key, names in listed.items():
        title = PAGES[key].title if key in PAGES else "Methods"
        lines.append(f"## [{title}]({posixpath.relpath('methods/index.md', 'api') if key == 'methods' else f'{key}.md'})\n")
        lines.append(", ".join(f"[`{entry.path}`][{entry.path}]" for entry in names) + "\n")
    return {"api/index.md": "\n".join(lines), **pages}


def _page(page: Page, names: list[Entry]) -> str:
    return f"# {page.title}\n\n{page.text}\n\n" + "\n\n".join(f"::: {entry.path}" for entry in names) + "\n"


def _belongs(module: str, modules: tuple[str, ...]) -> bool:
    return any(f"{module}.".startswith(f"{each}.") for each in modules)


def _origins() -> dict[str, str]:
    """The module below `bayesify` that every exported name comes from."""
    origins = {}
    for node in ast.parse(_file("_public").read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            module = (node.module or "").removeprefix("bayesify").removeprefix(".")
            names = public_names(module) if node.names[0].name == "*" else [each.name for each in node.names]
            origins |= dict.fromkeys(names, module)
    return {name: origins[name] for name in public_names("")}


def _file(module: str) -> Path:
    path = SOURCE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
