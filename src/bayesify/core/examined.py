"""What the default root knows of its network, by kinds of inputs: it is examined at the first call with each."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from bayesify.core.folding import Verdict, as_plain_data, examine, verdict_of
from bayesify.core.inputs import Inputs
from bayesify.core.model import Bayesian
from bayesify.core.modes import can_compare, is_compiler_loaded
from bayesify.core.obstacles import tell_of_replaced_layers
from bayesify.core.recent import Recent
from bayesify.core.shards import is_distributed
from bayesify.core.turns import TurnError, turn
from bayesify.errors import PassError
from bayesify.formatting import listing

__all__ = ["Examined", "check_no_capture"]

_MOST_KINDS = 64  # kinds of inputs that differ in the values of integers or strings


class Examined(Bayesian):
    """A root that examines its network at the first call with each kind of inputs, and stores the verdicts."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self._verdicts = Recent[object, Verdict]()
        self._traced_verdicts = Recent[object, Verdict]()
        self._updates = Recent[object, int]()  # of the weights, in orders of magnitude, at the last examination of a kind
        self._training_verdicts = Recent[object, bool]()
        self._sizes = Recent[object, bool](1000)  # kinds, sizes and modes in which passes over more rows agreed with fewer
        self._failure = ""  # of the network when it was examined last
        self._kinds = Recent[str, dict[str, None]]()  # by family, as text: the kinds that were examined

    def _examined(self, call: Inputs) -> Verdict | None:
        """Examine the network; while `torch.compile` traces, with the values of the traced inputs."""
        if torch.compiler.is_compiling():
            flat = call.spec is None
            fields = self._examine_while_tracing(tuple(call.kwargs), *call.leaves) if flat else None
            return None if fields is None else Verdict(fields[0], without_rows=fields[1], layers_without_rows=fields[2])
        if not can_compare(self.net):
            return self._verdicts.get(call.kind)
        known = self._verdicts.recall(call.kind)
        if known is not None and not self.is_outdated(known, call):
            self._report(known)
            return known
        if not call.batch:  # which shows nothing
            return None
        kinds, kind = self._kinds.setdefault(repr(call.family), {}), repr(call.kind)
        if kind not in kinds and len(kinds) >= _MOST_KINDS:
            return self._unexamined(kinds)
        verdict = self._examine(call) or known  # more memory may be in use than before
        if verdict is not None:
            kinds[kind] = None
            self._learn(call, verdict)
        return verdict

    def is_outdated(self, verdict: Verdict, call: Inputs) -> bool:
        """Whether draws were folded before training, which may have opened gates that were nearly closed.

        In training mode, the first few updates count as none.
        """
        if torch.compiler.is_compiling() or not verdict.independent_rows or is_distributed():
            return False
        return call.updates > max(self._updates.get(call.kind, 0), int(self.training))

    def _examine_while_tracing(self, names: tuple[str, ...], *leaves: Any) -> tuple[bool, tuple[int, ...], tuple[int, ...]] | None:
        """`_examined`, called by the compiler itself."""
        if any(isinstance(leaf, torch._subclasses.FakeTensor) for leaf in leaves):
            return None
        call = self.inputs_of(leaves[: len(leaves) - len(names)], dict(zip(names, leaves[len(leaves) - len(names) :], strict=True)))
        try:
            with turn(limit=5):  # a prediction in another thread may wait for the compiler
                verdict = self._traced_verdict(call)
        except TurnError:
            return None
        if verdict is None:
            return None
        return verdict.independent_rows and not verdict.draws_weights, verdict.without_rows, verdict.layers_without_rows

    # As torch.compiler.assume_constant_result does, which would import the compiler: called with the values of the arguments.
    _examine_while_tracing._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]

    def _traced_verdict(self, call: Inputs) -> Verdict | None:
        """The verdict on traced inputs. Traced code reads `_verdicts`, which therefore must not change."""
        verdict = self._verdicts.get(call.kind) or self._traced_verdicts.recall(call.kind) or self._examine(call)
        if verdict is not None:
            self._traced_verdicts[call.kind] = verdict
        return verdict

    def _unexamined(self, kinds: Collection[str]) -> Verdict:
        """A verdict that is correct for every network; if all draws have to be folded, that on another value."""
        if self.fold:
            return next((verdict for kind, verdict in self._verdicts.texts().items() if kind in kinds), Verdict(True))
        reason = (
            f"it is called with more than {_MOST_KINDS} different values of arguments that are integers or strings, or of "
            "attributes that are flags or strings, each of which may choose what it computes (give numbers as tensors, or use "
            "fold=True)"
        )
        self._warn_of_separate_passes(reason)
        return Verdict(False, reason)

    def _examine(self, call: Inputs, whole: bool = False) -> Verdict | None:
        check_no_capture()
        had_compiler = is_compiler_loaded()
        found = examine(self.net, self._layers(), self.passes, call, whole)
        if isinstance(found, Exception) and is_compiler_loaded() and not had_compiler:  # it failed as it compiled a part
            found = examine(self.net, self._layers(), self.passes, call, whole)
        if isinstance(found, Exception):
            self._failure = f"{type(found).__name__}: {found}"[:200]
            return None
        self._report(found)
        return found

    def _learn(self, call: Inputs, verdict: Verdict) -> None:
        self._updates[call.kind] = call.updates
        self._verdicts[call.kind] = verdict
        for samples in (1, 2):  # which the examination compared
            self._sizes[call.kind, call.lengths, verdict.rows, samples, (), False, call.updates] = True

    def _report(self, verdict: Verdict) -> None:
        """Tell what users should know of a verdict."""
        layers = dict(self.random_layers())
        if verdict.finding:
            self.tell(verdict.finding)
        reads = any(layer.is_read for layer in layers.values())
        chosen = self.fold is False or self.batch_dim != 0  # separate passes are no news
        if not verdict.independent_rows and not chosen and (reads or not self.fold):
            self._warn_of_separate_passes(verdict.reason)
        tell_of_replaced_layers(self)
        if unused := [name for name, layer in layers.items() if not layer.is_used]:
            self.tell(
                f"the network does not use {len(unused)} of its random layers for these inputs; they only add their KL: "
                f"{listing(unused, most=5)}"
            )

    def tell_of_failure(self, call: Inputs) -> None:
        """Tell that a pass succeeded, although the network had failed when it was examined."""
        if self._failure and not torch.compiler.is_compiling() and self._verdicts.get(call.kind) is None and can_compare(self.net):
            self.tell(
                "the network could not be examined, as it fails in eval mode with drawn weights, which are tensors and no "
                f"parameters ({self._failure}): every draw takes a separate pass, and layers whose weights it reads, instead of "
                "calling them, may keep their means"
            )

    def distrust(self, call: Inputs, reason: str) -> None:
        """Stop folding, after a folded pass failed although the few rows had agreed."""
        self._verdicts[call.kind] = Verdict(False, reason)
        self._warn_of_separate_passes(reason)

    def _warn_of_separate_passes(self, reason: str) -> None:
        self.tell(
            f"every draw takes a separate pass, with one draw of the weights for the whole batch, because {reason}; S draws take "
            "the time of S passes"
        )

    def forget_verdicts(self) -> None:
        """Examine the network again at the next call: its layers have changed."""
        self._verdicts.clear()
        self._traced_verdicts.clear()
        self._updates.clear()
        self._training_verdicts.clear()
        self._sizes.clear()

    def learned(self) -> dict[str, Any]:
        """What forbids to fold draws. What allows it is examined again: the code of the network may have changed."""
        return {
            **{
                name: {kind: as_plain_data(v) for kind, v in found.texts().items() if not v.independent_rows}
                for name, found in self._found().items()
            },
            "in training": {key: agrees for key, agrees in self._training_verdicts.texts().items() if not agrees},
            "sizes": {key: agrees for key, agrees in self._sizes.texts().items() if not agrees},
            "kinds": {family: list(kinds) for family, kinds in self._kinds.items()},
            "layers": {name: [layer.is_read, layer.is_repeated, layer.is_used] for name, layer in self.random_layers()},
        }

    def relearn(self, learned: dict[str, Any]) -> None:
        for name, found in self._found().items():
            found.take({kind: verdict_of(data) for kind, data in learned[name].items()})
        self._training_verdicts.take(learned["in training"])
        self._sizes.take(learned["sizes"])
        self._kinds.update({family: dict.fromkeys(kinds) for family, kinds in learned["kinds"].items()})
        for name, layer in self.random_layers():
            layer.is_read, layer.is_repeated, layer.is_used = learned["layers"][name]

    def _found(self) -> dict[str, Recent[object, Verdict]]:
        return {"verdicts": self._verdicts, "traced": self._traced_verdicts}


def check_no_capture() -> None:
    """Raise a `PassError` while a CUDA graph is captured, which the comparisons of an examination would end."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise PassError(
            "a CUDA graph cannot record the first pass over inputs of a kind and size, which examines the network; call the "
            "network with such inputs a few times, in the same mode, before the capture"
        )
