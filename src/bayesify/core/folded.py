"""The default root: draws are folded into the batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from bayesify.core.checks import check_integer
from bayesify.core.comparison import close
from bayesify.core.drawn_function import DrawnFunction
from bayesify.core.folding import Verdict, examine, folds_in_training, pools_batches
from bayesify.core.forward_pass import ForwardPass, NewLayerError, RowsError
from bayesify.core.generators import noise_of_rank, own_noise
from bayesify.core.inputs import Inputs
from bayesify.core.layer import BayesianLayer
from bayesify.core.model import Bayesian
from bayesify.core.modes import can_compare, eval_mode
from bayesify.core.outputs import Draws
from bayesify.core.recent import Recent
from bayesify.core.replay import MISFITS, Prefix, ReplayPass, has_prefix, is_worth_replay, leaves_stand_ins
from bayesify.core.restoration import restore
from bayesify.core.shards import check_whole, reshard, shards_of
from bayesify.core.turns import TurnError, turn
from bayesify.core.unfolding import stack, unfold
from bayesify.formatting import listing

__all__ = ["Folded"]


class _Plan(NamedTuple):
    """How a call makes its passes; see `Verdict`."""

    noise_per_row: bool
    folds: bool
    layers_without_rows: tuple[int, ...] = ()
    unused_layers: tuple[int, ...] = ()


class Folded(Bayesian):
    """The default root: S draws are folded into the batch and take one pass over S*B rows.

    Every draw takes a separate pass with `fold=False`, if the batch is not the first dimension, if the rows of a batch affect each
    other (graph networks), and for batch normalization in training mode. The first pass over each kind of inputs determines this
    (`bayesify.core.folding`), unless `fold=True`. If rows affect each other, layers draw weights for the whole batch also with
    `coherent=False`, because noise per row would not be noise per example.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self._verdicts = Recent[object, Verdict]()
        self._training_verdicts = Recent[object, bool]()
        self._prefix: Prefix | None = None
        self._function: ForwardPass | None = None  # the pass of a function drawn from a sharded network

    def forward(self, *inputs: Any, samples: int = 1, coherent: bool = False, **kwargs: Any) -> Draws:
        if self._function is not None:
            return self.passes.run(self._function, self.net, inputs, kwargs)
        check_integer("samples", samples)
        self.passes.check_free()
        call = self.inputs_of(inputs, kwargs)
        call.shared = samples > 1 or not self.pays_kl  # `predict` makes several calls
        plan = self._plan(call, samples)
        coherent = coherent or not plan.noise_per_row
        with noise_of_rank(self.net, self.training):
            try:
                passes, outputs = self._passes(call, samples, coherent, plan)
            except NewLayerError:  # the network was changed: another adapter is active
                self._verdicts.clear()
                self._training_verdicts.clear()
                plan = self._plan(call, samples)
                passes, outputs = self._passes(call, samples, coherent or not plan.noise_per_row, plan)
            except RowsError as error:
                if not plan.folds or self.fold:
                    raise
                self._distrust(call, str(error))
                passes, outputs = self._passes(call, samples, True, _Plan(False, False))
        score = None if passes[0].score is None else torch.cat([p.score for p in passes if p.score is not None])
        kl = self.kl_of_pass(passes[0].found_kls)
        local_kl = torch.zeros(call.batch, dtype=kl.dtype, device=kl.device)
        draws = Draws(outputs, kl, local_kl, score, observation=self.observation(passes))
        self.passes.watch_backward(passes[0], kl)
        return draws

    # How passes are made

    def _passes(self, call: Inputs, samples: int, coherent: bool, plan: _Plan) -> tuple[list[ForwardPass], Any]:
        """The passes for all draws and the outputs (S, B, ...)."""
        if plan.folds and samples > 1:
            forward_pass = self._new_pass(samples, coherent, True, samples * call.batch, plan)
            outputs = self._run(forward_pass, call, samples)
            return [forward_pass], tree_map(lambda y: unfold(y, samples, call.batch), outputs)
        passes: list[ForwardPass] = []
        runs: list[Any] = []
        for s in range(samples):
            passes.append(self._new_pass(1, coherent, s == 0, None, plan))
            runs.append(self._run(passes[-1], call, 1))
        return passes, tree_map(lambda *ys: stack(ys, call.batch, self.batch_dim), *runs)

    def _new_pass(self, samples: int, coherent: bool, first: bool, rows: int | None, plan: _Plan) -> ForwardPass:
        positions = plan.layers_without_rows
        layers = [layer for i, (_, layer) in enumerate(self.random_layers()) if i in positions] if positions else []
        unused = (
            [layer for i, (_, layer) in enumerate(self.random_layers()) if i in plan.unused_layers] if plan.unused_layers else []
        )
        if self._prefix is not None:
            return ReplayPass(self._prefix, samples, coherent, layers)
        pays_kl = first and self.pays_kl
        return ForwardPass(
            samples,
            coherent=coherent,
            pays_kl=pays_kl,
            rows=rows,
            without_rows=layers,
            unused=unused,
            training=self.training,
            records=self.is_observed,
        )

    def _run(self, forward_pass: ForwardPass, call: Inputs, samples: int) -> Any:
        prefix = self._prefix
        if prefix is None:
            args, kwargs = call.folded(samples)
            return self.passes.run(forward_pass, self.net, args, kwargs)
        args, kwargs = call.map(prefix.mark_input, [isinstance(x, Tensor) and may for x, may in call.pairs()])
        with prefix:
            outputs = self.passes.run(forward_pass, self.net, args, kwargs)
        outputs = prefix.end(outputs)
        if prefix.is_empty:  # everything is random from the beginning: nothing to replay
            self._prefix = None
        return outputs

    # Whether draws may be folded

    def _plan(self, call: Inputs, samples: int) -> _Plan:
        verdict = self._verdicts.get(call.kind)
        if verdict is None:
            verdict = self._examined(call)
        if verdict is None:  # tracing, or a network that fails on these inputs: correct for every network
            return _Plan(False, False)
        if verdict.without_rows:
            call.without(verdict.without_rows)
        if self.fold and not any(layer.is_read for _, layer in self.random_layers()):
            return _Plan(not verdict.draws_weights, True, verdict.layers_without_rows, verdict.unused_layers)
        per_row = verdict.independent_rows and not verdict.draws_weights
        folds = verdict.independent_rows and self.fold is not False
        folds = folds and (samples == 1 or not self.training or self._folds_in_training(call, verdict))
        return _Plan(per_row, folds, verdict.layers_without_rows, verdict.unused_layers)

    def _examined(self, call: Inputs) -> Verdict | None:
        """Examine the network; while `torch.compile` traces, with the values of the traced inputs."""
        if torch.compiler.is_compiling():
            flat = call.spec is None
            fields = self._examine_while_tracing(tuple(call.kwargs), *call.leaves) if flat else None
            return None if fields is None else Verdict(fields[0], without_rows=fields[1], layers_without_rows=fields[2])
        if not can_compare(self.net):
            return None
        verdict = self._examine(call)
        if verdict is not None:
            self._verdicts[call.kind] = verdict
        return verdict

    def _examine_while_tracing(self, names: tuple[str, ...], *leaves: Any) -> tuple[bool, tuple[int, ...], tuple[int, ...]] | None:
        """`_examined`, called by the compiler itself."""
        if any(isinstance(leaf, torch._subclasses.FakeTensor) for leaf in leaves):
            return None
        call = self.inputs_of(leaves[: len(leaves) - len(names)], dict(zip(names, leaves[len(leaves) - len(names) :], strict=True)))
        try:
            with turn(limit=5):  # a prediction in another thread may wait for the compiler
                verdict = self._examine(call)
        except TurnError:
            return None
        if verdict is None:
            return None
        return verdict.independent_rows and not verdict.draws_weights, verdict.without_rows, verdict.layers_without_rows

    # As torch.compiler.assume_constant_result does, which would import the compiler: called with the values of the arguments.
    _examine_while_tracing._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]

    def _examine(self, call: Inputs) -> Verdict | None:
        layers = dict(self.random_layers())
        verdict = examine(self.net, layers.values(), self.passes, call)
        if verdict is None:
            return None
        if verdict.finding:
            self.tell(verdict.finding)
        reads = any(layer.is_read for layer in layers.values())
        if not verdict.independent_rows and self.batch_dim == 0 and (reads or not self.fold):
            self._warn_of_separate_passes(verdict.reason)
        if unused := [name for name, layer in layers.items() if not layer.is_used]:
            self.tell(
                f"the network does not use {len(unused)} of its random layers for these inputs; they only add their KL: "
                f"{listing(unused, most=5)}"
            )
        return verdict

    def _folds_in_training(self, call: Inputs, verdict: Verdict) -> bool:
        if not can_compare(self.net):
            return not pools_batches(self.net)
        key = call.kind, tuple(module.training for module in self.net.modules())
        if key not in self._training_verdicts:
            layers = [layer for _, layer in self.random_layers()]
            folds = self._training_verdicts[key] = folds_in_training(self.net, layers, self.passes, call, verdict)
            if not folds:
                self.tell(
                    "in training mode every draw takes a separate pass, because the rows of a batch affect each other there (batch "
                    "normalization); S draws take the time of S passes"
                )
        return self._training_verdicts[key]

    def _distrust(self, call: Inputs, reason: str) -> None:
        """Stop folding, after a folded pass failed although the few rows had agreed."""
        self._verdicts[call.kind] = Verdict(False, reason)
        self._warn_of_separate_passes(reason)

    def _warn_of_separate_passes(self, reason: str) -> None:
        self.tell(
            f"every draw takes a separate pass, with one draw of the weights for the whole batch, because {reason}; S draws take "
            "the time of S passes"
        )

    # Prediction and functions

    @contextmanager
    def predicting(
        self,
        inputs: tuple[Any, ...],
        kwargs: dict[str, Any],
        coherent: bool,
        reseed: Callable[[int], object],
        believed: dict[object, bool] | None = None,
    ) -> Iterator[None]:
        with super().predicting(inputs, kwargs, coherent, reseed):
            call, believed = self.inputs_of(inputs, kwargs), {} if believed is None else believed
            key = id(self), call.kind
            if key not in believed:
                possible = not self.training and is_worth_replay(self.net, call.leaves) and has_prefix(self.net)
                believed[key] = possible and self._replays(call, coherent, reseed)
            if believed[key]:
                self._prefix = Prefix(call.batch, self._plan(call, 2).folds)
            try:
                yield
            finally:
                self._prefix = None

    def stop_replay(self) -> bool:
        replaying, self._prefix = self._prefix is not None, None
        return replaying

    @torch.no_grad()
    def _replays(self, call: Inputs, coherent: bool, reseed: Callable[[int], object]) -> bool:
        """Whether a replayed pass and an ordinary one agree, on a few rows with equal noise."""
        few = min(call.batch, 3) if call.can_be_cut else call.batch
        args, kwargs = call.map(lambda x: x.narrow(self.batch_dim, 0, few).clone())

        def outputs(seed: int) -> list[Tensor]:
            reseed(seed)
            draws = self(*args, samples=2, coherent=coherent, **kwargs)
            return [y for y in tree_leaves(draws.outputs) if isinstance(y, Tensor)]

        try:
            ordinary = outputs(1)
        except MISFITS:  # a few rows are no input of this network, such as a graph's
            return False
        try:
            self._prefix = Prefix(few, self._plan(self.inputs_of(args, kwargs), 2).folds)
            outputs(0)  # with different noise, which exposes networks that draw noise themselves
            replayed = outputs(1)
        except MISFITS:
            return False
        finally:
            self._prefix = None
        return not leaves_stand_ins(self.net) and all(map(close, ordinary, replayed))

    def function(self, seed: int) -> Callable[..., Any]:
        drawn = self._weights(seed)

        def apply(*inputs: Any, **kwargs: Any) -> Any:
            forward_pass = ForwardPass(coherent=True, drawn=drawn)
            if not shards_of(self):
                return self.passes.run(forward_pass, self.net, inputs, kwargs, alone=True)
            self._function = forward_pass
            try:
                return self(*inputs, **kwargs)  # FSDP gathers parameters when the root is called
            finally:
                self._function = None
                reshard(self)

        return DrawnFunction(self, apply, self.batch_dim)

    def drawn(self, seed: int) -> AbstractContextManager[nn.Module]:
        return self.drawn_together([seed])

    @contextmanager
    def drawn_together(self, seeds: Sequence[int]) -> Iterator[nn.Module]:
        check_whole(self)
        draws = [self._weights(seed) for seed in seeds]
        drawn = {layer: tuple(map(_cat, zip(*(draw[layer] for draw in draws), strict=True))) for layer in draws[0]}
        rows = len(draws) if len(draws) > 1 else None
        with ExitStack() as stack:
            with turn():
                stack.enter_context(self.passes.hold(ForwardPass(len(draws), coherent=True, drawn=drawn, rows=rows)))
                stack.enter_context(eval_mode(self.net))
            yield self.net

    def sample_network(self, seed: int) -> nn.Module:
        check_whole(self)
        weights = self._weights(seed)
        net = copy.deepcopy(self.net)
        copies = (module for module in net.modules() if isinstance(module, BayesianLayer))
        original = dict(zip(copies, weights, strict=True))

        def values(layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
            weight, bias = weights[original[layer]]
            return weight[0], None if bias is None else bias[0]

        restore(net, values)
        return net

    def _weights(self, seed: int) -> dict[BayesianLayer, tuple[Tensor, Tensor | None]]:
        """One draw of weight (1, *) and bias (1, *) of every layer."""
        check_integer("seed", seed, least=0)
        with torch.no_grad(), own_noise(self.parameters()) as reseed:
            reseed(seed)
            return self.passes.draw([layer for _, layer in self.random_layers()])


def _cat(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """Concatenate draws of a weight or bias; None for a layer without bias."""
    present = [x for x in tensors if x is not None]
    return torch.cat(present) if present else None
