"""An experiment of a millisecond: what the tests of the harness run. Worker processes import it, so it is a module of its own."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

from experiments.harness.protocol import Job, Protocol, UnitError

CONFIG = """
title = "Toys"
source = "No paper."
protocol = "toy"
factor = {factor}
units = 4
datasets = ["a", "b"]
log = "{log}"

[published]
a = 1.5

[quick]
units = 1
"""


LOCKS = []  # what a worker holds, as compiled code does, and has to put away when it ends


def write_config(root, name="paper/toys", factor=2.0, extra=""):
    """A table below `root`; returns the file that the toy writes down its work in."""
    folder, log = root / name, root / "log.txt"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(extra + CONFIG.format(factor=factor, log=log))
    return log


def work_done(log):
    """What the toy has run, in order."""
    return log.read_text().split() if log.exists() else []


class Toy(Protocol):
    """Unit u gives factor times u. The setting `trouble` says what goes wrong where: in {a-1 = "fail"}, unit 1 of a."""

    name = "toy"

    def jobs(self, table):
        s = table.settings
        if s["factor"] <= 0:
            raise ValueError(f"factor must be above 0, got {s['factor']}")
        return [
            Job(
                key=dataset,
                settings={
                    "dataset": dataset,
                    "method": s.get("methods", {}).get(dataset, "Toy"),
                    "factor": s["factor"],
                    "trouble": s.get("trouble", {}),
                    "log": s["log"],
                },
                units=tuple(map(str, range(s["units"]))),
                cost=place + 1.0,
            )
            for place, dataset in enumerate(s["datasets"])
        ]

    def run(self, job, units, context):
        s, results = job.settings, {}
        for done, unit in enumerate(units):
            name = f"{job.settings['dataset']}-{unit}"
            with Path(s["log"]).open("a") as file:
                file.write(f"{name}\n")
            trouble = s["trouble"].get(name)
            while trouble == "wait" and not Path(s["log"]).with_name("go").exists():
                time.sleep(0.02)
            if trouble == "fail":
                raise ValueError("the toy broke")
            if trouble == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if trouble == "die once" and not (died := Path(s["log"]).with_name("died")).exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if trouble == "lock":
                LOCKS.append(multiprocessing.get_context("spawn").Lock())
            if trouble == "skip":
                raise UnitError(f"unit {unit}: it would not")
            results[unit] = {"value": s["factor"] * int(unit)}
            context.save({unit: results[unit]})
            context.progress((done + 1) / len(units))
        return results

    def report(self, table, jobs, results):
        return "\n".join(f"{key}: {sum(unit['value'] for unit in units.values())}" for key, units in results.items())
