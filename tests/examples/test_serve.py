"""The web service answers as the estimator predicts."""

from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
pytest.importorskip("skops")
np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")

from fastapi.testclient import TestClient

from bayesify.estimators import BayesianClassifier, BayesianRegressor
from bayesify.persistence import save_model

FAST = {"method": "MCDropout", "epochs": 2, "hidden": (4,), "random_state": 0}
X = pd.DataFrame({"a": np.linspace(0, 1, 40), "b": ["x", "y"] * 20})


@pytest.fixture
def client(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    import serve

    serve.model.cache_clear()
    return TestClient(serve.app)


def test_regression(client, tmp_path, monkeypatch):
    estimator = BayesianRegressor(**FAST).fit(X, X["a"])
    save_model(estimator, tmp_path / "m", target="y")
    monkeypatch.setenv("BAYESIFY_MODEL", str(tmp_path / "m"))
    rows = [{"a": 0.5, "b": "x"}, {"a": None, "b": "new"}]
    first, second = client.post("/predict", json={"rows": rows, "level": 0.8}).json()
    assert first["mean"] == pytest.approx(estimator.predict(pd.DataFrame(rows))[0])
    assert first["lower"] < first["mean"] < first["upper"]
    assert "warning" not in first
    assert "a missing, never missing in training" in second["warning"]
    refused = client.post("/predict", json={"rows": [{"b": "x"}]})
    assert refused.status_code == 422
    assert "lacks columns" in refused.json()["detail"]
    assert client.post("/predict", json={"rows": []}).status_code == 422


def test_classification(client, tmp_path, monkeypatch):
    save_model(BayesianClassifier(**FAST).fit(X, X["b"]), tmp_path / "m", target="y")
    monkeypatch.setenv("BAYESIFY_MODEL", str(tmp_path / "m"))
    (answer,) = client.post("/predict", json={"rows": [{"a": 0.5, "b": "x"}]}).json()
    assert sum(answer["probabilities"].values()) == pytest.approx(1)
    assert answer["prediction"] in ("x", "y")
