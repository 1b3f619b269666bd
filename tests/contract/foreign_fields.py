"""Small networks of libraries for sentences, molecules, brain signals, speech, spikes and equations, with random weights."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from foreign import F64, Arguments, Foreign, library, normal
from torch import Tensor, nn

__all__ = ["FIELDS"]


def _sentence(*sizes: int) -> Foreign:
    """A small BERT, pooled, with a dense layer if there are sizes; inputs and outputs are dicts."""

    def make() -> nn.Module:
        transformers, package = library("transformers"), library("sentence_transformers")
        modules = library("sentence_transformers.sentence_transformer.modules")
        base = library("sentence_transformers.base.modules")
        sizes_of_bert = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
        with tempfile.TemporaryDirectory() as folder:
            vocabulary = Path(folder, "vocab.txt")
            vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrst"]))
            config = transformers.BertConfig(vocab_size=25, max_position_embeddings=16, **sizes_of_bert)
            transformers.BertModel(config).save_pretrained(folder)
            transformers.BertTokenizer(str(vocabulary)).save_pretrained(folder)
            parts = [base.Transformer(folder), modules.Pooling(16), *([base.Dense(*sizes)] if sizes else [])]
        return package.SentenceTransformer(modules=parts, device="cpu").double()

    def tokens() -> Arguments:
        ids, mask = torch.randint(5, 25, (3, 8)), torch.ones(3, 8, dtype=torch.long)
        mask[1, 5:] = 0
        return ({"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)},), {}

    return Foreign("sentence_transformers", make, tokens, lambda y: y["sentence_embedding"])


def _molecules(kind: str, **config: Any) -> Foreign:
    """A message-passing network, and three molecules in one object: chains of atoms."""
    sys.modules.setdefault("cuik_molmaker", types.ModuleType("cuik_molmaker"))  # a compiled package for features of atoms

    def make() -> nn.Module:
        package, models = library("chemprop.nn"), library("chemprop.models")
        passing = getattr(package, kind)(d_v=5, d_e=3, d_h=8, depth=3)
        head = package.RegressionFFN(input_dim=8, hidden_dim=8)
        return models.MPNN(passing, package.MeanAggregation(), head, **config).double()

    def molecule(atoms: int) -> Any:
        features = torch.randn(atoms, 5, dtype=F64).numpy(), torch.randn(atoms - 1, 3, dtype=F64).numpy().repeat(2, 0)
        bonds = np.array([pair for i in range(atoms - 1) for pair in ((i, i + 1), (i + 1, i))]).T
        reverse = np.arange(2 * (atoms - 1)).reshape(-1, 2)[:, ::-1].ravel()
        return library("chemprop.data.molgraph").MolGraph(*features, bonds, reverse)

    def batch() -> Arguments:
        graphs = library("chemprop.data.collate").BatchMolGraph([molecule(n) for n in (4, 3, 5)])
        graphs.V, graphs.E = graphs.V.double(), graphs.E.double()
        return (graphs,), {}

    return Foreign("chemprop", make, batch)


def _brain_signals(name: str) -> Foreign:
    def make() -> nn.Module:
        with _importable_torchaudio():
            kind = getattr(library("braindecode.models"), name)
        return kind(n_chans=4, n_outputs=2, n_times=128, sfreq=64).double()

    return Foreign("braindecode", make, normal((3, 4, 128)))


def _speech(module: str, name: str, *shape: int, pick: Callable[[Any], Tensor] = lambda y: y, **config: Any) -> Foreign:
    def make() -> nn.Module:
        with _importable_torchaudio():
            kind = getattr(library(f"speechbrain.lobes.models.{module}"), name)
        return kind(**config).double()

    return Foreign("speechbrain", make, normal(shape), pick)


class _Anything(types.ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None)

    def __getattr__(self, name: str) -> type[nn.Module]:
        if name.startswith("__"):
            raise AttributeError(name)
        return nn.Identity


@contextmanager
def _importable_torchaudio() -> Iterator[None]:
    """Stand-ins for the package, which libraries import and these networks do not use."""
    names = () if importlib.util.find_spec("torchaudio") else ("torchaudio", "torchaudio.transforms", "torchaudio.functional")
    parts = {name: _Anything(name) for name in names}
    for name, part in parts.items():
        vars(parts["torchaudio"])[name.rpartition(".")[2]] = part
    sys.modules.update(parts)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


def _segmentation(name: str, blocks: str) -> Foreign:
    def make() -> nn.Module:
        package = library("dynamic_network_architectures.architectures.unet")
        sizes = {"features_per_stage": [4, 8, 8], "kernel_sizes": 3, "strides": [1, 2, 2], blocks: [1, 1, 1]}
        norms = {"norm_op": nn.InstanceNorm2d, "norm_op_kwargs": {"affine": True}, "nonlin": nn.LeakyReLU, "conv_bias": True}
        kind = getattr(package, name)
        return kind(1, 3, conv_op=nn.Conv2d, num_classes=2, n_conv_per_stage_decoder=[1, 1], **sizes, **norms).double()

    return Foreign("dynamic_network_architectures", make, normal((3, 1, 16, 16)))


class Spiking(nn.Module):
    """Leaky neurons, whose states begin at zero, for a few steps."""

    def __init__(self) -> None:
        super().__init__()
        neurons = library("snntorch")
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.hidden, self.readout = neurons.Leaky(beta=0.9, learn_beta=True), neurons.Leaky(beta=0.8)

    def forward(self, x: Tensor) -> Tensor:
        hidden, readout = x.new_zeros(len(x), 8), x.new_zeros(len(x), 2)
        outputs = []
        for _ in range(4):
            spikes, hidden = self.hidden(self.first(x), hidden)
            _, readout = self.readout(self.last(spikes), readout)
            outputs.append(readout)
        return torch.stack(outputs, 1)


class ResetSpiking(nn.Module):
    """Neurons that keep their states, and are reset at the beginning."""

    def __init__(self, steps: str) -> None:
        super().__init__()
        layers, neuron = (library(f"spikingjelly.activation_based.{part}") for part in ("layer", "neuron"))
        self.first, self.neurons, self.last = layers.Linear(4, 8), neuron.LIFNode(), layers.Linear(8, 2)
        self.steps = steps
        library("spikingjelly.activation_based.functional").set_step_mode(self, steps)

    def forward(self, x: Tensor) -> Tensor:
        library("spikingjelly.activation_based.functional").reset_net(self)
        if self.steps == "m":  # all at once, in a first dimension
            return self.last(self.neurons(self.first(x.expand(3, *x.shape)))).mean(0)
        return torch.stack([self.last(self.neurons(self.first(x))) for _ in range(3)]).mean(0)


def _equations(name: str, sizes: list[Any], *inputs: tuple[int, ...]) -> Foreign:
    def make() -> nn.Module:
        os.environ.setdefault("DDE_BACKEND", "pytorch")
        kind = getattr(library("deepxde.nn.pytorch"), name)
        return kind(*sizes, "tanh", "Glorot normal").double()

    def points() -> Arguments:
        tensors = tuple(torch.randn(shape, dtype=F64) for shape in inputs)
        return (tensors if len(tensors) == 1 else (tensors,)), {}

    return Foreign("deepxde", make, points)


class Burgers(nn.Module):
    """The residual of an equation, with second derivatives of a network."""

    def __init__(self) -> None:
        super().__init__()
        os.environ.setdefault("DDE_BACKEND", "pytorch")
        self.solution = library("deepxde.nn.pytorch").FNN([2, 8, 8, 1], "tanh", "Glorot normal")

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = self.solution(x)
            (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first[:, 0].sum(), x, create_graph=True)
        return first[:, 1:] + y * first[:, :1] - 0.1 * second[:, :1]


_ECAPA = {"channels": [8] * 5, "attention_channels": 4, "res2net_scale": 2, "se_channels": 4, "lin_neurons": 4}
_CRDNN = {"cnn_blocks": 1, "cnn_channels": [4], "rnn_layers": 1, "rnn_neurons": 8, "dnn_blocks": 1, "dnn_neurons": 8}
_ENCODER = {"num_layers": 2, "d_model": 8, "nhead": 2, "attention_type": "regularMHA", "kernel_size": 3, "dropout": 0.0}

FIELDS: dict[str, Foreign] = {
    "BERT, pooled": _sentence(),
    "BERT, pooled, dense": _sentence(16, 4),
    "messages of bonds": _molecules("BondMessagePassing"),
    "messages of atoms": _molecules("AtomMessagePassing"),
    "messages of bonds, normalized": _molecules("BondMessagePassing", batch_norm=True),
    **{name: _brain_signals(name) for name in ("EEGNet", "ShallowFBCSPNet", "EEGTCNet", "SCCNet", "SleepStagerChambon2018")},
    "ECAPA-TDNN": _speech("ECAPA_TDNN", "ECAPA_TDNN", 3, 20, 6, input_size=6, **_ECAPA),
    "CRDNN": _speech("CRDNN", "CRDNN", 3, 20, 8, input_size=8, **_CRDNN),
    "Conformer": _speech("transformer.Conformer", "ConformerEncoder", 3, 10, 8, d_ffn=16, pick=lambda y: y[0], **_ENCODER),
    "Branchformer": _speech(
        "transformer.Branchformer", "BranchformerEncoder", 3, 10, 8, csgu_linear_units=8, pick=lambda y: y[0], **_ENCODER
    ),
    "PlainConvUNet": _segmentation("PlainConvUNet", "n_conv_per_stage"),
    "ResidualEncoderUNet": _segmentation("ResidualEncoderUNet", "n_blocks_per_stage"),
    "leaky neurons": Foreign("snntorch", Spiking, lambda: ((torch.randn(6, 4),), {})),
    "steps in a loop": Foreign("spikingjelly", lambda: ResetSpiking("s").double(), normal((6, 4))),
    "steps at once": Foreign("spikingjelly", lambda: ResetSpiking("m").double(), normal((6, 4))),
    "PFNN": _equations("PFNN", [[3, [8, 8], [8, 8], 2]], (6, 3)),
    "DeepONet": _equations("DeepONet", [[4, 8, 8], [2, 8, 8]], (6, 4), (6, 2)),
    "DeepONet, all points for all functions": _equations("DeepONetCartesianProd", [[4, 8, 8], [2, 8, 8]], (6, 4), (5, 2)),
    "residual of an equation": Foreign("deepxde", lambda: Burgers().double(), normal((6, 2))),
}
