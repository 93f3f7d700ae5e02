"""Held-out entries: what is hidden, what is said of the predictions, and intervals calibrated by them."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
from click.testing import CliRunner

import brtf
from brtf import BRTF, Observations, cli, load
from brtf.api.evaluation import PATTERNS, draw_hidden, evaluate
from brtf.data.observe import observe
from brtf.datasets import synthetic
from brtf.io.archive import pack
from brtf.io.storage import CorruptFile, write_archive
from brtf.metrics import coverage
from brtf.model.predictive import split_conformal

SHAPE = (9, 8, 7)
DATA = synthetic(SHAPE, 2, strengths=(1, 1), outliers=0.05, missing=0.2, noise=0.01, seed=0)
LAYOUTS = {
    "complete": lambda: observe(DATA.low_rank),
    "masked": lambda: observe(DATA.observed),
    "coordinates": lambda: Observations.from_coords(
        np.stack(np.nonzero(DATA.mask)), DATA.observed[DATA.mask], DATA.observed.shape
    ),
}
QUICK = {"max_rank": 3, "tol": 1e-4, "random_state": 0}


@pytest.fixture(params=LAYOUTS.values(), ids=LAYOUTS.keys())
def observations(request):
    return request.param()


def as_dense(observations):
    """The tensor with NaN where nothing is observed."""
    dense = np.full(observations.shape, np.nan)
    dense[tuple(observations.entry_coords())] = observations.values.ravel()
    return dense


# ---- what is hidden ----------------------------------------------------------------------------------------


def test_select_parts_the_entries_as_if_each_part_had_been_given(observations):
    chosen = np.random.default_rng(0).random(observations.n_observed) < 0.3
    part, rest = observations.select(chosen), observations.select(~chosen)
    given = observe(as_dense(part))
    assert part.n_observed == np.count_nonzero(chosen)
    assert (part.scale, part.layout == "coordinates") == (given.scale, observations.layout == "coordinates")
    np.testing.assert_array_equal(part.values, given.values)
    both = np.where(np.isnan(as_dense(part)), as_dense(rest), as_dense(part))
    np.testing.assert_array_equal(both, as_dense(observations))
    assert part.n_observed + rest.n_observed == observations.n_observed
    assert observations.select(np.ones(observations.n_observed, dtype=bool)) is observations


class TestHidden:
    @pytest.mark.parametrize("hold_out", [0.01, 0.1, 0.45])
    def test_entries(self, observations, hold_out):
        hidden = draw_hidden(observations, hold_out, np.random.default_rng(0))
        assert np.count_nonzero(hidden) == round(hold_out * observations.n_observed)

    @pytest.mark.parametrize("mode", range(3))
    def test_fibres_are_hidden_whole(self, observations, mode):
        hidden = draw_hidden(observations, 0.2, np.random.default_rng(0), pattern="fibres", mode=mode)
        fibres = {}
        for *entry, is_hidden in zip(*observations.entry_coords(), hidden, strict=True):
            fibres.setdefault((*entry[:mode], *entry[mode + 1 :]), set()).add(bool(is_hidden))
        assert all(len(states) == 1 for states in fibres.values())
        assert sum(states == {True} for states in fibres.values()) == round(0.2 * len(fibres))

    @pytest.mark.parametrize("mode", range(3))
    def test_half_of_a_slice_stays(self, observations, mode):
        hidden = draw_hidden(observations, 0.2, np.random.default_rng(0), pattern="slices", mode=mode)
        position = observations.entry_coords()[mode]
        halves = [n // 2 for n in np.bincount(position)]
        n_hidden = np.bincount(position[hidden], minlength=len(halves))
        drawn = n_hidden > 0
        assert np.count_nonzero(drawn) == round(0.4 * len(halves))
        np.testing.assert_array_equal(n_hidden[drawn], np.array(halves)[drawn])

    def test_the_half_is_random(self):
        """Every entry of a slice is hidden with probability one half: 400 draws, so a standard error of 0.025."""
        rng = np.random.default_rng(0)
        complete = observe(np.ones((1, 8)))
        share = np.mean([draw_hidden(complete, 0.5, rng, pattern="slices") for _ in range(400)], axis=0)
        np.testing.assert_allclose(share, 0.5, atol=4 * 0.025)

    @pytest.mark.parametrize("pattern", PATTERNS)
    def test_layout_does_not_matter(self, pattern):
        masked, sparse = (
            draw_hidden(LAYOUTS[name](), 0.2, np.random.default_rng(3), pattern=pattern, mode=1)
            for name in ("masked", "coordinates")
        )
        np.testing.assert_array_equal(masked, sparse)

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"hold_out": 0.0}, "hold_out must be between 0 and 1"),
            ({"hold_out": math.nan}, "hold_out must be between 0 and 1"),
            ({"hold_out": 0.6, "pattern": "slices"}, "at most 0.5 for slices"),
            ({"pattern": "rows"}, r"pattern must be one of .*'slices'.*, got 'rows'"),
            ({"mode": 3}, "mode must be one of the modes 0 to 2 of the data, got 3"),
            ({"n_repeats": 0}, "n_repeats must be an integer of at least 1, got 0"),
            ({"hold_out": 0.9999}, "would hold out 403 of 403 entries"),
        ],
    )
    def test_bad_arguments(self, options, sentence):
        with pytest.raises(ValueError, match=sentence):
            evaluate(DATA.observed, **options)

    @pytest.mark.parametrize("model", ["calibrated", {}, {"a": 3, "b": BRTF()}, BRTF])
    def test_bad_models(self, model):
        with pytest.raises(TypeError, match="model must be a BRTF, a dict of its options, or a dict with either"):
            evaluate(DATA.observed, model=model)

    @pytest.mark.parametrize("model", [{"max_rnk": 3}, {"mine": {"max_rnk": 3}}])
    def test_misspelt_options(self, model):
        with pytest.raises(TypeError, match=r"BRTF has no option max_rnk=: did you mean max_rank=\?"):
            evaluate(DATA.observed, model=model)

    @pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::brtf.FitWarning")
    def test_options_are_compared_with_none(self):
        found = evaluate(DATA.observed, model={"max_rank": 1, "max_sweeps": 5}, seed=1)
        assert [row["model"] for row in found.rows] == ["BRTF()", "BRTF(max_rank=1, max_sweeps=5)"]
        assert found.rows[1]["rank"] == 1


# ---- what is said of the predictions -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared():
    models = {"free": BRTF(**QUICK), "one": BRTF(**{**QUICK, "max_rank": 1})}
    return evaluate(DATA.observed, model=models, hold_out=0.2, n_repeats=2, seed=5)


def without_seconds(rows):
    return [{name: entry for name, entry in row.items() if name != "seconds"} for row in rows]


@pytest.mark.filterwarnings("ignore::brtf.FitWarning")  # of the second model, whose cap is too low
class TestEvaluate:
    def test_numbers_are_those_of_a_fit_by_hand(self, compared):
        observations = observe(DATA.observed)
        hidden = draw_hidden(observations, 0.2, np.random.default_rng(5))
        held_out = np.zeros(SHAPE, dtype=bool)
        held_out[DATA.mask] = hidden
        fitted = BRTF(**QUICK).fit(np.where(held_out, np.nan, DATA.observed))
        truth = DATA.observed[held_out]
        error = truth - fitted.low_rank()[held_out]
        expected = {
            "n_held_out": hidden.sum(),
            "rmse": np.sqrt(np.mean(error**2)),
            "mae": np.mean(np.abs(error)),
            "median_error": np.median(np.abs(error)),
            "log_density": fitted.score(np.where(held_out, DATA.observed, np.nan)),
            "rank": fitted.rank_,
        }
        for level in (50, 80, 95):
            low, high = fitted.predict_interval(level=level / 100, of="observation")
            expected[f"coverage_{level}"] = np.mean((low[held_out] <= truth) & (truth <= high[held_out]))
        expected["width_95"] = np.mean((high - low)[held_out])
        row = compared.rows[0]
        assert (row["model"], row["repeat"], row["converged"]) == ("free", 0, True)
        for name, number in expected.items():
            assert row[name] == pytest.approx(number, rel=1e-9), name  # sums in another order

    def test_a_row_for_every_repeat_and_model(self, compared):
        assert [(row["repeat"], row["model"]) for row in compared.rows] == [
            (repeat, name) for repeat in (0, 1) for name in ("free", "one")
        ]
        assert compared.rows[0]["rmse"] != compared.rows[2]["rmse"]

    def test_the_better_model_is_seen(self, compared):
        """One component of two explains half: no density or error can hide that."""
        for free, one in (compared.rows[:2], compared.rows[2:]):
            assert (free["rank"], one["rank"]) == (2, 1)
            assert free["median_error"] < 0.5 * one["median_error"]
            assert free["log_density"] > one["log_density"] + 0.2

    def test_same_seed_same_numbers(self):
        """Also of a model that has no seed of its own."""
        model = BRTF(max_rank=3, init="random", tol=1e-3, inference="paper")
        first, second, third = (
            without_seconds(evaluate(DATA.observed, model=model, seed=seed).rows) for seed in (1, 1, 2)
        )
        assert first == second
        assert first != third

    def test_models_given_stay_as_they_are(self):
        model = BRTF(**{**QUICK, "random_state": np.random.default_rng(0)})
        state = model.random_state.bit_generator.state
        evaluate(DATA.observed, model=model)
        assert not hasattr(model, "result_")
        assert model.random_state.bit_generator.state == state

    def test_sparse_data_stay_sparse_and_give_the_same(self):
        layouts = []

        class Watched(BRTF):
            def fit(self, Y, *args, **kwargs):
                layouts.append(Y.layout)
                return super().fit(Y, *args, **kwargs)

        sparse = scipy.sparse.coo_array((DATA.observed[DATA.mask], np.nonzero(DATA.mask)), shape=SHAPE)
        options = {"model": Watched(**QUICK), "pattern": "fibres", "mode": 2}
        (dense_row,), (sparse_row,) = (evaluate(Y, **options).rows for Y in (DATA.observed, sparse))
        assert layouts == ["masked", "coordinates"]
        for name, number in dense_row.items():
            if name not in ("model", "seconds"):
                # Sums over gathered rows round differently, and the fits stop a little apart.
                assert sparse_row[name] == pytest.approx(number, rel=1e-4), name

    @pytest.mark.parametrize("factor", [1e-200, 1e200])
    def test_units(self, factor, compared):
        row = evaluate(factor * DATA.observed, model=BRTF(**QUICK), hold_out=0.2, seed=5).rows[0]
        for name in ("rmse", "mae", "median_error", "width_95"):
            # The scale is no power of two, so everything rounds differently.
            assert row[name] == pytest.approx(factor * compared.rows[0][name], rel=1e-4, abs=0), name
        assert row["log_density"] == pytest.approx(compared.rows[0]["log_density"] - math.log(factor), abs=1e-4)

    def test_coverage_is_nominal_where_the_model_holds(self):
        data = synthetic((14, 13, 12), 2, strengths=(1, 1), outliers=0.1, noise=0.01, seed=2)
        row = evaluate(data.observed, model=BRTF(**QUICK), hold_out=0.3).rows[0]
        for level in (50, 80, 95):
            share = level / 100
            # Four binomial standard errors, as if entries were independent.
            allowed = 4 * math.sqrt(share * (1 - share) / row["n_held_out"])
            assert row[f"coverage_{level}"] == pytest.approx(share, abs=allowed)


@pytest.mark.filterwarnings("ignore::brtf.FitWarning")
class TestEvaluation:
    def test_table_has_a_line_per_model(self, compared):
        header, *lines = compared.table().splitlines()
        assert header.split()[:3] == ["model", "rmse", "mae"]
        assert [line.split()[0] for line in lines] == ["free", "one"]
        errors = [row["rmse"] for row in compared.rows if row["model"] == "one"]
        assert f"{np.mean(errors):.4g} ± {np.std(errors, ddof=1):.2g}" in lines[1]

    def test_frame(self, compared):
        assert compared.to_frame().to_dict("records") == compared.rows

    def test_public_name(self):
        assert brtf.evaluate is evaluate


class TestCommand:
    DATA = synthetic((8, 7, 6), 1, outliers=0.05, missing=0.2, noise=0.01, seed=3)

    @pytest.fixture
    def source(self, tmp_path):
        np.save(tmp_path / "y.npy", self.DATA.observed)
        return tmp_path / "y.npy"

    def run(self, *arguments):
        return CliRunner().invoke(cli.main, ["evaluate", *map(str, arguments)])

    def test_prints_a_line_per_inference(self, source):
        outcome = self.run(source)
        assert outcome.exit_code in (0, 1), outcome.output
        assert [line.split()[0] for line in outcome.stdout.splitlines()] == ["model", "calibrated", "paper"]

    def test_json_is_what_python_says(self, source):
        options = {"hold_out": 0.25, "pattern": "slices", "mode": 1, "seed": 4}
        flags = [f"--{name.replace('_', '-')}={entry}" for name, entry in options.items()]
        outcome = self.run(source, "--inference", "calibrated", "--json", *flags)
        assert outcome.exit_code == 0, outcome.output
        document = json.loads(outcome.stdout)
        rows = evaluate(self.DATA.observed, model={"calibrated": BRTF()}, **options).rows
        assert without_seconds(document.pop("rows")) == without_seconds(rows)
        assert document == {**options, "repeats": 1}

    @pytest.mark.parametrize("flags", [["--hold-out", 2], ["--pattern", "rows"], ["--mode", 7], ["--repeats", 0]])
    def test_bad_options(self, source, flags):
        outcome = self.run(source, *flags)
        assert outcome.exit_code == 2
        assert outcome.stderr.startswith("brtf: error: ")


# ---- calibrated intervals ----------------------------------------------------------------------------------

LEVELS = (0.5, 0.8, 0.95)


def contrary_data(seed):
    """Noise with Student-t tails of two degrees of freedom that grows with the low-rank part; a third is for tests."""
    rng = np.random.default_rng(seed)
    shape = (24, 22, 20)
    low_rank = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((length, 2)) for length in shape))
    noise = rng.standard_t(2, shape) * (0.02 + 0.3 * np.abs(low_rank))
    return low_rank + noise, rng.random(shape) < 1 / 3


@pytest.fixture(scope="module")
def calibrated():
    return BRTF(calibrate="conformal", **QUICK).fit(DATA.observed)


class TestSplitConformal:
    @pytest.mark.parametrize(("n", "level", "place"), [(19, 0.95, 19), (20, 0.5, 11), (99, 0.8, 80), (10, 0.01, 1)])
    def test_is_the_rule(self, n, level, place):
        scores = np.random.default_rng(0).permutation(np.arange(1.0, n + 1))
        assert split_conformal(scores, level) == place

    def test_too_few_scores_for_the_level(self):
        assert split_conformal(np.ones(18), 0.95) == math.inf

    @pytest.mark.parametrize("level", LEVELS)
    @pytest.mark.parametrize("n", [20, 33])
    def test_covers_one_more(self, n, level):
        """Between level and level + 1/(n + 1), whatever the law; 5 000 trials, four standard errors."""
        scores = np.random.default_rng(n).standard_cauchy((5_000, n + 1)) ** 2
        covered = np.mean([split_conformal(trial[1:], level) >= trial[0] for trial in scores])
        error = 4 * math.sqrt(level * (1 - level) / len(scores))
        assert level - error <= covered <= level + 1 / (n + 1) + error


class TestConformal:
    @pytest.mark.parametrize("options", [{"robust": False, "noise": "common"}, {"inference": "paper"}], ids=str)
    @pytest.mark.filterwarnings("ignore::brtf.FitWarning")  # outliers want components of their own
    def test_coverage_is_nominal_where_the_model_does_not_hold(self, options):
        Y, for_test = contrary_data(seed=0)
        shown, hidden = np.where(for_test, np.nan, Y), np.nonzero(for_test)
        misses = {}
        for calibrate in (None, "conformal"):
            model = BRTF(calibrate=calibrate, **{**QUICK, **options}).fit(shown)
            ends = [model.predict_interval(hidden, level, of="observation") for level in LEVELS]
            misses[calibrate] = [coverage(*e, Y[for_test]) - level for level, e in zip(LEVELS, ends, strict=True)]
        n_held_back = model.result_.held_back.n_observed
        for level, miss in zip(LEVELS, misses["conformal"], strict=True):
            # Four binomial standard errors, of the entries held back and of those of the test.
            assert abs(miss) < 4 * math.sqrt(level * (1 - level) * (1 / n_held_back + 1 / for_test.sum()))
        assert np.max(np.abs(misses[None])) > 0.3

    @pytest.mark.parametrize("options", [{}, {"link": "log"}, {"noise": "per-slice"}], ids=str)
    def test_covers_just_so_many_of_those_held_back(self, options):
        Y = np.exp(DATA.observed) if "link" in options else DATA.observed
        model = BRTF(calibrate="conformal", **QUICK, **options).fit(Y)
        held_back = model.result_.held_back
        for level in LEVELS:
            low, high = model.predict_interval(held_back.entry_coords(), level, of="observation")
            slack = 1e-9 * (high - low)  # the interval ends just at the entry that decides
            n_covered = np.count_nonzero((low - slack <= held_back.values) & (held_back.values <= high + slack))
            assert n_covered == math.ceil((held_back.n_observed + 1) * level)

    def test_one_in_twenty_is_held_back_and_the_rest_is_fitted(self, calibrated):
        held_back, fitted = calibrated.result_.held_back, calibrated.result_.observations
        n_observed = np.count_nonzero(DATA.mask)
        assert (held_back.n_observed, fitted.n_observed) == (n_observed // 20, n_observed - n_observed // 20)
        both = np.where(np.isnan(as_dense(fitted)), as_dense(held_back), as_dense(fitted))
        np.testing.assert_array_equal(both, DATA.observed)
        again = BRTF(**QUICK).fit(as_dense(fitted))
        # The same entries from the same start: only the draws of a search differ, which decide nothing here.
        np.testing.assert_allclose(calibrated.low_rank(), again.low_rank(), atol=1e-3 * np.abs(again.low_rank()).max())

    def test_half_widths_differ_by_one_factor_from_the_models(self, calibrated):
        result = calibrated.result_
        uncalibrated = replace(result, held_back=None)
        for level in LEVELS:
            (low, high), (low_, high_) = (r.interval(level=level, of="observation") for r in (result, uncalibrated))
            factor = (high - low) / (high_ - low_)
            np.testing.assert_allclose(factor, factor.flat[0], rtol=1e-9)  # differences of numbers of order one
            np.testing.assert_allclose(high + low, high_ + low_, atol=1e-9)
            assert factor.flat[0] != 1
            np.testing.assert_array_equal(result.interval(level=level), uncalibrated.interval(level=level))

    def test_a_level_beyond_the_entries_held_back_is_infinite(self, calibrated):
        low, high = calibrated.predict_interval([[0], [0], [0]], 0.999, of="observation")
        assert (low[0], high[0]) == (-math.inf, math.inf)

    def test_impute_gives_back_what_was_held_back(self, calibrated):
        filled = calibrated.impute()
        np.testing.assert_array_equal(filled[DATA.mask], DATA.observed[DATA.mask])
        coords = calibrated.result_.held_back.entry_coords()
        np.testing.assert_array_equal(
            calibrated.impute(replace_outliers=True)[tuple(coords)], calibrated.low_rank()[tuple(coords)]
        )

    def test_a_file_keeps_it(self, tmp_path):
        sparse = scipy.sparse.coo_array((DATA.observed[DATA.mask], np.nonzero(DATA.mask)), shape=SHAPE)
        for Y in (sparse, DATA.observed):
            model = BRTF(calibrate="conformal", **QUICK).fit(Y)
            model.save(tmp_path / "fit.brtf")
            back = load(tmp_path / "fit.brtf")
            assert back.calibrate == "conformal"
            ours, theirs = (np.array(m.predict_interval(of="observation")) for m in (model, back))
            np.testing.assert_allclose(theirs, ours, rtol=1e-12)  # dense and gathered sums round differently

    def test_a_file_from_before_loads(self, tmp_path):
        model = BRTF(**QUICK).fit(DATA.observed)
        header, arrays = pack(model.result_)
        assert not [name for name in arrays if name.startswith("held_back")]
        del header["settings"]["calibrate"]
        write_archive(tmp_path / "old.brtf", header, arrays)
        back = load(tmp_path / "old.brtf")
        assert back.calibrate is None
        np.testing.assert_array_equal(back.predict_interval(), model.predict_interval())

    @pytest.mark.parametrize(
        ("name", "change"),
        [
            ("held_back.coords", lambda coords: coords + 100),
            ("held_back.coords", lambda coords: coords * 0),
            ("held_back.values", lambda values: values * np.nan),
        ],
    )
    def test_a_file_that_does_not_add_up_is_refused(self, calibrated, name, change, tmp_path):
        header, arrays = pack(calibrated.result_)
        write_archive(tmp_path / "bad.brtf", header, {**arrays, name: change(arrays[name])})
        with pytest.raises(CorruptFile, match="is not a result of brtf"):
            load(tmp_path / "bad.brtf")

    def test_too_few_entries(self):
        with pytest.raises(
            ValueError, match=r"needs at least 20 of them, but Y has 399 observed .* gives 19.* least 400"
        ):
            BRTF(calibrate="conformal").fit(np.random.default_rng(0).normal(size=(21, 19)))
        model = BRTF(calibrate="conformal", **QUICK).fit(np.random.default_rng(0).normal(size=(20, 20)))
        assert model.result_.held_back.n_observed == 20

    @pytest.mark.parametrize("calibrate", ["split", True, 0.05])
    def test_bad_option(self, calibrate):
        with pytest.raises(ValueError, match='calibrate must be None or "conformal", got'):
            BRTF(calibrate=calibrate).fit(DATA.observed)
