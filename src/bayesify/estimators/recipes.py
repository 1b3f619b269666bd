"""Default fields and KL weights of the methods on tables, where these differ from the methods' defaults.

Regression: chosen on the seven UCI sets among 3 to 15 settings per method, by three hold-outs of 20 % of the rows that are in no
test split of `experiments/uci/defaults`, whose report has the test results. The criterion was not a single score, but that no data
set has a poor result. The prior of `MCDropout` is between two that were tried.

Classification: chosen among 2 to 8 settings on scikit-learn's breast cancer, wine and digits and on 4,000 rows each of eeg and
letter, by three hold-outs of 25 %. `bayesify demo` tests on some of these rows, so its results are no evidence for the choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bayesify.core.method import Method
from bayesify.methods import VIFO, VSD, WHVI, MCDropout, MeanField, VariationalDropout

__all__ = ["CLASSIFICATION", "REGRESSION", "Recipe"]


class Recipe(NamedTuple):
    """Defaults for a method that is given by name.

    Attributes:
        method: the method with its fields.
        beta: final weight of the KL.
    """

    method: Method
    beta: float


def _by_type(*recipes: Recipe) -> Mapping[type[Method], Recipe]:
    return {type(recipe.method): recipe for recipe in recipes}


REGRESSION = _by_type(
    # With beta=1 and hundreds of rows, the KL switches off most units; below 0.3, intervals are too narrow for noisy targets.
    Recipe(MeanField(), 0.3),
    Recipe(MCDropout(p=0.02, prior_std=0.6), 1.0),
    Recipe(VariationalDropout(prior_std=0.3), 1.0),
    Recipe(VSD(p=0.05, prior_std=1.0), 0.1),
    Recipe(WHVI(), 1.0),
    Recipe(VIFO(eta=1.0), 1.0),
)
CLASSIFICATION = _by_type(
    Recipe(MeanField(), 1.0),
    Recipe(MCDropout(p=0.05), 1.0),
    Recipe(VSD(), 0.1),
    Recipe(VIFO(eta=0.01), 1.0),
)
