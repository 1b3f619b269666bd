"""A page for every method of `Method.registry`, and their table."""

import functools
import importlib
import inspect
import json
import re
from typing import Any

from method_results import errata_of, gap_row, is_of, results_of
from repository_files import ROOT

from bayesify.cli.method_list import FAMILIES, first_sentence, table_settings
from bayesify.core.method import Method

__all__ = ["method_pages", "methods"]

_STEPS: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / "training_step.json").read_text("utf-8"))["nets"]
_NETS = {"LeNet5": "LeNet-5", "ResNet18": "ResNet-18"}
"""The networks of the overview, and names of networks as text."""

_DEFAULTS = {"VSD": "VSD, T = 2", "RepulsiveEnsemble": "RepulsiveEnsemble of 5"}
"""Labels of the measured steps with the default options, if not the name of the method."""

_ELSEWHERE = {
    "Tomczak, Swaroop & Turner 2020, NeurIPS": "https://papers.nips.cc/paper/2020/hash/310cc7ca5a76a446f85c1a0d641ba96d-Abstract.html",
    "Wan et al. 2013, ICML": "https://proceedings.mlr.press/v28/wan13.html",
    "Welling & Teh 2011": "https://www.stats.ox.ac.uk/~teh/research/compstats/WelTeh2011a.pdf",
}
"""Papers that are not on arXiv."""

_RANDOM = {
    "Weights": "the weights",
    "Weights, natural gradients": "the weights, whose distribution the method's own optimizer trains",
    "TensorFactorized": "the inner factors of the weights",
    "Dropout": "noise that multiplies the inputs of a layer",
    "ConcreteDropout": "noise that multiplies the inputs of a layer, or its weights",
    "DropConnect": "noise that multiplies the weights of a layer",
    "VariationalDropout": "noise that multiplies the inputs of a layer, or its weights",
    "VSD": "noise that multiplies the inputs of linear layers, and the output or input channels of convolutions",
    "Ensembles": "which of several networks computes a draw",
    "BatchEnsemble": "which of several pairs of factors, of inputs and outputs of all layers, computes a draw",
    "ECMP": "for every element of some layers, which of several copies is used",
    "EMP": "for some layers, which of several copies is used",
    "Rank1": "factors of the inputs and outputs of layers",
    "SWA": "nothing; it is a point estimate, averaged along training",
    "Along training": "the weights, by their mean and covariance along training",
    "After training": "weights, by default those of the last layer; their distribution is computed after training",
    "SNGP": "the weights of the last layer, which act on random features; their distribution is computed after training",
    "Sampling": "the weights; every draw is a state of a Markov chain, which runs after training",
    "Outputs": "the outputs of the network",
    "Adapters of language models": "a part of the low-rank adapters; all other weights are point estimates or frozen",
    "Baseline": "nothing",
}
"""What is random, by family, or by name where a method differs from its family."""


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
                times = [_ratio(_STEPS[net].get(_DEFAULTS.get(name, name))) for net in _NETS]
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
        f"- **What is random:** {_random(name, kind)}.\n- **Paper:** {_linked(kind.paper) or 'none, the baseline'}.\n"
        f"- **When to use it:** {kind.advice}",
        f"## Picture\n\n{_picture(name)}",
        f"## Formulas\n\n{text.strip()}",
        "## Options\n\nAll are keyword arguments; a value that is not possible raises a `ConfigurationError`.",
        f"::: bayesify.{name}\n    options:\n      heading_level: 3\n      inherited_members: false",
        "## Settings on tables\n\n" + _settings(name),
        "## Cost\n\n" + _cost(name, kind.cost),
        "## Errata\n\n" + errata_of(kind.paper),
        "## Results\n\n" + results_of(name),
    ]
    return "\n\n".join(sections) + "\n"


def _random(name: str, kind: type[Method]) -> str:
    return _RANDOM[name if name in _RANDOM else kind.family]


def _picture(name: str) -> str:
    """The figure of `docs/method_figures.py` and its caption."""
    figure = (ROOT / "docs" / "images" / "methods" / f"{name}.svg").read_text("utf-8").strip()
    if row := gap_row(name):
        made = f"Row `{row}` of [this table](../experiments/posterior/gap.md), whose network has 50 tanh units."
        made += " Gray: the exact posterior of that network, by [`HMC`](HMC.md)."
    elif name == "HMC":
        made = "The reference of [this table](../experiments/posterior/gap.md), whose network has 50 tanh units."
    elif _needs_adapters(name):
        made = "Adapters of rank 4 in a network that was trained on another curve: `python -m docs.method_figures`."
    else:
        made = "A network of 50 ReLUs: `python -m docs.method_figures`."
    shown = (
        "A regression with a gap in its data (points). Blue: mean and two epistemic standard deviations of the predictions, "
        "without the noise of the data."
    )
    return f'<figure class="picture">\n{figure}\n</figure>\n\n{shown} {made}'


def _needs_adapters(name: str) -> bool:
    return methods()[name].family == "Adapters of language models"


def _settings(name: str) -> str:
    if _needs_adapters(name):
        return "None: the networks for tables have no adapters."
    return (
        "Default fields of this method in `BayesianRegressor` and `BayesianClassifier`; of two values, the first is for regression "
        f"and the second for classification.\n\n`{table_settings(name)}`"
    )


def _cost(name: str, cost: str) -> str:
    """The measured training steps of a method and its variants, and the passes of a prediction."""
    training, _, prediction = (part.strip() for part in cost.partition(";"))
    counted = {"S": " for S draws", "M": " for M members"}
    number = re.search(r"\b[SM]\b", prediction)
    passes = f"Prediction: {prediction}{counted[number[0]] if number else ''}."
    variants = list(dict.fromkeys(label for net in _STEPS.values() for label in net if is_of(label, name)))
    if _needs_adapters(name):
        return f"Training: the seconds in [Bayesian LoRA compared](../bayesian-lora.md). {passes}"
    if not variants:
        training = training.removesuffix(" on these")
        return f"Training: {training}. {passes} [Performance](../performance.md) has the times of other methods."
    lines = [
        f"Training step on 2 CPU cores, as a ratio to the plain network's ([how it was measured](../performance.md)). {passes}\n",
        f"| | {' | '.join(_NETS.get(net, net) for net in _STEPS)} |",
        f"|:---|{'---:|' * len(_STEPS)}",
    ]
    lines += [f"| {label} | {' | '.join(_ratio(net.get(label)) for net in _STEPS.values())} |" for label in variants]
    return "\n".join(lines)


def _ratio(measured: dict[str, float] | None) -> str:
    return "-" if measured is None else f"{measured['ratio']:.1f}x"


def _linked(paper: str) -> str:
    if paper in _ELSEWHERE:
        return f"[{paper}]({_ELSEWHERE[paper]})"
    return re.sub(r"arXiv (\d+\.\d+)", r"[arXiv \1](https://arxiv.org/abs/\1)", paper)
