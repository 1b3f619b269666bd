"""Random layers and the distributions of their weights.

`BayesianLayer` is an ordinary layer with its class swapped, so names, hooks, tying and types survive. It knows how the layer acts
on an input, given a weight and a bias. For most layers that action is bilinear, so the same `op` gives the mean of the output (with
the mean weight) and its variance (squared input, weight variances). `Posterior` is the distribution of its weight and bias.

Shapes: S draws, B batch, I in, O out, C channels, G groups. A folded input has S*B rows, all rows of draw 0 first.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from bayesify.core.forward_pass import ForwardPass, Passes
from bayesify.functional import local_reparameterization

__all__ = ["BayesianLayer", "Posterior"]


class Posterior(nn.Module, ABC):
    """The distribution of one layer's weight and bias.

    It holds the variational parameters the layer does not already have; the layer's own `weight` and `bias` usually stay where
    they are, as means. A posterior that replaces them sets `layer.weight = None`, so that no parameter is left without a gradient,
    and overrides `mean` and `adopt`.

    Attributes:
        is_random: whether its draws differ.
        has_moments: whether `moments` gives mean and variance of the outputs.
        drops_weights: whether it started without regard to the weight that the layer had.
        means: names of its parameters that are means of weights, which weight decay concerns as it does the layer's own.
    """

    is_random: bool = True
    has_moments: bool = False
    drops_weights: bool = False
    means: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        """Draw weights: the definition every other route is tested against.

        Args:
            layer: the layer this posterior belongs to.
            samples: S, the number of draws.

        Returns:
            Weight of shape (S, *weight_shape) and bias of shape (S, *bias_shape), or None for a layer without bias.
        """

    @abstractmethod
    def kl(self, layer: BayesianLayer) -> Tensor:
        """KL(q || prior): nats, summed over the layer's parameters, a scalar of at least float32."""

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        """Apply the layer to x (S*B, ...), one weight draw per sample.

        Override, or override `moments`, for a cheaper or less noisy route with the same mean and variance of every output element
        (input noise, local reparameterisation); `coherent=True` bypasses both.
        """
        if self.has_moments and not layer.prefers_weights(x, x.shape[0] // layer.forward_pass.samples):
            return local_reparameterization(*self.moments(layer, x))
        return layer.prepared_op(x, *layer.draw())

    def moments(self, layer: BayesianLayer, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the outputs where `forward` draws these, independently, and not weights.

        It is asked if `has_moments`, and not where the layer prefers weights: convolutions do, while no gradient is wanted.
        """
        raise NotImplementedError(f"{type(self).__name__} has no moments")

    def mean(self, layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
        """The posterior mean of weight and bias: what `unbayesify` leaves behind."""
        if layer.is_replaced:
            raise NotImplementedError(f"{type(self).__name__} has taken the place of the layer's weight and does not say its mean")
        return layer.weight, layer.bias

    def adopt(self, layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> None:
        """Start from these weights, those of a checkpoint of the plain network; what the layer itself holds is loaded anyway.

        Override where the posterior has taken the place of `layer.weight` or `layer.bias`, or remembers them.
        """
        if layer.is_replaced:
            raise NotImplementedError(f"{type(self).__name__} cannot start from the weights of a plain network")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """As in `nn.Module`; the K kernels of a convolution, (K, O, I, *), count as K*O kernels where a memory format is set."""

        def of_kernels(x: Tensor) -> Tensor:
            return fn(x.flatten(0, 1)).unflatten(0, x.shape[:2]) if x.dim() == 5 else fn(x)

        return super()._apply(of_kernels, recurse)

    def remark(self) -> str:
        """What `summary` should say about this layer next to its numbers, such as what its conversion lost; usually nothing."""
        return ""

    def log_ensemble_size(self, layer: BayesianLayer) -> float:
        """Natural log of how many different weights the layer can draw; infinite for continuous noise."""
        return math.inf if self.is_random else 0.0


class BayesianLayer(nn.Module):
    """Mixin of a layer made random: `class BayesLinear(BayesianLayer, nn.Linear)`.

    Attributes:
        original: the class of the layer before and after.
        contracts: whether the layer sums over input channels (linear, convolution), so that input noise is weight noise.
        normalizes: whether it scales and shifts what it has normalised.
        then: what the layer does with its output afterwards (an activation of its own), or None.
        posterior: the distribution of its weight and bias.
        passes: which pass the network is in.
        weight_shape: the shape of one weight.
        bias_shape: the shape of one bias, None without one.
        is_read: whether the net computes with the layer's weight itself, instead of calling the layer.
        is_used: whether the net has called the layer, or read it, since it was looked at; None before.
    """

    original: ClassVar[type[nn.Module]]
    contracts: ClassVar[bool] = False
    normalizes: ClassVar[bool] = False
    then: ClassVar[Callable[[Any, Tensor], Tensor] | None] = None

    weight: Any = property(lambda layer: layer._value("weight"), doc="The layer's own weight; see `_value` for what others get.")
    bias: Any = property(lambda layer: layer._value("bias"), doc="As `weight`; None for a layer without bias.")
    posterior: Posterior
    passes: Passes
    weight_shape: tuple[int, ...]
    bias_shape: tuple[int, ...] | None
    requires_grads: tuple[bool, bool]  # of weight and bias before the layer became random
    is_read: bool
    is_used: bool | None

    def forward(self, input: Tensor) -> Tensor:
        current = self.passes.current
        y = self.passes.call(self, input) if current is None else current.call(self, input)
        return y if self.then is None else self.then(y)

    def _value(self, name: str) -> Tensor | None:
        """For a posterior, the layer's own parameter, None where the posterior has taken its place.

        For the net around it, the mean, whose dtype and device many nets ask for; within a pass, the pass's draw, if the net
        computes with it.
        """
        current, stored = self.passes.current, self._parameters.get(name)
        if current is not None:
            return stored if current.inside_layer else current.read(self, name)
        return self.passes.read(self, name)

    @property
    def is_replaced(self) -> bool:
        """Whether the posterior has taken the place of the layer's own weight or bias."""
        weight, bias = self._parameters.get("weight"), self._parameters.get("bias")
        return "posterior" in self._modules and (weight is None or (bias is None and self.bias_shape is not None))

    def resting(self, name: str) -> Tensor | None:
        """The posterior mean of weight or bias."""
        stored = self._parameters.get(name)
        missing = stored is None and (name == "weight" or self.bias_shape is not None) and "posterior" in self._modules
        return self.posterior.mean(self)[name == "bias"] if missing else stored

    @property
    def forward_pass(self) -> ForwardPass:
        """The pass under way; a new one where the layer is at work on its own."""
        return self.passes.current or ForwardPass()

    def sampled(self, x: Tensor) -> Tensor:
        """The random output for x (S*B, ...), without `then`."""
        return self.prepared_op(x, *self.draw()) if self.forward_pass.coherent else self.posterior(self, x)

    def sampled_without_rows(self, x: Tensor) -> Tensor:
        """The output (S, ...) of every draw for one and the same x, without `then`."""
        weight, bias = self.draw()
        biases = [None] * len(weight) if bias is None else bias
        return torch.stack([self.prepared_op(x, w, b) for w, b in zip(weight, biases, strict=True)])

    def draw(self) -> tuple[Tensor, Tensor | None]:
        """Weight (S, *) and bias (S, *) of this pass: drawn once, however often the module is used in it."""
        return self.forward_pass.draw(self)

    def sample(self, samples: int) -> tuple[Tensor, Tensor | None]:
        """Weight (S, *) and bias (S, *), drawn afresh."""
        return self.posterior.sample(self, samples)

    def prefers_weights(self, x: Tensor, rows: int) -> bool:
        """Whether to draw weights and not outputs for an input x of so many rows per draw, where a posterior can do both.

        Outputs are drawn for gradients with less noise. Where none are wanted, the cheaper way is taken.
        """
        return False

    def prepared_op(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`op` of the prepared x, in one go where the layer has a kernel for both."""
        return self.op(self.prepare(x), weight, bias)

    def op(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Apply weight (*weight_shape), shared by all draws, or (S, *weight_shape), one per draw, to a prepared x (S*B, ...)."""
        if weight.dim() == len(self.weight_shape):
            return self.apply_weight(x, weight, bias)
        if weight.shape[0] == 1:
            return self.apply_weight(x, weight.squeeze(0), None if bias is None else bias.squeeze(0))
        return self.apply_weights(x, weight, bias)

    def apply_weights(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`op` for S > 1 draws: one ordinary call per draw, which is as fast as one grouped convolution, unless overridden."""
        rows = x.unflatten(0, (weight.shape[0], -1))
        biases = [None] * weight.shape[0] if bias is None else bias
        return torch.cat([self.apply_weight(rows[s], weight[s], biases[s]) for s in range(weight.shape[0])])

    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`op` for one weight: what the original layer computes, after `prepare`."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it acts on its input")

    def prepare(self, x: Tensor) -> Tensor:
        """The part of the layer before its weight acts (normalisation)."""
        return x

    def square(self, x: Tensor) -> Tensor:
        """The input whose `op` with weight variances is the variance of the output: x * x, for prepared x."""
        return x * x

    @property
    def fan_in(self) -> int:
        """How many weights are summed in one output."""
        return 1

    @property
    def input_channels(self) -> int:
        """K, the number of input channels that input noise multiplies."""
        raise NotImplementedError(f"{type(self).__name__} does not contract over input channels")

    def over_channels(self, v: Tensor, x: Tensor) -> Tensor:
        """Shape v (R, K) or (1, K), per row and input channel, to multiply x (R, ...)."""
        raise NotImplementedError(f"{type(self).__name__} does not contract over input channels")

    def over_outputs(self, v: Tensor, y: Tensor) -> Tensor:
        """Shape v (O,), per output channel, to meet the output y (R, ...)."""
        raise NotImplementedError(f"{type(self).__name__} does not contract over input channels")

    def over_weight(self, v: Tensor) -> Tensor:
        """Shape v (..., K), per input channel, to multiply the weight: the same as `over_channels(v)` times the input."""
        raise NotImplementedError(f"{type(self).__name__} does not contract over input channels")

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
        """A checkpoint of the plain network has no posterior: keep ours, but for the weights it is to start from."""
        if f"{prefix}weight" in state_dict and not any(key.startswith(f"{prefix}posterior.") for key in state_dict):
            like = next(iter((*self.posterior.parameters(), *self.parameters())))
            given = {name: state_dict.get(f"{prefix}{name}") for name in ("weight", "bias")}
            shapes = {"weight": self.weight_shape, "bias": self.bias_shape}
            wrong = [name for name, value in given.items() if value is not None and tuple(value.shape) != shapes[name]]
            if not wrong:
                with torch.no_grad():
                    weight, bias = (None if value is None else value.to(like) for value in given.values())
                    assert weight is not None
                    self.posterior.adopt(self, weight, bias)
            for name, shape in shapes.items():
                if self._parameters.get(name) is None and shape is not None:  # the posterior has it: what PyTorch checks elsewhere
                    key, value = f"{prefix}{name}", state_dict.pop(f"{prefix}{name}", None)
                    if value is None:
                        missing_keys.append(key)
                    elif name in wrong:
                        error_msgs.append(
                            f"size mismatch for {key}: copying a param with shape {value.shape} from checkpoint, "
                            f"the shape in current model is {torch.Size(shape)}."
                        )
            state_dict.update({f"{prefix}posterior.{key}": value for key, value in self.posterior.state_dict().items()})
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
