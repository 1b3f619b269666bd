"""A training step (forward, loss, backward, fused Adam) of every method against the plain network.

    python -m benchmarks.training_step [--nets LeNet5 ...] [--rounds 30] [--methods MeanField ...]

Writes results/training_step.json: milliseconds and ratios to the plain network, interleaved in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify import (
    DVI,
    ECMP,
    ELRG,
    EMP,
    IVON,
    MNF,
    SGLD,
    SLANG,
    SNGP,
    SWAG,
    VIFO,
    VMG,
    VOGN,
    VSD,
    WHVI,
    BatchEnsemble,
    Categorical,
    ConcreteDropout,
    Deterministic,
    DropConnect,
    Gaussian,
    Laplace,
    MCDropout,
    MeanField,
    Method,
    NoisyAdam,
    NoisyKFAC,
    Radial,
    Rank1,
    RepulsiveEnsemble,
    TensorFactorized,
    VariationalDropout,
    bayesify,
    elbo,
)
from benchmarks.measure import interleave, parser, print_timings, repeat, write
from benchmarks.nets import WORKLOADS, Workload

METHODS: dict[str, Method] = {
    "Deterministic": Deterministic(),
    "MCDropout": MCDropout(),
    "VariationalDropout": VariationalDropout(),
    "VariationalDropout, weight noise": VariationalDropout(noise="weight", alpha_per="layer"),
    "VSD, T = 1": VSD(transforms=1),
    "VSD, T = 2": VSD(transforms=2),
    "VSD, T = 2, full rank": VSD(transforms=2, rank=None),
    "DropConnect": DropConnect(),
    "WHVI": WHVI(),
    "TensorFactorized": TensorFactorized(),
    "DVI, diagonal": DVI(covariance="diagonal"),
    "ELRG": ELRG(),
    "VMG": VMG(),
    "MNF": MNF(),
    "Radial": Radial(),
    "Rank1": Rank1(),
    "BatchEnsemble": BatchEnsemble(),
    "ConcreteDropout": ConcreteDropout(),
    "EMP": EMP(),
    "ECMP": ECMP(),
    "RepulsiveEnsemble of 5": RepulsiveEnsemble(),
    "VIFO": VIFO(),
    "VIFO, auxiliary inputs": VIFO(eta_aux=0.5),
    "SWAG": SWAG(),
    "IVON": IVON(),
    "VOGN": VOGN(),
    "NoisyAdam": NoisyAdam(),
    "NoisyKFAC": NoisyKFAC(),
    "SLANG": SLANG(),
    "Laplace": Laplace(),
    "SNGP": SNGP(),
    "SGLD": SGLD(),
    "MeanField": MeanField(),
    "MeanField, shared noise": MeanField(noise="shared"),
    "MeanField, Flipout": MeanField(noise="flipout"),
}
CHAINS_ONLY = ("DVI, diagonal",)  # linear layers and ReLUs
SLOW = ("VOGN", "NoisyKFAC", "SLANG")  # gradients or factors of single examples: minutes per step of a large network


def plain_step(workload: Workload, x: Tensor, y: Tensor) -> Callable[[], None]:
    net = workload.net().train()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        _loss(net(x), y).backward()
        optimizer.step()

    return step


def bayesian_step(workload: Workload, method: Method, x: Tensor, y: Tensor) -> Callable[[], None]:
    bnn = bayesify(workload.net().train(), only_contractions(workload.net(), method))
    if bnn.has_optimizer:
        likelihood = Categorical() if workload.net()(x).shape[-1] > 1 else Gaussian(std=1.0)
        optimizer = bnn.optimizer(likelihood, learning_rate=1e-4)
    else:
        optimizer = torch.optim.Adam(bnn.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        draws = bnn(x)
        log_prob = torch.stack([-_loss(outputs, y, reduction="none") for outputs in draws.outputs])  # one, or one per member
        loss = -elbo(draws, log_prob, n=50_000)
        if bnn.auxiliary_beta:
            loss = loss + bnn.auxiliary_beta * bnn.regularizer(torch.rand_like(x)).mean()
        loss.backward()
        optimizer.step()

    return step


def steps(workload: Workload, methods: Mapping[str, Method]) -> dict[str, Callable[[], object]]:
    """Steps of the plain network and of every method on the same data."""
    x, y = workload.inputs(), torch.randint(0, 10, (workload.batch,))
    return {
        "plain": plain_step(workload, x, y),
        **{name: bayesian_step(workload, method, x, y) for name, method in methods.items()},
    }


def only_contractions(net: nn.Module, method: Method) -> Method | dict[str, Method]:
    """Keep normalization layers deterministic, as in the papers' tables, unless the method chooses its layers itself."""
    if type(method).assign is not Method.assign or isinstance(method, RepulsiveEnsemble | DVI):
        return method
    return {name: method for name, layer in net.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)}


def _loss(outputs: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    if outputs.shape[-1] > 1:
        return F.cross_entropy(outputs, y, reduction=reduction)
    return F.mse_loss(outputs.squeeze(-1), y.to(outputs.dtype), reduction=reduction)


def main() -> None:
    options = parser(__doc__, rounds=30)
    options.add_argument("--nets", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS))
    options.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    args = options.parse_args()
    nets: dict[str, object] = {}
    for name in args.nets:
        torch.manual_seed(0)
        workload = WORKLOADS[name]
        left_out = (SLOW if name == "ResNet18" else ()) + (() if name.startswith("MLP") else CHAINS_ONLY)
        labels = [label for label in args.methods if label not in left_out]
        candidates = steps(workload, {label: METHODS[label] for label in labels})
        # a step of the smallest network takes 0.1 ms: time a hundred at once
        repeats = 100 if workload.batch < 64 and len(workload.shape) == 1 else 1
        nets[name] = timed = interleave({label: repeat(step, repeats) for label, step in candidates.items()}, args.rounds)
        print_timings(f"{name} (batch {workload.batch})", timed, repeats)
    if not args.dry:
        write("training_step", {"rounds": args.rounds, "nets": nets})


if __name__ == "__main__":
    main()
