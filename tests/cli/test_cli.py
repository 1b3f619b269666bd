"""The command line: results, files, errors and exit codes, interrupted runs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("skops")
pd = pytest.importorskip("pandas")
np = pytest.importorskip("numpy")

from typer.testing import CliRunner  # noqa: E402

import bayesify  # noqa: E402
from bayesify import Method  # noqa: E402
from bayesify.cli.app import app  # noqa: E402
from bayesify.cli.evaluation import encode_targets  # noqa: E402
from bayesify.cli.terminal import UsageError, interruptible  # noqa: E402
from bayesify.errors import ISSUES, DataError, DivergenceError, MissingDependencyError, PassError  # noqa: E402
from bayesify.train import checkpoint  # noqa: E402

SRC = str(Path(bayesify.__file__).parents[1])
_NOTES = ("note:", "regression of", "classification of", "resuming")
# Where tests run in the background, interrupts may be switched off for all they start.
MAIN = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from bayesify.cli import main; main()"


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def refuse(*arguments, match, files):
    """The command fails with one line, exit code 2, and changes no file."""
    before = sorted(files.rglob("*"))
    result = run(*arguments, code=2)
    assert result.stdout == ""
    (line,) = [line for line in result.stderr.splitlines() if not line.startswith(_NOTES)]
    assert line.startswith("bayesify: ")
    assert match in line
    assert sorted(files.rglob("*")) == before


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2))
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": np.where(x[:, 0] > 0.5, "p", "q")})
    frame.assign(y=2 * x[:, 0] + 0.1 * rng.normal(size=120)).to_csv(folder / "numbers.csv", index=False)
    labeled = frame.assign(kind=np.where(x[:, 0] + 0.2 * rng.normal(size=120) > 0, "big one", "small"))
    labeled.to_parquet(folder / "classes.parquet")
    return folder


@pytest.fixture(scope="module")
def models(tables):
    for data, target in (("numbers.csv", "y"), ("classes.parquet", "kind")):
        run("fit", tables / data, "--target", target, "--out", tables / f"model-{target}", "--method", "MCDropout",
            "--epochs", "30", "--set", "hidden=16")  # fmt: skip
    return tables


def test_version():
    assert run("--version").stdout == f"bayesify {bayesify.__version__}\n"


def test_methods_lists_the_registry():
    text = run("methods").stdout
    for name in Method.registry:
        assert name in text
    assert "prior_std=1" in text
    assert "eta=1 or 0.01" in text  # VIFO, for regression and for classification
    assert "learning_rate" in text


def test_fit_writes_a_model_a_report_and_test_predictions(models):
    folder = models / "model-y"
    names = {"config.json", "weights.safetensors", "preprocessing.skops", "report.html", "test-predictions.csv"}
    assert {path.name for path in folder.iterdir()} == names
    table = pd.read_csv(folder / "test-predictions.csv")
    assert list(table) == ["row", "true y", "mean", "std", "lower", "upper"]
    original = pd.read_csv(models / "numbers.csv")
    assert table["true y"].tolist() == pytest.approx(original["y"].iloc[table["row"]].tolist())
    assert len(table) == 24
    error = float(np.sqrt(np.mean((table["mean"] - table["true y"]) ** 2)))
    config = json.loads((folder / "config.json").read_text())
    assert config["metrics"]["rmse"] == pytest.approx(error)
    assert config["params"]["hidden"] == [16]
    report = (folder / "report.html").read_text()
    assert "MCDropout" in report
    assert "24 rows held out" in report


def test_predict_columns_of_regression(models, tmp_path):
    table = pd.read_csv(models / "numbers.csv", index_col=False)
    shuffled = table.sample(frac=1, random_state=0).set_axis([f"row {i}" for i in range(120)])
    shuffled.to_csv(tmp_path / "new.csv")
    run("predict", models / "model-y", tmp_path / "new.csv", "--out", tmp_path / "out.parquet", "--level", "0.5")
    out = pd.read_parquet(tmp_path / "out.parquet")
    assert list(out) == ["mean", "std", "lower", "upper"]
    assert out.index.tolist() == shuffled.index.tolist()
    straight = run("predict", models / "model-y", models / "numbers.csv", "--level", "0.5").stdout
    (tmp_path / "straight.csv").write_text(straight)
    by_row = pd.read_csv(tmp_path / "straight.csv").iloc[table.sample(frac=1, random_state=0).index]
    np.testing.assert_allclose(out.to_numpy(), by_row.to_numpy(), rtol=1e-6)
    assert ((out["upper"] - out["lower"]) / out["std"]).median() == pytest.approx(2 * 0.6745, rel=0.1)  # normal quartiles


def test_predict_columns_of_classification(models, tmp_path):
    run("predict", models / "model-kind", models / "classes.parquet", "--out", tmp_path / "out.csv", "--samples", "7")
    out = pd.read_csv(tmp_path / "out.csv")
    assert list(out) == ["prediction", "p_big one", "p_small", "entropy", "mutual_information"]
    probs = out[["p_big one", "p_small"]].to_numpy()
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-6)
    np.testing.assert_allclose(out["entropy"], -(probs * np.log(probs)).sum(1), atol=1e-5)
    assert (out["prediction"] == np.where(probs[:, 0] > 0.5, "big one", "small")).all()


def test_evaluate_agrees_with_the_predictions(models, tmp_path):
    text = run("evaluate", models / "model-kind", models / "classes.parquet", "--report", tmp_path / "report.html").stdout
    run("predict", models / "model-kind", models / "classes.parquet", "--out", tmp_path / "out.csv")
    right = (pd.read_csv(tmp_path / "out.csv")["prediction"] == pd.read_parquet(models / "classes.parquet")["kind"]).mean()
    assert f"{100 * right:.1f}".removesuffix(".0") + "%" in text
    assert "not trained on" not in (tmp_path / "report.html").read_text()


def test_piped_output_is_plain(models):
    text = run("evaluate", models / "model-y", models / "numbers.csv").stdout
    assert "\x1b" not in text
    assert not set("─│┃━┏╭") & set(text)


def test_separate_test_table(models, tmp_path):
    run(
        "fit",
        models / "numbers.csv",
        "--target",
        "y",
        "--out",
        tmp_path / "m",
        "--epochs",
        "2",
        "--test",
        models / "numbers.csv",
        "--quiet",
    )
    assert len(pd.read_csv(tmp_path / "m" / "test-predictions.csv")) == 120


def test_quiet_prints_nothing(models, tmp_path):
    result = run("fit", models / "numbers.csv", "--target", "y", "--out", tmp_path / "m", "--epochs", "2", "--quiet")
    assert result.output == ""


def test_overwrite(models, tmp_path):
    fit = ("fit", models / "numbers.csv", "--target", "y", "--out", tmp_path / "m", "--epochs", "2", "--quiet")
    run(*fit)
    first = (tmp_path / "m" / "weights.safetensors").read_bytes()
    refuse(*fit, match="add --overwrite", files=tmp_path)
    run(*fit, "--overwrite", "--seed", "1")
    assert (tmp_path / "m" / "weights.safetensors").read_bytes() != first


@pytest.mark.parametrize(
    ("options", "match"),
    [(["--target", "Y"], "Did you mean 'y'?"),
     (["--target", "y", "--method", "foo"], "unknown method 'foo'"),
     (["--target", "y", "--method", "MeanField", "--set", "prior_sd=1"], "Did you mean 'prior_std'?"),
     (["--target", "y", "--method", "MeanField", "--set", "prior_std=-1"], "prior_std must be a finite number above 0"),
     (["--target", "y", "--set", "learning_rate=fast"], "learning_rate must be a number, got 'fast'"),
     (["--target", "y", "--set", "learning_rate=-1"], "learning_rate must be a finite number above 0"),
     (["--target", "y", "--set", "activation=foo"], "activation must be one of"),
     (["--target", "y", "--set", "prior_std"], "--set takes field=value"),
     (["--target", "y", "--test-fraction", "0.001"], "leaves 0 of 120 rows to test on"),
     (["--target", "y", "--test-fraction", "2"], "--test-fraction must be a number in [0, 1)"),
     (["--target", "y", "--test", "nowhere.csv"], "nowhere.csv does not exist"),
     (["--target", "c", "--task", "regression"], "regression needs numbers")],
)  # fmt: skip
def test_fit_refuses(models, tmp_path, options, match):
    refuse("fit", models / "numbers.csv", "--out", tmp_path / "m", *options, match=match, files=tmp_path)


def test_fit_refuses_bad_tables_and_folders(models, tmp_path):
    (tmp_path / "empty.csv").write_text("")
    refuse("fit", tmp_path / "empty.csv", "--target", "y", "--out", tmp_path / "m", match="is empty", files=tmp_path)
    refuse("fit", tmp_path / "none.csv", "--target", "y", "--out", tmp_path / "m", match="does not exist", files=tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("precious")
    refuse("fit", models / "numbers.csv", "--target", "y", "--out", tmp_path / "full", match="full", files=tmp_path)
    table = pd.read_csv(models / "numbers.csv")
    table.assign(y=table["y"].where(table.index != 3)).to_csv(tmp_path / "gaps.csv", index=False)
    refuse("fit", tmp_path / "gaps.csv", "--target", "y", "--out", tmp_path / "m", match="missing in 1 of 120 rows", files=tmp_path)


def test_predict_and_evaluate_refuse(models, tmp_path):
    data, model = models / "numbers.csv", models / "model-y"
    refuse("predict", tmp_path, data, match="not a model directory", files=tmp_path)
    refuse("predict", model, data, "--out", tmp_path / "x.foo", match="unknown ending '.foo'", files=tmp_path)
    refuse("predict", model, data, "--out", tmp_path / "no" / "x.csv", match="folder that does not exist", files=tmp_path)
    refuse("predict", model, data, "--level", "1", match="--level must be a number in [0, 1)", files=tmp_path)
    refuse("predict", model, data, "--samples", "0", match="--samples must be a whole number of at least 1", files=tmp_path)
    refuse("predict", models / "model-kind", tmp_path / "no.csv", match="does not exist", files=tmp_path)
    pd.read_csv(data).drop(columns="b").to_csv(tmp_path / "less.csv", index=False)
    refuse("predict", model, tmp_path / "less.csv", match="'b'", files=tmp_path)
    refuse("evaluate", model, models / "classes.parquet", match="no column 'y'", files=tmp_path)
    other = pd.read_parquet(models / "classes.parquet").assign(kind="huge")
    other.to_parquet(tmp_path / "other.parquet")
    refuse("evaluate", models / "model-kind", tmp_path / "other.parquet", match="'huge'", files=tmp_path)


def test_an_internal_error_exits_with_70_and_shows_its_traceback(models, monkeypatch):
    for error in (ValueError, TypeError, RuntimeError, AssertionError, ImportError):

        def broken(path, error=error):
            raise error("detail")

        monkeypatch.setattr("bayesify.cli.app.read_table", broken)
        result = run("predict", models / "model-y", models / "numbers.csv", code=70)
        assert result.stdout == ""
        assert "Traceback" in result.stderr
        assert f"{error.__name__}: detail" in result.stderr
        last = result.stderr.splitlines()[-1]
        assert last.startswith(f"bayesify: internal error ({error.__name__}). This is a bug")
        assert ISSUES in last


@pytest.mark.parametrize(
    "error",
    [UsageError("detail"), DataError("detail"), DivergenceError("detail"), PassError("detail"), OSError("detail"),
     PermissionError("detail"), MissingDependencyError("detail", "package", extra="all")],
)  # fmt: skip
def test_errors_of_the_user_are_one_line_and_exit_with_2(models, monkeypatch, error):
    def fail(path):
        raise error

    monkeypatch.setattr("bayesify.cli.app.read_table", fail)
    (line,) = run("predict", models / "model-y", models / "numbers.csv", code=2).stderr.splitlines()
    assert line.startswith("bayesify: detail")


def test_ctrl_c_is_one_line(models, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("bayesify.cli.app.read_table", interrupt)
    assert run("predict", models / "model-y", models / "numbers.csv", code=130).stderr == "bayesify: interrupted\n"


def start(arguments):
    environment = {**os.environ, "PYTHONPATH": SRC, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", MAIN, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill_when_written(process, path):
    """Kill a process as soon as it has written a file."""
    deadline = time.monotonic() + 120
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.communicate()


@pytest.fixture
def interrupt_at_checkpoint(monkeypatch):
    """Make this process interrupt itself after the next checkpoint, once."""

    def write_and_interrupt(path, state):
        monkeypatch.undo()
        checkpoint.write(path, state)
        signal.raise_signal(signal.SIGINT)

    default = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: monkeypatch.setattr(checkpoint, "write", write_and_interrupt)
    signal.signal(signal.SIGINT, default)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_interrupted_run_resumes_to_the_same_model(models, tmp_path, interrupt_at_checkpoint):
    options = ["--target", "y", "--method", "MCDropout", "--epochs", "300", "--seed", "3", "--set", "hidden=8"]
    fit = ["fit", models / "numbers.csv", "--out", tmp_path / "m", *options]
    kill_when_written(start(fit), tmp_path / "m" / "training.ckpt")
    assert [path.name for path in (tmp_path / "m").iterdir() if not path.name.endswith(".tmp")] == ["training.ckpt"]
    refuse(*fit, "--set", "learning_rate=0.1", match="Add --restart", files=tmp_path)

    interrupt_at_checkpoint()
    errors = run(*fit, code=130).stderr
    assert "resuming the interrupted run" in errors
    assert "Traceback" not in errors
    assert "the same command goes on" in errors
    assert "resuming the interrupted run" in run(*fit).stderr
    assert not (tmp_path / "m" / "training.ckpt").exists()
    run("fit", models / "numbers.csv", "--out", tmp_path / "straight", *options, "--quiet")
    assert (tmp_path / "m" / "weights.safetensors").read_bytes() == (tmp_path / "straight" / "weights.safetensors").read_bytes()


def test_an_interrupt_that_a_library_turns_into_an_error_is_an_interrupt():
    def import_something():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("a part of the library failed to import") from None

    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), interruptible(), interruptible():
            import_something()
        with pytest.raises(ImportError, match="missing"), interruptible():
            raise ImportError("missing")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, usual)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["diabetes", "digits", "breast-cancer", "wine"])
def test_demo(name, tmp_path):
    result = run("demo", "--data", name, "--out", tmp_path / "demo")
    assert all(method in result.stdout for method in ("Deterministic", "MCDropout", "VariationalDropout", "MeanField"))
    assert [path.name for path in (tmp_path / "demo").iterdir()] == ["report.html"]
    assert str(tmp_path / "demo" / "report.html") in result.stderr


def test_a_missing_package_is_reported_in_one_line():
    block = "import sys; sys.modules['typer'] = None; "
    environment = {**os.environ, "PYTHONPATH": SRC}
    done = subprocess.run([sys.executable, "-c", block + MAIN], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert 'pip install "bayesify[cli]"' in done.stderr


def test_targets_are_indices_of_classes(models):
    from bayesify.persistence import load_model

    estimator = load_model(models / "model-kind")
    assert encode_targets(estimator, pd.Series(["small", "big one"], name="kind")).tolist() == [1, 0]
