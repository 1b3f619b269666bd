"""Whether a network computes the same of a row whatever the number of rows: its code may branch on the batch size.

Shapes: S draws, B batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from bayesify.core.candidates import Candidate, candidates
from bayesify.core.comparison import close, equal_rows
from bayesify.core.folding import Verdict
from bayesify.core.inputs import NETWORK_ERRORS, Inputs
from bayesify.core.layer import BayesianLayer
from bayesify.core.modes import eval_mode
from bayesify.core.passes import Passes
from bayesify.core.replay import Prefix, ReplayPass
from bayesify.core.two_draws import TwoDraws
from bayesify.core.watch import WatchedPass

__all__ = ["BatchSizes"]


class BatchSizes:
    """Comparisons of passes over different numbers of rows, for inputs of which a few rows are independent.

    Args:
        net: the converted network.
        layers: its random layers.
        passes: their passes.
        inputs: the inputs of the next pass.
        verdict: what is known of such inputs.
    """

    def __init__(self, net: nn.Module, layers: Collection[BayesianLayer], passes: Passes, inputs: Inputs, verdict: Verdict) -> None:
        self.net, self.inputs = net, inputs
        self.batch = Candidate(tuple(inputs.has_rows), inputs.batch)
        self.two = TwoDraws(net, layers, passes)
        self.two.without_rows = {layer for i, layer in enumerate(layers) if i in verdict.layers_without_rows}

    def fold(self, samples: int) -> bool | None:
        """Whether a pass over S*B rows gives what B rows give with each of two draws; None if B rows fail. In the current mode.

        Consecutive rows with equal weights count as one draw: copies of a large embedding would take longer than the pass.
        """
        two, rows = self.two, samples * self.batch.count
        draws = _few_draws(samples)

        def folded() -> list[Tensor]:
            one_pass = WatchedPass(two.once_and_repeated(draws), draws, rows=rows, without_rows=two.without_rows)
            return two.run(self.batch.folded(self.inputs, samples=samples), one_pass)

        return self._agrees(folded, samples, repeats=samples // draws)

    def replay(self, samples: int) -> bool | None:
        """`fold` for passes in which a `Prefix` computes the part before the first random layer for B rows."""
        two = self.two

        def replayed() -> list[Tensor]:
            prefix = Prefix(self.batch.count, True)
            one_pass = ReplayPass(prefix, samples, True, two.without_rows, two.once_and_repeated(samples))
            return two.run_with(lambda: prefix.run(one_pass, two.passes, self.net, self.inputs))

        return self._agrees(replayed, samples)

    def act_as_few_rows(self) -> bool | None:
        """Whether the first rows give in the batch what they give alone; for inputs that cannot be cut, `fold(2)`. In eval mode."""
        few = Candidate(self.batch.rows, next(candidates(self.inputs)).count)
        with eval_mode(self.net):
            if few.count == self.batch.count:
                return self.fold(2)
            with self.two.with_draws():
                try:
                    whole = self.two.single(0, self.inputs, self.batch)
                except NETWORK_ERRORS:
                    return None
                try:
                    alone = self.two.single(0, self.inputs, few)
                except NETWORK_ERRORS:
                    return False
        return len(alone) == len(whole) and all(
            x.dim() > 0 and y.dim() > 0 and close(y[: len(x)], x) for x, y in zip(alone, whole, strict=True)
        )

    def _agrees(self, run: Callable[[], list[Tensor]], samples: int, repeats: int = 1) -> bool | None:
        with self.two.with_draws():
            try:
                first, second = (self.two.single(s, self.inputs, self.batch) for s in (0, 1))
            except NETWORK_ERRORS:  # S*B rows may be a multiple of a length, such as that of a clip, where B are not
                return None
            try:
                together = run()
            except torch.OutOfMemoryError:
                raise
            except NETWORK_ERRORS:
                return False
        return len(together) == len(first) == len(second) and all(
            equal_rows(x, _repeated(y, repeats), _repeated(z, repeats), samples // repeats)
            for x, y, z in zip(together, first, second, strict=True)
        )


def _few_draws(samples: int) -> int:
    """A small factor, other than 2 if possible: with as many rows of each draw, nothing shows what depends on the median."""
    factors = (*range(3, 9), *range(2, math.isqrt(samples) + 1))
    return next((n for n in factors if samples % n == 0), samples)


def _repeated(x: Tensor, times: int) -> Tensor:
    """(B, ...) to (times * B, ...)."""
    return torch.cat([x] * times) if x.dim() else x
