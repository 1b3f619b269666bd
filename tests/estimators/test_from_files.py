"""Training on Parquet files: the preprocessing of a table in memory, predictions of similar quality, mistakes."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_diabetes

from bayesify.data import ParquetTable, conform, describe_columns, parquet_table
from bayesify.errors import CheckpointError, ConfigurationError, DataError
from bayesify.estimators import BayesianClassifier, BayesianRegressor, from_files
from bayesify.persistence import load_model, save_model

QUICK = {"method": "Deterministic", "epochs": 2, "random_state": 0, "progress": False}


def _table(rows=600, seed=0):
    generator = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "number": generator.normal(size=rows),
            "skewed": np.exp(3 * generator.normal(size=rows)),
            "integer": generator.integers(0, 40, rows),
            "few": generator.integers(0, 3, rows).astype(np.int32),
            "flag": generator.random(rows) < 0.3,
            "color": generator.choice(["red", "green", "blue"], rows, p=[0.6, 0.3, 0.1]),
            "street": generator.choice([f"street {i}" for i in range(80)], rows),
            "money": [f"${value:,.2f}" for value in 5000 * generator.random(rows)],
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(generator.integers(0, 900, rows), "D"),
            "written": [f"{day:02d}.03.2021" for day in generator.integers(1, 29, rows)],
            "constant": 7,
            "id": np.arange(rows) + seed * rows,
        }
    )
    table.loc[generator.random(rows) < 0.1, "number"] = np.nan
    table.loc[generator.random(rows) < 0.1, "color"] = None
    table["t"] = table["integer"] + np.where(table["color"] == "red", 5, 0) + generator.normal(size=rows)
    return table


def _write(folder, table, files=3, rows=70):
    for k, part in enumerate(np.array_split(np.arange(len(table)), files)):
        table.iloc[part].to_parquet(folder / f"part{k}.parquet", row_group_size=rows)
    return folder


@pytest.fixture
def small_sample(monkeypatch):
    """A sample of 300 rows, and parts, validation and test rows of tables that are not larger than tests can be."""
    for name, value in (("_SAMPLE_ROWS", 300), ("_LEAST_SAMPLE", 10), ("_PIECE_ROWS", 64)):
        monkeypatch.setattr(parquet_table, name, value)
    monkeypatch.setattr(from_files, "_PART", 200)


@pytest.mark.parametrize("kind", [BayesianRegressor, BayesianClassifier])
@pytest.mark.filterwarnings("ignore:column")
def test_the_preprocessing_is_that_of_a_table_in_memory(tmp_path, monkeypatch, kind):
    table = _table()
    if kind is BayesianClassifier:
        table["t"] = np.where(table["t"] > 20, "high", "low")
    table.loc[5:9, "t"] = np.nan
    known = table[table["t"].notna()]
    monkeypatch.setattr(parquet_table, "_PIECE_ROWS", 64)
    settings = {**QUICK, "encoding": "piecewise", "epochs": 1}
    with pytest.warns(match="missing in 5 of 600 rows"):
        streamed = kind(**settings).fit_files(ParquetTable(_write(tmp_path, table), "t"))
    expected = kind(**settings).fit(known.drop(columns="t"), known["t"])
    assert streamed.columns_ == expected.columns_
    assert {column.kind for column in streamed.columns_} == {"number", "boolean", "category", "datetime", "dropped"}
    new = _table(200, seed=1).drop(columns="t")
    np.testing.assert_array_equal(
        streamed.preprocessing_.transform(conform(new, streamed.columns_)),
        expected.preprocessing_.transform(conform(new, expected.columns_)),
    )
    assert streamed.describe_target() == expected.describe_target()
    encoding, other = streamed.bnn_.state_dict(), expected.bnn_.state_dict()
    names = [name for name in encoding if name.rpartition(".")[2] in ("columns", "start", "scale", "lower", "upper")]
    assert names
    assert all(torch.equal(encoding[name], other[name]) for name in names)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:column")
def test_ranges_and_categories_are_those_of_all_rows(tmp_path, small_sample):
    table = _table(3000)
    table.loc[2345, ["number", "color"]] = 1e6, "infrared"
    source = ParquetTable(_write(tmp_path, table), "t")
    assert not source.is_complete
    assert 200 < len(source.sample.train.y) < 400
    model = BayesianRegressor(**QUICK).fit_files(source)
    exact = BayesianRegressor(**QUICK).fit(table.drop(columns="t"), table["t"])
    for column, other in zip(model.columns_, exact.columns_, strict=True):
        assert (column.name, column.kind, column.minimum, column.maximum) == (other.name, other.kind, other.minimum, other.maximum)
        assert (column.missing, column.rows) == (other.missing, other.rows)
        assert set(column.categories) == set(other.categories)
        if column.kind == "number":  # 300 rows: a level differs by less than 0.094 with probability 0.99
            levels = (
                [(table[column.name].dropna() <= value).mean() for value in column.quantiles] if column.name == "number" else []
            )
            assert np.allclose(levels, column.shares[: len(levels)], atol=0.094)
    assert model.history_.n == pytest.approx(2400, abs=100)
    assert len(model.history_) == 2 * -(-model.history_.n // 200)  # two passes in parts of 200 rows at most


@pytest.mark.filterwarnings("ignore:column")
def test_held_out_rows_are_no_training_rows(tmp_path, small_sample):
    table = _table(2000)
    table["row"] = np.arange(2000) + 0.5
    source = ParquetTable(_write(tmp_path, table), "t", test_fraction=0.25, seed=3)
    model = BayesianRegressor(**{**QUICK, "conformal": True})
    shares = model._shares(source)
    model._learn_target(source.sample.train.y)
    survey = from_files._Survey(model, source, shares, describe_columns(source.sample.train.X))
    parts = {use: set(survey.held_out(use).X["row"]) for use in ("validation", "calibration")}
    parts["test"] = set(source.sample.test.X["row"])
    parts["train"] = {
        row for group in range(len(source.groups)) for piece in survey.train(group, 0, 10**6) for row in piece.X["row"]
    }
    assert sum(map(len, parts.values())) == 2000
    assert set.union(*parts.values()) == set(table["row"])
    assert len(parts["test"]) == pytest.approx(500, abs=80)  # four standard deviations
    assert len(parts["validation"]) == pytest.approx(400, abs=75)
    assert len(parts["train"]) == sum(survey.sizes)
    assert not set(source.sample.train.X["row"]) & parts["test"]
    again = ParquetTable(tmp_path, "t", test_fraction=0.25, seed=3)
    assert set(again.sample.test.X["row"]) == parts["test"]
    assert set(ParquetTable(tmp_path, "t", test_fraction=0.25, seed=4).sample.test.X["row"]) != parts["test"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:column")
def test_a_rare_class_is_known(tmp_path, small_sample, monkeypatch):
    table = _table(3000)
    table["t"] = np.where(table["t"] > 20, "high", "low")
    table.loc[[2000, 2500], "t"] = "rare"
    source = ParquetTable(_write(tmp_path, table), "t")
    assert source.sample.task == "classification"
    model = BayesianClassifier(**QUICK).fit_files(source)
    assert list(model.classes_) == ["high", "low", "rare"]
    table.loc[2600:, "t"] = [f"class {i}" for i in range(400)]
    monkeypatch.setattr(parquet_table, "MOST_CLASSES", 100)
    with pytest.raises(DataError, match="more than 100 classes"):
        _ = ParquetTable(_write(tmp_path, table), "t").sample


@pytest.mark.slow
def test_predictions_are_as_good_as_in_memory(tmp_path, monkeypatch):
    X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    train, test = np.arange(len(y)) % 4 != 0, np.arange(len(y)) % 4 == 0
    X[train].assign(y=y[train]).to_parquet(tmp_path / "diabetes.parquet", row_group_size=50)
    settings = {"random_state": 0, "progress": False, "method": "DeepEnsemble"}
    monkeypatch.setattr(from_files, "_PART", 150)
    streamed = BayesianRegressor(**settings).fit_files(ParquetTable(tmp_path, "y"))
    scores = [model.log_score(X[test], y[test]) for model in (streamed, BayesianRegressor(**settings).fit(X[train], y[train]))]
    assert scores[0] == pytest.approx(scores[1], abs=0.15)  # the members hold out other rows; without inputs it is lower by 0.3
    assert scores[0] > -5.6


@pytest.mark.default("MeanField", extended=[])
@pytest.mark.parametrize("method", ["MeanField", "SWAG", "Laplace", "RepulsiveEnsemble", "IVON"])
@pytest.mark.filterwarnings("ignore:column")
def test_methods(tmp_path, small_sample, method):
    table = _table(900)
    settings = {**QUICK, "method": method, "epochs": 5}
    model = BayesianRegressor(**settings).fit_files(ParquetTable(_write(tmp_path, table), "t"))
    save_model(model, tmp_path / "model", target="t")
    new = _table(100, seed=2)
    loaded = load_model(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(new.drop(columns="t")), model.predict(new.drop(columns="t")))
    in_memory = BayesianRegressor(**settings).fit(table.drop(columns="t"), table["t"])
    assert loaded.score(new.drop(columns="t"), new["t"]) > in_memory.score(new.drop(columns="t"), new["t"]) - 0.1


@pytest.mark.filterwarnings("ignore:column")
def test_calibration_rows_are_not_trained_on(tmp_path):
    table = _table(1500)
    model = BayesianRegressor(**{**QUICK, "conformal": True}).fit_files(ParquetTable(_write(tmp_path, table), "t"))
    assert model.conformal_ is not None
    assert model.history_.n == pytest.approx(1500 * (1 - 0.2 - 0.2), abs=80)
    lower, upper = model.predict_interval(_table(1000, 5).drop(columns="t"), 0.9).T
    covered = ((lower <= _table(1000, 5)["t"]) & (_table(1000, 5)["t"] <= upper)).mean()
    assert covered == pytest.approx(0.9, abs=0.05)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:column")
def test_a_run_resumes_with_equal_files_only(tmp_path, small_sample):
    folder = tmp_path / "data"
    folder.mkdir()
    _write(folder, _table(900))
    checkpoint = tmp_path / "run"

    class StopError(Exception):
        pass

    def stop(record):
        if record["epoch"] == 3:
            raise StopError

    whole = BayesianRegressor(**QUICK).fit_files(ParquetTable(folder, "t"))
    with pytest.raises(StopError):
        BayesianRegressor(**QUICK).fit_files(ParquetTable(folder, "t"), checkpoint=checkpoint, loggers=[stop])
    resumed = BayesianRegressor(**QUICK).fit_files(ParquetTable(folder, "t"), checkpoint=checkpoint)
    for name, value in whole.bnn_.state_dict().items():
        assert torch.equal(resumed.bnn_.state_dict()[name], value)
    changed = _table(900)
    changed.loc[700, "skewed"] += 1e-3
    _write(folder, changed)
    with pytest.raises(CheckpointError, match="checksum of data"):
        BayesianRegressor(**QUICK).fit_files(ParquetTable(folder, "t"), checkpoint=checkpoint)


@pytest.mark.filterwarnings("ignore:column")
def test_an_index_is_no_column(tmp_path):
    table = _table(300).set_index(pd.Index([f"row {i}" for i in range(300)], name="name"))
    table.to_parquet(tmp_path / "a.parquet", row_group_size=100)
    model = BayesianRegressor(**QUICK).fit_files(ParquetTable(tmp_path, "t"))
    assert [column.name for column in model.columns_] == [name for name in table if name != "t"]


def test_files_that_do_not_fit_together(tmp_path):
    table = _table(90)
    with pytest.raises(DataError, match="no file matches"):
        ParquetTable(tmp_path / "*.parquet", "t")
    _write(tmp_path, table)
    with pytest.raises(DataError, match=r"no column 'T'. Did you mean 't'\?"):
        ParquetTable(tmp_path, "T")
    (tmp_path / "part3.csv").write_text("a,b")
    with pytest.raises(DataError, match=r"part3.csv; several files must be .parquet"):
        ParquetTable(tmp_path / "*", "t")
    (tmp_path / "part3.parquet").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"part3.parquet cannot be read as a Parquet file"):
        ParquetTable(tmp_path, "t")
    table.drop(columns="flag").assign(other=1).to_parquet(tmp_path / "part3.parquet")
    with pytest.raises(DataError, match=r"part3.parquet lacks 'flag' and also has 'other', unlike .*part0.parquet"):
        ParquetTable(tmp_path, "t")
    table.assign(number=table["number"].astype(str)).to_parquet(tmp_path / "part3.parquet")
    with pytest.raises(DataError, match=r"column 'number' is (large_)?string in .*part3.parquet, and double in .*part0.parquet"):
        ParquetTable(tmp_path, "t")
    table.iloc[:0].to_parquet(tmp_path / "part3.parquet")
    assert ParquetTable(tmp_path, "t").rows == 90


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:column")
def test_values_that_cannot_be_trained_on(tmp_path, small_sample, monkeypatch):
    def fit(table, kind=BayesianRegressor, **settings):
        for path in tmp_path.iterdir():
            path.unlink()
        return kind(**{**QUICK, **settings}).fit_files(ParquetTable(_write(tmp_path, table), "t"))

    table = _table(900)
    table.loc[777, "number"] = np.inf
    with pytest.raises(DataError, match=r"part2.parquet, rows \d+ to \d+ of its group \d: column 'number' is infinite"):
        fit(table)
    table = _table(900)
    table["written"] = table["written"].where(table.index != 888, "soon")
    with pytest.raises(DataError, match=r"rows .*: column 'written' must be of kind 'datetime' such as '31.12.2020', got 'soon'"):
        fit(table)
    with pytest.raises(DataError, match=r"rows .*: Input y contains infinity"):
        fit(_table(900).assign(t=lambda x: x["t"].where(x.index != 850, np.inf)))
    with pytest.raises(ConfigurationError, match="the target 't' has numbers; for classes, pass"):
        fit(_table(900), BayesianClassifier)
    with pytest.raises(DataError, match="missing in every row"):
        fit(_table(900).assign(t=np.nan))
    with pytest.raises(DataError, match="the same number in every row"):
        fit(_table(900).assign(t=3.0))
    with pytest.raises(DataError, match="one class only"):
        fit(_table(900).assign(t="yes"), BayesianClassifier)
    with pytest.raises(ConfigurationError, match="method='auto' compares models of a table in memory"):
        fit(_table(900), method="auto", epochs=None)
    with pytest.raises(ConfigurationError, match="conformal='cross'"):
        fit(_table(900), conformal="cross")
    with pytest.raises(ConfigurationError, match="on='ray' sends a table in memory"):
        fit(_table(900), on="ray")
    with pytest.raises(ConfigurationError, match="left to train on"):
        fit(_table(900), validation_fraction=0.9999)
    with pytest.raises(TypeError, match="must be a ParquetTable, got DataFrame"):
        BayesianRegressor().fit_files(_table(90))
    many = _table(900).assign(street=[f"street {i // 2}" for i in range(900)])
    monkeypatch.setattr("bayesify.data.summary._MOST_CATEGORIES", 400)
    with pytest.warns(match="'street' is not used: it has more than 400 categories"):
        model = fit(many)
    assert next(column for column in model.columns_ if column.name == "street").kind == "dropped"


@pytest.mark.filterwarnings("ignore:column")
def test_a_file_that_changes_between_passes_is_an_error(tmp_path):
    _write(tmp_path, _table(300))
    table = ParquetTable(tmp_path, "t")
    assert len(table.sample.train.y) == 300
    _table(100, 7).to_parquet(tmp_path / "part1.parquet")
    with pytest.raises(DataError, match=r"part1.parquet has changed since it was opened"):
        BayesianRegressor(**QUICK).fit_files(table)
    (tmp_path / "part2.parquet").unlink()
    with pytest.raises(DataError, match=r"part2.parquet cannot be read"):
        list(table.pieces(len(table.groups) - 1))


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:column")
def test_a_target_that_is_text(tmp_path, small_sample):
    table = _table(900)
    numbers = table["t"].round(2)
    table["t"] = [f"${value}" for value in numbers]
    table.loc[::50, "t"] = "unknown"
    source = ParquetTable(_write(tmp_path, table), "t")
    with pytest.warns(match="is text and read as numbers"):
        _ = source.sample
    assert source.sample.task == "regression"
    model = BayesianRegressor(**QUICK).fit_files(source)
    assert model.history_.n == pytest.approx(882 * 0.8, abs=60)
    assert model.target_mean_[0] == pytest.approx(numbers.mean(), abs=4 * numbers.std() / 300**0.5)
