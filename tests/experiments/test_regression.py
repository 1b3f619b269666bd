"""The regression protocol: settings, standardisation, choices on training rows alone, scores in the targets' own unit."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from experiments.harness.config import jobs_of, read_table
from experiments.harness.protocol import Context, Table, UnitError
from experiments.protocols import tabular
from experiments.protocols.tabular import Regression, judge
from experiments.protocols.tabular import training as training_module
from experiments.protocols.tabular.setup import Choose, Setup
from experiments.protocols.tabular.splits import hold_out, make_split
from experiments.protocols.tabular.training import Model
from scipy import special, stats

from bayesify import VIFO, Deterministic, Gaussian, MeanField, bayesify
from bayesify.data import UCI
from bayesify.estimators import BayesianRegressor
from bayesify.predict import predict
from bayesify.train import History

SMALL = {"hidden": [8], "epochs": 3, "samples": 4, "batch_size": 16, "splits": 3, "datasets": ["boston"]}


def _method(name="Deterministic", **fields):
    return {"name": name, "method": {"method": name}, **fields}


def _table(tmp_path, **settings):
    return Table("uci/test", "t", "s", "regression", {**SMALL, "methods": [_method()], **settings}, {}, tmp_path)


def _data(noise=3.0, scale=20.0, shift=100.0):
    random = np.random.default_rng(0)
    X = random.normal(5.0, 2.0, (60, 3))
    return UCI("boston", X, shift + scale * (X[:, 0] - 5) / 2 + noise * random.normal(size=60), None, 20)


def _run(table, data, monkeypatch, units=None, saved=None):
    """Results of the table's only job."""
    monkeypatch.setattr(tabular, "load_uci", lambda name, data_dir: data)
    (job,) = jobs_of(table)
    shares = []
    context = Context(data_dir=None, progress=shares.append, save=(saved if saved is not None else {}).update)
    results = Regression().run(job, units or job.units, context)
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    return results


# --- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"methods": []}, r"methods must be a list of tables, \[\[methods\]\]"),
        ({"methods": [{"method": {"method": "MeanField"}}]}, "every method needs a name"),
        ({"methods": [{"name": "X"}]}, "X on boston: method is missing"),
        ({"methods": [{"name": "X", "method": "MeanField"}]}, "X on boston: method must be a table"),
        ({"methods": [_method("MagicField")]}, "MagicField on boston: unknown method 'MagicField'; known methods: .*MeanField"),
        ({"methods": [_method(dropout=0.1)]}, "unknown setting 'dropout'; there are method, hidden"),
        ({"datasets": 3}, "datasets must be a list of names, or tables"),
        ({"datasets": {"boston": {"epoch": 3}}}, "unknown setting 'epoch'"),
        ({"splits": 0}, "splits of boston must be a whole number of at least 1, got 0"),
        ({"hidden": [0]}, "hidden must be a whole number"),
        ({"hidden": 50}, r"hidden must be a list of widths such as \[50\], got 50"),
        ({"activation": "step"}, "activation must be one of"),
        ({"epochs": 2.5}, "epochs must be a whole number"),
        ({"schedule": "linear"}, "schedule must be one of 'cosine', 'constant'"),
        ({"beta": -1.0}, "beta must be a finite number of at least 0"),
        ({"warmup": 2.0}, r"warmup must be a share of training in \[0, 1\]"),
        ({"noise": {"learned": 0.3, "fixed": 1.0}}, r"noise must be \{learned = 0.3\} or \{fixed = 2.5\}"),
        ({"noise": {"learned": 0.3, "training": 1.0}}, r"noise must be \{learned = 0.3\} or \{fixed = 2.5\}"),
        ({"noise": {"fixed": 0.0}}, "noise.fixed must be a finite number above 0"),
        ({"choose": {"among": {}}}, "choose.among must name at least one field"),
        ({"choose": {"amongst": {}}}, "unknown setting of choose 'amongst'"),
        ({"choose": {"among": {"method": {"p": [0.1]}}}}, "method.p cannot be chosen; what can is .*method.prior_std"),
        ({"choose": {"among": {"epochs": [1, 2]}}}, "epochs cannot be chosen"),
        ({"choose": {"among": {"beta": 3}}}, "choose.among.beta must be a list of values or a range"),
        ({"choose": {"among": {"beta": [-1.0]}}}, "beta must be a finite number of at least 0"),
        ({"choose": {"among": {"beta": {"low": 0.1, "high": 1.0}}}}, "is a range, so choose.trials must say"),
        ({"choose": {"among": {"beta": {"low": 0.0, "high": 1.0, "log": True}}, "trials": 3}}, "low above 0 where log = true"),
        ({"choose": {"among": {"beta": [0.1]}, "fraction": 0.0}}, "choose.fraction must be"),
    ],
)
def test_wrong_settings_are_named(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        Regression().jobs(_table(tmp_path, **settings))


def test_methods_come_before_data_sets_before_the_rest(tmp_path):
    table = _table(
        tmp_path,
        datasets={"boston": {}, "protein": {"splits": 2, "hidden": [9], "epochs": 4, "noise": {"fixed": 2.0}}},
        methods=[_method("MeanField"), _method("MCDropout", epochs=7)],
    )
    jobs = {job.key: job for job in Regression().jobs(table)}
    assert list(jobs) == ["boston-MeanField", "boston-MCDropout", "protein-MeanField", "protein-MCDropout"]
    facts = {key: (job.settings["setup"]["epochs"], job.settings["setup"]["hidden"], len(job.units)) for key, job in jobs.items()}
    assert facts["boston-MeanField"] == (3, [8], 3)
    assert facts["protein-MeanField"] == (4, [9], 2)
    assert facts["protein-MCDropout"] == (7, [9], 2)
    assert jobs["protein-MeanField"].settings["setup"]["noise"] == {"fixed": 2.0}
    assert jobs["protein-MeanField"].data == ("protein",)
    assert jobs["protein-MeanField"].settings["dataset"] == "protein"
    assert jobs["protein-MeanField"].settings["method"] == "MeanField"
    assert jobs["protein-MeanField"].cost > jobs["boston-MeanField"].cost


def test_fingerprints_know_what_decides_results(tmp_path):
    def fingerprint(**settings):
        (job,) = Regression().jobs(_table(tmp_path, **settings))
        return job.fingerprint(Regression(), {"boston": "sum"})

    assert fingerprint() == fingerprint(splits=9)  # further splits leave the others as they are
    default = {"name": "MeanField", "method": {"method": "MeanField"}}
    written_out = {"name": "MeanField", "method": MeanField().to_dict()}
    assert fingerprint(methods=[default]) == fingerprint(methods=[written_out])
    others = [{"epochs": 4}, {"beta": 0.5}, {"noise": {"learned": 0.2}}, {"choose": {"among": {"beta": [0.1]}}}, {"seed": 1}]
    assert len({fingerprint(**change) for change in [{}, *others]}) == 6


def test_what_is_chosen_and_how_may_differ_by_data_set_key_by_key(tmp_path):
    general = {"among": {"beta": [0.1, 0.2]}, "share": 0.5}
    own = {"boston": {}, "yacht": {"choose": {"samples": 7}}}
    methods = [_method(), _method("MCDropout", choose={"among": {"beta": [0.3]}})]
    jobs = Regression().jobs(_table(tmp_path, choose=general, datasets=own, methods=methods))
    found = {job.key: job.settings["setup"]["choose"] for job in jobs}
    same = {"trials": None, "together": 10, "share": 0.5, "fraction": 0.2}  # without the draws, where nothing is said of them
    assert found["boston-Deterministic"] == {"among": {"beta": [0.1, 0.2]}, **same}
    assert found["yacht-Deterministic"] == {"among": {"beta": [0.1, 0.2]}, **same, "samples": 7}
    assert found["yacht-MCDropout"] == {"among": {"beta": [0.3]}, **same, "samples": 7}


def test_setups_survive_json(tmp_path):
    import json

    choose_ = {"among": {"method": {"prior_std": {"low": 0.1, "high": 1.0, "log": True}}, "noise.fixed": [1.0, 2.0]}, "trials": 4}
    setup = Setup.from_dict({"method": {"method": "MeanField"}, "choose": choose_})
    assert setup.choose.among == {"method.prior_std": {"low": 0.1, "high": 1.0, "log": True}, "noise.fixed": [1.0, 2.0]}
    assert Setup.from_dict(json.loads(json.dumps(setup.to_dict()))) == setup


def test_fields_that_are_chosen_replace_those_of_the_setup():
    setup = Setup(method={"method": "MeanField"}, choose=Choose(among={"beta": [0.1]}))
    changed = setup.with_fields({"method.prior_std": 0.7, "noise.fixed": 2.0, "beta": 0.1})
    assert changed.method["prior_std"] == 0.7
    assert (changed.noise, changed.beta, changed.choose) == ({"fixed": 2.0}, 0.1, None)
    assert dataclasses.replace(setup, warmup=0.5).kl_weight()(0.25) == 0.5
    assert changed.kl_weight() == 0.1


def test_the_seven_sets_are_configured():
    table = read_table("uci/standard")
    jobs = jobs_of(table)
    assert {job.settings["dataset"]: len(job.units) for job in jobs} == {
        **dict.fromkeys(("boston", "concrete", "kin8nm", "naval", "power-plant", "yacht"), 20),
        "protein": 5,
    }
    of_papers = {"VariationalDropout", "VSD", "WHVI", "EMP", "ECMP", "VIFO"}
    assert {job.settings["method"] for job in jobs} == {"Deterministic", "MCDropout", "MeanField", "DeepEnsemble", *of_papers}
    assert set(table.published) <= {job.settings["method"] for job in jobs}


# --- data


def test_everything_is_standardised_by_training_rows():
    data = _data()
    X = np.column_stack([data.X, np.full(60, 0.1), np.arange(60) == 0])  # constant everywhere, and on the training rows
    train, test = np.arange(10, 60), np.arange(10)
    split = make_split(X, data.y, train, test)
    torch.testing.assert_close(split.X[:, :3].double(), torch.from_numpy(stats.zscore(X[train, :3])), rtol=1e-5, atol=1e-6)
    expected = stats.zmap(X[test, :3], X[train, :3])
    torch.testing.assert_close(split.X_test[:, :3].double(), torch.from_numpy(expected), rtol=1e-5, atol=1e-6)
    assert split.X[:, 3:].eq(0).all()
    assert split.X_test[:, 3].eq(0).all()
    assert split.X_test[:, 4].tolist() == [1.0] + [0.0] * 9
    torch.testing.assert_close(split.mean + split.std * split.y.double(), torch.from_numpy(data.y[train]), rtol=1e-6, atol=1e-4)
    assert split.y_test.tolist() == data.y[test].tolist()
    with pytest.raises(ValueError, match=r"all 50 training targets are 7.0"):
        make_split(X, np.full(60, 7.0), train, test)


def test_validation_rows_are_part_of_the_training_rows():
    train = np.arange(100, 200)
    fit, held_out = hold_out(train, 0.2, seed=3)
    assert (len(fit), len(held_out)) == (80, 20)
    assert sorted([*fit, *held_out]) == train.tolist()
    assert set(held_out) != set(hold_out(train, 0.2, seed=4)[1])
    with pytest.raises(ValueError, match="leaves nothing on one side"):
        hold_out(np.arange(2), 0.1, seed=0)


# --- scores


def test_scores_are_those_of_the_targets_own_unit():
    data = _data()
    split = make_split(data.X, data.y, *data.split(0))
    torch.manual_seed(3)
    bnn = bayesify(torch.nn.Linear(3, 1), MeanField(initial_std=2.0))
    setup = Setup(method={"method": "MeanField"}, samples=25)
    history = History(loss=[0.0], nll=[0.5], kl=[4.0])
    result = judge(Model(bnn, Gaussian(std=0.4), split, history, 1.5, setup, seed=7))

    means = predict(bnn, split.X_test, Gaussian(std=0.4), 25, seed=7).means.double().numpy() * split.std + split.mean
    y, std = data.y[data.split(0)[1]], 0.4 * split.std
    densities = stats.norm.logpdf(y, loc=means, scale=std)  # (25, 6)
    assert result["log_likelihood"] == pytest.approx(np.mean(special.logsumexp(densities, axis=0) - math.log(25)), rel=1e-6)
    assert result["rmse"] == pytest.approx(np.sqrt(np.mean((means.mean(0) - y) ** 2)), rel=1e-6)
    inside = np.abs(stats.norm.cdf(y, loc=means, scale=std).mean(0) - 0.5) <= 0.475
    assert result["coverage_95"] == pytest.approx(inside.mean())
    draws = means[:, None] + std * np.random.default_rng(0).normal(size=(25, 4000, 6))
    a, b = draws.reshape(-1, 6), np.random.default_rng(1).permutation(draws.reshape(-1, 6))
    crps = np.mean(np.abs(a - y).mean(0) - 0.5 * np.abs(a - b).mean(0))
    assert result["crps"] == pytest.approx(crps, rel=0.02)
    low, high = np.quantile(a, [0.025, 0.975], axis=0)
    assert result["width_95"] == pytest.approx((high - low).mean(), rel=0.02)
    assert result["noise_std"] == pytest.approx(std)
    assert result["parameters"] == 2 * 4
    assert (result["kl"], result["nll"], result["seed"], result["train_seconds"]) == (4.0, 0.5, 7, 1.5)
    assert (result["n_train"], result["n_test"], result["epochs"]) == (54, 6, 1)


def test_training_may_have_another_noise_than_prediction(tmp_path, monkeypatch):
    """With far more noise than the targets vary, nothing would be learned against the weight decay."""
    data = _data()
    alone, both = (
        _run(_table(tmp_path, noise=noise, weight_decay=0.01, epochs=200), data, monkeypatch)
        for noise in ({"fixed": 1e4}, {"fixed": 1e4, "training": 0.5})
    )
    for split in alone:
        assert alone[split]["noise_std"] == both[split]["noise_std"] == pytest.approx(1e4)
        assert both[split]["rmse"] < 0.5 * alone[split]["rmse"]


@pytest.mark.parametrize("noise", [{"learned": 0.3}, {"fixed": 3.0}])
def test_another_unit_changes_scores_as_it_should(tmp_path, monkeypatch, noise):
    results = _run(_table(tmp_path, noise=noise), _data(), monkeypatch)
    noise = {name: value * (100 if name == "fixed" else 1) for name, value in noise.items()}
    data = _data()
    other = _run(_table(tmp_path, noise=noise), UCI("boston", data.X, 100 * data.y - 3, None, 20), monkeypatch)
    for unit, result in results.items():
        for key in ("rmse", "crps", "width_95", "noise_std"):
            assert other[unit][key] == pytest.approx(100 * result[key], rel=1e-3)
        assert other[unit]["log_likelihood"] == pytest.approx(result["log_likelihood"] - math.log(100), abs=2e-3)
        assert other[unit]["coverage_95"] == result["coverage_95"]
    if "fixed" in noise:
        assert all(result["noise_std"] == pytest.approx(3.0) for result in results.values())


# --- runs


def test_a_job_learns_and_repeats_itself(tmp_path, monkeypatch):
    table = _table(tmp_path, epochs=150, methods=[_method("MCDropout", method={"method": "MCDropout", "p": 0.01})])
    data = _data()
    results = _run(table, data, monkeypatch)
    assert list(results) == ["0", "1", "2"]
    for unit, result in results.items():
        assert result["rmse"] < 0.5 * data.y[data.split(int(unit))[1]].std()
        assert 1.0 < result["noise_std"] < 9.0  # 3, with few rows to tell
        assert result["seed"] == int(unit)
    alone = _run(table, data, monkeypatch, units=("1",))
    assert alone["1"]["rmse"] == pytest.approx(results["1"]["rmse"], rel=1e-3)
    assert alone["1"]["log_likelihood"] == pytest.approx(results["1"]["log_likelihood"], abs=1e-3)
    again = _run(table, data, monkeypatch)
    assert {unit: result["rmse"] for unit, result in again.items()} == {unit: result["rmse"] for unit, result in results.items()}


def test_test_rows_decide_nothing(tmp_path, monkeypatch):
    choose_ = {"among": {"noise.fixed": [1.0, 10.0], "learning_rate": [1e-2, 1e-3]}}
    table, data = _table(tmp_path, choose=choose_, epochs=10), _data()
    first = _run(table, data, monkeypatch, units=("0",))["0"]
    X, y, test = data.X.copy(), data.y.copy(), data.split(0)[1]
    X[test], y[test] = X[test][::-1] + 1.0, -y[test]
    second = _run(table, UCI("boston", X, y, None, 20), monkeypatch, units=("0",))["0"]
    for key in ("chosen", "validation_log_likelihood", "noise_std", "nll", "kl"):
        assert second[key] == first[key]
    assert second["rmse"] != first["rmse"]


def test_the_better_candidate_is_chosen(tmp_path, monkeypatch):
    among = {"noise": {"fixed": [0.05, 3.0, 200.0]}, "learning_rate": [1e-2, 1e-9]}
    results = _run(_table(tmp_path, choose={"among": among}, epochs=100), _data(), monkeypatch)
    for result in results.values():
        assert result["chosen"] == {"noise.fixed": 3.0, "learning_rate": 1e-2}
        assert result["noise_std"] == pytest.approx(3.0)
        assert result["epochs"] == 100
        assert result["choice_seconds"] > 0


def test_a_failed_split_does_not_take_the_others_along(tmp_path, monkeypatch):
    real = training_module.fit_many

    def one_fails(trainings, **settings):
        histories = real(trainings, **settings)
        histories[1].failure = "the loss became nan"
        return histories

    monkeypatch.setattr(training_module, "fit_many", one_fails)
    saved = {}
    with pytest.raises(UnitError, match=r"^split 1: the loss became nan$"):
        _run(_table(tmp_path), _data(), monkeypatch, saved=saved)
    assert list(saved) == ["0", "2"]


def test_a_search_runs_end_to_end(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    choose_ = {"among": {"noise": {"fixed": {"low": 0.1, "high": 100.0, "log": True}}}, "trials": 3, "together": 2}
    results = _run(_table(tmp_path, choose=choose_), _data(), monkeypatch, units=("0", "1"))
    for result in results.values():
        assert 0.1 <= result["chosen"]["noise.fixed"] <= 100.0
        assert result["noise_std"] == pytest.approx(result["chosen"]["noise.fixed"])


def test_quick_settings_are_small():
    table = read_table("uci/standard", quick=True)
    jobs = jobs_of(table)
    assert len(jobs) == 8
    assert all(job.settings["setup"]["epochs"] <= 5 and len(job.units) == 2 for job in jobs)


# --- methods by layer, lengths in steps


def test_methods_by_layer_and_lengths_in_steps(tmp_path, monkeypatch):
    by_layer = {"2": {"method": "MeanField"}, "*": {"method": "Deterministic"}}
    setup = Setup(method=by_layer, steps=100, batch_size=16)
    assert setup.methods() == {"2": MeanField(), "*": Deterministic()}
    assert setup.method["2"] == MeanField().to_dict()
    assert Setup.from_dict(setup.to_dict()) == setup
    assert (setup.passes(54), setup.passes(16), setup.passes(10_000)) == (25, 100, 1)
    changed = setup.with_fields({"method.2.prior_std": 0.5})
    assert changed.methods() == {"2": MeanField(prior_std=0.5), "*": Deterministic()}
    with pytest.raises(ValueError, match=r"method\.2\.p cannot be chosen; what can is .*method\.2\.prior_std"):
        setup.with_fields({"method.2.p": 0.5})
    table = _table(tmp_path, steps=8, schedule="power", methods=[{"name": "X", "method": by_layer}])
    results = _run(table, _data(), monkeypatch)
    assert {result["epochs"] for result in results.values()} == {2}
    assert {result["parameters"] for result in results.values()} == {3 * 8 + 8 + 2 * (8 + 1)}


def test_settings_that_are_not_used_leave_fingerprints_as_they_were():
    assert "steps" not in Setup(method={"method": "MeanField"}).to_dict()
    with pytest.raises(ValueError, match="steps must be a whole number"):
        Setup(method={"method": "MeanField"}, steps=0)


def test_the_power_schedule_is_the_papers(tmp_path, monkeypatch):
    rates = []
    real = training_module.fit_many

    def look(trainings, **settings):
        parameter = torch.nn.Parameter(torch.zeros(()))
        optimizer = torch.optim.SGD([parameter], lr=1e-3)
        scheduler = settings["scheduler"](optimizer)
        for _ in range(101):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        return real(trainings, **settings)

    monkeypatch.setattr(training_module, "fit_many", look)
    _run(_table(tmp_path, schedule="power", splits=1), _data(), monkeypatch)
    # 54 rows in batches of 16: 4 steps per pass
    assert rates[50] == pytest.approx(1e-3 * 1.1**-0.3)
    assert rates[100] == pytest.approx(1e-3 * 1.2**-0.3)


def test_table_3_of_whvi_is_configured():
    jobs = jobs_of(read_table("whvi/table3"))
    assert len(jobs) == 21
    assert all(len(job.units) == 8 and job.settings["setup"]["steps"] == 50_500 for job in jobs)
    first = next(job for job in jobs if job.key == "boston-WHVI").settings["setup"]["method"]
    assert {pattern: fields["method"] for pattern, fields in first.items()} == {"4": "MeanField", "*": "WHVI"}


def test_the_table_of_defaults_runs_what_the_estimators_use():
    for job in jobs_of(read_table("uci/defaults")):
        setup = Setup.from_dict(job.settings["setup"])
        estimator = BayesianRegressor(method=setup.method["method"])
        assert setup.methods() == estimator.method_in_use()
        assert setup.kl_weight() == estimator.beta_in_use()
        if isinstance(estimator.method_in_use(), VIFO):
            assert setup.local_beta == estimator.method_in_use().eta
