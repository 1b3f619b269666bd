"""The default root: draws are folded into the batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bayesify.core.checks import check_integer
from bayesify.core.comparison import close
from bayesify.core.drawn_networks import DrawnNetworks
from bayesify.core.first_batch import FirstBatchError
from bayesify.core.forward_pass import ForwardPass
from bayesify.core.generators import generator_states, noise_of_rank, set_generator_states
from bayesify.core.inputs import NETWORK_ERRORS, Inputs
from bayesify.core.layer import BayesianLayer
from bayesify.core.outputs import Draws
from bayesify.core.pass_values import DrawnBeforeError, NewLayerError, NewReadError, RowsError
from bayesify.core.plans import OtherDecisionsError, Plan
from bayesify.core.replay import Prefix, ReplayPass, has_prefix, is_worth_replay, leaves_stand_ins
from bayesify.core.separate_draws import SeparateDraws
from bayesify.core.shards import shards_of
from bayesify.core.unfolding import copied, stack, unfold
from bayesify.core.watch import Decisions
from bayesify.core.weight_shapes import check_shapes
from bayesify.errors import PassError

__all__ = ["Folded"]

_MOST_CHANGES = 3  # that are noticed: parts of the network may be compiled, whose uses of layers are not


class Folded(DrawnNetworks):
    """The default root: S draws are folded into the batch and take one pass over S*B rows.

    Every draw takes a separate pass with `fold=False`, if the batch is not the first dimension, if the rows of a batch affect each
    other (graph networks), and for batch normalization in training mode. The first pass over each kind of inputs determines this
    (`bayesify.core.folding`), unless `fold=True`. If rows affect each other, layers draw weights for the whole batch also with
    `coherent=False`, because noise per row would not be noise per example.
    """

    local_beta: float = 0.0  # there is no per-example KL

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self._prefix: Prefix | None = None
        self._is_checkpointed = False  # as far as it matters, and is known
        self._changes = 0  # of the layers that the network uses

    def forward(self, *inputs: Any, samples: int = 1, coherent: bool = False, **kwargs: Any) -> Draws:
        if self.function_pass is not None:
            return self.passes.run(self.function_pass, self.net, inputs, kwargs)
        check_integer("samples", samples)
        self.passes.check_free()
        call = self.inputs_of(inputs, kwargs)
        call.shared = samples > 1 or not self.pays_kl  # `predict` makes several calls
        try:
            return self._draws(call, samples, coherent)
        except (AttributeError, KeyError, TypeError) as error:
            self.explain(error, call)
            raise
        except (IndexError, RuntimeError):
            check_shapes(self, self._layers())
            raise

    # How passes are made

    def _draws(self, call: Inputs, samples: int, coherent: bool) -> Draws:
        layers = self._layers()
        plan = self.checked_plan(call, samples, coherent)
        if self.is_observed and not self.fold:
            self.check_single_examples(call)
        with noise_of_rank(self.net, self.training):
            tensors = [] if torch.compiler.is_compiling() else _on_devices_in_use(self, call)
            before = generator_states(tensors) if tensors else {}
            try:
                passes, outputs = self._passes(call, samples, coherent or not plan.noise_per_row, plan)
                self._check_uses(passes[0], layers, plan)
            except (RowsError, OtherDecisionsError) as error:
                plan = self._plan_after(error, call, samples, coherent, plan)
                passes, outputs = self._passes_again(call, samples, coherent, plan, lambda: set_generator_states(tensors, before))
        self.tell_of_failure(call)
        score = None if passes[0].score is None else torch.cat([p.score for p in passes if p.score is not None])
        kl = self.kl_of_pass(passes[0].reported_kls(layers))
        local_kl = kl.new_zeros(call.examples(outputs, 1))
        draws = Draws(outputs, kl, local_kl, score, self.local_beta, self.observation(passes))
        self.passes.watch_backward(passes[0], kl)
        return draws

    def _check_uses(self, forward_pass: ForwardPass, layers: Sequence[BayesianLayer], plan: Plan) -> None:
        """Raise a `NewLayerError` if the network no longer uses layers that it used when it was examined, as merged adapters."""
        unknown = isinstance(forward_pass, ReplayPass) or self.fold or torch.compiler.is_compiling()  # which layers are used
        if self.training or unknown or self._changes == _MOST_CHANGES:
            return
        used = forward_pass.used
        if plan.varies:  # other batches may use other layers, but some
            changed = not used and any(layer.is_used for layer in layers)
        else:
            examined = plan.noise_per_row or plan.folds
            changed = examined and any(layer not in used for i, layer in enumerate(layers) if i not in plan.unused_layers)
        if changed:
            self._changes += 1
            raise NewLayerError("the network no longer uses a random layer that it used before")

    def _plan_after(self, error: PassError, call: Inputs, samples: int, coherent: bool, plan: Plan) -> Plan:
        """A plan for a pass that failed by another one; raise the error if there is none."""
        if isinstance(error, DrawnBeforeError):
            self._is_checkpointed = True
            return plan
        if isinstance(error, RowsError) and not isinstance(error, NewLayerError):
            if not plan.folds or self.fold:
                raise error
            self.distrust(call, str(error))
            return Plan(False, False)
        if self._prefix is not None:  # `predict` repeats the pass without replay
            raise error
        if isinstance(error, OtherDecisionsError):
            return self.plan_for_other_decisions(call, samples, error)
        if isinstance(error, NewReadError):
            error.layer.is_read = True
        self.forget_verdicts()  # the network was changed: another adapter is active; or a sequence is longer
        return self.checked_plan(call, samples, coherent)

    def _passes_again(
        self, call: Inputs, samples: int, coherent: bool, plan: Plan, reseed: Callable[[], None]
    ) -> tuple[list[ForwardPass], Any]:
        """`_passes` by another plan. Equal seeds give equal draws, also when a pass is repeated."""
        while True:
            reseed()
            try:
                return self._passes(call, samples, coherent or not plan.noise_per_row, plan)
            except NewReadError as error:  # each concerns another layer
                plan = self._plan_after(error, call, samples, coherent, plan)
            except NewLayerError:
                if not plan.unused_layers:
                    raise
                self.distrust(call, "the network chooses among its random layers anew in every pass")
                plan = self.checked_plan(call, samples, coherent)

    def _passes(self, call: Inputs, samples: int, coherent: bool, plan: Plan) -> tuple[list[ForwardPass], Any]:
        """The passes for all draws and the outputs (S, B, ...)."""
        if plan.folds and samples > 1:
            forward_pass = self._new_pass(samples, coherent, True, samples * call.batch, plan)
            self._draw_first(forward_pass, plan)
            outputs = self._run_as_examined(forward_pass, call, samples, plan)
            return [forward_pass], unfold(outputs, samples, call.batch)
        runs: list[Any] = []
        separate = SeparateDraws(samples)
        passes = [self._new_pass(1, coherent, s == 0, None, plan, partial(separate.one, s)) for s in range(samples)]
        if plan.draws_noise:  # of the first pass, which must not change the weights of the second
            for forward_pass in passes:
                self._draw_first(forward_pass, plan)
        for forward_pass in passes:
            if not plan.draws_noise:
                self._draw_first(forward_pass, plan)
            outputs = self._run(forward_pass, call, 1) if coherent else self._run_as_examined(forward_pass, call, 1, plan)
            runs.append(copied(outputs) if samples > 1 and torch.is_grad_enabled() else outputs)
        return passes, stack(runs, call.examples(runs[0], self.batch_dim), self.batch_dim)

    def _new_pass(
        self,
        samples: int,
        coherent: bool,
        first: bool,
        rows: int | None,
        plan: Plan,
        separate: Callable[[str, Callable[[int], Tensor]], Tensor] | None = None,
    ) -> ForwardPass:
        layers = self._layers_at(plan.layers_without_rows)
        unused = self._layers_at(plan.unused_layers)
        if self._prefix is not None:
            return ReplayPass(self._prefix, samples, coherent, layers, separate=separate)
        pays_kl = first and self.pays_kl
        trains = pays_kl and samples == 1 and torch.is_grad_enabled()  # elsewhere, draws should stay in cache
        draws_ahead = trains and not shards_of(self.net) and not _has_compiled_parts(self.net)
        return ForwardPass(
            samples,
            coherent=coherent,
            pays_kl=pays_kl,
            rows=rows,
            without_rows=layers,
            unused=unused,
            notes_repeats=True,
            notes_reads=not self._failure,
            training=self.training,
            is_checkpointed=self._is_checkpointed,
            ahead=[layer for layer in self._layers() if layer not in unused] if draws_ahead else [],
            records=self.is_observed,
            separate=separate,
        )

    def _layers_at(self, positions: Collection[int]) -> list[BayesianLayer]:
        return [layer for i, layer in enumerate(self._layers()) if i in positions] if positions else []

    def _draw_first(self, forward_pass: ForwardPass, plan: Plan) -> None:
        """Draw all weights before the pass if the network's transforms cannot draw, or if the batch decides what is drawn before.

        It does where values decide which layers are called, and where the network draws noise of its own.

        Draws that depended on the batch would not be one function of all batches, as `coherent` promises.
        """
        needed = plan.draws_weights or ((plan.varies or plan.draws_noise) and not torch.is_grad_enabled())
        if needed and forward_pass.coherent and not torch.compiler.is_compiling():
            self.passes.draw_in(forward_pass, self._layers())

    def _run_as_examined(self, forward_pass: ForwardPass, call: Inputs, samples: int, plan: Plan) -> Any:
        """`_run`, which must take decisions that an examined pass took: other code may let rows affect each other.

        Raises:
            OtherDecisionsError: it took others.
        """
        replays = self._prefix is not None and self._prefix.passes > 1
        if not any(plan.decisions) or replays or torch.compiler.is_compiling():
            return self._run(forward_pass, call, samples)
        with Decisions() as decisions:
            outputs = self._run(forward_pass, call, samples)
        if (taken := tuple(decisions.taken)) not in plan.decisions:
            raise OtherDecisionsError(taken)
        return outputs

    def _run(self, forward_pass: ForwardPass, call: Inputs, samples: int) -> Any:
        prefix = self._prefix
        if prefix is None:
            args, kwargs = call.folded(samples)
            return self.passes.run(forward_pass, self.net, args, kwargs)
        outputs = prefix.run(cast(ReplayPass, forward_pass), self.passes, self.net, call)
        if prefix.is_empty:  # everything is random from the beginning: nothing to replay
            self._prefix = None
        return outputs

    # Prediction

    @contextmanager
    def predicting(
        self,
        inputs: tuple[Any, ...],
        kwargs: dict[str, Any],
        coherent: bool,
        reseed: Callable[[int], object],
        believed: dict[object, bool] | None = None,
        samples: int = 100,
    ) -> Iterator[None]:
        with super().predicting(inputs, kwargs, coherent, reseed):
            call, believed = self.inputs_of(inputs, kwargs), {} if believed is None else believed
            key = id(self), call.kind
            if key not in believed:
                possible = not self.training and is_worth_replay(self.net, call.leaves, samples) and has_prefix(self.net)
                believed[key] = possible and self._replays(call, coherent, reseed)
            if believed[key]:
                self._prefix = Prefix(call.batch, self.plan(call, 2).folds)
            try:
                yield
            finally:
                self._prefix = None

    @property
    def is_replaying(self) -> bool:
        return self._prefix is not None

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
            self._prefix = Prefix(few, self.plan(few_inputs := self.inputs_of(args, kwargs), 2).folds)
            self.believe_size(few_inputs, 2)  # which is compared here
            outputs(0)  # with different noise, which exposes networks that draw noise themselves
            if self._prefix is None:
                return False
            replayed = outputs(1)
            if leaves_stand_ins(self.net):
                return False
            self._prefix = None
            ordinary = outputs(1)
        except FirstBatchError:
            raise
        except NETWORK_ERRORS:  # a few rows are no input of this network, such as a graph's, or it cannot be replayed
            return False
        finally:
            self._prefix = None
        return all(map(close, ordinary, replayed))


def _has_compiled_parts(net: nn.Module) -> bool:
    """Whether a module is compiled: by its method `compile`, or by `torch.compile`, which wraps it."""
    return any(module._compiled_call_impl is not None or "_orig_mod" in module._modules for module in net.modules())


def _on_devices_in_use(net: nn.Module, call: Inputs) -> list[Tensor]:
    return [next(net.parameters()), *(x for x in call.leaves if isinstance(x, Tensor))]
