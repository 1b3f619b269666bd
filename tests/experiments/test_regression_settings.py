"""Settings of the regression protocol: precedence, fingerprints, errors, and the committed configurations."""

import dataclasses

import pytest
from experiments.harness.config import read_table
from experiments.harness.experiment import Experiment
from experiments.protocols.tabular import Regression
from experiments.protocols.tabular.settings import Choose, Setup
from regression_table import make_table, method

from bayesify import VIFO, MeanField
from bayesify.estimators import BayesianRegressor

# --- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"methods": []}, r"methods must be a list of tables, \[\[methods\]\]"),
        ({"methods": [{"method": {"method": "MeanField"}}]}, "every method needs a name"),
        ({"methods": [{"name": "X"}]}, "X on boston: settings are missing: method"),
        ({"methods": [{"name": "X", "method": "MeanField"}]}, "X on boston: method must be a table"),
        ({"methods": [method("MagicField")]}, "MagicField on boston: unknown method 'MagicField'; did you mean MeanField"),
        ({"methods": [method(dropout=0.1)]}, "unknown setting 'dropout'; the settings are method, hidden"),
        ({"datasets": 3}, "datasets must be a list of names, or tables"),
        ({"datasets": {"boston": {"epoch": 3}}}, "unknown setting 'epoch'"),
        ({"splits": 0}, "splits of boston must be a whole number of at least 1, got 0"),
        ({"hidden": [0]}, "hidden must be a whole number"),
        ({"hidden": 50}, r"hidden must be a list of widths such as \[50\], got 50"),
        ({"activation": "step"}, "activation must be one of"),
        ({"epochs": 2.5}, "epochs must be a whole number"),
        ({"schedule": "linear"}, "schedule must be one of 'cosine', 'constant'"),
        ({"likelihood": "student"}, "likelihood must be one of 'gaussian', 'evidential'"),
        ({"beta": -1.0}, "beta must be a finite number of at least 0"),
        ({"warmup": 2.0}, r"warmup must be a share of training in \[0, 1\]"),
        (
            {"noise": {"learned": 0.3, "fixed": 1.0}},
            r"noise must be \{learned = 0.3\}, \{heteroscedastic = 0.3\} or \{fixed = 2.5\}",
        ),
        (
            {"noise": {"learned": 0.3, "training": 1.0}},
            r"noise must be \{learned = 0.3\}, \{heteroscedastic = 0.3\} or \{fixed = 2.5\}",
        ),
        ({"noise": {"fixed": 0.0}}, "noise.fixed must be a finite number above 0"),
        ({"choose": {"among": {}}}, "choose.among must name at least one field"),
        ({"choose": {"amongst": {}}}, "unknown choose setting 'amongst'"),
        ({"choose": {"among": {"method": {"p": [0.1]}}}}, "method.p cannot be chosen; the fields to choose are .*method.prior_std"),
        ({"choose": {"among": {"batch_size": [1, 2]}}}, "batch_size cannot be chosen"),
        ({"choose": {"among": {"beta": 3}}}, "choose.among.beta must be a list of values or a range"),
        ({"choose": {"among": {"beta": [-1.0]}}}, "beta must be a finite number of at least 0"),
        ({"choose": {"among": {"beta": {"low": 0.1, "high": 1.0}}}}, "is a range, so choose.trials must say"),
        ({"choose": {"among": {"beta": {"low": 0.0, "high": 1.0, "log": True}}, "trials": 3}}, "low above 0 where log = true"),
        ({"choose": {"among": {"beta": [0.1]}, "fraction": 0.0}}, "choose.fraction must be"),
    ],
)
def test_wrong_settings_are_named(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        Regression().jobs(make_table(tmp_path, **settings))


def test_methods_come_before_data_sets_before_the_rest(tmp_path):
    table = make_table(
        tmp_path,
        datasets={"boston": {}, "protein": {"splits": 2, "hidden": [9], "epochs": 4, "noise": {"fixed": 2.0}}},
        methods=[method("MeanField"), method("MCDropout", epochs=7)],
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
        (job,) = Regression().jobs(make_table(tmp_path, **settings))
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
    methods = [method(), method("MCDropout", choose={"among": {"beta": [0.3]}})]
    jobs = Regression().jobs(make_table(tmp_path, choose=general, datasets=own, methods=methods))
    found = {job.key: job.settings["setup"]["choose"] for job in jobs}
    same = {"trials": None, "together": 10, "share": 0.5, "fraction": 0.2}
    assert found["boston-Deterministic"] == {"among": {"beta": [0.1, 0.2]}, **same, "samples": None}
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
    jobs = Experiment(table).jobs
    assert {job.settings["dataset"]: len(job.units) for job in jobs} == {
        **dict.fromkeys(("boston", "concrete", "kin8nm", "naval", "power-plant", "yacht"), 20),
        "protein": 5,
    }
    own = {"Deterministic", "MCDropout", "MeanField", "DeepEnsemble", "VariationalDropout", "VSD", "WHVI", "EMP", "ECMP", "VIFO"}
    methods = {job.settings["method"] for job in jobs}
    assert own <= methods
    assert len(methods - own) == 24  # rivals
    assert set(table.published) <= {job.settings["method"] for job in jobs}


def test_steps_are_a_positive_integer():
    with pytest.raises(ValueError, match="steps must be a whole number"):
        Setup(method={"method": "MeanField"}, steps=0)


def test_table_3_of_whvi_is_configured():
    jobs = Experiment(read_table("whvi/table3")).jobs
    assert len(jobs) == 28
    assert all(len(job.units) == 8 and job.settings["setup"]["steps"] == 50_500 for job in jobs)
    first = next(job for job in jobs if job.key == "boston-WHVI").settings["setup"]["method"]
    assert {pattern: fields["method"] for pattern, fields in first.items()} == {"4": "MeanField", "*": "WHVI"}


def test_the_table_of_methods_by_name_runs_what_the_estimators_use():
    for job in Experiment(read_table("uci/defaults")).jobs:
        setup = Setup.from_dict(job.settings["setup"])
        estimator = BayesianRegressor(method=setup.method["method"])
        assert setup.methods() == estimator.method_in_use()
        assert setup.kl_weight() == estimator.beta_in_use()
        if isinstance(estimator.method_in_use(), VIFO):
            assert setup.local_beta == estimator.method_in_use().eta


def test_quick_settings_are_small():
    table = read_table("uci/standard", quick=True)
    jobs = Experiment(table).jobs
    assert len({job.settings["method"] for job in jobs}) == 14
    assert all(job.settings["setup"]["epochs"] <= 5 and len(job.units) == 2 for job in jobs)
