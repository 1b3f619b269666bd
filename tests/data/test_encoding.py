"""Encoding of columns, and `SoftClip`."""

import math

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from bayesify.data import SoftClip, conform, describe_columns, preprocessing
from bayesify.data.encoding import share_of_rare


class TestPreprocessing:
    def test_standardization_agrees_with_numpy(self):
        rng = np.random.default_rng(0)
        X = pd.DataFrame(rng.standard_t(3, (500, 3)) * [1, 10, 100] + [0, 5, 1e6], columns=list("abc"))
        result = preprocessing(describe_columns(X)).fit_transform(X)
        outlier = np.abs(X - X.median()) > 5 * (X.quantile(0.75) - X.quantile(0.25))
        expected = (X - X.mean()) / X.std(ddof=0)
        rows = ~outlier.any(axis=1)
        assert rows.mean() > 0.95
        np.testing.assert_allclose(result.mean(0), 0, atol=1e-9)
        np.testing.assert_allclose(result.std(0), 1, rtol=1e-9)
        for i in range(3):  # up to a linear map, because outliers are clipped
            assert np.corrcoef(result[rows, i], expected.iloc[:, i][rows])[0, 1] > 1 - 1e-12

    def test_missing_values(self):
        a, few = [np.nan] * 10 + [1.0, 3.0, 8.0] * 5, [np.nan] * 9 + [1.0, 2.0] * 8
        X = pd.DataFrame({"a": a, "few": few, "b": np.arange(25.0)})
        columns = describe_columns(X)
        transformer = preprocessing(columns).fit(X)
        result = transformer.transform(X)
        assert result.shape == (25, 4)  # an indicator for "a" only: too few values of "few" are missing to learn from
        np.testing.assert_allclose(result[:, 3], [1] * 10 + [0] * 15)
        assert result[0, 0] == pytest.approx((3 - 4) / np.std([1, 3, 8]))  # the median, standardized
        assert np.isfinite(transformer.transform(pd.DataFrame({"a": [1.0], "few": 1.0, "b": [np.nan]}))).all()

    def test_categories(self):
        values = ["a"] * 300 + ["b"] * 300 + [np.nan] * 300 + ["rare", "rarer"]
        X = pd.DataFrame({"c": values, "n": np.arange(902.0)})
        transformer = preprocessing(describe_columns(X)).fit(X)
        encoded = transformer.transform(pd.DataFrame({"c": ["a", "b", np.nan, "rare", "rarer", "never seen"], "n": [0.0] * 6}))[
            :, 1:
        ]
        assert encoded.shape == (6, 4)
        assert (encoded.sum(1) == 1).all()
        assert (encoded[3:] == encoded[3]).all()
        assert len(np.unique(encoded, axis=0)) == 4

    def test_categories_of_many_rows_have_indicators_of_their_own(self, rng):
        X = pd.DataFrame({"shop": rng.permutation(np.repeat([f"s{i}" for i in range(150)], 80)), "n": np.arange(12_000.0)})
        encoded = preprocessing(describe_columns(X)).fit_transform(X)[:, 1:]
        np.testing.assert_array_equal(encoded, pd.get_dummies(X["shop"]).to_numpy(float))

    def test_rare_categories_that_are_told_apart_no_more_are_named(self):
        X = pd.DataFrame({"shop": [f"s{i}" for i in range(200)] * 50, "n": np.arange(10_000.0)})
        with pytest.warns(UserWarning, match=r"75.5% of the values of column 'shop' are categories that share one input"):
            columns = describe_columns(X)  # 151 of 200
        encoded = preprocessing(columns).fit_transform(X)[:, 1:]
        assert encoded.sum(0).max() == 151 * 50

    def test_share_of_rare_categories_is_that_of_the_encoder(self, rng):
        values = np.where(rng.random(20_000) < 0.6, np.nan, rng.geometric(0.02, 20_000).astype(float))
        X = pd.DataFrame({"c": pd.Series(values, dtype="Int64").astype("string").astype(object).where(~np.isnan(values), np.nan)})
        columns = describe_columns(X)
        encode = preprocessing(columns).fit(conform(X, columns)).named_transformers_["categories"]["encode"]
        expected = X["c"].dropna().isin(encode.infrequent_categories_[0]).mean()
        assert 0.1 < expected < 0.5
        assert share_of_rare(columns[0], columns) == pytest.approx(expected, abs=1e-3)

    def test_one_outlier_does_not_dominate_standardization(self):
        rng = np.random.default_rng(0)
        X = pd.DataFrame({"eeg": np.append(rng.normal(4300, 30, 5000), 7e5)})
        result = preprocessing(describe_columns(X)).fit_transform(X)
        assert 0.9 < result[:-1].std() < 1.05
        unclipped = StandardScaler().fit_transform(X)
        assert unclipped[:-1].std() < 0.01

    def test_nearly_constant_columns_stay_finite(self):
        X = pd.DataFrame({"a": [1e-300, 2e-300] * 10, "b": [0.1 + 0.2, 0.3] * 10, "c": [1e9] * 19 + [1e9 + 1]})
        assert np.isfinite(preprocessing(describe_columns(X)).fit_transform(X)).all()


class TestSoftClip:
    def test_formula(self):
        X = np.array([[0.0], [1.0], [2.0], [3.0], [4.0]])
        clip = SoftClip(k=2.0).fit(X)
        # quartiles 1 and 3: the fences are 3 + 2 * 2 = 7 and 1 - 4 = -3
        values = clip.transform([[7.0], [9.0], [-3.0], [-7.0], [np.nan], [1e300]]).ravel()
        expected = [7, 7 + 2 * math.log(2), -3, -3 - 2 * math.log(3), np.nan, 7 + 2 * math.log(1 + (1e300 - 7) / 2)]
        np.testing.assert_allclose(values, expected, rtol=1e-14)

    def test_leaves_normal_tails_unchanged(self):
        X = np.random.default_rng(0).normal(size=(100_000, 1))
        np.testing.assert_array_equal(SoftClip().fit_transform(X), X)

    def test_preserves_order_and_skips_columns_with_zero_quartile_range(self):
        X = np.sort(np.random.default_rng(0).standard_cauchy((1000, 1)), axis=0)
        assert (np.diff(SoftClip().fit_transform(X), axis=0) > 0).all()
        flat = np.array([[0.0]] * 99 + [[1e6]])
        np.testing.assert_array_equal(SoftClip().fit_transform(flat), flat)

    def test_does_not_modify_the_input(self):
        X = np.array([[0.0], [1.0], [2.0], [1e9]])
        before = X.copy()
        SoftClip().fit_transform(X)
        np.testing.assert_array_equal(X, before)

    @parametrize_with_checks([SoftClip()])
    def test_scikit_learn(self, estimator, check, monkeypatch):
        monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # without it, a check is skipped
        check(estimator)
