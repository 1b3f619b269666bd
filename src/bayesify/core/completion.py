"""Posteriors that are made after training, from the trained weights and the data: their contract, and what a root does for them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_integer, check_positive
from bayesify.core.generators import own_noise
from bayesify.core.layer import BayesianLayer
from bayesify.core.method import Method
from bayesify.core.shards import check_whole
from bayesify.core.stored import StoredPosterior
from bayesify.errors import ConfigurationError, DivergenceError
from bayesify.progress import ProgressBar

if TYPE_CHECKING:
    from bayesify.core.model import Bayesian

__all__ = ["CompletedPosterior", "Completing"]


class CompletedPosterior(StoredPosterior):
    """A posterior that is made after training (Laplace, HMC).

    Training is that of a point estimate. Then `Method.complete` makes the posterior and stores it with `store`; `fit`, `fit_many`
    and the integrations call it, a training loop of your own calls `bnn.complete(...)`. Passes of a root in training mode use the
    layer's own weight, all others draw from what was stored; as long as there is nothing, they use the layer's own weight, too.

    Args:
        method: the method that makes it.
        prior_std: standard deviation of a normal prior on weight and bias.
        stored: names of the buffers that `store` sets. They have no elements before, so that their sizes need not be known.
    """

    def __init__(self, method: Method, prior_std: float, stored: Iterable[str]) -> None:
        super().__init__()
        self.method, self.prior_std, self.stored = method, prior_std, tuple(stored)
        for name in self.stored:
            self.register_buffer(name, torch.zeros(0))

    @property
    def is_complete(self) -> bool:
        """Whether it was made; it depends on shapes alone, so that networks compile."""
        return self.get_buffer(self.stored[0]).numel() > 0

    def store(self, **values: Tensor) -> None:
        """Set the buffers, on the device and in the dtype that they had."""
        for name, value in values.items():
            contiguous = value.detach().to(self.get_buffer(name)).clone(memory_format=torch.contiguous_format)
            self._buffers[name] = contiguous  # as after loading, for results that are equal to the last digit

    def forget(self) -> None:
        """Return to the state before `store`."""
        self.store(**{name: torch.zeros(0) for name in self.stored})

    def resize(self, name: str, shape: torch.Size) -> None:
        """Give a buffer the shape that it has in a checkpoint, whose values are loaded next."""
        self._buffers[name] = self.get_buffer(name).new_zeros(shape)

    @abstractmethod
    def drawn(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        """As `sample`, of a complete posterior."""

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        if self.is_complete and not layer.forward_pass.trains():
            return self.drawn(layer, samples)
        weight, bias = self.trained(layer)
        return weight.expand(samples, *weight.shape), None if bias is None else bias.expand(samples, *bias.shape)

    def trained(self, layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
        """The point estimate that is trained: the layer's own weight and bias."""
        return layer.weight, layer.bias

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        draws = self.is_complete and not layer.forward_pass.trains()
        return self.outputs(layer, x, *(layer.draw() if draws else self.trained(layer)))

    def adopt(self, layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> None:
        self.forget()

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
        for name in self.stored:
            if (value := state_dict.get(prefix + name)) is not None:
                self.resize(name, value.shape)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)


class Completing(nn.Module):
    """The part of `Bayesian` that concerns posteriors made after training."""

    findings: list[str]
    _trains = False  # in a trainer that will make the posterior

    @abstractmethod
    def random_layers(self) -> Iterator[tuple[str, BayesianLayer]]:
        """As in `Bayesian`."""

    @property
    @abstractmethod
    def members(self) -> tuple[Bayesian, ...]:
        """As in `Bayesian`."""

    @abstractmethod
    def tell(self, finding: str) -> None:
        """As in `Bayesian`."""

    @property
    def completes(self) -> bool:
        """Whether a posterior is made after training (Laplace, HMC, SGLD)."""
        return any(True for _ in self._completed())

    def complete(
        self, batches: Iterable[Any], likelihood: Any, *, scale: float = 1.0, seed: int = 0, progress: bool | None = None
    ) -> None:
        r"""Make the posteriors that are made after training (Laplace, HMC, SGLD), from the trained weights.

        Their density is $\propto p(\theta) \prod_i p(y_i \mid x_i, \theta)^\text{scale}$. Modules are used in eval mode; layers
        that are not random keep their weights, and random layers of other methods their means. `fit`, `BayesianModule` and
        `BayesianTrainer` call it after training.

        Args:
            batches: the training data, as batches `(inputs, y)` or `(inputs, y, weights)`, on the device of the network; a list,
                or an object that can be iterated several times. It may give the rows in another order each time.
            likelihood: of the targets, trained.
            scale: number of training examples over the number of rows in `batches`, divided by `beta` for a cold posterior.
            seed: of the noise; PyTorch's random state is left unchanged.
            progress: whether to show a progress bar; None shows it on a terminal.

        Raises:
            ConfigurationError: no posterior is made after training, or the method cannot serve this likelihood.
            DivergenceError: a matrix of the posterior has no factorization.
            MissingDependencyError: the method needs a package that is not installed.

        Example:
            >>> from bayesify import SGLD, Gaussian, bayesify
            >>> bnn, x = bayesify(nn.Linear(3, 1), SGLD(draws=5, burn_in=10)), torch.randn(20, 3)
            >>> bnn.complete([(x, x.sum(1))], Gaussian(std=0.1))
            >>> bnn.net.posterior.is_complete
            True
        """
        if not self.completes:
            raise ConfigurationError("no posterior of this network is made after training; use Laplace(), SNGP() or HMC()")
        check_positive("scale", scale)
        check_integer("seed", seed, least=0)
        self.check_completion(likelihood)
        check_whole(self)
        self.forget()
        for k, member in enumerate(self.members):
            member.complete(batches, likelihood, scale=scale, seed=seed + k, progress=progress)
        if self.members:
            return
        with own_noise([*self.parameters(), *self.buffers()]) as reseed:
            reseed(seed)
            for method, names in self._completing_methods().items():
                with ProgressBar(type(method).__name__, progress, total=1.0) as bar, _named(method):
                    method.complete(cast("Bayesian", self), names, batches, likelihood, scale, bar.advance)

    def check_completion(self, likelihood: Any, *, weighted: bool = False) -> None:
        """Raise an error, before training, if `complete` cannot serve a likelihood or weights of examples, or lacks a package."""
        for method in {posterior.method for _, posterior in self._completed()}:
            method.check_completion(likelihood, weighted)

    def rehearse_completion(self, batch: Any, likelihood: Any) -> None:
        """Raise an error, before training, if `complete` cannot serve the network as it is called with the first batch."""
        for member in self.members:
            member.rehearse_completion(batch, likelihood)
        if not self.members:
            with own_noise([*self.parameters(), *self.buffers()]):
                for method, names in self._completing_methods().items():
                    method.rehearse(cast("Bayesian", self), names, batch, likelihood)

    def _completing_methods(self) -> dict[Method, list[str]]:
        """Names of the layers whose posteriors each method makes after training."""
        methods: dict[Method, list[str]] = {}
        for name, posterior in self._completed():
            methods.setdefault(posterior.method, []).append(name)
        return methods

    def forget(self) -> None:
        """Drop posteriors that were made after training, which belong to other weights after more of it."""
        for _, posterior in self._completed():
            posterior.forget()

    def check_completed(self) -> None:
        """Warn, once, if predictions lack posteriors that are made after training."""
        if all(posterior.is_complete for _, posterior in self._completed()):
            if _INCOMPLETE in self.findings:
                self.findings.remove(_INCOMPLETE)
        elif not self._trains:
            self.tell(_INCOMPLETE)

    @contextmanager
    def while_training(self) -> Iterator[None]:
        """Let predictions in this context, such as validation, not warn that a posterior is yet to be made or collected."""
        self._trains = True
        try:
            yield
        finally:
            self._trains = False

    def _completed(self) -> Iterator[tuple[str, CompletedPosterior]]:
        for name, layer in self.random_layers():
            if isinstance(layer.posterior, CompletedPosterior):
                yield name, layer.posterior


@contextmanager
def _named(method: Method) -> Iterator[None]:
    """Name the method whose matrices have no factorization."""
    try:
        yield
    except torch.linalg.LinAlgError as error:  # pyright: ignore[reportPrivateImportUsage]
        raise DivergenceError(
            f"{type(method).__name__}() cannot make a posterior of these weights: {str(error).rstrip('.')}. Inputs or weights are "
            "too large, or training diverged; standardize inputs, or train with a lower learning rate"
        ) from error


_INCOMPLETE = (
    "no posterior was made after training, so predictions are those of the current weights alone; train with `fit`, or call "
    "`bnn.complete(batches, likelihood)` after your training loop"
)
