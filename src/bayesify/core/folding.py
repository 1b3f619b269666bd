"""Whether draws may share a pass, folded into its batch. Each network is examined once per kind of inputs, on a few rows.

Folding is correct if every output row depends on the same row of the inputs only, in the first dimension. Graph networks, networks
that move the batch dimension or mix rows, and routing by value violate this. The examination compares a folded pass of two draws
with a pass per draw at the same weights: the posterior means with 30 % noise, whatever the posterior, because the question is one
of structure. The network's other noise (dropout) is replaced with constants.

The examination also finds the random layers that the network calls, and those whose weights it reads.
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
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_leaves

from bayesify.core.generators import own_noise
from bayesify.core.inputs import Arguments, Inputs, fold
from bayesify.core.layer import BayesianLayer
from bayesify.core.modes import buffers_kept, eval_mode
from bayesify.core.noise_free import NoiseFree
from bayesify.core.objects import ChangedInputError
from bayesify.core.passes import Passes
from bayesify.core.shards import with_whole_parameters
from bayesify.core.watch import Watch, WatchedPass, keep_results, mark_rows, origin_of
from bayesify.errors import PassError
from bayesify.formatting import listing

__all__ = ["Verdict", "examine", "folds_in_training", "pools_batches"]

_ROWS, _SPREAD = 3, 0.3
_MOST_AMBIGUOUS = 3  # inputs that are tried with and without rows
_SHAPE_ERRORS = (RuntimeError, ValueError, IndexError, TypeError, AssertionError)  # raised by networks for wrong shapes


@dataclasses.dataclass(frozen=True)
class Verdict:
    """How draws may share passes in eval mode, for one kind of inputs.

    Attributes:
        independent_rows: every output row depends on its input row only: draws may be folded, and layers may draw noise per row.
        reason: why not.
        without_rows: positions of inputs without rows whose size happens to be that of the batch.
        layers_without_rows: positions of layers whose inputs do not depend on the batch, such as embeddings of positions.
        unused_layers: positions of layers that the network did not call.
    """

    independent_rows: bool
    reason: str = ""
    without_rows: tuple[int, ...] = ()
    layers_without_rows: tuple[int, ...] = ()
    unused_layers: tuple[int, ...] = ()


def examine(net: nn.Module, layers: Collection[BayesianLayer], passes: Passes, inputs: Inputs) -> Verdict | None:
    """Set `is_used` and `is_read` of a network's random layers, and find out whether the rows of a batch are independent.

    Args:
        net: the converted network.
        layers: its random layers.
        passes: their passes.
        inputs: the inputs of the next pass.

    Returns:
        The verdict, or None if the network fails on these inputs.
    """
    examination = _Examination(net, layers, passes)
    with torch.no_grad(), own_noise(net.parameters()) as reseed, buffers_kept(net), _quietly():
        reseed(0)
        examination.draw()
        with eval_mode(net):
            accepted = next((rows for rows in _candidates(inputs) if examination.runs(inputs, rows)), None)
            if accepted is not None:
                _check_forgets(net, examination, inputs, accepted)
        if accepted is None:
            return None
        if len(examination.used) < len(layers) and any(module.training for module in net.modules()):
            examination.runs(inputs, accepted)  # some layers may be used in training mode only
        for layer in layers:
            layer.is_read = layer in examination.read
            layer.is_used = layer.is_read or layer in examination.used
        if examination.read:
            return Verdict(False, "the network reads the weights of its layers")
        if examination.by_value:
            names = ", ".join(sorted(examination.by_value))
            return Verdict(False, f"the network's control flow or shapes depend on random values ({names})")
        if inputs.batch_dim != 0:
            return Verdict(False, f"the batch is dimension {inputs.batch_dim}")
        with eval_mode(net):
            agreeing = examination.agreeing(inputs)
            reason = "" if agreeing else _reason(net, examination, inputs)
        if agreeing is None:
            return Verdict(False, reason)
        missing = [i for i, (has, takes) in enumerate(zip(inputs.has_rows, agreeing.rows, strict=True)) if has and not takes]
        positions = [i for i, layer in enumerate(layers) if layer in examination.without_rows]
        unused = [i for i, layer in enumerate(layers) if layer not in examination.called]
        return Verdict(True, without_rows=tuple(missing), layers_without_rows=tuple(positions), unused_layers=tuple(unused))


def folds_in_training(net: nn.Module, layers: Collection[BayesianLayer], passes: Passes, inputs: Inputs, verdict: Verdict) -> bool:
    """Whether draws that may be folded in eval mode may also be folded in the current mode (not with batch normalization)."""
    examination = _Examination(net, layers, passes)
    examination.without_rows = {layer for i, layer in enumerate(layers) if i in verdict.layers_without_rows}
    with torch.no_grad(), own_noise(net.parameters()) as reseed, buffers_kept(net), _quietly():
        reseed(0)
        examination.draw()
        return examination.agreeing(inputs) is not None


def _reason(net: nn.Module, examination: _Examination, inputs: Inputs) -> str:
    """Why draws do not fold."""
    names = {module: name for name, module in net.named_modules()}
    if examination.mixed:
        layers = listing(repr(names[layer]) for layer in examination.mixed)
        return f"the network calls {layers} on its batch and also on inputs without rows, such as an identity matrix"
    alone = [layer for layer in examination.layers if layer in examination.without_rows and layer.posterior.is_random]
    if alone and examination.agrees_with_one_draw_of(alone, inputs):
        layers = listing(repr(names[layer]) for layer in alone)
        return (
            f"the network calls {layers} on inputs without rows, such as positions, and expects one result for all rows (with "
            "Deterministic() for these layers, draws share a pass)"
        )
    return "the rows of a batch affect each other in the network"


def _check_forgets(net: nn.Module, examination: _Examination, inputs: Inputs, candidate: _Candidate) -> None:
    """Raise a `PassError` if a pass uses results of random layers that the network kept from the pass before."""
    kept = keep_results(net)
    if kept and examination.reuses(inputs, candidate):
        raise PassError(
            f"the network keeps results of random layers for its next passes, in {listing(map(repr, kept))}, so draws would mix; "
            "switch this cache off, or reset it in forward"
        )


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress warnings of passes that the caller did not request (a checkpoint without gradients)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@dataclasses.dataclass(frozen=True)
class _Candidate:
    """A choice of a few rows of the inputs: which leaves have rows, and the number of rows to take."""

    rows: tuple[bool, ...]
    count: int

    def single(self, inputs: Inputs, then: Callable[[Tensor], Tensor] = lambda x: x) -> Arguments:
        return inputs.map(lambda x: then(self._cut(x, inputs)), self.rows)

    def folded(self, inputs: Inputs) -> Arguments:
        return inputs.map(lambda x: fold(self._cut(x, inputs), 2), self.rows)

    def _cut(self, x: Tensor, inputs: Inputs) -> Tensor:
        return x.narrow(inputs.batch_dim, 0, self.count).clone()


def _candidates(inputs: Inputs) -> Iterator[_Candidate]:
    """The first rows if they are valid inputs, otherwise the whole batch; then the same without rows for ambiguous tensors."""
    ambiguous = inputs.ambiguous[:_MOST_AMBIGUOUS]
    for size in range(len(ambiguous) + 1):
        for missing in itertools.combinations(ambiguous, size):
            rows = tuple(has and i not in missing for i, has in enumerate(inputs.has_rows))
            few = min(_ROWS, inputs.batch) if inputs.can_be_cut else inputs.batch
            yield from (_Candidate(rows, count) for count in dict.fromkeys((few, inputs.batch)))


class _Examination:
    """Passes over a few rows with the same two draws of all layers."""

    def __init__(self, net: nn.Module, layers: Collection[BayesianLayer], passes: Passes) -> None:
        self.net, self.layers, self.passes = net, layers, passes
        self.drawn: dict[BayesianLayer, tuple[Tensor, Tensor | None]] = {}
        self.used: set[BayesianLayer] = set()
        self.called: set[BayesianLayer] = set()
        self.read: set[BayesianLayer] = set()
        self.by_value: set[str] = set()
        self.without_rows: set[BayesianLayer] = set()
        self.mixed: list[BayesianLayer] = []  # random layers that are called both with rows and without

    def draw(self) -> None:
        for layer in self.layers:
            self.drawn[layer] = with_whole_parameters(layer, lambda layer=layer: _two_draws(layer))

    def runs(self, inputs: Inputs, candidate: _Candidate) -> bool:
        """Whether the network accepts these rows; record what it does with its layers."""
        watch = Watch(candidate.count)
        try:
            outputs = self._run(candidate.single(inputs, mark_rows), WatchedPass(self._draw_of(0), watch=watch))
            self.without_rows = watch.without_rows - watch.with_rows
            both = watch.without_rows & watch.with_rows
            self.mixed = [layer for layer in self.layers if layer in both and layer.posterior.is_random]
            self.read |= watch.read
            self.called |= watch.called
            self.by_value |= watch.by_value
            self.used.update(*map(origin_of, outputs))
            if untraced := [layer for layer in watch.called if layer not in self.used]:
                self.used.update(self._reaching(untraced, inputs, candidate))
        except ChangedInputError:
            raise
        except _SHAPE_ERRORS:
            return False
        return True

    def reuses(self, inputs: Inputs, candidate: _Candidate) -> bool:
        """Whether another pass uses results of this one (`keep_results`)."""
        watch = Watch(candidate.count)
        try:
            self._run(candidate.single(inputs, mark_rows), WatchedPass(self._draw_of(1), watch=watch))
        except _SHAPE_ERRORS:
            return False
        return watch.reuses

    def agrees_with_one_draw_of(self, layers: Collection[BayesianLayer], inputs: Inputs) -> bool:
        """Whether draws fold if these layers, which have no rows, draw once for all."""
        for layer in layers:
            weight, bias = self.drawn[layer]
            self.drawn[layer] = weight[:1], None if bias is None else bias[:1]
        return self.agreeing(inputs) is not None

    def _reaching(self, layers: list[BayesianLayer], inputs: Inputs, candidate: _Candidate) -> list[BayesianLayer]:
        """The layers that the outputs depend on, by their gradients, where the traces of `Watch` end."""
        drawn: dict[Any, Any] = self._draw_of(0)
        weights: list[Tensor] = [drawn[layer][0].requires_grad_() for layer in layers]
        with torch.enable_grad():
            outputs = self._run(candidate.single(inputs), WatchedPass(drawn))
            ends = [y.sum() for y in outputs if y.requires_grad]
            try:
                gradients = torch.autograd.grad(ends, weights, allow_unused=True) if ends else weights
            except RuntimeError:  # the network is not differentiable: assume that all are used
                return layers
        return [layer for layer, gradient in zip(layers, gradients, strict=True) if gradient is not None]

    def agreeing(self, inputs: Inputs) -> _Candidate | None:
        """The first choice of rows for which a folded pass and a pass per draw agree."""
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
        """Whether a folded pass and a pass per draw agree; None if the network does not accept such rows."""
        try:
            first, second = (self._run(candidate.single(inputs), WatchedPass(self._draw_of(s))) for s in (0, 1))
            one_pass = WatchedPass(self.drawn, samples=2, rows=2 * candidate.count, without_rows=self.without_rows)
            folded = self._run(candidate.folded(inputs), one_pass)
        except _SHAPE_ERRORS:
            return None
        return len(folded) == len(first) == len(second) and all(map(_equal, folded, first, second))

    def _draw_of(self, s: int) -> dict[BayesianLayer, tuple[Tensor, Tensor | None]]:

        def one(x: Tensor) -> Tensor:
            return x[s : s + 1] if len(x) > 1 else x

        return {layer: (one(weight), None if bias is None else one(bias)) for layer, (weight, bias) in self.drawn.items()}

    def _run(self, arguments: Arguments, forward_pass: WatchedPass) -> list[Tensor]:
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


def _equal(folded: Tensor, first: Tensor, second: Tensor) -> bool:
    """Whether (2*B, ...) equals two (B, ...), up to rounding or 0.1 % of the difference between the two."""
    if not first.dim() or first.shape != second.shape:
        return False
    expected = torch.cat([first, second])
    if folded.shape != expected.shape:
        return False
    if not expected.is_floating_point():
        return bool((folded == expected).all())
    if not torch.equal(folded.isfinite(), expected.isfinite()):
        return False
    if not expected.numel():
        return True
    a, b = folded.double().nan_to_num(0, 0, 0), expected.double().nan_to_num(0, 0, 0)
    one, two = b.unflatten(0, (2, -1))
    rounding = min(0.05, 100 * torch.finfo(expected.dtype).eps) * float(b.abs().max())
    return float((a - b).abs().max()) <= max(1e-3 * float((one - two).abs().max()), rounding)


def pools_batches(net: nn.Module) -> bool:
    """Whether batch normalization would compute statistics over all draws of a folded pass."""
    return any(
        isinstance(module, _NormBase)
        and (module.training or module.running_mean is None)
        and not (isinstance(module, BayesianLayer) and module.posterior.is_random)
        for module in net.modules()
    )
