"""Outputs of a Bayesian network."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor
from torch.utils._pytree import tree_map

from bayesify.errors import ConfigurationError
from bayesify.formatting import listing

if TYPE_CHECKING:
    from bayesify.core.observation import Observation

__all__ = ["Draws", "NormalOutputs", "OutputSelection"]


class Draws(NamedTuple):
    """Outputs and KL terms of one call of a Bayesian network.

    Attributes:
        outputs: (S, B, ...), the network's output for each of S draws; tuples and dicts keep their structure.
        kl: KL per data set, nats, a scalar of at least float32.
        local_kl: KL per example, nats, (B,) of at least float32; zero for methods without one.
        score: (S,) zeros whose gradient is that of the log probability of each draw's discrete choices, with which `elbo` learns
            their probabilities. None if no such probabilities are learned.
        local_beta: the method's default weight of `local_kl` in `elbo` (`VIFO(eta=...)`).
        observation: what `elbo` calls for the optimizer of the network (`Bayesian.optimizer`), or None.

    Example:
        >>> draws = bayesify(nn.Linear(3, 1), MeanField())(torch.zeros(5, 3), samples=2)
        >>> draws.outputs.shape, draws.kl.shape, draws.local_kl.shape
        (torch.Size([2, 5, 1]), torch.Size([]), torch.Size([5]))
    """

    outputs: Tensor
    kl: Tensor
    local_kl: Tensor
    score: Tensor | None = None
    local_beta: float = 1.0
    observation: Observation | None = None

    def rows(self, index: Tensor | slice) -> Draws:
        """The same draws for some rows of the batch, such as the labeled nodes of a graph; `n` of `elbo` counts only these.

        Args:
            index: a mask (B,), positions, or a slice.

        Raises:
            ConfigurationError: the optimizer of the network observes single examples (VOGN, NoisyKFAC, SLANG).

        Example:
            >>> draws = bayesify(nn.Linear(3, 2), MeanField())(torch.zeros(5, 3), samples=4)
            >>> draws.rows(torch.tensor([True, False, False, True, False])).outputs.shape
            torch.Size([4, 2, 2])
        """
        if self.observation is not None and self.observation.sees_examples:
            raise ConfigurationError(
                "the optimizer of this network observes every example of a batch, so that the loss cannot be that of some rows: "
                "give the network these rows alone, or use IVON"
            )
        outputs: Any = tree_map(lambda x: x[:, index], self.outputs)  # a network may return several tensors
        return self._replace(outputs=outputs, local_kl=self.local_kl[index])


class NormalOutputs(NamedTuple):
    """Normal distributions of a network's outputs in closed form, independent unless there is a covariance.

    Attributes:
        mean, std: (B, ...) of at least float32.
        kl, local_kl, local_beta: as in `Draws`.
        covariance: of the K outputs of an example, (B, K, K); None for independent outputs.

    Example:
        >>> bnn = bayesify(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), DVI())
        >>> normal = bnn.normal_outputs(torch.zeros(5, 3))
        >>> normal.mean.shape, normal.covariance.shape
        (torch.Size([5, 2]), torch.Size([5, 2, 2]))
    """

    mean: Tensor
    std: Tensor
    kl: Tensor
    local_kl: Tensor
    local_beta: float = 1.0
    covariance: Tensor | None = None


@dataclasses.dataclass(frozen=True)
class OutputSelection:
    """Select a part of what a network returns: by key or attribute, by position, or by a function.

    Raises:
        ConfigurationError: when called, if the output has no such part.

    Example:
        >>> OutputSelection("logits")({"logits": 1, "past_key_values": 2})
        1
    """

    part: str | int | Callable[[Any], Any]

    def __call__(self, output: Any) -> Any:
        if isinstance(self.part, int):
            if isinstance(output, tuple | list) and -len(output) <= self.part < len(output):
                return output[self.part]
            size = f"of {len(output)} parts" if isinstance(output, tuple | list) else "without positions"
            raise ConfigurationError(f"output={self.part}, but the network returned a {type(output).__name__} {size}")
        if not isinstance(self.part, str):
            return self.part(output)
        selected = output.get(self.part) if isinstance(output, Mapping) else getattr(output, self.part, None)
        if selected is None:
            names = output if isinstance(output, Mapping) else getattr(output, "_fields", ())
            parts = f"with the parts {listing(map(repr, names))}" if names else "without named parts"
            raise ConfigurationError(f"output={self.part!r}, but the network returned a {type(output).__name__} {parts}")
        return selected
