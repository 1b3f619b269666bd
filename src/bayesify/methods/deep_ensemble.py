r"""Deep ensembles: several networks, trained separately from different initial weights, whose predictions are averaged.

$$p(y \mid x) = \frac1M\sum_m p_m(y \mid x)$$

Members are plain networks or made random by a base method (VIFO is meant to be used in ensembles). Each has its own initial
weights and its own order of the training data.

Source: Lakshminarayanan, Pritzel & Blundell, *Simple and scalable predictive uncertainty estimation using deep ensembles* (2017),
without adversarial training; *Variational inference on the final-layer output of neural networks*, section 6.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar, cast

from torch import nn

from bayesify.core.checks import check_integer
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.method import Method
from bayesify.core.model import Bayesian
from bayesify.errors import ConfigurationError
from bayesify.methods._ensemble_root import Ensemble, PlainMember, nets_of_members

__all__ = ["DeepEnsemble"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepEnsemble(Method):
    """Several networks, initialized and trained independently.

    `fit` trains small members together (`fit_many`) and averages learned parameters of the likelihood over the members.
    Give `bayesify` the members, `bayesify([make() for _ in range(5)], DeepEnsemble())`, or one freshly initialized network: it
    becomes the first member, and `reset_parameters` of its layers initializes the others.

    Args:
        members: number of members.
        base: method of every member; None for plain networks.

    Example:
        >>> bnn = bayesify(torch.nn.Linear(4, 3), DeepEnsemble(members=5))
        >>> bnn(torch.zeros(2, 4), samples=10).outputs.shape
        torch.Size([10, 2, 3])
    """

    family: ClassVar[str] = "Ensembles"
    paper: ClassVar[str] = "Lakshminarayanan, Pritzel & Blundell 2017, arXiv 1612.01474"
    advice: ClassVar[str] = "The default of the estimators: the most reliable where several networks are affordable."
    cost: ClassVar[str] = "M times the base method; M passes"

    is_whole: ClassVar[bool] = True

    members: int = 5
    base: Method | None = None

    def __post_init__(self) -> None:
        check_integer("members", self.members)
        if self.base is not None and not isinstance(self.base, Method):
            raise TypeError(f"base must be a Method such as VIFO() or None for plain networks, got {self.base!r}")
        if self.base is not None and self.base.is_whole:
            raise ConfigurationError(f"base must not be a {type(self.base).__name__}; give the total number of members once")

    @property
    def collects_from(self) -> float | None:
        return None if self.base is None else self.base.collects_from

    def whole(self, nets: Sequence[nn.Module], convert: Callable[[nn.Module, Method], nn.Module]) -> Ensemble:
        nets = nets_of_members(nets, self.members, type(self).__name__)
        members = [PlainMember(net) if self.base is None else cast(Bayesian, convert(net, self.base)) for net in nets]
        return Ensemble(members, self)

    def build(self, layer: BayesianLayer) -> Posterior | None:
        raise ConfigurationError(
            "DeepEnsemble takes the whole network, without name patterns: bayesify(net, DeepEnsemble(base=...))"
        )
