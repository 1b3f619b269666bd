"""The root module of `VIFO`: runs the network in passes whose last layer returns moments, and draws the outputs.

Shapes: S draws, B batch, K outputs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from bayesify.core.checks import check_integer
from bayesify.core.copies import copied_module
from bayesify.core.drawn_function import DrawnFunction
from bayesify.core.first_batch import may_set_parameters
from bayesify.core.generators import noise_of_rank, own_noise
from bayesify.core.inputs import Inputs
from bayesify.core.layer import BayesianLayer
from bayesify.core.model import Bayesian
from bayesify.core.modes import can_compare, modes_kept
from bayesify.core.noise_free import NOISE_IN_EVAL_MODE
from bayesify.core.outputs import Draws, NormalOutputs
from bayesify.errors import ConfigurationError
from bayesify.functional import at_least_float32, standard_normal
from bayesify.methods._moments_pass import MomentsPass, Probe
from bayesify.methods._vifo_examination import examine_head

if TYPE_CHECKING:
    from bayesify.methods.vifo import VIFO

__all__ = ["RandomOutputs"]

_MOST_KINDS = 64  # of inputs and modes in which the network is tested: integers may have ever new values


class RandomOutputs(Bayesian):
    r"""Root of a network with normal outputs: any number of draws takes one pass.

    With `coherent=True` a draw has the same noise for every example and position: $z_s(x) = \mu(x) + s(x) \epsilon_s$.

    Attributes:
        averages: (3, K), running averages over the training data of mean, mean ** 2 and std ** 2; None for regularizers without.
        output_dim: the dimension of the K outputs in the network's output, in the last call; -1 until a pass has found another.
    """

    one_pass = True
    averages: Tensor | None
    batches: Tensor

    def __init__(self, net: nn.Module, method: VIFO) -> None:
        super().__init__(net)
        self.method = method
        self.draws_noise, self.is_noisy = False, False
        self.output_dim = -1
        self._heads: dict[object, int] = {}  # by kind of inputs and modes in which the network was tested: `output_dim`
        self._has_trained = False  # whether it was called in training mode
        self.local_beta, self.auxiliary_beta = method.eta, method.eta_aux
        self.second: nn.Module | None = None
        layers = self._layers()
        if len(layers) != 1:
            raise ConfigurationError(
                f"VIFO must be the only method of a network and makes its last layer random, got {len(layers)} random layers"
            )
        if method.separate_std:
            self.second = copied_module(net, {id(layers[0].passes): layers[0].passes})
            last = next(module for module in self.second.modules() if isinstance(module, BayesianLayer))
            with torch.no_grad():
                last.weight = nn.Parameter(torch.zeros_like(last.weight))  # a tied weight stays in the other layer
                last.bias = nn.Parameter(last.weight.new_full((last.output_channels,), method.initial_bias()))
        averages = batches = None
        if method.regularizer.endswith("-all"):
            averages = at_least_float32(layers[0].weight.new_zeros(3, layers[0].output_channels))
            batches = averages.new_zeros(())
        self.register_buffer("averages", averages)
        self.register_buffer("batches", batches)

    def forward(self, *inputs: Any, samples: int = 1, coherent: bool = False, **kwargs: Any) -> Draws:
        check_integer("samples", samples)
        with noise_of_rank(self.net, self.training):
            call = self._checked(inputs, kwargs)
            # the network's own noise, as much as the batch needs, must not change that of the functions
            seed = int(torch.randint(2**62, (), device="cpu")) if coherent and self.draws_noise else None
            mean, std = self._moments(call)
            noise = _standard_normal(samples, *(self._shape_of_one(mean) if coherent else mean.shape), like=mean, seed=seed)
            outputs = mean + std.to(mean.dtype) * noise
            return Draws(outputs, self.kl_of_pass({}), self._penalty(mean, std), local_beta=self.local_beta)

    def normal_outputs(self, *inputs: Any, **kwargs: Any) -> NormalOutputs:
        mean, std = self._moments(self._checked(inputs, kwargs))
        return NormalOutputs(at_least_float32(mean), std, self.kl(), self._penalty(mean, std), self.local_beta)

    def function(self, seed: int) -> Callable[..., Any]:
        check_integer("seed", seed, least=0)

        def apply(*inputs: Any, **kwargs: Any) -> Tensor:
            mean, std = self._moments(self._checked(inputs, kwargs))
            # not a PyTorch generator: torch.func.vmap would have to split it
            generator = random.Random(seed)
            shape = self._shape_of_one(mean)
            noise = [generator.gauss(0.0, 1.0) for _ in range(math.prod(shape))]
            return mean + std.to(mean.dtype) * torch.tensor(noise, dtype=mean.dtype, device=mean.device).reshape(shape)

        return DrawnFunction(self, apply)

    def regularizer(self, *inputs: Any, **kwargs: Any) -> Tensor:
        call = self._checked(inputs, kwargs)
        with _running_statistics_kept(self):
            mean, std = self._moments(call)
        return self.method.penalty(self._outputs_last(mean), self._outputs_last(std), self.averages)

    def _moments(self, call: Inputs) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the outputs, (B, ...) each."""
        if self.is_noisy and not self.training and not torch.compiler.is_compiling():
            self.tell(NOISE_IN_EVAL_MODE)
        if self.second is not None:
            mean, raw = (self._pass(net, call)[0] for net in (self.net, self.second))
            return mean, self.method.std(raw)
        both, batch = self._pass(self.net, call)
        if both.shape[0] != 2 * batch:
            raise ConfigurationError(
                f"the network's output has {both.shape[0]} rows in dimension {self.batch_dim} for {batch} examples; it must keep "
                f"the {2 * batch} rows of its last layer, means followed by standard deviations. Otherwise use "
                "VIFO(separate_std=True), which computes standard deviations with a second network"
            )
        mean, raw = both.unflatten(0, (2, batch)).unbind(0)
        return mean, self.method.std(raw)

    def _pass(self, net: nn.Module, call: Inputs, *probes: Probe) -> tuple[Tensor, int]:
        """The output, batch first, and the number of examples."""
        args, kwargs = call.map(torch.clone)  # several passes get them
        moments = MomentsPass(self.batch_dim, call, probes)
        y = self.passes.run(moments, net, args, kwargs)
        if not isinstance(y, Tensor) or y.dim() <= self.batch_dim:
            got = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
            raise TypeError(
                f"VIFO needs a network that returns one tensor with the batch in dimension {self.batch_dim}, got {got}; select "
                'one of several parts with bayesify(net, VIFO(), output="logits")'
            )
        return y.movedim(self.batch_dim, 0), moments.examples

    def _checked(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        """The inputs of a call, after a test of the network for their kind: in eval mode and, in training, in its current modes.

        A network that may initialize parameters in its first pass in training makes that pass before the test in training mode.

        Raises:
            ConfigurationError: the outputs of the network are not those of its last layer, reshaped or averaged.
        """
        call = self.inputs_of(inputs, kwargs)
        if torch.compiler.is_compiling():
            return call
        key = call.kind, ()
        self._test_once(key, call)
        if self.net.training:
            key = call.kind, tuple(module.training for module in self.net.modules())
            if self._has_trained or not may_set_parameters(self.net):
                self._test_once(key, call)
            self._has_trained = self._has_trained or can_compare(self.net)
        self.output_dim = self._heads.get(key, self.output_dim)
        return call

    def _test_once(self, key: tuple[object, tuple[bool, ...]], call: Inputs) -> None:
        """Test the network for a kind of inputs in the current modes, or in eval mode where the key has none."""
        if key in self._heads or len(self._heads) >= _MOST_KINDS or not can_compare(self.net):
            return
        self.passes.check_free()

        def run(inputs: Inputs, *probes: Probe) -> Tensor:
            return self._pass(self.net, inputs, *probes)[0]

        found = examine_head(self, run, call, in_training=bool(key[1]), in_both=self.second is None)
        self.draws_noise, self.is_noisy = self.draws_noise or found.draws_noise, self.is_noisy or found.is_noisy
        if found.output_dim is not None:
            self._heads[key] = found.output_dim

    def _outputs_last(self, x: Tensor) -> Tensor:
        """(B, *, K)."""
        return x.movedim(self.output_dim, -1) if x.dim() > 1 else x

    def _shape_of_one(self, mean: Tensor) -> tuple[int, ...]:
        """The shape of noise with one number for each of the K outputs, to broadcast with moments (B, *) of K outputs."""
        return tuple(size if dim - mean.dim() == self.output_dim and dim > 0 else 1 for dim, size in enumerate(mean.shape))

    def _penalty(self, mean: Tensor, std: Tensor) -> Tensor:
        mean, std = self._outputs_last(mean), self._outputs_last(std)
        if self.averages is not None and self.training:
            self._observe(mean.detach(), std.detach())
        return self.method.penalty(mean, std, self.averages)

    def _observe(self, mean: Tensor, std: Tensor) -> None:
        """Update the running averages: plain averages over the first batches, exponential ones afterwards."""
        assert self.averages is not None
        if mean.shape[-1] != self.averages.shape[1]:
            raise ConfigurationError(
                f"{self.method.regularizer!r} averages over the {self.averages.shape[1]} outputs of the last layer, which must be "
                f"a dimension of the network's output, got {tuple(mean.shape)}; choose another regularizer"
            )
        mean, std = (at_least_float32(x).reshape(-1, x.shape[-1]) for x in (mean, std))
        batch = torch.stack([mean.mean(0), mean.square().mean(0), std.square().mean(0)]).to(self.averages.dtype)
        self.batches.add_(1)
        self.averages.add_((batch - self.averages) * self.batches.reciprocal().clamp_min(self.method.momentum))


def _standard_normal(*size: int, like: Tensor, seed: int | None) -> Tensor:
    if seed is None:
        return standard_normal(*size, like=like)
    with own_noise([like]) as reseed:
        reseed(seed)
        return standard_normal(*size, like=like)


@contextmanager
def _running_statistics_kept(module: nn.Module) -> Iterator[None]:
    """Normalize with running statistics instead of updating them."""
    norms = [part for part in module.modules() if isinstance(part, _NormBase) and part.training and part.track_running_stats]
    with modes_kept(norms):
        for norm in norms:
            norm.training = False
        yield
