"""Write the tables of docs/performance.md from results/*.json.

python -m benchmarks.page
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.breakdown import KINDS, OTHER
from benchmarks.measure import RESULTS, read

__all__ = ["PAGE", "fill_tables"]

FOUR = "four transforms"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"


def fill_tables(page: str) -> str:
    """Return the page with every table, between `<!-- name -->` and `<!-- end -->`, generated from the results."""

    def replace(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n{_TABLES[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- (?!end)([\w ]+) -->\n(?:.*?\n)??<!-- end -->", replace, page, flags=re.DOTALL)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _code(name: str) -> str:
    return f"`{name}`" if name.isidentifier() else name


def _environment(results: Mapping[str, Any]) -> str:
    machine = results["machine"]
    changed = " with changes" if machine["dirty"] else ""
    threads = f"{machine['threads']} thread{'s' * (machine['threads'] > 1)}"
    return f"{machine['cpu']}, {threads}, PyTorch {machine['torch']}, commit {machine['commit']}{changed}."


def _ratios(nets: Mapping[str, Mapping[str, Any]]) -> str:
    """Milliseconds of the first row, and ratios of the others to it."""
    first, *others = next(iter(nets.values()))
    rows = [[f"{first}, ms", *(f"{net[first]['milliseconds']:.2f}" for net in nets.values())]]
    rows += [[_code(name), *(f"{net[name]['ratio']:.2f}" if name in net else "" for net in nets.values())] for name in others]
    return _table(["", *nets], rows)


def _training_step() -> str:
    results = read("training_step")
    return f"{_ratios(results['nets'])}\n\n{_environment(results)}"


def _breakdown() -> str:
    results = read("breakdown")
    kinds = [*KINDS, OTHER, "operators"]  # the order of the results
    digits = [*(1 for _ in kinds[1:]), 0]
    rows = [
        [net, _code(method), *(f"{value:.{n}f}" for value, n in zip(row.values(), digits, strict=True))]
        for net, methods in results["nets"].items()
        for method, row in methods.items()
    ]
    return f"{_table(['', '', *kinds], rows)}\n\nMilliseconds per step. {_environment(results)}"


def _compiled() -> str:
    results = read("compiled")
    rows = [
        [
            _code(name),
            f"{row['eager']['milliseconds'] / results['settings']['repeats']:.2f}",
            f"{row['compiled']['ratio']:.2f}",
            f"{row['seconds_to_compile']:.0f}",
        ]
        for name, row in results["results"].items()
    ]
    table = _table(["", "eager (ms)", "compiled, of eager", "compiling (s)"], rows)
    return f"{table}\n\n{_environment(results)}"


def _compiled_small() -> str:
    results = read("compiled_small")
    kinds = ("eager", "compiled", "fit_many")
    rows = [
        [
            _code(name),
            *(f"{row[kind]['ratio']:.2f}" for kind in kinds),
            *(f"{row[kind]['ratio'] / row['plain, compiled']['ratio']:.2f}" for kind in kinds[1:]),
        ]
        for name, row in results["results"].items()
    ]
    head = [
        "",
        "eager",
        "compiled loss",
        "`fit_many`, compiled",
        "compiled loss / plain, compiled",
        "`fit_many`, compiled / plain, compiled",
    ]
    plain = [row["plain"]["milliseconds"] / results["settings"]["repeats"] for row in results["results"].values()]
    return f"{_table(head, rows)}\n\nThe plain step takes {min(plain):.2f} to {max(plain):.2f} ms. {_environment(results)}"


def _gpu() -> str:
    if not (RESULTS / "gpu.json").exists():
        return "Not measured yet: `python -m benchmarks.gpu` on a machine with a GPU writes this section."
    results = read("gpu")
    tables = []
    for part, rows in results["results"].items():
        lines = [
            [label, _code(name), f"{row['milliseconds']:.3f}", f"{row['ratio']:.2f}"]
            for label, timed in rows.items()
            for name, row in timed.items()
        ]
        tables.append(_table([part, "", "ms", "of the first"], lines))
    failures = [f"`{part}` failed: {error}." for part, error in results["errors"].items()]
    gpu = results["machine"].get("gpu", results["device"])
    where = f"{gpu}, a copy moves {results['bandwidth']:g} GB/s. {_environment(results)}"
    return "\n\n".join([*tables, *failures, where])


def _prediction() -> str:
    results = read("prediction")
    return f"{_ratios(results['nets'])}\n\n{results['samples']} draws. {_environment(results)}"


def _pretrained() -> str:
    results = read("pretrained")
    tables = (_ratios({net: timed}) for net, timed in results["nets"].items())
    return "\n\n".join([*tables, f"{results['samples']} draws. {_environment(results)}"])


def _peers() -> str:
    results = read("peers")
    columns = {f"{net}, {what}": rows for net, kinds in results["nets"].items() for what, rows in kinds.items()}
    rows = [
        [name, *(f"{rows[name]['ratio']:.2f} ({rows[name]['extra_megabytes']:+d} MB)" for rows in columns.values())]
        for name in next(iter(columns.values()))
    ]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items() if version)
    return f"{_table(['', *columns], rows)}\n\n{results['samples']} draws to predict. {versions}. {_environment(results)}"


def _hadamard() -> str:
    results = read("hadamard")
    parts = results["results"]
    rows = []
    for name, transform in parts.items():
        kind, size = name.split()
        if kind != "transform":
            continue
        layer = parts.get(f"layer {size}")
        names = [name for name in ("fwht", "fwht, native") if name in transform]
        dense = [f"{transform[name]['ratio']:.3f}" if "dense" in transform else "" for name in names]
        copies = [f"{transform[name]['milliseconds'] / transform['copy']['milliseconds']:.1f}" for name in names]
        of_layer = [f"{layer[name]['ratio']:.2f}" if layer else "" for name in (*(n.replace("fwht", "WHVI") for n in names), FOUR)]
        rows.append([size, *dense, *copies, *of_layer])
    forms = ["", ", native"][: (len(rows[0]) - 2) // 3]
    head = ["D", *(f"`fwht`{form} / {other}" for other in ("dense product", "copy") for form in forms)]
    head += [*(f"WHVI layer{form} / `nn.Linear`" for form in forms), "the paper's form / `nn.Linear`"]
    return f"{_table(head, rows)}\n\n{results['settings']['batch']} rows. {_environment(results)}"


def _ceilings() -> str:
    results = read("scaling")
    rows = [[name, f"{value:g}"] for name, value in results["ceilings"].items()]
    return f"{_table(['', 'measured'], rows)}\n\n{_environment(results)}"


def _compared() -> str:
    compared = read("cost_model")["compared"]
    methods = next(iter(compared.values()))
    rows = [[_code(m), *(f"{n[m][0]:.2f} / {n[m][1]:.2f}" for n in compared.values())] for m in methods]
    return _table(["predicted / measured", *compared], rows)


def _predicted() -> str:
    results = read("cost_model")
    predicted = results["predicted"]
    rows = [[name, *(f"{net[name]:g}" for net in predicted.values())] for name in next(iter(predicted.values()))]
    table = _table(["**predicted**, not measured", *predicted], rows)
    return f"{table}\n\nOn {results['on']}, at the fractions of its peak rates in `benchmarks/cost_model.py`."


def _tables() -> str:
    results = read("tables")
    names = {"fit_seconds": "fit, s", "interval_seconds": f"intervals of {results['settings']['predicted']:,} rows, s",
             "peak_megabytes": "peak memory, MB"}  # fmt: skip
    rows = [[f"{int(size):,}", *(f"{row[name]:g}" for name in names)] for size, row in results["results"].items()]
    one_thread = {"machine": {**results["machine"], "threads": 1}}  # as the measured processes have
    return f"{_table(['rows', *names.values()], rows)}\n\n{_environment(one_thread)}"


_TABLES: dict[str, Callable[[], str]] = {
    "training step": _training_step,
    "breakdown": _breakdown,
    "compiled": _compiled,
    "compiled small": _compiled_small,
    "gpu": _gpu,
    "prediction": _prediction,
    "pretrained": _pretrained,
    "peers": _peers,
    "tables": _tables,
    "hadamard": _hadamard,
    "ceilings": _ceilings,
    "compared": _compared,
    "predicted": _predicted,
}


def main() -> None:
    PAGE.write_text(fill_tables(PAGE.read_text()))
    print(PAGE)


if __name__ == "__main__":
    main()
