"""Small networks of libraries for time series, control, tables and images, with random weights."""

from __future__ import annotations

import random
from typing import Any

import torch
from foreign import F64, Arguments, Foreign, library, normal
from torch import Tensor, nn

__all__ = ["SERIES"]


class Part(nn.Module):
    """A part of the outputs of a network."""

    def __init__(self, net: nn.Module, *path: int) -> None:
        super().__init__()
        self.net, self.path = net, path

    def forward(self, *inputs: Any) -> Tensor:
        output = self.net(*inputs)
        for index in self.path:
            output = output[index]
        return output


def _liquid(name: str, wired: bool) -> Foreign:
    """A liquid network of ncps, over sequences."""

    def make() -> nn.Module:
        units = library("ncps.wirings").AutoNCP(8, 2) if wired else 8
        return Part(getattr(library("ncps.torch"), name)(4, units).double(), 0)

    return Foreign("ncps", make, normal((3, 5, 4)))


def _xlstm(scalar_at: list[int]) -> Foreign:
    def make() -> nn.Module:
        package = library("xlstm")
        matrix = package.mLSTMLayerConfig(conv1d_kernel_size=4, qkv_proj_blocksize=4, num_heads=2)
        config: dict[str, Any] = {"mlstm_block": package.mLSTMBlockConfig(mlstm=matrix)}
        if scalar_at:
            scalar = package.sLSTMLayerConfig(backend="vanilla", num_heads=2, conv1d_kernel_size=4)
            forward = package.FeedForwardConfig(proj_factor=1.3, act_fn="gelu")
            config |= {"slstm_block": package.sLSTMBlockConfig(slstm=scalar, feedforward=forward), "slstm_at": scalar_at}
        blocks = package.xLSTMBlockStack(package.xLSTMBlockStackConfig(context_length=8, num_blocks=2, embedding_dim=16, **config))
        return nn.Sequential(blocks, nn.Linear(16, 2)).double()

    return Foreign("xlstm", make, normal((3, 8, 16)))


def _forecast(module: str, name: str, past: int, *, masked: bool = True, **config: Any) -> Foreign:
    """A network of gluonts, and four windows, with a mask of observed values."""

    def make() -> nn.Module:
        return Part(getattr(library(f"gluonts.torch.model.{module}"), name)(prediction_length=3, **config).double(), 0, 0)

    return Foreign("gluonts", make, lambda: ((torch.randn(4, past, dtype=F64), torch.ones(4, past, dtype=F64))[: 1 + masked], {}))


_ATTENTION: dict[str, Any] = {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "dropout": 0.0, "activation": "relu"}
_ATTENTION |= {"norm_first": False, "num_encoder_layers": 1, "scaling": "mean"}


class DeepAR(nn.Module):
    """The first parameter of the distribution that DeepAR predicts."""

    def __init__(self) -> None:
        super().__init__()
        model = library("gluonts.torch.model.deepar.module").DeepARModel
        sizes = {"context_length": 6, "prediction_length": 3, "num_layers": 2, "hidden_size": 8, "lags_seq": [1, 2]}
        features = {"num_feat_dynamic_real": 1, "num_feat_static_real": 1, "num_feat_static_cat": 1, "cardinality": [2]}
        self.model = model(freq="D", dropout_rate=0.0, **sizes, **features)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.model.unroll_lagged_rnn(*inputs)[0][0]


def _histories() -> Arguments:
    past, future = torch.randn(4, 8, dtype=F64), torch.randn(4, 3, dtype=F64)
    of_times = torch.randn(4, 8, 1, dtype=F64), past, torch.ones_like(past), torch.randn(4, 3, 1, dtype=F64), future
    return (torch.tensor([[0], [1], [0], [1]]), torch.randn(4, 1, dtype=F64), *of_times), {}


def _pixels() -> nn.Module:
    spaces, layers = library("gymnasium.spaces"), library("stable_baselines3.common.torch_layers")
    space = spaces.Box(0, 255, (1, 36, 36), dtype="uint8")
    return nn.Sequential(layers.NatureCNN(space, features_dim=8, normalized_image=False), nn.Linear(8, 2)).double()


def _noisy() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), library("torchrl.modules").NoisyLinear(8, 2)).double()


def _table() -> nn.Module:
    random.seed(0)  # by which it chooses some of its initial weights
    sizes = {"dim": 8, "dim_out": 2, "depth": 2, "heads": 2, "dim_head": 4}
    return library("tab_transformer_pytorch").FTTransformer(categories=(3, 2), num_continuous=4, **sizes).double()


def _efficient() -> nn.Module:
    package = library("efficientnet_pytorch")
    blocks, config = package.utils.get_model_params("efficientnet-b0", {"num_classes": 3, "image_size": 32})
    return package.EfficientNet(blocks[:3], config._replace(width_coefficient=0.2, depth_coefficient=0.1, depth_divisor=2)).double()


def _patches() -> nn.Module:
    sizes = {"image_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
    net = library("kornia.models.vit").VisionTransformer(**sizes, dropout_rate=0.0, dropout_attn=0.0)
    return nn.Sequential(net, nn.Flatten(), nn.Linear(16 * 5, 2)).double()


SERIES: dict[str, Foreign] = {
    "CfC": _liquid("CfC", wired=False),
    "CfC, wired": _liquid("CfC", wired=True),
    "LTC": _liquid("LTC", wired=True),
    "mLSTM": _xlstm([]),
    "mLSTM and sLSTM": _xlstm([1]),
    "feedforward": _forecast("simple_feedforward", "SimpleFeedForwardModel", 6, masked=False, context_length=6),
    "DLinear": _forecast("d_linear.module", "DLinearModel", 6, context_length=6, hidden_dimension=8),
    "PatchTST": _forecast(
        "patch_tst.module",
        "PatchTSTModel",
        8,
        context_length=8,
        patch_len=4,
        stride=2,
        padding_patch="end",
        num_feat_dynamic_real=0,
        **_ATTENTION,
    ),
    "LagTST": _forecast("lag_tst.module", "LagTSTModel", 10, context_length=8, freq="D", lags_seq=[1, 2], **_ATTENTION),
    "DeepAR": Foreign("gluonts", lambda: DeepAR().double(), _histories),
    "NatureCNN": Foreign("stable_baselines3", _pixels, normal((3, 1, 36, 36))),
    "NoisyLinear": Foreign("torchrl", _noisy, normal((5, 4))),
    "FT-Transformer": Foreign(
        "tab_transformer_pytorch",
        _table,
        lambda: ((torch.tensor([[0, 1], [1, 0], [2, 1]]), torch.randn(3, 4, dtype=F64)), {}),
    ),
    "EfficientNet": Foreign("efficientnet_pytorch", _efficient, normal((3, 3, 32, 32))),
    "ViT": Foreign("kornia", _patches, normal((3, 3, 16, 16))),
}
