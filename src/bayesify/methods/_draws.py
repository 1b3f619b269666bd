"""Posteriors that are a list of weights drawn by Markov chains, for methods that sample after training.

Shapes: C chains, K draws of all chains together, P elements of a layer's weight and bias, S draws of a pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import vmap

from bayesify.core.completion import CompletedPosterior
from bayesify.core.layer import BayesianLayer
from bayesify.core.method import Method
from bayesify.core.stored import layer_parts
from bayesify.functional import effective_sample_size, split_r_hat

if TYPE_CHECKING:
    from bayesify.core.model import Bayesian
    from bayesify.methods._weight_density import WeightDensity

__all__ = ["DrawsPosterior", "store_chains"]

_ROWS = 64  # of the training data, whose outputs are diagnosed
_CHUNK = 32  # networks evaluated at once
_MIXED = 1.1  # R-hat above which a warning is issued
_LARGEST = 1e6  # R-hat that is kept of chains that never moved, for which it is infinite: files hold finite values


class DrawsPosterior(CompletedPosterior):
    """K weights of equal probability; all layers of a draw use the same one.

    Attributes:
        draws: (K, P), at least float32.
        diagnostics: (2,), the largest R-hat and the smallest effective sample size of the network's outputs.
    """

    draws_jointly = True
    draws: Tensor
    diagnostics: Tensor

    def __init__(self, method: Method, prior_std: float) -> None:
        super().__init__(method, prior_std, ("draws", "diagnostics"))

    def drawn(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        count = self.draws.shape[0]
        name = f"{self.method} {count}"
        # outside a pass, more draws than its one
        chosen = layer.forward_pass.jointly(name, lambda draws: self._choose(max(draws, samples)), like=self.draws)
        return layer_parts(layer, self.draws.index_select(0, chosen))

    def _choose(self, samples: int) -> Tensor:
        """Numbers (S,) of draws: each is uniform, and K or a multiple of it in one call takes every draw equally often."""
        count, device = self.draws.shape[0], self.draws.device
        start = torch.randint(count, (1,), device=device)
        return (start + torch.arange(samples, device=device) * count // samples) % count

    def mean(self, layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
        if not self.is_complete:
            return layer.weight, layer.bias
        weight, bias = layer_parts(layer, self.draws.mean(0, keepdim=True))
        return weight.squeeze(0), None if bias is None else bias.squeeze(0)

    def remark(self) -> str:
        if not self.is_complete or self.draws.is_meta:
            return ""
        r_hat, size = self.diagnostics.tolist()
        return f"{len(self.draws)} draws; of the network's outputs, R-hat is at most {r_hat:.4g} and the ESS at least {size:.0f}"

    def log_ensemble_size(self, layer: BayesianLayer) -> float:
        return math.log(len(self.draws)) if self.is_complete else 0.0


@torch.no_grad()
def store_chains(bnn: Bayesian, names: Sequence[str], density: WeightDensity, chains: Tensor, batch: Any) -> None:
    """Store chains (C, K / C, P of all layers) in the posteriors of layers, diagnose them, and warn if they have not mixed.

    Weights have equivalent modes, between which chains need not move, so the network's outputs at some rows are diagnosed.

    Args:
        bnn: the root.
        names: of the layers, in the order of the vectors.
        density: of the weights.
        chains: the draws.
        batch: of the training data, for the outputs.
    """
    inputs = density.moved(batch)[0]
    flat = chains.flatten(0, 1)
    outputs = vmap(lambda draw: density.outputs(draw, inputs)[:_ROWS], chunk_size=_CHUNK)(flat)
    outputs = outputs.double().unflatten(0, chains.shape[:2])
    r_hat, size = split_r_hat(outputs), effective_sample_size(outputs)
    worst = torch.stack([r_hat.nan_to_num(nan=1.0).max().clamp_max(_LARGEST), size.nan_to_num(nan=chains[..., 0].numel()).min()])
    layers = dict(bnn.random_layers())
    sizes = [math.prod(layers[name].weight_shape) + math.prod(layers[name].bias_shape or (0,)) for name in names]
    for name, part in zip(names, density.completed(flat).split(sizes, 1), strict=True):
        posterior = layers[name].posterior
        assert isinstance(posterior, DrawsPosterior)
        posterior.store(draws=part, diagnostics=worst)
    if worst[0] > _MIXED:
        bnn.tell(
            f"the chains have not mixed: R-hat of the network's outputs is up to {float(worst[0]):.4g}, which should be below "
            f"{_MIXED}; make longer ones, with more burn-in or warm-up"
        )
