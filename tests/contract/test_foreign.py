"""Networks of other libraries: what a method makes of each is right, or refused with a sentence that says what to do.

`python tests/contract/foreign_table.py` writes the findings to `docs/known-networks.md`.
"""

import importlib.util

import pytest
from foreign import Foreign
from foreign_checks import check, collapsed_problems
from foreign_fields import FIELDS
from foreign_libraries import LIBRARIES
from foreign_others import OTHERS
from foreign_science import SCIENCE
from foreign_sequences import SEQUENCES
from foreign_series import SERIES
from foreign_solvers import SOLVERS
from foreign_transformers import TRANSFORMERS

from bayesify import (
    ECMP,
    EMP,
    SWAG,
    VIFO,
    VSD,
    WHVI,
    BatchEnsemble,
    DeepEnsemble,
    Laplace,
    MCDropout,
    MeanField,
    VariationalDropout,
)
from bayesify.core.method import Method

METHODS: list[Method] = [
    MeanField(initial_std=0.3),
    MCDropout(p=0.2),
    VariationalDropout(),
    VSD(),
    WHVI(),
    EMP(),
    BatchEnsemble(),
    DeepEnsemble(members=2),
    SWAG(),
    Laplace(),
    VIFO(),
]
VARIANTS: list[Method] = [ECMP(), Laplace(layers="all", structure="diagonal")]
NETWORKS = [
    pair for part in (SEQUENCES, TRANSFORMERS, LIBRARIES, OTHERS, SCIENCE, SERIES, FIELDS, SOLVERS) for pair in part.items()
]


@pytest.mark.slow
@pytest.mark.parametrize("foreign", [pytest.param(each, id=f"{each.package}-{name}") for name, each in NETWORKS])
def test_network(foreign: Foreign) -> None:
    if importlib.util.find_spec(foreign.package) is None:
        pytest.skip(f"{foreign.package} is not installed")
    problems = collapsed_problems(foreign)
    for method in (*METHODS, *VARIANTS):
        problems += [f"{type(method).__name__}: {problem}" for problem in check(foreign, method).problems]
    assert not problems
