"""A page for every method of `Method.registry`, and their table."""

import functools
import importlib
import inspect
import json
import re
from pathlib import Path

from repository_files import ROOT, markdown_pages

from bayesify.cli.method_list import FAMILIES, first_sentence, table_settings
from bayesify.core.method import Method

__all__ = ["method_pages", "methods"]

_STEPS = json.loads((ROOT / "benchmarks" / "results" / "training_step.json").read_text("utf-8"))["nets"]
_NETS = {"LeNet5": "LeNet-5", "ResNet18": "ResNet-18"}


_ELSEWHERE = {
    "Tomczak, Swaroop & Turner 2020, NeurIPS": "https://papers.nips.cc/paper/2020/hash/310cc7ca5a76a446f85c1a0d641ba96d-Abstract.html",
    "Wan et al. 2013, ICML": "https://proceedings.mlr.press/v28/wan13.html",
    "Welling & Teh 2011": "https://www.stats.ox.ac.uk/~teh/research/compstats/WelTeh2011a.pdf",
}
"""Papers that are not on arXiv."""


def methods() -> dict[str, type[Method]]:
    """The library's methods by name."""
    exported = importlib.import_module("bayesify.methods").__all__
    return {name: kind for name, kind in sorted(Method.registry.items()) if name in exported}


@functools.cache
def method_pages() -> dict[str, str]:
    """Markdown of all pages, by address."""
    return {"methods/index.md": _overview(), **{f"methods/{name}.md": _page(name, kind) for name, kind in methods().items()}}


def _overview() -> str:
    lines = [
        "# Methods\n",
        "All methods by what is random. Times are those of a training step on a CPU, as ratios to the plain network's, or a dash",
        "where not measured. [Performance](../performance.md) says how they were measured, [which method",
        "when](../results.md#which-method-when) what the results recommend.\n",
    ]
    for family in sorted({kind.family for kind in methods().values()}, key=FAMILIES.index):
        head = ["method", "description", *_NETS.values(), "paper"]
        lines += [f"## {family}\n", f"| {' | '.join(head)} |", "|:---|:---|---:|---:|:---|"]
        for name, kind in methods().items():
            if kind.family == family:
                times = [_ratio(_STEPS[net].get(name)) for net in _NETS]
                lines.append(
                    f"| {' | '.join([f'[{name}]({name}.md)', first_sentence(kind.__doc__), *times, _linked(kind.paper)])} |"
                )
        lines.append("")
    return "\n".join(lines)


def _page(name: str, kind: type[Method]) -> str:
    module = inspect.getmodule(kind)
    _, _, text = inspect.cleandoc(module.__doc__ or "").partition("\n") if module else ("", "", "")
    sections = [
        f"# {name}\n\n{first_sentence(kind.__doc__)}",
        f"**What is random:** {kind.family.lower()}. **Paper:** {_linked(kind.paper) or 'none, the baseline'}.\n\n"
        f"**When to use it:** {kind.advice}",
        text.strip(),
        f"## Options\n\n::: bayesify.{name}\n    options:\n      heading_level: 3\n      inherited_members: false",
        "## Settings on tables\n\nDefault fields of this method in `BayesianRegressor` and `BayesianClassifier`; of two values, "
        f"the first is for regression and the second for classification.\n\n`{table_settings(name)}`",
        "## Cost\n\n" + _cost(name),
        "## Results\n\n" + _results(name),
    ]
    return "\n\n".join(sections) + "\n"


def _cost(name: str) -> str:
    """The measured training steps of a method and its variants."""
    variants = list(dict.fromkeys(label for net in _STEPS.values() for label in net if _is_of(label, name)))
    if not variants:
        return "Its training step is not among the measured ones; [Performance](../performance.md) has those of similar methods."
    lines = [
        "Time of a training step on 2 CPU cores, as a ratio to the plain network's ([how it was measured](../performance.md)):\n",
        f"| | {' | '.join(_STEPS)} |",
        f"|:---|{'---:|' * len(_STEPS)}",
    ]
    lines += [f"| {label} | {' | '.join(_ratio(net.get(label)) for net in _STEPS.values())} |" for label in variants]
    return "\n".join(lines)


def _results(name: str) -> str:
    """Links to the reports with a row of the method, and its rows in the table of all methods."""
    found = {}
    for path, page in markdown_pages().items():
        text = (ROOT / path).read_text("utf-8")
        if path.endswith("report.md") and (any(_is_of(row, name) for row in _rows(text)) or _is_paper_of(path, name)):
            found[page] = text.splitlines()[0].removeprefix("# ")
    if not found:
        return "No committed table has this method yet. [Results](../results.md) has the tables."
    lines = [_standard(name), "Tables with this method:\n", *(f"- [{title}](../{page})" for page, title in found.items())]
    return "\n".join(line for line in lines if line)


def _standard(name: str) -> str:
    """The method's rows in the sections of uci/standard."""
    text = (ROOT / "experiments" / "uci" / "standard" / "report.md").read_text("utf-8")
    sections = [part for part in text.split("\n## ") if name in _rows(part)][:2]
    if not sections:
        return ""
    lines = ["[UCI regression, standard splits](../experiments/uci/standard.md), mean ± standard error over splits:\n"]
    for number, section in enumerate(sections):
        table = [line for line in section.splitlines() if line.startswith("|")]
        row = next(line for line in table if line.startswith(f"| {name} |"))
        lines += table[:2] if number == 0 else []
        lines.append(row.replace(f"| {name} |", f"| {section.splitlines()[0]} |", 1))
    return "\n".join(lines) + "\n\n"


def _rows(text: str) -> list[str]:
    """First cells of all rows of all tables."""
    return [found.strip(" *`") for found in re.findall(r"^\| *([^|]*?) *\|", text, re.MULTILINE)]


def _is_of(label: str, name: str) -> bool:
    return label == name or label.startswith((f"{name},", f"{name} ", f"{name}("))


def _is_paper_of(path: str, name: str) -> bool:
    """Whether a table is from the folder of the method's paper."""
    return Path(path).parts[1].replace("-", "") == name.lower()


def _ratio(measured: dict[str, float] | None) -> str:
    return "-" if measured is None else f"{measured['ratio']:.1f}x"


def _linked(paper: str) -> str:
    if paper in _ELSEWHERE:
        return f"[{paper}]({_ELSEWHERE[paper]})"
    return re.sub(r"arXiv (\d+\.\d+)", r"[arXiv \1](https://arxiv.org/abs/\1)", paper)
