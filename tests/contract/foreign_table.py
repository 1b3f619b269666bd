"""Write docs/known-networks.md: what a few methods make of networks of other libraries. Run with these libraries installed."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

from foreign import Foreign
from foreign_checks import Found, check, collapsed_problems
from test_foreign import METHODS, NETWORKS

from bayesify import DeepEnsemble
from bayesify.core.method import Method

PAGE = Path(__file__).parents[2] / "docs" / "known-networks.md"
NAMED: dict[str, Foreign] = {f"{each.package}/{name}": each for name, each in NETWORKS}
DISTRIBUTIONS = {
    "chronos": "chronos-forecasting",
    "kan": "pykan",
    "neuralop": "neuraloperator",
    "open_clip": "open_clip_torch",
}
HEAD = """# Networks that are known to work

Any network can be tried; these were. Each is a small network of another library with random weights. It was compared with the plain
network: draws and their gradients, outputs without variance in eval and training mode, running statistics, the KL, predictions that
are replayed or made row by row, and what `unbayesify` restores. Where draws are not just other weights, they were compared with

- `EMP`: the components of the layers that it patches (here all normalization layers and the last layer);
- `BatchEnsemble`: a plain network per member, whose layers get scaled inputs and give scaled outputs, or scaled weights;
- `DeepEnsemble`: the networks of the members, with the gradients that each has alone;
- `SWAG`: the average of three snapshots;
- `Laplace` of the last layer: differences of the plain network in the direction of the draw, and its Jacobian;
- `VIFO`: the plain network, which its means equal.

A number means that all of this is **right**, up to rounding: it is the number of random layers. A dash means **refused**: an error
before any result, which says why. Either no layer can be random (of another type, frozen or tied), or the first batch has yet to
initialize the network (ActNorm), or

- `VIFO`: the network does more with the outputs of its last layer than to reshape or average them;
- `Laplace`: laplace-torch takes one input tensor and one vector of outputs per example, and not every function.

{shared}

**Draws** share a *folded* pass, or take *separate* passes, with a warning that gives the reason. [How passes
work](how-passes-work.md)

What is not in the table is not known to fail. `summary(bnn)` lists the layers that became random and why others did not, and the
first pass with each kind of inputs verifies how the network may be run.

Made by `python tests/contract/foreign_table.py`, with
{versions}.

The same checks are tests: `pytest -m slow tests/contract/test_foreign.py`.
"""


def main() -> None:
    installed = {name: each for name, each in NAMED.items() if importlib.util.find_spec(each.package) is not None}
    with ProcessPoolExecutor(max_workers=2) as pool:
        rows = dict(zip(installed, pool.map(_row, installed), strict=True))
    PAGE.write_text(page(rows))


def page(rows: dict[str, tuple[str, list[str]]]) -> str:
    """The text of the page, from what `_row` returns for every network."""
    packages = groupby(rows, key=lambda name: NAMED[name].package)
    members = {package: list(names) for package, names in packages}
    versions = [f"{package} {version(DISTRIBUTIONS.get(package, package))}" for package in {"torch": None, **members}]
    columns, shared = _columns(rows)
    text = HEAD.format(versions=", ".join(versions), shared=" ".join(shared))
    for package, names in members.items():
        headings = " | ".join(f"`{_name(METHODS[i])}`" for i in columns)
        text += f"\n## {package}\n\n| network | draws | {headings} |\n|---|---|{'--:|' * len(columns)}\n"
        for name in names:
            draws, cells = rows[name]
            text += f"| {name.partition('/')[2]} | {draws} | {' | '.join(cells[i] for i in columns)} |\n"
    return text


def _columns(rows: dict[str, tuple[str, list[str]]]) -> tuple[list[int], list[str]]:
    """The methods with a column, and sentences about the others: they are equal to one of these, or right everywhere."""
    methods: dict[tuple[str, ...], list[str]] = {}
    columns, shared = list[int](), list[str]()
    for i, method in enumerate(METHODS):
        cells = tuple(cells[i] for _, cells in rows.values())
        if set(cells) == {"all"}:
            shared.append(f"`{_name(method)}` is right for all.")
            continue
        if cells not in methods:
            columns.append(i)
        methods.setdefault(cells, []).append(f"`{_name(method)}`")
    equal = [f"The column of {first} is also that of {', '.join(others)}." for first, *others in methods.values() if others]
    return columns, equal + shared


def _row(name: str) -> tuple[str, list[str]]:
    """How the draws of the first method are made, and a cell for each method."""
    foreign = NAMED[name]
    if problems := collapsed_problems(foreign):
        print(name, problems, flush=True)
    found = [check(foreign, method) for method in METHODS]
    for method, each in zip(METHODS, found, strict=True):
        print(f"{name}, {_name(method)}: {each.outcome} {each.problems or each.refused}", flush=True)
    draws = "wrong" if problems else "refused" if found[0].refused else "folded" if found[0].folded else "separate"
    return draws, [_cell(method, each) for method, each in zip(METHODS, found, strict=True)]


def _cell(method: Method, found: Found) -> str:
    if found.outcome != "right":
        return {"refused": "-"}.get(found.outcome, found.outcome)
    return "all" if isinstance(method, DeepEnsemble) else str(found.random)


def _name(method: Method) -> str:
    return type(method).__name__


if __name__ == "__main__":
    main()
