"""The metrics against their definitions, their invariances, and the numbers printed in the paper."""

import math

import numpy as np
import pytest

from brtf.metrics import best_f_measure, coverage, f_measure, fme, fme_per_mode, psnr, rrse

SHAPE = (5, 6, 7)
# Rounding of a few hundred additions of numbers near 1.
ROUNDING = 1e-12


def random_factors(rank, seed=0, shape=SHAPE):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((size, rank)) for size in shape]


class TestRrse:
    def test_is_the_relative_size_of_the_error(self):
        truth = np.array([[3.0, 0.0], [0.0, 4.0]])
        assert rrse(truth, truth) == 0
        assert rrse(np.zeros((2, 2)), truth) == 1
        assert rrse([[3.0, 0.5], [0.0, 4.0]], truth) == pytest.approx(0.1, rel=ROUNDING)

    @pytest.mark.parametrize("scale", [1e-300, 1e-8, 1e8, 1e300])
    def test_does_not_depend_on_the_scale(self, scale):
        truth, estimate = np.random.default_rng(1).standard_normal((2, *SHAPE))
        # Multiplying rounds every entry once.
        assert rrse(scale * estimate, scale * truth) == pytest.approx(rrse(estimate, truth), rel=ROUNDING)

    def test_unsigned_integers_do_not_wrap(self):
        assert rrse(np.array([1], np.uint8), np.array([2], np.uint8)) == 0.5

    def test_zero_truth_is_refused(self):
        with pytest.raises(ValueError, match="truth is zero in all its 4 entries"):
            rrse(np.ones((2, 2)), np.zeros((2, 2)))

    def test_shapes_are_compared_not_broadcast(self):
        with pytest.raises(ValueError, match=r"estimate \(1, 3\), truth \(2, 3\)"):
            rrse(np.ones((1, 3)), np.ones((2, 3)))

    def test_a_nan_is_named(self):
        with pytest.raises(ValueError, match=r"estimate\[0, 1\] = nan is not finite \(1 in all\)"):
            rrse([[1.0, math.nan]], [[1.0, 2.0]])

    def test_no_entries_are_refused(self):
        with pytest.raises(ValueError, match="no entry"):
            rrse(np.ones((0, 3)), np.ones((0, 3)))


class TestPsnr:
    @pytest.mark.parametrize(
        ("relative_error", "decibels"),
        [(0.0892, 29.38), (0.1040, 28.05), (0.2551, 20.25), (0.2223, 21.45), (0.2109, 21.91)],
    )
    def test_agrees_with_the_pairs_printed_in_the_paper(self, relative_error, decibels):
        # The paper's faces have a root mean square of 0.381 peak; three digits are known, hence 0.02 dB.
        truth = np.full(SHAPE, 0.381 * 255)
        assert psnr(truth * (1 + relative_error), truth) == pytest.approx(decibels, abs=0.02)

    def test_is_one_mean_over_the_whole_tensor(self):
        truth = np.zeros((2, 2))
        assert psnr([[0, 0], [0, 2]], truth, peak=10) == pytest.approx(20, abs=1e-9)

    def test_scaling_data_and_peak_together_changes_nothing(self):
        truth, estimate = np.random.default_rng(2).random((2, *SHAPE))
        assert psnr(255 * estimate, 255 * truth) == pytest.approx(psnr(estimate, truth, peak=1), abs=1e-9)

    def test_exact_is_infinite(self):
        assert psnr([1.0, 2.0], [1.0, 2.0]) == math.inf

    @pytest.mark.parametrize("peak", [0, -1, math.nan, math.inf])
    def test_bad_peak_is_refused(self, peak):
        with pytest.raises(ValueError, match="peak"):
            psnr([1.0], [2.0], peak=peak)


class TestFme:
    def test_order_sign_and_scale_do_not_matter(self):
        true = random_factors(4)
        rng = np.random.default_rng(3)
        order = rng.permutation(4)
        estimated = [factor[:, order] * rng.normal(0, 10, 4) for factor in true]
        assert fme(estimated, true) < ROUNDING

    @pytest.mark.parametrize("scale", [1e-200, 1e200])
    def test_extreme_scales_do_not_matter(self, scale):
        true, estimated = random_factors(3), random_factors(3, seed=1)
        scaled = [scale * factor for factor in estimated]
        assert fme(scaled, true) == pytest.approx(fme(estimated, true), rel=ROUNDING)

    def test_is_the_sine_of_the_angle_between_single_columns(self):
        angles = np.array([0.1, 0.5, 1.0])
        true = [np.array([[1.0], [0.0]])] * 3
        estimated = [np.array([[math.cos(angle)], [math.sin(angle)]]) for angle in angles]
        np.testing.assert_allclose(fme_per_mode(estimated, true), np.sin(angles), rtol=ROUNDING)
        assert fme(estimated, true) == pytest.approx(np.sin(angles).mean(), rel=ROUNDING)

    def test_surplus_components_are_dropped(self):
        true, surplus = random_factors(3), random_factors(2, seed=1)
        estimated = [np.hstack([more, factor]) for more, factor in zip(surplus, true, strict=True)]
        assert fme(estimated, true) < ROUNDING

    @pytest.mark.parametrize("n_found", [0, 1, 2])
    def test_a_component_not_found_counts_in_full(self, n_found):
        true = random_factors(3)
        errors = fme_per_mode([factor[:, :n_found] for factor in true], true)
        expected = [np.linalg.norm(factor[:, n_found:]) / np.linalg.norm(factor) for factor in true]
        np.testing.assert_allclose(errors, expected, rtol=ROUNDING)

    def test_a_zero_column_finds_nothing(self):
        true = random_factors(1)
        np.testing.assert_array_equal(fme_per_mode([0 * factor for factor in true], true), np.ones(3))

    def test_all_modes_share_one_pairing(self):
        true = [np.array([[1.0], [0.0]])] * 3
        oblique = [math.cos(1.0), math.sin(1.0)]
        # One component is exact in two modes and orthogonal in the third, hence of similarity zero.
        estimated = [np.column_stack([column, oblique]) for column in ([1, 0], [1, 0], [0, 1])]
        np.testing.assert_allclose(fme_per_mode(estimated, true), math.sin(1.0), rtol=ROUNDING)

    def test_the_pairing_is_the_best_one_not_the_greedy_one(self):
        def at(*degrees):
            radians = np.deg2rad(degrees)
            return [np.array([np.cos(radians), np.sin(radians)])]

        # Similarities [[.98, .97], [.82, .50]]: greedy takes .98 and is left with .50.
        assert fme(at(10, -15), at(0, 45)) == pytest.approx(
            math.sqrt((math.sin(math.radians(15)) ** 2 + math.sin(math.radians(35)) ** 2) / 2), rel=ROUNDING
        )

    def test_the_errors_say_what_differs(self):
        with pytest.raises(ValueError, match=r"\[5, 6, 7\] rows in their modes .* \[5, 6\]"):
            fme(random_factors(2), random_factors(2)[:2])
        with pytest.raises(ValueError, match=r"estimated_factors have shapes \[\(5, 2\), \(6, 3\)\]"):
            fme([np.ones((5, 2)), np.ones((6, 3))], random_factors(2))
        with pytest.raises(ValueError, match=r"true_factors\[0\].*\(5, 0\)"):
            fme(random_factors(2), random_factors(0))
        with pytest.raises(ValueError, match=r"estimated_factors\[0\]\[0, 0\] = nan"):
            fme([np.full((5, 2), np.nan), *random_factors(2)[1:]], random_factors(2))


class TestFMeasure:
    def test_is_the_definition(self):
        estimated = np.array([True, True, True, False, False])
        true = np.array([True, True, False, True, False])
        assert f_measure(estimated, true) == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
        assert f_measure(true, estimated) == f_measure(estimated, true)

    def test_ends_of_the_range(self):
        nothing, everything = np.zeros(4, bool), np.ones(4, bool)
        assert f_measure(nothing, nothing) == 1
        assert f_measure(everything, everything) == 1
        assert f_measure(nothing, everything) == 0

    def test_ignored_entries_do_not_count(self):
        rng = np.random.default_rng(4)
        estimated, true, ignore = rng.random((3, *SHAPE)) < 0.4
        assert f_measure(estimated, true, ignore=ignore) == f_measure(estimated[~ignore], true[~ignore])

    def test_masks_are_checked(self):
        with pytest.raises(TypeError, match="estimated_mask must be boolean, got dtype float64"):
            f_measure([0.5], [True])
        with pytest.raises(ValueError, match="shapes differ"):
            f_measure([True], [True, False])
        with pytest.raises(ValueError, match=r"ignore \(1,\)"):
            f_measure([True, True], [True, False], ignore=[True])


class TestBestFMeasure:
    def test_is_the_best_of_all_thresholds(self):
        rng = np.random.default_rng(5)
        # Integer scores make ties, which no threshold can separate.
        scores = rng.integers(-6, 7, SHAPE)
        true = rng.random(SHAPE) < 0.2 + 0.1 * np.abs(scores)
        best, threshold = best_f_measure(scores, true)
        assert best == max(f_measure(np.abs(scores) >= cut, true) for cut in range(8))
        assert best == f_measure(np.abs(scores) >= threshold, true)

    def test_scores_that_separate_reach_one(self):
        assert best_f_measure([0.0, -3.0, 2.0, 1.0], [False, True, True, False]) == (1.0, 2.0)

    def test_equal_scores_are_marked_together(self):
        assert best_f_measure([1.0, 1.0, 0.0], [True, False, False]) == (pytest.approx(2 / 3), 1.0)
        assert best_f_measure([1.0, -1.0, 0.0], [False, True, False]) == (pytest.approx(2 / 3), 1.0)

    def test_nothing_to_find_is_best_found_by_marking_nothing(self):
        assert best_f_measure([1.0, 2.0], [False, False]) == (1.0, math.inf)

    def test_ignored_scores_may_be_nan(self):
        scores, true = np.array([math.nan, 1.0, 0.0]), np.array([True, True, False])
        assert best_f_measure(scores, true, ignore=np.isnan(scores)) == (1.0, 1.0)
        with pytest.raises(ValueError, match=r"scores\[0\] = nan"):
            best_f_measure(scores, true)


class TestCoverage:
    def test_is_the_fraction_within_ends_included(self):
        assert coverage([0, 0, 0, -math.inf], [1, 1, 1, math.inf], [0, 1, 2, 9]) == 0.75

    def test_intervals_are_checked(self):
        with pytest.raises(ValueError, match=r"low\[1\] = 3.0 is above high \(1 in all\)"):
            coverage([0, 3], [1, 2], [0, 0])
        with pytest.raises(ValueError, match=r"truth\[0\] = nan is not a number"):
            coverage([0], [1], [math.nan])
        with pytest.raises(ValueError, match="shapes differ"):
            coverage([0], [1], [0, 1])
