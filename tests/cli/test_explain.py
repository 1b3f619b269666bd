"""`bayesify explain`."""

import pytest

pytest.importorskip("typer")
pytest.importorskip("skops")
pd = pytest.importorskip("pandas")
np = pytest.importorskip("numpy")

from command_line import refuse, run


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explained")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(120, 3)), columns=["a", "b", "<c>"]).assign(kind=rng.choice(["x", "y"], 120))
    frame.assign(y=2 * frame["a"] + 0.1 * rng.normal(size=120)).to_csv(folder / "numbers.csv", index=False)
    frame.assign(y=np.where(frame["a"] > 0, "up", "down")).to_csv(folder / "classes.csv", index=False)
    frame.to_csv(folder / "unknown.csv", index=False)
    for name in ("numbers", "classes"):
        run("fit", folder / f"{name}.csv", "--target", "y", "--out", folder / f"model-{name}", "--method", "MCDropout",
            "--epochs", "30", "--set", "hidden=16", "--quiet")  # fmt: skip
    return folder


@pytest.mark.parametrize(("name", "score", "word"), [("numbers", "rmse", "price"), ("classes", "log_loss", "probability of up")])
def test_columns(models, tmp_path, name, score, word):
    result = run("explain", models / f"model-{name}", models / f"{name}.csv", "--out", tmp_path / "page.html")
    lines = result.stdout.splitlines()
    assert lines[0].split()[:2] == ["column", score]
    assert lines[1].startswith("a ")
    assert "Computed on 120 rows" in result.stdout
    page = (tmp_path / "page.html").read_text()
    assert "Prediction by a" in page
    assert "&lt;c&gt;" in page
    assert "<c>" not in page
    if name == "classes":
        assert word in page
    run("explain", models / f"model-{name}", models / f"{name}.csv", "--out", tmp_path / "table.csv")
    table = pd.read_csv(tmp_path / "table.csv")
    assert table["column"][0] == "a"
    assert {score, f"{score}_se"} <= set(table)


@pytest.mark.parametrize("name", ["numbers", "classes"])
def test_a_row_needs_no_target_and_finds_itself_among_the_training_rows(models, tmp_path, name):
    row = int(pd.read_csv(models / "unknown.csv")["a"].argmax())
    command = ("explain", models / f"model-{name}", models / "unknown.csv", "--row", row)
    result = run(*command, "--train", models / f"{name}.csv", "--out", tmp_path / "page.html")
    assert "Prediction: " in result.stdout
    assert "A training row has the same inputs" in result.stdout
    far = pd.read_csv(models / "unknown.csv").assign(b=40.0)
    far.to_csv(tmp_path / "far.csv", index=False)
    result = run("explain", models / f"model-{name}", tmp_path / "far.csv", "--row", 0, "--train", models / f"{name}.csv")
    assert "No training row is similar" in result.stdout
    assert "Unlike the training rows" in result.stdout
    page = (tmp_path / "page.html").read_text()
    assert f"Row {row}" in page
    assert "Similar training rows" in page
    assert "</html>" in page
    run(*command, "--out", tmp_path / "row.parquet")
    effects = pd.read_parquet(tmp_path / "row.parquet").set_index("column")
    assert effects["prediction"].abs().idxmax() == "a"
    assert effects.loc["a", "prediction"] > 0


def test_explain_refuses(models, tmp_path):
    model, data = models / "model-numbers", models / "numbers.csv"
    refuse("explain", model, data, "--row", "120", match="has 120 rows, so use 0 to 119", files=tmp_path)
    refuse("explain", model, data, "--train", data, match="add --row N", files=tmp_path)
    refuse("explain", model, data, "--out", tmp_path / "x.pdf", match="unknown ending '.pdf'; use .html", files=tmp_path)
    refuse("explain", model, models / "unknown.csv", match="no column 'y'", files=tmp_path)
    refuse("explain", tmp_path, data, match="not a model directory", files=tmp_path)
