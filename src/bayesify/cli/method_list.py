"""`bayesify methods`: the methods, their fields, and the defaults on tables."""

import dataclasses
import re

from bayesify.cli.settings import estimator_fields
from bayesify.cli.terminal import print_line, print_table
from bayesify.cli.training import ESTIMATORS
from bayesify.core.method import Method
from bayesify.estimators.recipes import EARLY_STOPPED, ENSEMBLE, NATURAL, NATURAL_LARGE, NATURAL_SMALL, SINGLE

__all__ = ["print_methods"]

_FAMILIES = (
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
    """Print all methods by family, with their fields and papers, then the parameters of training."""
    families = dict.fromkeys(sorted((kind.family for kind in Method.registry.values()), key=_position))
    for family in families:
        print_line(family, style="bold")
        methods = sorted((name, kind) for name, kind in Method.registry.items() if kind.family == family)
        rows = [[name, _first_sentence(kind.__doc__), _defaults(name), kind.paper] for name, kind in methods]
        print_table(["method", "description", "fields and defaults", "paper"], rows, left=4)
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
    for text, settings in (
        ("DeepEnsemble", ENSEMBLE),
        ("Deterministic, EMP, ECMP and RepulsiveEnsemble", EARLY_STOPPED),
        ("IVON and NoisyAdam in regression", NATURAL),
        ("NoisyKFAC and SLANG, and VOGN in regression", NATURAL_SMALL),
        ("IVON, NoisyAdam and VOGN in classification", NATURAL_LARGE),
        ("any other method", SINGLE),
    ):
        values = ", ".join(f"{name}={_text(value)}" for name, value in vars(settings).items() if name in params)
        print_line(f"Of parameters that are none, the values for {text}: {values}.")
    print_line(f"The default method is {kind.default_method}. --method auto trains several models, as many as --time allows.")


def _position(family: str) -> tuple[int, str]:
    return (_FAMILIES.index(family) if family in _FAMILIES else len(_FAMILIES), family)


def _defaults(method: str) -> str:
    """The default fields and beta for regression and, if different, for classification."""
    recipes = [kind.recipe(method) for kind in ESTIMATORS.values()]
    settings = [
        {**{field.name: getattr(recipe.method, field.name) for field in dataclasses.fields(recipe.method)}, "beta": recipe.beta}
        for recipe in recipes
    ]
    texts = {name: dict.fromkeys(_text(values[name]) for values in settings) for name in settings[0]}
    return ", ".join(f"{name}={' or '.join(values)}" for name, values in texts.items())


def _first_sentence(text: str | None) -> str:
    return re.split(r"(?<=\.)\s", " ".join((text or "").split()))[0]


def _text(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:.4g}" if isinstance(value, float) else ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
