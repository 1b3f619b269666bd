"""The contract of the root module: everything that losses, prediction, DDP, compile and export see of a Bayesian network."""

from __future__ import annotations

import dataclasses
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from bayesify.core.posterior import Method, Posterior
from bayesify.core.sites import Drawing, Site

__all__ = ["Bayesian", "Draws", "LayerReport", "NormalOutputs"]


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Draws(NamedTuple):
    """What one forward pass of a Bayesian network returns.

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
    `samples` and `coherent` alone. One pass at a time: threads that share a network would mix up what its layers draw.

    Attributes:
        net: the network itself, its layers made random in place.
        batch_dim, fold, shared: how inputs are laid out, as given to `bayesify`.
        report: what became of each layer, for `summary`.
        local_beta: the weight of the per-example KL that the method asks for; `fit` uses it unless told otherwise.
        auxiliary_beta: the weight of the per-example KL at auxiliary inputs; where it is above zero, `fit` makes some.
        one_pass: whether any number of draws takes one pass through the net.
        pays_kl: whether passes return the KL; while predicting nobody asks for it, and it is zero.
    """

    local_beta: float = 1.0
    auxiliary_beta: float = 0.0
    one_pass: bool = False
    pays_kl: bool = True

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.drawing = Drawing()
        self.batch_dim = 0
        self.fold = True
        self.shared: tuple[str, ...] = ()
        self.report: tuple[LayerReport, ...] = ()

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
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any], coherent: bool, reseed: Callable[[int], object]
    ) -> Iterator[None]:
        """Passes inside are over this one batch: they return no KL, and may compute once what is the same in all of them.

        Args:
            inputs, kwargs, coherent: as in `forward`.
            reseed: sets all random generators; to be called before the first pass inside.
        """
        self.pays_kl = False
        try:
            yield
        finally:
            self.pays_kl = True

    def function(self, seed: int) -> Callable[..., Any]:
        """One draw from the posterior: a function of any inputs, the same for equal seeds.

        What it returns can be differentiated with respect to the inputs (Thompson sampling, optimisation of designs).

        Args:
            seed: a whole number of at least 0.

        Returns:
            What takes the net's inputs and returns its outputs (B, ...), for as long as the net is not trained further.

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

    def sites(self) -> Iterator[tuple[str, Site]]:
        """Names (within `net`) and modules of all random layers."""
        return ((name, module) for name, module in self.net.named_modules() if isinstance(module, Site))

    def kl(self) -> Tensor:
        """KL(q || prior) of all random layers together: nats, summed, a scalar of at least float32."""
        return self._kl({})

    def kl_of_pass(self) -> Tensor:
        """`kl()`, with what the layers have found of it in the pass just made, or zero while predicting."""
        if self.pays_kl:
            return self._kl(self.drawing.kls or {})
        return next((torch.zeros((), device=parameter.device) for parameter in self.net.parameters()), torch.zeros(()))

    def _kl(self, found: Mapping[Posterior, Tensor]) -> Tensor:
        parameter = next(self.net.parameters(), None)
        device = torch.device("cpu") if parameter is None else parameter.device
        # the meta device, for one, knows no autocast to switch off
        autocast = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
        with torch.autocast(device.type, enabled=False) if autocast else nullcontext():
            terms = [_kl(site, found.get(site.posterior)).to(device) for _, site in self.sites()]
            return torch.stack(terms).sum() if terms else torch.zeros((), device=device)

    def _named(self, inputs: tuple[Any, ...]) -> dict[str, Any]:
        """The positional inputs by the name of the parameter they are bound to, or by position where no name matters."""
        names: list[str] = []
        if self.shared:
            names = [p.name for p in inspect.signature(self.net.forward).parameters.values() if p.kind in _POSITIONAL]
        return {names[i] if i < len(names) else str(i): x for i, x in enumerate(inputs)}

    def _batch_size(self, inputs: dict[str, Any]) -> int:
        """The number of examples in inputs by name."""
        for leaf in tree_leaves({name: x for name, x in inputs.items() if name not in self.shared}):
            if isinstance(leaf, Tensor) and leaf.dim() > self.batch_dim:
                return leaf.shape[self.batch_dim]
        kinds = {name: type(x).__name__ for name, x in inputs.items()}
        raise ValueError(f"the net needs at least one tensor input with a batch dimension {self.batch_dim}, got {kinds}")


def _kl(site: Site, found: Tensor | None) -> Tensor:
    """KL of one layer, perhaps found on the way through it.

    FSDP leaves parameters in shards: they are put together here, and again in the backward, which takes less memory.
    """
    shards = {}
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        shards = {name: p for name, p in site.named_parameters() if getattr(p, "full_tensor", None) is not None}
    if not shards:
        # of a pass without gradients (a reentrant checkpoint) it would be a mere number
        return site.posterior.kl(site) if found is None or (torch.is_grad_enabled() and not found.requires_grad) else found

    def whole() -> Tensor:
        return functional_call(_KL(site), {f"site.{name}": cast(Any, p).full_tensor() for name, p in shards.items()}, ())

    return checkpoint(whole, use_reentrant=False)


class _KL(nn.Module):
    """The KL of a site as a module, so that `functional_call` can lend it parameters."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site

    def forward(self) -> Tensor:
        return self.site.posterior.kl(self.site)
