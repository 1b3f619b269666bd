"""A web service for a model directory, with FastAPI: predictions with intervals, and warnings about unusual rows.

    pip install "bayesify[tables]" fastapi uvicorn
    bayesify fit houses.csv --target price
    BAYESIFY_MODEL=bayesify-model uvicorn serve:app

    curl localhost:8000/predict -H "Content-Type: application/json" -d '{"rows": [{"area": 120, "rooms": 4}], "level": 0.9}'

Answers for regression: mean, std, lower and upper; for classification: prediction and probabilities. Loading a model executes no
code from its files. Predictions are deterministic, and several workers give equal answers.
"""

from __future__ import annotations

import os
import warnings
from functools import cache
from typing import Any

import pandas as pd
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from bayesify.estimators import BayesianClassifier, BayesianEstimator, BayesianRegressor
from bayesify.persistence import load_model

app = FastAPI(title="bayesify")


class Query(BaseModel):
    """Rows to predict, each a value by column; null is a missing value."""

    rows: list[dict[str, Any]] = Field(min_length=1, max_length=10_000)
    level: float = Field(default=0.95, gt=0, lt=1)


@cache
def model() -> BayesianEstimator:
    """Load the model, on the first request."""
    return load_model(os.environ.get("BAYESIFY_MODEL", "bayesify-model"))


@app.post("/predict")
def predict(query: Query) -> list[dict[str, Any]]:
    """Predict rows; values that the model cannot take are answered with status 422 and the reason."""
    X = pd.DataFrame(query.rows)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about columns that the model does not use
            answers, reasons = _answers(model(), X, query.level), model().unusual(X)
    except ValueError as error:
        raise HTTPException(422, str(error)) from error
    return [{**answer, **({"warning": reason} if reason else {})} for answer, reason in zip(answers, reasons, strict=True)]


def _answers(estimator: BayesianEstimator, X: pd.DataFrame, level: float) -> list[dict[str, Any]]:
    if isinstance(estimator, BayesianRegressor):
        mean, std = estimator.predict(X, return_std=True)
        lower, upper = estimator.predict_interval(X, level).T
        return pd.DataFrame({"mean": mean, "std": std, "lower": lower, "upper": upper}).to_dict("records")
    assert isinstance(estimator, BayesianClassifier)
    labels = estimator.classes_.tolist()
    probabilities = estimator.predict_proba(X)
    best = probabilities.argmax(1)
    return [
        {"prediction": labels[k], "probabilities": dict(zip(map(str, labels), row.tolist(), strict=True))}
        for k, row in zip(best, probabilities, strict=True)
    ]
