"""Scripts in processes that torchrun starts on loopback; the processes end with the call."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

SECONDS = 300  # about 20 on an idle machine


def environment() -> dict[str, str]:
    """One thread per process, and nothing of a launcher around the tests."""
    launchers = ("SLURM_", "TORCHELASTIC_", "LOCAL_", "GROUP_", "MASTER_", "RANK", "WORLD_SIZE", "NODE_RANK")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
    return {**kept, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def torchrun(script: Path, *arguments: object, processes: int = 2, agents: int = 1, restarts: int = 0) -> tuple[int, str]:
    """Run a script in processes of one or several agents, as of several hosts; return the exit code and all output."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}", f"--max-restarts={restarts}"]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", f"--nnodes={agents}", "--local-addr=127.0.0.1"]
    command += [str(script), *map(str, arguments)]
    return together([(command, environment())] * agents, script.parent)


def together(commands: list[tuple[list[str], dict[str, str]]], folder: Path) -> tuple[int, str]:
    """Run commands at the same time; return the first exit code that is not 0, and all output."""
    logs = [folder / f"output{i}.txt" for i in range(len(commands))]
    running = []
    for (command, variables), log in zip(commands, logs, strict=True):
        with log.open("wb") as file:
            running.append(subprocess.Popen(command, env=variables, cwd=folder, stdout=file, stderr=subprocess.STDOUT))
    try:
        deadline = time.monotonic() + SECONDS
        codes = [process.wait(max(0.0, deadline - time.monotonic())) for process in running]
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
    return next(filter(None, codes), 0), "".join(log.read_text() for log in logs)
