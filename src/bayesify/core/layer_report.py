"""`LayerReport`: what the conversion did to a layer."""

from __future__ import annotations

import dataclasses

from bayesify.core.method import Method

__all__ = ["LayerReport"]


@dataclasses.dataclass(frozen=True)
class LayerReport:
    """One layer after conversion: its name, type, method (None if it was not converted), and the reason.

    Example:
        >>> bnn = bayesify(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)), {"0": MCDropout()})
        >>> [(entry.name, entry.method is not None, entry.reason) for entry in bnn.report]
        [('0', True, ''), ('2', False, 'its name matches no pattern')]
    """

    name: str
    layer: str
    method: Method | None
    reason: str
