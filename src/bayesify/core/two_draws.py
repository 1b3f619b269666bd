"""Passes over a few rows with two draws of all random layers, by which a network is judged.

The draws are the posterior means with 30 % noise, whatever the posterior, because the question is one of structure. The network's
other noise (dropout) is replaced with constants.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bayesify.core.candidates import Candidate
from bayesify.core.first_batch import SetParameters
from bayesify.core.generators import OtherGenerators, own_noise
from bayesify.core.inputs import Arguments, Inputs
from bayesify.core.layer import BayesianLayer
from bayesify.core.modes import attributes_kept, buffers_kept, constants_moved, hooks_kept, own_casts
from bayesify.core.noise_free import NoiseFree
from bayesify.core.passes import Passes
from bayesify.core.shards import with_whole_parameters
from bayesify.core.watch import WatchedPass

__all__ = ["TwoDraws", "tensors_of"]

_SPREAD = 0.3


class TwoDraws:
    """Passes with the same two draws of all layers.

    Attributes:
        drawn: weight and bias of both draws, by layer; one draw, if a layer draws once for both.
        without_rows: the layers whose inputs do not depend on the batch.
        draws_noise: whether the network drew noise of its own.
        draws_elsewhere: whether it drew noise of other libraries, which passes over other rows do not share.
    """

    def __init__(self, net: nn.Module, layers: Collection[BayesianLayer], passes: Passes) -> None:
        self.net, self.layers, self.passes = net, layers, passes
        self.drawn: dict[BayesianLayer, tuple[Tensor, Tensor | None]] = {}
        self.without_rows: set[BayesianLayer] = set()
        self.draws_noise = False
        self.draws_elsewhere = False
        self._set = SetParameters(net)

    @contextmanager
    def with_draws(self) -> Iterator[None]:
        """Draw, and restore random generators and what the network changes of itself on exit; without gradients and warnings."""
        with (
            torch.no_grad(),
            own_casts(),
            own_noise(self.net.parameters()) as reseed,
            buffers_kept(self.net),
            attributes_kept(self._plain_modules()),
            hooks_kept(self.net),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # of a checkpoint without gradients
            reseed(0)
            for layer in self.layers:
                self.drawn[layer] = with_whole_parameters(layer, lambda layer=layer: _two_draws(layer))
            with constants_moved(self._plain_modules()):
                yield
            self._set.restore()

    def _plain_modules(self) -> list[nn.Module]:
        """The modules of the network that are not parts of its random layers."""
        parts = {part for layer in self.layers for part in layer.modules()}
        return [module for module in self.net.modules() if module not in parts]

    def single(self, s: int, inputs: Inputs, candidate: Candidate, then: Callable[[Tensor], Tensor] = lambda x: x) -> list[Tensor]:
        """Outputs of draw s."""
        return self.run(candidate.single(inputs, then), WatchedPass(self.draw_of(s)))

    def once_and_repeated(self, samples: int) -> dict[BayesianLayer, Any]:
        """The first draw of all layers once, then the second, as S draws."""

        def repeated(x: Tensor) -> Tensor:
            return x if len(x) == samples else x[torch.arange(samples, device=x.device).clamp(max=len(x) - 1)]

        return {layer: tuple(None if x is None else repeated(x) for x in pair) for layer, pair in self.drawn.items()}

    def draw_of(self, s: int) -> dict[BayesianLayer, tuple[Tensor, Tensor | None]]:
        """Weight and bias of draw s, by layer."""

        def one(x: Tensor) -> Tensor:
            return x[s : s + 1] if len(x) > 1 else x

        return {layer: (one(weight), None if bias is None else one(bias)) for layer, (weight, bias) in self.drawn.items()}

    def run(self, arguments: Arguments, forward_pass: WatchedPass) -> list[Tensor]:
        """Tensors of the outputs of a pass, watched where the pass has a watch."""
        args, kwargs = arguments
        with forward_pass.watch or nullcontext():
            return self.run_with(lambda: self.passes.run(forward_pass, self.net, args, kwargs))

    def run_with(self, run: Callable[[], Any]) -> list[Tensor]:
        """Tensors of the outputs of a pass without the network's own noise."""
        with NoiseFree() as noise_free, OtherGenerators() as others, self._set.watch():
            outputs = run()
        self.draws_noise |= noise_free.replaced
        self.draws_elsewhere |= others.used
        return tensors_of(outputs)


def tensors_of(outputs: Any) -> list[Tensor]:
    """The tensors in what a network returns."""
    return [y for y in tree_leaves(outputs) if isinstance(y, Tensor)]


def _two_draws(layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
    """Weight (2, *) and bias (2, *) around the posterior mean."""
    weight, bias = layer.posterior.mean(layer)

    def around(mean: Tensor) -> Tensor:
        norm = float(torch.linalg.vector_norm(mean if mean.element_size() > 2 else mean.float()))
        scale = norm / math.sqrt(max(1, mean.numel())) or 1 / math.sqrt(layer.fan_in)
        return torch.randn(2, *mean.shape, dtype=mean.dtype, device=mean.device).mul_(_SPREAD * scale).add_(mean)

    return layer.constrained(around(weight)), None if bias is None else around(bias)
