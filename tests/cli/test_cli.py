"""The command line: results, files, errors and exit codes, interrupted runs."""

import json
import os
import re
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
safetensors = pytest.importorskip("safetensors.torch")

from command_line import refuse, run

import bayesify
from bayesify import Method, methods
from bayesify.cli.evaluation import encode_targets
from bayesify.cli.terminal import UsageError, interruptible
from bayesify.errors import DataError, DivergenceError, MissingDependencyError, PassError
from bayesify.estimators import BayesianRegressor
from bayesify.train import checkpoint

SRC = str(Path(bayesify.__file__).parents[1])
# Where tests run in the background, interrupts may be switched off for all they start.
MAIN = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from bayesify.cli import main; main()"


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
    for name in methods.__all__:  # by family, with their papers
        kind = Method.registry[name]
        assert kind.family in text
        assert kind.family != "Other"
        assert kind.paper in text
        assert kind.advice in text
        assert kind.advice.endswith(".")
        assert kind.cost in text
        assert kind.cost
        assert kind.paper or name == "Deterministic"


@pytest.mark.default("SWAG", extended=[])
@pytest.mark.parametrize("options", [("SWAG", "rank=2"), ("DeepEnsemble", "base=SWAG", "members=2")], ids=["SWAG", "MultiSWAG"])
def test_fit_collects_a_posterior_along_training(tables, tmp_path, options):
    method, *settings = options
    extra = [part for setting in (*settings, "hidden=8") for part in ("--set", setting)]
    run("fit", tables / "numbers.csv", "--target", "y", "--out", tmp_path / "m", "--method", method, "--epochs", "10", *extra)
    state = safetensors.load_file(tmp_path / "m" / "weights.safetensors")
    counts = [int(value) for name, value in state.items() if name.endswith("posterior.count")]
    assert len(counts) == (2 if method == "SWAG" else 4)
    assert all(count > 1 for count in counts)


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
    assert config["metrics"]["rmse"] == pytest.approx(error, rel=1e-4)  # the file is rounded
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
    np.testing.assert_allclose(out.to_numpy(), by_row.to_numpy(), atol=1e-4 * out["std"].max())
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


@pytest.fixture(scope="module")
def conformal_models(tables):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 2))
    y = 2 * x[:, 0] + rng.normal(size=300) * (0.5 + (x[:, 1] > 0))
    kinds = np.select([y > 1, y < -1], ["big one", "small"], "middle")
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y}).to_csv(tables / "noisy.csv", index=False)
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "kind": kinds}).to_csv(tables / "kinds.csv", index=False)
    for data, target in (("noisy.csv", "y"), ("kinds.csv", "kind")):
        run("fit", tables / data, "--target", target, "--out", tables / f"conformal-{target}", "--method", "Deterministic",
            "--epochs", "20", "--set", "hidden=16", "--conformal")  # fmt: skip
    return tables


def test_conformal_intervals(conformal_models, tmp_path):
    folder = conformal_models
    shown = run("evaluate", folder / "conformal-y", folder / "noisy.csv", "--report", tmp_path / "report.html").stdout
    assert "Intervals contain the target of at least 95% of new rows on average (conformal, 48 calibration rows)" in shown
    assert "Metrics and verdict are about the intervals before calibration" in " ".join(shown.split())
    assert "This is not guaranteed within each group of rows" in shown
    for page in (tmp_path / "report.html", folder / "conformal-y" / "report.html"):
        assert "at least 95% of new rows" in page.read_text()
    run("predict", folder / "conformal-y", folder / "noisy.csv", "--out", tmp_path / "out.csv", "--level", "0.8")
    out, true = pd.read_csv(tmp_path / "out.csv"), pd.read_csv(folder / "noisy.csv")
    assert list(out) == ["mean", "std", "lower", "upper"]
    share = ((out["lower"] <= true["y"]) & (true["y"] <= out["upper"])).mean()
    assert share == pytest.approx(0.8, abs=0.15)
    held_out = pd.read_csv(folder / "conformal-y" / "test-predictions.csv")
    assert len(held_out) == 60
    refuse("predict", folder / "conformal-y", folder / "noisy.csv", "--level", "0.99",
           match="level=0.99 needs at least 99 calibration rows, got 48", files=tmp_path)  # fmt: skip


def test_conformal_label_sets(conformal_models, tmp_path):
    folder = conformal_models
    shown = run("evaluate", folder / "conformal-kind", folder / "kinds.csv").stdout
    assert "Sets of labels contain the target of at least 95% of new rows" in shown
    assert "labels per set on average" in shown
    run("predict", folder / "conformal-kind", folder / "kinds.csv", "--out", tmp_path / "out.csv", "--level", "0.9")
    out, true = pd.read_csv(tmp_path / "out.csv"), pd.read_csv(folder / "kinds.csv")["kind"]
    assert out.columns[-1] == "label_set"
    sets = [text.split(" | ") for text in out["label_set"]]
    assert all(best in labels for best, labels in zip(out["prediction"], sets, strict=True))
    assert np.mean([label in labels for label, labels in zip(true, sets, strict=True)]) > 0.8


@pytest.mark.slow
def test_conformal_with_other_splits_has_a_note(conformal_models, tmp_path):
    options = ["--target", "y", "--out", tmp_path / "m", "--conformal", "--method", "Deterministic", "--epochs", "1"]
    errors = run("fit", conformal_models / "noisy.csv", *options, "--split", "time:a").stderr
    assert "note: calibration rows are a random part of the training rows" in errors


def test_conformal_needs_rows(models, tmp_path):
    few = pd.read_csv(models / "numbers.csv").head(80)
    few.to_csv(tmp_path / "few.csv", index=False)
    refuse("fit", tmp_path / "few.csv", "--target", "y", "--out", tmp_path / "m", "--conformal",
           match="needs at least 19 calibration rows for level 95%, and 64 training rows give 13", files=tmp_path)  # fmt: skip


def test_piped_output_is_plain(models):
    text = run("evaluate", models / "model-y", models / "numbers.csv").stdout
    assert "\x1b" not in text
    assert not set("─│┃━┏╭") & set(text)


@pytest.mark.extended
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


@pytest.mark.extended
def test_quiet_prints_nothing(models, tmp_path):
    result = run("fit", models / "numbers.csv", "--target", "y", "--out", tmp_path / "m", "--epochs", "2", "--quiet")
    assert result.output == ""


@pytest.mark.extended
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
     (["--target", "y", "--method", "meanfeld"], "did you mean MeanField? `Method.registry` and `bayesify methods` list all"),
     (["--target", "y", "--on", "mars"], "--on must be local, ray or ray://HOST:PORT, got 'mars'"),
     (["--target", "y", "--method", "MeanField", "--set", "prior_sd=1"], "Did you mean 'prior_std'?"),
     (["--target", "y", "--method", "MeanField", "--set", "prior_std=-1"], "prior_std must be a finite number above 0"),
     (["--target", "y", "--set", "learning_rate=fast"], "learning_rate must be a number or none, got 'fast'"),
     (["--target", "y", "--set", "learning_rate=-1"], "learning_rate must be a finite number above 0"),
     (["--target", "y", "--set", "activation=foo"], "activation must be one of"),
     (["--target", "y", "--set", "prior_std"], "--set takes field=value"),
     (["--target", "y", "--test-fraction", "0.001"], "leaves 0 of 120 rows to test on"),
     (["--target", "y", "--test-fraction", "2"], "--test-fraction must be a number in [0, 1)"),
     (["--target", "y", "--test", "nowhere.csv"], "nowhere.csv does not exist"),
     (["--target", "y", "--split", "date"], "--split must be random or time:COLUMN, got 'date'"),
     (["--target", "y", "--split", "time:day"], "--split time:day: the table has no such column; it has 'a', 'b', 'c'"),
     (["--target", "y", "--split", "time:c"], "must have dates or numbers, not values of kind 'category'"),
     (["--target", "y", "--group", "day"], "--group day: the table has no such column"),
     (["--target", "y", "--group", "c", "--split", "time:a"], "cannot be combined"),
     (["--target", "y", "--group", "c", "--test", "{data}"], "leave them out with --test"),
     (["--target", "y", "--compare", "MeanField,foo"], "unknown method 'foo'"),
     (["--target", "y", "--compare", "all", "--test-fraction", "0"], "--compare all needs rows to compare on"),
     (["--target", "y", "--weight", "w"], "--weight w: the table has no such column"),
     (["--target", "y", "--weight", "c"], "--weight c: weights must be numbers of at least 0, got"),
     (["--target", "y", "--sep", ";;"], "--sep must be one character"),
     (["--target", "c", "--task", "regression"], "regression needs numbers")],
)  # fmt: skip
def test_fit_refuses(models, tmp_path, options, match):
    options = [option.replace("{data}", str(models / "numbers.csv")) for option in options]
    refuse("fit", models / "numbers.csv", "--out", tmp_path / "m", *options, match=match, files=tmp_path)


def test_fit_refuses_bad_tables_and_folders(models, tmp_path):
    (tmp_path / "empty.csv").write_text("")
    refuse("fit", tmp_path / "empty.csv", "--target", "y", "--out", tmp_path / "m", match="is empty", files=tmp_path)
    refuse("fit", tmp_path / "none.csv", "--target", "y", "--out", tmp_path / "m", match="does not exist", files=tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("precious")
    refuse("fit", models / "numbers.csv", "--target", "y", "--out", tmp_path / "full", match="full", files=tmp_path)


def test_predict_and_evaluate_refuse(models, tmp_path):
    data, model = models / "numbers.csv", models / "model-y"
    refuse("predict", tmp_path, data, match="not a model directory", files=tmp_path)
    refuse("predict", model, data, "--out", tmp_path / "x.foo", match="unknown ending '.foo'", files=tmp_path)
    refuse("predict", model, data, "--out", tmp_path / "no" / "x.csv", match="folder that does not exist", files=tmp_path)
    refuse("predict", model, data, "--level", "1", match="--level must be a number in [0, 1)", files=tmp_path)
    refuse("predict", model, data, "--level", "95", match="got 95.0; for 95 % give 0.95", files=tmp_path)
    refuse(
        "predict", model, data, "--keep", "a,id", match="--keep id: the table has no such column; it has 'a', 'b'", files=tmp_path
    )
    refuse("evaluate", model, data, "--report", tmp_path / "x.pdf", match="a report is HTML", files=tmp_path)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "training.ckpt").touch()
    refuse("predict", tmp_path / "begun", data, match="interrupted run and no model; the same `bayesify fit`", files=tmp_path)
    refuse("predict", model, data, "--samples", "0", match="--samples must be a whole number of at least 1", files=tmp_path)
    refuse("predict", models / "model-kind", tmp_path / "no.csv", match="does not exist", files=tmp_path)
    pd.read_csv(data).drop(columns="b").to_csv(tmp_path / "less.csv", index=False)
    refuse("predict", model, tmp_path / "less.csv", match="'b'", files=tmp_path)
    refuse("evaluate", model, models / "classes.parquet", match="no column 'y'", files=tmp_path)
    other = pd.read_parquet(models / "classes.parquet").assign(kind="huge")
    other.to_parquet(tmp_path / "other.parquet")
    refuse("evaluate", models / "model-kind", tmp_path / "other.parquet", match="'huge'", files=tmp_path)


@pytest.mark.parametrize("way", ["same", "relative", "symlink"])
@pytest.mark.default("same", "symlink", extended=["relative"])
def test_no_command_overwrites_its_input(models, tmp_path, monkeypatch, way):
    data, folder = tmp_path / "data.csv", tmp_path / "folder"
    folder.mkdir()
    data.write_bytes((models / "numbers.csv").read_bytes())
    out = {"same": data, "relative": Path("folder/../data.csv"), "symlink": folder / "link.csv"}[way]
    if way == "symlink":
        out.symlink_to(data)
    monkeypatch.chdir(tmp_path)
    model, match = models / "model-y", f"{out} is read by this command and would be overwritten"
    refuse("predict", model, data, "--out", out, match=match, files=tmp_path)
    refuse("explain", model, data, "--out", out, match=match, files=tmp_path)
    rows = ("--row", 0, "--train", data)
    refuse("explain", model, models / "numbers.csv", *rows, "--out", out, match=match, files=tmp_path)
    assert data.read_bytes() == (models / "numbers.csv").read_bytes()
    page = tmp_path / "data.html"
    page.symlink_to(data)
    refuse("evaluate", model, data, "--report", page, match="would be overwritten", files=tmp_path)


def test_an_internal_error_exits_with_70_and_shows_its_traceback(models, monkeypatch):
    for error in (ValueError, TypeError, RuntimeError, AssertionError, ImportError):

        def broken(path, error=error, **options):
            raise error("detail")

        monkeypatch.setattr("bayesify.cli.tables.read_table", broken)
        result = run("predict", models / "model-y", models / "numbers.csv", code=70)
        assert result.stdout == ""
        assert "Traceback" in result.stderr
        assert f"{error.__name__}: detail" in result.stderr
        last = result.stderr.splitlines()[-1]
        assert last.startswith(f"bayesify: internal error ({error.__name__}). This is a bug")


@pytest.mark.parametrize(
    "error",
    [UsageError("detail"), DataError("detail"), DivergenceError("detail"), PassError("detail"), OSError("detail"),
     PermissionError("detail"), MissingDependencyError("detail", "package", extra="all")],
)  # fmt: skip
def test_errors_of_the_user_are_one_line_and_exit_with_2(models, monkeypatch, error):
    def fail(path, **options):
        raise error

    monkeypatch.setattr("bayesify.cli.tables.read_table", fail)
    (line,) = run("predict", models / "model-y", models / "numbers.csv", code=2).stderr.splitlines()
    assert line.startswith("bayesify: detail")


def test_ctrl_c_is_one_line(models, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("bayesify.cli.tables.read_table", interrupt)
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
    write = checkpoint.write

    def write_and_interrupt(path, state):
        monkeypatch.setattr(checkpoint, "write", write)
        write(path, state)
        signal.raise_signal(signal.SIGINT)

    default = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: monkeypatch.setattr(checkpoint, "write", write_and_interrupt)
    signal.signal(signal.SIGINT, default)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_interrupted_run_resumes_to_the_same_model(models, tmp_path, interrupt_at_checkpoint):
    options = ["--target", "y", "--method", "MCDropout", "--epochs", "300", "--seed", "3", "--set", "hidden=8"]
    fit = ["fit", models / "numbers.csv", "--out", tmp_path / "m", *options]
    kill_when_written(start(fit), tmp_path / "m" / "training.ckpt")
    assert [path.name for path in (tmp_path / "m").iterdir() if not path.name.endswith(".tmp")] == ["training.ckpt"]
    refuse(*fit, "--set", "learning_rate=0.1", match="add --restart", files=tmp_path / "m")

    interrupt_at_checkpoint()
    errors = run(*fit, code=130).stderr
    assert "resuming the interrupted run" in errors
    assert "Traceback" not in errors
    assert "the same command goes on" in errors
    assert "resuming the interrupted run" in run(*fit).stderr
    assert not (tmp_path / "m" / "training.ckpt").exists()
    run("fit", models / "numbers.csv", "--out", tmp_path / "straight", *options, "--quiet")
    assert (tmp_path / "m" / "weights.safetensors").read_bytes() == (tmp_path / "straight" / "weights.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_interrupted_auto_resumes_to_the_same_model(models, tmp_path, monkeypatch, interrupt_at_checkpoint):
    small = {"method": "Deterministic", "hidden": (8,), "epochs": 3}
    monkeypatch.setattr(BayesianRegressor, "portfolio", {"a": small, "b": small | {"activation": "tanh"}})
    options = ["--target", "y", "--method", "auto"]
    fit = ["fit", models / "numbers.csv", "--out", tmp_path / "m", *options]
    interrupt_at_checkpoint()
    assert "the same command goes on" in run(*fit, code=130).stderr
    assert {path.name.partition(".auto")[0] for path in (tmp_path / "m").iterdir()} == {"training.ckpt"}
    assert "resuming the interrupted run" in run(*fit).stderr
    assert not list((tmp_path / "m").glob("training.ckpt*"))
    run("fit", models / "numbers.csv", "--out", tmp_path / "straight", *options, "--quiet")
    weights = [{path.name: path.read_bytes() for path in (tmp_path / out).glob("*.safetensors")} for out in ("m", "straight")]
    assert weights[0] == weights[1] != {}


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
def test_an_interrupt_in_a_callback_is_not_lost():
    class Noisy:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    def callback():
        Noisy()
        time.sleep(5)

    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            callback()
    finally:
        signal.signal(signal.SIGINT, usual)


@pytest.mark.extended
def test_an_interrupt_waits_for_the_end_of_an_import(tmp_path, monkeypatch):
    (tmp_path / "interrupted_in_import.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\nfinished = True\n")
    monkeypatch.syspath_prepend(tmp_path)

    def import_it():
        import interrupted_in_import  # noqa: F401

        time.sleep(5)

    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            import_it()
        assert sys.modules["interrupted_in_import"].finished
    finally:
        signal.signal(signal.SIGINT, usual)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["diabetes", "digits", "breast-cancer", "wine"])
def test_demo(name, tmp_path):
    result = run("demo", "--data", name, "--out", tmp_path / "demo")
    assert all(method in result.stdout for method in ("Deterministic", "MCDropout", "MeanField", "gradient boosting"))
    assert [path.name for path in (tmp_path / "demo").iterdir()] == ["report.html"]
    assert str(tmp_path / "demo" / "report.html") in result.stderr


def run_process(code, *arguments):
    environment = {**os.environ, "PYTHONPATH": SRC, "COLUMNS": "100"}
    command = [sys.executable, "-c", code + MAIN, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.default("typer-cli", extended=["pandas-*"])
@pytest.mark.parametrize(("package", "extra"), [("typer", "cli"), ("pandas", "tables"), ("skops", "tables")])
def test_a_missing_package_is_reported_in_one_line(package, extra, models):
    done = run_process(f"import sys; sys.modules[{package!r}] = None; ", "evaluate", models / "model-y", models / "numbers.csv")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert re.search(rf'pip install "bayesify\[({extra}|cli)\]"', done.stderr)


@pytest.mark.default("arguments2-*", "arguments4-*", extended=["arguments6-*"])
@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        (["--version"], 0, "bayesify "),
        (["--help"], 0, "evaluate"),
        (["fit", "--help"], 0, "--test-fraction"),
        (["predict", "--help"], 0, "--samples"),
        (["fit", "no-such-file.csv", "--target", "y"], 2, "no-such-file.csv does not exist"),
        (["fit", "--targets", "y"], 2, "No such option"),
        (["predict", "model", "no-such-file.csv"], 2, "no-such-file.csv does not exist"),
        (["predict", "model", "no-such-file.csv", "--level", "2"], 2, "--level must be a number in [0, 1)"),
    ],
)
def test_help_and_errors_of_usage_import_neither_torch_nor_pandas(arguments, code, shown):
    """They answer at once: every heavy package is a second of waiting."""
    heavy = ("torch", "numpy", "pandas", "sklearn", "lightning", "matplotlib")
    done = run_process(f"import sys; sys.modules.update(dict.fromkeys({heavy})); ", *arguments)
    assert done.returncode == code
    assert shown in done.stdout + done.stderr


def test_targets_are_indices_of_classes(models):
    from bayesify.persistence import load_model

    estimator = load_model(models / "model-kind")
    assert encode_targets(estimator, pd.Series(["small", "big one"], name="kind")).tolist() == [1, 0]


@pytest.mark.slow
def test_ordered_classes_from_table_to_predictions(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=150)  # enough test rows for an explanation
    levels = np.array(["low", "medium", "high"])[np.digitize(x + 0.3 * rng.normal(size=150), [-0.4, 0.4])]
    pd.DataFrame({"x": x, "level": levels}).to_csv(tmp_path / "t.csv", index=False)
    order = ["--set", "ordered=low,medium,high"]
    run("fit", tmp_path / "t.csv", "--target", "level", "--out", tmp_path / "m", "--epochs", "2", *order)
    run("predict", tmp_path / "m", tmp_path / "t.csv", "--out", tmp_path / "p.csv")
    columns = [name for name in pd.read_csv(tmp_path / "p.csv") if name.startswith("p_")]
    assert columns == ["p_low", "p_medium", "p_high"]
