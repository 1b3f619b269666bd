"""`Bayesian`, the base class of root modules: the interface for losses, prediction, DDP, compile and export."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bayesify.core.collection import Collecting
from bayesify.core.completion import Completing
from bayesify.core.computed_weights import lost_changes
from bayesify.core.differentiation import Differentiation
from bayesify.core.generation import generate
from bayesify.core.inputs import Inputs, input_names
from bayesify.core.layer import BayesianLayer
from bayesify.core.layer_report import LayerReport
from bayesify.core.modes import without_autocast
from bayesify.core.optimizing import Optimizing
from bayesify.core.outputs import Draws, NormalOutputs
from bayesify.core.passes import Passes
from bayesify.core.recent import Recent
from bayesify.core.shards import shards_of, with_whole_parameters
from bayesify.core.switches import Switches
from bayesify.core.turns import turn
from bayesify.core.weight_shapes import check_shapes
from bayesify.errors import PassError, warn

__all__ = ["Bayesian"]


class Bayesian(Collecting, Completing, Optimizing, ABC):
    """Root of a Bayesian network: `forward(*inputs, samples=1, coherent=False, **kwargs) -> Draws`.

    `train()` and `eval()` have their PyTorch meaning (batch normalization, plain dropout). The randomness of the outputs depends
    on `samples` and `coherent` only. Passes of several threads take turns; a pass inside a pass raises a `PassError`.

    Attributes:
        net: the network, its layers made random in place.
        batch_dim, fold, unbatched: the layout of its inputs, as in `bayesify`.
        report: the conversion of each layer, for `summary`.
        findings: facts about the network that passes revealed, one sentence each, for `summary`.
        passes: the current pass of the network.
        local_beta: the method's default weight of the per-example KL, as in `Draws`; 0 for methods without one.
        auxiliary_beta: the weight of the per-example KL at auxiliary inputs; if it is above 0, `fit` makes some.
        one_pass: whether any number of draws takes one pass through the network.
        calls_layers: whether passes call the random layers as modules, at which FSDP gathers their parameters.
        pays_kl: whether passes return the KL; in `predict` it is not needed, and zero.

    Example:
        >>> bnn = bayesify(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)), MeanField())
        >>> [name for name, _ in bnn.random_layers()]
        ['0', '2']
        >>> bnn(torch.zeros(5, 3), samples=2).outputs.shape
        torch.Size([2, 5, 1])
    """

    local_beta: float = 1.0
    auxiliary_beta: float = 0.0
    one_pass: bool = False
    calls_layers: bool = True
    pays_kl: bool = True
    accepts_loss_kwargs: bool = False  # so that transformers.Trainer divides mean losses by its accumulation steps

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.passes = Passes()
        self.differentiation = Differentiation()
        self.batch_dim = 0
        self.fold: bool | None = None
        self.unbatched: tuple[str, ...] = ()
        self.report: tuple[LayerReport, ...] = ()
        self.findings: list[str] = []
        self._switches = Switches()
        self.decodes_together = Recent[object, bool]()  # by kind of inputs; see `generate`

    def __call__(self, *inputs: Any, **kwargs: Any) -> Draws:
        if "_is_replica" in vars(self):
            raise PassError(
                "nn.DataParallel copies the network for every GPU in every pass, and cannot gather draws; use "
                "DistributedDataParallel, with one process per GPU"
            )
        with turn():  # plans and replayed passes are state of the root
            if finding := lost_changes(self.net):
                self.tell(finding)
            first_steps = self._observe_training()
            draws = self.differentiation.run(lambda: super(Bayesian, self).__call__(*inputs, **kwargs), self.parameters())
            if first_steps is not None and not self.members:
                first_steps.observe(draws)
            return draws

    @abstractmethod
    def forward(self, *inputs: Any, samples: int = 1, coherent: bool = False, **kwargs: Any) -> Draws:
        """Draw `samples` outputs for every example, with the KL terms; a pass that cannot be trusted raises a `PassError`.

        Args:
            inputs: positional inputs of the network, batch first; nested dicts and tuples are supported, and objects that hold
                tensors, such as graphs, with which every draw takes a separate pass.
            samples: S, the number of draws.
            coherent: draw the weights once per draw for the whole batch, so that every draw is a function of the inputs. By
                default a method may draw per example, which is cheaper or less noisy. In convolutions and sequences, such draws
                have the mean and variance of each output element, but not the correlations, that weight draws give.
            kwargs: keyword inputs of the network.
        """

    @property
    def members(self) -> tuple[Bayesian, ...]:
        """The members of an ensemble; empty for a single network."""
        return ()

    @property
    def separate_members(self) -> tuple[Bayesian, ...]:
        """The members, unless they are trained together as one model (repulsive ensembles)."""
        return self.members

    def normal_outputs(self, *inputs: Any, **kwargs: Any) -> NormalOutputs | None:
        """The distribution of the outputs in closed form; None if there are only draws."""
        return None

    def regularizer(self, *inputs: Any, **kwargs: Any) -> Tensor:
        """The per-example KL (B,) at auxiliary inputs, nats. They are used only through its gradient, not in running statistics.

        Raises:
            TypeError: the method has no per-example KL.
        """
        raise TypeError(f"{type(self).__name__} has no per-example KL for auxiliary inputs; use VIFO")

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
        """A context for passes over this batch only, without KL; computations that are equal in all passes may be done once.

        Args:
            inputs, kwargs, coherent: as in `forward`.
            reseed: a function that seeds all random generators; call it before the first pass inside.
            believed: whether replayed and ordinary passes agreed; one dict for all batches of a call of `predict`.
            samples: about how many draws the passes make.
        """
        self.pays_kl = False
        try:
            yield
        finally:
            self.pays_kl = True

    def stop_replay(self) -> bool:
        """Make ordinary passes for the rest of `predicting`; return whether passes were replayed before."""
        return False

    def function(self, seed: int) -> Callable[..., Any]:
        """Draw one function from the posterior, evaluated in eval mode; equal seeds give equal functions.

        Its outputs are differentiable with respect to the inputs (Thompson sampling, design optimization), also by `torch.func`.

        Args:
            seed: an integer of at least 0.

        Returns:
            A function from the network's inputs to its outputs (B, ...). It raises a `StaleFunctionError` after the network was
            trained or changed.

        Raises:
            NotImplementedError: the method does not draw functions.

        Example:
            >>> from bayesify import MeanField, bayesify
            >>> f = bayesify(nn.Linear(3, 1), MeanField()).function(seed=0)
            >>> x = torch.randn(4, 3)
            >>> bool((f(x)[:2] == f(x[:2])).all())
            True
        """
        raise NotImplementedError(f"{type(self).__name__} does not draw functions")

    def drawn(self, seed: int) -> AbstractContextManager[nn.Module]:
        """Hold one draw from the posterior: inside the context the network itself, in eval mode, computes with its weights.

        So methods of the network that call it many times work with one draw, such as `generate` of a language model. The draw is
        that of `function(seed)`. The Bayesian network makes no other passes meanwhile.

        Args:
            seed: an integer of at least 0.

        Returns:
            A context manager that gives `net`, or the member of an ensemble that is drawn.

        Raises:
            NotImplementedError: the method does not draw networks.
            PassError: another draw is held, or the parameters are sharded (FSDP).

        Example:
            >>> from bayesify import MeanField, bayesify
            >>> bnn, x = bayesify(nn.Linear(3, 1), MeanField()), torch.randn(4, 3)
            >>> with bnn.drawn(seed=0) as net:
            ...     y = net(x)
            >>> torch.equal(y, bnn.function(seed=0)(x))
            True
        """
        raise NotImplementedError("the method draws outputs, not networks; use function(seed)")

    def drawn_together(self, seeds: Sequence[int]) -> AbstractContextManager[nn.Module] | None:
        """Hold one draw per seed: the network computes with all of them, for S*B rows, all rows of draw 0 first.

        Draws are those of `drawn(seed)`. The rows of a batch must not affect each other; `generate` tests that.

        Returns:
            A context manager that gives the network; None if the method cannot hold several draws.

        Raises:
            PassError: another draw is held, or the parameters are sharded (FSDP).
        """
        return None

    def generate(self, *inputs: Any, samples: int = 1, seed: int = 0, **kwargs: Any) -> Any:
        """Generate sequences with S networks drawn from the posterior, by the `generate` of a language model.

        All draws are decoded together, S*B rows with one key-value cache, if a test on a few rows finds the values of decoding
        them one by one; otherwise one after the other, as with arguments that are functions (logits processors, stopping criteria).
        In both cases draw s has the weights of `drawn(seed + s)`, and its tokens are those of `net.generate` with these weights, up
        to rounding. `score_tokens` gives the uncertainty of the tokens.

        Args:
            inputs, kwargs: arguments of `net.generate`.
            samples: S, the number of draws.
            seed: of the draws, and of tokens that are sampled (`do_sample=True`).

        Returns:
            What `net.generate` returns, every tensor with a first dimension S: tokens (S, B, T), sequences that have ended earlier
            padded at the end.

        Raises:
            TypeError: the network has no `generate`.
            NotImplementedError: the method does not draw networks.
            ConfigurationError: several draws with a cache, or of an output that is no tensor where draws are decoded one by one.
        """
        return generate(self, self.inputs_of(inputs, kwargs), samples, seed)

    def sample_network(self, seed: int) -> nn.Module:
        """Copy the network as a plain one with weights drawn from the posterior, those of `function(seed)`.

        Args:
            seed: an integer of at least 0.

        Returns:
            A network of the original classes, to be saved, exported or used like any other.

        Raises:
            NotImplementedError: the method does not draw networks.

        Example:
            >>> from bayesify import MeanField, bayesify
            >>> bayesify(nn.Linear(3, 1), MeanField()).sample_network(seed=0)
            Linear(in_features=3, out_features=1, bias=True)
        """
        raise NotImplementedError("the method draws outputs, not networks; use function(seed)")

    def random_layers(self) -> Iterator[tuple[str, BayesianLayer]]:
        """Names (within `net`) and modules of all layers with a posterior."""
        return ((name, module) for name, module in self.net.named_modules() if isinstance(module, BayesianLayer))

    def _layers(self) -> list[BayesianLayer]:
        """The modules of `random_layers`, in less time: passes ask for them."""
        found: list[BayesianLayer] = []
        seen: set[nn.Module] = set()
        stack = [self.net]
        while stack:
            module = stack.pop()
            if module in seen:
                continue
            seen.add(module)
            children = module._modules
            if isinstance(module, BayesianLayer):
                found.append(module)
                if len(children) == 1 and "posterior" in children:  # which has no random layers
                    continue
            if children:
                stack += [child for child in reversed(children.values()) if child is not None]
        return found

    def kl(self) -> Tensor:
        """KL(q || prior) of all random layers in nats, summed: a scalar of at least float32."""
        if self.first_steps is not None and torch.is_grad_enabled():
            self.first_steps.uses_kl = True  # a loss of the caller's own
        return self.kl_of_pass({})

    def kl_of_pass(self, reported: Mapping[nn.Module, Tensor | None]) -> Tensor:
        """`kl()`, using the values that posteriors reported in a pass, None if in another's; zero while predicting.

        Raises:
            PassError: a weight has another shape than its posterior.
        """
        device = torch.device("cpu")
        for parameter in self.net.parameters():  # Dynamo of PyTorch 2.8 cannot trace `next` with a default
            device = parameter.device
            break
        if not self.pays_kl:
            return torch.zeros((), device=device)
        with without_autocast(device):
            layers = self._layers()
            check_shapes(self, layers)
            found = [reported.get(layer.posterior, layer) for layer in layers]
            terms = [_kl(each) if isinstance(each, BayesianLayer) else each for each in found if each is not None]
            terms = [term if term.device == device else term.to(device) for term in terms]
            return torch.stack(terms).sum() if terms else torch.zeros((), device=device)

    def inputs_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        """The inputs of a call; raise a `DataError` if none has a batch dimension."""
        names = input_names(self.net) if self.unbatched else []
        state, updates = self._switches.number(self.net)
        return Inputs(args, kwargs, names=names, unbatched=self.unbatched, batch_dim=self.batch_dim, state=state, updates=updates)

    def learned(self) -> dict[str, Any]:
        """What passes have revealed of the network and later passes depend on, as plain data for a checkpoint."""
        return {"members": [member.learned() for member in self.members]}

    def relearn(self, learned: dict[str, Any]) -> None:
        """Replace it with what `learned` returned in another process."""
        for member, own in zip(self.members, learned["members"], strict=True):
            member.relearn(own)

    def tell(self, finding: str) -> None:
        """Warn of a fact about the network, once, and store it for `summary`, which has at most 100."""
        if finding not in self.findings and len(self.findings) < 100:
            self.findings.append(finding)
            warn(finding)


def _kl(layer: BayesianLayer) -> Tensor:
    """KL of one layer. Parameters that FSDP shards are gathered here and again in the backward pass, which saves memory."""
    if not shards_of(layer):
        return layer.posterior.kl(layer)
    return checkpoint(lambda: with_whole_parameters(layer, lambda: layer.posterior.kl(layer)), use_reentrant=False)
