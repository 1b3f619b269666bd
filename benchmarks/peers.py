"""A training step and a prediction from 100 draws by bayesify and by other libraries, against the plain network.

    pip install bayesian-torch blitz-bayesian-pytorch torchbnn tyxe && pip install --no-deps torch-uncertainty
    python -m benchmarks.peers [--nets LeNet5 ...] [--rounds 15] [--samples 100]

All use mean-field inference: "local" draws outputs (local reparameterization), "Flipout" draws weights and flips signs per example,
the others draw weights once per batch. Normalization layers are deterministic. Peers predict by a loop over draws, as documented;
libraries that are not installed are skipped, and those that cannot run a network are left out of its columns. Of torch-uncertainty
only the layers are imported, because the package needs torchvision. Writes results/peers.json and peers.png: milliseconds and
ratios to the plain network, interleaved in one process, and the peak memory in excess of the plain network's, each measured in a
separate process. Networks that are not named keep their results.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import importlib.util
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify import Categorical, MeanField, Method, bayesify, predict
from benchmarks.measure import RESULTS, interleave, parser, print_timings, read, repeat, write
from benchmarks.nets import WORKLOADS, Workload, sequence_classifier
from benchmarks.prediction import loop_over_passes
from benchmarks.training_step import bayesian_step, only_contractions, plain_step

OURS: dict[str, Method] = {
    "bayesify, local": MeanField(),
    "bayesify, weights": MeanField(noise="shared"),
}
PEERS = {
    "bayesian-torch, weights": "bayesian_torch",
    "bayesian-torch, Flipout": "bayesian_torch",
    "blitz, weights": "blitz",
    "torchbnn, weights": "torchbnn",
    "torch-uncertainty, weights": "torch_uncertainty",
    "TyXe, weights": "tyxe",
    "TyXe, local": "tyxe",
}
NETS = {
    **{name: WORKLOADS[name] for name in ("MLP 784-400-400-10", "LeNet5", "ResNet18")},
    "transformer block": Workload(lambda: sequence_classifier(1, 256), (64, 256), 16),
}
_FEWER_DRAWS = {"ResNet18": 10, "transformer block": 20}  # a draw takes as long as a hundred of the small networks
_PACKAGES = "bayesian-torch", "blitz-bayesian-pytorch", "torchbnn", "torch-uncertainty", "tyxe", "pyro-ppl"
_ROWS = 50_000  # of the training set, the divisor of the KL


def peer(name: str, net: nn.Module) -> tuple[nn.Module, Callable[[], Tensor]]:
    """The network as converted by a peer, and its KL."""
    if name.startswith("bayesian-torch"):
        module: Any = importlib.import_module("bayesian_torch.models.dnn_to_bnn")
        kind = "Flipout" if "Flipout" in name else "Reparameterization"
        settings = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
        module.dnn_to_bnn(net, {**settings, "type": kind, "moped_enable": False})
        return net, lambda: module.get_kl_loss(net)
    if name.startswith("blitz"):
        modules: Any = importlib.import_module("blitz.modules")
        kl: Any = importlib.import_module("blitz.losses")
        made = _replaced(
            net,
            lambda old: modules.BayesianLinear(old.in_features, old.out_features, bias=old.bias is not None),
            lambda old: modules.BayesianConv2d(
                old.in_channels, old.out_channels, old.kernel_size, padding=old.padding, stride=old.stride,
                bias=old.bias is not None,
            ),
        )  # fmt: skip
        return made, lambda: kl.kl_divergence_from_nn(made)
    if name.startswith("torch-uncertainty"):
        return _torch_uncertainty(net)
    torchbnn: Any = importlib.import_module("torchbnn")
    made = _replaced(
        net,
        lambda old: torchbnn.BayesLinear(0.0, 0.1, old.in_features, old.out_features, bias=old.bias is not None),
        lambda old: torchbnn.BayesConv2d(
            0.0, 0.1, old.in_channels, old.out_channels, old.kernel_size, old.stride, old.padding, bias=old.bias is not None
        ),
    )
    divergence = torchbnn.BKLLoss(reduction="sum")
    return made, lambda: divergence(made)


def _torch_uncertainty(net: nn.Module) -> tuple[nn.Module, Callable[[], Tensor]]:
    """The network with the layers of torch-uncertainty, and the KL that these estimate from the weights of a pass."""
    for name in ("torch_uncertainty", "torch_uncertainty.layers"):  # packages without their imports
        spec = importlib.util.find_spec(name)
        if spec is not None and name not in sys.modules:
            package = sys.modules[name] = types.ModuleType(name)
            package.__path__ = list(spec.submodule_search_locations or ())
            package.__spec__ = spec
    layers: Any = importlib.import_module("torch_uncertainty.layers.bayesian")
    made = _replaced(
        net,
        lambda old: layers.BayesLinear(old.in_features, old.out_features, bias=old.bias is not None),
        lambda old: layers.BayesConv2d(
            old.in_channels, old.out_channels, old.kernel_size, old.stride, old.padding, bias=old.bias is not None
        ),
    )
    drawn: list[Any] = [module for module in made.modules() if isinstance(module, layers.BayesLinear | layers.BayesConv2d)]
    return made, lambda: torch.stack([layer.log_variational_posterior - layer.log_prior for layer in drawn]).sum()


def tyxe(net: nn.Module) -> tuple[Any, Any]:
    """The network as converted by TyXe, and Pyro's optimizer."""
    modules = [importlib.import_module(name) for name in ("pyro", "pyro.distributions", "pyro.optim", "tyxe")]
    pyro, distributions, optim, package = modules
    # required by TyXe 0.0.2, removed in Pyro 1.9
    pyro.util.deep_getattr = lambda module, name: functools.reduce(getattr, name.split("."), module)
    pyro.clear_param_store()
    guide = functools.partial(
        package.guides.AutoNormal, init_scale=0.01, init_loc_fn=package.guides.PretrainedInitializer.from_net(net)
    )
    hidden = [nn.BatchNorm2d, nn.LayerNorm]
    prior = package.priors.IIDPrior(distributions.Normal(0.0, 1.0), hide_module_types=hidden)
    return package.VariationalBNN(net, prior, package.likelihoods.Categorical(dataset_size=_ROWS), guide), optim.Adam({"lr": 1e-4})


def _tyxe_noise(name: str) -> Any:
    """The context for local reparameterization in TyXe, if requested."""
    return importlib.import_module("tyxe.poutine").local_reparameterization() if "local" in name else contextlib.nullcontext()


def _replaced(net: nn.Module, linear: Callable[[Any], nn.Module], conv: Callable[[Any], nn.Module]) -> nn.Module:
    makers = {nn.Linear: linear, nn.Conv2d: conv}
    for name, layer in list(net.named_modules()):
        if type(layer) in makers:
            net.set_submodule(name, makers[type(layer)](layer))
    return net


def training(name: str, workload: Workload, x: Tensor, y: Tensor) -> Callable[[], None]:
    """A training step."""
    if name == "plain":
        return plain_step(workload, x, y)
    if name in OURS:
        return bayesian_step(workload, OURS[name], x, y)
    if name.startswith("TyXe"):
        bnn, adam = tyxe(workload.net())

        def pyro_step() -> None:
            with _tyxe_noise(name):
                bnn.fit([(x, y)], adam, 1)

        return pyro_step
    net, kl = peer(name, workload.net().train())
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        (F.cross_entropy(net(x), y) + kl() / _ROWS).backward()
        optimizer.step()

    return step


def prediction(name: str, workload: Workload, x: Tensor, samples: int) -> Callable[[], object]:
    """Mean probabilities over the draws; one pass of the plain network."""
    if name in OURS:
        plain = workload.net().eval()
        bnn = bayesify(plain, only_contractions(plain, OURS[name]))
        return lambda: predict(bnn, x, Categorical(), samples=samples, progress=False)
    if name.startswith("TyXe"):
        tyxe_bnn, adam = tyxe(workload.net())
        tyxe_bnn.fit([(x, torch.zeros(len(x), dtype=torch.long))], adam, 1)  # creates the parameters

        def predictions() -> object:
            with _tyxe_noise(name):
                return tyxe_bnn.predict(x, num_predictions=samples)

        return predictions
    net = workload.net() if name == "plain" else peer(name, workload.net())[0]
    return loop_over_passes(net.eval(), x, 1 if name == "plain" else samples)


def memory(name: str, net: str, what: str, samples: int) -> float:
    """Peak memory in MB of a separate process that runs this candidate."""
    command = [sys.executable, "-m", "benchmarks.peers", "--alone", name, "--nets", net, "--what", what, "--samples", str(samples)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def work(name: str, net: str, what: str, samples: int) -> Callable[[], object]:
    """A candidate to time."""
    torch.manual_seed(0)
    workload = NETS[net]
    x, y = workload.inputs(), torch.randint(0, 10, (workload.batch,))
    return training(name, workload, x, y) if what == "training" else prediction(name, workload, x, samples)


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw the ratios as bars, one panel per network and kind of work."""
    from matplotlib.figure import Figure

    from bayesify.plots.style import BLUE, INK, MUTED, axes

    figure = Figure(figsize=(10, 1.6 + 2.0 * len(results)), layout="constrained")
    grid = figure.subplots(len(results), 2, squeeze=False)
    for line, (net, kinds) in zip(grid, results.items(), strict=True):
        for ax, (what, rows) in zip(line, kinds.items(), strict=True):
            axes(ax)
            names = [name for name in rows if name != "plain"]
            ratios = [rows[name]["ratio"] for name in names]
            ax.barh(range(len(names)), ratios, color=[BLUE if name in OURS else MUTED for name in names])
            for position, ratio in enumerate(ratios):
                ax.text(ratio, position, f" {ratio:.3g}" if ratio < 100 else f" {ratio:.0f}", va="center", fontsize=8, color=INK)
            ax.set_yticks(range(len(names)), names, fontsize=8)
            ax.set_ylim(len(names) - 0.5, -0.5)
            ax.margins(x=0.15)
            ax.set_title(f"{net}: {what}, times the plain network", fontsize=9, color=INK)
    figure.savefig(path, dpi=110, facecolor="white", metadata={"Software": None})


def main() -> None:
    options = parser(__doc__, rounds=15)
    options.add_argument("--nets", nargs="*", default=list(NETS), choices=list(NETS))
    options.add_argument("--samples", type=int, default=100)
    options.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    options.add_argument("--alone", help=argparse.SUPPRESS)
    options.add_argument("--what", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.alone:
        repeat(work(args.alone, args.nets[0], args.what, args.samples), 3)()
        # getrusage of a new process would include the size of its parent
        peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        print(int(peak.split()[1]) / 1024)
        return
    names = ["plain", *OURS, *(name for name in args.peers if importlib.util.find_spec(PEERS[name]) is not None)]
    results: dict[str, Any] = {}
    for net in args.nets:
        samples = min(args.samples, _FEWER_DRAWS.get(net, args.samples))
        for what in ("training", "prediction"):
            timed = interleave(_runnable(names, net, what, samples), args.rounds)
            base = memory("plain", net, what, samples)
            for name, row in timed.items():
                row["extra_megabytes"] = round(memory(name, net, what, samples) - base) if name != "plain" else 0
            print_timings(f"{net}, {what}", timed)
            results.setdefault(net, {})[what] = timed
    if not args.dry:
        versions = {name: _version(name) for name in _PACKAGES}
        nets = (read("peers")["nets"] if (RESULTS / "peers.json").exists() else {}) | results
        nets = {net: nets[net] for net in NETS if net in nets}
        path = write("peers", {"rounds": args.rounds, "samples": args.samples, "versions": versions, "nets": nets})
        draw(nets, path.with_suffix(".png"))


def _runnable(names: Sequence[str], net: str, what: str, samples: int) -> dict[str, Callable[[], object]]:
    """The candidates that can run this network."""
    runs = dict[str, Callable[[], object]]()
    for name in names:
        try:
            run = work(name, net, what, samples)
            run()
        except Exception as error:  # of any kind in another library; the others are measured
            if name == "plain" or name in OURS:
                raise
            print(f"{net}, {what}: {name} is left out: {type(error).__name__}: {error}", flush=True)
        else:
            runs[name] = run
    return runs


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
