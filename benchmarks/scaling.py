"""How cost grows: with the width of a layer, the batch, the number of draws, of models trained together, and of layers.

    python -m benchmarks.scaling [--rounds 10] [--dry]

Every curve is measured beside the plain network, interleaved in one process, and drawn with the growth that theory gives it; then
the ceilings of the machine: memory bandwidth, matrix products, normal draws, exponentials. Writes benchmarks/results/scaling.json
and scaling.png.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

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
from benchmarks.measure import interleave, machine, write
from benchmarks.nets import Workload, mlp
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
# The axis, and the growth that theory gives: name, power of the axis, what it is of.
THEORY = {
    "width": ("D, inputs and outputs of a layer", 2),
    "batch": ("B, examples in a batch", 1),
    "draws": ("S, draws per prediction", 1),
    "models": ("M, models trained together", 1),
    "depth": ("L, hidden layers of 256", 1),
}


def widths() -> dict[int, dict[str, Callable[[], object]]]:
    """One layer D -> D, forward and backward with all gradients, 128 rows."""

    def passes(layer: nn.Module, x: Tensor, upstream: Tensor) -> Callable[[], object]:
        parameters = list(layer.parameters())
        return lambda: torch.autograd.grad(layer(x), [x, *parameters], upstream, allow_unused=True)

    def at(n: int) -> dict[str, Callable[[], object]]:
        x, upstream = torch.randn(128, n, requires_grad=True), torch.randn(128, n)
        layers: dict[str, nn.Module] = {"plain": nn.Linear(n, n)}
        for name in ("MeanField", "MeanField, shared noise", "VSD", "WHVI"):
            layers[name] = bayesify(nn.Linear(n, n), STEPS[name]).net
        return {name: passes(layer, x, upstream) for name, layer in layers.items()}

    return {n: at(n) for n in WIDTHS}


def draws() -> dict[int, dict[str, Callable[[], object]]]:
    """A prediction for 128 rows by 784-400-400-10; the plain network runs once per draw."""
    workload = Workload(lambda: mlp(784, 400, 400, 10), (784,), 128)
    x, net = workload.inputs(), workload.net().eval()
    methods = {"VIFO": VIFO(), "MCDropout": MCDropout(), "MeanField": MeanField(), "EMP": EMP(), "WHVI": WHVI()}
    bnns = {name: bayesify(workload.net().eval(), method) for name, method in methods.items()}
    bnns["MeanField, last layer"] = bayesify(workload.net().eval(), {"4": MeanField()})

    def plain(samples: int) -> Callable[[], object]:
        @torch.no_grad()
        def run() -> Tensor:
            return sum((net(x).softmax(-1) for _ in range(samples)), torch.zeros(())) / samples

        return run

    def of(name: str, samples: int) -> Callable[[], object]:
        return lambda: predict(bnns[name], x, Categorical(), samples=samples, seed=0, progress=False)

    return {s: {"plain": plain(s), **{name: of(name, s) for name in bnns}} for s in DRAWS}


def models() -> dict[int, dict[str, Callable[[], object]]]:
    """Fifty epochs of 13-50-1 on 455 rows, M models in one pass of `fit_many`."""

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
    """All that is timed: by axis, place on it and name."""
    return {
        "width": widths(),
        "batch": {b: steps(Workload(lambda: mlp(784, 400, 400, 10), (784,), b), STEPS) for b in BATCHES},
        "draws": draws(),
        "models": models(),
        "depth": {depth: steps(Workload(lambda depth=depth: mlp(784, *[256] * depth, 10), (784,), 128), STEPS) for depth in DEPTHS},
    }


def ceilings(rounds: int) -> dict[str, float]:
    """What the machine can do at most, each by the best of several runs."""
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
    """One panel per axis, with the growth of theory as a dashed line through the plain network's last point."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    from bayesify.plots.style import INK, MUTED, axes

    figure = Figure(figsize=(11, 6.6), layout="constrained")
    panels = figure.subplots(2, 3).flat
    colours = {
        name: f"C{i}" for i, name in enumerate(["MeanField", "WHVI", "VSD", "VIFO", "VariationalDropout", "MCDropout", "EMP"])
    }
    for axis, ax in zip(results, panels, strict=False):
        axes(ax)
        places = [int(place) for place in results[axis]]
        for name in next(iter(results[axis].values())):
            times = [results[axis][str(place)][name]["milliseconds"] for place in places]
            colour = INK if name == "plain" else colours.get(name.split(",")[0], MUTED)
            style = ":" if "," in name else "-"
            ax.plot(places, times, style, color=colour, label=name, marker="o", markersize=2.5, linewidth=1.2)
        label, power = THEORY[axis]
        last = results[axis][str(places[-1])]["plain"]["milliseconds"]
        ax.plot(places, [last * (p / places[-1]) ** power for p in places], "--", color=MUTED, linewidth=0.8)
        ax.set(xscale="log", yscale="log")
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.set_xticks(places, [str(place) for place in places], fontsize=8)
        ax.tick_params(axis="y", labelsize=8)
        ax.set_title(label, fontsize=9, color=INK)
        ax.set_ylabel("ms", fontsize=8)
        ax.legend(fontsize=6.5, frameon=False)
    for ax in panels:
        ax.axis("off")
    figure.savefig(path, dpi=110, facecolor="white", metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--dry", action="store_true", help="print, write nothing")
    args = parser.parse_args()
    torch.manual_seed(0)
    results: dict[str, Any] = {}
    for axis, places in curves().items():
        for place, candidates in places.items():
            rounds = min(args.rounds, 3) if axis == "models" else args.rounds
            timed = interleave(candidates, rounds, warmup=1 if axis == "models" else 2)
            results.setdefault(axis, {})[str(place)] = timed
            print(axis, place, {name: (row["milliseconds"], row["ratio"]) for name, row in timed.items()}, flush=True)
    limits = ceilings(args.rounds)
    print(limits)
    if not args.dry:
        path = write("scaling", {"machine": machine(), "rounds": args.rounds, "ceilings": limits, "curves": results})
        draw(results, path.with_suffix(".png"))
        print(path)


if __name__ == "__main__":
    main()
