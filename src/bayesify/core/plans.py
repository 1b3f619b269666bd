"""How the default root makes the passes of a call."""

from __future__ import annotations

from typing import NamedTuple

from bayesify.core.inputs import Inputs
from bayesify.errors import PassError

__all__ = ["OtherDecisionsError", "Plan", "other_size"]


class Plan(NamedTuple):
    """How a call makes its passes; see `Verdict`.

    Attributes:
        varies: whether other batches may make the network call other layers, or call them in another order.
        draws_noise: whether the network draws noise of its own, as much as its batch needs.
    """

    noise_per_row: bool
    folds: bool
    layers_without_rows: tuple[int, ...] = ()
    unused_layers: tuple[int, ...] = ()
    decisions: frozenset[tuple[bool, ...]] = frozenset()
    draws_weights: bool = False
    varies: bool = False
    draws_noise: bool = False


class OtherDecisionsError(PassError):
    """A folded pass took decisions by values of the inputs that no examined pass took."""

    def __init__(self, taken: tuple[bool, ...]) -> None:
        super().__init__("the network decides by values of its inputs what it computes")
        self.taken = taken


def other_size(call: Inputs, samples: int) -> str:
    """Why draws do not fold if passes of other sizes differ."""
    if samples == 1:
        return "the rows of a batch affect each other in the network"
    return (
        f"the network computes something else of a row among {samples * call.batch} rows than among {call.batch} (it branches on "
        "the batch size, or the rows of a batch affect each other)"
    )
