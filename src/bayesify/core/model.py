"""The contract of the root module: everything that losses, prediction, DDP, compile and export see of a Bayesian network."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bayesify.core.forward_pass import Passes
from bayesify.core.inputs import Inputs, input_names
from bayesify.core.layer import BayesianLayer
from bayesify.core.method import Method
from bayesify.core.modes import without_autocast
from bayesify.core.outputs import Draws, NormalOutputs
from bayesify.core.shards import shards_of, with_whole_parameters
from bayesify.errors import warn

__all__ = ["Bayesian", "LayerReport"]


@dataclasses.dataclass(frozen=True)
class LayerReport:
    """What became of one layer: its name, type, the method that made it random (None if it stayed as it was) and why."""

    name: str
    layer: str
    method: Method | None
    reason: str


class Bayesian(nn.Module, ABC):
    """Root of a Bayesian network: `forward(*inputs, samples=1, coherent=False, **kwargs) -> Draws`.

    `train()` and `eval()` keep their PyTorch meaning (batch normalisation, plain dropout); how random the outputs are depends on
    `samples` and `coherent` alone. One pass at a time: a second one raises while the first is under way.

    Attributes:
        net: the network itself, its layers made random in place.
        batch_dim, fold, shared: how inputs are laid out, as given to `bayesify`.
        report: what became of each layer, for `summary`.
        findings: what the passes so far have shown about the net, one sentence each, for `summary`.
        passes: which pass the network is in.
        local_beta: the weight of the per-example KL that the method asks for, as in `Draws`.
        auxiliary_beta: the weight of the per-example KL at auxiliary inputs; where it is above zero, `fit` makes some.
        one_pass: whether any number of draws takes one pass through the net.
        pays_kl: whether passes return the KL; while predicting nobody asks for it, and it is zero.
    """

    local_beta: float = 1.0
    auxiliary_beta: float = 0.0
    one_pass: bool = False
    pays_kl: bool = True
    accepts_loss_kwargs: bool = False  # transformers.Trainer: losses are means over a batch, to be divided by its accumulation

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.passes = Passes()
        self.batch_dim = 0
        self.fold: bool | None = None
        self.shared: tuple[str, ...] = ()
        self.report: tuple[LayerReport, ...] = ()
        self.findings: list[str] = []

    @abstractmethod
    def forward(self, *inputs: Any, samples: int = 1, coherent: bool = False, **kwargs: Any) -> Draws:
        """Draw `samples` outputs for every example, with the KL terms.

        Args:
            inputs: what the net takes, batch first; keyword inputs and nested dicts or tuples too.
            samples: S, the number of draws.
            coherent: one weight draw per sample for the whole batch, so that every sample is a true function of the inputs. By
                default a method may draw per example, which is cheaper or less noisy; for convolutions and sequences that route
                agrees with the weight distribution in each output element's mean and variance, not in their correlations.
            kwargs: keyword inputs of the net.
        """

    @property
    def members(self) -> tuple[Bayesian, ...]:
        """The networks it consists of, each of which is trained by itself; none for a single network."""
        return ()

    def normal_outputs(self, *inputs: Any, **kwargs: Any) -> NormalOutputs | None:
        """The distribution of the outputs in closed form, or None where there are only draws."""
        return None

    def regularizer(self, *inputs: Any, **kwargs: Any) -> Tensor:
        """The per-example KL (B,) at auxiliary inputs, nats; nothing is learned of them (running statistics) but by its gradient.

        Raises:
            TypeError: the method has none.
        """
        raise TypeError(f"{type(self).__name__} has no per-example KL that auxiliary inputs could be regularised with; VIFO has")

    @contextmanager
    def predicting(
        self,
        inputs: tuple[Any, ...],
        kwargs: dict[str, Any],
        coherent: bool,
        reseed: Callable[[int], object],
        believed: dict[object, bool] | None = None,
    ) -> Iterator[None]:
        """Passes inside are over this one batch: they return no KL, and may compute once what is the same in all of them.

        Args:
            inputs, kwargs, coherent: as in `forward`.
            reseed: sets all random generators; to be called before the first pass inside.
            believed: whether replayed passes have agreed with ordinary ones, kept from batch to batch of one call of `predict`.
        """
        self.pays_kl = False
        try:
            yield
        finally:
            self.pays_kl = True

    def stop_replay(self) -> bool:
        """Make ordinary passes for the rest of `predicting`; whether any would have been replayed."""
        return False

    def function(self, seed: int) -> Callable[..., Any]:
        """One draw from the posterior: a function of any inputs, the same for equal seeds, evaluated in eval mode.

        What it returns can be differentiated with respect to the inputs (Thompson sampling, optimisation of designs), also by
        `torch.func`.

        Args:
            seed: a whole number of at least 0.

        Returns:
            What takes the net's inputs and returns its outputs (B, ...). It raises a `StaleFunctionError` once the net has been
            trained or changed.

        Raises:
            NotImplementedError: the method has no such functions.

        Example:
            >>> from bayesify import MeanField, bayesify
            >>> f = bayesify(nn.Linear(3, 1), MeanField()).function(seed=0)
            >>> x = torch.randn(4, 3)
            >>> bool((f(x)[:2] == f(x[:2])).all())
            True
        """
        raise NotImplementedError(f"{type(self).__name__} draws no functions")

    def random_layers(self) -> Iterator[tuple[str, BayesianLayer]]:
        """Names (within `net`) and modules of all layers that have a posterior."""
        return ((name, module) for name, module in self.net.named_modules() if isinstance(module, BayesianLayer))

    def kl(self) -> Tensor:
        """KL(q || prior) of all random layers together: nats, summed, a scalar of at least float32."""
        return self.kl_of_pass({})

    def kl_of_pass(self, found: Mapping[nn.Module, Tensor]) -> Tensor:
        """`kl()`, with what posteriors have found of it in the pass just made, or zero while predicting."""
        device = next((parameter.device for parameter in self.net.parameters()), torch.device("cpu"))
        if not self.pays_kl:
            return torch.zeros((), device=device)
        with without_autocast(device):
            terms = [_kl(layer, found.get(layer.posterior)).to(device) for _, layer in self.random_layers()]
            return torch.stack(terms).sum() if terms else torch.zeros((), device=device)

    def parameter_groups(self, weight_decay: float, **options: Any) -> list[dict[str, Any]]:
        """Two groups of parameters for an optimiser: weight decay for weights and their means, none for what says how they vary.

        Decay pulls a log standard deviation towards 0, a standard deviation of 1, whatever the prior.

        Args:
            weight_decay: of the first group.
            options: of both, such as `lr`.

        Returns:
            What `torch.optim.AdamW` takes for parameters, frozen ones left out.

        Example:
            >>> from bayesify import MeanField, bayesify
            >>> groups = bayesify(nn.Linear(3, 1), MeanField()).parameter_groups(weight_decay=0.01, lr=1e-3)
            >>> [(sum(p.numel() for p in group["params"]), group["weight_decay"]) for group in groups]
            [(4, 0.01), (4, 0.0)]
        """
        varying = {
            parameter
            for module in self.modules()
            if isinstance(module, BayesianLayer)
            for name, parameter in module.posterior.named_parameters()
            if name not in module.posterior.means
        }
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        split = [[p for p in trained if p not in varying], [p for p in trained if p in varying]]
        return [{"params": p, "weight_decay": w, **options} for p, w in zip(split, (weight_decay, 0.0), strict=True) if p]

    def inputs_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        """The inputs of a call; a ValueError where none has a batch dimension."""
        names = input_names(self.net) if self.shared else []
        return Inputs(args, kwargs, names=names, shared=self.shared, batch_dim=self.batch_dim)

    def tell(self, finding: str) -> None:
        """Warn of something that was found out about the net, once, and let `summary` say it."""
        if finding not in self.findings:
            self.findings.append(finding)
            warn(finding)


def _kl(layer: BayesianLayer, found: Tensor | None) -> Tensor:
    """KL of one layer, perhaps found on the way through it.

    FSDP leaves parameters in shards: they are put together here, and again in the backward, which takes less memory.
    """
    if not shards_of(layer):
        return layer.posterior.kl(layer) if found is None else found
    return checkpoint(lambda: with_whole_parameters(layer, lambda: layer.posterior.kl(layer)), use_reentrant=False)
