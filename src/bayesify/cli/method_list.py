"""`bayesify methods`: the methods, their fields, and the defaults on tables."""

import dataclasses
import re

from bayesify.cli.settings import estimator_fields
from bayesify.cli.terminal import print_line, print_table
from bayesify.cli.training import ESTIMATORS
from bayesify.core.method import Method
from bayesify.estimators.recipes import EARLY_STOPPED, ENSEMBLE, SINGLE

__all__ = ["print_methods"]


def print_methods() -> None:
    """Print all methods with their fields, then the parameters of training."""
    rows = [[name, _first_sentence(kind.__doc__), _defaults(name)] for name, kind in sorted(Method.registry.items())]
    print_table(["method", "description", "fields and defaults"], rows, left=3)
    print_line()
    kind = ESTIMATORS["regression"]
    params = kind().get_params(deep=False)
    print_line("Training parameters of every method (likelihood: regression only):", style="bold")
    print_line(", ".join(f"{name}={_text(params[name])}" for name in estimator_fields(kind)))
    print_line("beta is the final weight of the KL. Of two values, the first is for regression, the second for classification.")
    for text, settings in (
        ("DeepEnsemble", ENSEMBLE),
        ("Deterministic, EMP and ECMP", EARLY_STOPPED),
        ("any other method", SINGLE),
    ):
        values = ", ".join(f"{name}={_text(value)}" for name, value in vars(settings).items() if name in params)
        print_line(f"Of parameters that are none, the values for {text}: {values}.")
    print_line(f"The default method is {kind.default_method}.")


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
