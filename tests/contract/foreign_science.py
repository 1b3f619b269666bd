"""Small networks of libraries for forecasts, tables and the sciences, with random weights."""

from __future__ import annotations

from typing import Any

import torch
from foreign import F64, Arguments, Foreign, library, normal
from torch import Tensor, nn

__all__ = ["SCIENCE"]


def _forecast(name: str, **config: Any) -> Foreign:
    """A network of neuralforecast, and a batch of three windows of 12 steps."""

    def make() -> nn.Module:
        return getattr(library("neuralforecast.models"), name)(h=4, input_size=12, max_steps=1, **config).double()

    def windows() -> Arguments:
        batch = {"futr_exog": None, "hist_exog": None, "outsample_mask": None, "insample_mask": torch.ones(3, 12, 1, dtype=F64)}
        static = torch.randn(3, 1, dtype=F64) if "stat_exog_list" in config else None
        return ({**batch, "insample_y": torch.randn(3, 12, 1, dtype=F64), "stat_exog": static},), {}

    return Foreign("neuralforecast", make, windows)


def _bolt() -> nn.Module:
    transformers, bolt = library("transformers"), library("chronos.chronos_bolt")
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2, "vocab_size": 2}
    series = {"context_length": 16, "prediction_length": 4, "input_patch_size": 4, "input_patch_stride": 4, "quantiles": [0.1, 0.5]}
    config = transformers.T5Config(**sizes, reg_token_id=1, pad_token_id=0, decoder_start_token_id=0)
    config.chronos_config = {**series, "use_reg_token": True}
    return bolt.ChronosBoltModelForForecasting(config).double()


def _tabm(**config: Any) -> Foreign:
    def make() -> nn.Module:
        sizes = {"n_num_features": 4, "cat_cardinalities": [3], "d_out": 2, "n_blocks": 2, "d_block": 8, "k": 4}
        return library("tabm").TabM.make(**sizes, **config).double()

    return Foreign("tabm", make, lambda: ((torch.randn(6, 4, dtype=F64), torch.tensor([[0], [1], [2], [0], [1], [2]])), {}))


def _embeddings(name: str, **config: Any) -> Foreign:
    def make() -> nn.Module:
        embed = getattr(library("rtdl_num_embeddings"), name)
        return nn.Sequential(embed(4, 8, **config), nn.Flatten(), nn.Linear(32, 2)).double()

    return Foreign("rtdl_num_embeddings", make, normal((6, 4)))


def _operator(name: str, **config: Any) -> Foreign:
    def make() -> nn.Module:
        net = getattr(library("neuralop.models"), name)(in_channels=1, out_channels=1, **config).double()
        for parameter in net.parameters():
            if parameter.is_complex():  # which `double` leaves as they are
                parameter.data = parameter.data.to(torch.complex128)
        return net

    return Foreign("neuralop", make, normal((3, 1, 8, 8)))


class Equivariant(nn.Module):
    """A vector from scalars and vectors, by weights of a network of the distance."""

    def __init__(self) -> None:
        super().__init__()
        o3, package = library("e3nn.o3"), library("e3nn.nn")
        self.product = o3.FullyConnectedTensorProduct("2x0e + 1x1o", "1x0e + 1x1o", "1x1o", shared_weights=False)
        self.weights = package.FullyConnectedNet([3, 8, self.product.weight_numel], torch.tanh)
        self.linear = o3.Linear("1x1o", "2x0e + 1x1o")
        self.last = nn.Linear(5, 2)

    def forward(self, x: Tensor, directions: Tensor, distances: Tensor) -> Tensor:
        return self.last(self.linear(self.product(x, directions, self.weights(distances))))


def _kan() -> nn.Module:
    return library("kan").KAN(width=[3, 4, 2], grid=3, k=3, auto_save=False, save_act=False, symbolic_enabled=False).double()


def _mamba() -> nn.Module:
    package = library("mambapy.mamba")
    return package.Mamba(package.MambaConfig(d_model=8, n_layers=2)).double()


def _gpt(**config: Any) -> Foreign:
    def make() -> nn.Module:
        package = library("litgpt.model")
        sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 16, "vocab_size": 61, "padded_vocab_size": 61}
        return package.GPT(package.Config(**sizes, **config)).double()

    return Foreign("litgpt", make, lambda: ((torch.randint(1, 61, (3, 8)),), {}))


class Hyperbolic(nn.Module):
    """A layer between linear ones in the Poincaré ball."""

    def __init__(self) -> None:
        super().__init__()
        geoopt = library("geoopt")
        self.ball = geoopt.PoincareBall()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.shift = geoopt.ManifoldParameter(torch.full((8,), 0.1), manifold=self.ball)

    def forward(self, x: Tensor) -> Tensor:
        inside = self.ball.expmap0(self.first(x))
        return self.last(self.ball.logmap0(self.ball.mobius_add(inside, self.shift)))


SCIENCE: dict[str, Foreign] = {
    "NHITS": _forecast("NHITS", mlp_units=3 * [[8, 8]]),
    "NBEATS": _forecast("NBEATS", mlp_units=3 * [[8, 8]]),
    "TFT": _forecast("TFT", hidden_size=8, n_head=2, stat_exog_list=["size"]),
    "PatchTST": _forecast("PatchTST", hidden_size=8, n_heads=2, encoder_layers=1, linear_hidden_size=8, patch_len=4, stride=2),
    "LSTM": _forecast("LSTM", encoder_hidden_size=8, encoder_n_layers=1, decoder_hidden_size=8),
    "TCN": _forecast("TCN", encoder_hidden_size=8, decoder_hidden_size=8),
    "DLinear": _forecast("DLinear", moving_avg_window=5),
    "Autoformer": _forecast("Autoformer", hidden_size=8, n_head=2, conv_hidden_size=8, encoder_layers=1),
    "Chronos-Bolt": Foreign("chronos", _bolt, lambda: ((torch.randn(3, 16, dtype=F64),), {}), lambda y: y.quantile_preds),
    "TabM": _tabm(),
    "TabM, packed": _tabm(arch_type="tabm-packed"),
    "periodic embeddings": _embeddings("PeriodicEmbeddings", lite=False),
    "piecewise linear embeddings": _embeddings("LinearReLUEmbeddings"),
    "FNO": _operator("FNO", n_modes=(4, 4), hidden_channels=8, n_layers=2),
    "UNO": _operator(
        "UNO",
        hidden_channels=8,
        uno_out_channels=[8, 8, 8],
        n_layers=3,
        uno_n_modes=[[4, 4]] * 3,
        uno_scalings=[[1.0, 1.0]] * 3,
        channel_mlp_skip="linear",
    ),
    "tensor product": Foreign("e3nn", lambda: Equivariant().double(), normal((6, 5), (6, 4), (6, 3))),
    "KAN": Foreign("kan", _kan, normal((6, 3))),
    "Mamba": Foreign("mambapy", _mamba, normal((3, 6, 8))),
    "GPT": _gpt(),
    "GPT, like Llama": _gpt(norm_class_name="RMSNorm", mlp_class_name="LLaMAMLP", intermediate_size=24, n_query_groups=1),
    "hyperbolic shift": Foreign("geoopt", lambda: Hyperbolic().double(), normal((6, 4))),
}
