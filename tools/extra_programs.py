"""What each extra of users serves, as a small program: `python tools/extra_programs.py EXTRA`, with bayesify[EXTRA] installed."""

from __future__ import annotations

import csv
import sys
import threading
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bayesify
from bayesify import Categorical, Gaussian, MeanField, Method, elbo, predict

PROGRAMS: dict[str, Callable[[], object]] = {}
"""By the name of the extra. They write into the working directory."""


def program(function: Callable[[], object]) -> Callable[[], object]:
    PROGRAMS[function.__name__] = function
    return function


def network(method: Method, outputs: int = 1, width: int = 8) -> bayesify.Bayesian:
    return bayesify.bayesify(nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, outputs)), method)


def rows(n: int = 60) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    return x, x.sum(1, keepdim=True).sin()


def write_table(path: Path, separator: str = ",") -> Path:
    x, y = rows(120)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(["a", "b", "c", "d", "target"])
        writer.writerows([[*(round(v, 4) for v in row), round(t, 4)] for row, t in zip(x.tolist(), y[:, 0].tolist(), strict=True)])
    return path


def two_lines() -> None:
    """The library without an extra."""
    x, y, likelihood, bnn = torch.randn(16, 4), torch.randint(0, 3, (16,)), Categorical(), network(MeanField(), 3)
    draws = bnn(x, samples=2)
    (-elbo(draws, likelihood.log_prob(draws.outputs, y), n=16)).backward()
    assert predict(bnn, x, likelihood, samples=10, seed=0).probs.shape == (16, 3)


@program
def train() -> None:
    from bayesify.integrations.lightning import BayesianModule
    from bayesify.train import Training, fit, fit_many

    assert BayesianModule(network(MeanField()), Gaussian(), n=60).bnn is not None
    history = fit(network(MeanField()), rows(), Gaussian(), epochs=3, batch_size=20, validation=rows(20), accelerator="cpu")
    assert len(history.loss) == 3
    trainings = [Training(bnn=network(MeanField()), data=rows(), likelihood=Gaussian(), seed=seed) for seed in range(2)]
    assert len(fit_many(trainings, epochs=2, batch_size=20, accelerator="cpu")) == 2


@program
def metrics() -> None:
    from bayesify.metrics import evaluate

    predictive = predict(network(MeanField(), 3), rows()[0], Categorical(), samples=5, seed=0)
    scores = evaluate(predictive, torch.arange(60) % 3)
    assert 0 <= scores["accuracy"] <= 1


@program
def tables() -> None:
    import pandas

    from bayesify.data import ParquetTable, read_table
    from bayesify.estimators import BayesianClassifier, BayesianRegressor
    from bayesify.persistence import load_model, save_model

    table = read_table(write_table(Path("table.csv")))
    X, y = table.drop(columns="target"), table["target"]
    model = BayesianRegressor(epochs=2, random_state=0).fit(X, y)
    save_model(model, "model")
    assert (load_model("model").predict(X) == model.predict(X)).all()
    labels = pandas.Series(["low", "high"])[(y > 0).astype(int)].reset_index(drop=True)
    assert set(BayesianClassifier(epochs=2, random_state=0).fit(X, labels).predict(X)) <= {"low", "high"}
    table.to_parquet("table.parquet")
    BayesianRegressor(method="Deterministic", epochs=1, random_state=0).fit_files(ParquetTable("table.parquet", target="target"))


@program
def data() -> None:
    from bayesify.datasets.data_files import download

    write_table(Path("served.csv"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}/served.csv"
    download(address, Path("folder") / "fetched.csv")
    assert Path("folder/fetched.csv").read_bytes() == Path("served.csv").read_bytes()
    server.shutdown()


@program
def plots() -> None:
    from bayesify.plots import plot_bands, plot_coverage

    x = torch.linspace(-1, 1, 30).unsqueeze(1)
    bnn = bayesify.bayesify(nn.Linear(1, 1), MeanField())
    predictive = predict(bnn, x, Gaussian(), samples=10, seed=0)
    figure = plot_bands(predictive, x).figure
    plot_coverage(predictive, torch.zeros(30, 1))
    assert figure is not None
    figure.savefig("bands.png")  # pyright: ignore[reportAttributeAccessIssue]
    assert Path("bands.png").stat().st_size > 1000


@program
def excel() -> None:
    from bayesify.data import read_table

    table = read_table(write_table(Path("table.csv")))
    table.to_excel("table.xlsx", index=False)
    assert read_table("table.xlsx").shape == table.shape


@program
def report() -> None:
    from bayesify.report import assess, render

    predictive = predict(network(MeanField(), 3), rows()[0], Categorical(), samples=5, seed=0)
    assert "<svg" in render(assess(predictive, torch.arange(60) % 3), title="A title")


@program
def transformers() -> None:
    import peft
    from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

    from bayesify import BLoB
    from bayesify.integrations.pretrained import from_pretrained
    from bayesify.integrations.transformers import BayesianTrainer

    def bert() -> nn.Module:
        sizes: dict[str, Any] = {
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 24,
            "num_labels": 3,
        }
        return BertForSequenceClassification(BertConfig(vocab_size=31, **sizes))

    words = torch.randint(3, 31, (12, 6)).tolist()
    examples = [{"input_ids": each, "attention_mask": [1] * 6, "labels": i % 3} for i, each in enumerate(words)]
    lora = peft.get_peft_model(bert(), peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"], r=2))
    for name, net, method in (("plain", bert(), MeanField()), ("lora", lora, BLoB())):
        bnn = bayesify.bayesify(net, method, output="logits")
        settings = TrainingArguments(name, max_steps=2, per_device_train_batch_size=4, report_to=[], use_cpu=True)
        trainer = BayesianTrainer(bnn, settings, train_dataset=examples, likelihood=Categorical())
        trainer.train()
        trainer.save_model(f"{name}-saved")
        restored, _ = from_pretrained(f"{name}-saved", bert() if name == "lora" else None)
        assert sum(1 for _ in restored.random_layers()) == sum(1 for _ in bnn.random_layers())


@program
def laplace() -> None:
    from bayesify import Laplace

    for structure in ("diagonal", "kronecker", "full"):
        bnn = network(Laplace(structure=structure))
        bnn.complete([rows()], Gaussian())
        assert predict(bnn, rows()[0], Gaussian(), samples=5, seed=0).mean.isfinite().all()


@program
def mcmc() -> None:
    from bayesify import HMC

    bnn = network(HMC(draws=4, chains=2, warmup=4, max_tree_depth=2))
    bnn.complete([rows(20)], Gaussian())
    assert predict(bnn, rows()[0], Gaussian(), seed=0).mean.isfinite().all()


@program
def fast() -> None:
    import bayesify.native

    assert bayesify.native.native_fwht(torch.ones(512))[0] == 512
    x = torch.randn(4, 16)
    for method in (bayesify.WHVI(), MeanField(), bayesify.VariationalDropout(), bayesify.VSD()):
        bnn = bayesify.bayesify(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)), method)
        draws = bnn(x, samples=2)
        (draws.outputs.square().mean() + draws.kl).backward()


@program
def ray() -> None:
    from bayesify.jobs import RayCluster
    from bayesify.jobs.cluster import run_jobs

    events = [event for event in run_jobs(lambda argument, channel: argument + 1, [1, 2], RayCluster()) if event]
    assert sorted(event.value for event in events if event.kind == "result") == [2, 3]


@program
def tracking() -> None:
    from bayesify.tracking import open_run
    from bayesify.train import fit

    for place in ("mlflow:sqlite:///runs.db", "tensorboard:board"):
        run = open_run(place, name="first")
        fit(network(MeanField()), rows(), Gaussian(), epochs=2, batch_size=20, accelerator="cpu", loggers=[place])
        run.end()
    assert Path("runs.db").exists()
    assert any(Path("board").rglob("events.out.*"))


@program
def cli() -> None:
    from typer.testing import CliRunner

    from bayesify.cli.app import app

    write_table(Path("table.csv"), ";")
    for arguments in (
        "--version",
        "methods",
        "fit table.csv --target target --method Deterministic --epochs 2 --out model",
        "predict model table.csv --out predictions.csv",
    ):
        result = CliRunner().invoke(app, arguments.split())
        assert result.exit_code == 0, f"{arguments}: {result.output} {result.exception!r}"
    assert Path("model/report.html").exists()
    assert len(Path("predictions.csv").read_text("utf-8").splitlines()) == 121


if __name__ == "__main__":
    two_lines()
    PROGRAMS[sys.argv[1]]()
    print(f"bayesify[{sys.argv[1]}] {bayesify.__version__} works with PyTorch {torch.__version__}, Python {sys.version.split()[0]}")
