"""`Bayesian.generate`: sequences from several networks drawn from the posterior.

The draws are decoded together, as one batch of S*B rows with one key-value cache, if a test on a few rows finds the same values as
decoding them one by one; otherwise one after the other. So are they with arguments that are functions, which may look at the
positions of rows.

Shapes: S draws, B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from bayesify.core.checks import check_integer
from bayesify.core.comparison import close
from bayesify.core.generators import own_noise
from bayesify.core.inputs import NETWORK_ERRORS, Arguments, Inputs
from bayesify.core.turns import turn
from bayesify.errors import ConfigurationError

if TYPE_CHECKING:
    from bayesify.core.model import Bayesian

__all__ = ["generate"]

_TOKENS = 2  # of the test: the first is predicted from the whole prompt, the second with the cache


def generate(root: Bayesian, call: Inputs, samples: int, seed: int) -> Any:
    """Implement `Bayesian.generate`, with its inputs as `call`."""
    check_integer("samples", samples)
    check_integer("seed", seed, least=0)
    net = (root.members[0] if root.members else root).net
    if not callable(getattr(net, "generate", None)):
        raise TypeError(f"{type(net).__name__} has no method `generate`; use bnn.drawn(seed) for a decoding loop of your own")
    with turn():
        return _decoded(root, call, samples, seed)


def _decoded(root: Bayesian, call: Inputs, samples: int, seed: int) -> Any:
    root.passes.check_free()
    seeds = range(seed, seed + samples)
    if samples > 1:
        _check_shared(call)
        try:
            if (outputs := _together(root, call, seeds)) is not None:
                return outputs
        except NETWORK_ERRORS:  # decoding of a single row, as with `prompt_lookup_num_tokens`; other errors come again
            root.passes.check_free()
    runs = list[Any]()
    for each in seeds:
        with root.drawn(each) as net:
            runs.append(_generate(net, (call.args, call.kwargs), each))
    if samples == 1:
        return tree_map(lambda y: y.unsqueeze(0) if isinstance(y, Tensor) else y, runs[0])
    return _stack(runs, (root.members[0] if root.members else root).net, call)


def _check_shared(call: Inputs) -> None:
    """Raise a `ConfigurationError` for a cache, which the first draw would fill for the others."""
    if call.kwargs.get("past_key_values") is not None:
        raise ConfigurationError(
            "past_key_values would be filled by the first draw, and read by the others; leave it out, name the kind of cache "
            "(cache_implementation=...), or decode each draw: with bnn.drawn(seed) as net: net.generate(...)"
        )


def _together(root: Bayesian, call: Inputs, seeds: Sequence[int]) -> Any:
    """The outputs of all draws, decoded as one batch; None if they must be decoded one by one."""
    if any(map(callable, tree_leaves((call.args, call.kwargs)))) or not _decodes_together(root, call, seeds[0]):
        return None
    if (together := root.drawn_together(seeds)) is None:
        return None
    with together as net:
        outputs = _generate(net, call.folded(len(seeds)), seeds[0])
    return tree_map(lambda y: _unfold(y, len(seeds), call.batch), outputs)


def _generate(net: Any, arguments: Arguments, seed: int, **settings: Any) -> Any:
    args, kwargs = arguments
    with torch.no_grad(), own_noise(net.parameters()) as reseed:
        reseed(seed)  # of sampled tokens
        return net.generate(*args, **kwargs, **settings)


def _decodes_together(root: Bayesian, call: Inputs, seed: int) -> bool:
    """Whether two draws have the same scores of the first tokens together as one by one; tested once per kind of inputs."""
    tensors = root.inputs_of(call.args, {name: x for name, x in call.kwargs.items() if isinstance(x, Tensor)})
    known = root.decodes_together
    if tensors.kind not in known:
        known[tensors.kind] = _test(root, tensors, (seed, seed + 1))
    return known[tensors.kind]


def _test(root: Bayesian, call: Inputs, seeds: Sequence[int]) -> bool:
    few = min(call.batch, 3) if call.can_be_cut else call.batch
    arguments = call.map(lambda x: x.narrow(0, 0, few))
    inputs = root.inputs_of(*arguments)
    together = root.drawn_together(seeds)
    if together is None:
        return False
    try:
        with together as net:
            joint = _scores(net, inputs.folded(len(seeds)))
        one_by_one = list[Tensor]()
        for seed in seeds:
            with root.drawn(seed) as net:
                one_by_one.append(_scores(net, arguments))
    except NETWORK_ERRORS:
        return False  # the network does not fold, or its `generate` has other settings
    return close(joint, torch.cat(one_by_one))


def _scores(net: nn.Module, arguments: Arguments) -> Tensor:
    """Logits (R, T, V) of the first tokens, each the most probable one."""
    greedy = {"do_sample": False, "num_beams": 1, "num_return_sequences": 1}
    length = {"max_new_tokens": _TOKENS, "min_new_tokens": _TOKENS}
    outputs = _generate(net, arguments, 0, **greedy, **length, return_dict_in_generate=True, output_logits=True)
    return torch.stack(list(outputs.logits), 1)


def _unfold(y: Any, samples: int, batch: int) -> Any:
    """(S*R, ...) to (S, R, ...); R is B, or a multiple of it with several sequences per example."""
    rows = isinstance(y, Tensor) and y.dim() > 0 and y.shape[0] > 0 and y.shape[0] % (samples * batch) == 0
    return y.unflatten(0, (samples, -1)) if rows else y


def _stack(runs: Sequence[Any], net: Any, call: Inputs) -> Tensor:
    """Tokens (S, B, T) of several runs, the shorter ones padded."""
    if not all(isinstance(run, Tensor) for run in runs):
        raise ConfigurationError(
            f"generate returned a {type(runs[0]).__name__}, but draws are decoded one after the other here, whose results are "
            "combined for tensors of tokens only; leave out return_dict_in_generate, or use bnn.drawn(seed) for each draw"
        )
    config = getattr(net, "generation_config", None)
    choices = (call.kwargs.get("pad_token_id"), getattr(config, "pad_token_id", None), getattr(config, "eos_token_id", None))
    pad = next((choice for choice in choices if choice is not None), 0)
    pad = pad[0] if isinstance(pad, list) else pad
    longest = max(run.shape[-1] for run in runs)
    return torch.stack([F.pad(run, (0, longest - run.shape[-1]), value=pad) for run in runs])
