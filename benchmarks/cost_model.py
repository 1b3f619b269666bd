"""Predicted cost of a training step, from counts of operations, activations, weights and noise variables.

    python -m benchmarks.cost_model [--dry]

For networks that do not fit the machine at hand. The plain network performs its contractions at a measured or assumed rate. A
method adds

    contractions / rate + bytes moved / bandwidth + normal draws x seconds per draw

with the bytes counted below, as passes over the weights, inputs and outputs of its random layers. The model is compared with the
ratios in results/training_step.json, then applied to larger networks and another machine. It ignores the overhead per operation, so
small networks cost more than predicted. Writes results/cost_model.json.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.measure import parser, read, write
from benchmarks.nets import WORKLOADS, resnet50, transformer


@dataclass(frozen=True)
class Machine:
    """FLOP/s of contractions, memory bandwidth in bytes/s, seconds per normal draw, bytes per activation."""

    name: str
    rate: float
    bandwidth: float
    draw: float
    width: int = 4


@dataclass(frozen=True)
class Counts:
    """Counts of one training step of a network.

    Attributes:
        operations: FLOPs of forward and backward pass, over the batch.
        inputs, outputs: elements of the inputs and outputs of linear and convolutional layers, over the batch.
        channels: input channels of these layers, over the batch: the noise variables of input noise.
        weights: elements of their weights.
    """

    operations: float
    inputs: float
    outputs: float
    channels: float
    weights: float


@dataclass(frozen=True)
class Extra:
    """Additional cost of a method per step.

    Attributes:
        contractions: as a fraction of the plain network's.
        inputs, outputs, weights: passes over them; a pass reads or writes every element once.
        draws: number of normal draws.
    """

    contractions: float
    inputs: float
    outputs: float
    weights: float
    draws: Callable[[Counts], float]


# Passes, forward and backward. Adam takes 7 per additional parameter (value, gradient, two moments: reads and writes).
METHODS: dict[str, Extra] = {
    # x^2 (2) and its gradient (4); draws: root, noise, sum (6), gradients (4); spread and KL (4), gradients (6), Adam (7)
    "MeanField": Extra(1.0, 6, 10, 17, lambda n: n.outputs),
    # weights: spread and KL (4), noise (1), product and sum (5), gradients (10), Adam (7)
    "MeanField, shared noise": Extra(0.0, 0, 0, 27, lambda n: n.weights),
    # input times noise (2), gradients of both (5)
    "VariationalDropout": Extra(0.0, 7, 0, 0, lambda n: n.channels),
    "VSD, T = 2": Extra(0.0, 7, 0, 0, lambda n: n.channels),
    "VIFO": Extra(0.0, 0, 0, 0, lambda n: 0.0),
    # prior on all weights: square and sum (2), its gradient (3)
    "EMP": Extra(0.0, 0, 0, 5, lambda n: 0.0),
}


def count(net: nn.Module, shape: tuple[int, ...], batch: int) -> Counts:
    """Count in a forward pass on the meta device."""
    totals = dict.fromkeys(("operations", "inputs", "outputs", "channels", "weights"), 0.0)

    def count_layer(layer: nn.Module, args: tuple[Tensor, ...], y: Tensor) -> None:
        x = args[0]
        weight = layer.weight
        assert isinstance(weight, Tensor)
        products = y.numel() * weight[0].numel() / y.shape[0]
        totals["operations"] += 2 * 3 * batch * products
        totals["inputs"] += batch * x[0].numel()
        totals["outputs"] += batch * y[0].numel()
        totals["channels"] += batch * (x.shape[1] if isinstance(layer, nn.Conv2d) else x.shape[-1])
        totals["weights"] += weight.numel()

    net = net.to("meta")
    handles = [m.register_forward_hook(count_layer) for m in net.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    with torch.no_grad():
        net(torch.empty(1, *shape, device="meta"))
    for handle in handles:
        handle.remove()
    return Counts(**totals)


def added(counts: Counts, extra: Extra, machine: Machine) -> float:
    """Seconds that a method adds to a step of the plain network."""
    contractions = extra.contractions * counts.operations / machine.rate
    activations = machine.width * (extra.inputs * counts.inputs + extra.outputs * counts.outputs)
    moved = (activations + 4 * extra.weights * counts.weights) / machine.bandwidth
    return contractions + moved + extra.draws(counts) * machine.draw


def ratio(counts: Counts, extra: Extra, machine: Machine, plain: float) -> float:
    """Time of a method's step relative to the plain network's, which takes `plain` seconds."""
    return 1 + added(counts, extra, machine) / plain


def compared() -> dict[str, dict[str, tuple[float, float]]]:
    """Predicted and measured ratios, by network and method, on the machine of results/training_step.json."""
    measured = read("training_step")["nets"]
    limits = read("scaling")["ceilings"]
    results: dict[str, dict[str, tuple[float, float]]] = {}
    for name, rows in measured.items():
        workload = WORKLOADS[name]
        if workload.batch < 64 and len(workload.shape) == 1:
            continue  # overhead per operation dominates
        counts, plain = count(workload.net(), workload.shape, workload.batch), rows["plain"]["milliseconds"] / 1e3
        # the rate that the plain network reaches, with everything it does
        machine = Machine(
            "this", counts.operations / plain, 1e9 * limits["memory, GB/s read and written"], 1e-9 * limits["normal draw, ns"]
        )
        results[name] = {
            method: (round(ratio(counts, extra, machine, plain), 2), rows[method]["ratio"]) for method, extra in METHODS.items()
        }
    return results


# Assumptions: 40 % and 80 % of the published peaks (dense bfloat16 and memory); normal draws are bounded by writing them.
ACCELERATOR = Machine("one H200, bfloat16 activations", 0.4 * 989e12, 0.8 * 4.8e12, 2 / (0.8 * 4.8e12), width=2)
LARGE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "ResNet-50, 256 images of 224 x 224": (resnet50, (3, 224, 224), 256),
    "transformer of 1.2 billion weights, 8 sequences of 2,048 tokens": (lambda: transformer(24, 2048), (2048, 2048), 8),
}


def plain_seconds(counts: Counts) -> float:
    """Seconds of a step of the plain network, whose other operations move every activation about ten times."""
    moved = ACCELERATOR.width * 10 * (counts.inputs + counts.outputs) / ACCELERATOR.bandwidth
    return counts.operations / ACCELERATOR.rate + moved


def predicted() -> dict[str, dict[str, float]]:
    """Predicted ratios for networks too large for this machine."""
    results: dict[str, dict[str, float]] = {}
    for name, (build, shape, batch) in LARGE.items():
        with torch.device("meta"):
            counts = count(build().eval(), shape, batch)
        plain = plain_seconds(counts)
        ratios = {method: round(ratio(counts, extra, ACCELERATOR, plain), 2) for method, extra in METHODS.items()}
        results[name] = {"plain, milliseconds": round(1e3 * plain, 1), **ratios}
    return results


def main() -> None:
    args = parser(__doc__).parse_args()
    content = {"compared": compared(), "predicted": predicted(), "on": ACCELERATOR.name}
    for part in ("compared", "predicted"):
        for name, rows in content[part].items():
            print(name, rows)
    if not args.dry:
        write("cost_model", content, measured=False)


if __name__ == "__main__":
    main()
