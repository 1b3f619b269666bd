"""Draw the figures of the pages of methods: `python -m docs.method_figures`, into `docs/images/methods/`.

A regression with a gap in its data. Most curves are results of the table `posterior/gap`. That table's network does not suit
`DVI`, `BLoB` and `ScalaBL`, which are trained here. The pages contain the SVG itself, so that its text follows their color scheme.
"""

import json
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

import torch
from experiments.protocols.fidelity.tasks import NOISE, Task, make_task
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from bayesify import DVI, BLoB, Gaussian, LinearWarmup, Method, ScalaBL, bayesify, fit, predict
from bayesify.predictive import GaussianPredictive

ROOT = Path(__file__).parents[1]

RESULTS = ROOT / "experiments" / "posterior" / "gap" / "results"
IMAGES = ROOT / "docs" / "images" / "methods"
WIDTH, HEIGHT, LEFT, BOTTOM = 600, 240, 34, 26
X, Y = (-1.5, 1.5), (-3.0, 3.0)


class Curve(NamedTuple):
    """Mean and epistemic variance of the function at the test inputs."""

    mean: list[float]
    epistemic: list[float]


def curve_of(name: str) -> Curve | None:
    """The first data set's result of a method in the table, or of its first variant there; None if there is neither."""
    files = [RESULTS / f"{name}.json", *sorted(RESULTS.glob(f"{name},*.json"))]
    for file in files:
        if file.is_file():
            unit = json.loads(file.read_text("utf-8"))["units"]["0"]
            return Curve(unit["mean"], unit["epistemic"])
    return None


class Adapter(nn.Module):
    """A frozen linear layer with a low-rank adapter."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.lora_B(self.lora_A(x))


def trained_here(method: Method, task: Task) -> Curve:
    """A method that needs another network: ReLUs for `DVI`, a pretrained network with adapters for the others."""
    torch.manual_seed(0)
    if isinstance(method, DVI):
        net = nn.Sequential(nn.Linear(1, 50), nn.ReLU(), nn.Linear(50, 1))
    else:
        net = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 1))
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        x = torch.linspace(*X, 64).unsqueeze(1)
        for _ in range(1000):
            optimizer.zero_grad()
            (net(x) - 0.5 * torch.sin(3 * x)).square().mean().backward()
            optimizer.step()
        net.requires_grad_(False)
        net[2], net[4] = Adapter(cast(nn.Linear, net[2]), 4), Adapter(cast(nn.Linear, net[4]), 4)
    bnn = bayesify(net, method)
    likelihood = Gaussian(std=NOISE)
    schedule = partial(CosineAnnealingLR, T_max=3000)
    training = {"epochs": 3000, "batch_size": len(task.x), "learning_rate": 1e-2, "scheduler": schedule, "seed": 0}
    fit(bnn, (task.x, task.y), likelihood, beta=LinearWarmup(fraction=0.3), accelerator="cpu", progress=False, **training)
    found = cast(GaussianPredictive, predict(bnn, task.test, likelihood, samples=1000, seed=0, coherent=True))
    return Curve(found.mean.flatten().tolist(), found.epistemic.flatten().tolist())


def svg(name: str, curve: Curve, reference: Curve | None, task: Task) -> str:
    """The figure: mean and two epistemic standard deviations of a method, and those of the reference in gray."""
    x = task.test.flatten().tolist()
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-size="12">',
        f"<title>{name} on a regression with a gap in its data: mean and two epistemic standard deviations</title>",
        '<g fill="none" stroke="currentColor" stroke-opacity="0.15">',
        *(f'<path d="M{LEFT} {_y(tick):.1f}H{WIDTH - 4}"/>' for tick in (-2, 0, 2)),
        "</g>",
        '<g fill="currentColor" fill-opacity="0.7">',
        *(f'<text x="{LEFT - 8}" y="{_y(tick) + 4:.1f}" text-anchor="end">{tick}</text>' for tick in (-2, 0, 2)),
        *(f'<text x="{_x(tick):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{tick}</text>' for tick in (-1, 0, 1)),
        "</g>",
    ]
    if reference:
        parts.append(f'<path d="{_band(x, reference)}" fill="currentColor" fill-opacity="0.2"/>')
    parts.append(f'<path d="{_band(x, curve)}" fill="#2f8fd0" fill-opacity="0.3" stroke="#2f8fd0" stroke-width="1"/>')
    parts.append(f'<path d="M{_line(x, curve.mean)}" fill="none" stroke="#2f8fd0" stroke-width="2.5"/>')
    points = zip(task.x.flatten().tolist(), task.y.flatten().tolist(), strict=True)
    parts += [
        '<g fill="currentColor">',
        *(f'<circle cx="{_x(a):.1f}" cy="{_y(b):.1f}" r="2"/>' for a, b in points),
        "</g>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _band(x: list[float], curve: Curve) -> str:
    spreads = [2 * max(variance, 0.0) ** 0.5 for variance in curve.epistemic]
    upper = [mean + spread for mean, spread in zip(curve.mean, spreads, strict=True)]
    lower = [mean - spread for mean, spread in zip(curve.mean, spreads, strict=True)]
    return f"M{_line(x, upper)}L{_line(x[::-1], lower[::-1])}Z"


def _line(x: list[float], y: list[float]) -> str:
    return " ".join(f"{_x(a):.1f},{_y(b):.1f}" for a, b in zip(x, y, strict=True))


def _x(value: float) -> float:
    return LEFT + (value - X[0]) / (X[1] - X[0]) * (WIDTH - LEFT - 4)


def _y(value: float) -> float:
    """The height of a value; those beyond the axis are at its end."""
    value = min(max(value, Y[0]), Y[1])
    return 4 + (Y[1] - value) / (Y[1] - Y[0]) * (HEIGHT - BOTTOM - 4)


def main() -> None:
    """Write the figures of all methods."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    task = make_task("gap", 40, 0)
    others = {"DVI": DVI(), "BLoB": BLoB(), "ScalaBL": ScalaBL()}
    for name, kind in sorted(Method.registry.items()):
        curve = curve_of(name)
        if curve is None and name in others:
            figure = svg(name, trained_here(others[name], task), None, task)
        elif curve is None:
            raise LookupError(f"posterior/gap has no result of {kind.__name__}; run it, or train it here")
        else:
            figure = svg(name, curve, None if name == "HMC" else curve_of("HMC"), task)
        (IMAGES / f"{name}.svg").write_text(figure, "utf-8")
        print(IMAGES / f"{name}.svg")


if __name__ == "__main__":
    main()
