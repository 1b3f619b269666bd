"""Ways to use a pretrained transformer: masks, caches, outputs, checkpointing, precision, compiling, quantization."""

import copy
import importlib
import importlib.util
import warnings
from typing import Any

import pytest
import torch
from pretrained import MODELS, in_float64, tokens
from pretrained_checks import calls_counted, equal
from torch import Tensor, nn
from torch.func import functional_call

from bayesify import WHVI, Bayesian, Deterministic, MCDropout, MeanField, bayesify, predict
from bayesify.core.method import Method
from bayesify.errors import BayesifyWarning, ConfigurationError, PassError
from bayesify.likelihoods import Categorical
from bayesify.testing.require import require_equal_means
from bayesify.testing.trial import captured_weights

pytestmark = [
    pytest.mark.skipif(
        any(importlib.util.find_spec(package) is None for package in ("transformers", "peft")),
        reason="transformers or peft is not installed",
    ),
    pytest.mark.slow,
]

_LENGTH = 7
_METHODS = [MeanField(), MCDropout(), WHVI()]


def _name(value: object) -> str | None:
    return type(value).__name__ if isinstance(value, Method) else None


def _made(net: nn.Module, method: Method, output: Any = "logits") -> Bayesian:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayesifyWarning)
        return bayesify(net, method, output=output).eval()


def _check_draws(bnn: Bayesian, plain: nn.Module, inputs: dict[str, Any], tolerance: float, passes: int = 1) -> None:
    """Coherent draws are the plain model with their weights, in this number of passes."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", BayesifyWarning)
        bnn(**inputs, samples=3)
        with calls_counted(bnn) as calls, captured_weights(bnn) as weights:
            draws = bnn(**inputs, samples=3, coherent=True).outputs
        expected = torch.stack([functional_call(plain, each, (), inputs).logits for each in weights[-3:]])
    assert len(calls) == passes
    equal(draws.double(), expected.double(), tolerance)


def _causal() -> Tensor:
    return torch.ones(_LENGTH, _LENGTH, dtype=torch.bool).tril()


def _padded(side: str) -> Tensor:
    mask = torch.ones(2, _LENGTH, dtype=torch.long)
    mask[0, slice(0, 3) if side == "left" else slice(-3, None)] = 0
    return mask


_MASKS = {
    "none": lambda: None,
    "right": lambda: _padded("right"),
    "left": lambda: _padded("left"),
    "boolean": lambda: _padded("right").bool(),
    "per row": lambda: _causal().expand(2, 1, _LENGTH, _LENGTH),
    "for all rows": lambda: _causal()[None, None],
    "per head": lambda: _causal().expand(2, 4, _LENGTH, _LENGTH),
    "added": lambda: torch.zeros(1, 1, _LENGTH, _LENGTH).double().masked_fill(~_causal(), torch.finfo(torch.float64).min),
}


@pytest.mark.parametrize("mask", _MASKS)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["BERT", "DistilBERT", "GPT-2", "Llama"])
def test_attention_masks(name: str, attention: str, mask: str) -> None:
    plain = MODELS[name].make(attn_implementation=attention).double()
    inputs = {"input_ids": tokens(), "attention_mask": _MASKS[mask]()}
    inputs = {key: x for key, x in inputs.items() if x is not None}
    if plain(**inputs).logits.isnan().any():
        pytest.skip("the plain model has no number here: a row of its mask is empty")
    _check_draws(_made(copy.deepcopy(plain), MeanField()), plain, inputs, 1e-5 if name == "Llama" else 1e-11)


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "T5"])
def test_a_cache_in_the_output_must_be_left_out(name: str) -> None:
    net, inputs = MODELS[name].make(), MODELS[name].inputs()
    bnn = _made(net, MCDropout(), output=None)
    with pytest.raises(TypeError, match=r'Cache, whose tensors cannot be separated by draw; select tensors .* such as "logits"'):
        bnn(**inputs, samples=2)
    outputs = bnn(**inputs, samples=2, use_cache=False).outputs
    assert outputs["logits"].shape[:2] == (2, 2)
    by_position = _made(MODELS[name].make(), MCDropout(), output=0)
    assert by_position(**inputs, samples=2, return_dict=False).outputs.shape == outputs["logits"].shape


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_a_cache_as_input_is_refused(name: str, samples: int) -> None:
    cache = importlib.import_module("transformers").DynamicCache()
    bnn = _made(MODELS[name].make(), MeanField())
    with pytest.raises(PassError, match=r"changes its input, a DynamicCache, .* use bnn.generate"):
        bnn(input_ids=tokens(), past_key_values=cache, samples=samples)


def test_a_loss_is_no_output() -> None:
    bnn = _made(MODELS["BERT"].make(), MeanField(), output="loss")
    with pytest.raises(ConfigurationError, match="returned a tensor of shape \\(\\)"):
        bnn(**MODELS["BERT"].inputs(), labels=torch.tensor([0, 1]), samples=2)


@pytest.mark.parametrize("implementation", ["grouped_mm", "batched_mm"])
@pytest.mark.parametrize("method", _METHODS, ids=_name)
def test_experts_without_control_flow_fold(method: Method, implementation: str) -> None:
    plain = MODELS["Mixtral"].make(experts_implementation=implementation)
    inputs = MODELS["Mixtral"].inputs() | {"output_router_logits": True}
    _check_draws(_made(copy.deepcopy(plain), method), plain, inputs, 1e-5)


def test_logits_of_a_router_have_rows_of_tokens() -> None:
    model = MODELS["Mixtral"]
    inputs = model.inputs() | {"output_router_logits": True}
    flat = _made(model.make(), MCDropout(), output=lambda output: output.router_logits[0])
    with pytest.raises(ConfigurationError, match=r"shape \(14, 4\) for 2 examples"):
        flat(**inputs, samples=2)
    by_row = _made(model.make(), MCDropout(), output=lambda output: output.router_logits[0].unflatten(0, (-1, _LENGTH)))
    assert by_row(**inputs, samples=2).outputs.shape == (2, 2, _LENGTH, 4)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("method", _METHODS, ids=_name)
@pytest.mark.parametrize(
    ("name", "adapter"),
    [
        ("BERT", "plain"),
        ("BERT", "LoRA"),
        ("BERT", "DoRA"),
        ("Llama", "plain"),
        ("GPT-2", "LoRA"),
        ("T5", "plain"),
        ("ViT", "plain"),
    ],
)
def test_gradient_checkpointing(name: str, adapter: str, method: Method, reentrant: bool) -> None:
    """Gradients are those without, in training mode, with the dropout of the model."""

    def gradients(checkpointing: bool) -> dict[str, Tensor]:
        net: Any = MODELS[name].make(adapter).double()
        if checkpointing:
            net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
            if adapter != "plain":
                net.enable_input_require_grads()
        torch.manual_seed(1)
        bnn, inputs = _made(net, method).train(), in_float64(MODELS[name].inputs())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BayesifyWarning)
            bnn(**inputs, samples=2)
        torch.manual_seed(5)
        draws = bnn(**inputs, samples=2)
        (draws.outputs.square().sum() + draws.kl).backward()
        return {key: p.grad for key, p in bnn.named_parameters() if p.grad is not None}

    expected, actual = gradients(False), gradients(True)
    assert expected.keys() == actual.keys()
    for key, gradient in expected.items():
        torch.testing.assert_close(actual[key], gradient, rtol=1e-9, atol=1e-9, msg=key)


@pytest.mark.parametrize("adapter", ["plain", "LoRA", "DoRA"])
@pytest.mark.parametrize("name", ["BERT", "Llama", "GPT-2", "T5", "ViT"])
def test_a_model_in_bfloat16(name: str, adapter: str) -> None:
    """Adapters and their posteriors are in float32, the rest in bfloat16."""
    model = MODELS[name]
    plain = model.make().bfloat16()
    if adapter != "plain":
        plain = model.adapted(plain, use_dora=adapter == "DoRA")
    inputs = {key: x.bfloat16() if x.is_floating_point() else x for key, x in model.inputs().items()}
    bnn = _made(copy.deepcopy(plain), MeanField())
    separate = adapter == "DoRA" or (name, adapter) == ("T5", "plain")
    _check_draws(bnn, plain, inputs, 0.02, passes=3 if separate else 1)
    expected = torch.bfloat16 if adapter == "plain" else torch.float32
    assert {p.dtype for _, layer in bnn.random_layers() for p in layer.parameters()} == {expected}
    draws = bnn(**inputs, samples=2)
    assert draws.kl.dtype == torch.float32
    (draws.outputs.float().square().mean() + draws.kl).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in bnn.parameters())
    assert predict(bnn, inputs, Categorical(), samples=4, seed=0).mean.isfinite().all()


@pytest.mark.parametrize(
    ("name", "adapter", "method"),
    [
        ("BERT", "plain", MeanField(initial_std=0.02)),
        ("Llama", "LoRA", MeanField(initial_std=0.02)),
        ("ViT", "plain", MCDropout(p=0.02)),
    ],
    ids=["BERT", "Llama", "ViT"],
)
def test_default_and_coherent_passes_have_the_same_mean(name: str, adapter: str, method: Method) -> None:
    """With small noise: only the mean of every layer's output is equal, and layers are not linear."""
    bnn, inputs = _made(MODELS[name].make(adapter).double(), method), in_float64(MODELS[name].inputs())
    with torch.no_grad():
        default, coherent = (torch.cat([bnn(**inputs, samples=100, coherent=c).outputs for _ in range(8)]) for c in (False, True))
    require_equal_means(default, coherent, "mean of the outputs")


@pytest.mark.parametrize("adapter", ["plain", "LoRA"])
def test_the_dropout_of_the_model_in_training_mode(adapter: str) -> None:
    """Draws fold, and every row has its own dropout."""
    bnn = _made(MODELS["BERT"].make(adapter), Deterministic() if adapter == "plain" else MeanField()).train()
    inputs = MODELS["BERT"].inputs()
    bnn(**inputs, samples=2)
    with calls_counted(bnn) as calls:
        draws = bnn(**inputs, samples=2, coherent=True).outputs
    assert len(calls) == 1
    assert not torch.equal(draws[0], draws[1])


def test_modules_that_are_saved_with_the_adapters_are_random() -> None:
    model = MODELS["BERT"]
    plain = model.adapted(model.make(), task_type="SEQ_CLS").double()  # trains a copy of the classifier
    bnn = _made(copy.deepcopy(plain), MeanField())
    assert [name for name, _ in bnn.random_layers() if "lora_" not in name] == [
        "base_model.model.classifier.modules_to_save.default"
    ]
    _check_draws(bnn, plain, model.inputs(), 1e-11)


def test_the_cache_of_dora_is_refused() -> None:
    bnn = _made(MODELS["BERT"].make("DoRA"), MeanField())
    with importlib.import_module("peft.helpers").DoraCaching(), pytest.raises(PassError, match="switch this cache off"):
        bnn(**MODELS["BERT"].inputs(), samples=2)


def test_relative_positions_fold_if_they_are_deterministic() -> None:
    plain, inputs = MODELS["T5"].make().double(), MODELS["T5"].inputs()
    methods = {"*relative_attention_bias": Deterministic(), "*": MeanField()}
    _check_draws(bayesify(copy.deepcopy(plain), methods, output="logits").eval(), plain, inputs, 1e-5)


def test_a_compiled_model() -> None:
    plain, inputs = MODELS["BERT"].make(), MODELS["BERT"].inputs()
    bnn = _made(copy.deepcopy(plain), MeanField())
    bnn(**inputs, samples=2)
    compiled: Any = torch.compile(bnn, backend="aot_eager")
    with captured_weights(bnn) as weights:
        draws = compiled(**inputs, samples=2, coherent=True).outputs
    expected = torch.stack([functional_call(plain, each, (), inputs).logits for each in weights[-2:]])
    equal(draws, expected, 1e-4)


def _with_torchao(net: nn.Module) -> nn.Module:
    quantization = pytest.importorskip("torchao.quantization")
    quantization.quantize_(net, quantization.Int8WeightOnlyConfig())
    return net


def _with_bitsandbytes(net: nn.Module, folder: str) -> nn.Module:
    pytest.importorskip("bitsandbytes")
    library = importlib.import_module("transformers")
    net.save_pretrained(folder)  # pyright: ignore[reportCallIssue]
    config = library.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32)
    return library.AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, device_map="cpu")


@pytest.mark.parametrize("library", ["torchao", "bitsandbytes"])
def test_adapters_of_a_quantized_model(library: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    model = MODELS["Llama"]
    net = model.make(hidden_size=64, intermediate_size=128)
    net = _with_torchao(net) if library == "torchao" else _with_bitsandbytes(net, str(tmp_path_factory.mktemp("model")))
    bnn, inputs = _made(model.adapted(net), MeanField()), model.inputs()
    assert all("lora_" in name for name, _ in bnn.random_layers())
    _check_draws(bnn, bnn.sample_network(0), inputs, 1e-5)
    draws = bnn(**inputs, samples=2)
    (draws.outputs.square().mean() + draws.kl).backward()
    assert all(p.grad is not None for p in bnn.parameters() if p.requires_grad)
    assert predict(bnn, inputs, Categorical(), samples=4, seed=0).mean.isfinite().all()
