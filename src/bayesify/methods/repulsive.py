r"""Repulsive ensembles: networks that are trained together, and that a kernel keeps apart.

The members are particles of a Wasserstein gradient flow to the posterior, with a kernel density estimate for their distribution.
Member i of M ascends

$$\phi_i = \nabla_{w_i}\log p(w_i \mid \mathcal D) - \frac{\sum_j \nabla_{u_i} k(u_i, u_j)}{\sum_j k(u_i, u_j)}, \qquad
  k(u, u') = \exp\Bigl(-\frac{\lVert u - u'\rVert^2}{2\ell^2}\Bigr)$$

with $\log p(w \mid \mathcal D) = \sum_n \log p(y_n \mid x_n, w) - \lVert w \rVert^2 / 2s^2$ up to a constant. The particles u are

- `space="weight"`: the weights, $u_i = w_i$;
- `space="function"`: the outputs for the batch, $u_i = f(x_{1..B}; w_i)$, through whose Jacobian the second term acts on $w_i$.

The median heuristic sets $\ell^2 = \mathrm{median}_{i<j}\lVert u_i - u_j\rVert^2 / (2\log(M + 1))$ in every step.

$\phi_i / M$ is the gradient of an ELBO with respect to $w_i$, in which the KL of the members' distribution from the prior is
estimated by

$$\mathrm{KL} = \frac1M\sum_i\Bigl(\frac{\lVert w_i\rVert^2}{2s^2} + \log\frac1M\sum_j k(u_i, u_j)\Bigr)$$

up to normalizing constants, with gradients through the first argument of k alone. A single member is the MAP estimate.

Source: D'Angelo & Fortuin, *Repulsive deep ensembles are Bayesian* (2021, arXiv 2106.11642), sections 3 and 4, with the kernel
density estimate. In function space they use the prior over functions, whose score they estimate. Here the prior is always that of
the weights, and only the repulsion acts on functions. The two agree if the outputs are an invertible linear function of the
weights; otherwise they differ by the gradient of the log determinant of the Jacobian. Their published code takes the median over
all pairs, including those of a member with itself, which makes the bandwidth smaller.

The repulsion of weights, about 2 log(M + 1) / distance, does not grow with the number of weights, so it is weak in large networks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from bayesify.core.checks import check_choice, check_integer, check_scale
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.method import Method
from bayesify.core.model import Bayesian
from bayesify.core.modes import without_autocast
from bayesify.core.outputs import Draws
from bayesify.errors import ConfigurationError
from bayesify.functional import at_least_float32, log_kernel_density, median_bandwidth
from bayesify.methods._ensemble_root import Ensemble, PlainMember, nets_of_members
from bayesify.methods._stacked_members import StackedMembers

__all__ = ["RepulsiveEnsemble"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepulsiveEnsemble(Method):
    r"""Several plain networks, trained together and kept apart by a kernel on their weights or outputs.

    `bayesify` takes the members, or one freshly initialized network, as for `DeepEnsemble`. `fit` trains them as one model, on the
    same batches; a training loop of your own does the same with `-elbo(...)` in training mode (in eval mode nothing repels them).
    A member gets 1/M of the gradient that it would get alone, to which Adam is invariant. Training passes call all members at once
    where `torch.func.vmap` can, otherwise one after the other.

    Args:
        members: M, the number of networks.
        space: "weight" or "function", in which members repel each other.
        prior_std: s, standard deviation of the normal prior on all trained parameters.
        bandwidth: $\ell$ of the kernel; None for the median heuristic.

    Example:
        >>> bnn = bayesify(torch.nn.Linear(4, 3), RepulsiveEnsemble(members=5))
        >>> bnn(torch.zeros(2, 4), samples=10).outputs.shape
        torch.Size([10, 2, 3])
    """

    family: ClassVar[str] = "Ensembles"
    paper: ClassVar[str] = "D'Angelo & Fortuin 2021, arXiv 2106.11642"
    advice: ClassVar[str] = "An ensemble whose members are also pushed apart where there are no data; stop training early."
    cost: ClassVar[str] = "5.2, 5.3 for five members; M passes"

    is_whole: ClassVar[bool] = True

    members: int = 5
    space: Literal["weight", "function"] = "function"
    prior_std: float = 1.0
    bandwidth: float | None = None

    def __post_init__(self) -> None:
        check_integer("members", self.members)
        check_choice("space", self.space, ("weight", "function"))
        check_scale("prior_std", self.prior_std)
        if self.bandwidth is not None:
            check_scale("bandwidth", self.bandwidth)

    def whole(self, nets: Sequence[nn.Module], convert: Callable[[nn.Module, Method], nn.Module]) -> RepulsiveRoot:
        return RepulsiveRoot([PlainMember(net) for net in nets_of_members(nets, self.members, type(self).__name__)], self)

    def build(self, layer: BayesianLayer) -> Posterior | None:
        raise ConfigurationError(
            "RepulsiveEnsemble takes the whole network, without name patterns: bayesify(net, RepulsiveEnsemble())"
        )


class RepulsiveRoot(Ensemble):
    """Root of a repulsive ensemble: draws as of a deep ensemble; the repulsion is in the KL."""

    def __init__(self, members: Sequence[PlainMember], method: RepulsiveEnsemble) -> None:
        super().__init__(members, method)
        self.method, self._stacked = method, StackedMembers()

    @property
    def separate_members(self) -> tuple[Bayesian, ...]:
        return ()

    def forward(self, *inputs: Any, samples: int = 1, coherent: bool = False, **kwargs: Any) -> Draws:
        together = self._together(inputs, kwargs, samples) if self.training and torch.is_grad_enabled() else None
        if together is None:
            draws, weights = super().forward(*inputs, samples=samples, coherent=coherent, **kwargs), None
        else:
            draws, weights = together
        if not self.members[0].pays_kl:
            return draws
        kl = self._kl(self._weights() if weights is None else weights)
        if self.method.space == "function" and self.training:
            if not isinstance(draws.outputs, Tensor):
                raise ConfigurationError(
                    f'RepulsiveEnsemble(space="function") needs an output that is one tensor, got {type(draws.outputs).__name__}; '
                    'select a part with bayesify(..., output="logits"), or use space="weight"'
                )
            first = draws.outputs[:: draws.outputs.shape[0] // len(self.members)]  # a member's draws are equal
            kl = kl + self._log_density(first.flatten(1))
        return draws._replace(kl=kl)

    def kl(self) -> Tensor:
        """Mean over members of the prior's negative log density and, in weight space in training mode, of their log density."""
        return self._kl(self._weights())

    def _together(self, inputs: tuple[Any, ...], kwargs: dict[str, Any], samples: int) -> tuple[Draws, Tensor] | None:
        """Draws, without KL, and weights (M, D) by one call of all members; None where that is impossible."""
        check_integer("samples", samples)
        call = self.inputs_of(inputs, kwargs)
        members = [member for member in self.net if isinstance(member, PlainMember)]
        args, kwargs = call.map(torch.clone)  # the network may change them in place
        together = self._stacked.call(members, args, kwargs) if len(members) == len(self.net) else None
        if together is None:
            return None
        outputs, parameters = together
        count = -(-samples // len(members))  # draws per member

        def drawn(y: Tensor) -> Tensor:
            return y.movedim(self.batch_dim + 1, 1).repeat_interleave(count, 0)

        weights = torch.cat([_real(p).flatten(1) for p in parameters.values()] or [self._weights()], 1)
        kl = torch.zeros((), device=weights.device)
        outputs = tree_map(drawn, outputs)
        return Draws(outputs, kl, kl.new_zeros(call.examples(outputs, 1)), local_beta=self.local_beta), weights

    def _weights(self) -> Tensor:
        """All trained parameters (M, D), at least float32."""
        return torch.stack([_weights(member) for member in self.members])

    def _kl(self, weights: Tensor) -> Tensor:
        prior = weights.square().sum(1).mean() / (2 * self.method.prior_std**2)
        return prior + self._log_density(weights) if self.method.space == "weight" and self.training else prior

    def _log_density(self, particles: Tensor) -> Tensor:
        """Mean log density of particles (M, D)."""
        particles = at_least_float32(particles)
        with without_autocast(particles.device):
            bandwidth = self.method.bandwidth
            return log_kernel_density(particles, median_bandwidth(particles) if bandwidth is None else bandwidth).mean()


def _weights(member: nn.Module) -> Tensor:
    """All trained parameters (D,), at least float32."""
    trained = [_real(p).flatten() for p in member.parameters() if p.requires_grad]
    if not trained:
        raise ConfigurationError("RepulsiveEnsemble needs a network with trainable parameters; all are frozen")
    return torch.cat(trained)


def _real(parameter: Tensor) -> Tensor:
    """Real numbers of at least float32: of complex ones their parts."""
    parameter = at_least_float32(parameter)
    return torch.view_as_real(parameter) if parameter.is_complex() else parameter
