"""What the methods need on tables, where their own defaults, most often their papers', are not it.

Numbers: chosen on the seven UCI sets among 3 to 15 settings per method, by three hold-outs of a fifth of the rows that none of the
splits in `experiments/uci/defaults` tests on; its report shows what comes of it on test rows. No one score decided, but that no set
should come out badly. The prior of `MCDropout` lies between two that were tried.

Classes: chosen among 2 to 8 settings on scikit-learn's breast cancer, wine and digits and on 4,000 rows each of eeg and letter, by
three hold-outs of a quarter. `bayesify demo` tests on rows among these, so that its figures are no evidence for the choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bayesify.core.method import Method
from bayesify.methods import VIFO, VSD, WHVI, MCDropout, MeanField, VariationalDropout

__all__ = ["CLASSES", "NUMBERS", "Recipe"]


class Recipe(NamedTuple):
    """How an estimator uses a method of which it knows the name alone.

    Attributes:
        method: the method with its fields.
        beta: weight of the KL at the end of its rise.
    """

    method: Method
    beta: float


def _by_type(*recipes: Recipe) -> Mapping[type[Method], Recipe]:
    return {type(recipe.method): recipe for recipe in recipes}


NUMBERS = _by_type(
    # With its whole weight the KL switches off most units of a net this size while there are only hundreds of rows; with less than
    # this, intervals become too narrow where targets are noisy.
    Recipe(MeanField(), 0.3),
    Recipe(MCDropout(p=0.02, prior_std=0.6), 1.0),
    Recipe(VariationalDropout(prior_std=0.3), 1.0),
    Recipe(VSD(p=0.05, prior_std=1.0), 0.1),
    Recipe(WHVI(), 1.0),
    Recipe(VIFO(eta=1.0), 1.0),
)
CLASSES = _by_type(
    Recipe(MeanField(), 1.0),
    Recipe(MCDropout(p=0.05), 1.0),
    Recipe(VSD(), 0.1),
    Recipe(VIFO(eta=0.01), 1.0),
)
