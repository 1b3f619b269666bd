"""Small networks of peft, torchao, torch_geometric, open_clip, timm, segmentation_models_pytorch: random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from foreign import F64, Arguments, Foreign, library
from torch import Tensor, nn

__all__ = ["LIBRARIES"]


def _images(size: int = 32) -> Callable[[], Arguments]:
    return lambda: ((torch.randn(3, 3, size, size, dtype=F64),), {})


def _adapted(kind: str, *, quantized: bool = False, **config: Any) -> Foreign:
    """A tiny Llama with an adapter of peft."""

    def make() -> nn.Module:
        transformers, peft = library("transformers"), library("peft")
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
        llama = transformers.LlamaConfig(**sizes, vocab_size=61, intermediate_size=24, max_position_embeddings=32, pad_token_id=0)
        net = transformers.LlamaForCausalLM(llama)
        if quantized:
            quantization = library("torchao.quantization")
            quantization.quantize_(net.model, quantization.Int8WeightOnlyConfig())
        return peft.get_peft_model(net, getattr(peft, kind)(**config)).double()

    return Foreign(
        "torchao" if quantized else "peft", make, lambda: ((), {"input_ids": torch.randint(3, 61, (3, 6))}), lambda y: y.logits
    )


def _graph(layer: str, *sizes: int, trains: bool = True, **options: Any) -> Foreign:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
            self.layer = getattr(library("torch_geometric.nn"), layer)(*sizes, **options)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            return self.last(self.layer(self.first(x), edges).relu())

    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 1, 2], [1, 2, 3, 4, 5, 0, 0, 1]])
    return Foreign("torch_geometric", lambda: Net().double(), lambda: ((torch.randn(6, 4, dtype=F64), edges), {}), trains=trains)


def _graphs(pool: str, as_object: bool) -> Foreign:
    """A classifier of graphs, which get one row of outputs each, and three of them, as tensors or as one object."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = library("torch_geometric.nn")
            self.layer = layers.GINConv(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8)))
            self.last, self.pool = nn.Linear(8, 2), getattr(layers, pool)

        def of_tensors(self, x: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
            return self.last(self.pool(self.layer(x, edges), graph))

        def forward(self, data: Any, *others: Tensor) -> Tensor:
            return self.of_tensors(data.x, data.edge_index, data.batch) if as_object else self.of_tensors(data, *others)

    def batch() -> Arguments:
        data = library("torch_geometric.data")
        chains = [torch.stack([torch.arange(n - 1), torch.arange(1, n)]) for n in (3, 4, 5)]
        batch = data.Batch.from_data_list([data.Data(torch.randn(n, 4, dtype=F64), chains[n - 3]) for n in (3, 4, 5)])
        return (batch,) if as_object else (batch.x, batch.edge_index, batch.batch), {}

    return Foreign("torch_geometric", lambda: Net().double(), batch)


def _timm(name: str, size: int = 32, **config: Any) -> Foreign:
    return Foreign("timm", lambda: library("timm").create_model(name, num_classes=5, **config).double(), _images(size))


def _segmentation(architecture: str, encoder: str) -> Foreign:
    def make() -> nn.Module:
        kind = getattr(library("segmentation_models_pytorch"), architecture)
        return kind(encoder_name=encoder, encoder_weights=None, classes=2).double()

    return Foreign("segmentation_models_pytorch", make, lambda: ((torch.randn(2, 3, 64, 64, dtype=F64),), {}))


def _clip(**inputs: Callable[[], Tensor]) -> Foreign:
    def make() -> nn.Module:
        vision = {"layers": 2, "width": 32, "head_width": 16, "image_size": 32, "patch_size": 8}
        text = {"context_length": 8, "vocab_size": 61, "width": 32, "heads": 2, "layers": 2}
        return library("open_clip").model.CLIP(embed_dim=16, vision_cfg=vision, text_cfg=text).double()

    position = list(inputs) == ["text"]
    return Foreign("open_clip", make, lambda: ((), {name: value() for name, value in inputs.items()}), lambda y: y[int(position)])


_BLOCKS = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
_QV = ["q_proj", "v_proj"]

LIBRARIES: dict[str, Foreign] = {
    "LoRA": _adapted("LoraConfig", r=2, target_modules=_QV, lora_dropout=0.1),
    "LoRA, all layers": _adapted("LoraConfig", r=2, target_modules="all-linear"),
    "LoRA, of embeddings": _adapted("LoraConfig", r=2, target_modules=["embed_tokens", "q_proj"]),
    "LoRA and a trained head": _adapted("LoraConfig", r=2, target_modules=_QV, modules_to_save=["lm_head"]),
    "DoRA": _adapted("LoraConfig", r=2, target_modules=_QV, use_dora=True),
    "IA3": _adapted("IA3Config", target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "LoHa": _adapted("LoHaConfig", r=2, target_modules=_QV),
    "LoKr": _adapted("LoKrConfig", r=2, target_modules=_QV),
    "OFT": _adapted("OFTConfig", r=0, oft_block_size=4, target_modules=_QV),
    "VeRA": _adapted("VeraConfig", r=2, target_modules=["q_proj"]),
    "layer normalization tuning": _adapted("LNTuningConfig", target_modules=["input_layernorm"]),
    "prompt tuning": _adapted("PromptTuningConfig", task_type="CAUSAL_LM", num_virtual_tokens=3),
    "prefix tuning": _adapted("PrefixTuningConfig", task_type="CAUSAL_LM", num_virtual_tokens=3),
    "p-tuning": _adapted("PromptEncoderConfig", task_type="CAUSAL_LM", num_virtual_tokens=3, encoder_hidden_size=8),
    "LoRA on 8-bit weights": _adapted("LoraConfig", quantized=True, r=2, target_modules=_QV),
    "LoRA and a trained head on 8-bit weights": _adapted(
        "LoraConfig", quantized=True, r=2, target_modules=_QV, modules_to_save=["lm_head"]
    ),
    "GCNConv": _graph("GCNConv", 8, 8),
    "SAGEConv": _graph("SAGEConv", 8, 8),
    "GATConv": _graph("GATConv", 8, 4, heads=2),
    "GATv2Conv": _graph("GATv2Conv", 8, 4, heads=2),
    "TransformerConv": _graph("TransformerConv", 8, 4, heads=2),
    "ChebConv": _graph("ChebConv", 8, 8, K=2),
    "GatedGraphConv": _graph("GatedGraphConv", 8, num_layers=2),
    "GENConv": _graph("GENConv", 8, 8),
    "ARMAConv": _graph("ARMAConv", 8, 8),
    "SGConv, cached": _graph("SGConv", 8, 8, K=2, cached=True, trains=False),
    "GINConv, classifier of graphs": _graphs("global_mean_pool", False),
    "GINConv, classifier of `Data`": _graphs("global_add_pool", True),
    "CLIP, images": _clip(image=lambda: torch.randn(3, 3, 32, 32, dtype=F64)),
    "CLIP, texts": _clip(text=lambda: torch.randint(1, 60, (3, 8))),
    "ViT": _timm("vit_tiny_patch16_224", **_BLOCKS),
    "ViT, relative positions": _timm("vit_relpos_small_patch16_224", **_BLOCKS),
    "ViT, registers": _timm("vit_small_patch14_reg4_dinov2", **_BLOCKS),
    "EVA-02": _timm("eva02_tiny_patch14_224", **_BLOCKS),
    "Swin": _timm("swin_tiny_patch4_window7_224", img_size=32, window_size=4, embed_dim=16, depths=(2, 2, 1, 1)),
    "ConvNeXt": _timm("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32)),
    "MobileNet v4": _timm("mobilenetv4_conv_small_050"),
    "BiT": _timm("resnetv2_50x1_bit", channels=(128, 128, 128, 128), stem_chs=32),
    "MobileNet v3 of TensorFlow": _timm("tf_mobilenetv3_small_minimal_100"),
    "Unet": _segmentation("Unet", "timm-mobilenetv3_small_minimal_100"),
}
