"""`bayesify methods`: the methods, their fields, and the defaults on tables."""

import dataclasses
import re

from bayesify.cli.settings import estimator_fields
from bayesify.cli.terminal import print_line, print_table
from bayesify.cli.training import ESTIMATORS
from bayesify.core.method import Method
from bayesify.estimators.recipes import SINGLE, TrainingSettings

__all__ = ["FAMILIES", "first_sentence", "print_methods", "table_settings"]

FAMILIES = (
    "Weights",
    "Weights, natural gradients",
    "Dropout",
    "Ensembles",
    "Along training",
    "After training",
    "Sampling",
    "Outputs",
    "Adapters of language models",
    "Baseline",
)


def print_methods() -> None:
    """Print all methods by family, with advice, cost and paper, then their fields and the parameters of training."""
    families = dict.fromkeys(sorted((kind.family for kind in Method.registry.values()), key=_position))
    for family in families:
        print_line(family, style="bold")
        methods = sorted((name, kind) for name, kind in Method.registry.items() if kind.family == family)
        rows = [[name, kind.advice or first_sentence(kind.__doc__), kind.cost or "-", kind.paper or "-"] for name, kind in methods]
        print_table(["method", "when to use it", "cost", "paper"], rows, left=4)
        print_line()
    print_line(
        "Cost: time of a training step of LeNet-5 and of AlexNet, as ratios to the plain network's on a CPU, and passes of the "
        "network per prediction with S draws or M members."
    )
    print_line()
    print_line("Fields that --set can change, and their defaults:", style="bold")
    fields_of = [[name, table_settings(name)] for name, kind in sorted(Method.registry.items())]
    print_table(["method", "fields and defaults"], fields_of, left=2)
    print_line()
    kind = ESTIMATORS["regression"]
    params = kind().get_params(deep=False)
    fields = {task: estimator_fields(estimator) for task, estimator in ESTIMATORS.items()}
    print_line("Training parameters of every method:", style="bold")
    print_line(", ".join(f"{name}={_text(params[name])}" for name in fields["regression"] if name in fields["classification"]))
    for task, names in fields.items():
        values = ESTIMATORS[task]().get_params(deep=False)
        own = [f"{name}={_text(values[name])}" for name in names if not all(name in other for other in fields.values())]
        print_line(f"In {task} also {', '.join(own)}.")
    print_line("beta is the final weight of the KL. Of two values, the first is for regression, the second for classification.")
    for text, settings in _by_settings():
        values = ", ".join(f"{name}={_text(value)}" for name, value in vars(settings).items() if name in params)
        print_line(f"Of parameters that are none, the values for {text}: {values}.")
    print_line(f"The default method is {kind.default_method}. --method auto trains several models, as many as --time allows.")


def _by_settings() -> list[tuple[str, TrainingSettings]]:
    """The methods that share training settings other than those of most methods, and last, the latter."""
    tasks = {task: {kind.__name__: recipe.training for kind, recipe in e.recipes.items()} for task, e in ESTIMATORS.items()}
    groups: dict[TrainingSettings, dict[str, list[str]]] = {}
    for name in dict.fromkeys(name for recipes in tasks.values() for name in recipes):
        own = {task: recipes.get(name, SINGLE) for task, recipes in tasks.items()}
        for settings in dict.fromkeys(own.values()):
            where = [task for task, of_task in own.items() if of_task == settings]
            groups.setdefault(settings, {}).setdefault("" if len(where) > 1 else f" in {where[0]}", []).append(name)
    groups.pop(SINGLE, None)
    texts = ["; ".join(f"{', '.join(names)}{where}" for where, names in parts.items()) for parts in groups.values()]
    return [*zip(texts, groups, strict=True), ("any other method", SINGLE)]


def _position(family: str) -> tuple[int, str]:
    return (FAMILIES.index(family) if family in FAMILIES else len(FAMILIES), family)


def table_settings(method: str) -> str:
    """Default fields and beta of a method on tables, for regression and, if different, for classification."""
    recipes = [kind.recipe(method) for kind in ESTIMATORS.values()]
    settings = [
        {**{field.name: getattr(recipe.method, field.name) for field in dataclasses.fields(recipe.method)}, "beta": recipe.beta}
        for recipe in recipes
    ]
    texts = {name: dict.fromkeys(_text(values[name]) for values in settings) for name in settings[0]}
    return ", ".join(f"{name}={' or '.join(values)}" for name, values in texts.items())


def first_sentence(text: str | None) -> str:
    """The first sentence of a docstring."""
    return re.split(r"(?<=\.)\s", " ".join((text or "").split()))[0]


def _text(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:.4g}" if isinstance(value, float) else ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
