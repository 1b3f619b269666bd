"""Modules of PyTorch that keep the weights of several linear layers in parameters of their own, and do not call them as layers.

`nn.MultiheadAttention` and recurrent networks are such modules. To make their weights random, `bayesify` turns each into an
`Unpacked` one, which computes the same with layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import cast

from torch import nn

from bayesify.core.layer import BayesianLayer
from bayesify.core.layer_report import LayerReport
from bayesify.core.packed.attention import UnpackedMultiheadAttention
from bayesify.core.packed.recurrent import (
    UnpackedGRU,
    UnpackedGRUCell,
    UnpackedLSTM,
    UnpackedLSTMCell,
    UnpackedRNN,
    UnpackedRNNCell,
)
from bayesify.core.packed.unpacked import Unpacked, is_inner

__all__ = ["Unpacked", "Unpacking", "initial_bounds", "is_inner", "pack"]

_KINDS: dict[type[nn.Module], type[Unpacked]] = {
    kind.packed: kind
    for kind in (
        UnpackedMultiheadAttention,
        UnpackedLSTM,
        UnpackedGRU,
        UnpackedRNN,
        UnpackedLSTMCell,
        UnpackedGRUCell,
        UnpackedRNNCell,
    )
}


@dataclasses.dataclass
class Unpacking:
    """The modules of a network that were unpacked, by name, until it is known which of them have random parts.

    Attributes:
        modules: name and module.
        owners: for every part, by its name in the network, the name of its module; attention's `out_proj` included.
    """

    modules: dict[str, Unpacked] = dataclasses.field(default_factory=dict)
    owners: dict[str, str] = dataclasses.field(default_factory=dict)
    _before: dict[str, dict[str, nn.Parameter | None]] = dataclasses.field(default_factory=dict)

    @staticmethod
    def of(net: nn.Module, tied: Collection[int]) -> Unpacking:
        """Unpack all modules that can be, in place.

        Args:
            net: the plain network.
            tied: ids of parameters that several modules share, which would no longer be shared.
        """
        unpacking = Unpacking()
        for name, module in list(net.named_modules()):
            kind = _KINDS.get(type(module))
            if kind is not None and _is_whole(module, kind, tied):
                unpacking._before[name] = dict(module._parameters)
                cast(nn.Module, module).__class__ = kind
                assert isinstance(module, Unpacked)
                module.unpack()
                unpacking.modules[name] = module
                unpacking.owners |= dict.fromkeys((f"{name}.{part}".lstrip(".") for part, _ in module.named_children()), name)
        return unpacking

    def is_called(self, name: str) -> bool:
        """Whether the network calls this layer; recurrent networks compute with the weights of theirs."""
        return name not in self.owners or self.modules[self.owners[name]].calls_parts

    def undo_all(self) -> None:
        """Make all modules what they were before; their parts are plain layers."""
        for name in list(self.modules):
            self._undo(name)

    def undo_plain(
        self, reports: Sequence[LayerReport], hindered: dict[str, str], sizes: dict[str, dict[int, int]]
    ) -> list[LayerReport]:
        """Undo the modules of which no part became random; return the reports with one for each of them.

        Args:
            reports: on all layers.
            hindered: name and type of layers that could not be made random, in which modules replace their parts.
            sizes: of the parameters of every layer, to which those of the modules are added.
        """
        plain = {name for name, module in self.modules.items() if not any(isinstance(m, BayesianLayer) for m in module.modules())}
        merged = dict[str, LayerReport]()
        for report in reports:
            name = self.owners.get(report.name)
            if name not in plain:
                merged[report.name] = report
                continue
            kind = self.modules[name].packed.__name__
            merged.setdefault(name, LayerReport(name, kind, None, report.reason))
            sizes.setdefault(name, {}).update(sizes[report.name])
            if hindered.pop(report.name, None):
                hindered[name] = kind
        for name in plain:
            self._undo(name)
        return list(merged.values())

    def _undo(self, name: str) -> None:
        self.modules.pop(name).pack(self._before.pop(name))


def _is_whole(module: nn.Module, kind: type[Unpacked], tied: Collection[int]) -> bool:
    """Whether a module has all its parameters, as its own."""
    expected = kind.layout(cast(Unpacked, module))
    own = [module._parameters.get(name) for name in expected]
    is_plain = "forward" not in vars(module) and all(name in module._parameters for name in expected)
    return is_plain and not any(id(p) in tied or isinstance(p, nn.UninitializedParameter) for p in own if p is not None)


def initial_bounds(net: nn.Module) -> Mapping[nn.Module, float]:
    """For parts of unpacked modules, the bound of their initial weights."""
    unpacked = [module for module in net.modules() if isinstance(module, Unpacked)]
    return {part: module.initial_bound(name) for module in unpacked for name, part in module.parts.items()}


def pack(net: nn.Module) -> None:
    """Pack all modules of a network, whose parts are plain layers, in place."""
    for module in list(net.modules()):
        if isinstance(module, Unpacked):
            module.pack()
