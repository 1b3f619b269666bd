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
    texts, environments = list[str](), dict[str, list[str]]()
    for name, part in read("gpu")["parts"].items():
        gpu = part["machine"].get("gpu", part["device"])
        where = f"{gpu}, a copy moves {part['bandwidth']:g} GB/s. {_environment(part)}"
        environments.setdefault(where, []).append(f"`{name}`")
        failures = " ".join(f"{label}: {reason}." for label, reason in part["errors"].items())
        texts += filter(None, [f"`{name}`", _gpu_table(part["results"]) if part["results"] else "", failures])
    return "\n\n".join([*texts, *(f"{', '.join(names)}: {where}" for where, names in environments.items())])


def _gpu_table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    if len({tuple(timed) for timed in rows.values()}) == 1:
        return _ratios(rows)
    lines = [
        [label, _code(kind), f"{row['milliseconds']:.3f}", f"{row['ratio']:.2f}"]
        for label, timed in rows.items()
        for kind, row in timed.items()
    ]
    return _table(["", "", "ms", "of the first"], lines)


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
    names = dict.fromkeys(name for rows in columns.values() for name in rows)
    rows = [[name, *(_time_and_memory(rows.get(name)) for rows in columns.values())] for name in names]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items() if version)
    return f"{_table(['', *columns], rows)}\n\n{results['samples']} draws to predict. {versions}. {_environment(results)}"


def _time_and_memory(row: Mapping[str, Any] | None) -> str:
    return "" if row is None else f"{row['ratio']:.2f} ({row['extra_megabytes']:+d} MB)"


_HAND = "WHVI, native, by hand"


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
        compared = [*((name, "copy") for name in names), ("kernel into", "copy into")]
        copies = [
            f"{transform[name]['milliseconds'] / transform[copy]['milliseconds']:.1f}" if name in transform else ""
            for name, copy in compared
        ]
        layers = [name for name in (*(n.replace("fwht", "WHVI") for n in names), _HAND, FOUR) if layer is None or name in layer]
        of_layer = [f"{layer[name]['ratio']:.2f}" if layer else "" for name in layers]
        network = parts.get(f"network {size}", {})
        of_network = [f"{network[name]['ratio']:.2f}" if name in network else "" for name in ("WHVI", "WHVI, native")[: len(names)]]
        rows.append([size, *dense, *copies, *of_layer, *of_network])
    forms = ["", ", native"][: (len(rows[0]) - 3) // 4]
    head = ["D", *(f"`fwht`{form} / {other}" for other in ("dense product", "copy") for form in forms), "kernel / copy, in place"]
    own = [*(f"WHVI layer{form}" for form in (*forms, *([", native, by hand"] if len(forms) > 1 else []))), "the paper's form"]
    head += [f"{name} / `nn.Linear`" for name in own] + [f"network of eight WHVI layers{form} / plain" for form in forms]
    return f"{_table(head, rows)}\n\n{results['settings']['batch']} rows. {_environment(results)}"


def _draws() -> str:
    results = read("draws")
    kinds: dict[str, dict[str, Any]] = {}
    for name, timings in results["results"].items():
        kind, size = name.split()
        kinds.setdefault(size, {})[kind] = timings
    rows = [
        [f"{int(size):,}", f"{of['normal']['PyTorch']['milliseconds_per_call']:.3f}",
         *(f"{timings['native']['ratio']:.2f}" for timings in of.values())]
        for size, of in kinds.items()
    ]  # fmt: skip
    return f"{_table(['draws', 'PyTorch, normal (ms)', *next(iter(kinds.values()))], rows)}\n\n{_environment(results)}"


def _native_steps() -> str:
    results = read("native_steps")
    nets = results["nets"]
    first, *others = next(iter(nets.values()))
    names = [name for name in others if not name.endswith(", native")]
    rows = [[f"{first}, ms", *(f"{net[first]['milliseconds']:.2f}" for net in nets.values() for _ in range(2))]]
    rows += [[_code(n), *(f"{net[f]['ratio']:.2f}" for net in nets.values() for f in (n, f"{n}, native"))] for n in names]
    return f"{_table(['', *(column for net in nets for column in (net, 'native'))], rows)}\n\n{_environment(results)}"


def _by_hand() -> str:
    results = read("by_hand")
    nets = results["nets"]
    names = [name for name in next(iter(nets.values())) if name != "plain" and not name.endswith(", by hand")]
    rows = [[_code(n), *(f"{net[f]['ratio']:.2f}" for net in nets.values() for f in (n, f"{n}, by hand"))] for n in names]
    return f"{_table(['', *(column for net in nets for column in (net, 'by hand'))], rows)}\n\n{_environment(results)}"


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


def _processes() -> str:
    results, measured = read("growth")["compared"], read("processes")
    numbers = list(next(iter(results["steps"].values())))
    head = ["predicted / measured, ms", *(f"{n} process{'es' * (n != '1')}" for n in numbers)]
    steps = [[_code(name), *(f"{row[n][0]:.1f} / {row[n][1]:.1f}" for n in numbers)] for name, row in results["steps"].items()]
    sent = [[_code(name), *(f"{size:,}" for size in row)] for name, row in results["sent"].items()]
    exchanges = [[name, *(f"{value:.2f}" for value in row)] for name, row in results["exchanges"].items()]
    tables = [
        _table(head, steps),
        _table(["bytes of gradients per step and process", "predicted", "measured"], sent),
        _table(["all-reduce between 4 processes, ms", "predicted", "measured"], exchanges),
    ]
    machine = {"machine": {**measured["machine"], "threads": 1}}  # of every process
    facts = f"{measured['batch']} rows per step over all processes, {measured['cores']} cores. {_environment(machine)}"
    return "\n\n".join([*tables, facts])


def _devices() -> str:
    results = read("growth")
    tables = []
    for name, methods in results["predicted"].items():
        devices = list(next(iter(methods.values())))
        rows = [
            [_code(method), *(f"{row['milliseconds']:g} ({row['exchange, %']}, {row['weights, %']})" for row in growth.values())]
            for method, growth in methods.items()
        ]
        tables.append(_table([name, *(f"{int(n):,}" for n in devices)], rows))
    explained = "milliseconds per step by number of devices, and in parentheses the percentages of exchange and weights"
    return "\n\n".join([*tables, f"**Predicted**, not measured: {explained}. On {results['on']}."])


def _scoring() -> str:
    scored, measured = read("growth")["scored"], read("processes")
    rows = [
        [f"{int(files):,}", *(f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in row.values())]
        for files, row in scored.items()
    ]
    facts = measured["scoring"]
    rates = f"{facts['rows_per_second']:,.0f} rows per second of a core, and {facts['start']:.1f} s for the start of a job"
    sizes = f"{facts['bytes_read']:.0f} bytes are read and {facts['bytes_written']:.0f} written per row"
    machine = {"machine": {**measured["machine"], "threads": 1}}
    table = _table(["files", *next(iter(scored.values()))], rows)
    return f"{table}\n\n**Predicted** from {rates}; {sizes}. {_environment(machine)}"


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
    "draws": _draws,
    "native steps": _native_steps,
    "by hand": _by_hand,
    "ceilings": _ceilings,
    "compared": _compared,
    "predicted": _predicted,
    "processes": _processes,
    "devices": _devices,
    "scoring": _scoring,
}


def main() -> None:
    PAGE.write_text(fill_tables(PAGE.read_text()))
    print(PAGE)


if __name__ == "__main__":
    main()
