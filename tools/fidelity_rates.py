"""Learning rates in tables of the distance from the posterior, by the evidence lower bound of the training rows alone.

    python tools/fidelity_rates.py posterior/concrete [--methods IVON SLANG ...] [--rates 0.01 0.03 ...]

A line is a method and a rate: nats per training row of the first seed, from 200 draws. Test rows are not looked at. By default all
methods whose loss is a bound on the evidence.
"""

import argparse
import os
import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from experiments.harness.config import read_table
from experiments.protocols.fidelity import Fidelity, trained
from experiments.protocols.fidelity.tasks import make_task

from bayesify import elbo
from bayesify.errors import BayesifyError, BayesifyWarning

NATURAL = ("IVON", "VOGN", "NoisyAdam", "NoisyKFAC", "SLANG")
WITH_ADAM = ("MeanField", "WHVI", "ELRG", "VMG", "MNF", "Radial", "Rank1", "TensorFactorized")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("table")
    options.add_argument("--methods", nargs="+", default=[*NATURAL, *WITH_ADAM])
    options.add_argument("--rates", nargs="+", type=float, default=[0.003, 0.01, 0.03, 0.1, 0.3, 1.0])
    arguments = options.parse_args()
    torch.set_num_threads(1)
    data_dir = Path(os.environ["BAYESIFY_DATA"]) if "BAYESIFY_DATA" in os.environ else None
    for job in Fidelity().jobs(read_table(arguments.table)):
        if job.settings["method"] not in arguments.methods:
            continue
        for rate in arguments.rates:
            settings = {**job.settings, "learning_rate": rate}
            task = make_task(settings["data"], settings["rows"], 0, data_dir)
            remarks = []
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    bnn, likelihood = trained(settings, task, 0)
                    with torch.no_grad():
                        draws = bnn.eval()(task.x, samples=200, coherent=True)
                        bound = elbo(draws, likelihood.log_prob(draws.outputs, task.y), n=len(task.x)).item()
                    remarks = [str(w.message)[:60] for w in caught if issubclass(w.category, BayesifyWarning)]
                except BayesifyError as error:
                    print(f"{job.settings['method']:12} {rate:<6g} {str(error)[:80]}", flush=True)
                    continue
            print(f"{job.settings['method']:12} {rate:<6g} {bound:9.3f}  {'; '.join(dict.fromkeys(remarks))}", flush=True)


if __name__ == "__main__":
    main()
