"""What a training step will cost, from counts: of multiplications, activations, weights and noise variables.

    python -m benchmarks.cost_model

For sizes that do not fit the machine at hand. A step of the plain network takes its contractions at the rate it was measured to
reach (or is assumed to), and what a method adds is counted in the same currency:

    extra = contractions / rate + bytes moved / bandwidth + normal draws x seconds each

with the bytes of each method counted below, in passes over the weights, inputs and outputs of its random layers. Compared with the
ratios in results/training_step.json first, so that everyone sees what it is worth, then applied to networks and machines that
nobody has run it on. Overheads per operation are left out, so small nets cost more than it says. Writes results/cost_model.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.measure import write
from benchmarks.nets import WORKLOADS, resnet50, transformer

_RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Machine:
    """Contractions per second (floating point operations), bytes per second, seconds per normal draw, bytes of an activation."""

    name: str
    rate: float
    bandwidth: float
    draw: float
    width: int = 4


@dataclass(frozen=True)
class Counts:
    """Of a network and one step: operations, and elements of the contracting layers.

    Attributes:
        operations: of forward and backward, all examples together.
        inputs, outputs: elements of the layers' inputs and outputs, all examples together.
        channels: input channels of all layers, times examples: the noise variables of input noise.
        weights: of the contracting layers.
    """

    operations: float
    inputs: float
    outputs: float
    channels: float
    weights: float


@dataclass(frozen=True)
class Extra:
    """What a method adds to a step.

    Attributes:
        contractions: as a share of the plain network's.
        inputs, outputs, weights: passes over them, each one read or write of every element.
        draws: how many normal draws there are.
    """

    contractions: float
    inputs: float
    outputs: float
    weights: float
    draws: Callable[[Counts], float]


# Passes, forward and backward. Adam on one more number per weight takes 7 (value, gradient, two moments: reads and writes).
METHODS: dict[str, Extra] = {
    # x^2 (2) and its gradient (4); draws: root, noise, sum (6), gradients (4); spread and KL (4), gradients (6), Adam (7)
    "MeanField": Extra(1.0, 6, 10, 17, lambda n: n.outputs),
    # weights: spread and KL (4), noise (1), product and sum (5), gradients (10), Adam (7)
    "MeanField, shared noise": Extra(0.0, 0, 0, 27, lambda n: n.weights),
    # input times noise (2), gradients of both (5)
    "VariationalDropout": Extra(0.0, 7, 0, 0, lambda n: n.channels),
    "VSD, T = 2": Extra(0.0, 7, 0, 0, lambda n: n.channels),
    "VIFO": Extra(0.0, 0, 0, 0, lambda n: 0.0),
    # the prior on all weights: square and sum (2), its gradient (3)
    "EMP": Extra(0.0, 0, 0, 5, lambda n: 0.0),
}


def count(net: nn.Module, shape: tuple[int, ...], batch: int) -> Counts:
    """Count by a pass without values."""
    totals = dict.fromkeys(("operations", "inputs", "outputs", "channels", "weights"), 0.0)

    def see(layer: nn.Module, args: tuple[Tensor, ...], y: Tensor) -> None:
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
    handles = [m.register_forward_hook(see) for m in net.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    with torch.no_grad():
        net(torch.empty(1, *shape, device="meta"))
    for handle in handles:
        handle.remove()
    return Counts(**totals)


def ratio(counts: Counts, extra: Extra, machine: Machine, plain: float) -> float:
    """Of a method's step to the plain network's, which takes so many seconds."""
    contractions = extra.contractions * counts.operations / machine.rate
    activations = machine.width * (extra.inputs * counts.inputs + extra.outputs * counts.outputs)
    moved = (activations + 4 * extra.weights * counts.weights) / machine.bandwidth
    return 1 + (contractions + moved + extra.draws(counts) * machine.draw) / plain


def compared() -> dict[str, dict[str, tuple[float, float]]]:
    """The model's ratios and the measured ones, by network and method, on the machine of results/training_step.json."""
    measured = json.loads((_RESULTS / "training_step.json").read_text())["nets"]
    limits = json.loads((_RESULTS / "scaling.json").read_text())["ceilings"]
    results: dict[str, dict[str, tuple[float, float]]] = {}
    for name, rows in measured.items():
        workload = WORKLOADS[name]
        if workload.batch < 64 and len(workload.shape) == 1:
            continue  # overheads are all there is
        counts, plain = count(workload.net(), workload.shape, workload.batch), rows["plain"]["milliseconds"] / 1e3
        # the rate that the plain network reaches, all that it does included
        machine = Machine(
            "this", counts.operations / plain, 1e9 * limits["memory, GB/s read and written"], 1e-9 * limits["normal draw, ns"]
        )
        results[name] = {
            method: (round(ratio(counts, extra, machine, plain), 2), rows[method]["ratio"]) for method, extra in METHODS.items()
        }
    return results


# Published peaks of the accelerator (dense bfloat16 and memory) and an assumed share of them: 40 % and 80 %. Normal draws are
# bounded by writing them. These are assumptions, not measurements.
ACCELERATOR = Machine("one H200, bfloat16 activations", 0.4 * 989e12, 0.8 * 4.8e12, 2 / (0.8 * 4.8e12), width=2)
LARGE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "ResNet-50, 256 images of 224 x 224": (resnet50, (3, 224, 224), 256),
    "transformer of 1.2 billion weights, 8 sequences of 2,048 tokens": (lambda: transformer(24, 2048), (2048, 2048), 8),
}


def predicted() -> dict[str, dict[str, float]]:
    """Ratios for networks too large for this machine: predictions."""
    results: dict[str, dict[str, float]] = {}
    for name, (build, shape, batch) in LARGE.items():
        with torch.device("meta"):
            counts = count(build().eval(), shape, batch)
        # what is not a contraction moves every activation about ten times in a step
        moved = ACCELERATOR.width * 10 * (counts.inputs + counts.outputs) / ACCELERATOR.bandwidth
        plain = counts.operations / ACCELERATOR.rate + moved
        ratios = {method: round(ratio(counts, extra, ACCELERATOR, plain), 2) for method, extra in METHODS.items()}
        results[name] = {"plain, milliseconds": round(1e3 * plain, 1), **ratios}
    return results


def main() -> None:
    content = {"compared": compared(), "predicted": predicted(), "on": ACCELERATOR.name}
    for part in ("compared", "predicted"):
        for name, rows in content[part].items():
            print(name, rows)
    print(write("cost_model", content))


if __name__ == "__main__":
    main()
