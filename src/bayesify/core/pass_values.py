"""`PassValues`: what a pass through a network draws, and what posteriors report to it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from bayesify.core.modes import current_saved_tensors_hooks, in_custom_function
from bayesify.core.repeated_draws import RepeatedDraws
from bayesify.errors import PassError

if TYPE_CHECKING:
    from bayesify.core.layer import BayesianLayer

__all__ = ["DrawnBeforeError", "NewLayerError", "NewReadError", "PassValues", "RowsError"]

T = TypeVar("T")


class RowsError(PassError):
    """The input of a random layer does not consist of the rows of all draws."""


class NewLayerError(RowsError):
    """The network uses a random layer otherwise than when it was examined: it did not call it then, or only once."""


class NewReadError(NewLayerError):
    """The network computes with the weight of a layer, which it did not when it was examined."""

    def __init__(self, layer: BayesianLayer) -> None:
        super().__init__("the network computes with the weight of a random layer, which it did not do before")
        self.layer = layer


class DrawnBeforeError(RowsError):
    """A backward pass will repeat a draw that was made before the pass knew of it."""


class PassValues:
    """Values of one pass: what was drawn once, the KLs of posteriors and the probabilities of discrete choices.

    Posteriors use them as methods of a `ForwardPass`, which has the arguments.
    """

    def __init__(
        self,
        samples: int,
        *,
        pays_kl: bool,
        drawn: Mapping[Any, Any] | None,
        training: bool,
        is_checkpointed: bool | None,
        separate: Callable[[str, Callable[[int], Tensor]], Tensor] | None,
    ) -> None:
        self.samples = samples
        self.score: Tensor | None = None
        self.found_kls: dict[nn.Module, Tensor | None] = {}  # None: in the value of another posterior
        self._pays_kl, self._training, self._separate = pays_kl, training, separate
        self._drawn: dict[Any, Any] = {} if drawn is None else dict(drawn)
        self._predrawn = frozenset(self._drawn)
        self._had_draws = bool(self._drawn)  # before the network ran
        self._repeats: RepeatedDraws | None = None  # as soon as a backward pass is known to run layers again
        self._may_start_again = is_checkpointed is False
        self._ended = False
        self._with_gradients = torch.is_grad_enabled()
        self._is_compiled = torch.compiler.is_compiling()  # with the root, not with a part of the network
        self._running: BayesianLayer | None = None  # in compiled code, the layer called last
        self._has_parts = False  # compiled ones, which reported a KL
        if is_checkpointed and self._with_gradients and not self._is_compiled:
            self._store_states()

    def once(self, key: Hashable, make: Callable[[int], T], like: Tensor | None = None) -> T:
        """Return a value that is drawn once per pass, so that a module that is used twice is one function.

        Args:
            key: the module the value belongs to, `self` in a posterior; or the name of a value that several layers share.
            make: from the number of draws S to the value, tensors with a row for each draw.
            like: with a name, a tensor on the device on which `make` draws.

        Raises:
            DrawnBeforeError: the root has to repeat the pass, because its backward pass repeats this draw.
        """
        repeats, compiling = self._repeats, torch.compiler.is_compiling()
        if compiling and self._is_asked_once(key):
            return make(self.samples)
        if repeats is None or compiling:
            if key not in self._drawn:
                self._drawn[key] = make(self.samples)
            return self._drawn[key]
        if self._may_start_again and not self._ended and in_custom_function() and repeats.lost_state(key):
            raise DrawnBeforeError("a reentrant activation checkpoint uses a draw that was made before it")
        tensors = list(key.parameters()) if isinstance(key, nn.Module) else [] if like is None else [like]
        return repeats.redraw(key, make, tensors) if self._ended else repeats.draw(key, make, tensors)

    def _is_asked_once(self, key: Hashable) -> bool:
        """Whether a value belongs to the running layer alone, which is in a compiled part of the network and called once.

        If it were stored, the compiler would check the number of stored values, and compile every one of many equal blocks.
        """
        layer = self._running
        if self._is_compiled or self._had_draws or layer is None or layer.is_repeated or layer.is_read:
            return False
        return key is layer or key is layer.posterior

    def jointly(self, name: str, make: Callable[[int], Tensor], like: Tensor | None = None) -> Tensor:
        """As `once`, for draws that depend on each other, also if each takes a separate pass; `make` gets the number of all."""
        separate = self._separate
        return self.once(name, make if separate is None else lambda _: separate(name, make), like)

    def wants_kl(self) -> bool:
        """Whether posteriors should report their KL to this pass (see `kl`)."""
        return self._pays_kl

    def kl(self, posterior: nn.Module, value: Tensor) -> None:
        """Report the KL of a posterior that has it at hand; otherwise the root calls `Posterior.kl` after the pass."""
        if torch.compiler.is_compiling() and not self._is_compiled:  # see `_is_asked_once`
            if self._pays_kl and not self._ended:
                self._has_parts = True
                posterior.kl_of_part = self, value  # pyright: ignore[reportArgumentType]
            return
        # Inside a reentrant checkpoint the value has no gradient and is ignored.
        if not self._ended and posterior not in self.found_kls and (value.requires_grad or not self._with_gradients):
            self.found_kls[posterior] = value

    def reported_kls(self, layers: Iterable[BayesianLayer]) -> Mapping[nn.Module, Tensor | None]:
        """The KLs that the posteriors of these layers reported, those of compiled parts of the network included."""
        if self._has_parts:
            for layer in layers:
                part = vars(layer.posterior).pop("kl_of_part", None)
                if part is not None and part[0] is self:
                    self.found_kls.setdefault(layer.posterior, part[1])
        return self.found_kls

    def choose(self, log_prob: Tensor) -> None:
        """Report the log probability (S,) of discrete choices made in this pass (see `Draws.score`).

        Raises:
            PassError: inside a reentrant checkpoint, where the probabilities would get no gradient.
        """
        if self._ended:
            return
        if self._with_gradients and not torch.is_grad_enabled() and self.checkpointed:
            raise PassError(
                "probabilities of discrete choices get no gradient inside torch.no_grad() or a reentrant activation checkpoint; "
                "use checkpoint(..., use_reentrant=False)"
            )
        score = log_prob - log_prob.detach()
        self.score = score if self.score is None else self.score + score

    def trains(self) -> bool:
        """Whether the root is in training mode, for a `CollectedPosterior`; other posteriors do not depend on it."""
        return self._training

    @property
    def checkpointed(self) -> bool:
        """Whether a backward pass may run layers of this pass again."""
        return self._repeats is not None

    def end(self) -> None:
        """Mark the end of the forward pass; later calls come from a backward pass."""
        self._ended = True
        if self._repeats is None:
            self._drawn = {}

    def _notice_checkpoint(self) -> None:
        if self._repeats is not None or not self._with_gradients or torch.compiler.is_compiling():
            return
        # A custom function, as a reentrant checkpoint is one, has a graph of its own. Hooks on saved tensors may drop them.
        if in_custom_function() or current_saved_tensors_hooks() is not None:
            self._store_states()

    def _store_states(self) -> None:
        self._repeats = RepeatedDraws(self._drawn, self._predrawn, self.samples)
