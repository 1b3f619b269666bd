r"""The posterior density of a network's weights as a function of one vector, for methods that run after training.

$$U(\theta) = -\lambda \sum_i w_i \log p(y_i \mid x_i, \theta) + \tfrac12 \sum_j (\theta_j / s)^2$$

in nats, up to a constant: the likelihood and the normal prior with standard deviation s of training, weights w of the examples and
their `scale` λ.

Shapes: P weights, B batch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.utils._pytree import tree_map

from bayesify.core.call_arguments import arguments_of
from bayesify.core.copies import copied_module
from bayesify.core.differentiation import lacks_gradients
from bayesify.core.inputs import NETWORK_ERRORS
from bayesify.core.restoration import restore_layers
from bayesify.errors import BayesifyError, ConfigurationError, DataError
from bayesify.formatting import first_line, listing
from bayesify.likelihoods import Likelihood

if TYPE_CHECKING:
    from bayesify.core.model import Bayesian

__all__ = ["WeightDensity", "check_density", "endless"]


class WeightDensity:
    """The negative log posterior of chosen layers' weights; the rest of the network is fixed, in eval mode.

    Args:
        bnn: a Bayesian network, which does not change.
        names: of the layers, within `bnn.net`.
        likelihood: of the targets.
        scale: λ.
        prior_std: s.
        dtype: of weights and inputs; None for that of the network.
        keeps_frozen: whether the weight or the bias of a layer is fixed, and not in the vector, where it alone is frozen.

    Attributes:
        net: a copy of the network with plain layers of the same names.
        parameters: names of its weights and biases, in the order of the vector.
        start: the trained weights, (P,).
        frozen: the weights and biases that are fixed, by name.

    Raises:
        ConfigurationError: a likelihood that trains with a penalty, which belongs to no density, or a layer without own weight.
    """

    def __init__(
        self,
        bnn: Bayesian,
        names: Sequence[str],
        likelihood: Likelihood,
        scale: float,
        prior_std: float,
        dtype: torch.dtype | None = None,
        keeps_frozen: bool = False,
    ) -> None:
        check_density(likelihood)
        self.scale, self.prior_std, self.batch_dim, self.select = scale, prior_std, bnn.batch_dim, bnn.passes.select
        with torch.no_grad():  # copies of TorchScript modules would have a graph
            self.net = copied_module(bnn.net)
        restore_layers(self.net, lambda layer: layer.posterior.mean(layer))
        self.is_converted = dtype is not None and any(p.is_floating_point() and p.dtype != dtype for p in self.net.parameters())
        if dtype is not None:
            for x in (*self.net.parameters(), *self.net.buffers()):
                x.data = _in_precision(x.data, dtype)
        self.net.requires_grad_(False).eval()
        self.likelihood = copy.deepcopy(likelihood).requires_grad_(False)
        values = dict(self.net.named_parameters())
        if missing := [name for name in names if f"{name}.weight".lstrip(".") not in values]:
            raise ConfigurationError(
                f"there is no density of the weights of {listing(map(repr, missing), most=3)}: a plain copy of the network lacks "
                "them, or other layers share them; leave these layers out by patterns"
            )
        layers = [f"{name}.{part}".lstrip(".") for name in names for part in ("weight", "bias")]
        self._all = [name for name in layers if name in values]
        kept = _frozen_parts(bnn, names) if keeps_frozen else set[str]()
        self.frozen = {name: values[name].detach() for name in self._all if name in kept}
        self.parameters = [name for name in self._all if name not in kept]
        self.shapes = [values[name].shape for name in self.parameters]
        self.start = torch.cat([values[name].detach().flatten() for name in self.parameters])

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """The weights of a vector (P,), by name."""
        parts = vector.split([shape.numel() for shape in self.shapes])
        return {name: part.view(shape) for name, part, shape in zip(self.parameters, parts, self.shapes, strict=True)}

    def completed(self, vectors: Tensor) -> Tensor:
        """Vectors (N, P) with the frozen weights and biases in their places, (N, weights and biases of all layers)."""
        parts = dict(zip(self.parameters, vectors.split([shape.numel() for shape in self.shapes], 1), strict=True))
        parts |= {name: value.flatten().to(vectors).expand(len(vectors), -1) for name, value in self.frozen.items()}
        return torch.cat([parts[name] for name in self._all], 1)

    def outputs(self, vector: Tensor, inputs: Any) -> Tensor:
        """The network's outputs (B, ...) with the weights of a vector (P,)."""
        args, kwargs = arguments_of(inputs)
        outputs = functional_call(self.net, self.named(vector), args, kwargs)
        if self.select is not None:
            outputs = self.select(outputs)
        if not isinstance(outputs, Tensor):
            raise DataError(f"the network must return one tensor, got {type(outputs).__name__}; select one: bayesify(..., output=)")
        return outputs.movedim(self.batch_dim, 0)

    @torch.no_grad()
    def trial(self, inputs: Any) -> Tensor:
        """The outputs with the trained weights.

        Raises:
            ConfigurationError: the network differentiates, or does not run in the precision in which the posterior is computed.
        """
        try:
            return self.outputs(self.start, inputs)
        except BayesifyError:
            raise
        except NETWORK_ERRORS as error:
            if lacks_gradients(error):
                raise ConfigurationError(
                    "the network differentiates in its forward pass, and this posterior is made of derivatives of that pass; use a "
                    "method that draws, such as MeanField()"
                ) from error
            if not self.is_converted:
                raise
            raise ConfigurationError(
                f"the posterior is computed in {self.start.dtype}, but the network fails in it ({first_line(error)}); where its "
                "forward converts tensors, let it use the dtype of a weight: x.to(self.linear.weight.dtype)"
            ) from error

    def log_likelihood(self, vector: Tensor, inputs: Any, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """The log likelihood of a batch, weighted, summed and times λ: nats, a scalar."""
        log_prob = self.likelihood.log_prob(self.outputs(vector, inputs).unsqueeze(0), y).squeeze(0)
        return self.scale * (log_prob if weights is None else log_prob * weights).sum()

    def prior_energy(self, vector: Tensor) -> Tensor:
        """The negative log prior up to a constant: nats, a scalar."""
        return 0.5 * (vector / self.prior_std).square().sum()

    def moved(self, batch: Any) -> tuple[Any, Tensor, Tensor | None]:
        """Inputs, targets and weights (or None) of a batch, floating point ones in the dtype of the weight vector.

        Raises:
            DataError: it is not `(inputs, y)` or `(inputs, y, weights)`.
        """
        if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
            raise DataError(f"a batch must be (inputs, y) or (inputs, y, weights), got {type(batch).__name__}")
        inputs, y, weights = tree_map(self._cast, (*batch, None)[:3])
        return inputs, y, weights

    def _cast(self, x: Any) -> Any:
        return _in_precision(x.to(self.start.device), self.start.dtype) if isinstance(x, Tensor) else x


def _frozen_parts(bnn: Bayesian, names: Sequence[str]) -> set[str]:
    """The names of frozen weights and biases whose layers have another parameter that is trained."""
    layers, frozen = dict(bnn.random_layers()), set[str]()
    for name in names:
        own = [(part, p) for part, p in layers[name].named_parameters(recurse=False) if part in ("weight", "bias")]
        if any(p.requires_grad for _, p in own):
            frozen |= {f"{name}.{part}".lstrip(".") for part, p in own if not p.requires_grad}
    return frozen


def _in_precision(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor in the precision of a floating point type: complex numbers stay complex, integers as they are."""
    if x.is_complex():
        return x.to(dtype.to_complex())
    return x.to(dtype) if x.is_floating_point() else x


def check_density(likelihood: Likelihood) -> None:
    """Raise a `ConfigurationError` if a likelihood trains with a penalty, which belongs to no density."""
    if type(likelihood).penalty is not Likelihood.penalty:
        raise ConfigurationError(
            f"{type(likelihood).__name__} trains with a penalty, which is no part of a posterior; use another likelihood"
        )


def endless(batches: Iterable[Any]) -> Iterator[Any]:
    """Batches without end, in the order of each iteration."""
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise DataError("batches must give at least one batch every time they are iterated")
