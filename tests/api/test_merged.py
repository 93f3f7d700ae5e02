"""Answers of fits with modes read as one: in the user's shape, at the user's positions, whatever is asked."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from brtf import BRTF, AnomalyDetector, Observations
from brtf.data.arrangement import Arrangement
from brtf.metrics import rrse
from brtf.model.distributions import RowGaussians
from brtf.results.group_evidence import Evidence, private_positions

SHAPE, GROUPS, RANK = (14, 12, 18), ((0, 2), (1,)), 2
ARRANGEMENT = Arrangement(GROUPS)
SPIKES = np.array([[2, 7, 13], [3, 11, 0], [5, 17, 9]])
"""Positions (N, 3) of outliers."""


def generated(seed=0, missing=0.1):
    """A tensor that has a low rank only with modes 0 and 2 read as one, and the same with noise, outliers and gaps."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(14 * 18, RANK)) @ rng.normal(size=(RANK, 12))
    truth = ARRANGEMENT.tensor(matrix, SHAPE)
    data = truth + 0.1 * rng.normal(size=SHAPE)
    data[rng.uniform(size=SHAPE) < missing] = np.nan
    data[tuple(SPIKES)] = truth[tuple(SPIKES)] + 4.0
    return truth, data


def plain(**options):
    """The model with the arrangement given, so that nothing races."""
    return BRTF(arrangement=GROUPS, link=None, noise="common", random_state=0, **options)


@pytest.fixture(scope="module", params=["masked", "coordinates"])
def fitted(request):
    truth, data = generated()
    coords = np.nonzero(np.isfinite(data))
    given = data if request.param == "masked" else Observations.from_coords(coords, data[coords], SHAPE)
    return truth, data, plain().fit(given)


def as_matrix(result):
    """The same posterior as that of a matrix with the merged modes as rows."""
    return replace(
        result, observations=result.as_modelled(result.observations), arrangement=Arrangement.as_given(len(GROUPS))
    )


class TestAnomalies:
    def test_entries_are_at_their_positions(self, fitted):
        truth, _, model = fitted
        found = model.anomalies(0.1)
        places = np.stack([found.mode_0, found.mode_1, found.mode_2])
        assert {*zip(*SPIKES.tolist(), strict=True)} <= {*zip(*places.tolist(), strict=True)}
        assert len(found) <= 5
        np.testing.assert_allclose(found.expected, truth[tuple(places)], atol=0.5)

    @pytest.mark.parametrize(("fixed", "group"), [((1,), 1), ((0, 2), 0)])
    def test_evidence_of_whole_groups_is_that_of_the_matrix(self, fitted, fixed, group):
        result = fitted[2].result_
        found, matrix = Evidence.of(result, fixed), Evidence.of(as_matrix(result), (group,))
        np.testing.assert_allclose(found.by_kind, matrix.by_kind, rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("fixed", [(0,), (2,), (0, 1)])
    def test_groups_within_merged_modes_are_sums_over_their_entries(self, fitted, fixed):
        """The evidence of a slice depends on its own entries alone."""
        result = fitted[2].result_
        found = Evidence.of(result, fixed)
        coords = result.observations.entry_coords()
        for column in (0, found.positions.shape[1] // 2):
            mine = (coords[list(fixed)] == found.positions[:, [column]]).all(axis=0)
            assert np.array_equal(found.members == column, mine)
            own = replace(result.observations.select(mine), scale=result.scale)
            alone = Evidence.of(replace(result, observations=own), fixed)
            np.testing.assert_allclose(alone.by_kind[:, 0], found.by_kind[:, column], rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("mode", [0, 1, 2])
    def test_shifted_slices(self, mode):
        _, data = generated(1)
        data[(slice(None),) * mode + (3,)] += 0.1  # a standard deviation of the noise
        found = plain().fit(data).anomalies(0.1, of="slices")
        assert found[f"mode_{mode}"].tolist() == [3]
        assert found.kind.tolist() == ["shift"]

    def test_component_of_one_slice(self, fitted):
        """A component that only one slice of a merged mode uses is left out where that slice is judged."""
        result = fitted[2].result_
        rows = result.state.factors[0]
        mean = rows.mean.reshape(14, 18, RANK).copy()
        mean[:, np.arange(18) != 5, 1] = 0.0
        state = result.state.with_factor(0, RowGaussians(mean.reshape(-1, RANK), rows.cov))
        alone = replace(result, state=state)
        assert private_positions(alone, (2,)) == [None, (5,)]
        assert private_positions(alone, (0,)) == [None, None]
        found = Evidence.of(alone, (2,))
        assert set(found.members[found.own != 0]) == {5}
        without = Evidence.of(replace(result, state=result.state.select_components(np.array([0]))), (2,))
        np.testing.assert_allclose(found.by_kind[:, 5], without.by_kind[:, 5], rtol=0.1)  # but for Var x

    def test_new_slices(self, fitted):
        _, data, model = fitted
        new = data[:4].copy()
        new[1] += 0.5
        assert model.anomalies(0.1, of="rows", Y=new).mode_0.tolist() == [1]
        found = model.anomalies(0.1, Y=data[12:])
        assert (found.mode_0[0], found.mode_1[0], found.mode_2[0]) == (1, 0, 9)

    def test_shared_outliers(self):
        """Outliers shared along the modes of a group are found together."""
        _, data = generated(3, missing=0.0)
        data[4, :, 6] += 3.0
        model = plain(outlier_modes=(1,)).fit(data)
        found = model.anomalies(0.1)
        assert {(4, j, 6) for j in range(12)} <= {*zip(found.mode_0, found.mode_1, found.mode_2, strict=True)}
        assert np.isfinite(Evidence.of(model.result_, (0,)).total).all()


class TestLoadings:
    def test_there_and_back(self, fitted):
        truth, data, model = fitted
        loadings = model.transform(data[:3])
        assert loadings.shape == (3, 18, RANK)
        slices = model.inverse_transform(loadings)
        assert slices.shape == (3, 12, 18)
        assert rrse(truth[:3], slices) < 0.1
        own = model.factors_[0].reshape(14, 18, RANK)
        np.testing.assert_allclose(model.inverse_transform(own), model.low_rank(), atol=1e-10)

    def test_wrong_shape(self, fitted):
        with pytest.raises(ValueError, match=r"X must have shape \(n, 18, 2\)"):
            fitted[2].inverse_transform(np.zeros((3, RANK)))


class TestContainers:
    def test_labelled_arrays(self):
        truth, data = generated()
        labels = [f"site {k}" for k in range(18)]
        given = xr.DataArray(data, dims=("day", "hour", "site"), coords={"site": labels}, attrs={"units": "m"})
        model = plain().fit(given)
        for answer in (model.low_rank(), model.impute(), model.predict(), model.outlier_probability()):
            assert answer.dims == given.dims
            assert answer.site.values.tolist() == labels
        assert rrse(truth, model.low_rank().values) < 0.1
        loadings = model.transform(given[:3])
        assert loadings.dims == ("day", "site", "component")
        assert loadings.site.values.tolist() == labels
        found = model.anomalies(0.1)
        assert {("site 5", 3), ("site 17", 11), ("site 9", 0)} <= {*zip(found.site, found.hour, strict=True)}
        asked = {"day": [3], "hour": [11], "site": ["site 17"]}
        assert model.predict(asked)[0] == pytest.approx(truth[3, 11, 17], abs=0.5)

    def test_long_tables(self):
        truth, data = generated()
        coords = np.nonzero(np.isfinite(data))
        table = pd.DataFrame({"a": coords[0], "b": coords[1], "c": coords[2], "value": data[coords]})
        model = plain().fit(Observations.from_frame(table))
        imputed = model.impute()
        assert list(imputed) == ["a", "b", "c", "value"]
        assert len(imputed) == truth.size
        where = np.isnan(data[imputed.a, imputed.b, imputed.c])
        assert rrse(truth[imputed.a, imputed.b, imputed.c][where], imputed.value[where]) < 0.1


class TestDetector:
    def test_samples(self):
        _, data = generated(4)
        data[6] += 0.5
        detector = AnomalyDetector(model=plain()).fit(data)
        assert np.flatnonzero(detector.labels_).tolist() == [6]
        new = data[:3].copy()
        new[2] += 0.5
        assert detector.predict(new).tolist() == [0, 0, 1]


def test_chosen_by_the_bound():
    """By default: the arrangement is found, and everything has the user's shape."""
    truth, data = generated()
    model = BRTF(random_state=0).fit(data)
    assert model.arrangement_ == GROUPS
    assert model.impute().shape == model.predict().shape == SHAPE
    assert rrse(truth, model.low_rank()) < 0.1
    found = model.anomalies(0.1)
    assert {*zip(*SPIKES.tolist(), strict=True)} <= {*zip(found.mode_0, found.mode_1, found.mode_2, strict=True)}
    assert len(model.anomalies(0.1, of="slices")) == 0
