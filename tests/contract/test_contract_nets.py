"""Every method of the registry on the small networks that a root can get wrong; and that broken methods are rejected."""

from collections.abc import Callable, Iterator

import pytest
import torch
from _pytest.mark import ParameterSet
from contract_methods import METHODS, ROOTS, identify

from bayesify import (
    DVI,
    ECMP,
    ELRG,
    EMP,
    HMC,
    IVON,
    SGHMC,
    SGLD,
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
    MCDropout,
    MeanField,
    NoisyAdam,
    NoisyKFAC,
    Radial,
    RepulsiveEnsemble,
    VariationalDropout,
)
from bayesify.core.method import Method
from bayesify.testing import NET_CHECKS, NotApplicable

# The methods of the papers, and one of every kind, meet all networks; the others those that depend on more than shared code.
_EVERYWHERE = (MeanField, VariationalDropout, VSD, WHVI, EMP, ECMP, VIFO, MCDropout, DeepEnsemble, SWAG, Deterministic)
_FOR_ALL = (
    "graph_network",
    "batch_normalization_in_training",
    "tied_embedding",
    "nested_inputs",
    "checkpointed_layers",
    "functions",
    "members_in_training",
    "weight_of_the_local_kl",
)
# Of shared code, and long: quick for noise on outputs, noise on inputs, and several copies of a layer.
_OF_SOME = (MeanField, VSD, EMP)
_LONG = ("batch_normalization_in_training", "compiled_positions", "positions", "registered_layer", "subclassed_layer")

# Which checks exist for which methods; `test_cells_that_do_not_exist` tests the others.
_ENSEMBLES = DeepEnsemble | RepulsiveEnsemble
_OF_ONE_MODEL = ("stored_features", "hooks_in_prediction", "functions_of_changed_nets")
_OF_WEIGHTS = (
    "graph_network",
    "moved_batch",
    "coupled_rows",
    "mixture_of_experts",
    "batch_normalization_in_training",
    "positions",
    "compiled_positions",
    "mask_as_large_as_the_batch",
    "slow_passes_are_announced",
    "read_weights",
    "recurrent_network",
    "multihead_attention",
    "subclassed_layer",
    "registered_layer",
    "unused_layer",
    "frozen_layer",
    "tied_embedding",
    "nested_inputs",
    "batch_in_dimension_one",
    "noise_switched_on_late",
    "checkpointed_layers",
)
_OF_EMBEDDINGS = (
    MeanField | ELRG | Radial | IVON | VOGN | NoisyAdam | SLANG | EMP | ECMP | Deterministic | SWA | SWAG | HMC | SGLD | SGHMC
)
_OF_SINGLE_EXAMPLES = VOGN | NoisyKFAC | SLANG


def _exists(method: Method, name: str) -> bool:
    if name == "members_in_training":
        return isinstance(method, _ENSEMBLES)
    if name in _OF_ONE_MODEL and isinstance(method, _ENSEMBLES):
        return False
    if name in _OF_WEIGHTS and isinstance(method, VIFO | SNGP | DVI | _ENSEMBLES):
        return False
    if name == "recurrent_network" and isinstance(method, _OF_SINGLE_EXAMPLES):
        return False
    if name in ("functions", "weight_of_the_local_kl") and isinstance(method, DVI):  # their networks are no chains of ReLUs
        return False
    return name != "tied_embedding" or isinstance(method, _OF_EMBEDDINGS)


def _methods() -> Iterator[tuple[Method, bool]]:
    """All settings; the first of every method is a quick test (of EMP and ECMP, the first whose components differ)."""
    seen: set[type[Method]] = set()
    for method in (*(m for m, _ in METHODS), *(m for _, m, _ in ROOTS)):
        quick = type(method) not in seen and getattr(method, "spread", None) != 0.0
        yield method, quick
        if quick:
            seen.add(type(method))


def _cases() -> Iterator[ParameterSet]:
    for method, first in _methods():
        for check in NET_CHECKS:
            name = check.__name__.removeprefix("check_")
            if not _exists(method, name):
                continue
            quick = first and (type(method) in _EVERYWHERE or name in _FOR_ALL)
            long = name in _LONG and type(method) not in _OF_SOME
            marks = (pytest.mark.extended if long else ()) if quick else pytest.mark.slow
            yield pytest.param(method, check, marks=marks, id=f"{identify(method)}-{name}")


@pytest.mark.parametrize(("method", "check"), [*_cases()])
def test_method_on_net(method: Method, check: Callable[[Method], None]) -> None:
    torch.manual_seed(11)
    try:
        check(method)
    except NotApplicable as reason:
        pytest.skip(str(reason))


def test_cells_that_do_not_exist() -> None:
    """Each says why, so that a method which comes to support a layer gets its cell."""
    for method, first in _methods():
        for check in NET_CHECKS if first else ():
            if not _exists(method, check.__name__.removeprefix("check_")):
                with pytest.raises(NotApplicable):
                    check(method)
