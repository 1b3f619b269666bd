"""The report of an image table: scores next to the paper's, ensembles, out-of-distribution images, choices and cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from experiments.harness.numbers import difference, estimate
from experiments.harness.protocol import ByJob, Job
from experiments.protocols.images.corruption_tables import write_corruptions
from experiments.protocols.images.results import METRICS, Metric, Published, Row, metrics_of, rows_of, table_of
from experiments.protocols.images.settings import Setup
from experiments.protocols.images.units import chosen

__all__ = ["write_tables"]

_HELD_OUT = ("nll", "error")  # also computed on validation images


def write_tables(jobs: Sequence[Job], results: ByJob, published: Published, near: Sequence[str] = ()) -> str:
    """All tables, as Markdown; with `near`, out-of-distribution sets are averaged as near and far ones."""
    rows = rows_of(jobs, results)
    nets = [row for row in rows if row.nets]
    intro = "Mean ± standard error over networks (seeds), with their number in brackets if some are missing. The best mean is bold."
    if published:
        intro += " The difference is ours minus the paper's; in brackets, in units of their combined standard error (s.e.)."
    text = [intro, *(f"Note: {note}." for note in dict.fromkeys(u["note"] for r in nets for u in r.nets if "note" in u))]
    if nets:
        text += [f"## {metric.title}\n\n{metric.note}\n\n{_compare(nets, metric, published)}" for metric in metrics_of(nets)]
    if any("ensemble" in name for row in rows for name in row.units):
        text.append(f"## Ensembles\n\nAverage of the probabilities of all networks.\n\n{_ensembles(rows)}")
    if any(unit["ood"] for row in nets for unit in row.nets):
        how = "Mean entropy of the predicted probabilities (nats), and the AUROC of the entropy against the test images."
        text.append(f"## Out-of-distribution images\n\n{how}\n\n{_out_of_distribution(nets)}")
    if detection := _detection(nets, near):
        how = (
            "By the entropy: areas under the ROC curve and under the precision-recall curves with test images (in) or the other "
            "images (out) as positives; false positive rate at a true positive rate of 95 %; minimum detection error."
        )
        text.append(f"## Out-of-distribution detection\n\n{how}\n\n{detection}")
    if complete := [row for row in nets if all("last_layer" in unit for unit in row.nets)]:
        how = "Of the mean weights: spectral norm, and stable rank (squared Frobenius norm over squared spectral norm)."
        text.append(f"## Last layer\n\n{how}\n\n{_last_layer(complete)}")
    if complete := [row for row in nets if all("corrupted" in unit for unit in row.nets)]:
        text.append(write_corruptions(complete))
    if complete := [row for row in nets if all("by_draws" in unit for unit in row.nets)]:
        text.append(f"## Number of draws\n\nThe same networks, on the first test images.\n\n{_draws(complete)}")
    if choices := _choices(rows):
        how = "Each candidate is trained once for the given epochs; the lowest validation NLL (nats per image) is chosen (bold)."
        text.append(f"## Chosen on validation images\n\n{how}\n\n{choices}")
    if nets:
        how = "with ratios to the first method of the same data set and network. Other jobs may have run on the same machine."
        text.append(f"## Cost and training\n\nSeconds per epoch, {how}\n\n{_cost(nets)}")
    return "\n\n".join(text)


def _count(row: Row) -> str:
    count, total = len(row.nets), sum(name.isdigit() for name in row.job.units)
    return f" ({count} of {total})" if count < total else ""


def _compare(rows: Sequence[Row], metric: Metric, published: Published) -> str:
    best = _best(rows, lambda row: row.of(metric.key).mean)
    lines = []
    for row in rows:
        ours, paper = row.of(metric.key), published.get(row.labels, {}).get(metric.key)
        text = f"{ours}{_count(row)}"
        held_out = [str(row.of(f"validation_{metric.key}"))] if metric.key in _HELD_OUT else []
        cells = [f"**{text}**" if row.labels in best else text, *held_out]
        if published:
            cells = ["-" if paper is None else str(paper), cells[0], "-" if paper is None else difference(ours, paper), *held_out]
        lines.append((row.labels, cells))
    header = ["paper", "ours", "difference"] if published else ["ours"]
    return table_of([*header, *(["validation"] if metric.key in _HELD_OUT else [])], lines)


def _best(rows: Sequence[Row], value: Callable[[Row], float]) -> set[tuple[str, str, str]]:
    """The row with the lowest value of every data set and network that has several."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault(row.labels[:2], []).append(row)
    return {min(group, key=value).labels for group in groups.values() if len(group) > 1}


def _ensembles(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        for unit in (unit for name, unit in row.units.items() if "members" in unit):
            ood = "; ".join(f"{name} {found['entropy']:.4g}, {found['auroc']:.4f}" for name, found in unit["ood"].items())
            numbers = [f"{unit[metric.key]:.4g}" for metric in METRICS if metric.key != "mce"]
            lines.append((row.labels, [str(unit["members"]), *numbers, f"{unit['entropy']:.4g}", ood or "-"]))
    return table_of(["nets", "NLL", "error (%)", "ECE", "entropy", "out of distribution: entropy, AUROC"], lines)


def _out_of_distribution(rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys(name for row in rows for unit in row.nets for name in unit["ood"]))
    lines = []
    for row in rows:
        cells = [str(row.of("entropy"))]
        for name in names:
            found = [unit["ood"][name] for unit in row.nets if name in unit["ood"]]
            cells += [str(estimate(f[key] for f in found)) if found else "-" for key in ("entropy", "auroc")]
        lines.append((row.labels, cells))
    return table_of(["test images", *(cell for name in names for cell in (f"{name}: entropy", "AUROC"))], lines)


def _detection(rows: Sequence[Row], near: Sequence[str]) -> str:
    keys = ("auroc", "aupr_in", "aupr_out", "fpr95", "detection_error")
    lines = []
    for row in rows:
        names = list(row.nets[0]["ood"])
        groups = {name: [name] for name in names}
        if near:
            groups = {"near": [name for name in names if name in near], "far": [n for n in names if n not in near]} | groups
        for label, group in groups.items():
            found = [[unit["ood"][name] for name in group] for unit in row.nets]
            if group and all("fpr95" in scores for scores in found[0]):
                means = [[statistics.fmean(scores[key] for scores in net) for net in found] for key in keys]
                lines.append((row.labels, [label, *(str(estimate(values)) for values in means)]))
    return table_of(["images", "AUROC", "AUPR in", "AUPR out", "FPR at 95 %", "detection error"], lines) if lines else ""


def _last_layer(rows: Sequence[Row]) -> str:
    keys = ("spectral_norm", "stable_rank")
    lines = [(row.labels, [str(estimate(unit["last_layer"][key] for unit in row.nets)) for key in keys]) for row in rows]
    return table_of(["spectral norm", "stable rank"], lines)


def _draws(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        for draws in sorted(row.nets[0]["by_draws"], key=int):
            cells = [str(estimate(unit["by_draws"][draws][key] for unit in row.nets)) for key in ("error", "nll", "ece")]
            lines.append((row.labels, [draws, *cells]))
    return table_of(["draws", "error (%)", "NLL", "ECE"], lines)


def _choices(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        trials = [unit for unit in row.units.values() if "fields" in unit]
        setup = Setup.from_dict(row.job.settings["setup"])
        complete = len(trials) == len(setup.candidates()) > 1
        best = chosen(setup, row.units) if complete else None
        for trial in trials:
            fields = ", ".join(
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in trial["fields"].items()
            )
            cells = (
                ["failed", "-"] if "failure" in trial else [f"{trial['validation_nll']:.4f}", f"{trial['validation_error']:.2f}"]
            )
            mark = "**" if trial is best else ""
            lines.append((row.labels, [f"{mark}{fields}{mark}", str(trial["epochs"]), *cells]))
    return table_of(["candidate", "epochs", "NLL", "error (%)"], lines) if lines else ""


def _cost(rows: Sequence[Row]) -> str:
    first: dict[tuple[str, str], float] = {}
    lines = []
    for row in rows:
        seconds = row.of("seconds_per_epoch").mean
        start = first.setdefault(row.labels[:2], seconds)
        ratio = f"{seconds / start:.2f}" if start > 0 else "-"
        loss, kl = row.of("train_loss"), row.of("kl")
        parameters = f"{row.nets[0]['parameters']:,}"
        lines.append((row.labels, [f"{seconds:.2f}", ratio, parameters, str(loss), str(kl) if not math.isnan(kl.mean) else "-"]))
    return table_of(["seconds", "ratio", "parameters", "training loss at the end", "KL at the end"], lines)
