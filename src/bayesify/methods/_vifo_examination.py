"""The examination of a network with normal outputs: whether what follows its last layer only reshapes and averages.

`_vifo_head` says how that shows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from bayesify.core.comparison import close
from bayesify.core.first_batch import SetParameters
from bayesify.core.generators import OtherGenerators, check_not_seeded, own_noise
from bayesify.core.inputs import NETWORK_ERRORS, Inputs
from bayesify.core.model import Bayesian
from bayesify.core.modes import attributes_kept, buffers_kept, constants_moved, eval_mode, hooks_kept, own_casts
from bayesify.core.noise_free import depends_on_noise
from bayesify.errors import BayesifyError, ConfigurationError
from bayesify.methods._moments_pass import Probe
from bayesify.methods._vifo_head import HeadProbes, UnscaledNoise

__all__ = ["Findings", "examine_head"]

_MIXED = (
    "the network depends on the number or the order of the rows at its last layer, so that means and standard deviations would be "
    "mixed; use VIFO(separate_std=True), which computes standard deviations with a second network"
)


class Findings(NamedTuple):
    """What an examination showed.

    Attributes:
        output_dim: the dimension of the layer's outputs in those of the network, from the end, which a convolution does not have
            last; None if the outputs for these inputs show nothing.
        draws_noise: whether the network draws noise of its own in eval mode.
        is_noisy: whether its outputs depend on that.
    """

    output_dim: int | None
    draws_noise: bool = False
    is_noisy: bool = False


class Run(Protocol):
    """The output (B, ...) of a pass over some inputs whose last layer returns what probes make of its means."""

    def __call__(self, inputs: Inputs, *probes: Probe) -> Tensor: ...


def examine_head(root: Bayesian, run: Run, call: Inputs, *, in_training: bool, in_both: bool) -> Findings:
    """Test that the network reshapes or averages what the last layer returns, so that this applies to both moments.

    Args:
        root: with one random layer.
        run: a pass of its network.
        call: inputs, of whose rows the first few are used if the network accepts them.
        in_training: test in the current modes instead of eval mode.
        in_both: whether one pass returns both moments; then also test that they stay apart.

    Raises:
        ConfigurationError: it does more.
    """
    name, layer = next(root.random_layers())
    net, both, draws_noise, is_noisy = root.net, None, False, False
    count = layer.output_channels
    each = 1 + torch.arange(count, device=next(net.parameters()).device) / count
    probes, noise_free, setting, states = HeadProbes(each), UnscaledNoise(), SetParameters(net), list[Tensor]()
    with _state_kept(root, layer) as reseed, nullcontext() if in_training else eval_mode(net):
        with noise_free, _shifted(net):

            def seeded(rows: Inputs, *chosen: Probe) -> Tensor:
                reseed(len(states))
                with OtherGenerators(), setting.watch():
                    y = run(rows, *chosen)
                states.append(torch.get_rng_state())
                return y

            few = _accepted(root, call, lambda rows: seeded(rows, probes.means))
            one, scaled = seeded(few, probes.mixed), seeded(few, probes.scaled)
            negative, rest = seeded(few, probes.negative), seeded(few, probes.rest)
            check_not_seeded(states, states[1:])
            agree = probes.agree(one, negative, rest)
            if agree is not False and in_both:
                both = _both_halves(lambda: seeded(few, probes.mixed, probes.negative))
        if noise_free.replaced and not in_training:
            draws_noise = True
            with OtherGenerators():
                is_noisy = depends_on_noise(lambda: [run(few, probes.means)])
        setting.restore()
    if agree is False:
        raise ConfigurationError(
            f"something follows the layer {name!r} that does more than reshape or average (softmax, a rectifier, a factor, a "
            "sum, normalization, a skip connection), but VIFO's random outputs are those of the last layer; let the network "
            "return its logits, or name the layer that makes the output, VIFO(head=...)"
        )
    if both is not None and len(both) == 2 * len(one) and not close(both, torch.cat([one, negative])):
        raise ConfigurationError(_MIXED)
    if agree is None:
        return Findings(None, draws_noise, is_noisy)
    for dim in range(one.dim() - 1, 0, -1):
        if one.shape[dim] == count and close(one * each.to(one.dtype).reshape(-1, *[1] * (one.dim() - dim - 1)), scaled):
            return Findings(dim - one.dim(), draws_noise, is_noisy)
    return Findings(-1, draws_noise, is_noisy)


@contextmanager
def _state_kept(root: Bayesian, layer: nn.Module) -> Iterator[Callable[[int], None]]:
    """Yield a function that seeds generators; restore them, and buffers and attributes of the network, on exit."""
    net, own = root.net, set(layer.modules())
    others = [module for module in net.modules() if module not in own]
    with (
        torch.set_grad_enabled(bool(root.differentiation.needed)),
        own_casts(),
        own_noise(net.parameters()) as reseed,
        buffers_kept(net),
        attributes_kept(others),
        hooks_kept(net),
        constants_moved(others),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # of a checkpoint without gradients
        yield reseed


def _accepted(root: Bayesian, call: Inputs, run: Callable[[Inputs], Tensor]) -> Inputs:
    """The first rows of the inputs, or all if the network does not accept so few."""
    if call.can_be_cut:
        few = root.inputs_of(*call.map(lambda x: x.narrow(root.batch_dim, 0, min(call.batch, 3))))
        try:
            run(few)
        except NETWORK_ERRORS:
            pass
        else:
            return few
    run(call)
    return call


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
