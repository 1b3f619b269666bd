"""Prediction: draws from a Bayesian network, in batches and chunks, combined into one predictive distribution.

Shapes: S draws, N rows (examples).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from bayesify.core.call_arguments import arguments_of
from bayesify.core.checks import check_integer, check_positive
from bayesify.core.generators import own_noise
from bayesify.core.inputs import NETWORK_ERRORS, input_names, input_parameters
from bayesify.core.model import Bayesian
from bayesify.core.modes import eval_mode
from bayesify.core.objects import moved
from bayesify.core.turns import turn
from bayesify.core.values import in_dtype, network_dtype
from bayesify.errors import ConfigurationError, DataError
from bayesify.likelihoods import Likelihood
from bayesify.likelihoods.base import check_likelihood
from bayesify.prediction.inputs import batches_of, draws_per_call, leaves_of, warn_of_lost_rows
from bayesify.prediction.pooling import fast_pooling
from bayesify.prediction.tokens import TokenScores, score_tokens
from bayesify.predictive import Predictive
from bayesify.progress import ProgressBar

__all__ = ["TokenScores", "predict", "score_tokens"]

_FIRST_DRAWS, _FEWEST_CHUNKS = 32, 8  # minimum before a tolerance is checked


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
    r"""Predictive distribution of the targets of `inputs`: a mixture over `samples` draws of the network's weights.

    $$p(y \mid x) \approx \frac1S \sum_s p(y \mid f(x; w_s)), \qquad w_s \sim q$$

    The network is in eval mode meanwhile; no gradients are computed. Predictions in several threads take turns. At most `chunk`
    draws of one batch are in memory at a time, and the result grows with S for regression only.

    Args:
        bnn: a Bayesian network, also compiled or wrapped for distributed training.
        inputs: a tensor, a tuple of tensors (the network's arguments) or a mapping of tensors (its keyword arguments), rows first;
            or an iterable of batches, such as a loader. A batch is one of the three, or a list or tuple of length 1 or 2, `(x,)` or
            `(x, y)`, whose y is ignored; several arguments are then nested, `((a, b), y)`. So a tuple consists of arguments when
            given directly, and starts with x when it comes from an iterable. Floating-point inputs are converted to the dtype of
            the network. In place of a tensor there may be an object that holds tensors, such as a graph (`Data` of
            torch_geometric); it is given to the network as it is, on its device.
        likelihood: distribution of the targets given the outputs.
        samples: S, the number of draws; for an ensemble, rounded up to a multiple of its members.
        chunk: draws per call of the network; by default about 2,048 rows (fewer if rows are large and on a CPU: the draws
            of 128 images of MNIST or 64 of CIFAR; up to 16,384 on a GPU), or all if one pass makes any number of draws.
        batch_size: rows per batch, for tensors; by default as many as one call has, at most 1,024.
        seed: equal seed, `chunk` and batches give equal results, and the global random state is restored. None draws a seed from
            the global generator. Where draws differ between examples (the default of some methods), other batches give other draws
            of the same distribution; with `coherent=True` draws do not depend on the batches.
        coherent: whether all rows share the same S functions.
        tolerance: stop before `samples` draws once the mean prediction of every row (a probability, or a value in the target's
            unit) has a standard error of at most this; all rows get equally many draws, at least 32. None makes all draws.
        progress: whether to show a progress bar on standard error; None for one in terminals with rich installed, if the
            prediction takes long.

    Returns:
        The predictive distribution, rows in order, on the device of the inputs.

    Raises:
        TypeError: unsupported inputs, network or output.
        ConfigurationError: an argument out of range.
        DataError: no rows, shapes that do not fit, inputs or outputs that are not finite.
        MissingDependencyError: `progress=True` without rich.

    Warns:
        BayesifyWarning: a loader shuffles, or leaves out the last rows.

    Example:
        >>> from bayesify import MeanField, bayesify
        >>> from bayesify.likelihoods import Categorical
        >>> bnn = bayesify(nn.Linear(4, 3), MeanField())
        >>> predict(bnn, torch.zeros(5, 4), Categorical(), samples=10, seed=0)
        CategoricalPredictive(mean=(5, 3), samples=10)
    """
    _check_arguments(bnn, likelihood, samples, batch_size=batch_size, chunk=chunk, tolerance=tolerance, seed=seed)
    root = next((module for module in bnn.modules() if isinstance(module, Bayesian)), None)  # bnn may be a wrapper
    _check_network(bnn, root, inputs)
    if root is not None:
        root.check_collected()
        root.check_completed()
    dim = 0 if root is None else root.batch_dim
    members = 1 if root is None else max(1, len(root.members))
    samples = _round_up(int(samples), members)
    tensors = [*bnn.parameters(), *bnn.buffers()]
    device, dtype = tensors[0].device if tensors else None, network_dtype(bnn)
    with turn():  # the generator, from which loaders draw as well, may be in another thread's prediction
        batches, length = batches_of(inputs, batch_size, dim, device)
        warn_of_lost_rows(inputs)
        seed = int(torch.randint(2**62, (), device="cpu") if seed is None else seed)

    is_compiled = root is None or _compiled(bnn)
    needed = samples if tolerance is None else min(samples, _round_up(_FIRST_DRAWS, members))
    parts: list[_BatchPrediction] = []
    with (
        turn(), torch.no_grad(), eval_mode(bnn), own_noise(tensors) as reseed, ProgressBar("predict", progress, length) as bar,
        contextlib.nullcontext() if is_compiled else fast_pooling(bnn),
    ):  # fmt: skip
        caller = _Caller(bnn, None if is_compiled else root, likelihood, seed, coherent, reseed, tolerance)
        reseed(seed)  # for loaders that shuffle or augment
        for index, batch in enumerate(batches):
            if chunk is None:
                chunk = draws_per_call(root, batch, dim, device, samples)
                chunk = chunk if tolerance is None else min(chunk, _FIRST_DRAWS // _FEWEST_CHUNKS)
            home = leaves_of(batch)[0].device  # which a graph may forget when it is moved
            x = batch if device is None else tree_map(lambda leaf: _converted(leaf, device, dtype), batch)
            part = _BatchPrediction(caller, x, index, _round_up(chunk, members), home)
            part.draw(needed, lambda draws: bar.advance(draws / samples))
            while tolerance is not None and part.samples < samples and part.standard_error() > tolerance:
                part.draw(min(samples, 2 * part.samples), lambda draws: bar.advance(draws / samples))
            bar.advance(1 - part.samples / samples)
            needed = max(needed, part.samples)
            if tolerance is None:
                part.inputs = None  # frees memory
            parts.append(part)
        for part in parts:  # all rows get as many draws as those that needed most
            part.draw(needed, lambda draws: None)
    if not parts:
        raise DataError("inputs must have at least one batch, got an empty iterable (a generator can be used only once)")
    return parts[0].predictive.cat(*(part.predictive for part in parts[1:]))


def _check_arguments(
    bnn: object, likelihood: object, samples: int, *, batch_size: Any, chunk: Any, tolerance: Any, seed: Any
) -> None:
    if not isinstance(bnn, nn.Module):
        raise TypeError(f"bnn must be a Bayesian network, got {type(bnn).__name__}; make one with bayesify(net, method)")
    check_likelihood(likelihood)
    check_integer("samples", samples)
    for name, value in (("batch_size", batch_size), ("chunk", chunk)):
        if value is not None:
            check_integer(name, value)
    if tolerance is not None:
        check_positive("tolerance", tolerance)
    if seed is not None:
        check_integer("seed", seed, least=0)


def _check_network(bnn: nn.Module, root: Bayesian | None, inputs: Any) -> None:
    """Check that the network is Bayesian, has weights, and takes as many inputs as it gets."""
    if any(p.is_meta for p in bnn.parameters()):
        raise ConfigurationError(
            "bnn has parameters on the meta device, without values; load them first: load_state_dict(..., assign=True)"
        )
    if root is None:
        parameters = input_parameters(bnn)
        if "samples" not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            raise TypeError(f"bnn is a plain {type(bnn).__name__}; make it Bayesian first: bayesify(net, MeanField())")
    elif isinstance(inputs, tuple) and not root.members:
        names = input_names(root.net)
        if len(inputs) > len(names) and not any(p.kind is p.VAR_POSITIONAL for p in input_parameters(root.net).values()):
            raise DataError(
                f"inputs is a tuple of {len(inputs)}, the arguments of the network, which takes {len(names)} ({', '.join(names)}); "
                "leave the targets out, or give batches: [(x, y)]"
            )


def _converted(x: Any, device: torch.device, dtype: torch.dtype) -> Any:
    return in_dtype(x, dtype, "inputs").to(device) if isinstance(x, Tensor) else moved(x, device)


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


@dataclasses.dataclass(frozen=True)
class _Caller:
    """Calls the network; what is the same for all batches of a prediction.

    Attributes:
        root: the root if it may replay passes, otherwise None.
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
        """The outputs (S, B, ...) of `samples` draws."""
        self.reseed(state)
        try:
            draws = self.bnn(*args, samples=samples, coherent=self.coherent, **kwargs)
        except NETWORK_ERRORS:
            if self.root is None or not self.root.stop_replay():
                raise
            self.reseed(state)  # replay failed: the network does not do the same for all rows
            draws = self.bnn(*args, samples=samples, coherent=self.coherent, **kwargs)
        outputs = getattr(draws, "outputs", None)
        if not isinstance(outputs, Tensor):
            got = type(draws if outputs is None else outputs).__name__
            raise TypeError(
                f"predict needs a Bayesian network whose outputs are one tensor, got {got}; select one when converting, "
                'bayesify(net, method, output="logits"), or make a distribution of each from the draws of '
                "bnn(inputs, samples=100).outputs: likelihood.predictive(output)"
            )
        if outputs.dim() < 2 or outputs.shape[0] != samples:
            raise DataError(f"the network must return outputs (S, B, ...) with S = {samples}, got {tuple(outputs.shape)}")
        return outputs


@dataclasses.dataclass
class _BatchPrediction:
    """The predictive distribution of one batch, from the draws so far."""

    caller: _Caller
    inputs: Any
    index: int
    chunk: int
    device: torch.device
    samples: int = 0
    chunks: int = 0
    mixture: Predictive | None = None
    squares: Tensor | float = 0.0  # of the chunks' means, weighted with their numbers of draws

    @property
    def predictive(self) -> Predictive:
        assert self.mixture is not None, "at least one draw is made"
        return self.mixture

    def draw(self, samples: int, advance: Callable[[int], None]) -> None:
        """Draw until there are `samples` draws; `advance` gets the number of draws of every chunk."""
        if self.samples >= samples:
            return
        args, kwargs = arguments_of(self.inputs)
        caller, root, new = self.caller, self.caller.root, samples - self.samples
        ordinary, mixture = contextlib.nullcontext(), None  # of new draws: on the device of the network
        with ordinary if root is None else root.predicting(args, kwargs, caller.coherent, caller.reseed, caller.believed, new):
            while self.samples < samples:
                # coherent draws depend only on the seed and their index, so that all batches use the same functions
                state = f"{caller.seed} {self.samples} {0 if caller.coherent else self.index}"
                draws = min(self.chunk, samples - self.samples)
                try:
                    outputs = caller.outputs(args, kwargs, draws, random.Random(state).getrandbits(62))
                    more = caller.likelihood.predictive(outputs)
                except ValueError as error:
                    last = self.samples + draws - 1
                    error.add_note(f"while predicting batch {self.index} with draws {self.samples} to {last}")
                    raise
                if caller.tolerance is not None:
                    self.squares = self.squares + draws * more.mean.double().square().to(self.device)
                mixture = more if mixture is None else mixture.mix(more)
                self.samples, self.chunks = self.samples + draws, self.chunks + 1
                advance(draws)
        assert mixture is not None
        mixture = mixture.to(self.device)
        self.mixture = mixture if self.mixture is None else self.mixture.mix(mixture)

    def standard_error(self) -> float:
        """The largest standard error of the mean prediction, from the variance between chunks."""
        if self.chunks < _FEWEST_CHUNKS:
            return math.inf
        spread = self.squares - self.samples * self.predictive.mean.double().square()
        return float((spread / ((self.chunks - 1) * self.samples)).max().clamp_min(0).sqrt())


def _compiled(module: nn.Module) -> bool:
    """Whether passes run compiled code, which cannot be replayed."""
    return any("_orig_mod" in part._modules or part._compiled_call_impl is not None for part in module.modules())
