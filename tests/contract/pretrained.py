"""Tiny pretrained transformers from configurations, with random weights: plain, or with LoRA or DoRA adapters.

Shapes: B = 2 examples.
"""

import functools
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

os.environ["HF_HUB_OFFLINE"] = "1"

__all__ = ["ADAPTERS", "MODELS", "Pretrained", "in_float64", "tokens"]

ADAPTERS = ("plain", "LoRA", "DoRA")
_VOCABULARY = 97
_SPECIAL = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
_TEXT = _SIZES | {"vocab_size": _VOCABULARY, "max_position_embeddings": 32, **_SPECIAL}
_DECODER = _TEXT | {"num_key_value_heads": 2}
_PIXELS = {"image_size": 16, "patch_size": 8}


def tokens(rows: int = 2, length: int = 7, seed: int = 1) -> Tensor:
    """Tokens (rows, length), none of them special."""
    return torch.randint(3, _VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def _padding() -> Tensor:
    """An attention mask (2, 7) whose second row ends with two padding tokens."""
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, 5:] = 0
    return mask


@dataclass(frozen=True)
class Pretrained:
    """A model of transformers.

    Attributes:
        kind: the name of its class.
        config: the fields of its configuration.
        inputs: returns its keyword inputs.
        targets: the layers that get adapters.
        generates: names of the inputs of `generate`; empty if it has none.
    """

    kind: str
    config: dict[str, Any]
    inputs: Callable[[], dict[str, Tensor]]
    targets: tuple[str, ...]
    generates: tuple[str, ...] = ()

    def make(self, adapter: str = "plain", seed: int = 0, **config: Any) -> nn.Module:
        """A new model with all parameters moved: many are zero to start with, and hide what lies behind them.

        Args:
            adapter: one of `ADAPTERS`.
            seed: the seed of its weights.
            config: further fields of the configuration.
        """
        kind = getattr(importlib.import_module("transformers"), self.kind)
        torch.manual_seed(seed)
        net = kind(kind.config_class(**self.config | config))
        if adapter != "plain":
            net = self.adapted(net, use_dora=adapter == "DoRA")
        _move(net)
        return net.eval()

    def adapted(self, net: nn.Module, **config: Any) -> Any:
        """The model with LoRA adapters, which are not zero."""
        peft = importlib.import_module("peft")
        fields = {"r": 4, "target_modules": list(self.targets), "init_lora_weights": False} | config
        return peft.get_peft_model(net, peft.LoraConfig(**fields)).eval()


@torch.no_grad()
def _move(net: nn.Module) -> None:
    for parameter in net.parameters():
        parameter.add_(0.05 * torch.randn_like(parameter))
    for module in net.modules():
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            module.weight[module.padding_idx] = 0


def in_float64(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same inputs, floating point ones in float64."""
    return {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}


_images = functools.partial(_normal, 2, 3, 16, 16)

MODELS: dict[str, Pretrained] = {
    "BERT": Pretrained(
        "BertForSequenceClassification",
        _TEXT | {"num_labels": 3},
        lambda: {"input_ids": tokens(), "attention_mask": _padding()},
        ("query", "value"),
    ),
    "DistilBERT": Pretrained(
        "DistilBertForSequenceClassification",
        {"vocab_size": _VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "num_labels": 3},
        lambda: {"input_ids": tokens(), "attention_mask": _padding()},
        ("q_lin", "v_lin"),
    ),
    "ViT": Pretrained(
        "ViTForImageClassification",
        _SIZES | _PIXELS | {"num_labels": 3},
        lambda: {"pixel_values": _images()},
        ("q_proj", "v_proj"),
    ),
    "GPT-2": Pretrained(
        "GPT2LMHeadModel",
        {"vocab_size": _VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, **_SPECIAL},
        lambda: {"input_ids": tokens(), "attention_mask": _padding()},
        ("c_attn",),
        ("input_ids",),
    ),
    "Llama": Pretrained(
        "LlamaForCausalLM",
        _DECODER,
        lambda: {"input_ids": tokens(), "attention_mask": _padding()},
        ("q_proj", "v_proj"),
        ("input_ids",),
    ),
    "T5": Pretrained(
        "T5ForConditionalGeneration",
        {"vocab_size": _VOCABULARY, "d_model": 32, "d_kv": 8, "num_layers": 2, "num_heads": 4, "d_ff": 48}
        | {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1},
        lambda: {"input_ids": tokens(), "attention_mask": _padding(), "decoder_input_ids": tokens(2, 5, seed=3)},
        ("q", "v"),
        ("input_ids",),
    ),
    "Mixtral": Pretrained(
        "MixtralForCausalLM",
        # the default implementation of the experts has no float64
        _DECODER | {"num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "eager"},
        lambda: {"input_ids": tokens(), "attention_mask": _padding()},
        ("q_proj", "v_proj"),
        ("input_ids",),
    ),
    "Whisper": Pretrained(
        "WhisperForConditionalGeneration",
        {"vocab_size": _VOCABULARY, "d_model": 32, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 16}
        | {f"{part}_{field}": n for part in ("encoder", "decoder") for field, n in (("layers", 1), ("attention_heads", 4))}
        | {"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "decoder_start_token_id": 2, **_SPECIAL},
        lambda: {"input_features": _normal(2, 8, 20), "decoder_input_ids": tokens(2, 5, seed=3)},
        ("q_proj", "v_proj"),
        ("input_features",),
    ),
    "CLIP": Pretrained(
        "CLIPForImageClassification",
        {"vision_config": _SIZES | _PIXELS, "num_labels": 3},
        lambda: {"pixel_values": _images()},
        ("q_proj", "v_proj"),
    ),
}
