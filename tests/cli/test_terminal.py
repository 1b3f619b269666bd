"""Text on terminals and in logs, interrupts, and the errors of training in the words of the command line."""

import io
import signal

import pytest

pytest.importorskip("typer")
pytest.importorskip("skops")
pd = pytest.importorskip("pandas")
np = pytest.importorskip("numpy")

from command_line import refuse, run
from rich.console import Console

from bayesify.cli import terminal
from bayesify.errors import DivergenceError
from bayesify.estimators import BayesianRegressor
from bayesify.progress import ProgressBar
from bayesify.train import checkpoint

WORDS = "predictions of uncertain quantities " * 5


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 3)), columns=["a", "b", "y"])
    frame.to_csv(tmp_path / "my table.csv", index=False)
    return tmp_path / "my table.csv"


def fit(table, *options, **how):
    return run(
        "fit",
        table,
        "--target",
        "y",
        "--out",
        table.parent / "my model",
        "--method",
        "MCDropout",
        *(() if "--epochs" in options else ("--epochs", "2")),
        *options,
        **how,
    )


def test_terminals_get_whole_words(monkeypatch):
    def shown(width, **options):
        file = io.StringIO()
        monkeypatch.setattr(
            terminal, "Console", lambda **kw: Console(file=file, force_terminal=width is not None, width=width, highlight=False)
        )
        terminal.say(WORDS, **options)
        with pytest.raises(terminal.typer.Exit):
            terminal.fail(WORDS)
        return file.getvalue()

    for line in shown(50).splitlines():
        assert set(line.replace("\x1b[1;31m", "").replace("\x1b[0m", "").split()) <= {"bayesify:", *WORDS.split()}
        assert len(line.rstrip()) < 70
    assert WORDS in shown(50, wrap=False), "commands are copied"
    assert WORDS.strip() in shown(None)


def test_hints_quote_paths(table):
    text = fit(table).stderr
    assert f"Next: bayesify predict '{table.parent / 'my model'}' '{table}'" in text


def test_divergence_names_an_option(table, monkeypatch):
    def diverge(self, *arguments, **options):
        raise DivergenceError("the loss became inf in batch 1 of epoch 1. Try clip_norm=1.0")

    monkeypatch.setattr(BayesianRegressor, "fit", diverge)
    refuse(
        "fit", table, "--target", "y", "--out", table.parent / "m", "--set", "learning_rate=20", files=table.parent,
        match="training diverged: the loss became inf in batch 1 of epoch 1. Try a lower learning rate: --set learning_rate=2",
    )  # fmt: skip


def test_the_way_out_of_a_divergence_works(table):
    out = ("fit", table, "--target", "y", "--method", "MCDropout", "--epochs", "3", "--out", table.parent / "m")
    assert "training diverged" in run(*out, "--set", "learning_rate=1e30", code=2).stderr
    assert "resuming" not in run(*out, "--set", "learning_rate=0.01").stderr


def test_an_accelerator_that_is_absent(table, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    refuse(
        "fit",
        table,
        "--target",
        "y",
        "--out",
        table.parent / "m",
        "--set",
        "accelerator=cuda",
        match="no CUDA device",
        files=table.parent,
    )


def test_an_interrupt_in_training_is_one_line(table, monkeypatch):
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(BayesianRegressor, "fit", lambda *arguments, **options: signal.raise_signal(signal.SIGINT))
    try:
        text = fit(table, code=130).stderr
    finally:
        signal.signal(signal.SIGINT, usual)
    assert text.splitlines()[1:] == ["bayesify: interrupted"]


def test_logs_have_lines_of_progress(table, monkeypatch):
    monkeypatch.setattr(terminal, "_LINE_SECONDS", 0.0)
    monkeypatch.setattr(ProgressBar, "line_seconds", None)
    lines = fit(table).stderr.splitlines()
    assert "training: 50%" in lines
    assert any(line.startswith("epoch") and line.endswith(": 100%") for line in lines)
    assert fit(table, "--overwrite", "--quiet").stderr == ""


def test_another_run_is_refused_in_one_line(table, monkeypatch):
    write = checkpoint.write

    def write_and_stop(path, state):
        write(path, state)
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "write", write_and_stop)
    fit(table, code=130)
    monkeypatch.setattr(checkpoint, "write", write)
    (line,) = fit(table, "--epochs", "3", code=2).stderr.splitlines()[2:]
    assert "epochs was 2 and is 3" in line
    assert "add --restart to start afresh" in line
    assert len(line) < 500


def test_hidden_is_a_sequence():
    with pytest.raises(TypeError, match=r"hidden must be a sequence of widths, such as \(32,\), got 32"):
        BayesianRegressor(hidden=32, epochs=1).fit(np.eye(8), np.arange(8.0))
