"""Passes over a few rows with two draws of the weights, from which `folding` judges a network.

The examination compares a folded pass of two draws with a pass per draw at the same weights. Further folded passes, in which one
draw has extreme weights, show coupling that begins at a threshold.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesify.core.candidates import Candidate, candidates
from bayesify.core.comparison import close, equal_rows
from bayesify.core.generators import OtherGenerators
from bayesify.core.inputs import NETWORK_ERRORS, Inputs, fold
from bayesify.core.layer import BayesianLayer
from bayesify.core.noise_free import depends_on_noise
from bayesify.core.objects import ChangedInputError
from bayesify.core.passes import Passes
from bayesify.core.restoration import as_plain
from bayesify.core.two_draws import TwoDraws, tensors_of
from bayesify.core.watch import Decisions, Watch, WatchedPass, is_kept, mark_rows, origin_of

__all__ = ["Examination", "Repetition"]

_EXTREME = 1e3  # factor of the weights of one draw, in passes that only the other draw is read from


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


class Examination(TwoDraws):
    """What passes with two draws show of a network."""

    def __init__(self, net: nn.Module, layers: Collection[BayesianLayer], passes: Passes, whole: bool = False) -> None:
        super().__init__(net, layers, passes)
        self.whole = whole
        self.used: set[BayesianLayer] = set()
        self.called: set[BayesianLayer] = set()
        self.repeated: set[BayesianLayer] = set()
        self.read: set[BayesianLayer] = set()
        self.by_value: set[str] = set()
        self.numbers: set[str] = set()
        self.differentiates = False
        self.outputs: list[Tensor] = []  # of draw 0, in the last pass of `runs`
        self.generators: list[Tensor] = []  # the states from which layers would have drawn in that pass
        self.decisions: tuple[bool, ...] = ()  # by values of the inputs, in the last folded pass that was compared
        self.orders_rows = False  # whether it sorts rows of the batch, which happened to keep the draws apart
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

    def agrees_with_one_draw_of(self, layers: Collection[BayesianLayer], inputs: Inputs) -> bool:
        """Whether draws fold if these layers, which have no rows, draw once for all."""
        for layer in layers:
            weight, bias = self.drawn[layer]
            self.drawn[layer] = weight[:1], None if bias is None else bias[:1]
        return self.agreeing(inputs) is not None

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

    def agreeing(self, inputs: Inputs) -> Candidate | None:
        """The first choice of rows for which a folded pass and a pass per draw agree."""
        refuted: set[tuple[bool, ...]] = set()
        for candidate in candidates(inputs, self.whole):
            if candidate.rows not in refuted:
                agrees = self._agrees(inputs, candidate)
                if agrees:
                    return candidate
                if agrees is False:  # more rows would not help
                    refuted.add(candidate.rows)
        return None

    def _agrees(self, inputs: Inputs, candidate: Candidate) -> bool | None:
        """Whether a folded pass and a pass per draw agree; None if the network does not accept such rows."""
        if inputs.can_be_cut and inputs.say_little and self._agrees_on(inputs, candidate, _normal_rows(candidate.count)) is False:
            return False
        return self._agrees_on(inputs, candidate, lambda x: x)

    def _agrees_on(self, inputs: Inputs, candidate: Candidate, then: Callable[[Tensor], Tensor]) -> bool | None:
        """`_agrees` for changed rows."""
        try:
            first, second = (self.single(s, inputs, candidate, then) for s in (0, 1))
            watch = Watch(2 * candidate.count)
            with Decisions() as decisions:
                folded = self._folded(self.drawn, inputs, candidate, watch, then)
        except NETWORK_ERRORS:
            return None
        self.read |= watch.read
        self.decisions = tuple(decisions.taken)
        self.orders_rows |= watch.orders_rows
        if len(folded) != len(first) or len(first) != len(second) or not all(map(equal_rows, folded, first, second)):
            return False
        if self.orders_rows:
            return False
        if not all(self._isolates(first, second, sign * _EXTREME, inputs, candidate, then) for sign in (1, -1)):
            return False
        return not inputs.can_be_cut or self._agrees_for_equal_rows(inputs, candidate)

    def _agrees_for_equal_rows(self, inputs: Inputs, candidate: Candidate) -> bool:
        """Whether passes agree where all rows compete, as for a limited number of places at the expert that suits them best."""
        once = self.draw_of(0)
        twice: Any = {
            layer: tuple(None if x is None else torch.cat([x] * len(self.drawn[layer][0])) for x in pair)
            for layer, pair in once.items()
        }
        two = WatchedPass(twice, samples=2, rows=2 * candidate.count, without_rows=self.without_rows)
        try:
            single = self.single(0, inputs, candidate, _equal_parts)
            folded = self.run(candidate.folded(inputs, _equal_parts), two)
        except NETWORK_ERRORS:  # of values: this shows nothing
            return True
        return len(folded) == len(single) and all(map(equal_rows, folded, single, single))

    def _isolates(
        self,
        first: list[Tensor],
        second: list[Tensor],
        factor: float,
        inputs: Inputs,
        candidate: Candidate,
        then: Callable[[Tensor], Tensor],
    ) -> bool:
        """Whether draw 0 of a folded pass stays as it is if the weights of draw 1 are extreme."""
        scale = [1.0, factor]
        drawn: Any = {
            layer: tuple(None if x is None else x * x.new_tensor(scale[: len(x)]).view(-1, *[1] * (x.dim() - 1)) for x in pair)
            for layer, pair in self.drawn.items()
        }
        try:
            folded = self._folded(drawn, inputs, candidate, None, then)
        except NETWORK_ERRORS:  # of values, such as a decomposition that fails: this shows nothing
            return True
        return len(folded) == len(first) and all(
            x.dim() > 0 and equal_rows(torch.cat([x[: len(y)], z]), y, z) for x, y, z in zip(folded, first, second, strict=True)
        )

    def _folded(
        self,
        drawn: dict[BayesianLayer, Any],
        inputs: Inputs,
        candidate: Candidate,
        watch: Watch | None,
        then: Callable[[Tensor], Tensor],
    ) -> list[Tensor]:
        """Outputs of a folded pass of two draws."""
        one_pass = WatchedPass(drawn, samples=2, rows=2 * candidate.count, without_rows=self.without_rows, watch=watch)
        return self.run(candidate.folded(inputs, then if watch is None else lambda x: mark_rows(then(x))), one_pass)


def _normal_rows(count: int) -> Callable[[Tensor], Tensor]:
    """A function that replaces (S*count, ...) with standard normal values, equal for all draws; other types stay."""

    def change(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(count, *x.shape[1:], generator=generator).to(x)
        return rows.repeat(len(x) // count, *[1] * (x.dim() - 1))

    return change


def _equal_parts(x: Tensor) -> Tensor:
    """(B, ...) with equal rows, of equal tokens or channels."""
    has_parts = x.dim() > 2 or (x.dim() == 2 and not x.is_floating_point())
    return (x[:1, :1] if has_parts else x[:1]).expand_as(x).clone()


def _shared(values: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
    """Values as one draw: (1, *)."""
    weight, bias = values
    return weight.unsqueeze(0), None if bias is None else bias.unsqueeze(0)


def _of_plain_shape(layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
    """Zeros for a layer whose posterior has no weights of a plain one."""
    p = next(layer.parameters())
    return p.new_zeros(1, *layer.weight_shape), None if layer.bias_shape is None else p.new_zeros(1, *layer.bias_shape)
