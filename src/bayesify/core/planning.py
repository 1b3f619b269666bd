"""Decisions of the default root about its passes: whether draws are folded, and what layers draw."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from bayesify.core.batch_sizes import BatchSizes
from bayesify.core.examination import Examination
from bayesify.core.examined import Examined, check_no_capture
from bayesify.core.fidelity import missed_weights
from bayesify.core.folding import Verdict, obstacle_in_training, pools_batches
from bayesify.core.inputs import Inputs
from bayesify.core.layer import Posterior
from bayesify.core.modes import can_compare
from bayesify.core.noise_free import NOISE_IN_EVAL_MODE
from bayesify.core.per_example import unlike_examples
from bayesify.core.plans import OtherDecisionsError, Plan, other_size
from bayesify.core.shards import shards_of
from bayesify.core.turns import TurnError, turn
from bayesify.errors import PassError

__all__ = ["Planning"]

_MOST_DECISIONS = 16  # sets of decisions by values of inputs that are examined


class Planning(Examined):
    """A root that plans its passes by what it knows of its network."""

    def checked_plan(self, call: Inputs, samples: int, coherent: bool) -> Plan:
        """`plan`, after a comparison of passes of this size with smaller ones: code may branch on the batch size."""
        plan = self.plan(call, samples)
        folds = plan.folds and samples > 1
        if self.fold or self.batch_dim != 0 or not (folds or (plan.noise_per_row and not coherent)):
            return plan
        if not torch.compiler.is_compiling() and self._sizes.get(self._size(call, samples if folds else 1)):
            return plan
        if not (folds or self._has_noise_per_row()):
            return plan
        if torch.compiler.is_compiling():
            agrees = call.spec is not None or self._agrees_while_tracing(
                tuple(call.kwargs), (2, 8) if folds else (1,), *call.leaves
            )
            return plan if agrees else Plan(False, False)
        agrees = self._agrees_at_size(call, samples if folds else 1)
        if agrees is None:  # the network fails, which a folded pass might hide
            return Plan(False, False)
        return plan if agrees else self.plan(call, samples)

    def _has_noise_per_row(self) -> bool:
        """Whether a layer may draw noise for each row instead of weights."""
        posteriors = [layer.posterior for layer in self._layers()]
        return any(p.is_random and (p.has_moments or type(p).forward is not Posterior.forward) for p in posteriors)

    def _agrees_at_size(self, call: Inputs, samples: int) -> bool | None:
        """Whether the verdict on a few rows holds for S draws of this batch, or else is replaced; None if the network fails."""
        verdict = self._verdicts.get(call.kind)
        if verdict is None or not can_compare(self.net):
            return True
        agrees = self._agrees(call, samples, verdict)
        if agrees is False and self.is_replaying and samples > 1:
            self.stop_replay()
            agrees = self._agrees(call, samples, verdict)
        if agrees is None:
            return None
        if not agrees:
            if samples > 1:
                self.distrust(call, other_size(call, samples))
            elif (verdict := self._examine(call, whole=True)) is not None:
                self._learn(call, verdict)
        return self._verdicts[call.kind].independent_rows

    def _agrees(self, call: Inputs, samples: int, verdict: Verdict) -> bool | None:
        """Whether passes over S*B rows agree with passes over B rows or, with S = 1, those with passes over a few rows.

        None if the network fails for B rows.
        """
        if shards_of(self.net):  # processes gather parameters together
            return True
        key = self._size(call, samples)
        if self._sizes.recall(key) is None:
            check_no_capture()
            sizes = BatchSizes(self.net, self._layers(), self.passes, call, verdict)
            if samples == 1:
                agrees = sizes.act_as_few_rows()
            else:
                agrees = sizes.replay(samples) if self.is_replaying else sizes.fold(samples)
            if agrees is None:
                return None
            self._sizes[key] = agrees
        return self._sizes[key]

    def _has_training_parts(self) -> bool:
        """Whether any part of the network is in training mode, such as batch normalization in prediction."""
        return self.training or any(module.training for module in self.net.modules())

    def _size(self, call: Inputs, samples: int) -> object:
        """Key of a size, in the current mode."""
        modes = tuple(module.training for module in self.net.modules()) if samples > 1 and self._has_training_parts() else ()
        return call.kind, call.lengths, call.batch, samples, modes, self.is_replaying, self._updates.get(call.kind, 0)

    def believe_size(self, call: Inputs, samples: int) -> None:
        """Compare no passes of this size and mode."""
        self._sizes[self._size(call, samples)] = True

    @property
    def is_replaying(self) -> bool:
        """Whether passes replay the part before the first random layer."""
        return False

    def plan(self, call: Inputs, samples: int) -> Plan:
        """Return how to make the passes of a call."""
        verdict = self._verdicts.get(call.kind)
        if verdict is None or self.is_outdated(verdict, call):
            verdict = self._examined(call)
        if verdict is None:  # tracing, or a network that fails on these inputs: correct for every network
            return Plan(False, False)
        if verdict.is_noisy and not self.training and not torch.compiler.is_compiling():
            self.tell(NOISE_IN_EVAL_MODE)
        if verdict.without_rows:
            call.without(verdict.without_rows)
        if self.fold and not any(layer.is_read for layer in self._layers()):
            plan = Plan(not verdict.draws_weights, True, verdict.layers_without_rows, verdict.unused_layers)
            return plan._replace(draws_weights=verdict.draws_weights, draws_noise=verdict.draws_noise)
        per_row = verdict.independent_rows and not verdict.draws_weights
        if not torch.compiler.is_compiling():
            per_row = per_row and not call.are_differentiated  # noise that does not depend on the input has other derivatives
        folds = verdict.independent_rows and self.fold is not False
        folds = folds and (samples == 1 or not self._has_training_parts() or self._folds_in_training(call, verdict))
        plan = Plan(per_row, folds, verdict.layers_without_rows, verdict.unused_layers, verdict.decisions)
        varies = not verdict.independent_rows or any(verdict.decisions)
        return plan._replace(draws_weights=verdict.draws_weights, varies=varies, draws_noise=verdict.draws_noise)

    def check_single_examples(self, call: Inputs) -> None:
        """Check that gradients of rows are those of examples, if posteriors observe single examples."""
        observes = any(layer.posterior.observes for layer in self._layers())
        if observes and (text := unlike_examples(self._verdicts.get(call.kind), pools_batches(self.net))):
            self.tell(text)

    def plan_for_other_decisions(self, call: Inputs, samples: int, error: OtherDecisionsError) -> Plan:
        """A plan for inputs by which the network decides otherwise than for those that were examined."""
        known = self._verdicts[call.kind].decisions
        verdict = self._examine(call, whole=True) if len(known) < _MOST_DECISIONS else None
        if verdict is not None and not verdict.independent_rows:
            self._verdicts[call.kind] = verdict
        elif verdict is None or error.taken not in verdict.decisions:
            self.distrust(call, str(error))
        else:
            self._verdicts[call.kind] = dataclasses.replace(verdict, decisions=known | verdict.decisions)
        return self.plan(call, samples)

    def explain(self, error: Exception, call: Inputs) -> None:
        """Raise a `PassError` if an error in a pass shows that the network misses a weight that its layer no longer has."""
        if not torch.compiler.is_compiling() and can_compare(self.net):
            examination = Examination(self.net, self._layers(), self.passes)
            if finding := missed_weights(self.net, examination, call):
                raise PassError(finding) from error

    def _agrees_while_tracing(self, names: tuple[str, ...], samples: tuple[int, ...], *leaves: Any) -> bool:
        """`_agrees_at_size`, called by the compiler itself, whose code is for any number of draws."""
        if any(isinstance(leaf, torch._subclasses.FakeTensor) for leaf in leaves):
            return True
        call = self.inputs_of(leaves[: len(leaves) - len(names)], dict(zip(names, leaves[len(leaves) - len(names) :], strict=True)))
        try:
            with turn(limit=5):
                verdict = self._traced_verdict(call)
                if verdict is None or not verdict.independent_rows:
                    return True
                call.without(verdict.without_rows)
                for s in samples:
                    if self._agrees(call, s, verdict) is False:
                        self._warn_of_separate_passes(other_size(call, s))
                        return False
                return True
        except TurnError:
            return True

    _agrees_while_tracing._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]

    def _folds_in_training(self, call: Inputs, verdict: Verdict) -> bool:
        if not can_compare(self.net):
            return not pools_batches(self.net)
        key = call.kind, tuple(module.training for module in self.net.modules()), self._updates.get(call.kind, 0)
        if self._training_verdicts.recall(key) is None:
            layers = self._layers()
            reason = obstacle_in_training(self.net, layers, self.passes, call, verdict)
            self._training_verdicts[key] = not reason
            if reason:
                self.tell(f"in training mode every draw takes a separate pass, because {reason}; S draws take the time of S passes")
        return self._training_verdicts[key]
