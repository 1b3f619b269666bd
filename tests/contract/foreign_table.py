"""Write docs/known-networks.md: what a few methods make of networks of other libraries. Run with these libraries installed."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

from foreign import Foreign
from foreign_checks import check, collapsed_problems
from foreign_libraries import LIBRARIES
from foreign_transformers import TRANSFORMERS
from test_foreign import METHODS

from bayesify.core.method import Method

PAGE = Path(__file__).parents[2] / "docs" / "known-networks.md"
NETWORKS: dict[str, Foreign] = {f"{each.package}/{name}": each for name, each in (*TRANSFORMERS.items(), *LIBRARIES.items())}
DISTRIBUTIONS = {"open_clip": "open_clip_torch"}
HEAD = """# Networks that are known to work

Any network can be tried; these were. Each is a small network of another library with random weights. It was compared with the plain
network: draws and their gradients, outputs without variance in eval and training mode, running statistics, the KL, predictions that
are replayed or made row by row, and what `unbayesify` restores.

- **right**: no difference up to rounding; with the number of random layers.
- **refused**: an error before any result. No layer can be random (of another type, frozen or tied), or, for `VIFO`, the network
  does more with its last layer than to reshape or average it.
- **draws**: S draws share a *folded* pass, or take *separate* passes, with a warning that gives the reason.
  [How passes work](how-passes-work.md)

What is not in the table is not known to fail. `summary(bnn)` lists the layers that became random and why others did not, and the
first pass with each kind of inputs verifies how the network may be run.

Made by `python tests/contract/foreign_table.py`, with
{versions}.

The same checks are tests: `pytest -m slow tests/contract/test_foreign.py`.
"""


def main() -> None:
    installed = {name: each for name, each in NETWORKS.items() if importlib.util.find_spec(each.package) is not None}
    with ProcessPoolExecutor(max_workers=2) as pool:
        rows = dict(zip(installed, pool.map(_row, installed), strict=True))
    packages = [*dict.fromkeys(each.package for each in installed.values())]
    versions = [f"{package} {version(DISTRIBUTIONS.get(package, package))}" for package in ("torch", *packages)]
    text = HEAD.format(versions=", ".join(versions))
    for package, members in groupby(installed.items(), key=lambda item: item[1].package):
        text += f"\n## {package}\n\n| network | draws | {' | '.join(f'`{_name(method)}`' for method in METHODS)} |\n"
        text += "|---|---|" + "---|" * len(METHODS) + "\n"
        text += "".join(f"| {name.partition('/')[2]} | {rows[name]} |\n" for name, _ in members)
    PAGE.write_text(text)


def _row(name: str) -> str:
    foreign = NETWORKS[name]
    if problems := collapsed_problems(foreign):
        print(name, problems, flush=True)
    found = [check(foreign, method) for method in METHODS]
    for method, each in zip(METHODS, found, strict=True):
        print(f"{name}, {_name(method)}: {each.outcome} {each.problems or each.refused}", flush=True)
    cells = [f"{each.outcome}, {each.random}" if each.outcome == "right" else each.outcome for each in found]
    folds = "refused" if found[0].refused else "folded" if found[0].folded else "separate"
    return " | ".join(["wrong" if problems else folds, *cells])


def _name(method: Method) -> str:
    return type(method).__name__


if __name__ == "__main__":
    main()
