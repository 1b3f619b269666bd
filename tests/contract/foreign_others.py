"""Small networks of nine more libraries, for images, sequences, tables and densities, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from foreign import F64, Arguments, Foreign, library, normal
from torch import Tensor, nn

__all__ = ["OTHERS"]


def _tokens() -> Arguments:
    return (torch.randint(1, 61, (3, 8)),), {}


def _vit(module: str, name: str, size: int = 32, **config: Any) -> Foreign:
    def make() -> nn.Module:
        return getattr(library(f"vit_pytorch.{module}"), name)(num_classes=5, **config).double()

    return Foreign("vit_pytorch", make, normal((3, 3, size, size)))


def _language_model(**config: Any) -> Foreign:
    def make() -> nn.Module:
        package = library("x_transformers")
        layers = package.Decoder(dim=32, depth=2, heads=2, attn_dim_head=16, **config)
        return package.TransformerWrapper(num_tokens=61, max_seq_len=16, attn_layers=layers).double()

    return Foreign("x_transformers", make, _tokens)


def _perceiver() -> nn.Module:
    sizes = {"num_latents": 4, "latent_dim": 16, "cross_heads": 1, "latent_heads": 2, "cross_dim_head": 8, "latent_dim_head": 8}
    inputs = {"input_channels": 3, "input_axis": 2, "num_freq_bands": 2, "max_freq": 4.0}
    return library("perceiver_pytorch").Perceiver(depth=1, num_classes=5, **inputs, **sizes).double()


def _medical(name: str, size: int = 16, **config: Any) -> Foreign:
    def make() -> nn.Module:
        return getattr(library("monai.networks.nets"), name)(spatial_dims=2, in_channels=1, out_channels=2, **config).double()

    return Foreign("monai", make, normal((3, 1, size, size)))


def _diffusion(name: str, inputs: Callable[[], Arguments], **config: Any) -> Foreign:
    return Foreign("diffusers", lambda: getattr(library("diffusers"), name)(**config).double(), inputs, lambda y: y.sample)


def _detector() -> nn.Module:
    """A narrow YOLO, whose head keeps a grid for the last size of its images."""
    tasks = library("ultralytics.nn.tasks")
    config = tasks.yaml_model_load("yolo11n.yaml") | {"scales": {"n": [0.33, 0.0625, 64]}}
    return tasks.DetectionModel(config, nc=4, verbose=False).double()


def _table(name: str, inputs: Callable[[], Arguments], **config: Any) -> Foreign:
    def make() -> nn.Module:
        return getattr(library("rtdl_revisiting_models"), name)(d_out=2, n_blocks=2, **config).double()

    return Foreign("rtdl_revisiting_models", make, inputs)


def _tabnet() -> nn.Module:
    groups = torch.eye(4, dtype=F64)
    sizes = {"n_d": 4, "n_a": 4, "n_steps": 2, "virtual_batch_size": 6, "group_attention_matrix": groups}
    return library("pytorch_tabnet.tab_network").TabNet(4, 2, **sizes).double()


class Flow(nn.Module):
    """A normalizing flow, and the logarithm of its determinant as a last column."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        flows = library("normflows").flows
        if kind == "spline":
            layers = [flows.CoupledRationalQuadraticSpline(4, 1, 8)]
        else:
            networks = library("normflows").nets
            mask = torch.tensor([1.0, 0.0, 1.0, 0.0])
            layers = [flows.MaskedAffineFlow(mask, networks.MLP([4, 8, 4]), networks.MLP([4, 8, 4])), flows.ActNorm(4)]
        self.layers = nn.ModuleList(layers)
        if kind == "initialized":
            self(torch.randn(32, 4))

    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(len(x))
        for layer in self.layers:
            x, log_determinant = layer(x)
            total = total + log_determinant
        return torch.cat([x, total[:, None]], 1)


def _flow(kind: str) -> Foreign:
    return Foreign("normflows", lambda: Flow(kind).double(), normal((6, 4)))


_VIT = {"image_size": 32, "patch_size": 8, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 48}
_UNET: dict[str, Any] = {
    "sample_size": 16,
    "in_channels": 1,
    "out_channels": 1,
    "layers_per_block": 1,
    "block_out_channels": (8, 16),
    "norm_num_groups": 4,
    "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
    "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
}
_VAE: dict[str, Any] = {
    "in_channels": 1,
    "out_channels": 1,
    "block_out_channels": (8, 8),
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "norm_num_groups": 4,
    "latent_channels": 2,
}
_DIT = {
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "in_channels": 2,
    "num_layers": 1,
    "sample_size": 8,
    "norm_num_groups": 2,
}

OTHERS: dict[str, Foreign] = {
    "ViT": _vit("vit", "ViT", **_VIT),
    "CaiT": _vit("cait", "CaiT", **_VIT, cls_depth=1),
    "NesT": _vit("nest", "NesT", image_size=32, patch_size=4, dim=16, heads=2, num_hierarchies=2, block_repeats=(1, 1)),
    "XCiT": _vit("xcit", "XCiT", **_VIT, cls_depth=1),
    "RegionViT": _vit("regionvit", "RegionViT", 64, dim=(8, 8, 8, 8), depth=(1, 1, 1, 1), window_size=2),
    "ViT with a learned memory": _vit("learnable_memory_vit", "ViT", **_VIT),
    "decoder": _language_model(),
    "decoder, rotary, RMSNorm": _language_model(rotary_pos_emb=True, use_rmsnorm=True, ff_swish=True, ff_glu=True),
    "decoder, relative positions": _language_model(rel_pos_bias=True),
    "decoder, memory": _language_model(attn_num_mem_kv=2, attn_pre_talking_heads=True),
    "Perceiver": Foreign("perceiver_pytorch", _perceiver, normal((3, 6, 6, 3))),
    "UNet": _medical("UNet", channels=(4, 8, 16), strides=(2, 2), num_res_units=1),
    "AttentionUnet": _medical("AttentionUnet", channels=(4, 8, 16), strides=(2, 2)),
    "SegResNet": _medical("SegResNet", init_filters=8, blocks_down=(1, 1), blocks_up=(1,)),
    "SwinUNETR": _medical("SwinUNETR", 64, feature_size=12, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2), window_size=4),
    "UNet of diffusion": _diffusion("UNet2DModel", normal((3, 1, 16, 16), timestep=torch.tensor([3, 5, 7])), **_UNET),
    "UNet of diffusion, one time": _diffusion("UNet2DModel", normal((3, 1, 16, 16), timestep=7), **_UNET),
    "VAE": _diffusion("AutoencoderKL", normal((3, 1, 16, 16)), **_VAE),
    "DiT": _diffusion(
        "DiTTransformer2DModel",
        normal((3, 2, 8, 8), timestep=torch.tensor([1, 2, 3]), class_labels=torch.tensor([0, 1, 2])),
        **_DIT,
    ),
    "YOLO11": Foreign("ultralytics", _detector, normal((2, 3, 64, 64)), lambda y: y["scores"] if isinstance(y, dict) else y[0]),
    "MLP": _table("MLP", normal((6, 4)), d_in=4, d_block=8, dropout=0.1),
    "ResNet": _table(
        "ResNet", normal((6, 4)), d_in=4, d_block=8, d_hidden=None, d_hidden_multiplier=2.0, dropout1=0.1, dropout2=0.0
    ),
    "FT-Transformer": _table(
        "FTTransformer",
        normal((6, 3), x_cat=torch.tensor([[0], [1], [2], [3], [0], [1]])),
        n_cont_features=3,
        cat_cardinalities=[4],
        d_block=16,
        attention_n_heads=2,
        attention_dropout=0.1,
        ffn_d_hidden=None,
        ffn_d_hidden_multiplier=2,
        ffn_dropout=0.1,
        residual_dropout=0.0,
    ),
    "TabNet": Foreign("pytorch_tabnet", _tabnet, normal((6, 4)), lambda y: y[0]),
    "coupled spline": _flow("spline"),
    "RealNVP and ActNorm": _flow("initialized"),
    "RealNVP and ActNorm, not initialized": _flow("new"),
}
