"""The anomaly detector and the imputer: scikit-learn's checks, PyOD's names, and pipelines."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.estimator_checks import parametrize_with_checks

from brtf import BRTF, AnomalyDetector, FitWarning, Imputer

quiet = pytest.mark.filterwarnings(
    "ignore::brtf.FitWarning", "ignore::sklearn.exceptions.ConvergenceWarning", "ignore:Mode . has:UserWarning"
)


@quiet
@parametrize_with_checks([AnomalyDetector(), Imputer()])
def test_scikit_learn(estimator, check):
    check(estimator)


def table(seed=0, n=120, missing=0.2):
    """Samples of three patterns in twenty features of very different units, and the same with gaps."""
    rng = np.random.default_rng(seed)
    units = np.tile([1e3, 1, 1e-2, 5, 20, 1, 1, 300, 0.1, 1], 2)
    full = (rng.normal(size=(n, 3)) @ rng.normal(size=(3, 20)) + 0.1 * rng.normal(size=(n, 20))) * units + 7 * units
    return full, np.where(rng.uniform(size=full.shape) < missing, np.nan, full), units


class TestDetector:
    def test_finds_samples_that_do_not_follow(self):
        _, gaps, units = table()
        rng = np.random.default_rng(1)
        odd = [5, 40, 77]
        gaps[odd] += rng.normal(size=(3, 20)) * units
        found = AnomalyDetector(0.1, random_state=0).fit(gaps)
        assert np.flatnonzero(found.labels_).tolist() == odd
        assert found.decision_scores_.shape == found.labels_.shape == (120,)
        np.testing.assert_array_equal(found.labels_, found.decision_scores_ > found.threshold_)
        np.testing.assert_array_equal(found.labels_, clone(found).fit_predict(gaps))
        again = found.decision_function(gaps)
        assert np.corrcoef(again, found.decision_scores_)[0, 1] > 0.95
        np.testing.assert_array_equal(found.score_samples(gaps), -again)

    @pytest.mark.parametrize("seed", range(3))
    def test_says_where_samples_share_too_little_to_judge_them(self, seed):
        """Six clusters in six features need as many components as there are features, or nearly; noise needs none."""
        rng = np.random.default_rng(seed)
        clusters = rng.uniform(-5, 5, (6, 6))[rng.integers(6, size=300)] + rng.normal(0, 0.5, (300, 6))
        for samples, words in [(clusters, "Separate clusters"), (rng.normal(size=(100, 8)), "share no pattern")]:
            with pytest.warns(FitWarning, match=words):
                found = AnomalyDetector(random_state=0).fit(samples)
            assert words in found.diagnosis_[-1].sentence
        assert AnomalyDetector(random_state=0).fit(table(seed)[1]).diagnosis_ == ()

    def test_new_samples(self):
        _, gaps, units = table()
        found = AnomalyDetector(random_state=0).fit(gaps)
        assert not found.labels_.any() and np.isfinite(found.threshold_)
        new = gaps[:20].copy()
        new[3] += np.random.default_rng(2).normal(size=20) * units
        assert found.predict(new).tolist() == [int(row == 3) for row in range(20)]
        probability = found.predict_proba(new)
        np.testing.assert_allclose(probability.sum(axis=1), 1.0)
        assert probability[3, 1] > 0.9 > 0.5 > np.delete(probability[:, 1], 3).max()

    def test_far_samples_with_a_component_of_their_own(self):
        """One sample far off in a direction of its own must not be called a pattern."""
        _, gaps, units = table(missing=0.0)
        gaps[9] += 30 * np.random.default_rng(3).normal(size=20) * units
        found = AnomalyDetector(random_state=0).fit(gaps)
        assert np.flatnonzero(found.labels_).tolist() == [9]
        assert found.predict(gaps[8:11]).tolist() == [0, 1, 0]

    def test_empty_samples_say_nothing(self):
        _, gaps, _ = table()
        gaps[4] = np.nan
        found = AnomalyDetector(random_state=0).fit(gaps)
        assert found.decision_scores_[4] == 0 and found.labels_[4] == 0
        np.testing.assert_array_equal(found.decision_function(gaps[4:5]), 0.0)

    def test_tensors(self):
        rng = np.random.default_rng(0)
        data = np.einsum("ir,jr,kr->ijk", *(rng.normal(size=(n, 2)) for n in (20, 8, 6))) + 0.1 * rng.normal(
            size=(20, 8, 6)
        )
        data[11] += 0.15 * rng.normal(size=(8, 6))
        found = AnomalyDetector(model=BRTF(4, random_state=0)).fit(data)
        assert np.flatnonzero(found.labels_).tolist() == [11]
        assert found.predict(data[10:13]).tolist() == [0, 1, 0]

    @pytest.mark.parametrize("model", ["brtf", BRTF(inference="paper")])
    def test_refuses_other_models(self, model):
        with pytest.raises((ValueError, TypeError), match=r"model|clone"):
            AnomalyDetector(model=model).fit(np.eye(5))


def test_the_threshold_is_for_single_new_samples():
    """Regular samples between the two sides of the labels are not anomalies, and neither are empty ones."""
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(2, 12))
    samples = rng.normal(size=(100, 2)) @ mixing + 0.1 * rng.normal(size=(100, 12))
    samples[:3] += 2.0 * rng.normal(size=(3, 12))
    detector = AnomalyDetector(random_state=0).fit(samples)
    assert detector.labels_.tolist() == [1] * 3 + [0] * 97
    new = rng.normal(size=(300, 2)) @ mixing + 0.1 * rng.normal(size=(300, 12))
    assert detector.predict(new).sum() <= 1
    assert detector.threshold_ > 1
    assert detector.predict(np.full((2, 12), np.nan)).tolist() == [0, 0]
    assert detector.predict(samples[:3]).all()


def test_an_option_of_others_is_explained():
    with pytest.raises(TypeError, match="AnomalyDetector has no option contamination=: the share of anomalies is fou"):
        AnomalyDetector(contamination=0.1)
    with pytest.raises(TypeError, match="Imputer has no option modle=: did you mean model="):
        Imputer(modle=None)


class TestImputer:
    def test_better_than_the_mean_in_any_units(self):
        full, gaps, units = table()
        filled = Imputer(random_state=0).fit_transform(gaps)
        missing = np.isnan(gaps)
        np.testing.assert_array_equal(filled[~missing], gaps[~missing])
        error, plain = (filled - full) / units, (np.nanmean(gaps, axis=0) - full) / units
        assert np.sqrt(np.mean(error[missing] ** 2)) < 0.3 * np.sqrt(np.mean(plain[missing] ** 2))

    def test_new_samples_do_not_depend_on_each_other(self):
        _, gaps, _ = table()
        found = Imputer(random_state=0).fit(gaps[:100])
        together = found.transform(gaps[100:])
        np.testing.assert_allclose(together[3:4], found.transform(gaps[103:104]), rtol=1e-6)
        assert np.isfinite(together).all()

    @pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # of the median here
    def test_nothing_observed(self):
        _, gaps, _ = table()
        gaps[7], gaps[:, 2] = np.nan, np.nan
        filled = Imputer(random_state=0).fit_transform(gaps)
        np.testing.assert_allclose(filled[7], np.nan_to_num(np.nanmedian(gaps, axis=0)))
        assert np.isfinite(filled).all() and (filled[:, 2] == 0).all()

    def test_in_a_column_transformer_and_a_pipeline(self):
        full, gaps, _ = table()
        names = [f"f{k}" for k in range(20)]
        frame = pd.DataFrame(gaps, columns=names).assign(group=["a", "b"] * 60)
        columns = make_column_transformer(
            (Imputer(random_state=0), names), (OneHotEncoder(sparse_output=False), ["group"])
        ).set_output(transform="pandas")
        out = columns.fit_transform(frame)
        assert list(out)[:2] == ["imputer__f0", "imputer__f1"]
        assert not out.isna().any(axis=None)
        target = full @ np.arange(1.0, 21.0)
        assert make_pipeline(columns, LinearRegression()).fit(frame, target).score(frame, target) > 0.9
