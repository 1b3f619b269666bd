"""Architectures of torchvision, timm and transformers with random weights, each as small as its configuration allows.

Every entry makes a network of one argument that returns one tensor (B, K), and an input of B = 2 examples.
"""

import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

os.environ["HF_HUB_OFFLINE"] = "1"

__all__ = ["ARCHITECTURES"]

_LIBRARIES: list[torch.library.Library] = []  # what they define lives as long as they do


class Wrapped(nn.Module):
    """A network whose output is reduced to (B, K)."""

    def __init__(self, net: nn.Module, pick: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.net, self.pick = net, pick

    def forward(self, x: Tensor) -> Tensor:
        y = self.pick(self.net(x))
        return y if y.dim() == 2 else y.flatten(1, -2).mean(1)


def load_torchvision() -> Any:
    """The package, with stand-ins for compiled operators that cannot be loaded: a CUDA wheel next to a PyTorch without CUDA."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return None
    version = Path(spec.origin).with_name("version.py").read_text()
    if torch.version.cuda is None and re.search(r"^cuda *= *['\"]|\+cu\d", version, re.MULTILINE) and not _LIBRARIES:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _LIBRARIES.append(library)
    return importlib.import_module("torchvision")


def _image(size: int) -> Tensor:
    return torch.randn(2, 3, size, size)


def _torchvision(name: str, size: int, **config: Any) -> tuple[nn.Module, Tensor]:
    models = load_torchvision().models
    return models.get_model(name, weights=None, num_classes=5, **config), _image(size)


def _torchvision_class(module: str, name: str, size: int, config: Callable[[Any], dict[str, Any]]) -> tuple[nn.Module, Tensor]:
    load_torchvision()
    family = importlib.import_module(f"torchvision.models.{module}")
    return getattr(family, name)(num_classes=5, **config(family)), _image(size)


def _vgg() -> tuple[nn.Module, Tensor]:
    load_torchvision()
    vgg = importlib.import_module("torchvision.models.vgg")
    net = vgg.VGG(vgg.make_layers([8, "M", 16, "M"], batch_norm=True), num_classes=5, init_weights=False)
    net.classifier = nn.Sequential(nn.Linear(16 * 49, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 5))
    return net, _image(32)


def _timm(name: str, size: int = 64, **config: Any) -> tuple[nn.Module, Tensor]:
    load_torchvision()  # timm imports it
    timm = importlib.import_module("timm")
    return timm.create_model(name, pretrained=False, num_classes=5, **config), _image(size)


def _timm_class(
    module: str, name: str, size: int, classes: Callable[[Any], dict[str, Any]] = lambda module: {}, **config: Any
) -> tuple[nn.Module, Tensor]:
    load_torchvision()
    family = importlib.import_module(f"timm.models.{module}")
    return getattr(family, name)(num_classes=5, **classes(family), **config), _image(size)


def _transformers(model: str, config: dict[str, Any], x: Tensor | None = None, pick: str = "") -> tuple[nn.Module, Tensor]:
    load_torchvision()  # transformers imports it
    library = importlib.import_module("transformers")
    kind = getattr(library, model)
    net = kind(kind.config_class(**config))
    attribute = pick or ("logits" if "For" in model else "last_hidden_state")
    return Wrapped(net, lambda y: getattr(y, attribute)), torch.randint(3, 40, (2, 6)) if x is None else x


_TEXT: dict[str, Any] = {
    "vocab_size": 41,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
    "num_labels": 5,
    "pad_token_id": 0,
}
_PIXELS: dict[str, Any] = {"image_size": 32, "patch_size": 8, "num_labels": 5}
_VISION = _PIXELS | {name: _TEXT[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}

_MIXER: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "num_blocks": 2}
_BLOCKS: dict[str, Any] = {"embed_dim": 32, "depth": 2, "num_heads": 2}

ARCHITECTURES: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "torchvision vgg": _vgg,
    "torchvision resnet18": lambda: _torchvision_class(
        "resnet", "ResNet", 32, lambda m: {"block": m.BasicBlock, "layers": [1, 1, 1, 1]}
    ),
    "torchvision resnext": lambda: _torchvision_class(
        "resnet", "ResNet", 32, lambda m: {"block": m.Bottleneck, "layers": [1, 1, 1, 1], "groups": 32, "width_per_group": 4}
    ),
    "torchvision densenet": lambda: _torchvision_class(
        "densenet", "DenseNet", 32, lambda m: {"growth_rate": 8, "block_config": (2, 2), "num_init_features": 16}
    ),
    "torchvision squeezenet1_1": lambda: _torchvision("squeezenet1_1", 64),
    "torchvision googlenet": lambda: _torchvision("googlenet", 64, aux_logits=False, init_weights=False),
    "torchvision inception_v3": lambda: _torchvision("inception_v3", 75, aux_logits=False, init_weights=False),
    "torchvision mobilenet_v2": lambda: _torchvision("mobilenet_v2", 32, width_mult=0.35),
    "torchvision mobilenet_v3_small": lambda: _torchvision("mobilenet_v3_small", 32),
    "torchvision shufflenet_v2": lambda: _torchvision("shufflenet_v2_x0_5", 32),
    "torchvision mnasnet": lambda: _torchvision("mnasnet0_5", 32),
    "torchvision efficientnet_b0": lambda: _torchvision("efficientnet_b0", 32),
    "torchvision regnet_y_400mf": lambda: _torchvision("regnet_y_400mf", 32),
    "torchvision convnext": lambda: _torchvision_class(
        "convnext",
        "ConvNeXt",
        32,
        lambda m: {"block_setting": [m.CNBlockConfig(16, 32, 1), m.CNBlockConfig(32, None, 1)]},
    ),
    "torchvision vit": lambda: _torchvision_class(
        "vision_transformer",
        "VisionTransformer",
        32,
        lambda m: {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 24},
    ),
    "torchvision swin_t": lambda: _torchvision_class(
        "swin_transformer",
        "SwinTransformer",
        32,
        lambda m: {"patch_size": [2, 2], "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 2], "window_size": [4, 4]},
    ),
    "torchvision swin_v2_t": lambda: _torchvision_class(
        "swin_transformer",
        "SwinTransformer",
        32,
        lambda m: {
            "patch_size": [2, 2],
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 2],
            "window_size": [4, 4],
            "block": m.SwinTransformerBlockV2,
            "downsample_layer": m.PatchMergingV2,
        },
    ),
    "torchvision maxvit": lambda: _torchvision_class(
        "maxvit",
        "MaxVit",
        64,
        lambda m: {
            "input_size": (64, 64),
            "stem_channels": 8,
            "partition_size": 4,
            "block_channels": [8, 16],
            "block_layers": [1, 1],
            "head_dim": 4,
            "stochastic_depth_prob": 0.0,
        },
    ),
    "timm resnet10t": lambda: _timm("resnet10t", 32),
    "timm seresnet": lambda: _timm("seresnet18", 32),
    "timm nf_resnet": lambda: _timm("nf_resnet26", 32),
    "timm mobilenetv3_small": lambda: _timm("mobilenetv3_small_050", 32),
    "timm efficientnet_lite0": lambda: _timm("efficientnet_lite0", 32),
    "timm ghostnet": lambda: _timm("ghostnet_050", 32),
    "timm regnety_002": lambda: _timm("regnety_002", 32),
    "timm repvgg": lambda: _timm("repvgg_a0", 32),
    "timm hrnet": lambda: _timm("hrnet_w18_small", 64),
    "timm convnext_atto": lambda: _timm("convnext_atto", 32, depths=(1, 1, 1, 1)),
    "timm convnextv2_atto": lambda: _timm("convnextv2_atto", 32, depths=(1, 1, 1, 1)),
    "timm vit": lambda: _timm("vit_tiny_patch16_224", 32, img_size=32, patch_size=8, **_BLOCKS),
    "timm deit3": lambda: _timm("deit3_small_patch16_224", 32, img_size=32, patch_size=8, **_BLOCKS),
    "timm beit": lambda: _timm("beit_base_patch16_224", 32, img_size=32, patch_size=8, **_BLOCKS),
    "timm eva02": lambda: _timm("eva02_tiny_patch14_224", 32, img_size=32, patch_size=8, **_BLOCKS),
    "timm swin": lambda: _timm("swin_tiny_patch4_window7_224", 32, img_size=32, window_size=4, embed_dim=16, depths=(2, 2, 1, 1)),
    "timm swinv2": lambda: _timm("swinv2_tiny_window8_256", 32, img_size=32, window_size=4, embed_dim=12, depths=(2, 2, 1, 1)),
    "timm mixer": lambda: _timm_class("mlp_mixer", "MlpMixer", 32, **_MIXER),
    "timm gmlp": lambda: _timm_class(
        "mlp_mixer",
        "MlpMixer",
        32,
        lambda m: {"block_layer": m.SpatialGatingBlock, "mlp_layer": m.GatedMlp, "mlp_ratio": 4},
        **_MIXER,
    ),
    "timm resmlp": lambda: _timm_class(
        "mlp_mixer", "MlpMixer", 32, lambda m: {"block_layer": m.ResBlock, "mlp_ratio": 4}, **_MIXER
    ),
    "timm poolformer": lambda: _timm("poolformer_s12", 32),
    "timm pvt_v2": lambda: _timm("pvt_v2_b0", 32, depths=(1, 1, 1, 1)),
    "timm cait": lambda: _timm("cait_xxs24_224", 32, img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2),
    "timm xcit": lambda: _timm("xcit_nano_12_p16_224", 32, img_size=32, embed_dim=32, depth=2, num_heads=2),
    "timm levit": lambda: _timm("levit_128s", 64, img_size=64),
    "timm twins": lambda: _timm("twins_svt_small", 64, img_size=64, depths=(1, 1, 2, 1)),
    "timm coat_lite": lambda: _timm("coat_lite_tiny", 64, img_size=64),
    "timm mobilevit": lambda: _timm("mobilevit_xxs", 64),
    "timm edgenext": lambda: _timm("edgenext_xx_small", 64),
    "timm visformer": lambda: _timm("visformer_tiny", 64, img_size=64),
    "timm focalnet": lambda: _timm_class("focalnet", "FocalNet", 32, embed_dim=16, depths=(1, 1, 1, 1)),
    "transformers bert": lambda: _transformers("BertForSequenceClassification", _TEXT),
    "transformers bert, bare": lambda: _transformers("BertModel", _TEXT),
    "transformers roberta": lambda: _transformers("RobertaForSequenceClassification", _TEXT | {"pad_token_id": 1}),
    "transformers distilbert": lambda: _transformers(
        "DistilBertForSequenceClassification", {"vocab_size": 41, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
    ),
    "transformers electra": lambda: _transformers("ElectraForSequenceClassification", _TEXT | {"embedding_size": 8}),
    "transformers albert": lambda: _transformers("AlbertForSequenceClassification", _TEXT | {"embedding_size": 8}),
    "transformers deberta-v2": lambda: _transformers(
        "DebertaV2ForSequenceClassification",
        _TEXT | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 4, "max_relative_positions": 8},
    ),
    "transformers fnet": lambda: _transformers("FNetForSequenceClassification", _TEXT),
    "transformers xlnet": lambda: _transformers(
        "XLNetForSequenceClassification", {"vocab_size": 41, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24}
    ),
    "transformers gpt2": lambda: _transformers(
        "GPT2Model", {"vocab_size": 41, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    ),
    "transformers llama": lambda: _transformers("LlamaModel", _TEXT | {"num_key_value_heads": 1}),
    "transformers mixtral": lambda: _transformers(
        "MixtralModel", _TEXT | {"num_key_value_heads": 1, "num_local_experts": 3, "num_experts_per_tok": 2}
    ),
    "transformers t5 encoder": lambda: _transformers(
        "T5EncoderModel", {"vocab_size": 41, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    ),
    "transformers mamba": lambda: _transformers("MambaModel", {"vocab_size": 41, "hidden_size": 16, "num_hidden_layers": 2}),
    "transformers vit": lambda: _transformers("ViTForImageClassification", _VISION, _image(32)),
    "transformers dinov2": lambda: _transformers("Dinov2ForImageClassification", _VISION, _image(32)),
    "transformers beit": lambda: _transformers("BeitForImageClassification", _VISION, _image(32)),
    "transformers swin": lambda: _transformers(
        "SwinForImageClassification",
        _PIXELS | {"patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4},
        _image(32),
    ),
    "transformers convnext": lambda: _transformers(
        "ConvNextForImageClassification", _PIXELS | {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}, _image(32)
    ),
    "transformers segformer": lambda: _transformers(
        "SegformerForImageClassification", {"num_labels": 5, "depths": [1, 1, 1, 1]}, _image(64)
    ),
}
