"""Tables as users have them: formats, missing and text targets, splits, and the notes about them."""

import io
import json
import sys

import pytest

pytest.importorskip("typer")
pytest.importorskip("skops")
pd = pytest.importorskip("pandas")
np = pytest.importorskip("numpy")

from command_line import refuse, run

from bayesify.cli import sources
from bayesify.cli.predictions import rounded
from bayesify.cli.splits import split_training
from bayesify.cli.tables import TextOptions, read_training
from bayesify.cli.terminal import UsageError
from bayesify.estimators.base import BayesianEstimator

FAST = ("--method", "MCDropout", "--epochs", "3", "--set", "hidden=8")


def make_frame():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": 1000 + 400 * x[:, 0] + rng.normal(size=80)})


@pytest.fixture
def frame():
    return make_frame()


def fit(folder, frame, *options, name="t.csv", code=0, **writing):
    frame.to_csv(folder / name, index=False, **writing)
    return run("fit", folder / name, "--target", "y", "--out", folder / "m", *FAST, *options, code=code)


def written(folder):
    return pd.read_csv(folder / "m" / "test-predictions.csv")


class TestTargets:
    def test_rows_without_a_target_are_dropped_with_a_note(self, tmp_path, frame):
        gaps = frame.assign(y=frame["y"].where(frame.index % 8 != 3))
        text = fit(tmp_path, gaps).stderr
        assert f"note: the target 'y' is missing in 10 of 80 rows of {tmp_path / 't.csv'}; they are not used" in text
        assert "56 rows to train on, 14 to test on" in text
        assert not set(written(tmp_path)["row"]) & set(range(3, 80, 8))
        text = run("evaluate", tmp_path / "m", tmp_path / "t.csv")
        assert "missing in 10 of 80 rows" in text.stderr
        gaps.assign(y=np.nan).to_csv(tmp_path / "none.csv", index=False)
        refuse("evaluate", tmp_path / "m", tmp_path / "none.csv", match="missing in every row", files=tmp_path)

    def test_integer_classes_with_gaps_stay_classes(self, tmp_path, frame):
        labels = pd.Series(np.arange(80) % 3, dtype="Int64").where(frame.index != 5)
        assert (
            "classification of 'y' (it has 3 distinct integers; --task regression predicts numbers)"
            in fit(tmp_path, frame.assign(y=labels)).stderr
        )
        assert set(written(tmp_path)["true y"]) == {0, 1, 2}

    def test_text_targets_are_numbers(self, tmp_path, frame):
        dollars = frame.assign(y=frame["y"].map("${:,.1f}".format))
        text = fit(tmp_path, dollars).stderr
        assert "the target 'y' is text and read as numbers, such as '$" in text
        assert "regression of 'y': 64 rows" in text
        predictions = written(tmp_path)
        np.testing.assert_allclose(predictions["true y"], frame["y"].iloc[predictions["row"]], atol=0.051)
        assert "not trained" not in run("evaluate", tmp_path / "m", tmp_path / "t.csv").output

    def test_later_tables_are_read_in_the_format_of_training(self, tmp_path, frame):
        german = frame.assign(y=frame["y"].map(lambda y: f"{y:,.1f}".translate(str.maketrans(",.", ".,"))))
        other = frame.head(20).assign(y=frame["y"].round().map("{:,.0f}".format).str.replace(",", "."))
        other[other["y"].str.contains(".", regex=False)].to_csv(tmp_path / "whole.csv", index=False)  # 1.024 is 1024
        text = fit(tmp_path, german, "--test", str(tmp_path / "whole.csv")).stderr
        assert "with a decimal comma" in text
        assert json.loads((tmp_path / "m" / "config.json").read_text())["reading"] == {"decimal": ".", "target": ","}
        assert written(tmp_path)["true y"].min() >= 1000
        scores = [run("evaluate", tmp_path / "m", tmp_path / name).stdout for name in ("t.csv", "whole.csv")]
        assert all("RMSE" in score for score in scores)
        rmse = [float(score.split("RMSE")[1].split()[0].replace(",", "")) for score in scores]
        assert rmse[1] == pytest.approx(rmse[0], rel=1)

    def test_tables_with_decimal_commas(self, tmp_path, frame):
        text = fit(tmp_path, frame, sep=";", decimal=",").stderr
        assert "note:" not in text
        np.testing.assert_allclose(written(tmp_path)["true y"], frame["y"].iloc[written(tmp_path)["row"]])
        whole = frame.head(9).assign(y=["1.024"] * 9, a=1, b=2)
        whole.to_csv(tmp_path / "whole.csv", index=False, sep=";")
        stored = run("evaluate", tmp_path / "m", tmp_path / "whole.csv").stdout
        assert stored == run("evaluate", tmp_path / "m", tmp_path / "whole.csv", "--decimal", ",").stdout
        assert stored != run("evaluate", tmp_path / "m", tmp_path / "whole.csv", "--decimal", ".").stdout

    def test_stray_text_in_a_later_target(self, tmp_path, frame):
        fit(tmp_path, frame)
        frame.assign(y=frame["y"].astype(str).where(frame.index != 3, "?")).to_csv(tmp_path / "stray.csv", index=False)
        text = run("evaluate", tmp_path / "m", tmp_path / "stray.csv").stderr
        assert "text that is no number in 1 of 80 rows ('?')" in text
        assert "missing in 1 of 80 rows" in text

    def test_text_classes_stay_text(self, tmp_path, frame):
        labels = pd.Series(np.where(frame["a"] > 0, "01", "x"))
        fit(tmp_path, frame.assign(y=labels))
        frame.assign(y="01").to_csv(tmp_path / "same.csv", index=False)
        assert "accuracy" in run("evaluate", tmp_path / "m", tmp_path / "same.csv").stdout.lower()

    def test_counts_name_the_way_to_classes_and_back(self, tmp_path, frame):
        counts = pd.Series(np.arange(80) % 7)
        assert "--task regression predicts numbers" in fit(tmp_path, frame.assign(y=counts)).stderr
        counts[0] = 44
        text = fit(tmp_path, frame.assign(y=counts), "--overwrite").stderr
        assert (
            "regression of 'y' (it has 8 distinct integers, some in a single row; --task classification predicts classes)" in text
        )
        text = fit(tmp_path, frame.assign(y=counts), "--overwrite", "--task", "classification", code=2).stderr
        assert "a single row: 44; merge them with others or drop these rows, or use --task regression to predict numbers" in text


class TestReading:
    def test_standard_input(self, tmp_path, frame, monkeypatch):
        def pipe():
            return io.TextIOWrapper(io.BytesIO(frame.to_csv(index=False, sep="\t").encode()))

        result = run("fit", "-", "--target", "y", "--out", tmp_path / "m", *FAST, input=pipe().read())
        assert f"Next: bayesify predict {tmp_path / 'm'} NEW.csv" in result.stderr
        assert run("predict", tmp_path / "m", "-", input=pipe().read()).stdout.count("\n") == 81
        assert sys.stdin is not None

    def test_options_of_text(self, tmp_path, frame):
        content = frame.rename(columns={"a": "ä"}).to_csv(index=False, sep="!", decimal=",")
        (tmp_path / "t.txt").write_bytes(content.encode("cp850"))
        text = ("--sep", "!", "--encoding", "cp850", "--decimal", ",")
        run("fit", tmp_path / "t.txt", "--target", "y", "--out", tmp_path / "m", *FAST, *text)
        assert "ä" in (tmp_path / "m" / "report.html").read_text()
        assert run("predict", tmp_path / "m", tmp_path / "t.txt", *text).stdout.count("\n") == 81
        assert "RMSE" in run("evaluate", tmp_path / "m", tmp_path / "t.txt", *text).stdout

    def test_codes_with_leading_zeros_stay_categories(self, tmp_path, frame):
        codes = np.where(frame["a"] > 0, "01067", "A12")
        fit(tmp_path, frame.assign(a=codes))
        frame.assign(a=codes).head(30).to_csv(tmp_path / "all.csv", index=False)
        only = frame.assign(a=codes)[codes == "01067"].head(5)
        only.to_csv(tmp_path / "only.csv", index=False)
        full = pd.read_csv(io.StringIO(run("predict", tmp_path / "m", tmp_path / "t.csv").stdout))["mean"]
        part = pd.read_csv(io.StringIO(run("predict", tmp_path / "m", tmp_path / "only.csv").stdout))["mean"]
        np.testing.assert_allclose(part, full[only.index], rtol=1e-4)


class TestSplits:
    @pytest.fixture
    def table(self, tmp_path, frame):
        days = pd.date_range("2020-01-01", periods=80).strftime("%d.%m.%Y")
        table = frame.assign(day=days, shop=np.arange(80) % 9).sample(frac=1, random_state=0)
        table.to_csv(tmp_path / "t.csv", index=False)
        return table

    def test_by_time(self, tmp_path, table):
        run("fit", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "m", *FAST, "--split", "time:day")
        days = pd.to_datetime(table["day"], format="%d.%m.%Y").reset_index(drop=True)
        rows = written(tmp_path)["row"]
        assert len(rows) == 16
        assert days[rows].min() > days.drop(rows).max()
        assert "16 rows with the latest day, held out" in (tmp_path / "m" / "report.html").read_text()

    def test_equal_times_stay_together(self, tmp_path, table):
        table.assign(day=np.arange(80) // 30).to_csv(tmp_path / "t.csv", index=False)
        rows = split_training(read_training(tmp_path / "t.csv", "y", "auto", TextOptions()), 0.1, 0, "time:day")
        assert (set(rows.features["day"]), set(rows.test_features["day"])) == ({0, 1}, {2})
        table.assign(day=[1] * 79 + [0]).to_csv(tmp_path / "t.csv", index=False)
        assert len(split_training(read_training(tmp_path / "t.csv", "y", "auto", TextOptions()), 0.1, 0, "time:day").y) == 1

    def test_by_group(self, tmp_path, table):
        run("fit", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "m", *FAST, "--group", "shop")
        shops = table["shop"].reset_index(drop=True)
        rows = written(tmp_path)["row"]
        assert 16 <= len(rows) <= 18
        assert not set(shops[rows]) & set(shops.drop(rows))
        assert "shop" not in [column["name"] for column in json.loads((tmp_path / "m" / "config.json").read_text())["columns"]]

    def test_the_model_holds_out_whole_groups_too(self, tmp_path, table, monkeypatch):
        table["shop"] = table["shop"].where(table.index > 4)  # a group of their own
        table.to_csv(tmp_path / "t.csv", index=False)
        seen = []
        fit = BayesianEstimator.fit
        monkeypatch.setattr(BayesianEstimator, "fit", lambda *args, **given: seen.append((args, given)) or fit(*args, **given))
        options = ("--epochs", "1", "--set", "hidden=8", "--compare", "MCDropout")
        command = ("fit", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "m", *options)
        run(*command, "--group", "shop")
        assert len(seen) == 2
        rows = table.reset_index(drop=True).drop(written(tmp_path)["row"])
        for (_, X, _, _), given in seen:
            assert len(X) == len(given["groups"]) == len(rows)
            pairs = set(zip(rows["shop"].astype(str), given["groups"].tolist(), strict=True))
            assert len(pairs) == rows["shop"].nunique(dropna=False) == len(set(given["groups"].tolist()))
        run(*command, "--overwrite")
        assert all(given["groups"] is None for _, given in seen[2:])

    def test_weights_follow_their_rows_where_labels_are_repeated(self, tmp_path, frame):
        frame["w"] = np.arange(80.0) % 3 + 1
        frame.set_axis(np.arange(80) // 2).to_csv(tmp_path / "t.csv")
        table = read_training(tmp_path / "t.csv", "y", "auto", TextOptions())
        test = sources.TestRows(None, 0.2, "random", None, 0)
        source = sources.open_source(tmp_path / "t.csv", "y", "auto", test, "w", TextOptions(), [])
        expected = table.features.merge(source.rows.features, on=["a", "b"])  # found by their values
        assert len(expected) == 64
        np.testing.assert_array_equal(source.weights, expected["w"])

    def test_test_rows_that_are_training_rows_are_counted(self, tmp_path, frame):
        frame = frame.assign(town=["Bonn", "Ulm"] * 40, id=np.arange(80))
        copied = pd.concat([frame, frame[:30]]).assign(id=np.arange(110))
        fit(tmp_path, copied)
        test = written(tmp_path).set_index("row")
        train = copied.reset_index(drop=True).drop(index=test.index)
        count = int(copied.reset_index(drop=True).loc[test.index, "y"].isin(train["y"]).sum())
        assert 0 < count < 22
        assert f"note: {count} of 22 test rows are also training rows" in fit(tmp_path, copied, "--overwrite").stderr
        others = copied.assign(a=copied["a"] + 1e-6 * np.arange(110))  # nearly equal
        for table in (frame, others):
            assert "are also training rows" not in fit(tmp_path, table, "--overwrite").stderr

    def test_equal_rows_of_few_different_ones_are_no_copies(self, tmp_path, rng):
        few = pd.DataFrame({"a": rng.integers(0, 3, 200), "b": rng.integers(0, 2, 200), "y": rng.integers(0, 2, 200)})
        few.to_csv(tmp_path / "t.csv", index=False)
        assert split_training(read_training(tmp_path / "t.csv", "y", "auto", TextOptions()), 0.2, 0).copies == 0

    def test_weights(self, tmp_path, table):
        table.assign(w=(np.arange(80) % 2) * 1.5).to_csv(tmp_path / "t.csv", index=False)
        run("fit", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "m", *FAST, "--weight", "w")
        assert [c["name"] for c in json.loads((tmp_path / "m" / "config.json").read_text())["columns"]] == list(
            table.drop(columns="y")
        )
        assert "w, of the training rows" in (tmp_path / "m" / "report.html").read_text()
        for command in ("predict", "evaluate"):
            assert "not in the training table" not in run(command, tmp_path / "m", tmp_path / "t.csv").stderr

    def test_columns_that_are_no_inputs_are_known_later(self, tmp_path, table):
        table.assign(w=1.0).to_csv(tmp_path / "t.csv", index=False)
        run("fit", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "m", *FAST, "--weight", "w", "--group", "shop")
        for command in (("predict",), ("evaluate",), ("explain", "--row", "0")):
            stderr = run(command[0], tmp_path / "m", tmp_path / "t.csv", *command[1:]).stderr
            assert "not in the training table" not in stderr
        table.assign(w=1.0, other=2.0).to_csv(tmp_path / "other.csv", index=False)
        assert "ignored: 'other'" in run("predict", tmp_path / "m", tmp_path / "other.csv").stderr

    def test_groups_depend_on_the_seed(self, tmp_path, table):
        training = read_training(tmp_path / "t.csv", "y", "auto", TextOptions())
        held_out = {tuple(split_training(training, 0.2, seed, group="shop").test_y.index) for seed in range(8)}
        assert len(held_out) > 4

    def test_conformal_needs_groups_not_rows(self, tmp_path, table):
        table = pd.concat([table] * 3).assign(shop=np.arange(240) // 8)
        table.to_csv(tmp_path / "t.csv", index=False)
        command = ("fit", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "m", *FAST, "--conformal", "--group", "shop")
        shown = run(*command, code=2).stderr
        assert "at least 19 calibration groups for level 95%, and 24 training groups give 5; add groups, --set conf" in shown
        assert "every group counts alike" in run(*command, "--set", "conformal=cross").stdout
        table.assign(shop=["x", "y"] * 120).to_csv(tmp_path / "t.csv", index=False)
        shown = run(*command, "--overwrite", code=2).stderr
        assert "and 1 training groups give 1; add groups or leave it out" in shown

    def test_a_single_training_group_is_not_divided(self, tmp_path, table):
        table.assign(shop=["x", "y"] * 40).to_csv(tmp_path / "t.csv", index=False)
        split = split_training(read_training(tmp_path / "t.csv", "y", "auto", TextOptions()), 0.2, 0, group="shop")
        assert len(split.y) == len(split.test_y) == 40
        assert split.groups is None

    def test_errors(self, tmp_path, table):
        table.assign(shop="x", day=table["day"].where(table.index > 3)).to_csv(tmp_path / "t.csv", index=False)
        training = read_training(tmp_path / "t.csv", "y", "auto", TextOptions())
        with pytest.raises(UsageError, match="--group shop has the single value 'x'; at least two groups are needed"):
            split_training(training, 0.2, 0, group="shop")
        with pytest.raises(UsageError, match="--split time:day: the column is missing in 4 rows; drop these rows"):
            split_training(training, 0.2, 0, "time:day")
        late = table.assign(y=np.where(pd.to_datetime(table["day"], format="%d.%m.%Y") > "2020-03-10", "new", "old"))
        late.to_csv(tmp_path / "t.csv", index=False)
        with pytest.raises(UsageError, match="the test rows have classes without a training row: 'new'"):
            split_training(read_training(tmp_path / "t.csv", "y", "auto", TextOptions()), 0.2, 0, "time:day")

    def test_no_rows_held_out(self, tmp_path, table):
        run("fit", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "m", *FAST)
        result = run(
            "fit", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "m", *FAST, "--test-fraction", "0", "--overwrite"
        )
        assert "80 rows to train on, 0 to test on" in result.stderr
        assert "Report: none, as no rows are held out" in result.stderr
        assert not (tmp_path / "m" / "report.html").exists()
        assert "RMSE" in run("evaluate", tmp_path / "m", tmp_path / "t.csv").stdout


@pytest.mark.extended
def test_many_columns_for_few_rows(tmp_path, frame):
    wide = frame.assign(**{f"x{i}": np.random.default_rng(i).normal(size=80) for i in range(40)})
    assert "42 columns for 64 training rows: the network can fit their noise" in fit(tmp_path, wide).stderr
    assert "columns for" not in fit(tmp_path, frame, "--overwrite").stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder, frame = tmp_path_factory.mktemp("model"), make_frame()
    fit(folder, frame.assign(city=np.where(frame["b"] > 0, "Bonn", "Ulm")))
    return folder / "m"


class TestPredictions:
    def predict(self, model, table, *options):
        table.to_csv(model.parent / "new.csv", index=False)
        result = run("predict", model, model.parent / "new.csv", *options)
        return pd.read_csv(io.StringIO(result.stdout), dtype={"warning": str}, keep_default_na=False), result.stderr

    @pytest.mark.extended
    def test_rows_unlike_those_of_training_are_named(self, frame, model):
        table = frame.head(5).assign(city=["Bonn", "Paris", "Ulm", "Ulm", "Bonn"], a=[0, 0, 0, 1e6, 0])
        predictions, notes = self.predict(model, table)
        assert list(predictions)[-1] == "warning"
        assert predictions["warning"].tolist()[:3] == ["", "city='Paris' not seen in training", ""]
        assert "a=1,000,000 above" in predictions["warning"][3]
        assert "2 of 5 rows have values unlike those of training, such as row 1 (city='Paris' not seen in training)" in notes
        assert "unlike the training rows" not in notes, "five rows say little about a table"
        assert "2 of 5 rows" in run("evaluate", model, model.parent / "new.csv").stderr

    def test_usual_rows_have_no_warnings(self, frame, model):
        predictions, notes = self.predict(model, frame.head(5).assign(city="Bonn"))
        assert "warning" not in predictions
        assert notes == ""

    def test_tables_unlike_the_training_table(self, frame, model):
        _, notes = self.predict(model, frame.assign(city="Bonn", a=frame["a"].abs()))
        assert "the table is unlike the training rows in a (median " in notes
        assert "city ('Bonn' in 100% of the rows, " in notes

    def test_kept_columns(self, frame, model):
        table = frame.head(3).assign(city="Bonn", id=["x", "y", "z"], **{"last, first": 7})
        predictions, _ = self.predict(model, table, "--keep", "id,y", "--keep", "last, first")
        assert list(predictions)[:4] == ["id", "y", "last, first", "mean"]
        assert predictions["id"].tolist() == ["x", "y", "z"]
        assert predictions["y"].tolist() == pytest.approx(table["y"].tolist())
        table.rename(columns={"id": "mean"}).to_csv(model.parent / "new.csv")
        refuse(
            "predict", model, model.parent / "new.csv", "--keep", "mean", match="--keep mean: predictions have", files=model.parent
        )

    def test_digits(self, frame, model):
        text = run("predict", model, model.parent / "t.csv").stdout.splitlines()[1].split(",")
        assert len(text[1].replace(".", "").rstrip("0")) <= 5
        assert all(len(value.partition(".")[2]) <= len(text[1].partition(".")[2]) for value in text)
        run("predict", model, model.parent / "t.csv", "--out", model.parent / "p.parquet")
        exact = pd.read_parquet(model.parent / "p.parquet").iloc[0]
        assert float(text[0]) == pytest.approx(exact["mean"], abs=1e-4 * exact["std"])
        assert float(text[0]) != exact["mean"]


@pytest.mark.parametrize(
    ("std", "expected"),
    [(0.123456789, 0.12346), (12345678.9, 12346000.0), (0.0, 0.0), (float("nan"), float("nan")), (1e-30, 1e-30)],
)
def test_rounding(std, expected):
    table = pd.DataFrame({"mean": [123456789.123456789], "std": [std]})
    assert rounded(table)["std"].tolist() == pytest.approx([expected], nan_ok=True, rel=1e-15)
    assert rounded(pd.DataFrame({"p_a": [1 / 3], "prediction": ["a"]})).to_dict("list") == {"p_a": [0.333333], "prediction": ["a"]}
