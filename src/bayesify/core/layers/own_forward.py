"""Linear layers and convolutions with a `forward` of their own: a standardized or masked weight, padding of another kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesify.core.inputs import NETWORK_ERRORS
from bayesify.core.layer import BayesianLayer
from bayesify.core.layers import convolution, linear
from bayesify.core.layers.trials import LARGE, LARGEST, are_close, depends_on_mode, have_values, watched, with_parameters

__all__ = ["CONTRACTING", "OwnForward", "kind_with_own_forward"]

CONTRACTING = {kind.original: kind for kind in (*linear.LAYERS, *convolution.LAYERS)}
_STATE = ("_save_to_state_dict", "_load_from_state_dict")


class OwnForward(BayesianLayer):
    """Mixin of a layer that runs the `forward` of its plain class with the weight and bias of every draw.

    Nothing is known of this function, so the layer always draws weights, one per draw for the whole batch: noise of inputs or
    outputs need not be noise of its weight.
    """

    given: dict[str, Tensor | None] | None  # the weight and bias with which `forward` of the plain class is running

    @property
    def draws_weights(self) -> bool:
        return self.posterior.is_random

    def prepared_op(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.op(x, weight, bias)

    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        self.given = {"weight": weight, "bias": bias}
        try:
            return self.original.forward(self, x)
        finally:
            self.given = None

    def apply_weights(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return BayesianLayer.apply_weights(self, x, weight, bias)

    def _value(self, name: str) -> Any:
        return super()._value(name) if self.given is None else self.given[name]


def kind_with_own_forward(layer: nn.Module) -> type[BayesianLayer] | None:
    """The linear layer or convolution whose weight a layer has, if its `forward` computes with every weight that it is given.

    Verified at random weights and inputs. None if it does not, or has further weights, of which there would be no posterior.
    """
    base = next((cls for cls in type(layer).__mro__ if cls in CONTRACTING), None)
    own = {name: p for name, p in layer._parameters.items() if p is not None}
    if base is None or "weight" not in own or any(isinstance(p, nn.UninitializedParameter) for p in own.values()):
        return None
    if any(p.numel() > len(own["weight"]) for name, p in own.items() if name not in ("weight", "bias")):
        return None  # more than a factor of every output, as in adapters
    keeps_state = any(True for child in layer.children() for _ in child.state_dict())
    saves_itself = any(getattr(type(layer), name) is not getattr(nn.Module, name) for name in _STATE)
    if keeps_state or saves_itself or any(buffer.is_meta for buffer in layer.buffers()):
        return None
    size = sum(p.numel() for p in own.values())
    if size > LARGEST:
        return None
    generator, dtype = torch.Generator().manual_seed(0), torch.float64 if size < LARGE else torch.float32

    def drawn(*names: str) -> dict[str, Tensor]:
        shapes = {name: own[name].shape for name in names if name in own}
        return {name: torch.rand(shape, generator=generator, dtype=dtype, device="cpu").sub_(0.4) for name, shape in shapes.items()}

    kind, stored, draws = CONTRACTING[base], drawn(*own), [drawn("weight", "bias") for _ in range(2)]
    for value in draws[1].values():
        value.mul_(100)  # a bound on weights is of consequence
    for shape in _shapes_of_inputs(layer):
        x = torch.randn(shape, generator=generator, dtype=dtype, device="cpu")
        read = set[str]()
        if _takes_weights(layer, kind, stored, draws, x, False, read) and (
            not depends_on_mode(layer, read) or _takes_weights(layer, kind, stored, draws[:1], x, True, read)
        ):
            return kind
    return None


@torch.no_grad()
def _takes_weights(
    layer: nn.Module,
    kind: type[BayesianLayer],
    stored: Mapping[str, Tensor],
    draws: Sequence[Mapping[str, Tensor]],
    x: Tensor,
    training: bool,
    read: set[str],
) -> bool:
    """Whether a layer that is given weights one after another computes what plain layers with these do, and remembers nothing.

    Several weights show one that it remembers, or does not use. The attributes that it reads are added to `read`.
    """
    probe: Any = with_parameters(layer, stored, training)
    trial = type("Trial", (OwnForward, kind, type(layer)), {"original": type(layer)})
    probe.given = None
    before, buffers = dict(vars(probe)), {name: b.clone() for name, b in probe._buffers.items() if b is not None}
    probe.__class__ = watched(trial, read)
    state, results = torch.get_rng_state(), list[Tensor]()
    try:
        for draw in draws:
            given = {name: value.clone() for name, value in draw.items()}
            expected = type(layer).forward(with_parameters(layer, {**stored, **given}, training), x.clone())
            torch.set_rng_state(state)  # of a layer with dropout
            results.append(probe.apply_weight(x.clone(), given["weight"], given.get("bias")))
            torch.set_rng_state(state)
            if not are_close(results[-1], expected) or not have_values(given, draw):
                return False
    except NETWORK_ERRORS:
        return False
    finally:
        torch.set_rng_state(state)
    probe.__class__ = trial
    after = vars(probe)
    remembers = after.keys() != before.keys() or any(after[name] is not value for name, value in before.items())
    constant = len(results) > 1 and are_close(results[0], results[1])
    return not remembers and not constant and have_values(probe._buffers, buffers)


def _shapes_of_inputs(layer: Any) -> Iterator[tuple[int, ...]]:
    """Shapes of two inputs that a linear layer or convolution may take."""
    if isinstance(layer, nn.Linear):
        yield 2, layer.in_features
        yield 2, 3, layer.in_features
    else:
        extents = (dilation * (kernel - 1) + 3 for kernel, dilation in zip(layer.kernel_size, layer.dilation, strict=True))
        yield 2, layer.in_channels, *extents
