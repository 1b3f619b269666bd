"""The root module of `VIFO`: runs the network in passes whose last layer returns moments, and draws the outputs.

Shapes: S draws, B batch, K outputs.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from bayesify.core.checks import check_integer
from bayesify.core.comparison import close
from bayesify.core.copies import copied_module
from bayesify.core.drawn_function import DrawnFunction
from bayesify.core.first_batch import SetParameters, may_set_parameters
from bayesify.core.generators import OtherGenerators, check_not_seeded, noise_of_rank, own_noise
from bayesify.core.inputs import NETWORK_ERRORS, Inputs
from bayesify.core.layer import BayesianLayer
from bayesify.core.model import Bayesian
from bayesify.core.modes import (
    attributes_kept,
    buffers_kept,
    can_compare,
    constants_moved,
    eval_mode,
    hooks_kept,
    modes_kept,
    own_casts,
)
from bayesify.core.noise_free import NOISE_IN_EVAL_MODE, depends_on_noise
from bayesify.core.outputs import Draws, NormalOutputs
from bayesify.errors import BayesifyError, ConfigurationError
from bayesify.functional import at_least_float32, standard_normal
from bayesify.methods._moments_pass import MomentsPass, Probe
from bayesify.methods._vifo_head import HeadProbes, UnscaledNoise

if TYPE_CHECKING:
    from bayesify.methods.vifo import VIFO

__all__ = ["RandomOutputs"]

_MOST_KINDS = 64  # of inputs and modes in which the network is tested: integers may have ever new values
_MIXED = (
    "the network depends on the number or the order of the rows at its last layer, so that means and standard deviations would be "
    "mixed; use VIFO(separate_std=True), which computes standard deviations with a second network"
)


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
        found = self._tested(call, in_training=bool(key[1]))
        if found is not None:
            self._heads[key] = found

    def _tested(self, call: Inputs, in_training: bool) -> int | None:
        """Test that the network reshapes or averages what the last layer returns, so that this applies to both moments.

        Also test that they stay apart, and find the dimension of the layer's outputs, which a convolution does not have last.

        Returns:
            That dimension, from the end; None if the outputs for these inputs show nothing.

        Raises:
            ConfigurationError: it does more.
        """
        net, both = self.net, None
        count = next(layer for layer in self._layers()).output_channels
        each = 1 + torch.arange(count, device=next(net.parameters()).device) / count
        probes, noise_free, setting, states = HeadProbes(each), UnscaledNoise(), SetParameters(net), list[Tensor]()
        with self._state_kept() as reseed, nullcontext() if in_training else eval_mode(net):
            with noise_free, _shifted(net):

                def run(rows: Inputs, *chosen: Probe) -> Tensor:
                    reseed(len(states))
                    with OtherGenerators(), setting.watch():
                        y = self._pass(net, rows, *chosen)[0]
                    states.append(torch.get_rng_state())
                    return y

                few = self._accepted(call, lambda rows: run(rows, probes.means))
                one, scaled = run(few, probes.mixed), run(few, probes.scaled)
                negative, rest = run(few, probes.negative), run(few, probes.rest)
                check_not_seeded(states, states[1:])
                agree = probes.agree(one, negative, rest)
                if agree is not False and self.second is None:
                    both = _both_halves(lambda: run(few, probes.mixed, probes.negative))
            if noise_free.replaced and not in_training:
                self.draws_noise = True
                with OtherGenerators():
                    self.is_noisy |= depends_on_noise(lambda: [self._pass(net, few, probes.means)[0]])
            setting.restore()
        if agree is False:
            name = next(name for name, _ in self.random_layers())
            raise ConfigurationError(
                f"something follows the layer {name!r} that does more than reshape or average (softmax, a rectifier, a factor, a "
                "sum, normalization, a skip connection), but VIFO's random outputs are those of the last layer; let the network "
                "return its logits, or name the layer that makes the output, VIFO(head=...)"
            )
        if both is not None and len(both) == 2 * len(one) and not close(both, torch.cat([one, negative])):
            raise ConfigurationError(_MIXED)
        if agree is None:
            return None
        for dim in range(one.dim() - 1, 0, -1):
            if one.shape[dim] == count and close(one * each.to(one.dtype).reshape(-1, *[1] * (one.dim() - dim - 1)), scaled):
                return dim - one.dim()
        return -1

    @contextmanager
    def _state_kept(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that seeds generators; restore them, and buffers and attributes of the network, on exit."""
        gradients = torch.set_grad_enabled(bool(self.differentiation.needed))
        layers = {part for layer in self._layers() for part in layer.modules()}
        others = [module for module in self.net.modules() if module not in layers]
        with (
            gradients,
            own_casts(),
            own_noise(self.net.parameters()) as reseed,
            buffers_kept(self.net),
            attributes_kept(others),
            hooks_kept(self.net),
            constants_moved(others),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # of a checkpoint without gradients
            yield reseed

    def _accepted(self, call: Inputs, run: Callable[[Inputs], Tensor]) -> Inputs:
        """The first rows of the inputs, or all if the network does not accept so few."""
        if call.can_be_cut:
            few = self.inputs_of(*call.map(lambda x: x.narrow(self.batch_dim, 0, min(call.batch, 3))))
            try:
                run(few)
            except NETWORK_ERRORS:
                pass
            else:
                return few
        run(call)
        return call

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


def _both_halves(run: Callable[[], Tensor]) -> Tensor:
    """The output of a pass whose last layer returns twice as many rows."""
    try:
        return run()
    except BayesifyError:
        raise
    except NETWORK_ERRORS as error:  # the network accepts these inputs if its last layer has one row for each example
        raise ConfigurationError(_MIXED) from error


@contextmanager
def _shifted(net: nn.Module) -> Iterator[None]:
    """Shift running means by three standard deviations, so that batch normalization is not the identity before training."""
    norms = [norm for norm in net.modules() if isinstance(norm, _NormBase) and norm.running_mean is not None]
    means = [norm._buffers["running_mean"] for norm in norms]
    for norm in norms:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm._buffers["running_mean"] = norm.running_mean - 3 * norm.running_var.sqrt()
    try:
        yield
    finally:
        for norm, mean in zip(norms, means, strict=True):
            norm._buffers["running_mean"] = mean


@contextmanager
def _running_statistics_kept(module: nn.Module) -> Iterator[None]:
    """Normalize with running statistics instead of updating them."""
    norms = [part for part in module.modules() if isinstance(part, _NormBase) and part.training and part.track_running_stats]
    with modes_kept(norms):
        for norm in norms:
            norm.training = False
        yield
