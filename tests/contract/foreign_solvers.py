"""Small networks whose middle part is a solution of a differential equation, or a flow, with random weights.

Solvers call their layers many times, and adjoint methods call them again in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from foreign import F64, Foreign, library, normal
from torch import Tensor, nn

__all__ = ["SOLVERS"]


class _Field(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.layers(y)


class NeuralODE(nn.Module):
    def __init__(self, solver: str, method: str) -> None:
        super().__init__()
        self.first, self.field, self.last = nn.Linear(3, 4), _Field(), nn.Linear(4, 2)
        self.solver, self.method = solver, method

    def forward(self, x: Tensor) -> Tensor:
        solve = getattr(library("torchdiffeq"), self.solver)
        return self.last(solve(self.field, self.first(x), torch.tensor([0.0, 1.0], dtype=x.dtype), method=self.method)[-1])


class _Diffusion(nn.Module):
    noise_type, sde_type = "diagonal", "ito"

    def __init__(self) -> None:
        super().__init__()
        self.drift, self.scale = nn.Linear(4, 4), nn.Linear(4, 4)

    def f(self, t: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(self.drift(y))

    def g(self, t: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(self.scale(y))


def _path(rows: int) -> Any:
    """One path of a Brownian motion for all rows, so that a row has it in batches of any size."""
    package = library("torchsde")
    path = package.BrownianInterval(0.0, 1.0, size=(1, 4), dtype=F64, entropy=3, levy_area_approximation="space-time")

    class Path(package.BaseBrownian):
        dtype, device, shape = path.dtype, path.device, torch.Size([rows, 4])
        levy_area_approximation = path.levy_area_approximation

        def __call__(self, ta: Any, tb: Any = None, **which: bool) -> Any:
            found = path(ta, tb, **which)
            return tuple(x.expand(rows, 4) for x in found) if any(which.values()) else found.expand(rows, 4)

        def __repr__(self) -> str:
            return "Path()"

    return Path()


class NeuralSDE(nn.Module):
    def __init__(self, solver: str) -> None:
        super().__init__()
        self.first, self.diffusion, self.last = nn.Linear(3, 4), _Diffusion(), nn.Linear(4, 2)
        self.solver = solver

    def forward(self, x: Tensor) -> Tensor:
        solve = getattr(library("torchsde"), self.solver)
        times = torch.tensor([0.0, 1.0], dtype=x.dtype)
        return self.last(solve(self.diffusion, self.first(x), times, bm=_path(len(x)), dt=0.25)[-1])


class Density(nn.Module):
    """The log densities of a flow of zuko, given a condition."""

    def __init__(self, name: str, **config: Any) -> None:
        super().__init__()
        self.flow = getattr(library("zuko.flows"), name)(4, context=2, hidden_features=(8,), **config)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        return self.flow(condition).log_prob(x)


def _ode(solver: str, method: str) -> Foreign:
    return Foreign("torchdiffeq", lambda: NeuralODE(solver, method).double(), normal((4, 3)))


def _sde(solver: str) -> Foreign:
    return Foreign("torchsde", lambda: NeuralSDE(solver).double(), normal((4, 3)))


def _flow(name: str, config: dict[str, Any], **settings: Any) -> Foreign:
    return Foreign("zuko", lambda: Density(name, **config).double(), normal((5, 4), (5, 2)), **settings)


SOLVERS: dict[str, Foreign] = {
    "ODE, rk4": _ode("odeint", "rk4"),
    "ODE, rk4, adjoint": _ode("odeint_adjoint", "rk4"),
    "ODE, dopri5": _ode("odeint", "dopri5"),
    "ODE, dopri5, adjoint": _ode("odeint_adjoint", "dopri5"),
    "SDE": _sde("sdeint"),
    "SDE, adjoint": _sde("sdeint_adjoint"),
    "RealNVP": _flow("RealNVP", {"transforms": 2}),
    # Rows choose the steps of its solver together. In eval mode, it keeps no gradients.
    "continuous flow": _flow("CNF", {}, rounding=1e-3, trains=False),
    "autoregressive flow": _flow("MAF", {"transforms": 2}),
    "spline flow": _flow("NSF", {"transforms": 1}),
}
