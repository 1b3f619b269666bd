"""Steps of data-parallel training in 1, 2 and 4 processes, all-reduces between them, and streamed predictions.

    python -m benchmarks.processes [--dry] [--rounds N]

The processes exchange gradients with gloo over loopback, one thread each, and share the batch. Times of steps are processor time of
the thread that computes; the exchange runs in other threads. Times of all-reduces are wall-clock, the fastest of the rounds. Writes
results/processes.json, which `benchmarks.growth` compares with its model.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from bayesify import MeanField, VariationalDropout, bayesify, elbo
from benchmarks.measure import interleave, parser, write
from benchmarks.nets import mlp

PROCESSES = (1, 2, 4)
SIZES = (784, 400, 400, 10)
BATCH = 512  # over all processes
METHODS = {
    "plain": None,
    "MeanField": MeanField(),
    "MeanField, shared noise": MeanField(noise="shared"),
    "VariationalDropout": VariationalDropout(),
}
MESSAGES = (4, 4 * 2**10, 2**20, 16 * 2**20)  # bytes
COLUMNS, FITTED, SCORED = 20, 2_000, (20_000, 200_000)  # of the tables


class Loss(nn.Module):
    """The loss of a network, as one module that DDP wraps."""

    def __init__(self, net: nn.Module, bayesian: bool) -> None:
        super().__init__()
        self.net, self.bayesian = net, bayesian

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if not self.bayesian:
            return nn.functional.cross_entropy(self.net(x), y)
        draws = self.net(x)
        log_prob = -nn.functional.cross_entropy(draws.outputs[0], y, reduction="none").unsqueeze(0)
        return -elbo(draws, log_prob, n=50_000)


def step(name: str, rows: int, sent: dict[str, int]) -> Callable[[], None]:
    """A training step, which counts in `sent` the bytes of gradients that it gives to the exchange."""
    net, method = mlp(*SIZES), METHODS[name]
    loss = Loss(net if method is None else bayesify(net, method), method is not None)
    x, y = torch.randn(rows, SIZES[0]), torch.randint(0, SIZES[-1], (rows,))
    loss(x, y)  # before DDP: the first pass examines the network
    model = DistributedDataParallel(loss)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-4, fused=True)

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # pyright: ignore[reportPrivateImportUsage]
        sent[name] = sent.get(name, 0) + bucket.buffer().nbytes
        return allreduce_hook(dist.group.WORLD, bucket)  # pyright: ignore[reportArgumentType]

    model.register_comm_hook(None, hook)

    def run() -> None:
        sent[name] = 0
        optimizer.zero_grad()
        model(x, y).backward()
        optimizer.step()

    return run


def work(rank: int, processes: int, port: int, rounds: int, path: str) -> None:
    """What a process does; the first one writes the results."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=processes)
    sent: dict[str, int] = {}
    steps = {name: step(name, BATCH // processes, sent) for name in METHODS}
    timings = interleave(steps, rounds, clock=time.thread_time)
    exchanges = {size: exchange(size, rounds) for size in MESSAGES} if processes > 1 else {}
    result = {
        "steps": {name: row["milliseconds"] for name, row in timings.items()},
        "sent": sent,
        "exchanges": exchanges,
    }
    if rank == 0:
        torch.save(result, path)
    dist.destroy_process_group()


def exchange(size: int, rounds: int) -> float:
    """Seconds of the fastest all-reduce of a number of bytes."""
    message, seconds = torch.ones(size // 4), []
    for _ in range(rounds + 2):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(message)
        seconds.append(time.perf_counter() - start)
        message.fill_(1.0)
    return min(seconds)


def measure(processes: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result")
        mp.spawn(work, args=(processes, 29500 + os.getpid() % 1000, rounds, path), nprocs=processes)  # pyright: ignore[reportPrivateImportUsage]
        return torch.load(path)


def constants() -> dict[str, float]:
    """Bytes per second of a copy, read and written, and seconds per normal draw, in processor time."""
    source, target, draws = torch.randn(2**24), torch.empty(2**24), torch.empty(2**20)
    timings = interleave({"copy": lambda: target.copy_(source), "draw": draws.normal_}, 15, clock=time.thread_time)
    return {
        "bandwidth": 2 * source.nbytes / (1e-3 * timings["copy"]["milliseconds"]),
        "draw": 1e-3 * timings["draw"]["milliseconds"] / draws.numel(),
    }


def scoring() -> dict[str, float]:
    """Processor seconds of `bayesify predict` on one file: those of a start, and rows per second; and bytes per row."""
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def table(rows: int) -> pd.DataFrame:
            return pd.DataFrame(rng.normal(size=(rows, COLUMNS)), columns=[f"x{i}" for i in range(COLUMNS)])

        data = table(FITTED)
        data.assign(y=np.sin(data["x0"]) * data["x1"] + 0.3 * rng.normal(size=FITTED)).to_parquet(folder / "train.parquet")
        command("fit", folder / "train.parquet", "--target", "y", "--out", folder / "model", "--test-fraction", "0", "--quiet")
        seconds, sizes = [], []
        for rows in SCORED:
            source, out = folder / f"in-{rows}", folder / f"out-{rows}"
            source.mkdir()
            table(rows).to_parquet(source / "rows.parquet")
            seconds.append(command("predict", folder / "model", f"{source}/*.parquet", "--out", out))
            sizes = [sum(path.stat().st_size for path in place.glob("*.parquet")) / rows for place in (source, out)]
    rate = (SCORED[1] - SCORED[0]) / (seconds[1] - seconds[0])
    return {"rows_per_second": rate, "start": seconds[0] - SCORED[0] / rate, "bytes_read": sizes[0], "bytes_written": sizes[1]}


def command(*arguments: object) -> float:
    """Run the command line with one thread, and return its processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    call = [sys.executable, "-c", "from bayesify.cli import main; main()", *map(str, arguments)]
    subprocess.run(call, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    arguments = parser(__doc__, rounds=15).parse_args()
    torch.set_num_threads(1)
    results = {str(processes): measure(processes, arguments.rounds) for processes in PROCESSES}
    content = {
        "cores": os.cpu_count(), "batch": BATCH, "constants": constants(), "processes": results, "scoring": scoring(),
    }  # fmt: skip
    print(content)
    if not arguments.dry:
        write("processes", content)


if __name__ == "__main__":
    main()
