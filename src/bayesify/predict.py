"""Prediction: draws from a Bayesian network, batch by batch and a few at a time, gathered into one predictive distribution.

Shapes: S draws, N rows (examples).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import operator
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from bayesify.core.checks import check_integer, check_positive
from bayesify.core.generators import own_noise
from bayesify.core.model import Bayesian
from bayesify.core.modes import modes_kept
from bayesify.core.replay import MISFITS
from bayesify.likelihoods import Likelihood
from bayesify.predictive import Predictive
from bayesify.progress import ProgressBar

__all__ = ["predict"]

_ROWS_PER_CALL = 2048
_BYTES_PER_CALL = 1_600_000  # of inputs on a processor: more, and what convolutions make of them leaves its caches
_FIRST_DRAWS, _FEWEST_CHUNKS = 32, 8  # before a tolerance is believed to be met


def predict(
    bnn: Bayesian | nn.Module,
    inputs: Any,
    likelihood: Likelihood,
    samples: int = 100,
    *,
    chunk: int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    coherent: bool = False,
    tolerance: float | None = None,
    progress: bool | None = None,
) -> Predictive:
    r"""What the network believes about the targets of `inputs`: a mixture over `samples` draws of its weights.

    $$p(y \mid x) \approx \frac1S \sum_s p(y \mid f(x; w_s)), \qquad w_s \sim q$$

    The network is in eval mode meanwhile and gets its modes back afterwards; no gradients are kept. At most `chunk` draws of one
    batch are in memory at a time; what is kept of them grows with S for regression only.

    Args:
        bnn: a Bayesian network, also compiled or wrapped for distributed training.
        inputs: a tensor, a tuple of tensors (the network's arguments) or a mapping of tensors (its keyword arguments), rows first;
            or a loader, list or other iterable of batches, used as they come. A batch is one of the three, or a list or tuple of
            one or two: `(x,)` or `(x, y)`, of which x is taken. Several arguments in such a batch are nested: `((a, b), y)`. So a
            tuple is arguments when given whole, and x first when it comes from an iterable.
        likelihood: what the outputs mean.
        samples: S, the number of draws; of an ensemble, rounded up so that all members make equally many.
        chunk: draws per call of the network; by default as many as make about 2,048 rows (fewer of large rows on a processor: 512
            images of MNIST, 130 of CIFAR), or all where that takes one pass.
        batch_size: rows per batch, for tensors; by default as many as make one call, at most 1,024.
        seed: equal seed, `chunk` and batches give equal numbers, and the global random state is left as it was. None takes a seed
            from the global generator. Where draws differ between examples (the default of some methods), other batches give other
            draws of the same distribution; with `coherent=True` the draws do not depend on the batches.
        coherent: the same S functions for all rows of the call.
        tolerance: stop before `samples` draws once the mean prediction of every row (a probability, or a number in the target's
            unit) has a standard error of at most this; all rows get equally many draws, at least 32. None makes all draws.
        progress: a progress bar on standard error; by default if that is a terminal, rich is installed and the work is long.

    Returns:
        The predictive distribution, rows in order, on the device the inputs came from.

    Raises:
        TypeError: inputs, network or output of a kind that is not understood.
        ValueError: no rows, rows that do not match, values that are not finite, in or out; a number out of range.
        ImportError: `progress=True` without rich.

    Example:
        >>> from bayesify import MeanField, bayesify
        >>> from bayesify.likelihoods import Categorical
        >>> bnn = bayesify(nn.Linear(4, 3), MeanField())
        >>> predict(bnn, torch.zeros(5, 4), Categorical(), samples=10, seed=0)
        CategoricalPredictive(mean=(5, 3), samples=10)
    """
    _check_arguments(bnn, likelihood, samples, batch_size=batch_size, chunk=chunk, tolerance=tolerance, seed=seed)
    # The root knows, a wrapper around it (compiled, distributed) does not.
    root = next((module for module in bnn.modules() if isinstance(module, Bayesian)), None)
    dim = 0 if root is None else root.batch_dim
    members = 1 if root is None else max(1, len(root.members))
    samples = -(-samples // members) * members
    tensors = [*bnn.parameters(), *bnn.buffers()]
    device = tensors[0].device if tensors else None
    batches, length = _batches(inputs, batch_size, dim, device)
    if seed is None:
        seed = int(torch.randint(2**62, (), device="cpu"))

    needed = samples if tolerance is None else min(samples, -(-_FIRST_DRAWS // members) * members)
    parts: list[_Part] = []
    with (
        torch.no_grad(), modes_kept(bnn.modules()), own_noise(tensors) as reseed, ProgressBar("predict", progress, length) as bar
    ):  # fmt: skip
        bnn.eval()
        call = _Call(bnn, None if root is None or _compiled(bnn) else root, likelihood, seed, coherent, reseed, tolerance)
        reseed(seed)  # for loaders that shuffle or augment
        for number, batch in enumerate(batches):
            chunk = _draws_per_call(root, batch, dim, device, samples, tolerance) if chunk is None else chunk
            x = tree_map(lambda leaf: leaf if device is None else leaf.to(device), batch)
            part = _Part(call, x, number, -(-chunk // members) * members, home=tree_leaves(batch)[0].device)
            part.draw(needed, lambda draws: bar.advance(draws / samples))
            while tolerance is not None and part.samples < samples and part.standard_error() > tolerance:
                part.draw(min(samples, 2 * part.samples), lambda draws: bar.advance(draws / samples))
            bar.advance(1 - part.samples / samples)
            needed = max(needed, part.samples)
            if tolerance is None:
                part.inputs = None  # they have served
            parts.append(part)
        for part in parts:  # all rows get as many draws as those that needed most
            part.draw(needed, lambda draws: None)
    if not parts:
        raise ValueError("inputs hold no rows: the iterable has no batches (a generator serves only once)")
    return parts[0].predictive.cat(*(part.predictive for part in parts[1:]))


def _check_arguments(
    bnn: object, likelihood: object, samples: int, *, batch_size: Any, chunk: Any, tolerance: Any, seed: Any
) -> None:
    if not isinstance(bnn, nn.Module):
        raise TypeError(f"bnn must be a Bayesian network, got {type(bnn).__name__}; make one with bayesify(net, method)")
    if not isinstance(likelihood, Likelihood):
        raise TypeError(f"likelihood must be a Likelihood such as Categorical() or Gaussian(std=0.1), got {likelihood!r}")
    check_integer("samples", samples)
    for name, number in (("batch_size", batch_size), ("chunk", chunk)):
        if number is not None:
            check_integer(name, number)
    if tolerance is not None:
        check_positive("tolerance", tolerance)
    if seed is not None:
        check_integer("seed", seed, least=0)


@dataclasses.dataclass(frozen=True)
class _Call:
    """What is the same for all batches of a prediction.

    Attributes:
        root: what can replay passes; None where nothing can.
        believed: see `Bayesian.predicting`.
    """

    bnn: nn.Module
    root: Bayesian | None
    likelihood: Likelihood
    seed: int
    coherent: bool
    reseed: Callable[[int], None]
    tolerance: float | None
    believed: dict[object, bool] = dataclasses.field(default_factory=dict)

    def outputs(self, args: tuple[Any, ...], kwargs: dict[str, Any], samples: int, state: int) -> Tensor:
        """The outputs (S, B, ...) of so many draws.

        Raises:
            TypeError, ValueError: outputs of another kind or shape.
        """
        self.reseed(state)
        try:
            draws = self.bnn(*args, samples=samples, coherent=self.coherent, **kwargs)
        except MISFITS:
            if self.root is None or not self.root.stop_replay():
                raise
            self.reseed(state)  # the net did otherwise than on the rows that were tried
            draws = self.bnn(*args, samples=samples, coherent=self.coherent, **kwargs)
        outputs = getattr(draws, "outputs", None)
        if not isinstance(outputs, Tensor):
            got = type(draws if outputs is None else outputs).__name__
            raise TypeError(f"predict needs a Bayesian network whose outputs are one tensor, got {got}; see bayesify(net, method)")
        if outputs.dim() < 2 or outputs.shape[0] != samples:
            raise ValueError(f"the network must return outputs (S, B, ...) with S = {samples}, got {tuple(outputs.shape)}")
        return outputs


@dataclasses.dataclass
class _Part:
    """What is believed about the rows of one batch, from the draws so far."""

    call: _Call
    inputs: Any
    number: int
    chunk: int
    home: torch.device
    samples: int = 0
    chunks: int = 0
    mixture: Predictive | None = None
    squares: Tensor | float = 0.0  # of the chunks' own means, weighted by their draws

    @property
    def predictive(self) -> Predictive:
        assert self.mixture is not None, "at least one draw is made"
        return self.mixture

    def draw(self, samples: int, advance: Callable[[int], None]) -> None:
        """Go on until there are so many draws."""
        if self.samples >= samples:
            return
        args, kwargs = _arguments(self.inputs)
        call, root = self.call, self.call.root
        whole = contextlib.nullcontext()
        with whole if root is None else root.predicting(args, kwargs, call.coherent, call.reseed, call.believed):
            while self.samples < samples:
                # Coherent draws depend on the seed and their place among the draws alone: every batch meets the same functions.
                place = f"{call.seed} {self.samples} {0 if call.coherent else self.number}"
                draws = min(self.chunk, samples - self.samples)
                try:
                    outputs = call.outputs(args, kwargs, draws, random.Random(place).getrandbits(62))
                    more = call.likelihood.predictive(outputs).to(self.home)
                except ValueError as error:
                    last = self.samples + draws - 1
                    error.add_note(f"while predicting batch {self.number} with draws {self.samples} to {last}")
                    raise
                if call.tolerance is not None:
                    self.squares = self.squares + draws * more.mean.double().square()
                self.mixture = more if self.mixture is None else self.mixture.mix(more)
                self.samples, self.chunks = self.samples + draws, self.chunks + 1
                advance(draws)

    def standard_error(self) -> float:
        """The largest standard error of the mean prediction, from the spread of the chunks' own means."""
        if self.chunks < _FEWEST_CHUNKS:
            return math.inf
        spread = self.squares - self.samples * self.predictive.mean.double().square()
        return float((spread / ((self.chunks - 1) * self.samples)).max().clamp_min(0).sqrt())


def _draws_per_call(
    root: Bayesian | None, batch: Any, dim: int, device: torch.device | None, samples: int, tolerance: float | None
) -> int:
    # Behind a single random layer, most often the last, the inputs' size says nothing of what a draw has to go through.
    few = root is not None and sum(layer.posterior.is_random for _, layer in root.random_layers()) == 1
    per_call = _ROWS_PER_CALL if few else _rows_per_call(batch, dim, device)
    rows = tree_leaves(batch)[0].shape[dim]
    chunk = samples if root is not None and root.one_pass else max(1, per_call // rows)
    return chunk if tolerance is None else min(chunk, _FIRST_DRAWS // _FEWEST_CHUNKS)


def _rows_per_call(x: Any, dim: int, device: torch.device | None) -> int:
    """How many rows a call should have, by the size of these and where the network is."""
    if device is not None and device.type != "cpu":
        return _ROWS_PER_CALL
    size = sum(leaf.nbytes / leaf.shape[dim] for leaf in tree_leaves(x))
    return max(64, min(_ROWS_PER_CALL, int(_BYTES_PER_CALL / max(1, size))))


def _batches(inputs: Any, batch_size: int | None, dim: int, device: torch.device | None) -> tuple[Iterable[Any], int | None]:
    """Batches as the network takes them, checked, and how many there are where that is known."""
    if isinstance(inputs, Tensor | tuple | Mapping):
        x = _checked(inputs, dim, "inputs")
        sizes = {leaf.shape[dim] for leaf in tree_leaves(x)}
        if len(sizes) > 1:
            raise ValueError(
                f"inputs must all have the same number of rows, got {sorted(sizes)}; inputs that are shared by all rows go in an "
                "iterable of ready batches, as in predict(bnn, [((x, shared),)], ...)"
            )
        (rows,) = sizes
        if batch_size is None:
            batch_size = min(1024, _rows_per_call(x, dim, device))
        starts = range(0, rows, batch_size)
        return (tree_map(lambda t, i=i: t.narrow(dim, i, min(batch_size, rows - i)), x) for i in starts), len(starts)
    if not isinstance(inputs, Iterable) or isinstance(inputs, str | bytes):
        raise TypeError(
            f"inputs must be a tensor, a tuple or mapping of tensors or an iterable of batches, got {type(inputs).__name__}"
        )
    return (_checked(_without_targets(b, i), dim, f"batch {i}") for i, b in enumerate(inputs)), operator.length_hint(inputs) or None


def _without_targets(batch: Any, number: int) -> Any:
    if not isinstance(batch, list | tuple):
        return batch
    if len(batch) not in (1, 2):
        raise ValueError(
            f"batch {number} has {len(batch)} elements, and which of them are inputs is not clear; make it (x, y), with several "
            "inputs as ((a, b), y) or a mapping of names to tensors"
        )
    return batch[0]


def _checked(x: Any, dim: int, name: str) -> Any:
    """`x` as a tensor, a tuple or a dict, every leaf a tensor with rows and finite values."""
    x = dict(x) if isinstance(x, Mapping) else tuple(x) if isinstance(x, list | tuple) else x
    leaves = tree_leaves(x)
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise TypeError(f"{name} must be a tensor or hold tensors only, got {type(leaf).__name__}; use torch.as_tensor(...)")
        if leaf.dim() <= dim or leaf.shape[dim] == 0:
            raise ValueError(f"{name} must hold at least one row in dimension {dim}, got shape {tuple(leaf.shape)}")
        if leaf.is_floating_point() and not (finite := leaf.isfinite()).all():
            raise ValueError(
                f"{name} must be finite, got {int((~finite).sum())} NaN or infinite values in shape {tuple(leaf.shape)}; "
                "fill or drop them first"
            )
    if not leaves:
        raise ValueError(f"{name} must hold at least one tensor, got {x!r}")
    return x


def _arguments(x: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(x, dict):
        return (), x
    return (x if isinstance(x, tuple) else (x,)), {}


def _compiled(module: nn.Module) -> bool:
    """Whether passes run compiled code, which cannot be replayed."""
    return any("_orig_mod" in part._modules or part._compiled_call_impl is not None for part in module.modules())
