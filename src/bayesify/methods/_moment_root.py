"""The root module of `DVI`: passes the moments of activations through a chain of linear layers and ReLUs.

Shapes: S draws, B batch, I inputs, H units of a layer, K outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_integer
from bayesify.core.folded import Folded
from bayesify.core.forward_pass import ForwardPass
from bayesify.core.generators import noise_of_rank
from bayesify.core.layer import BayesianLayer
from bayesify.core.model import Bayesian
from bayesify.core.modes import without_autocast
from bayesify.core.outputs import Draws, NormalOutputs
from bayesify.core.values import may_look_at
from bayesify.errors import DataError, DivergenceError, NothingRandomError
from bayesify.functional import at_least_float32, relu_covariance, relu_moments, standard_normal

if TYPE_CHECKING:
    from bayesify.methods.dvi import DVIPosterior

__all__ = ["MomentRoot"]


class Moments(NamedTuple):
    """Mean (B, H), and spread: variances (B, H), covariances (B, H, H), or None without uncertainty."""

    mean: Tensor
    spread: Tensor | None


class MomentRoot(Folded):
    """Root of a chain of linear layers and ReLUs: any number of draws of the outputs takes one pass of moments."""

    one_pass = True
    calls_layers = False

    def __init__(self, net: nn.Module, full: bool) -> None:
        super().__init__(net)
        self.full = full
        _check_chain(net)

    def forward(self, *inputs: Any, samples: int = 1, coherent: bool = False, **kwargs: Any) -> Draws:
        if coherent:
            return super().forward(*inputs, samples=samples, coherent=True, **kwargs)
        check_integer("samples", samples)
        with noise_of_rank(self.net, self.training):
            mean, covariance = self._moments(inputs, kwargs)
            noise = standard_normal(samples, *mean.shape, like=mean)
            with without_autocast(mean.device):
                factor = _cholesky(covariance)
                outputs = mean + (factor @ noise.unsqueeze(-1)).squeeze(-1)
        kl = self.kl_of_pass({})
        dtype = next(self.net.parameters()).dtype
        return Draws(outputs.to(dtype), kl, torch.zeros(mean.shape[0], dtype=kl.dtype, device=kl.device))

    def normal_outputs(self, *inputs: Any, **kwargs: Any) -> NormalOutputs:
        mean, covariance = self._moments(inputs, kwargs)
        std, kl = covariance.diagonal(dim1=-2, dim2=-1).sqrt(), self.kl()
        return NormalOutputs(mean, std, kl, torch.zeros(mean.shape[0], dtype=kl.dtype, device=kl.device), covariance=covariance)

    @contextmanager
    def predicting(
        self,
        inputs: tuple[Any, ...],
        kwargs: dict[str, Any],
        coherent: bool,
        reseed: Callable[[int], object],
        believed: dict[object, bool] | None = None,
        samples: int = 100,
    ) -> Iterator[None]:
        with Bayesian.predicting(self, inputs, kwargs, coherent, reseed, believed, samples):
            yield

    def _moments(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Mean (B, K) and covariance (B, K, K) of the outputs, at least float32."""
        if len(inputs) != 1 or kwargs or not isinstance(inputs[0], Tensor):
            raise DataError("DVI needs one positional input, a tensor (B, I); use MeanField() for other inputs")
        forward_pass = ForwardPass()
        return self.passes.run(forward_pass, lambda x: self._propagate(forward_pass, x), inputs, {})

    def _propagate(self, forward_pass: ForwardPass, x: Tensor) -> tuple[Tensor, Tensor]:
        chain = list(_chain(self.net))
        first = next(i for i, (_, module) in enumerate(chain) if isinstance(module, BayesianLayer))
        for _, module in chain[:first]:
            x = module(x)
        if x.dim() != 2:
            raise DataError(f"DVI needs inputs (B, I) of the first linear layer, got shape {tuple(x.shape)}; use MeanField()")
        moments = Moments(at_least_float32(x), None)
        with without_autocast(x.device):
            for position, (_, module) in enumerate(chain[first:], start=first + 1):
                if isinstance(module, BayesianLayer):
                    full = position == len(chain) or (self.full and moments.spread is not None)
                    moments = forward_pass.inside(_linear, module, moments, full)
                elif isinstance(module, nn.ReLU) and moments.spread is not None:
                    rectify = relu_moments if moments.spread.dim() == 2 else relu_covariance
                    moments = Moments(*rectify(moments.mean, moments.spread))
        assert moments.spread is not None
        tiny = torch.finfo(moments.mean.dtype).tiny ** 0.5  # positive definite also for inputs of zero without a bias
        jitter = 10 * torch.finfo(moments.mean.dtype).eps * moments.spread.diagonal(dim1=-2, dim2=-1) + tiny
        return moments.mean, moments.spread + torch.diag_embed(jitter)


def _linear(layer: BayesianLayer, inputs: Moments, full: bool) -> Moments:
    """Moments of the outputs of a linear layer, with covariances if `full`."""
    posterior = cast("DVIPosterior", layer.posterior)
    (weight, bias), (variance, bias_variance) = _wide(*posterior.mean(layer)), _wide(*posterior.variances())
    mean, spread = inputs
    diagonal = spread if spread is None or spread.dim() == 2 else spread.diagonal(dim1=-2, dim2=-1)
    squares = mean.square() if diagonal is None else mean.square() + diagonal
    own = nn.functional.linear(squares, variance, bias_variance)
    center = nn.functional.linear(mean, weight, bias)
    if not full:
        return Moments(center, own if diagonal is None else own + nn.functional.linear(diagonal, weight.square()))
    if spread is None:
        return Moments(center, torch.diag_embed(own))
    turned = weight * spread.unsqueeze(1) if spread.dim() == 2 else weight @ spread
    return Moments(center, turned @ weight.mT + torch.diag_embed(own))


def _cholesky(covariance: Tensor) -> Tensor:
    """Factors of the covariances (B, K, K) of the outputs; NaN where there is none, which raises an error on the CPU.

    Looking for NaN on a GPU would wait for it in every step.
    """
    factor, info = torch.linalg.cholesky_ex(covariance)
    failed = info != 0
    if covariance.device.type == "cpu" and may_look_at(covariance.detach()) and failed.any():
        raise DivergenceError(
            f"DVI's covariance of the outputs is infinite, NaN or not positive definite for {int(failed.sum())} of {len(failed)} "
            "examples: inputs are not finite, or training diverged; lower the learning rate, or clip gradients"
        )
    return factor.masked_fill(failed[:, None, None], math.nan)


def _wide(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return at_least_float32(weight), None if bias is None else at_least_float32(bias)


def _chain(net: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Names and modules in the order of their calls, for nested `nn.Sequential`."""
    if not isinstance(net, nn.Sequential) or type(net).forward is not nn.Sequential.forward:
        yield prefix or "the network itself", net
        return
    for name, module in net._modules.items():  # named_children() skips a module that is used again
        if module is not None:
            yield from _chain(module, f"{prefix}.{name}".removeprefix("."))


def _check_chain(net: nn.Module) -> None:
    """Raise a `NothingRandomError` unless moments can pass through the network."""
    chain = [*_chain(net)]
    random = [i for i, (_, module) in enumerate(chain) if isinstance(module, BayesianLayer)]
    out = "use MeanField(), which draws, for other networks"
    if not random or len({chain[i][1] for i in random}) < len(random):
        raise NothingRandomError(
            f"DVI needs an nn.Sequential of linear layers and ReLUs, each used once, got {type(net).__name__}; {out}"
        )
    for position, (name, module) in enumerate(chain[random[0] :], start=random[0]):
        plain = isinstance(module, BayesianLayer) and module.then is None
        last = position == len(chain) - 1
        if not (plain or (isinstance(module, nn.ReLU | nn.Identity) and not last)):
            where = "at the end" if last and isinstance(module, nn.ReLU) else "after the first linear layer"
            raise NothingRandomError(
                f"DVI cannot pass moments through {name!r} ({type(module).__name__}) {where}: only through random linear layers "
                f"and nn.ReLU, with a linear layer at the end; {out}"
            )
