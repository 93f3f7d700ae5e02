"""The numbers behind plots and page agree with what they are drawn from, entry by entry, whatever the layout."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from brtf import BRTF, Observations
from brtf.data.observe import observe
from brtf.datasets import synthetic
from brtf.inference.trace import IMPOSED, Event, Kind, Record, imposed
from brtf.results.tables import largest_outliers
from brtf.view.view_data import (
    axis_of,
    by_strength,
    calibration,
    factor_profiles,
    full_colour,
    half_width,
    longest_modes,
    moves,
    nats_below_best,
    outlier_map,
    outlier_rates,
    residual_histogram,
)

DATA = synthetic((14, 12, 9), 2, outliers=0.08, missing=0.25, seed=1)
COORDS = np.stack(np.nonzero(DATA.mask))
INPUTS = {
    "complete": DATA.low_rank + DATA.outliers + DATA.noise,
    "masked": DATA.observed,
    "coordinates": Observations.from_coords(COORDS, DATA.observed[DATA.mask], DATA.mask.shape),
}


@pytest.fixture(scope="module", params=INPUTS)
def result(request):
    return BRTF(max_rank=4, random_state=0).fit(INPUTS[request.param]).result_


@pytest.fixture(scope="module")
def transformed():
    tensor = np.exp(0.5 * INPUTS["masked"])
    return BRTF(max_rank=4, link="log", random_state=0).fit(tensor).result_


def entries(result):
    """Coordinates, value and outlier probability of every entry, one by one."""
    probability = result.outlier_probability_at_entries()
    coords = result.observations.entry_coords().T.tolist()
    return list(zip(map(tuple, coords), result.observations.values.ravel(), probability, strict=True))


class TestComponents:
    def test_profiles_times_strengths_are_the_low_rank_part(self, result):
        means = [mean for mean, _ in factor_profiles(result)]
        composed = np.einsum("r,ir,jr,kr->ijk", result.strengths, *means)
        np.testing.assert_allclose(composed, result.low_rank(), atol=1e-12)

    def test_profiles_have_unit_size_and_the_largest_entry_up(self, result):
        profiles = factor_profiles(result)
        for mode, (mean, std) in enumerate(profiles):
            np.testing.assert_allclose(np.mean(mean**2, axis=0), 1.0)
            if mode < len(profiles) - 1:
                assert (mean.max(axis=0) >= -mean.min(axis=0)).all()
            rows = result.rows[mode]
            relative = np.sqrt(np.einsum("irr->ir", rows.cov)) / np.abs(rows.mean)
            np.testing.assert_allclose(std / np.abs(mean), np.broadcast_to(relative, mean.shape))

    def test_order_is_by_strength(self, result):
        strengths = result.strengths[by_strength(result)]
        assert result.rank == 2
        assert (np.diff(strengths) <= 0).all()

    def test_a_level_beyond_reach_is_refused(self):
        assert half_width(0.95) == pytest.approx(1.959964, abs=1e-6)
        with pytest.raises(ValueError, match="level must be a number between 0 and 1"):
            half_width(1.0)


class TestOutliers:
    def test_rates_are_means_over_the_slices(self, result):
        found = entries(result)
        probability = result.outlier_probability_at_entries()
        for mode, length in enumerate(result.observations.shape):
            slow = [np.mean([p for at, _, p in found if at[mode] == k]) for k in range(length)]
            np.testing.assert_allclose(outlier_rates(result.observations, probability, mode), slow)

    @pytest.mark.parametrize("modes", [(0, 1), (2, 0)])
    def test_the_map_is_the_mean_over_the_other_modes(self, result, modes):
        found = entries(result)
        cells = outlier_map(result.observations, result.outlier_probability_at_entries(), modes)
        for row, column in [(0, 0), (3, 5), (8, 8)]:
            here = [p for at, _, p in found if (at[modes[0]], at[modes[1]]) == (row, column)]
            np.testing.assert_allclose(cells[row, column], np.mean(here) if here else np.nan)

    def test_cells_of_a_coarse_map_hold_every_entry_once(self, result):
        probability = result.outlier_probability_at_entries()
        ones = outlier_map(result.observations, np.ones_like(probability), (0, 1), most_cells=5)
        assert ones.shape == (5, 5)
        np.testing.assert_array_equal(ones, 1.0)

    def test_where_nothing_was_observed_there_is_no_rate(self):
        observations = Observations.from_coords([[0, 2], [1, 1]], [1.0, 2.0], (3, 2))
        np.testing.assert_array_equal(outlier_rates(observations, np.array([0.5, 1.0]), 0), [0.5, np.nan, 1.0])
        np.testing.assert_array_equal(outlier_map(observations, np.ones(2), (1, 0)), [[np.nan] * 3, [1, np.nan, 1]])

    def test_the_largest_come_first_with_their_own_numbers(self, result):
        found = largest_outliers(result)
        assert found.outlier.size == sum(p > 0.5 for *_, p in entries(result)) > 20
        assert (np.diff(np.abs(found.outlier)) <= 0).all()
        known = {at: (value, p) for at, value, p in entries(result)}
        for k in range(5):
            assert known[tuple(found.coords[:, k].tolist())] == (found.observed[k], found.probability[k])
        np.testing.assert_array_equal(found.low_rank, result.low_rank(found.coords))
        few = largest_outliers(result, 3)
        np.testing.assert_array_equal(few.coords, found.coords[:, :3])


class TestResiduals:
    def test_standardized_residuals_are_deviations_over_the_noise(self, result):
        coords = result.observations.entry_coords()
        deviation = result.observations.values.ravel() - result.low_rank(coords)
        expected = deviation / np.sqrt(result.noise_variance)
        np.testing.assert_allclose(result.standardized_residuals(), expected, atol=1e-9)

    def test_with_noise_per_slice_each_entry_has_its_own(self):
        found = BRTF(max_rank=3, noise="per-slice", random_state=0).fit(INPUTS["masked"]).result_
        coords = found.observations.entry_coords()
        deviation = found.observations.values - found.low_rank(coords)
        expected = deviation / np.sqrt(found.noise_variances[coords[0]])
        np.testing.assert_allclose(found.standardized_residuals(), expected, atol=1e-9)

    def test_counts_and_expectations_add_up_to_all_entries(self, result):
        self.check_sums(result)

    def test_so_they_do_for_transformed_data(self, transformed):
        self.check_sums(transformed)

    def check_sums(self, found):
        histogram = residual_histogram(found)
        n_observed = found.observations.n_observed
        assert histogram.count.sum() == n_observed
        # What lies beyond the largest residual is expected but not counted, a few entries.
        assert 0.98 * n_observed < histogram.expected.sum() <= n_observed * (1 + 1e-6)
        assert (histogram.noise <= histogram.expected).all()
        share = 1.0 - found.state.local.probability
        np.testing.assert_allclose(histogram.noise.sum(), share * n_observed, rtol=1e-3)

    def test_without_a_law_of_outliers_only_the_noise_is_expected(self):
        found = BRTF(max_rank=3, inference="paper", tol=1e-2, random_state=0).fit(INPUTS["masked"]).result_
        histogram = residual_histogram(found)
        np.testing.assert_array_equal(histogram.noise, histogram.expected)


class TestTrace:
    RECORDS = (
        Record(5, -100.0, 2, 1.0, Event(Kind.START, words="start with 2")),
        Record(6, np.nan, 2, 1.0),
        Record(9, -20.0, 3, 1.0, Event(Kind.BIRTH, True, 80.0, "born 1")),
        Record(12, -20.0, 3, 1.0, Event(Kind.BIRTH, False, -3.0, "born 2")),
        Record(13, -15.0, 2, 1.0, Event(Kind.MERGE, True, 5.0, "merged 2")),
        Record(14, -14.0, 1, 1.0, Event(Kind.DEATH, True, 1.0, "died 1")),
        Record(15, -14.0, 1, 1.0, Event(Kind.PRUNE, words="pruned 1")),
        Record(16, -13.0, 1, 1.0, Event(Kind.CONDENSE, True, 1.0, "condensed to 1")),
        Record(17, -12.5, 1, 1.0),
    )

    def test_moves_are_named_and_kept_or_dropped(self):
        found = [(move.kind, move.kept) for move in moves(self.RECORDS)]
        assert found == [
            ("other", True),
            ("birth", True),
            ("birth", False),
            ("merge", True),
            ("death", True),
            ("prune", True),
            ("merge", True),
        ]

    def test_gaps_are_below_the_best(self):
        sweeps, gap, floor = nats_below_best(self.RECORDS)
        assert sweeps.tolist() == [5, 9, 12, 13, 14, 15, 16, 17]
        assert gap.tolist() == [87.5, 7.5, 7.5, 2.5, 1.5, 1.5, 0.5, 0.0]
        assert floor == 0.1

    def test_a_fit_that_starts_with_too_many_tells_what_it_pruned(self):
        found = BRTF(max_rank=8, inference="paper", tol=1e-2, random_state=0).fit(INPUTS["masked"]).result_
        assert found.rank < 8
        assert "prune" in {move.kind for move in moves(found.trace)}


class TestCalibration:
    def test_intervals_of_a_true_model_cover_what_they_promise(self):
        data = synthetic((30, 25, 20), 2, outliers=0.05, missing=0.4, seed=2)
        found = BRTF(max_rank=4, random_state=0).fit(data.observed).result_
        full = data.low_rank + data.outliers + data.noise
        held_out = observe(full, ~data.mask)
        checked = calibration(found, held_out)
        assert checked.n_entries == np.count_nonzero(~data.mask) == 6000
        # Four standard deviations of a share of 6000 entries are 2.6 % at worst.
        np.testing.assert_allclose(checked.covered, checked.level, atol=0.03)
        error = full[~data.mask] - found.low_rank()[~data.mask]
        assert checked.rmse == pytest.approx(np.sqrt(np.mean(error**2)))
        assert checked.mae == pytest.approx(np.mean(np.abs(error)))
        assert checked.log_density == pytest.approx(np.mean(found.log_density(held_out)))

    def test_many_entries_are_thinned_evenly(self, result):
        held_out = observe(INPUTS["complete"])
        assert 90 <= calibration(result, held_out, most=100).n_entries <= 100

    def test_a_conformal_factor_is_left_out(self, result):
        held_back = observe(INPUTS["complete"]).select(np.arange(14 * 12 * 9) % 20 == 0)
        wide = replace(held_back, values=100.0 * held_back.values)  # would stretch every interval
        stretched = replace(result, held_back=wide)
        np.testing.assert_array_equal(calibration(stretched, held_back).covered, calibration(result, held_back).covered)


class TestNames:
    def test_every_kind_of_label(self):
        dates = np.array(["2024-01-01", "2024-01-02", "2024-02-01"], dtype="M8[ns]")
        array = xr.DataArray(
            np.ones((2, 3, 2, 2, 2)),
            dims=("where", "when", "nm", "falling", "bare"),
            coords={"where": ["b", "a"], "when": dates, "nm": [0.5, 2.0], "falling": [3, 1]},
        )
        axes = [axis_of(observe(array), mode) for mode in range(5)]
        assert [axis.name for axis in axes] == ["where", "when", "nm", "falling", "bare"]
        assert [axis.kind for axis in axes] == ["name", "date", "number", "name", "position"]
        assert [axis.text(1) for axis in axes] == ["a", "2024-01-02", "2", "1", "1"]
        assert axes[2].values.tolist() == [0.5, 2.0]
        assert axes[3].values.tolist() == [0.0, 1.0]
        # One day and thirty: dates stand where they belong.
        assert np.diff(axes[1].values)[1] == 30 * np.diff(axes[1].values)[0]

    def test_without_labels_modes_are_numbered(self):
        axis = axis_of(observe(np.ones((2, 3))), 1)
        assert (axis.name, axis.kind, axis.length, axis.text(2)) == ("mode 1", "position", 3, "2")

    def test_the_longest_modes_in_order(self):
        assert longest_modes((3, 9, 4, 7)) == (1, 3)
        assert longest_modes((5, 5, 5)) == (0, 1)


def test_bounds_before_a_re_scaling_are_not_compared():
    """Counting shared entries changes what the bound measures: a fall of 70 000 nats is no loss."""
    trace = (
        Record(1, 1e5, 2, 0.1),
        Record(2, 3e4, 2, 0.1, Event(Kind.CHANNELS, words="bound re-scaled: 1.49 shared entries worth one")),
    )
    trace = (*trace, Record(3, 3e4 + 5.0, 2, 0.1))
    sweeps, gap, _ = nats_below_best(trace)
    np.testing.assert_array_equal(sweeps, [2, 3])
    np.testing.assert_allclose(gap, [5.0, 0.0])


def test_a_map_without_outliers_is_pale():
    observations = observe(np.ones((4, 5, 6)))
    nowhere, once = np.full(120, 1e-5), np.where(np.arange(120) == 7, 1.0, 1e-5)
    cells = outlier_map(observations, nowhere, (0, 1))
    assert np.max(cells) < 1e-3 * full_colour(observations, cells)
    cells = outlier_map(observations, once, (0, 1))
    assert np.max(cells) == full_colour(observations, cells)


@pytest.mark.parametrize("kind", Kind)
def test_the_bound_is_drawn_from_where_it_had_to_fall(kind):
    trace = (Record(1, 80.0, 3, 0.1), Record(2, 50.0, 2, 0.1, Event(kind, gain=-30.0)), Record(3, 55.0, 2, 0.1))
    raised = (Record(1, 40.0, 3, 0.1), *trace[1:])
    named = kind in IMPOSED
    np.testing.assert_array_equal(nats_below_best(trace)[0], [2, 3] if named or kind is Kind.CHANNELS else [1, 2, 3])
    np.testing.assert_array_equal(nats_below_best(raised)[0], [2, 3] if kind is Kind.CHANNELS else [1, 2, 3])
    assert imposed(trace) == ([IMPOSED[kind]] if named else [])
    assert imposed(raised) == []
