"""What a Bayesian network returns."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["Draws", "NormalOutputs"]


class Draws(NamedTuple):
    """What one call of a Bayesian network returns.

    Attributes:
        outputs: (S, B, ...), the net's output for each of S draws; a net that returns a tuple or dict gives the same structure.
        kl: scalar of at least float32, nats, paid once per data set.
        local_kl: (B,) of at least float32, nats, paid once per example (zero for methods without one).
        score: (S,) zeros whose gradient is that of the log probability of each draw's discrete choices; `elbo` needs it to learn
            such probabilities. None where nothing of the kind is learned.
        local_beta: the weight of `local_kl` that the method asks for (`VIFO(eta=...)`); `elbo` uses it unless told otherwise.
    """

    outputs: Tensor
    kl: Tensor
    local_kl: Tensor
    score: Tensor | None = None
    local_beta: float = 1.0


class NormalOutputs(NamedTuple):
    """The distribution of a network's outputs, where it is an independent normal one in closed form.

    Attributes:
        mean, std: (B, ...) of at least float32.
        kl, local_kl, local_beta: as in `Draws`.
    """

    mean: Tensor
    std: Tensor
    kl: Tensor
    local_kl: Tensor
    local_beta: float = 1.0
