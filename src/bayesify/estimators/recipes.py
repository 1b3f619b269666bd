"""Settings of the methods on tables: what the estimators use where a parameter is None.

The default, an ensemble of eight networks with `GaussianMixture` noise and piecewise linear inputs, was chosen among about 30
settings by held-out log-likelihood and CRPS, on tables that are in no report (`experiments/tables/README.md` lists them). Each
member stops at the epoch that is best for another eighth of the rows.

Other methods, regression: chosen on the seven UCI sets among 3 to 15 settings per method, by three hold-outs of 20 % of the rows
that are in no test split of `experiments/uci/defaults`, whose report has the test results. The criterion was not a single score,
but that no data set has a poor result. The prior of `MCDropout` is between two that were tried. Of `SWAG`, four priors and four
learning rates for the snapshots were tried on three hold-outs from the training rows of split 0 of boston, concrete, yacht and
kin8nm (2,000 rows). A constant rate is better than annealing to a tenth of it by 0.2 to 18 nats per row. `SWA` has its prior.

`Deterministic`, `EMP` and `ECMP` stop at the epoch that is best for a fifth of the rows. With nothing else changed, this takes
`Deterministic` from -14.3 to -2.4 nats per row on boston and from -4.9 to -2.1 on yacht, and `EMP` from -12.0 to -2.4 on boston
(`tools/early_stopping.py`: three hold-outs of training rows); a tenth of the rows is too few for yacht. Their noise starts at
one standard deviation of the targets: from 0.3, on a noisy table, it has not grown when the best epoch comes. This was confirmed on
five tables that are in no report (`tools/initial_noise.py`: three hold-outs, 0.3, 0.5 and 1). Where half of the variance of 190
rows is noise, `Deterministic` has -2.81 from 0.3 and -1.52 from 1, with 67 and 90 % of the rows in intervals of 95 %, and `EMP`
-2.49 and -1.50. On the others the two differ little: `Deterministic` -1.91 and -1.94, -2.10 and -2.09, -8.22 and -8.17, -3.54 and
-3.58, `EMP` -1.74 and -1.66, -2.09 and -2.06, -7.82 and -7.65, -3.58 and -3.58; 0.5 is better than both by more than 0.02 in one
case of ten, `Deterministic` on Hitters (-7.59).

`RepulsiveEnsemble` stops early after two hold-outs of scikit-learn's diabetes: from -280 to -5.8 nats per row in the unit of y.

The learning rates of the methods with natural-gradient steps were chosen among three each, by held-out rows of small tables that
are in no report (`tools/recipe_rates.py`: three tables for regression, two for classification, 300 training rows at most). In nats
per row on average, regression, beta = 0.3: `IVON` -4.20, -4.13, -4.80 at 0.01, 0.03, 0.1; `NoisyAdam` -4.23, -4.10, -4.19; `VOGN`
-4.20, -4.14, -5.00; `NoisyKFAC` -4.17 and -4.46 at 0.003 and 0.01. Classification, at 0.03, 0.1, 0.3: -0.742, -0.737, -0.765 for
`IVON` and within 0.007 of that for `NoisyAdam` and `VOGN`; `NoisyKFAC` -0.768, -0.747, -0.747 at 0.003, 0.01, 0.03. This is one
split of every table; differences below 0.05 nats are no evidence. Averaging curvatures faster makes `IVON` worse in regression at
0.03: -5.26 and -4.26 with a `hessian_rate` of 0.01 and 0.03, in place of -4.13 with 0.001 (the first split).

`SNGP` stops at the epoch that is best for a fifth of the rows, because the noise that is learned with a point estimate of the
process is too small otherwise: on the same tables, -375 to -4.3 nats per row. Length scale 1 was better than 2 (-4.27, -4.34;
-0.753, -0.789).

`Laplace` and `HMC` stop there, too, for the same reason: with 200 rows of these tables `Laplace` has -238 nats per row without,
-4.40 with it, a little more than `Deterministic` (-4.46). `HMC` has a small network and two short chains; on Friedman's function
with 200 rows it reached -2.18, in 40 s of processor time. `DVI` follows variances of hidden units, whose full covariances take
much longer; at beta = 0.3 and 1 it has -4.24 and -4.69 with 300 rows. `MNF` has -4.17 at 0.3. In classification, 200 rows,
`Laplace` has -0.754 and `DVI` -0.792; other settings were not tried there.

Classification: chosen among 2 to 8 settings on scikit-learn's breast cancer, wine and digits and on 4,000 rows each of eeg and
letter, by three hold-outs of 25 %; of `SWAG`, three priors, by two hold-outs of breast cancer and wine. `bayesify demo` tests on
some of these rows, so its results are no evidence for the choice.

Portfolios of `method="auto"`: chosen among all sets of at most five of eight ensembles (six for classification) by the
log-likelihood of test rows, on ten tables for regression and seven for classification (`tools/portfolio.py`; none is in a report).
On these and three more, stacking gains over the default 0.02 nats per row on the median table for regression, 0.05 on average
without Caschool, for 32 in place of 11 s of processor time, and nothing for classification (-0.003 to 0.008). The gain on Caschool,
1.6, means nothing: two of its columns, since then left out, add up to the target. Single models by variational inference are not
in it: on Hdma, `MeanField`, `VSD` and `SWAG` took 15 to 49 s and reached -0.25 to -0.55 nats, the ensembles 4 to 8 s and -0.25 to
-0.26.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from bayesify.core.method import Method
from bayesify.methods import (
    DVI,
    ECMP,
    EMP,
    HMC,
    IVON,
    MNF,
    SLANG,
    SNGP,
    SWA,
    SWAG,
    VIFO,
    VOGN,
    VSD,
    WHVI,
    DeepEnsemble,
    Deterministic,
    Laplace,
    MCDropout,
    MeanField,
    NoisyAdam,
    NoisyKFAC,
    RepulsiveEnsemble,
    VariationalDropout,
)

__all__ = [
    "CLASSIFICATION",
    "CLASSIFICATION_PORTFOLIO",
    "EARLY_STOPPED",
    "ENSEMBLE",
    "NATURAL",
    "NATURAL_LARGE",
    "NATURAL_SMALL",
    "POINT",
    "REGRESSION",
    "REGRESSION_PORTFOLIO",
    "SAMPLED",
    "SINGLE",
    "Recipe",
    "TrainingSettings",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Values of the estimators' parameters that are None.

    Attributes:
        hidden, activation, likelihood, encoding, learning_rate, samples, validation_fraction: as the parameters.
        steps: number of optimizer steps that determines `epochs`.
        batches: number of batches per epoch that determines `batch_size`, within `batch_sizes`.
        batch_sizes: minimum and maximum.
        patience: fraction of the epochs without improvement after which training stops, at least ten epochs; None for no stop.
        noise: initial standard deviation of Gaussian noise, in standard deviations of the targets.
    """

    hidden: tuple[int, ...] = (64, 64)
    activation: str = "relu"
    likelihood: Literal["gaussian", "heteroscedastic", "mixture"] = "gaussian"
    encoding: Literal["standard", "piecewise"] = "standard"
    learning_rate: float = 1e-2
    samples: int = 100
    validation_fraction: float = 0.0
    steps: int = 4000
    batches: int = 10
    batch_sizes: tuple[int, int] = (32, 128)
    patience: float | None = None
    noise: float = 0.3


SINGLE = TrainingSettings()
EARLY_STOPPED = TrainingSettings(validation_fraction=0.2, patience=1 / 6)
POINT = dataclasses.replace(EARLY_STOPPED, noise=1.0)  # which the best epoch has not yet outgrown where the noise is large
SAMPLED = dataclasses.replace(EARLY_STOPPED, hidden=(16,), activation="tanh")  # few enough weights for chains
NATURAL = TrainingSettings(learning_rate=0.03)  # of natural-gradient steps
NATURAL_LARGE = TrainingSettings(learning_rate=0.1)
NATURAL_SMALL = TrainingSettings(learning_rate=0.003)
ENSEMBLE = TrainingSettings(
    hidden=(128, 128),
    activation="silu",
    likelihood="mixture",
    encoding="piecewise",
    learning_rate=5e-3,
    steps=1500,
    batches=16,
    batch_sizes=(32, 256),
    patience=1 / 6,
)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Defaults for a method that is given by name.

    Attributes:
        method: the method with its fields.
        beta: final weight of the KL.
        training: settings of training.
    """

    method: Method
    beta: float
    training: TrainingSettings = SINGLE


def _by_type(*recipes: Recipe) -> Mapping[type[Method], Recipe]:
    return {type(recipe.method): recipe for recipe in recipes}


_ENSEMBLE = Recipe(DeepEnsemble(members=8), 1.0, ENSEMBLE)
REGRESSION = _by_type(
    _ENSEMBLE,
    # With beta=1 and hundreds of rows, the KL switches off most units; below 0.3, intervals are too narrow for noisy targets.
    Recipe(MeanField(), 0.3),
    Recipe(IVON(), 0.3, NATURAL),
    Recipe(NoisyAdam(), 0.3, NATURAL),
    Recipe(VOGN(), 0.3, NATURAL),
    Recipe(NoisyKFAC(), 0.3, NATURAL_SMALL),
    Recipe(SLANG(), 0.3, NATURAL),
    Recipe(MCDropout(p=0.02, prior_std=0.6), 1.0),
    Recipe(VariationalDropout(prior_std=0.3), 1.0),
    Recipe(VSD(p=0.05, prior_std=1.0), 0.1),
    Recipe(SWA(prior_std=0.3), 1.0),
    Recipe(SWAG(prior_std=0.3), 1.0),
    Recipe(WHVI(), 1.0),
    Recipe(VIFO(eta=1.0), 1.0),
    # Point estimates but for a few layers: trained to the end, they fit the noise of small tables.
    Recipe(Deterministic(), 0.3, POINT),
    Recipe(EMP(), 0.3, POINT),
    Recipe(ECMP(), 0.3, POINT),
    Recipe(RepulsiveEnsemble(), 1.0, EARLY_STOPPED),
    Recipe(SNGP(), 1.0, EARLY_STOPPED),
    Recipe(Laplace(), 1.0, EARLY_STOPPED),
    Recipe(HMC(chains=2, warmup=100, draws=50, max_tree_depth=6), 1.0, SAMPLED),
    Recipe(DVI(covariance="diagonal"), 0.3),
    Recipe(MNF(), 0.3),
)
CLASSIFICATION = _by_type(
    _ENSEMBLE,
    Recipe(MeanField(), 1.0),
    Recipe(IVON(), 1.0, NATURAL_LARGE),
    Recipe(NoisyAdam(), 1.0, NATURAL_LARGE),
    Recipe(VOGN(), 1.0, NATURAL_LARGE),
    Recipe(NoisyKFAC(), 1.0, NATURAL),
    Recipe(SLANG(), 1.0, NATURAL_LARGE),
    Recipe(MCDropout(p=0.05), 1.0),
    Recipe(VSD(), 0.1),
    Recipe(SWA(prior_std=1.0), 1.0),
    Recipe(SWAG(prior_std=1.0), 1.0),
    Recipe(VIFO(eta=0.01), 1.0),
    Recipe(SNGP(), 1.0, EARLY_STOPPED),
    Recipe(Laplace(), 1.0, EARLY_STOPPED),
    Recipe(HMC(chains=2, warmup=100, draws=50, max_tree_depth=6), 1.0, SAMPLED),
    Recipe(DVI(covariance="diagonal"), 1.0),
    Recipe(MNF(), 1.0),
)

_SMALL: Mapping[str, Any] = {"method": "DeepEnsemble", "hidden": (32, 32), "activation": "tanh"}
REGRESSION_PORTFOLIO: Mapping[str, Mapping[str, Any]] = {
    "ensemble": {"method": "DeepEnsemble"},
    "small, standard inputs": _SMALL | {"encoding": "standard"},
    "heteroscedastic, standard inputs": {"method": "DeepEnsemble", "likelihood": "heteroscedastic", "encoding": "standard"},
    "small": _SMALL,
}
CLASSIFICATION_PORTFOLIO: Mapping[str, Mapping[str, Any]] = {
    "ensemble": {"method": "DeepEnsemble"},
    "small": _SMALL,
    "linear": {"method": "DeepEnsemble", "hidden": (), "encoding": "standard"},
}
