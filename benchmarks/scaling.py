"""Growth of the cost with the width of a layer, the batch size, and the number of draws, of models trained together, and of layers.

    python -m benchmarks.scaling [--rounds 10] [--dry]

Every curve is interleaved with that of the plain network in one process, and drawn with its theoretical growth. Memory
bandwidth, matrix products, normal draws and exponentials are measured too. Writes results/scaling.json and scaling.png.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesify import (
    EMP,
    VIFO,
    VSD,
    WHVI,
    Categorical,
    Deterministic,
    Gaussian,
    MCDropout,
    MeanField,
    Method,
    VariationalDropout,
    bayesify,
    predict,
)
from bayesify.train import Training, fit_many
from benchmarks.hadamard import forward_backward
from benchmarks.measure import interleave, parser, print_timings, write
from benchmarks.nets import Workload, mlp
from benchmarks.prediction import loop_over_passes
from benchmarks.training_step import steps

WIDTHS, BATCHES, DRAWS = (128, 256, 512, 1024, 2048), (1, 8, 32, 128, 512, 2048), (1, 3, 10, 30, 100, 300)
MODELS, DEPTHS = (1, 5, 20, 100), (1, 2, 4, 8, 16)
STEPS: dict[str, Method] = {
    "MeanField": MeanField(),
    "MeanField, shared noise": MeanField(noise="shared"),
    "VariationalDropout": VariationalDropout(),
    "VSD": VSD(),
    "WHVI": WHVI(),
    "VIFO": VIFO(),
}
# By axis: label and exponent of the theoretical growth.
THEORY = {
    "width": ("D, inputs and outputs of a layer", 2),
    "batch": ("B, examples in a batch", 1),
    "draws": ("S, draws per prediction", 1),
    "models": ("M, models trained together", 1),
    "depth": ("L, hidden layers of 256", 1),
}


def widths() -> dict[int, dict[str, Callable[[], object]]]:
    """One layer D -> D, forward and backward with all gradients, 128 rows."""

    def of_width(n: int) -> dict[str, Callable[[], object]]:
        x, upstream = torch.randn(128, n, requires_grad=True), torch.randn(128, n)
        layers: dict[str, nn.Module] = {"plain": nn.Linear(n, n)}
        for name in ("MeanField", "MeanField, shared noise", "VSD", "WHVI"):
            layers[name] = bayesify(nn.Linear(n, n), STEPS[name]).net
        return {name: forward_backward(layer, list(layer.parameters()), x, upstream) for name, layer in layers.items()}

    return {n: of_width(n) for n in WIDTHS}


def draws() -> dict[int, dict[str, Callable[[], object]]]:
    """A prediction of 784-400-400-10 for 128 rows; the plain network runs once per draw."""
    workload = Workload(lambda: mlp(784, 400, 400, 10), (784,), 128)
    x, net = workload.inputs(), workload.net().eval()
    methods = {"VIFO": VIFO(), "MCDropout": MCDropout(), "MeanField": MeanField(), "EMP": EMP(), "WHVI": WHVI()}
    bnns = {name: bayesify(workload.net().eval(), method) for name, method in methods.items()}
    bnns["MeanField, last layer"] = bayesify(workload.net().eval(), {"4": MeanField()})

    def of(name: str, samples: int) -> Callable[[], object]:
        return lambda: predict(bnns[name], x, Categorical(), samples=samples, seed=0, progress=False)

    return {s: {"plain": loop_over_passes(net, x, s), **{name: of(name, s) for name in bnns}} for s in DRAWS}


def models() -> dict[int, dict[str, Callable[[], object]]]:
    """Fifty epochs of 13-50-1 on 455 rows, M models in one call of `fit_many`."""

    def of(method: Method, count: int) -> Callable[[], object]:
        def run() -> None:
            trainings = []
            for seed in range(count):
                torch.manual_seed(seed)
                x = torch.randn(455, 13)
                bnn = bayesify(mlp(13, 50, 1), method)
                trainings.append(Training(bnn=bnn, data=(x, x[:, 0].sin()), likelihood=Gaussian(std=0.5), seed=seed))
            fit_many(trainings, epochs=50, batch_size=128, accelerator="cpu", progress=False)

        return run

    return {m: {"plain": of(Deterministic(), m), "MeanField": of(MeanField(), m), "MCDropout": of(MCDropout(), m)} for m in MODELS}


def curves() -> dict[str, dict[int, dict[str, Callable[[], object]]]]:
    """All candidates by axis, value on the axis and name."""
    return {
        "width": widths(),
        "batch": {b: steps(Workload(lambda: mlp(784, 400, 400, 10), (784,), b), STEPS) for b in BATCHES},
        "draws": draws(),
        "models": models(),
        "depth": {depth: steps(Workload(lambda depth=depth: mlp(784, *[256] * depth, 10), (784,), 128), STEPS) for depth in DEPTHS},
    }


def limits(rounds: int) -> dict[str, float]:
    """Median throughput of the machine for elementary operations."""
    big, matrix, out = torch.randn(2**25), torch.randn(2048, 2048), torch.empty(2**25)
    small = big[: 2**20]
    timed = interleave(
        {
            "copy": lambda: out.copy_(big),
            "mm": lambda: matrix @ matrix,
            "randn": lambda: torch.randn(2**20),
            "exp": lambda: torch.exp(small),
        },
        rounds,
    )
    seconds = {name: row["milliseconds"] / 1e3 for name, row in timed.items()}
    return {
        "memory, GB/s read and written": round(2 * 4 * 2**25 / seconds["copy"] / 1e9, 1),
        "matrix product of float32, GFLOP/s": round(2 * 2048**3 / seconds["mm"] / 1e9, 1),
        "normal draw, ns": round(1e9 * seconds["randn"] / 2**20, 2),
        "exponential, ns": round(1e9 * seconds["exp"] / 2**20, 2),
    }


def draw(results: dict[str, dict[str, dict[str, Any]]], path: Path) -> None:
    """Draw one panel per axis; dashed: theoretical growth through the plain network's last point."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    from bayesify.plots.style import INK, MUTED, axes

    figure = Figure(figsize=(11, 6.6), layout="constrained")
    panels = figure.subplots(2, 3).flat
    colors = {
        name: f"C{i}" for i, name in enumerate(["MeanField", "WHVI", "VSD", "VIFO", "VariationalDropout", "MCDropout", "EMP"])
    }
    for axis, ax in zip(results, panels, strict=False):
        axes(ax)
        values = [int(value) for value in results[axis]]
        for name in next(iter(results[axis].values())):
            times = [results[axis][str(value)][name]["milliseconds"] for value in values]
            color = INK if name == "plain" else colors.get(name.split(",")[0], MUTED)
            style = ":" if "," in name else "-"
            ax.plot(values, times, style, color=color, label=name, marker="o", markersize=2.5, linewidth=1.2)
        label, power = THEORY[axis]
        last = results[axis][str(values[-1])]["plain"]["milliseconds"]
        ax.plot(values, [last * (v / values[-1]) ** power for v in values], "--", color=MUTED, linewidth=0.8)
        ax.set(xscale="log", yscale="log")
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.set_xticks(values, [str(value) for value in values], fontsize=8)
        ax.tick_params(axis="y", labelsize=8)
        ax.set_title(label, fontsize=9, color=INK)
        ax.set_ylabel("ms", fontsize=8)
        ax.legend(fontsize=6.5, frameon=False)
    for ax in panels:
        ax.axis("off")
    figure.savefig(path, dpi=110, facecolor="white", metadata={"Software": None})


def main() -> None:
    args = parser(__doc__, rounds=10).parse_args()
    torch.manual_seed(0)
    results: dict[str, Any] = {}
    for axis, values in curves().items():
        for value, candidates in values.items():
            rounds = min(args.rounds, 3) if axis == "models" else args.rounds
            timed = interleave(candidates, rounds, warmup=1 if axis == "models" else 2)
            results.setdefault(axis, {})[str(value)] = timed
            print_timings(f"{axis} {value}", timed)
    ceilings = limits(args.rounds)
    print(ceilings)
    if not args.dry:
        path = write("scaling", {"rounds": args.rounds, "ceilings": ceilings, "curves": results})
        draw(results, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
