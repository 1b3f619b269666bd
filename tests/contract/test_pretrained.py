"""Pretrained transformers, plain and with adapters of peft: every method is right on them, or refuses with one sentence."""

import importlib.util

import pytest
from pretrained import ADAPTERS, MODELS
from pretrained_checks import Cell, calls_counted

from bayesify import (
    ECMP,
    ELRG,
    EMP,
    IVON,
    MNF,
    SGLD,
    SLANG,
    SWA,
    SWAG,
    VIFO,
    VMG,
    VOGN,
    VSD,
    WHVI,
    BatchEnsemble,
    ConcreteDropout,
    DeepEnsemble,
    Deterministic,
    DropConnect,
    Laplace,
    MCDropout,
    MeanField,
    NoisyAdam,
    NoisyKFAC,
    Radial,
    Rank1,
    RepulsiveEnsemble,
    TensorFactorized,
    VariationalDropout,
    bayesify,
    summary,
)
from bayesify.core.method import Method
from bayesify.errors import ConfigurationError, NothingRandomError

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(package) is None for package in ("transformers", "peft")),
    reason="transformers or peft is not installed",
)

METHODS: list[Method] = [
    *(MeanField(), VariationalDropout(), VSD(), WHVI(), EMP(), ECMP(), MCDropout(), DropConnect()),
    *(VIFO(), TensorFactorized(), Deterministic(), SWA(), SWAG(), SGLD(), Laplace(layers="all"), DeepEnsemble(members=2)),
    RepulsiveEnsemble(members=2),
    *(ConcreteDropout(), Rank1(), BatchEnsemble()),
    *(ELRG(), VMG(), MNF(), Radial(), IVON(), VOGN(), NoisyAdam(), NoisyKFAC(), SLANG()),
]
WITHOUT_WEIGHTS = (VIFO, DeepEnsemble, RepulsiveEnsemble)  # one draws outputs, the others take the members as they are
QUICK = {
    *(("BERT", "plain", "MeanField"), ("GPT-2", "plain", "WHVI"), ("Mixtral", "plain", "MeanField"), ("T5", "plain", "MeanField")),
    *(("Llama", "LoRA", "MeanField"), ("Whisper", "LoRA", "VSD"), ("BERT", "DoRA", "MeanField"), ("CLIP", "LoRA", "EMP")),
    *(("ViT", "plain", "EMP"), ("DistilBERT", "LoRA", "VIFO"), ("BERT", "plain", "DeepEnsemble")),
}


def _name(method: Method) -> str:
    return type(method).__name__


CELLS = [
    pytest.param(
        *(name, adapter, method),
        marks=() if (name, adapter, _name(method)) in QUICK else pytest.mark.slow,
        id=f"{name}-{adapter}-{_name(method)}",
    )
    for name in MODELS
    for adapter in ADAPTERS
    for method in METHODS
]


@pytest.mark.parametrize(("name", "adapter", "method"), CELLS)
def test_cell(name: str, adapter: str, method: Method) -> None:
    if refusal := _refusal(adapter, method):
        with pytest.raises(NothingRandomError, match=refusal):
            bayesify(MODELS[name].make(adapter), method, output="logits")
        return
    cell = Cell.make(MODELS[name], adapter, method)
    with calls_counted(cell.bnn) as calls:
        cell.bnn(**cell.inputs, samples=3)
    separate = _separate_passes(name, adapter, method)
    assert len(calls) == (3 if separate else 0 if isinstance(method, DeepEnsemble | RepulsiveEnsemble) else 1)
    assert [separate in said for said in cell.said if "every draw takes a separate pass" in said] == [True] * bool(separate)
    cell.check_predictions()
    if not isinstance(method, WITHOUT_WEIGHTS):
        if not isinstance(method, MNF):  # whose KL is an estimate
            cell.check_kl()
        cell.check_draws()
        cell.check_gradients()
    if isinstance(method, VIFO):
        with pytest.raises(NotImplementedError, match="use function"):
            cell.bnn.sample_network(0)
    else:
        cell.check_drawn()
    if adapter != "plain" and not isinstance(method, WITHOUT_WEIGHTS):
        assert all("lora_" in row.name for row in summary(cell.bnn).layers if row.random)


def _refusal(adapter: str, method: Method) -> str:
    """Why a method makes nothing random; empty if it does."""
    return "it is frozen; a pattern that names it makes it random" if adapter != "plain" and isinstance(method, EMP | ECMP) else ""


def _separate_passes(name: str, adapter: str, method: Method) -> str:
    """Why draws are not folded; empty if they are."""
    if isinstance(method, WITHOUT_WEIGHTS) or not method.is_random:
        return ""
    if name == "Mixtral":
        return "the network's control flow or shapes depend on random values"
    if adapter == "DoRA":  # which multiplies its two adapters
        return "on its batch and also on inputs without rows"
    embeds = isinstance(method, MeanField | ELRG | IVON | VOGN | NoisyAdam | Radial | SLANG | SWAG)
    return "relative_attention_bias' on inputs without rows" if (name, adapter) == ("T5", "plain") and embeds else ""


@pytest.mark.parametrize("name", ["BERT", pytest.param("T5", marks=pytest.mark.slow)])
def test_an_ensemble_of_one_trained_model_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"it was trained or initialized differently. Give all members"):
        bayesify(MODELS[name].make(), DeepEnsemble())
