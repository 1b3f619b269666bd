"""Whether the rows of a batch are independent, so that draws may be folded into it.

A folded pass of two draws is compared with a pass per draw at the same weights, over a few rows. Further folded passes, in which
draws have extreme weights, show rows that affect each other only beyond a threshold.

Shapes: S draws, B batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesify.core.candidates import Candidate, candidates
from bayesify.core.comparison import equal_rows
from bayesify.core.inputs import NETWORK_ERRORS, Inputs
from bayesify.core.layer import BayesianLayer
from bayesify.core.passes import Passes
from bayesify.core.two_draws import TwoDraws
from bayesify.core.watch import Decisions, Watch, WatchedPass, mark_rows

__all__ = ["Independence"]

_EXTREME = 1024.0  # factor of the weights of a draw: a power of 2, by which they can be divided exactly


class Independence(TwoDraws):
    """Comparisons of folded passes with a pass per draw.

    Args:
        net: the converted network.
        layers: its random layers.
        passes: their passes.
        whole: whether to compare all rows instead of a few.

    Attributes:
        read: the layers whose weights the network reads instead of calling them.
        decisions: by values of the inputs, in the last folded pass that was compared.
        orders_rows: whether the network sorts rows of the batch, which happened to keep the draws apart.
    """

    def __init__(self, net: nn.Module, layers: Collection[BayesianLayer], passes: Passes, whole: bool = False) -> None:
        super().__init__(net, layers, passes)
        self.whole = whole
        self.read: set[BayesianLayer] = set()
        self.decisions: tuple[bool, ...] = ()
        self.orders_rows = False

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
                folded = self._folded(inputs, candidate, watch, then)
        except NETWORK_ERRORS:
            return None
        self.read |= watch.read
        self.decisions = tuple(decisions.taken)
        self.orders_rows |= watch.orders_rows
        if len(folded) != len(first) or len(first) != len(second) or not all(map(equal_rows, folded, first, second)):
            return False
        if self.orders_rows:
            return False
        if not self._isolates(first, second, inputs, candidate, then):
            return False
        return not inputs.can_be_cut or self._agrees_for_equal_rows(inputs, candidate)

    def _agrees_for_equal_rows(self, inputs: Inputs, candidate: Candidate) -> bool:
        """Whether passes agree where all rows compete, as for a limited number of places at the expert that suits them best."""
        twice: Any = {layer: tuple(x if x is None else x[:1].expand_as(x) for x in pair) for layer, pair in self.drawn.items()}
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
        inputs: Inputs,
        candidate: Candidate,
        then: Callable[[Tensor], Tensor],
    ) -> bool:
        """Whether the rows of a draw, with weights as they are and with extreme ones, stay as they are if the others are extreme.

        Rows may take from others only beyond a threshold, be it of theirs or of the others.
        """

        def rows() -> tuple[list[Tensor], list[Tensor]] | None:
            try:
                folded = self._folded(inputs, candidate, None, then)
            except NETWORK_ERRORS:  # of values, such as a decomposition that fails: this shows nothing
                return None
            halves = [x.split((len(x) // 2, len(x) - len(x) // 2)) if x.dim() else (x, x) for x in folded]
            return [half for half, _ in halves], [half for _, half in halves]

        with self._extreme(1, _EXTREME):
            one = rows()
            with self._extreme(0, -_EXTREME):
                both = rows()
        with self._extreme(0, -_EXTREME):
            other = rows()
        return (
            (one is None or _equal(one[0], first, second))
            and (other is None or _equal(other[1], second, first))
            and (one is None or both is None or _equal(both[1], one[1], one[1]))
            and (other is None or both is None or _equal(both[0], other[0], other[0]))
        )

    @contextmanager
    def _extreme(self, s: int, factor: float) -> Iterator[None]:
        """Multiply the weights of draw s in place, which takes no memory; layers that draw once for both draws keep theirs.

        With a positive factor, biases exceed what they are added to: all values are larger than those of the other draw.
        """
        pairs = [pair for pair in self.drawn.values() if len(pair[0]) > 1]
        biases = [None if bias is None else bias[s].clone() for _, bias in pairs]
        for weight, bias in pairs:
            if bias is not None:
                size = torch.linalg.vector_norm(weight[s]) / max(1, bias[s].numel()) ** 0.5
                bias[s].mul_(factor).add_(size, alpha=max(0.0, factor))
            weight[s].mul_(factor)
        try:
            yield
        finally:
            for (weight, bias), before in zip(pairs, biases, strict=True):
                weight[s].div_(factor)
                if bias is not None and before is not None:
                    bias[s].copy_(before)

    def _folded(
        self,
        inputs: Inputs,
        candidate: Candidate,
        watch: Watch | None,
        then: Callable[[Tensor], Tensor],
    ) -> list[Tensor]:
        """Outputs of a folded pass of two draws."""
        one_pass = WatchedPass(self.drawn, samples=2, rows=2 * candidate.count, without_rows=self.without_rows, watch=watch)
        return self.run(candidate.folded(inputs, then if watch is None else lambda x: mark_rows(then(x))), one_pass)

    def agrees_with_one_draw_of(self, layers: Collection[BayesianLayer], inputs: Inputs) -> bool:
        """Whether draws fold if these layers, which have no rows, draw once for all."""
        for layer in layers:
            weight, bias = self.drawn[layer]
            self.drawn[layer] = weight[:1], None if bias is None else bias[:1]
        return self.agreeing(inputs) is not None


def _equal(rows: list[Tensor], expected: list[Tensor], others: list[Tensor]) -> bool:
    """Whether rows (B, ...) of a draw are as expected, up to 0.1 % of their difference from those of the other draw."""
    return len(rows) == len(expected) and all(map(partial(equal_rows, samples=1), rows, expected, others))


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
