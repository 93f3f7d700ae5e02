"""The generated data: exact counts, the stated structure, and the same bytes from the same seed."""

import dataclasses
import math

import numpy as np
import pytest

from brtf.api.toy_clips import CLIP_KINDS, clip_of_kind, frames_of_kind
from brtf.datasets import paper_synthetic, synthetic, toy_sales, toy_video
from brtf.metrics import best_f_measure, f_measure

# Rounding of a few hundred operations on numbers near 1.
ROUNDING = 1e-12

GENERATORS = {
    "paper": lambda seed: paper_synthetic(missing=0.3, rank=5, seed=seed),
    "synthetic": lambda seed: synthetic((6, 7, 8), 3, outliers=0.1, missing=0.3, seed=seed),
    "video": lambda seed: toy_video(height=16, width=20, frames=5, seed=seed),
}


def arrays_of(data):
    for field in dataclasses.fields(data):
        value = getattr(data, field.name)
        yield from value if isinstance(value, list) else [value]


@pytest.mark.parametrize("generate", GENERATORS.values(), ids=GENERATORS)
class TestEveryGenerator:
    def test_same_seed_same_bytes(self, generate):
        for once, again in zip(arrays_of(generate(7)), arrays_of(generate(7)), strict=True):
            assert np.asarray(once).tobytes() == np.asarray(again).tobytes()

    def test_another_seed_gives_other_data(self, generate):
        assert not np.array_equal(generate(7).observed, generate(8).observed, equal_nan=True)

    def test_missing_entries_are_nan_and_no_others(self, generate):
        data = generate(7)
        assert data.mask.dtype == bool
        np.testing.assert_array_equal(np.isnan(data.observed), ~data.mask)


class TestPaperSynthetic:
    def test_low_rank_part_is_the_paper_s(self):
        data = paper_synthetic()
        assert data.low_rank.shape == (30, 30, 30)
        assert data.low_rank.std() == pytest.approx(1.118, abs=5e-4)  # as published, to its digits
        assert data.low_rank.max() == pytest.approx(2, abs=ROUNDING)
        signs = [1, 1, -1, -1]
        for i, j, k in [(1, 1, 1), (3, 10, 24), (30, 4, 17), (13, 29, 2)]:
            places = ((1, i), (2, j), (3, k))
            expected = (
                math.prod(math.sin(2 * math.pi * n * place / 30) for n, place in places)
                + math.prod(math.cos(2 * math.pi * n * place / 30) for n, place in places)
                + math.prod(signs[(place - 1) % 4] for _, place in places)
            )
            assert data.low_rank[i - 1, j - 1, k - 1] == pytest.approx(expected, abs=ROUNDING)

    def test_the_parts_add_up(self):
        data = paper_synthetic(missing=0.4)
        total = data.low_rank + data.outliers + data.noise
        np.testing.assert_array_equal(data.observed[data.mask], total[data.mask])

    @pytest.mark.parametrize(("outliers", "missing"), [(0.0, 0.0), (0.1, 0.9), (1.0, 0.333)])
    def test_fractions_are_exact(self, outliers, missing):
        data = paper_synthetic(outliers=outliers, missing=missing)
        assert np.count_nonzero(data.outliers) == round(outliers * 27000)
        assert np.count_nonzero(~data.mask) == round(missing * 27000)

    @pytest.mark.parametrize("rank", [3, 50])
    @pytest.mark.parametrize("magnitude", ["10std", "max"])
    def test_outliers_fill_the_stated_range(self, magnitude, rank):
        # With this seed and rank 50 the largest value of X is not its largest absolute value.
        data = paper_synthetic(outliers=0.5, magnitude=magnitude, rank=rank, seed=4)
        limit = 10 * data.low_rank.std() if magnitude == "10std" else data.low_rank.max()
        values = data.outliers[data.outliers != 0]
        assert np.abs(values).max() < limit
        # 13500 uniform values: the extremes are within limit / 1000 of the ends but for chance e^-6.
        assert values.max() > 0.999 * limit
        assert values.min() < -0.999 * limit

    def test_noise_has_the_variance_asked_for(self):
        data = paper_synthetic()
        assert data.noise_variance == 0.01
        # The sample variance of 27000 normal values has relative standard deviation 0.0086: five of them.
        assert data.noise.var() == pytest.approx(0.01, rel=0.043)

    def test_noise_in_decibels(self):
        data = paper_synthetic(rank=50, noise="20dB")
        assert data.noise_variance == pytest.approx(np.mean(data.low_rank**2) / 100, rel=ROUNDING)
        assert data.noise.var() == pytest.approx(data.noise_variance, rel=0.043)  # as above

    def test_ranks_share_the_paper_s_columns(self):
        three = paper_synthetic().factors
        for rank in (1, 2, 5, 50):
            for factor, first in zip(paper_synthetic(rank=rank).factors, three, strict=True):
                assert factor.shape == (30, rank)
                np.testing.assert_array_equal(factor[:, :3], first[:, :rank])

    def test_further_columns_are_standard_normal(self):
        further = np.concatenate([factor[:, 3:] for factor in paper_synthetic(rank=50).factors])
        # 4230 values: the standard deviations of mean and variance are 0.0154 and 0.0217; five of them.
        assert further.mean() == pytest.approx(0, abs=0.077)
        assert further.var() == pytest.approx(1, abs=0.11)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"magnitude": "10 std"}, "magnitude must be one of '10std', 'max'"),
            ({"outliers": 1.5}, "outliers must be a fraction"),
            ({"missing": 1.0}, "missing must be a fraction from 0 to 1, below 1"),
            ({"missing": math.nan}, "missing must be a fraction"),
            ({"rank": 0}, "rank must be at least 1"),
            ({"noise": -0.1}, "noise must be a variance"),
            ({"noise": "20"}, "noise must be a variance or a ratio such as '20dB'"),
        ],
    )
    def test_errors_name_the_argument(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            paper_synthetic(**arguments)

    def test_rank_must_be_an_integer(self):
        with pytest.raises(TypeError, match=r"rank must be an integer, got 2.5"):
            paper_synthetic(rank=2.5)


class TestSynthetic:
    @pytest.mark.parametrize("shape", [(12, 9), (5, 6, 7), (4, 1, 5, 3), (2, 3, 2, 3, 2)])
    @pytest.mark.parametrize("rank", [1, 4])
    def test_low_rank_part_is_the_sum_of_its_components_with_unit_spread(self, shape, rank):
        data = synthetic(shape, rank)
        expected = np.zeros(shape)
        for component in range(rank):
            term = np.array(1.0)
            for factor in data.factors:
                term = np.multiply.outer(term, factor[:, component])
            expected += term
        np.testing.assert_allclose(data.low_rank, expected, rtol=0, atol=ROUNDING)
        assert data.low_rank.std() == pytest.approx(1, abs=ROUNDING)

    def test_rank_zero_is_outliers_and_noise(self):
        data = synthetic((10, 11, 12), 0, outliers=0.1, magnitude=3.0, noise=0.5)
        assert [factor.shape for factor in data.factors] == [(10, 0), (11, 0), (12, 0)]
        assert not data.low_rank.any()
        assert 2.5 < np.abs(data.outliers).max() < 3.0  # the largest of 132 uniform values on (0, 3)
        with pytest.raises(ValueError, match=r"noise='20dB' is relative to X, which is zero"):
            synthetic((10, 11, 12), 0, noise="20dB")

    @pytest.mark.parametrize("missing_pattern", ["entries", "level"])
    def test_fractions_of_entries_are_exact(self, missing_pattern):
        data = synthetic((9, 10, 11), 2, outliers=0.123, missing=0.456, missing_pattern=missing_pattern)
        assert np.count_nonzero(data.outliers) == round(0.123 * 990)
        assert np.count_nonzero(~data.mask) == round(0.456 * 990)

    def test_fibres_are_whole(self):
        data = synthetic(
            (9, 10, 11),
            2,
            outliers=0.2,
            outlier_pattern="fibres",
            missing=0.3,
            missing_pattern="fibres",
        )
        for chosen, fraction in ((data.outliers != 0, 0.2), (~data.mask, 0.3)):
            assert (chosen == chosen[0]).all()
            assert np.count_nonzero(chosen[0]) == round(fraction * 110)

    def test_level_hides_the_large_values(self):
        data = synthetic((20, 20, 20), 2, missing=0.3, missing_pattern="level")
        sizes = np.abs(data.low_rank)
        random = synthetic((20, 20, 20), 2, missing=0.3)
        # |x| has mean and standard deviation near 1, so that at random the two means differ by some 0.02.
        assert sizes[~data.mask].mean() > sizes[data.mask].mean() + 0.5
        assert abs(sizes[~random.mask].mean() - sizes[random.mask].mean()) < 0.1

    @pytest.mark.parametrize(("law", "low", "high"), [("uniform", -1, 1), ("one-sided", 0, 1), ("log-uniform", -1, 1)])
    def test_outlier_laws_keep_to_their_range(self, law, low, high):
        data = synthetic((30, 30, 30), 1, outliers=0.5, outlier_law=law, magnitude=20.0)
        values = data.outliers[data.outliers != 0] / 20
        assert values.min() >= low
        assert values.max() <= high
        # Of 13500 values some come within a hundredth of each end but for a chance below 1e-9.
        assert values.min() < low + 0.01
        assert values.max() > high - 0.01

    def test_log_uniform_sizes_are_even_over_three_decades(self):
        values = synthetic((30, 30, 30), 1, outliers=0.5, outlier_law="log-uniform", magnitude=1.0).outliers
        counts, _ = np.histogram(np.log10(np.abs(values[values != 0])), bins=[-3, -2, -1, 0])
        assert counts.sum() == 13500
        # Each decade expects 4500 with standard deviation 55; five of them.
        np.testing.assert_allclose(counts, 4500, atol=275)

    def test_student_t_outliers_exceed_their_scale(self):
        values = synthetic((30, 30, 30), 1, outliers=0.5, outlier_law="student-t", magnitude=2.0).outliers
        # P(|t_3| > 1) = 0.391, standard deviation 0.0042 over 13500 values; five of them.
        assert (np.abs(values[values != 0]) > 2).mean() == pytest.approx(0.391, abs=0.021)

    def test_a_callable_law_is_scaled_by_the_magnitude(self):
        data = synthetic((6, 7), 1, outliers=0.5, outlier_law=lambda rng, n: np.full(n, 2.0), magnitude=3.0)
        assert sorted(set(data.outliers.ravel())) == [0.0, 6.0]
        with pytest.raises(ValueError, match="outlier_law must return 21 finite values"):
            synthetic((6, 7), 1, outliers=0.5, outlier_law=lambda rng, n: np.ones(n + 1))

    def test_student_t_noise_has_the_variance_and_the_tails(self):
        data = synthetic((60, 60, 60), 1, noise=0.04, noise_law="student-t")
        sizes = np.abs(data.noise) * math.sqrt(3) / 0.2
        # The variance converges slowly (no fourth moment); quantiles of |t_3| do not: the median is 0.765.
        assert np.median(sizes) == pytest.approx(0.765, rel=0.02)
        assert sizes.max() > 20

    def test_decibels(self):
        data = synthetic((5, 6, 7), 2, noise="-3.5 dB")
        assert data.noise_variance == pytest.approx(np.mean(data.low_rank**2) * 10**0.35, rel=ROUNDING)

    def test_noise_zero_leaves_none(self):
        assert not synthetic((5, 6), 1, noise=0).noise.any()

    @pytest.mark.parametrize("modes", [None, [0], [1, 2]])
    def test_collinearity_is_exact_in_its_modes_only(self, modes):
        data = synthetic((10, 12, 14), 4, collinearity=0.9, collinear_modes=modes)
        for mode, factor in enumerate(data.factors):
            unit = factor / np.linalg.norm(factor, axis=0)
            cosines = (unit.T @ unit)[~np.eye(4, dtype=bool)]
            if modes is None or mode in modes:
                np.testing.assert_allclose(cosines, 0.9, atol=ROUNDING)
            else:
                assert np.abs(cosines).min() < 0.5  # independent columns of ten or more values

    def test_strengths_are_the_norms_of_the_terms(self):
        factors = synthetic((5, 6, 7), 3, strengths=[1, 2, 10]).factors
        norms = np.prod([np.linalg.norm(factor, axis=0) for factor in factors], axis=0)
        np.testing.assert_allclose(norms / norms[0], [1, 2, 10], rtol=ROUNDING)

    def test_uniform_factors_are_not_negative(self):
        data = synthetic((5, 6, 7), 3, factor_law="uniform")
        assert all((factor >= 0).all() for factor in data.factors)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"shape": (5,)}, r"shape must have at least two modes, got \(5,\)"),
            ({"shape": (5, 0)}, r"shape\[1\] must be at least 1"),
            ({"shape": (1, 1)}, "constant X"),
            ({"rank": -1}, "rank must be at least 0"),
            ({"outliers": -0.1}, "outliers must be a fraction"),
            ({"outlier_law": "cauchy"}, "outlier_law must be one of 'uniform'"),
            ({"magnitude": 0.0}, "magnitude must be positive"),
            ({"outlier_pattern": "level"}, "outlier_pattern must be one of 'entries', 'fibres'"),
            ({"missing": 1.0}, "missing must be a fraction"),
            ({"shape": (2, 2), "missing": 0.9}, "leaves no entry observed"),
            ({"missing_pattern": "slices"}, "missing_pattern must be one of"),
            ({"noise": math.inf}, "noise must be a variance"),
            ({"noise_law": "t"}, "noise_law must be one of 'gaussian', 'student-t'"),
            ({"collinearity": 1.0}, "collinearity must be a fraction"),
            ({"collinearity": 0.5, "collinear_modes": [2]}, "collinear_modes holds 2"),
            ({"collinearity": 0.5, "rank": 6}, "rank 6 and size 5 in mode 0"),
            ({"collinearity": 0.5, "factor_law": "uniform"}, "needs factor_law='normal'"),
            ({"strengths": [1, 2, 3]}, "strengths must be 2 positive numbers"),
            ({"strengths": [1, 0]}, "strengths must be 2 positive numbers"),
            ({"factor_law": "gamma"}, "factor_law must be one of"),
        ],
    )
    def test_errors_name_the_argument(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            synthetic(**{"shape": (5, 6), "rank": 2, **arguments})


@pytest.fixture(scope="module")
def video():
    return toy_video()


class TestToyVideo:
    def test_shapes(self, video):
        assert (video.height, video.width) == (48, 64)
        assert video.observed.shape == video.mask.shape == video.background.shape == (48 * 64, 3, 60)
        assert video.foreground_mask.shape == (48 * 64, 60)
        assert video.dead.shape == (48 * 64,)

    def test_values_stay_in_range(self, video):
        for values in (video.observed[video.mask], video.background):
            assert values.min() >= 0
            assert values.max() <= 255

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("size", [(32, 40), (48, 64), (72, 96)])
    def test_scenes_of_every_size_are_in_daylight(self, size, seed):
        """Small scenes were black: uneven light as wide as the scene had a mean of many times its spread."""
        clip = toy_video("street", height=size[0], width=size[1], frames=10, seed=seed)
        dark, typical = np.quantile(clip.background, (0.02, 0.5))
        assert dark > 20
        assert 60 < typical < 200

    def test_background_is_a_texture_and_a_flicker(self, video):
        singular = np.linalg.svd(video.background.reshape(-1, 60), compute_uv=False)
        assert singular[1] > 1e-3 * singular[0]
        assert singular[2] < ROUNDING * singular[0]

    def test_colours_go_missing_together_in_exact_number(self, video):
        assert (video.mask == video.mask[:, :1]).all()
        assert np.count_nonzero(~video.mask[:, 0]) == round(0.3 * 48 * 64 * 60)

    def test_dead_sensors_are_stuck(self, video):
        assert np.count_nonzero(video.dead) == round(48 * 64 / 500)
        complete = toy_video(missing=0.0).observed
        assert (complete[video.dead] == complete[video.dead][:, :1, :1]).all()
        assert set(complete[video.dead].ravel()) <= {0.0, 255.0}

    def test_noise_is_about_three_and_differs_between_pixels(self, video):
        quiet = ~video.dead & ~video.foreground_mask.any(axis=1)
        spread = np.nanstd((video.observed - video.background)[quiet], axis=(1, 2))
        # exp(0.2 normal) has standard deviation 0.2; some 120 values a pixel add 0.065 of their own.
        assert np.median(spread) == pytest.approx(3, rel=0.05)
        assert np.std(np.log(spread)) == pytest.approx(math.hypot(0.2, 0.065), rel=0.15)

    def test_objects_move_and_one_pauses(self, video):
        moved = (video.foreground_mask[:, 1:] != video.foreground_mask[:, :-1]).any(axis=0)
        assert moved.all()
        middle = video.foreground_mask[:, 22:38].all(axis=1)
        assert middle.any()
        assert not video.foreground_mask.all(axis=1).any()

    def test_the_true_background_tells_the_foreground_and_a_still_one_does_less(self, video):
        ignore = ~video.mask[:, 0] | video.dead[:, None]
        still = np.nanmedian(video.observed, axis=2, keepdims=True)
        distance = np.abs(video.observed - video.background).max(axis=1)
        from_still, _ = best_f_measure(np.abs(video.observed - still).max(axis=1), video.foreground_mask, ignore=ignore)
        # Five standard deviations of the noise of a pixel of the common kind.
        assert f_measure(distance > 15, video.foreground_mask, ignore=ignore) > 0.98
        assert from_still < 0.95

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"height": 8}, "height must be at least 16"),
            ({"frames": 1}, "frames must be at least 2"),
            ({"missing": 1.0}, "missing must be a fraction"),
        ],
    )
    def test_errors_name_the_argument(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            toy_video(**arguments)


class TestClipsOfMinutes:
    @pytest.mark.parametrize("kind", CLIP_KINDS)
    def test_frames_are_those_of_the_clip(self, kind):
        whole = clip_of_kind(kind, 32, 40, 12, 2, np.random.default_rng(3))
        for frame, parts in enumerate(frames_of_kind(kind, 32, 40, 12, 2, np.random.default_rng(3))):
            for part, all_of_it in zip(parts, whole, strict=True):
                np.testing.assert_array_equal(part, all_of_it[frame])

    def test_somebody_passes_in_every_act(self):
        frames = frames_of_kind("street", 32, 40, 150, 1, np.random.default_rng(0), act=50)
        covered = [bool((cover > 0.5).any()) for _, _, cover in frames]
        assert all(any(covered[start : start + 50]) for start in (0, 50, 100))
        assert not all(covered)

    def test_who_stays_walks_as_fast_as_in_a_short_clip(self):
        covers = np.stack(
            [cover for _, _, cover in frames_of_kind("stays", 32, 40, 300, 1, np.random.default_rng(0), act=40)]
        )
        there = (covers > 0.5).mean(axis=0)
        assert there.max() > 0.6  # where they stand, from a third of the clip on


class TestToySales:
    def test_same_seed_same_table(self):
        once, again = toy_sales(seed=3), toy_sales(seed=3)
        assert once.table.equals(again.table)
        assert not once.table.equals(toy_sales(seed=4).table)

    def test_numbers_follow_what_was_expected(self):
        sales = toy_sales(seed=1)
        codes = [sales.table[name].astype("category").cat.codes for name in ("shop", "item", "week")]
        assert sales.expected.shape == tuple(code.max() + 1 for code in codes) == (12, 8, 52)
        off = sales.table["sold"] - sales.expected[tuple(codes)]
        fine = off[~sales.wrong]
        # Noise of 5, rounding, and zero as the smallest number: about 5, by some per cent in 3,800 numbers.
        assert 4.7 < fine.std() < 5.3
        assert fine.abs().max() < 30
        assert 0.005 < sales.wrong.mean() < 0.016

    def test_rank_is_three(self):
        expected = toy_sales().expected
        for mode in range(3):
            unfolded = np.moveaxis(expected, mode, 0).reshape(expected.shape[mode], -1)
            assert np.linalg.matrix_rank(unfolded) == 3

    def test_gaps(self):
        table = toy_sales(missing=0.0, seed=2).table
        assert len(table) == 12 * 8 * 52 - 4 * 8 * 8
        assert 0.6 < len(toy_sales(missing=0.3, seed=2).table) / (12 * 8 * 52) < 0.7

    @pytest.mark.parametrize("options", [{"weeks": 15}, {"weeks": True}, {"missing": 1.0}, {"missing": -0.1}])
    def test_invalid_options(self, options):
        with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
            toy_sales(**options)
