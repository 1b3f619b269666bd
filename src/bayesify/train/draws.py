"""`ensemble_of_draws`: networks drawn from a posterior, each with batch statistics of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_leaves, tree_map

from bayesify.core.call_arguments import arguments_of
from bayesify.core.checks import check_integer
from bayesify.core.convert import bayesify
from bayesify.core.model import Bayesian
from bayesify.core.modes import eval_mode
from bayesify.errors import DataError
from bayesify.methods.deep_ensemble import DeepEnsemble
from bayesify.prediction.inputs import batches_of
from bayesify.progress import ProgressBar

__all__ = ["ensemble_of_draws"]


def ensemble_of_draws(
    bnn: Bayesian, inputs: Any, draws: int = 30, *, batch_size: int = 128, seed: int = 0, progress: bool | None = None
) -> Bayesian:
    """Draw plain networks from the posterior, with batch normalization statistics of the training data in each, as an ensemble.

    Running statistics are averages over training, which belong to other weights than those of a draw, above all with weights that
    are collected along training (SWA, SWAG). Here they are the mean over batches of `inputs` for every network. Everything else,
    such as dropout, is in eval mode meanwhile, as in prediction.

    Args:
        bnn: a Bayesian network whose method draws networks (`Bayesian.sample_network`); it does not change. Each draw takes a pass
            over all inputs, on the device of `bnn`, which `fit` leaves where it was: move it to a GPU before.
        inputs: of the training data, as for `predict`: a tensor, a tuple or mapping of tensors, whose rows are shuffled, or an
            iterable of batches, such as a loader, whose batches should be random parts of the data.
        draws: S, the number of networks, in memory together; of an ensemble, a multiple of its members. 1 for `SWA`.
        batch_size: rows per batch, for tensors.
        seed: of the draws and the order of rows; network s has the weights of `bnn.function(seed + s)`.
        progress: whether to show a progress bar; None shows it on a terminal.

    Returns:
        An ensemble of S networks: `predict(ensemble, x, likelihood, samples=S)`. Its likelihood is that of `bnn`.

    Raises:
        TypeError, DataError: inputs as `predict` refuses them, or an iterable that can be used only once.
        NotImplementedError: the method does not draw networks.

    Source: Maddox et al., *A simple baseline for Bayesian uncertainty in deep learning* (2019, arXiv 1902.02476), algorithm 1.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        >>> bnn, x = bayesify(net, SWAG()), torch.randn(64, 3)
        >>> history = fit(bnn, (x, x.sum(1)), Gaussian(std=0.1), epochs=4, accelerator="cpu")
        >>> predict(ensemble_of_draws(bnn, x, draws=10), x, Gaussian(std=0.1), samples=10)
        GaussianPredictive(mean=(64,), samples=10)
    """
    if not isinstance(bnn, Bayesian):
        raise TypeError(f"bnn must be what bayesify returned, got {type(bnn).__name__}")
    check_integer("draws", draws)
    check_integer("batch_size", batch_size)
    check_integer("seed", seed, least=0)
    if isinstance(inputs, Iterator):
        raise TypeError("inputs are read once per draw, got an iterator, which can be used only once; give a loader or a list")
    rows = _shuffled(inputs, bnn.batch_dim, batch_size, seed)
    nets = [bnn.sample_network(seed + s) for s in range(draws)]
    with ProgressBar("statistics", progress, draws) as bar:
        for net in nets:
            _recompute_statistics(net, rows, bnn.batch_dim, batch_size)
            bar.advance()
    layout: dict[str, Any] = {"batch_dim": bnn.batch_dim, "unbatched": bnn.unbatched, "output": bnn.passes.select}
    return bayesify(nets, DeepEnsemble(members=draws), **layout).train(bnn.training)


def _shuffled(inputs: Any, dim: int, batch_size: int, seed: int) -> Any:
    """Tensors with their rows in random order, so that every batch is a random part; other inputs as they are."""
    if not isinstance(inputs, Tensor | tuple | Mapping):
        return inputs
    sizes = {x.shape[dim] for x in tree_leaves(inputs) if isinstance(x, Tensor) and x.dim() > dim}
    if len(sizes) != 1:
        return inputs  # refused by `batches_of`
    order = torch.randperm(sizes.pop(), generator=torch.Generator().manual_seed(seed), device="cpu")
    if len(order) % batch_size == 1 and len(order) > 1:
        order = order[1:]  # batch normalization cannot normalize a last batch of one row
    return tree_map(lambda x: x.index_select(dim, order.to(x.device)) if isinstance(x, Tensor) else x, inputs)


@torch.no_grad()
def _recompute_statistics(net: nn.Module, inputs: Any, dim: int, batch_size: int) -> None:
    """Set the running statistics of batch normalization to their means over batches."""
    norms = [part for part in net.modules() if isinstance(part, _NormBase) and part.running_mean is not None]
    device = next(net.parameters()).device
    batches: Iterable[Any] = batches_of(inputs, batch_size, dim, device)[0] if norms else ()
    momenta = [norm.momentum for norm in norms]
    with eval_mode(net):
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain average
            norm.train()
        for batch in batches:
            args, kwargs = arguments_of(tree_map(lambda leaf: leaf.to(device), batch))
            net(*args, **kwargs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    if norms and int(norms[0].num_batches_tracked or 0) == 0:
        raise DataError("inputs must have at least one batch, got an empty iterable")
