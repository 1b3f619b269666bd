"""Writes the numbers of results/*.json into docs/performance.md, between its markers.

python -m benchmarks.page
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["PAGE", "filled"]

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
_RESULTS = Path(__file__).parent / "results"


def filled(page: str) -> str:
    """The page with every table made anew: what stands between `<!-- name -->` and `<!-- end -->`."""

    def replace(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n{_TABLES[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- (?!end)([\w ]+) -->\n(?:.*?\n)??<!-- end -->", replace, page, flags=re.DOTALL)


def _load(name: str) -> dict[str, Any]:
    return json.loads((_RESULTS / f"{name}.json").read_text())


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _code(name: str) -> str:
    return f"`{name}`" if name.isidentifier() else name


def _where(results: Mapping[str, Any]) -> str:
    machine = results["machine"]
    changed = " with changes" if machine["dirty"] else ""
    threads = f"{machine['threads']} thread{'s' * (machine['threads'] > 1)}"
    return f"{machine['cpu']}, {threads}, PyTorch {machine['torch']}, commit {machine['commit']}{changed}."


def _ratios(nets: Mapping[str, Mapping[str, Any]]) -> str:
    """Milliseconds of the first row, ratios to it of the others."""
    first, *others = next(iter(nets.values()))
    rows = [[f"{first}, ms", *(f"{net[first]['milliseconds']:.2f}" for net in nets.values())]]
    rows += [
        [f"`{name}`" if name.isidentifier() else name, *(f"{net[name]['ratio']:.2f}" for net in nets.values())] for name in others
    ]
    return _table(["", *nets], rows)


def _training_step() -> str:
    results = _load("training_step")
    return f"{_ratios(results['nets'])}\n\n{_where(results)}"


def _breakdown() -> str:
    results = _load("breakdown")
    kinds = list(next(iter(next(iter(results["nets"].values())).values())))
    rows = [
        [net, _code(method), *(f"{row[kind]:.0f}" if kind == "operators" else f"{row[kind]:.1f}" for kind in kinds)]
        for net, methods in results["nets"].items()
        for method, row in methods.items()
    ]
    return f"{_table(['', '', *kinds], rows)}\n\nMilliseconds per step. {_where(results)}"


def _prediction() -> str:
    results = _load("prediction")
    return f"{_ratios(results['nets'])}\n\n{results['samples']} draws. {_where(results)}"


def _peers() -> str:
    results = _load("peers")
    columns = {f"{net}, {what}": rows for net, kinds in results["nets"].items() for what, rows in kinds.items()}
    names = list(next(iter(columns.values())))
    rows = [
        [name, *(f"{rows[name]['ratio']:.2f} ({rows[name]['extra_megabytes']:+d} MB)" for rows in columns.values())]
        for name in names
    ]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items() if version)
    return f"{_table(['', *columns], rows)}\n\n{results['samples']} draws to predict. {versions}. {_where(results)}"


def _hadamard() -> str:
    results = _load("hadamard")
    parts = results["results"]
    rows = []
    for name, transform in parts.items():
        kind, size = name.split()
        if kind != "transform":
            continue
        layer = parts.get(f"layer {size}")
        dense = f"{transform['fwht']['ratio']:.3f}" if "dense" in transform else ""
        copies = transform["fwht"]["milliseconds"] / transform["copy"]["milliseconds"]
        of_layer = [f"{layer[name]['ratio']:.2f}" for name in ("WHVI", "four transforms")] if layer else ["", ""]
        rows.append([size, dense, f"{copies:.1f}", *of_layer])
    head = ["D", "`fwht` / dense product", "`fwht` / copy", "WHVI layer / `nn.Linear`", "the paper's form / `nn.Linear`"]
    return f"{_table(head, rows)}\n\n{results['settings']['batch']} rows. {_where(results)}"


def _ceilings() -> str:
    results = _load("scaling")
    rows = [[name, f"{value:g}"] for name, value in results["ceilings"].items()]
    return f"{_table(['', 'measured'], rows)}\n\n{_where(results)}"


def _compared() -> str:
    compared = _load("cost_model")["compared"]
    methods = next(iter(compared.values()))
    rows = [[_code(m), *(f"{n[m][0]:.2f} / {n[m][1]:.2f}" for n in compared.values())] for m in methods]
    return _table(["model / measured", *compared], rows)


def _predicted() -> str:
    results = _load("cost_model")
    predicted = results["predicted"]
    rows = [[name, *(f"{net[name]:g}" for net in predicted.values())] for name in next(iter(predicted.values()))]
    table = _table(["**predicted**, not measured", *predicted], rows)
    return f"{table}\n\nFor {results['on']}, at the shares of its peaks in the source."


_TABLES: dict[str, Callable[[], str]] = {
    "training step": _training_step,
    "breakdown": _breakdown,
    "prediction": _prediction,
    "peers": _peers,
    "hadamard": _hadamard,
    "ceilings": _ceilings,
    "compared": _compared,
    "predicted": _predicted,
}


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text()))
    print(PAGE)


if __name__ == "__main__":
    main()
