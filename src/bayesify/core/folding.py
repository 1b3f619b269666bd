"""May draws share a pass, folded into its batch? A net is asked once for every kind of inputs, on a few rows.

Folding is right where the rows of a batch stay apart, in the first dimension, from the inputs to the outputs. Graph nets, nets that
move the batch or mix its rows, and routing by value do otherwise. So a folded pass of two draws is compared with a pass per draw at
the same weights: the posterior means with noise of 30 %, whatever the posterior, since the question is one of structure. The net's
own noise is replaced by constants.

The same look at the net tells which random layers it calls, and whose weights it reads and computes with itself.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bayesify.core.forward_pass import Passes, RandomLayer
from bayesify.core.generators import own_noise
from bayesify.core.inputs import Arguments, Inputs, fold
from bayesify.core.layer import BayesianLayer
from bayesify.core.modes import buffers_kept, modes_kept
from bayesify.core.noise_free import NoiseFree
from bayesify.core.shards import with_whole_parameters
from bayesify.core.watch import LookPass, Watch, origin_of, with_rows

__all__ = ["Verdict", "examine", "folds_in_training"]

_ROWS, _SPREAD = 3, 0.3
_DOUBTFUL = 3  # inputs that are tried with and without rows
_MISFITS = (RuntimeError, ValueError, IndexError, TypeError, AssertionError)  # what wrong shapes lead to in nets of all kinds


@dataclasses.dataclass(frozen=True)
class Verdict:
    """How draws may share passes in eval mode, for one kind of inputs.

    Attributes:
        apart: the rows of a batch stay apart: draws may be folded, and layers may draw for each row by itself.
        reason: why not.
        without_rows: positions of inputs that have no rows although their size is that of the batch.
        layers_without_rows: positions of layers whose inputs do not depend on the batch, such as embeddings of positions.
    """

    apart: bool
    reason: str = ""
    without_rows: tuple[int, ...] = ()
    layers_without_rows: tuple[int, ...] = ()


def examine(net: nn.Module, layers: Collection[BayesianLayer], passes: Passes, inputs: Inputs) -> Verdict | None:
    """Look at a net: set `is_used` and `is_read` of its random layers, and say whether the rows of a batch stay apart.

    Args:
        net: the converted network, left as it is.
        layers: its random layers.
        passes: theirs.
        inputs: of the pass to come.

    Returns:
        The verdict, or None where the net fails on these inputs.
    """
    look = _Look(net, layers, passes)
    with torch.no_grad(), own_noise(net.parameters()) as reseed, modes_kept(net.modules()), buffers_kept(net), _quietly():
        reseed(0)
        look.draw()
        modes = [(module, module.training) for module in net.modules()]
        net.eval()
        tried = next((flags for flags in _candidates(inputs) if look.runs(inputs, flags)), None)
        if tried is None:
            return None
        if any(training for _, training in modes) and len(look.used) < len(layers):  # some may be for training alone
            for module, training in modes:
                module.training = training
            look.runs(inputs, tried)
            net.eval()
        for layer in layers:
            layer.is_used, layer.is_read = layer in look.used or layer in look.read, layer in look.read
        if look.read:
            return Verdict(False, "the net computes with weights of its layers itself")
        if look.by_value:
            return Verdict(False, f"the net decides by random values ({', '.join(sorted(look.by_value))})")
        if inputs.batch_dim != 0:
            return Verdict(False, f"the batch is dimension {inputs.batch_dim}")
        agreeing = look.agreeing(inputs)
        if agreeing is None:
            return Verdict(False, "the rows of a batch do not stay apart in the net")
        missing = [i for i, (has, takes) in enumerate(zip(inputs.has_rows, agreeing.rows, strict=True)) if has and not takes]
        positions = [i for i, layer in enumerate(layers) if layer in look.without_rows]
        return Verdict(True, without_rows=tuple(missing), layers_without_rows=tuple(positions))


def folds_in_training(net: nn.Module, layers: Collection[BayesianLayer], passes: Passes, inputs: Inputs, verdict: Verdict) -> bool:
    """Whether draws may be folded in the mode the net is in, where they may in eval mode; batch normalisation forbids it."""
    look = _Look(net, layers, passes)
    look.without_rows = {layer for i, layer in enumerate(layers) if i in verdict.layers_without_rows}
    with torch.no_grad(), own_noise(net.parameters()) as reseed, buffers_kept(net), _quietly():
        reseed(0)
        look.draw()
        return look.agreeing(inputs) is not None


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the warnings of passes that nobody asked for (a checkpoint without gradients)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@dataclasses.dataclass(frozen=True)
class _Candidate:
    """A way to take a few rows of the inputs: which leaves have rows, and how many rows to take."""

    rows: tuple[bool, ...]
    few: int

    def single(self, inputs: Inputs, then: Callable[[Tensor], Tensor] = lambda x: x) -> Arguments:
        cut = self._cut(inputs)
        return inputs.map(lambda x: then(cut(x)), self.rows)

    def folded(self, inputs: Inputs) -> Arguments:
        cut = self._cut(inputs)
        return inputs.map(lambda x: fold(cut(x), 2), self.rows)

    def _cut(self, inputs: Inputs) -> Callable[[Tensor], Tensor]:
        return lambda x: x.narrow(inputs.batch_dim, 0, self.few)


def _candidates(inputs: Inputs) -> Iterator[_Candidate]:
    """The first rows, if they make sense alone, else the whole batch; then without rows for tensors that may have none."""
    doubtful = inputs.ambiguous[:_DOUBTFUL]
    for number in range(len(doubtful) + 1):
        for missing in itertools.combinations(doubtful, number):
            rows = tuple(has and i not in missing for i, has in enumerate(inputs.has_rows))
            few = min(_ROWS, inputs.batch) if inputs.can_be_cut else inputs.batch
            yield from (_Candidate(rows, n) for n in dict.fromkeys((few, inputs.batch)))


class _Look:
    """Passes over a few rows with the same two draws of all layers."""

    def __init__(self, net: nn.Module, layers: Collection[BayesianLayer], passes: Passes) -> None:
        self.net, self.layers, self.passes = net, layers, passes
        self.drawn: dict[BayesianLayer, tuple[Tensor, Tensor | None]] = {}
        self.used: set[RandomLayer] = set()
        self.read: set[RandomLayer] = set()
        self.by_value: set[str] = set()
        self.without_rows: set[RandomLayer] = set()

    def draw(self) -> None:
        for layer in self.layers:
            self.drawn[layer] = with_whole_parameters(layer, lambda layer=layer: _two_draws(layer))

    def runs(self, inputs: Inputs, candidate: _Candidate) -> bool:
        """Whether the net takes these rows; what it does with them is noted."""
        watch = Watch(candidate.few)
        args, kwargs = candidate.single(inputs, with_rows)
        try:
            outputs = self._run((args, kwargs), LookPass(self._draw_of(0), watch=watch))
            self.without_rows = watch.without_rows - watch.with_rows
            self.read |= watch.read
            self.by_value |= watch.by_value
            self.used.update(*map(origin_of, outputs))
            if doubtful := [layer for layer in watch.called if layer not in self.used]:
                self.used.update(self._reaching(doubtful, inputs, candidate))
        except _MISFITS:
            return False
        return True

    def _reaching(self, layers: list[RandomLayer], inputs: Inputs, candidate: _Candidate) -> list[RandomLayer]:
        """Which of these layers, that are called, have a part in the outputs: gradients tell, where the traces of `Watch` end."""
        drawn: dict[Any, Any] = self._draw_of(0)
        weights: list[Tensor] = [drawn[layer][0].requires_grad_() for layer in layers]
        with torch.enable_grad():
            outputs = self._run(candidate.single(inputs), LookPass(drawn))
            ends = [y.sum() for y in outputs if y.requires_grad]
            try:
                gradients = torch.autograd.grad(ends, weights, allow_unused=True) if ends else weights
            except RuntimeError:  # the net has no gradient: nothing can be told
                return layers
        return [layer for layer, gradient in zip(layers, gradients, strict=True) if gradient is not None]

    def agreeing(self, inputs: Inputs) -> _Candidate | None:
        """The first way to take a few rows for which a folded pass gives what a pass per draw gives."""
        refuted: set[tuple[bool, ...]] = set()
        for candidate in _candidates(inputs):
            if candidate.rows not in refuted:
                agrees = self._agrees(inputs, candidate)
                if agrees:
                    return candidate
                if agrees is False:  # more rows would not help
                    refuted.add(candidate.rows)
        return None

    def _agrees(self, inputs: Inputs, candidate: _Candidate) -> bool | None:
        """None where the net does not take such rows."""
        try:
            apart = [self._run(candidate.single(inputs), LookPass(self._draw_of(s))) for s in (0, 1)]
            one_pass = LookPass(self.drawn, samples=2, rows=2 * candidate.few, without_rows=self.without_rows)
            together = self._run(candidate.folded(inputs), one_pass)
        except _MISFITS:
            return None
        return len(together) == len(apart[0]) == len(apart[1]) and all(map(_equal, together, *apart))

    def _draw_of(self, s: int) -> dict[BayesianLayer, tuple[Tensor, Tensor | None]]:
        return {
            layer: (weight[s : s + 1], None if bias is None else bias[s : s + 1]) for layer, (weight, bias) in self.drawn.items()
        }

    def _run(self, arguments: Arguments, forward_pass: LookPass) -> list[Tensor]:
        args, kwargs = arguments
        with NoiseFree(), forward_pass.watch or nullcontext():
            outputs = self.passes.run(forward_pass, self.net, args, kwargs)
        return [y for y in tree_leaves(outputs) if isinstance(y, Tensor)]


def _two_draws(layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
    """Weight (2, *) and bias (2, *) around the posterior mean."""
    weight, bias = layer.posterior.mean(layer)

    def around(mean: Tensor) -> Tensor:
        scale = float(mean.float().square().mean().sqrt()) or 1 / math.sqrt(layer.fan_in)
        return mean + _SPREAD * scale * torch.randn(2, *mean.shape, dtype=mean.dtype, device=mean.device)

    return around(weight), None if bias is None else around(bias)


def _equal(together: Tensor, first: Tensor, second: Tensor) -> bool:
    """Whether (2*B, ...) is the two (B, ...), but for rounding, measured by how much these differ."""
    if not first.dim() or first.shape != second.shape:
        return False
    apart = torch.cat([first, second])
    if together.shape != apart.shape:
        return False
    if not apart.is_floating_point():
        return bool((together == apart).all())
    if not torch.equal(together.isfinite(), apart.isfinite()):
        return False
    a, b = together.double().nan_to_num(0, 0, 0), apart.double().nan_to_num(0, 0, 0)
    halves = b.unflatten(0, (2, -1))
    differs = float((halves[0] - halves[1]).abs().max()) if b.numel() else 0.0
    rounding = min(0.02, 100 * torch.finfo(apart.dtype).eps) * float(b.abs().max()) if b.numel() else 0.0
    return not b.numel() or float((a - b).abs().max()) <= max(1e-3 * differs, rounding)
