"""Every method in the registry, on every layer type, through the checks of one layer."""

from collections.abc import Callable, Iterator

import pytest
from _pytest.mark import ParameterSet
from contract_methods import METHODS, ROOTS, identify

from bayesify import (
    ELRG,
    EMP,
    HMC,
    IVON,
    SGLD,
    SLANG,
    SNGP,
    SWA,
    VIFO,
    VOGN,
    VSD,
    Deterministic,
    Laplace,
    MeanField,
    NoisyAdam,
    NoisyKFAC,
    Radial,
    ScalaBL,
    SpectralNorm,
)
from bayesify.core.method import Method
from bayesify.errors import ContractError
from bayesify.testing import CHECKS, LAYERS, Case, References, check_method
from bayesify.testing.layer_checks import check_compile, check_export

_EVERYWHERE = (MeanField, VSD)  # noise on outputs and noise on inputs
_OF_EACH_KIND = ("Linear", "Conv2d", "LayerNorm", "Embedding")
_LINEAR = ("Linear", "Linear without bias, on sequences")
_TRACED = (check_compile, check_export)
_UNTRACED = tuple(check for check in CHECKS if check not in _TRACED)


def _untraced(method: Method, layer: str, first: bool) -> tuple[pytest.MarkDecorator, ...]:
    """Marks of a cell: the first setting of each method meets a linear layer, and one method a layer of each kind.

    The first setting of some methods meets all layers in extended tests, as most code is shared; other cells are slow tests.
    """
    if first and (layer == "Linear" or (type(method) is MeanField and layer in _OF_EACH_KIND)):
        return ()
    extended = layer == "Linear" or (first and (type(method) in _EVERYWHERE or layer in _OF_EACH_KIND))
    return (pytest.mark.extended if extended else pytest.mark.slow,)


def _traced(method: Method, layer: str, first: bool) -> tuple[pytest.MarkDecorator, ...]:
    """Marks of a traced cell, which takes ten times as long as the other checks.

    The code of a posterior and that of a layer are traced separately: every method in a linear layer, and one in a layer of each
    kind. By default two in a linear layer. Other cells are slow tests.
    """
    kind = type(method)
    if first and layer == "Linear" and kind in (MeanField, VSD):
        return ()
    extended = layer == "Linear" or (kind is MeanField and layer in _OF_EACH_KIND)
    return (pytest.mark.extended if first and extended else pytest.mark.slow,)


def _cases() -> Iterator[ParameterSet]:
    seen: set[type[Method]] = set()
    for method, references in METHODS:
        first = type(method) not in seen
        for layer in LAYERS:
            name = f"{identify(method)}-{layer}"
            yield pytest.param(method, references, layer, _UNTRACED, marks=_untraced(method, layer, first), id=name)
            yield pytest.param(method, references, layer, _TRACED, marks=_traced(method, layer, first), id=f"{name}, traced")
        seen.add(type(method))


@pytest.mark.parametrize(("method", "references", "layer", "checks"), [*_cases()])
def test_contract(method: Method, references: References, layer: str, checks: tuple[Callable[[Case], None], ...]) -> None:
    contracts = "Norm" not in layer and layer != "Embedding"
    if isinstance(method, ScalaBL):  # adapters are linear layers and convolutions
        contracts = contracts and "Transpose" not in layer and "(I, O)" not in layer
    if isinstance(method, NoisyKFAC):
        contracts = layer.startswith("Linear") and "(I, O)" not in layer  # the convolutions here have groups or reflect
    if isinstance(method, SLANG | VOGN):
        contracts = contracts or layer == "Embedding"
    if isinstance(method, Laplace):  # Kronecker factors are those of linear layers and ungrouped convolutions in two dimensions
        contracts = method.structure != "kronecker" or layer in (*_LINEAR, "Conv2d, reflected")
    if isinstance(method, SNGP):
        contracts = layer in _LINEAR
    if layer == "Conv2d, standardized":  # it is not linear in its weight
        contracts = contracts and not isinstance(method, NoisyKFAC | SLANG | SNGP | SpectralNorm | VIFO | VOGN)
    every = MeanField | Deterministic | ELRG | EMP | HMC | IVON | NoisyAdam | Radial | SGLD | SWA
    if contracts or isinstance(method, every):
        assert check_method(method, {layer: LAYERS[layer]}, references, checks, nets=()) == [layer]
    else:
        with pytest.raises(ContractError, match="supports none"):
            check_method(method, {layer: LAYERS[layer]}, references, checks, nets=())


def _roots() -> Iterator[ParameterSet]:
    seen: set[type[Method]] = set()
    for name, method, references in ROOTS:
        yield pytest.param(method, references, _UNTRACED, id=name)
        marks = pytest.mark.slow if type(method) in seen else () if name == "DVI" else pytest.mark.extended
        yield pytest.param(method, references, _TRACED, marks=marks, id=f"{name}, traced")
        seen.add(type(method))


@pytest.mark.parametrize(("method", "references", "checks"), [*_roots()])
def test_roots_fulfil_the_contract(method: Method, references: References, checks: tuple[Callable[[Case], None], ...]) -> None:
    assert check_method(method, {"Linear": LAYERS["Linear"]}, references, checks, nets=()) == ["Linear"]


def test_every_registered_method_is_checked() -> None:
    ours = {kind for kind in Method.registry.values() if kind.__module__.startswith("bayesify.")}
    assert {type(method) for method in (*(m for m, _ in METHODS), *(m for _, m, _ in ROOTS))} == ours
