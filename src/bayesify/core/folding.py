"""Whether draws may share a pass, folded into its batch. Each network is examined once per kind of inputs, on a few rows.

Folding is correct if every output row depends on the same row of the inputs only, in the first dimension. Graph networks, networks
that move the batch dimension or mix rows, and routing by value violate this. `Examination` compares a folded pass of two draws with
a pass per draw. It also finds the random layers that the network calls, and those whose weights it reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesify.core.candidates import Candidate, candidates
from bayesify.core.examination import Examination
from bayesify.core.fidelity import unlike_plain
from bayesify.core.generators import check_not_seeded
from bayesify.core.inputs import Inputs
from bayesify.core.layer import BayesianLayer
from bayesify.core.modes import eval_mode
from bayesify.core.output_layer import LaterLayers
from bayesify.core.passes import Passes
from bayesify.core.posterior_uses import PosteriorUses
from bayesify.core.watch import keep_results
from bayesify.errors import PassError
from bayesify.formatting import listing

__all__ = ["Verdict", "as_plain_data", "examine", "obstacle_in_training", "pools_batches", "verdict_of"]

_OTHER_NOISE = "the network draws noise that is not PyTorch's (of Python's random or NumPy), with which passes cannot be compared"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """How draws may share passes in eval mode, for one kind of inputs.

    Attributes:
        independent_rows: every output row depends on its input row only: draws may be folded, and layers may draw noise per row.
        reason: why not.
        without_rows: positions of inputs without rows whose size happens to be that of the batch.
        layers_without_rows: positions of layers whose inputs do not depend on the batch, such as embeddings of positions.
        unused_layers: positions of layers that the network did not call.
        draws_weights: whether layers must draw weights instead of noise per row, because the network differentiates them.
        draws_noise: whether the network draws noise of its own.
        is_noisy: whether outputs depend on such noise in eval mode.
        finding: what is wrong in every pass; see `unlike_plain`.
        rows: how many rows of a batch were compared, if they are independent.
        decisions: truth values that the network took of its inputs, in the passes that were compared.
    """

    independent_rows: bool
    reason: str = ""
    without_rows: tuple[int, ...] = ()
    layers_without_rows: tuple[int, ...] = ()
    unused_layers: tuple[int, ...] = ()
    draws_weights: bool = False
    draws_noise: bool = False
    is_noisy: bool = False
    finding: str = ""
    rows: int = 0
    decisions: frozenset[tuple[bool, ...]] = frozenset()


def as_plain_data(verdict: Verdict) -> dict[str, Any]:
    """A verdict as dicts, lists, numbers and strings, from which `verdict_of` makes it."""
    return {**dataclasses.asdict(verdict), "decisions": sorted(map(list, verdict.decisions))}


def verdict_of(data: dict[str, Any]) -> Verdict:
    """The inverse of `as_plain_data`."""
    lists = {name: tuple(value) for name, value in data.items() if isinstance(value, list | tuple)}
    return Verdict(**{**data, **lists, "decisions": frozenset(map(tuple, data["decisions"]))})


def examine(
    net: nn.Module, layers: Collection[BayesianLayer], passes: Passes, inputs: Inputs, whole: bool = False
) -> Verdict | Exception:
    """Set what random layers know of their use (`is_used`), and find out whether the rows of a batch are independent.

    Args:
        net: the converted network.
        layers: its random layers.
        passes: their passes.
        inputs: the inputs of the next pass.
        whole: whether to compare all rows instead of a few.

    Returns:
        The verdict, or the error with which the network fails.
    """
    examination = Examination(net, layers, passes, whole)
    with examination.with_draws():
        finding, is_noisy = "", False
        with eval_mode(net):
            with PosteriorUses(net, layers, passes) as uses, LaterLayers(net, layers) as later:
                accepted = next((rows for rows in candidates(inputs, whole) if examination.runs(inputs, rows)), None)
            if accepted is not None:
                finding = (
                    _remembers(net, examination, inputs, accepted)
                    or unlike_plain(net, examination, inputs, accepted)
                    or uses.finding()
                    or later.finding()
                )
                is_noisy = examination.is_noisy(inputs, accepted)
        if any(not layer.posterior.is_plain for layer in examination.read):
            raise PassError(
                "the network computes with the weight of a layer that is a Gaussian process, and has none; use a method for "
                "weights, such as MeanField(), or leave the layer out by patterns"
            )
        if accepted is None:
            assert examination.failure is not None
            return examination.failure
        if len(examination.used) < len(layers) and any(module.training for module in net.modules()):
            examination.runs(inputs, accepted)  # some layers may be used in training mode only
        for layer in layers:
            layer.is_read |= layer in examination.read  # other passes than these may have shown it
            layer.is_repeated |= layer in examination.repeated
            layer.is_used = layer.is_read or layer in examination.used
        verdict = _verdict(net, examination, inputs)
        return dataclasses.replace(
            verdict,
            finding=finding,
            draws_weights=examination.differentiates,
            draws_noise=examination.draws_noise,
            is_noisy=is_noisy,
        )


def _verdict(net: nn.Module, examination: Examination, inputs: Inputs) -> Verdict:
    """The verdict on a network that accepts the inputs."""
    if any(layer.is_read for layer in examination.layers):
        return Verdict(False, "the network reads the weights of its layers")
    if examination.by_value:
        names = ", ".join(sorted(examination.by_value))
        return Verdict(False, f"the network's control flow or shapes depend on random values ({names})")
    if examination.numbers:
        names = ", ".join(sorted(examination.numbers))
        return Verdict(
            False,
            f"the network takes numbers from the values of its batch ({names}), by which it may decide what it computes (use "
            "fold=True if its rows are independent nevertheless)",
        )
    if inputs.indivisible:
        return Verdict(False, inputs.indivisible)
    if inputs.batch_dim != 0:
        return Verdict(False, f"the batch is dimension {inputs.batch_dim}")
    with eval_mode(net):
        agreeing = examination.agreeing(inputs)
        reason = "" if agreeing else _reason(net, examination, inputs)
    if agreeing is None:
        return Verdict(False, reason)
    missing = [i for i, (has, takes) in enumerate(zip(inputs.has_rows, agreeing.rows, strict=True)) if has and not takes]
    positions = [i for i, layer in enumerate(examination.layers) if layer in examination.without_rows]
    unused = [i for i, layer in enumerate(examination.layers) if layer not in examination.called]
    return Verdict(
        True,
        without_rows=tuple(missing),
        layers_without_rows=tuple(positions),
        unused_layers=tuple(unused),
        rows=agreeing.count,
        decisions=frozenset([examination.decisions]),
    )


def obstacle_in_training(
    net: nn.Module, layers: Collection[BayesianLayer], passes: Passes, inputs: Inputs, verdict: Verdict
) -> str:
    """Why draws that may be folded in eval mode may not be folded in the current mode; empty if they may."""
    examination = Examination(net, layers, passes)
    examination.without_rows = {layer for i, layer in enumerate(layers) if i in verdict.layers_without_rows}
    with examination.with_draws():
        if examination.agreeing(inputs) is not None:
            return ""
    if examination.draws_elsewhere:
        return _OTHER_NOISE
    if pools_batches(net):
        return "the rows of a batch affect each other there (batch normalization)"
    if examination.read:
        return "the network reads the weights of its layers there"
    return "the rows of a batch affect each other there"


def _reason(net: nn.Module, examination: Examination, inputs: Inputs) -> str:
    """Why draws do not fold."""
    if examination.draws_elsewhere:
        return _OTHER_NOISE
    if examination.orders_rows:
        return "the network sorts the rows of its batch"
    names = {module: name for name, module in net.named_modules()}
    if examination.mixed:
        layers = listing(repr(names[layer]) for layer in examination.mixed)
        return f"the network calls {layers} on its batch and also on inputs without rows, such as an identity matrix"
    alone = [layer for layer in examination.layers if layer in examination.without_rows and layer.posterior.is_random]
    if alone and examination.agrees_with_one_draw_of(alone, inputs):
        layers = listing(repr(names[layer]) for layer in alone)
        return (
            f"the network calls {layers} on inputs without rows, such as positions, and expects one result for all rows (with "
            "Deterministic() for these layers, draws share a pass)"
        )
    reason = "the rows of a batch affect each other in the network"
    time_first = [name for module, name in names.items() if getattr(module, "batch_first", True) is False]
    if time_first:
        reason += (
            f" (rows are time steps to {listing(map(repr, time_first), most=3)}, without batch_first=True: if the batch is "
            "dimension 1, use bayesify(net, method, batch_dim=1))"
        )
    return reason


def _remembers(net: nn.Module, examination: Examination, inputs: Inputs, candidate: Candidate) -> str:
    """What shows that the network may keep results of random layers for its next passes, or an empty string.

    Raises:
        PassError: it does, or it draws the same noise in every pass.
    """
    kept = keep_results(net)
    second = examination.again(inputs, candidate)
    if any(layer.posterior.is_random for layer in examination.layers):
        check_not_seeded(examination.generators, second.generators)
    if kept and second.reuses:
        raise PassError(
            f"the network keeps results of random layers for its next passes, in {listing(map(repr, kept))}, so draws would mix; "
            "switch this cache off, or reset it in forward"
        )
    if not second.missing:
        return ""
    names = {module: name for name, module in net.named_modules()}
    missing = listing((repr(names[layer]) for layer in second.missing), most=3)
    return (
        f"the network does not use {missing} in a second pass with the same inputs. If it keeps their results, draws mix: switch "
        "this cache off, or reset it in forward"
    )


def pools_batches(net: nn.Module) -> bool:
    """Whether batch normalization would compute statistics over all draws of a folded pass."""
    return any(
        isinstance(module, _BatchNorm)
        and (module.training or module.running_mean is None)
        and not (isinstance(module, BayesianLayer) and module.posterior.is_random)
        for module in net.modules()
    )
