"""`summary`: the layers of a Bayesian network, their methods and parameters, and why the others were not converted."""

from __future__ import annotations

import dataclasses
import math

from torch import nn

from bayesify.core.layer import BayesianLayer
from bayesify.core.layer_report import LayerReport
from bayesify.core.model import Bayesian
from bayesify.formatting import listing

__all__ = ["LayerSummary", "Summary", "summary"]


@dataclasses.dataclass(frozen=True)
class LayerSummary:
    """One layer.

    Attributes:
        name, layer, method: its name, type and method.
        plain, parameters: the number of its parameters before and after conversion, including frozen ones.
        reason: why it was not converted.
        remark: the remark of its posterior.
        log_ensemble: natural log of the number of weights it can draw: 0 if it is not random, infinite for continuous noise.
        random: whether it is random; false for point estimates.
        draws_jointly: whether its choice among these weights is that of the other layers.
    """

    name: str
    layer: str
    method: str
    plain: int
    parameters: int
    reason: str
    remark: str = ""
    log_ensemble: float = 0.0
    random: bool = False
    draws_jointly: bool = False


@dataclasses.dataclass(frozen=True)
class Summary:
    """The result of `summary`; its text is a table.

    Attributes:
        layers: one entry per layer with parameters, in the network's order; for an ensemble, the layers of all members.
        kl: the KL of all random layers, in nats.
        networks: the number of ensemble members; 1 for a single network.
        findings: facts about the network that passes revealed, one sentence each.
        trained: the number of parameters that are not frozen.
    """

    layers: tuple[LayerSummary, ...]
    kl: float
    networks: int = 1
    findings: tuple[str, ...] = ()
    trained: int = 0

    @property
    def plain(self) -> int:
        """Number of parameters of one plain network."""
        return sum(layer.plain for layer in self.layers) // self.networks

    @property
    def parameters(self) -> int:
        """Number of parameters of the Bayesian network."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def log_ensemble(self) -> float:
        """Natural log of the effective ensemble size: the number of different networks that can be drawn.

        It is the product over the layers of one network, times the number of networks. Layers that draw jointly (`BatchEnsemble`)
        count once.

        Source: Chang et al., *Ensemble model patching* (2019), section 3.4 and table 3.
        """
        separate = sum(layer.log_ensemble for layer in self.layers if not layer.draws_jointly) / self.networks
        together = max((layer.log_ensemble for layer in self.layers if layer.draws_jointly), default=0.0)
        return separate + together + math.log(self.networks)

    def __str__(self) -> str:
        header = ("layer", "type", "method", "parameters", "overhead")
        rows = [
            (row.name or "(net)", row.layer, row.method or "-", f"{row.parameters:,}", _overhead(row.plain, row.parameters))
            for row in self.layers
        ]
        total = ("total", "", "", f"{self.parameters:,}", _overhead(self.plain, self.parameters))
        sizes = (self.log_ensemble, *(row.log_ensemble for row in self.layers))
        if any(0 < size < math.inf for size in sizes):
            header = (*header, "ensemble")
            rows = [(*cells, _size(row.log_ensemble)) for cells, row in zip(rows, self.layers, strict=True)]
            total = (*total, _size(self.log_ensemble))
        widths = [max(len(row[i]) for row in (header, *rows, total)) for i in range(len(header))]
        lines = [_line(row, widths) for row in (header, *rows, total)]
        rule = "-" * max(map(len, lines))
        random = f"{sum(row.random for row in self.layers)} of {len(rows)} layers are random; KL {self.kl:,.1f} nats"
        if self.trained < self.parameters:
            random += f"; {self.trained:,} of {self.parameters:,} parameters are trained"
        text = [lines[0], rule, *lines[1:-1], rule, lines[-1], random]
        notes = {
            "findings": [f"  {finding}" for finding in self.findings],
            "remarks": self._by_text("remark"),
            "not converted": self._by_text("reason"),
        }
        return "\n".join([*text, *(line for title, lines in notes.items() if lines for line in (f"{title}:", *lines))])

    def _by_text(self, attribute: str) -> list[str]:
        """The remarks or reasons, each with the first of its layers."""
        layers = dict[str, list[str]]()
        for row in self.layers:
            layers.setdefault(getattr(row, attribute), []).append(f"{row.name or '(net)'} ({row.layer})")
        return [f"  {listing(names, most=3)}: {text}" for text, names in layers.items() if text]


def summary(bnn: Bayesian) -> Summary:
    """Report the method, the parameters and their overhead for each layer, and why the other layers are not random.

    Args:
        bnn: the result of `bayesify`.

    Raises:
        TypeError: `bnn` is not what `bayesify` returned.

    Example:
        >>> bnn = bayesify(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)), {"0": MeanField(prior_std=0.5)})
        >>> print(summary(bnn))
        layer  type    method     parameters  overhead
        ----------------------------------------------
        0      Linear  MeanField          64   +100.0%
        2      Linear  -                   9     +0.0%
        ----------------------------------------------
        total                             73    +78.0%
        1 of 2 layers are random; KL ... nats
        not converted:
          2 (Linear): its name matches no pattern
    """
    if not isinstance(bnn, Bayesian):
        raise TypeError(f"bnn must be what bayesify returned, got {type(bnn).__name__}")
    modules = dict(bnn.net.named_modules())
    seen: set[int] = set()
    layers = [_layer(report, modules.get(report.name), seen) for report in bnn.report]
    reported = {report.name for report in bnn.report}
    for name, module in modules.items():  # added later
        if name not in reported and name.rpartition(".posterior")[0] not in reported and module._parameters:
            layers.append(LayerSummary(name, type(module).__name__, "", 0, _count(module, seen), "it was added after bayesify"))
    for name, module in bnn.named_children():  # such as a second network
        if module is not bnn.net and (parameters := sum(_count(part, seen) for part in module.modules())):
            layers.append(LayerSummary(name, type(module).__name__, "", 0, parameters, ""))
    kl = bnn.kl().detach()
    findings = [finding for root in (bnn, *bnn.members) for finding in root.findings]
    return Summary(
        layers=tuple(layers),
        kl=math.nan if kl.is_meta else float(kl),
        networks=max(1, len(bnn.members)),
        findings=tuple(dict.fromkeys(findings)),
        trained=sum(p.numel() for p in bnn.parameters() if p.requires_grad and not isinstance(p, nn.UninitializedParameter)),
    )


def _layer(report: LayerReport, module: nn.Module | None, seen: set[int]) -> LayerSummary:
    """One layer, which may have been removed or replaced after conversion."""
    method = "" if report.method is None else type(report.method).__name__
    if module is None:
        return LayerSummary(report.name, report.layer, "", 0, 0, "it is no longer in the network")
    parameters = _count(module, seen)
    if not isinstance(module, BayesianLayer):
        is_whole = report.method is not None and report.method.is_whole
        if report.method is not None and not is_whole:
            return LayerSummary(report.name, type(module).__name__, "", parameters, parameters, "it was added after bayesify")
        return LayerSummary(report.name, report.layer, method, parameters, parameters, report.reason, random=is_whole)
    plain = math.prod(module.weight_shape) + (math.prod(module.bias_shape) if module.bias_shape is not None else 0)
    size, remark = module.posterior.log_ensemble_size(module), module.posterior.remark()
    if module.is_used is False:
        remark = "; ".join(filter(None, (remark, "the network does not use it")))
    random = module.posterior.is_random and module.is_used is not False
    jointly = module.posterior.draws_jointly
    return LayerSummary(report.name, report.layer, method, plain, parameters, report.reason, remark, size, random, jointly)


def _count(module: nn.Module, seen: set[int]) -> int:
    """Number of parameters of one layer and its posterior; tied parameters count once."""
    parameters = module.parameters(recurse=isinstance(module, BayesianLayer))
    new = [p for p in parameters if id(p) not in seen and not isinstance(p, nn.UninitializedParameter)]
    seen.update(map(id, new))
    return sum(p.numel() for p in new)


def _overhead(plain: int, parameters: int) -> str:
    return f"{parameters / plain - 1:+.1%}" if plain else "-"


def _size(log_size: float) -> str:
    """Format a count that is given by its natural log."""
    if log_size == math.inf:
        return "infinite"
    return f"{math.exp(log_size):,.0f}" if log_size < math.log(1e6) else f"10^{log_size / math.log(10):,.0f}"


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    cells = [cell.rjust(width) if i >= 3 else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))]
    return "  ".join(cells).rstrip()
