"""What the trainers of other libraries need to know about the evidence lower bound."""

from __future__ import annotations

import dataclasses

from bayesify.core.checks import check_integer
from bayesify.core.model import Bayesian
from bayesify.errors import ConfigurationError
from bayesify.likelihoods.base import check_likelihood
from bayesify.objectives import KLSchedule
from bayesify.train.arguments import check_kl_weights
from bayesify.train.dataset_size import length_of, warn_if_more_examples

__all__ = ["ELBOSettings", "check_trainable", "examples_of"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ELBOSettings:
    """Arguments of the loss that stay the same while training, as in `fit`, and the draws in evaluation."""

    samples: int
    beta: float | KLSchedule
    local_beta: float | None
    eval_samples: int

    def __post_init__(self) -> None:
        check_integer("samples", self.samples)
        check_integer("eval_samples", self.eval_samples)
        check_kl_weights(self.beta, self.local_beta)

    def beta_at(self, step: int, steps: float) -> float:
        """The weight of the KL in step `step`, counted from 0, of `steps`."""
        return self.beta(min(1.0, step / steps)) if isinstance(self.beta, KLSchedule) else float(self.beta)

    @property
    def last_beta(self) -> float:
        """The weight of the KL at the end of training."""
        return self.beta_at(1, 1)


def check_trainable(bnn: object, likelihood: object) -> None:
    """Raise a `TypeError` or `ConfigurationError` unless a trainer without auxiliary inputs can train the network."""
    if not isinstance(bnn, Bayesian):
        raise TypeError(f"model must be what bayesify returned, got {type(bnn).__name__}; make it with bayesify(net, MeanField())")
    check_likelihood(likelihood)
    if bnn.separate_members:
        raise ConfigurationError("an ensemble is trained member by member: give each of bnn.members to a trainer, or use fit")
    if bnn.auxiliary_beta > 0:
        raise ConfigurationError("VIFO(eta_aux=...) needs auxiliary inputs, which this trainer lacks: use fit, or eta_aux=0")


def examples_of(data: object, n: int | None) -> int | None:
    """The number of examples by which the KL is divided: `n`, or the length of the training data; None without data.

    Raises:
        ConfigurationError: the data have no length and `n` is missing.
    """
    length = length_of(data)
    if n is not None:
        check_integer("n", n)
        if length is not None:
            warn_if_more_examples(n, length)
        return n
    if data is not None and length is None:
        raise ConfigurationError(
            f"the training data ({type(data).__name__}) have no length, by which the KL is divided: give n=, the number of "
            "examples in the whole training set"
        )
    return length
