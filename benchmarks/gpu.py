"""Everything that a GPU changes, in at most eight minutes: steps, compiled steps, predictions, transforms, `fit`, many models.

    python -m benchmarks.gpu [--device cuda] [--minutes 8] [--parts training compiled ...]
    python -m benchmarks.gpu --device cpu --quick --dry        # the same code on small networks, without a GPU

Every part gets an equal share of the time that is left, and makes as many interleaved rounds as fit in. A part that fails is
recorded with its error, and the others go on. Writes results/gpu.json after every part, in which parts of earlier runs stay that
this one does not measure; `python -m benchmarks.page` writes the section of docs/performance.md.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesify import EMP, VIFO, VSD, WHVI, Categorical, Gaussian, MeanField, Method, VariationalDropout, bayesify, elbo
from bayesify.environment import machine
from bayesify.native import use_native
from bayesify.native.switch import LIBRARIES
from bayesify.train import Training, fit, fit_many
from benchmarks.hadamard import layers, transforms
from benchmarks.measure import interleave, parser, print_timings, read, repeat, write
from benchmarks.nets import WORKLOADS, Workload, mlp, resnet18
from benchmarks.prediction import candidates as prediction_candidates
from benchmarks.training_step import steps

Candidates = dict[str, Callable[[], object]]
METHODS: dict[str, Method] = {
    "MeanField": MeanField(),
    "MeanField, shared noise": MeanField(noise="shared"),
    "VariationalDropout": VariationalDropout(),
    "VSD, T = 2": VSD(transforms=2),
    "WHVI": WHVI(),
    "EMP": EMP(),
    "VIFO": VIFO(),
}
SMALL = "MLP 784-400-400-10"
NETS: dict[str, Workload] = {  # the last two keep a GPU busy; the others have the sizes of the page's other sections
    SMALL: WORKLOADS[SMALL],
    "LeNet5": WORKLOADS["LeNet5"],
    "ResNet18": WORKLOADS["ResNet18"],
    "ResNet18, batch 512": Workload(resnet18, (3, 32, 32), 512, channels_last=True),
    "MLP 4096-4096-4096-10, batch 2048": Workload(lambda: mlp(4096, 4096, 4096, 10), (4096,), 2048),
}
WITH_KERNELS = ("MeanField", "MeanField, shared noise", "VariationalDropout", "WHVI")
_MOST_ROUNDS = 30
_NO_TIME = "left out: the time was over"


def _both(name: str, run: Callable[[], object], device: torch.device) -> Candidates:
    """A candidate with PyTorch's operators, and one with the native ones of the device."""

    def switched(native: bool) -> Callable[[], None]:
        def candidate() -> None:
            before = LIBRARIES[device.type]
            use_native(native, device.type)  # pyright: ignore[reportArgumentType]
            try:
                run()
            finally:
                LIBRARIES[device.type] = before

        return candidate

    return {name: switched(native=False), f"{name}, native": switched(native=True)}


def training(device: torch.device, quick: bool) -> Mapping[str, Candidates]:
    """Steps of eager code against the plain network; as in benchmarks.training_step."""
    return {net: steps(NETS[net], METHODS) for net in ((SMALL,) if quick else NETS)}


def native(device: torch.device, quick: bool) -> Mapping[str, Candidates]:
    """Steps with PyTorch's operators and with native ones, against the plain network; as in benchmarks.native_steps."""
    parts: dict[str, Candidates] = {}
    for net in (SMALL,) if quick else NETS:
        plain, *others = steps(NETS[net], {name: METHODS[name] for name in WITH_KERNELS}).items()
        parts[net] = dict([plain])
        for name, step in others:
            parts[net] |= _both(name, step, device)
    return parts


def compiled(device: torch.device, quick: bool) -> Mapping[str, Candidates]:
    """Steps with a compiled loss, with and without CUDA graphs ("reduce-overhead"), against eager ones."""
    kinds = {"eager": None, "compiled": {}}
    if device.type == "cuda":
        kinds["compiled, CUDA graphs"] = {"mode": "reduce-overhead"}
    nets = {"MLP 13-50-1": (13, 50, 1)} if quick else {"MLP 13-50-1": (13, 50, 1), SMALL: (784, 400, 400, 10)}
    methods = {"MeanField": MeanField()} if quick else {name: METHODS[name] for name in ("MeanField", "VariationalDropout", "WHVI")}
    return {
        f"{net}, {name}": {kind: _compiled_step(sizes, method, options) for kind, options in kinds.items()}
        for net, sizes in nets.items()
        for name, method in methods.items()
    }


def _compiled_step(sizes: Sequence[int], method: Method, options: Mapping[str, Any] | None) -> Callable[[], None]:
    torch.manual_seed(0)
    bnn, x = bayesify(mlp(*sizes), method), torch.randn(128, sizes[0])
    likelihood = Gaussian(std=0.3) if sizes[-1] == 1 else Categorical()
    y = torch.randn(128) if sizes[-1] == 1 else torch.randint(sizes[-1], (128,))
    likelihood.to(x.device)

    def loss() -> Tensor:
        draws = bnn(x)
        return -elbo(draws, likelihood.log_prob(draws.outputs, y), n=10_000)

    function = loss if options is None else torch.compile(loss, **options)
    optimizer = torch.optim.Adam(bnn.parameters(), fused=True)

    def step() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        function().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def prediction(device: torch.device, quick: bool) -> Mapping[str, Candidates]:
    """Predictions from 100 draws against one pass; as in benchmarks.prediction."""
    methods = ["VIFO", "MeanField", "MeanField, last layer", "MCDropout", "EMP"]
    nets = (SMALL,) if quick else (SMALL, "LeNet5", "ResNet18")
    return {net: prediction_candidates(NETS[net], methods, samples=10 if quick else 100) for net in nets}


def hadamard(device: torch.device, quick: bool) -> Mapping[str, Candidates]:
    """The transform against a copy of its input, and a WHVI layer against `nn.Linear`, with PyTorch's operators and native ones."""
    sizes, rows = ((128,), 16) if quick else ((512, 1024, 4096), 4096)
    parts: dict[str, Candidates] = {}
    for n in sizes:
        timed = transforms(n, rows)
        parts[f"transform {n}"] = {"copy": timed["copy"], **_both("fwht", timed["fwht"], device), "dense": timed["dense"]}
        timed = layers(n, rows)
        parts[f"layer {n}"] = {"nn.Linear": timed["nn.Linear"], **_both("WHVI", timed["WHVI"], device)}
    return {name: {kind: repeat(run, 10) for kind, run in runs.items()} for name, runs in parts.items()}


def fitting(device: torch.device, quick: bool) -> Mapping[str, Candidates]:
    """`fit` in every precision, compiled, and resumed from a checkpoint, which has to give the same losses."""
    x = torch.randn(256 if quick else 8192, 784)
    y = torch.randint(10, (len(x),))
    common: dict[str, Any] = {"batch_size": 128, "accelerator": device.type, "progress": False}

    def run(epochs: int = 2, **settings: Any) -> list[float]:
        torch.manual_seed(0)
        bnn = bayesify(mlp(784, 64, 10), MeanField())
        return fit(bnn, (x, y), Categorical(), epochs=epochs, **common, **settings).loss

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        run(1, checkpoint=path)
        torch.testing.assert_close(run(checkpoint=path), run())
    precisions = ("bf16-mixed", "16-mixed") if device.type == "cuda" else ("bf16-mixed",)
    runs: Candidates = {"32-true": run, **{p: lambda p=p: run(precision=p) for p in precisions}}
    return {"fit, 2 epochs": runs | ({} if quick else {"compiled": lambda: run(compile=True)})}


def many(device: torch.device, quick: bool) -> Mapping[str, Candidates]:
    """Twenty models of a table trained together against one."""

    def run(models: int) -> None:
        trainings = list[Training]()
        for seed in range(models):
            x = torch.randn(455, 13)
            bnn = bayesify(mlp(13, 50, 1), MeanField())
            trainings.append(Training(bnn=bnn, data=(x, x[:, 0].sin()), likelihood=Gaussian(std=0.5), seed=seed))
        fit_many(trainings, epochs=2 if quick else 50, together=True, accelerator=device.type, progress=False)  # pyright: ignore[reportArgumentType]

    count = 3 if quick else 20
    return {"fit_many": {"one model": lambda: run(1), f"{count} models": lambda: run(count)}}


def generation(device: torch.device, quick: bool) -> Mapping[str, Candidates]:
    """Generation from several draws; as in benchmarks.pretrained, with transformers and peft installed."""
    from benchmarks.pretrained import generation as candidates

    return {"Llama": dict(candidates(128, 2, 2) if quick else candidates(768, 12, 8))}


PARTS: dict[str, Callable[[torch.device, bool], Mapping[str, Candidates]]] = {
    "training": training, "native": native, "compiled": compiled, "prediction": prediction, "hadamard": hadamard,
    "fitting": fitting, "many": many, "generation": generation,
}  # fmt: skip


def measure(candidates: Candidates, device: torch.device, seconds: float) -> dict[str, Any]:
    """`interleave` with as many rounds as fit in this time, each candidate until the device has finished."""

    def finished(run: Callable[[], object]) -> Callable[[], None]:
        def synchronized() -> None:
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        return synchronized

    runs = {name: finished(run) for name, run in candidates.items()}
    for run in runs.values():  # compiles
        run()
    start = time.perf_counter()
    for run in runs.values():
        run()
    rounds = int(seconds / max(1e-6, time.perf_counter() - start))
    return interleave(runs, max(2, min(_MOST_ROUNDS, rounds)), warmup=0)


def _peak_bandwidth(device: torch.device) -> float:
    """GB/s read and written by a copy of 256 MB (16 MB on a CPU)."""
    x = torch.empty(2**26 if device.type == "cuda" else 2**22, device=device)
    milliseconds = statistics.median(measure({"copy": x.clone}, device, 0.5)["copy"]["milliseconds"] for _ in range(3))
    return round(2 * x.nbytes / milliseconds / 1e6, 1)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--device", default="cuda", help="cuda, cuda:1, cpu")
    options.add_argument("--minutes", type=float, default=8.0)
    options.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--quick", action="store_true", help="small networks, two rounds")
    arguments = options.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        options.error("PyTorch has no CUDA device here; --device cpu --quick runs the same code on small networks")
    deadline = time.perf_counter() + 60 * arguments.minutes - 20  # the last round of a part may end late
    facts = {"machine": machine(), "device": arguments.device, "quick": arguments.quick, "bandwidth": _peak_bandwidth(device)}
    parts = _measured_before()
    failures = dict[str, str]()
    for number, name in enumerate(arguments.parts):
        share = (deadline - time.perf_counter()) / (len(arguments.parts) - number)
        results, errors = _measure_part(name, device, arguments.quick, time.perf_counter() + share, deadline)
        failures |= {f"{name}, {label}": reason for label, reason in errors.items()}
        parts[name] = {**facts, "results": results, "errors": errors}
        if not arguments.dry:
            write("gpu", {"parts": parts}, measured=False)
    for label, reason in failures.items():
        print(f"{label}: {reason}")
    if failures and arguments.quick:
        raise SystemExit(f"failed: {failures}")


def _measure_part(
    name: str, device: torch.device, quick: bool, until: float, deadline: float
) -> tuple[dict[str, Any], dict[str, str]]:
    """Results by label, and by label why there are none: an error, or no time before the deadline."""
    results, errors = dict[str, Any](), dict[str, str]()
    if time.perf_counter() > deadline:
        return {}, {"all": _NO_TIME}
    try:
        with torch.device(device):
            labeled = PARTS[name](device, quick)
        for label, candidates in labeled.items():
            if time.perf_counter() > deadline:
                errors[label] = _NO_TIME
                continue
            seconds = 0.0 if quick else (until - time.perf_counter()) / len(labeled)
            results[label] = timed = measure(candidates, device, seconds)
            print_timings(f"{name}: {label}", timed)
    except Exception as error:  # noqa: BLE001 # the other parts are measured, and the page says what failed
        errors["others" if results else "all"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    return results, errors


def _measured_before() -> dict[str, Any]:
    """The parts of earlier runs, which those of this one replace."""
    try:
        return read("gpu")["parts"]
    except FileNotFoundError:
        return {}


if __name__ == "__main__":
    main()
