"""Architectures of transformers with random weights, each as small as its configuration allows."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import torch
from architectures import load_torchvision
from foreign import Arguments, Foreign
from torch import Tensor, nn

os.environ["HF_HUB_OFFLINE"] = "1"

__all__ = ["TRANSFORMERS"]

_VOCABULARY = 61


def _tokens(rows: int = 3, length: int = 6) -> Tensor:
    return torch.randint(3, _VOCABULARY, (rows, length))


def _ids() -> Arguments:
    return (), {"input_ids": _tokens()}


def _masked() -> Arguments:
    mask = torch.ones(3, 6, dtype=torch.long)
    mask[1, 4:] = 0
    return (), {"input_ids": _tokens(), "attention_mask": mask}


def _decoding() -> Arguments:
    return (), {"input_ids": _tokens(), "decoder_input_ids": _tokens(length=4)}


def _images(size: int = 32) -> Callable[[], Arguments]:
    return lambda: ((), {"pixel_values": torch.randn(3, 3, size, size)})


def _model(
    kind: str,
    inputs: Callable[[], Arguments],
    config: dict[str, Any],
    pick: str = "logits",
    double: bool = True,
    config_class: str = "",
    trains: bool = True,
) -> Foreign:
    def make() -> nn.Module:
        load_torchvision()  # transformers imports it
        library = importlib.import_module("transformers")
        made = getattr(library, config_class)(**config) if config_class else getattr(library, kind).config_class(**config)
        made._experts_implementation = "eager"  # others have no float64
        net = getattr(library, kind)(made)
        return net.double() if double else net

    def converted() -> Arguments:
        args, kwargs = inputs()
        return args, {name: x.double() if double and x.is_floating_point() else x for name, x in kwargs.items()}

    return Foreign("transformers", make, converted, lambda y: getattr(y, pick), 1e-5 if double else 1e-4, trains)


_SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": _VOCABULARY,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = _SIZES | {"num_key_value_heads": 1}
_HEADS = _GROUPED | {"head_dim": 8}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
_DEEPSEEK = _SIZES | {
    "num_key_value_heads": 2,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 12,
}
_STATES = {"vocab_size": _VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}
_CLASSES = _SIZES | {"num_labels": 3}
_RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 4, "max_relative_positions": 8}
_T5 = {"vocab_size": _VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
_PARTS = {
    f"{part}_{field}": n for part in ("encoder", "decoder") for field, n in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 24))
}
_BART = _PARTS | {"vocab_size": _VOCABULARY, "d_model": 16, "max_position_embeddings": 32, "pad_token_id": 0, "eos_token_id": 2}
_WHISPER = _PARTS | {
    "vocab_size": _VOCABULARY,
    "d_model": 16,
    "num_mel_bins": 8,
    "max_source_positions": 10,
    "max_target_positions": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
_VISION: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 5,
}
_SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4}
_CLIP = {
    "text_config": {key: value for key, value in _SIZES.items() if key != "max_position_embeddings"},
    "vision_config": {key: value for key, value in _VISION.items() if key != "num_labels"},
    "projection_dim": 8,
}

TRANSFORMERS: dict[str, Foreign] = {
    "BERT": _model("BertForSequenceClassification", _masked, _CLASSES),
    "BERT, tied output": _model("BertForMaskedLM", _masked, _SIZES),
    "ModernBERT": _model("ModernBertForSequenceClassification", _masked, _CLASSES | {"cls_token_id": 1, "sep_token_id": 2}),
    "ALBERT": _model("AlbertForSequenceClassification", _masked, _CLASSES | {"embedding_size": 8, "num_hidden_layers": 3}),
    "DeBERTa-v2": _model(
        "DebertaV2ForSequenceClassification",
        _masked,
        _CLASSES | _RELATIVE,
    ),
    "DeBERTa-v3": _model(
        "DebertaV2ForSequenceClassification",
        _masked,
        _CLASSES | _RELATIVE | {"norm_rel_ebd": "layer_norm", "share_att_key": True, "position_biased_input": False},
    ),
    "Longformer": _model("LongformerForSequenceClassification", _masked, _CLASSES | {"attention_window": 4}),
    "Funnel": _model(
        "FunnelForSequenceClassification",
        _masked,
        {"vocab_size": _VOCABULARY, "block_sizes": [1, 1], "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 24, "num_labels": 3},
    ),
    "GPT-2": _model(
        "GPT2LMHeadModel", _masked, {"vocab_size": _VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    ),
    "GPT-J": _model(
        "GPTJForCausalLM",
        _masked,
        {"vocab_size": _VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 2, "rotary_dim": 4, "n_positions": 32},
    ),
    "GPT-NeoX": _model("GPTNeoXForCausalLM", _masked, _SIZES),
    "OPT": _model("OPTForCausalLM", _masked, _SIZES | {"ffn_dim": 24, "word_embed_proj_dim": 16}),
    "BLOOM": _model("BloomForCausalLM", _masked, {"vocab_size": _VOCABULARY, "hidden_size": 16, "n_layer": 2, "n_head": 2}),
    "Falcon": _model(
        "FalconForCausalLM",
        _masked,
        {"vocab_size": _VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
    ),
    "Llama": _model("LlamaForCausalLM", _masked, _GROUPED),
    "Mistral": _model("MistralForCausalLM", _masked, _GROUPED | {"sliding_window": 3}),
    "Qwen2": _model("Qwen2ForCausalLM", _masked, _GROUPED),
    "Qwen3": _model("Qwen3ForCausalLM", _masked, _HEADS),
    "Gemma 2": _model("Gemma2ForCausalLM", _masked, _HEADS),
    "Phi-3": _model("Phi3ForCausalLM", _masked, _GROUPED),
    "OLMo 2": _model("Olmo2ForCausalLM", _masked, _GROUPED),
    "Mixtral": _model("MixtralForCausalLM", _masked, _GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "Qwen3-MoE": _model("Qwen3MoeForCausalLM", _masked, _HEADS | _EXPERTS),
    "DeepSeek-V3": _model("DeepseekV3ForCausalLM", _masked, _DEEPSEEK),
    "gpt-oss": _model("GptOssForCausalLM", _masked, _HEADS | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "RWKV": _model(
        "RwkvForCausalLM",
        _ids,
        {"vocab_size": _VOCABULARY, "hidden_size": 16, "attention_hidden_size": 16, "num_hidden_layers": 2, "context_length": 16},
        double=False,
        trains=False,  # in eval mode it changes weights in place, and has no gradients
    ),
    "Mamba": _model("MambaForCausalLM", _ids, _STATES, double=False),
    "Mamba-2": _model(
        "Mamba2ForCausalLM", _ids, _STATES | {"head_dim": 8, "num_heads": 4, "n_groups": 1, "chunk_size": 4}, double=False
    ),
    "T5": _model("T5ForConditionalGeneration", _decoding, _T5),
    "BART": _model("BartForConditionalGeneration", _decoding, _BART),
    "Whisper": _model(
        "WhisperForConditionalGeneration",
        lambda: ((), {"input_features": torch.randn(3, 8, 20), "decoder_input_ids": _tokens(length=4)}),
        _WHISPER,
    ),
    "ViT": _model("ViTForImageClassification", _images(), _VISION),
    "DeiT": _model("DeiTForImageClassification", _images(), _VISION),
    "DINOv2": _model("Dinov2ForImageClassification", _images(), _VISION),
    "BEiT": _model("BeitForImageClassification", _images(), _VISION),
    "Swin": _model("SwinForImageClassification", _images(), _SWIN),
    "Swin v2": _model("Swinv2ForImageClassification", _images(), _SWIN),
    "ConvNeXt v2": _model(
        "ConvNextV2ForImageClassification", _images(), {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}
    ),
    "ResNet": _model("ResNetForImageClassification", _images(), {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}),
    "CLIP": _model(
        "CLIPModel",
        lambda: ((), {"input_ids": _tokens(), "pixel_values": torch.randn(3, 3, 32, 32)}),
        _CLIP,
        pick="logits_per_image",
    ),
    "PatchTST": _model(
        "PatchTSTForPrediction",
        lambda: ((), {"past_values": torch.randn(3, 32, 2)}),
        {
            "num_input_channels": 2,
            "context_length": 32,
            "patch_length": 8,
            "patch_stride": 8,
            "d_model": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "ffn_dim": 24,
            "prediction_length": 4,
        },
        pick="prediction_outputs",
    ),
}
