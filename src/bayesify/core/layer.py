"""Random layers and the posteriors of their weights.

`BayesianLayer` is an ordinary layer whose class is exchanged, so names, hooks, tying and types survive. It defines how the layer
acts on an input, given a weight and a bias. For most layers that action is bilinear: the same `op` gives the mean of the output
(from the mean weight) and its variance (from the squared input and the weight variances).

Shapes: S draws, B batch, I in, O out, C channels, G groups. A folded input has S*B rows, all rows of draw 0 first.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from bayesify.core.channels import Channels
from bayesify.core.forward_pass import ForwardPass
from bayesify.core.passes import Passes
from bayesify.core.plain_checkpoint import adopt_plain_weights
from bayesify.core.values import spread_errors
from bayesify.errors import ConfigurationError
from bayesify.functional import local_reparameterization

__all__ = ["BayesianLayer", "Posterior"]


class Posterior(nn.Module, ABC):
    """The posterior of one layer's weight and bias.

    It contains the variational parameters that the layer does not have. The layer's own `weight` and `bias` usually remain, as
    means. A posterior that replaces them sets `layer.weight = None`, so that every parameter has a gradient, and overrides `mean`
    and `adopt`.

    Attributes:
        is_random: whether its draws differ.
        has_moments: whether `moments` gives mean and variance of the outputs.
        drops_weights: whether it was initialized without the weight of the layer.
        draws_jointly: whether all layers share the discrete choice of a draw, in `log_ensemble_size`.
        observes: whether its natural-gradient updates need single examples (see `NaturalPosterior.observe`).
        needs_calls: whether it is found from inputs and outputs of the layer, which recurrent networks do not call.
        needs_linearity: whether it is right only for layers whose outputs are linear in their weight, which `needs_calls` implies.
        is_plain: whether its weights are those of the plain layer; otherwise it overrides `outputs`, and nothing can be restored.
        means: names of its parameters that are means of weights and get weight decay.

    Example:
        >>> layer = bayesify(nn.Linear(3, 1), MeanField()).net
        >>> weight, bias = layer.posterior.sample(layer, samples=4)
        >>> weight.shape, bias.shape, layer.posterior.kl(layer).shape
        (torch.Size([4, 1, 3]), torch.Size([4, 1]), torch.Size([]))
    """

    is_random: bool = True
    has_moments: bool = False
    drops_weights: bool = False
    draws_jointly: bool = False
    observes: bool = False
    needs_calls: bool = False
    needs_linearity: bool = False
    is_plain: bool = True
    means: ClassVar[tuple[str, ...]] = ()
    kl_of_part: tuple[ForwardPass, Tensor]  # during a pass, the KL of a layer in a compiled part of the network

    @abstractmethod
    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        """Draw weights. All other methods are tested against this one.

        Args:
            layer: the layer of this posterior.
            samples: S, the number of draws.

        Returns:
            Weight (S, *weight_shape), and bias (S, *bias_shape) or None for a layer without bias.
        """

    def draws_ahead(self, layer: BayesianLayer) -> Hashable:
        """A key if the layer draws weights in this pass, and they should be drawn before the network calls it; else None.

        Many small layers are faster with `sample_together`, which gets the layers with equal keys.
        """
        return None

    def sample_together(self, layers: Sequence[BayesianLayer]) -> tuple[list[tuple[Tensor, Tensor | None]], Tensor] | None:
        """One draw of the weights of every layer, those of `sample`, and the sum of their KLs; None to draw them one by one."""
        return None

    @abstractmethod
    def kl(self, layer: BayesianLayer) -> Tensor:
        """KL(q || prior) in nats, summed over the layer's parameters: a scalar of at least float32."""

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        """Apply the layer to x (S*B, ...), one weight per draw.

        Override it, or `moments`, for cheaper or less noisy outputs with the same mean and variance of every element (input noise,
        local reparameterization). `coherent=True` uses neither.
        """
        if self.has_moments:
            return local_reparameterization(*self.moments(layer, x))
        return self.outputs(layer, x, *layer.draw())

    def outputs(self, layer: BayesianLayer, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Apply one weight, or one per draw, to x (S*B, ...).

        Override it if the weights of `sample` act on something else than x (random features), and declare `is_plain = False`.
        """
        return layer.prepared_op(x, weight, bias)

    def moments(self, layer: BayesianLayer, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the outputs, for posteriors with `has_moments`: `forward` then draws independent outputs."""
        raise NotImplementedError(f"{type(self).__name__} has no moments")

    def mean(self, layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
        """The posterior mean of weight and bias, which `unbayesify` leaves in the layer."""
        if layer.is_replaced:
            raise NotImplementedError(
                f"the layer has no weight of its own, and {type(self).__name__} does not implement `mean`, which posteriors that "
                "replace it must"
            )
        return layer.weight, layer.bias

    def adopt(self, layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> None:
        """Start from the weights of a checkpoint of the plain network; the layer's own parameters are loaded in any case.

        Override it if the posterior replaces `layer.weight` or `layer.bias`, or stores them.
        """
        if layer.is_replaced:
            raise NotImplementedError(f"{type(self).__name__} cannot start from the weights of a plain network")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """As in `nn.Module`; kernels (K, O, I, *) become (K*O, I, *), because memory formats need four dimensions."""

        def of_kernels(x: Tensor) -> Tensor:
            return fn(x.flatten(0, 1)).unflatten(0, x.shape[:2]) if x.dim() == 5 else fn(x)

        return super()._apply(of_kernels, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "kl_of_part"}  # of an interrupted pass

    def remark(self) -> str:
        """A remark on this layer for `summary`, such as what its conversion lost; usually empty."""
        return ""

    def log_ensemble_size(self, layer: BayesianLayer) -> float:
        """Natural log of the number of different weights that the layer can draw; infinite for continuous noise."""
        return math.inf if self.is_random else 0.0


class BayesianLayer(Channels):
    """Mixin of a layer made random: `class BayesLinear(BayesianLayer, nn.Linear)`.

    Attributes:
        original: the class of the plain layer.
        contracts: whether the layer sums over input channels (linear, convolution), so that input noise is weight noise.
        normalizes: whether it scales and shifts a normalized input.
        then: a function that the layer applies to its output (an activation), or None.
        posterior: the posterior of its weight and bias.
        passes: the current pass of the network.
        weight_shape: the shape of one weight.
        bias_shape: the shape of one bias, or None.
        is_read: whether the network computes with the layer's weight instead of calling the layer.
        is_repeated: whether the network calls the layer several times in a pass: then it draws weights, not noise per row.
        is_used: whether the network's outputs depend on the layer; None before the first pass.
        is_taken_for_output: whether the method chose it as the output layer of the network, which the first pass verifies.

    Example:
        >>> layer = bayesify(nn.Linear(3, 1), MeanField()).net
        >>> isinstance(layer, BayesianLayer), isinstance(layer, nn.Linear), layer.original.__name__, layer.weight_shape
        (True, True, 'Linear', (1, 3))
    """

    original: ClassVar[type[nn.Module]]
    contracts: ClassVar[bool] = False
    normalizes: ClassVar[bool] = False
    then: ClassVar[Callable[[Any, Tensor], Tensor] | None] = None

    weight: Any = property(lambda layer: layer._value("weight"), doc="The layer's weight; see `_value`.")
    bias: Any = property(lambda layer: layer._value("bias"), doc="As `weight`; None for a layer without bias.")
    posterior: Posterior
    passes: Passes
    weight_shape: tuple[int, ...]
    bias_shape: tuple[int, ...] | None
    lacks_bias: bool  # whether the class of the layer has no attribute of that name
    requires_grads: tuple[bool, bool]  # of weight and bias before the layer became random
    replaced: tuple[str, ...] = ()  # the names of the parameters that the posterior has in another form
    is_read: bool
    is_repeated: bool = False
    is_used: bool | None
    is_taken_for_output: bool = False

    def forward(self, input: Tensor) -> Tensor:
        current = self.passes.running
        y = self.passes.call(self, input) if current is None else current.call(self, input)
        return y if self.then is None else self.then(y)

    def _value(self, name: str) -> Tensor | None:
        """Inside a posterior, the layer's own parameter, or None if the posterior replaces it.

        Elsewhere the posterior mean, or the draw of the current pass if the network computes with it.
        """
        current, stored = self.passes.running, self._parameters.get(name)
        if current is not None:
            return stored if current.inside_layer else current.read(self, name)
        return self.passes.read(self, name)

    @property
    def is_replaced(self) -> bool:
        """Whether the posterior replaces the layer's own weight or bias."""
        weight, bias = self._parameters.get("weight"), self._parameters.get("bias")
        return "posterior" in self._modules and (weight is None or (bias is None and self.bias_shape is not None))

    def posterior_mean(self, name: str) -> Tensor | None:
        """The posterior mean of "weight" or "bias".

        Raises:
            ConfigurationError: the layer was pruned or parametrized after it became random.
        """
        stored = self._parameters.get(name)
        missing = stored is None and (name == "weight" or self.bias_shape is not None) and "posterior" in self._modules
        if missing and name not in self.replaced:
            raise ConfigurationError(
                f"the {name} of a random {self.original.__name__} was pruned or parametrized after `bayesify`; do this before it, "
                "which leaves the layer deterministic"
            )
        return self.posterior.mean(self)[name == "bias"] if missing else stored

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """As in `nn.Module`, also when a parameter is assigned; one that the posterior replaced would have no effect.

        Raises:
            ConfigurationError: the posterior replaced this parameter.
        """
        if name in self.replaced and param is not None:
            raise ConfigurationError(
                f"the {name} of this layer cannot be set, as {type(self.posterior).__name__} has it in another form; set it before "
                "`bayesify`, or load a checkpoint of the plain network into bnn.net"
            )
        super().register_parameter(name, param)

    @property
    def forward_pass(self) -> ForwardPass:
        """The current pass; a new one for a layer that is called on its own."""
        return self.passes.current or ForwardPass()

    def sampled(self, x: Tensor) -> Tensor:
        """Random output for x (S*B, ...), before `then`."""
        posterior: Any = self._modules["posterior"]  # found faster than as an attribute
        return posterior.outputs(self, x, *self.draw()) if self.draws_weights else posterior(self, x)

    @property
    def draws_weights(self) -> bool:
        """Whether the layer draws weights in this pass, not noise per row."""
        return (self.forward_pass.coherent or self.is_repeated) and self.posterior.is_random

    def sampled_without_rows(self, x: Tensor) -> Tensor:
        """Output (S, ...) of every draw for the same x, before `then`."""
        weight, bias = self.draw()
        biases = [None] * len(weight) if bias is None else bias
        return torch.stack([self.posterior.outputs(self, x, w, b) for w, b in zip(weight, biases, strict=True)])

    def draw(self) -> tuple[Tensor, Tensor | None]:
        """Weight (S, *) and bias (S, *) of this pass, drawn once even if the module is used several times."""
        return self.forward_pass.draw(self)

    def sample(self, samples: int) -> tuple[Tensor, Tensor | None]:
        """Draw weight (S, *) and bias (S, *)."""
        weight, bias = self.posterior.sample(self, samples)
        return self.constrained(weight), bias

    def constrained(self, weight: Tensor) -> Tensor:
        """A weight (S, *), or (*), as a layer may have it: an embedding has a zero vector for padding."""
        return weight

    def prepared_op(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`op` of the prepared x, in one kernel if the layer has one."""
        return self.op(self.prepare(x), weight, bias)

    def op(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Apply one weight (*weight_shape) for all draws, or (S, *weight_shape), one per draw, to a prepared x (S*B, ...)."""
        if weight.dim() == len(self.weight_shape):
            return self.apply_weight(x, weight, bias)
        if weight.shape[0] == 1:
            return self.apply_weight(x, weight.squeeze(0), None if bias is None else bias.squeeze(0))
        return self.apply_weights(x, weight, bias)

    def apply_weights(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`op` for S > 1 draws: by default one call per draw, which is as fast as a grouped convolution."""
        rows = x.unflatten(0, (weight.shape[0], -1))
        biases = [None] * weight.shape[0] if bias is None else bias
        return torch.cat([self.apply_weight(rows[s], weight[s], biases[s]) for s in range(weight.shape[0])])

    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`op` for one weight: the computation of the plain layer after `prepare`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement `apply_weight`")

    def prepare(self, x: Tensor) -> Tensor:
        """The part of the layer before its weight acts (normalization)."""
        return x

    def square(self, x: Tensor) -> Tensor:
        """The input for which `op` with weight variances gives the variance of the output: x * x, for prepared x."""
        return x * x

    @property
    def fan_in(self) -> int:
        """The number of weights that are summed in one output."""
        return 1

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load a checkpoint; one of the plain network has no posterior, and the posterior starts from its weights."""
        if f"{prefix}weight" in state_dict and not any(key.startswith(f"{prefix}posterior.") for key in state_dict):
            adopt_plain_weights(self, state_dict, prefix, missing_keys, error_msgs)
        error_msgs.extend(spread_errors(state_dict, f"{prefix}posterior."))
        self._load_plain(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)

    def _load_plain(self, *args: Any) -> None:
        """`_load_from_state_dict` of the plain layer."""
        super()._load_from_state_dict(*args)
