r"""The root of a network that is linearized in its weights: $f(x; \hat\theta) + J(x) (\theta - \hat\theta)$.

Shapes: S draws, B batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jvp
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from bayesify.core.checks import check_integer
from bayesify.core.completion import CompletedPosterior
from bayesify.core.drawn_function import DrawnFunction
from bayesify.core.folded import Folded
from bayesify.core.forward_pass import ForwardPass
from bayesify.core.inputs import NETWORK_ERRORS
from bayesify.core.layer import BayesianLayer
from bayesify.core.model import Bayesian
from bayesify.core.outputs import Draws
from bayesify.errors import ConfigurationError
from bayesify.formatting import first_line

__all__ = ["Linearized"]

Drawn = Mapping[BayesianLayer, tuple[Tensor, Tensor | None]]


class Linearized(Folded):
    """A root whose draws, in eval mode and once the posterior was made after training, are linear in the weights.

    Every draw is a function of the whole batch, from a Jacobian-vector product (forward mode), which costs about two passes. In
    training mode, and before the posterior was made, it is an ordinary root.

    Args:
        net: the network.
        linearized: whether it is linearized at all.
    """

    def __init__(self, net: nn.Module, linearized: bool) -> None:
        super().__init__(net)
        self.linearized = linearized

    @property
    def is_linear(self) -> bool:
        """Whether passes are linearized now."""
        return self.linearized and not self.training and any(posterior.is_complete for _, posterior in self._completed())

    def forward(self, *inputs: Any, samples: int = 1, coherent: bool = False, **kwargs: Any) -> Draws:
        if not self.is_linear:
            return super().forward(*inputs, samples=samples, coherent=coherent, **kwargs)
        check_integer("samples", samples)
        self.passes.check_free()
        call = self.inputs_of(inputs, kwargs)
        self.plan(call, 1)  # reports unused layers, and refuses networks that keep results of layers
        drawn = self.passes.draw(self._layers(), samples)
        outputs: list[Any] = []
        for s in range(samples):
            args, keywords = call.map(torch.clone)  # the network may change them in place
            one: Drawn = {layer: (w[s : s + 1], None if b is None else b[s : s + 1]) for layer, (w, b) in drawn.items()}
            y = self._linear(one, args, keywords)
            outputs.append(tree_map(lambda y: y.movedim(self.batch_dim, 0) if isinstance(y, Tensor) else y, y))
        kl = self.kl_of_pass({})
        stacked = tree_map(lambda *ys: torch.stack(ys) if isinstance(ys[0], Tensor) else ys[0], *outputs)
        return Draws(stacked, kl, kl.new_zeros(call.examples(stacked, 1)))

    def _linear(self, drawn: Drawn, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The outputs of one draw of weights (1, *); those of layers whose posterior is another are not linearized."""
        posteriors = {layer: layer.posterior for layer in drawn}  # a list of draws has no weights to linearize in
        layers = [x for x, p in posteriors.items() if isinstance(p, CompletedPosterior) and not p.draws_jointly]
        ends = [part for layer in layers for part in drawn[layer] if part is not None]
        means = [part.unsqueeze(0) for layer in layers for part in layer.posterior.mean(layer) if part is not None]

        def at(*weights: Tensor) -> Any:
            parts = iter(weights)
            values = {layer: (next(parts), None if layer.bias_shape is None else next(parts)) for layer in layers}
            forward_pass = ForwardPass(coherent=True, drawn={**drawn, **values})
            return self.passes.run(forward_pass, self.net, args, kwargs, alone=True)

        tangents = tuple(end - mean for end, mean in zip(ends, means, strict=True))
        try:
            with _without_fused_attention():
                return tree_map(torch.add, *jvp(at, tuple(means), tangents))
        except NETWORK_ERRORS as error:
            at(*means)  # which raises an error of the network itself
            raise ConfigurationError(
                "linearized predictions need forward-mode derivatives, and a function of the network has none; use "
                f"Laplace(linearized=False), or name later layers by patterns. PyTorch says: {first_line(error)}"
            ) from error

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
        inner = Bayesian.predicting if self.is_linear else Folded.predicting  # a linearized pass is not replayed
        with inner(self, inputs, kwargs, coherent, reseed, believed, samples):
            yield

    def function(self, seed: int) -> Callable[..., Any]:
        if not self._draws_functions():
            return super().function(seed)
        drawn = self._weights(seed)
        return DrawnFunction(self, lambda *inputs, **kwargs: self._linear(drawn, inputs, kwargs), self.batch_dim)

    @contextmanager
    def drawn_together(self, seeds: Sequence[int]) -> Iterator[nn.Module]:
        self._check_networks()
        with super().drawn_together(seeds) as net:
            yield net

    def sample_network(self, seed: int) -> nn.Module:
        self._check_networks()
        return super().sample_network(seed)

    def _draws_functions(self) -> bool:
        """Whether draws, which are evaluated in eval mode, are linearized."""
        return self.linearized and any(posterior.is_complete for _, posterior in self._completed())

    def _check_networks(self) -> None:
        if self._draws_functions():
            raise NotImplementedError(
                "draws of a linearized network are functions, not networks; use function(seed), or Laplace(linearized=False)"
            )


@contextmanager
def _without_fused_attention() -> Iterator[None]:
    """Compute attention by elementary functions: the fused ones have no forward mode."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
