"""An engineer with pipelines: scikit-learn's tools, files that survive, exit codes and JSON for scripts."""

import json
import pickle

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import brtf
from brtf import cli
from people import brtf_command

pytestmark = pytest.mark.filterwarnings("ignore::brtf.FitWarning")  # few samples in a fold


@pytest.fixture(scope="module")
def table():
    """Readings of eight sensors driven by two causes, a fifth of them lost, three rows broken; a site; a target."""
    rng = np.random.default_rng(5)
    causes = rng.normal(size=(150, 2))
    readings = causes @ rng.normal(size=(2, 8)) + 0.1 * rng.normal(size=(150, 8))
    target = readings[:, 0] + readings[:, 3]
    readings[rng.uniform(size=readings.shape) < 0.2] = np.nan
    readings[:3] = rng.normal(0, 4, (3, 8))
    frame = pd.DataFrame(readings * [1, 10, 100, 1, 1, 1, 0.01, 1], columns=list("abcdefgh"))
    return frame.assign(site=["north", "south", "west"] * 50), target


def test_imputer_in_a_column_transformer(table):
    frame, target = table
    columns = ColumnTransformer(
        [("readings", brtf.Imputer(random_state=0), list("abcdefgh")), ("site", OneHotEncoder(), ["site"])]
    )
    assert cross_val_score(make_pipeline(columns, Ridge()), frame[3:], target[3:], cv=3).min() > 0.95
    imputer = brtf.Imputer(random_state=0).set_output(transform="pandas")
    filled = imputer.fit_transform(X=frame[list("abcdefgh")])
    assert list(filled.columns) == list("abcdefgh")
    assert not filled.isna().any(axis=None)


def test_loadings_as_features(table):
    frame, target = table
    readings = frame[list("abdefh")][3:]
    model = clone(brtf.BRTF(max_rank=2, random_state=0)).set_output(transform="pandas")
    features = model.fit_transform(Y=readings)
    assert list(features.columns) == list(model.get_feature_names_out())
    assert list(features.index) == list(readings.index)
    pd.testing.assert_frame_equal(features, model.transform(X=readings))
    pd.testing.assert_frame_equal(features, model.transform(Y=readings))
    assert Ridge().fit(features, target[3:]).score(features, target[3:]) > 0.95
    with pytest.raises(TypeError):
        model.transform(X=readings, Y=readings)


def test_detector_has_the_names_of_others(table):
    frame, _ = table
    detector = brtf.AnomalyDetector(random_state=0).fit(frame[list("abcdefgh")])
    assert detector.labels_[:3].sum() >= 2
    assert detector.labels_.sum() <= 5
    assert ((detector.decision_scores_ > detector.threshold_) == (detector.labels_ == 1)).all()
    proba = detector.predict_proba(frame[list("abcdefgh")])
    np.testing.assert_allclose(proba.sum(axis=1), 1)


def test_models_travel(table, tmp_path):
    readings = table[0][list("abdefh")]
    model = brtf.BRTF(max_rank=2, random_state=0).fit(readings)
    model.save(tmp_path / "fit.brtf")
    for again in (brtf.load(tmp_path / "fit.brtf"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(np.asarray(again.low_rank()), np.asarray(model.low_rank()))


def test_scripts_read_json_and_exit_codes(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "y.npy", np.outer(rng.normal(size=20), rng.normal(size=15)) + 0.01 * rng.normal(size=(20, 15)))
    numbers = json.loads(brtf_command("fit", tmp_path / "y.npy", "--out", tmp_path / "out", "--json"))
    assert numbers["rank"] == 1
    assert sorted(numbers["written"]) == sorted(str(path) for path in (tmp_path / "out").iterdir())
    assert json.loads(brtf_command("show", tmp_path / "out" / "result.brtf", "--json"))["rank"] == 1
    invoke = CliRunner().invoke
    assert invoke(cli.main, ["fit", str(tmp_path / "none.npy")]).exit_code == 2
    assert invoke(cli.main, ["fit", str(tmp_path / "y.npy"), "--out", str(tmp_path / "out")]).exit_code == 2
    short = invoke(cli.main, ["fit", str(tmp_path / "y.npy"), "--max-sweeps", "1"])
    assert short.exit_code == 1
