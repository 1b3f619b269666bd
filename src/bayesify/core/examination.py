"""Passes over a few rows that show how a network uses its random layers, from which `folding` judges it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesify.core.candidates import Candidate
from bayesify.core.comparison import close
from bayesify.core.generators import OtherGenerators
from bayesify.core.independence import Independence
from bayesify.core.inputs import NETWORK_ERRORS, Inputs, fold
from bayesify.core.layer import BayesianLayer
from bayesify.core.noise_free import depends_on_noise
from bayesify.core.objects import ChangedInputError
from bayesify.core.passes import Passes
from bayesify.core.restoration import as_plain
from bayesify.core.two_draws import tensors_of
from bayesify.core.watch import Watch, WatchedPass, is_kept, mark_rows, origin_of

__all__ = ["Examination", "Repetition"]


@dataclasses.dataclass(frozen=True)
class Repetition:
    """What a second pass did, after the first.

    Attributes:
        reuses: whether it uses results of the first (`keep_results`).
        missing: the layers that it does not call again.
        generators: the states of PyTorch's generator from which layers would have drawn.
    """

    reuses: bool = False
    missing: Sequence[BayesianLayer] = ()
    generators: Sequence[Tensor] = ()


class Examination(Independence):
    """What passes with two draws show of a network."""

    def __init__(self, net: nn.Module, layers: Collection[BayesianLayer], passes: Passes, whole: bool = False) -> None:
        super().__init__(net, layers, passes, whole)
        self.used: set[BayesianLayer] = set()
        self.called: set[BayesianLayer] = set()
        self.repeated: set[BayesianLayer] = set()
        self.by_value: set[str] = set()
        self.numbers: set[str] = set()
        self.differentiates = False
        self.outputs: list[Tensor] = []  # of draw 0, in the last pass of `runs`
        self.generators: list[Tensor] = []  # the states from which layers would have drawn in that pass
        self.mixed: list[BayesianLayer] = []  # random layers that are called both with rows and without
        self.failure: Exception | None = None  # of the last pass of `runs`

    def runs(self, inputs: Inputs, candidate: Candidate) -> bool:
        """Whether the network accepts these rows; record what it does with its layers."""
        watch = Watch(candidate.count)
        try:
            self.outputs = self.run(candidate.single(inputs, mark_rows), WatchedPass(self.draw_of(0), watch=watch))
            watch.note_generator()
            self.generators = watch.generators
            rows = self._of_three_rows(inputs, candidate) or watch if candidate.count == 1 else watch
            self.without_rows = rows.without_rows - rows.with_rows
            both = rows.without_rows & rows.with_rows
            self.mixed = [layer for layer in self.layers if layer in both and layer.posterior.is_random]
            self.read |= watch.read | self._read_unseen(watch, inputs, candidate)
            self.called |= watch.called
            self.repeated |= watch.repeated
            self.by_value |= watch.by_value
            self.numbers |= watch.numbers
            self.differentiates |= watch.differentiates
            self.used.update(*map(origin_of, self.outputs))
            if untraced := [layer for layer in watch.called if layer not in self.used]:
                self.used.update(self._reaching(untraced, inputs, candidate))
        except ChangedInputError:
            raise
        except NETWORK_ERRORS as error:
            self.failure = error
            self.read |= {layer for layer in watch.read if not layer.posterior.is_plain}  # whose weight has another shape
            return False
        return True

    def _read_unseen(self, watch: Watch, inputs: Inputs, candidate: Candidate) -> set[BayesianLayer]:
        """The layers with whose weights the network computes where no `Watch` sees it: in other layers, `vmap` or as numbers."""
        got = watch.got - watch.read
        if not got or self._ignores(got, inputs, candidate):  # most networks look at a dtype or a device
            return set()
        return {layer for layer in got if not self._ignores({layer}, inputs, candidate)}

    def _ignores(self, layers: Collection[BayesianLayer], inputs: Inputs, candidate: Candidate) -> bool:
        """Whether the outputs stay as they are if other values of these layers' weights are read."""
        outputs = self.run(candidate.single(inputs), WatchedPass(self.draw_of(0), unread=layers))
        return all(map(close, outputs, self.outputs))

    def _of_three_rows(self, inputs: Inputs, candidate: Candidate) -> Watch | None:
        """Watch a pass over three copies of a row: inputs (1, ...) of layers may be that row, or positions without rows."""
        watch = Watch(3)
        arguments = inputs.map(lambda x: mark_rows(fold(x, 3)), candidate.rows)
        try:
            self.run(arguments, WatchedPass(self.draw_of(0), watch=watch))
        except NETWORK_ERRORS:
            return None
        return watch

    def again(self, inputs: Inputs, candidate: Candidate) -> Repetition:
        """Make the pass of `runs` again, with other noise."""
        watch = Watch(candidate.count)
        torch.default_generator.manual_seed(1)
        try:
            outputs = self.run(candidate.single(inputs, mark_rows), WatchedPass(self.draw_of(0), watch=watch))
        except NETWORK_ERRORS:
            return Repetition()
        watch.note_generator()
        return Repetition(
            reuses=watch.reuses or any(map(is_kept, outputs)),
            missing=[layer for layer in self.layers if layer in (self.called | self.read) - watch.called - watch.got],
            generators=watch.generators,
        )

    def is_noisy(self, inputs: Inputs, candidate: Candidate) -> bool:
        """Whether noise that the network draws changes its outputs."""

        def run() -> list[Tensor]:
            args, kwargs = candidate.single(inputs)
            with self._set.watch():
                return tensors_of(self.passes.run(WatchedPass(self.draw_of(0)), self.net, args, kwargs))

        if not (self.draws_noise or self.draws_elsewhere):
            return False
        try:
            with OtherGenerators():  # whose states the runs must not change
                return depends_on_noise(run)
        except NETWORK_ERRORS:  # of values, which the pass itself will show
            return False

    def outputs_of(self, inputs: Inputs, candidate: Candidate, plain: Collection[BayesianLayer] = ()) -> list[Tensor]:
        """Outputs of draw 0, with some of the layers replaced with plain ones of the same weights."""
        drawn = self.draw_of(0)
        weights = {layer: drawn[layer] if layer.posterior.is_random else _shared(layer.posterior.mean(layer)) for layer in plain}
        weights |= {layer: _of_plain_shape(layer) for layer in plain if not layer.posterior.is_plain}
        with as_plain({layer: (weight[0], None if bias is None else bias[0]) for layer, (weight, bias) in weights.items()}):
            return self.run(candidate.single(inputs), WatchedPass(drawn))

    def _reaching(self, layers: list[BayesianLayer], inputs: Inputs, candidate: Candidate) -> list[BayesianLayer]:
        """The layers that the outputs depend on, by their gradients, where the traces of `Watch` end."""
        drawn: dict[Any, Any] = self.draw_of(0)
        weights: list[Tensor] = [drawn[layer][0].requires_grad_() for layer in layers]
        with torch.enable_grad():
            outputs = self.run(candidate.single(inputs), WatchedPass(drawn))
            ends = [y.sum() for y in outputs if y.requires_grad]
            try:
                gradients = torch.autograd.grad(ends, weights, allow_unused=True) if ends else weights
            except RuntimeError:  # the network is not differentiable: assume that all are used
                return layers
        return [layer for layer, gradient in zip(layers, gradients, strict=True) if gradient is not None]


def _shared(values: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
    """Values as one draw: (1, *)."""
    weight, bias = values
    return weight.unsqueeze(0), None if bias is None else bias.unsqueeze(0)


def _of_plain_shape(layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
    """Zeros for a layer whose posterior has no weights of a plain one."""
    p = next(layer.parameters())
    return p.new_zeros(1, *layer.weight_shape), None if layer.bias_shape is None else p.new_zeros(1, *layer.bias_shape)
