"""Whole calibrated fits: the truth is found with nothing to tune, the trace describes it, and accidents do no harm.

Thresholds of accuracy are relative to the expected error of least squares that knows the rank and the outliers.
"""

import re
from dataclasses import replace

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import brtf
from brtf.api import fitting
from brtf.data.observe import observe
from brtf.data.plan import Plan
from brtf.datasets import paper_synthetic, synthetic
from brtf.inference.point import evaluate
from brtf.inference.problem import Problem
from brtf.inference.trace import Kind, StopReason, comparable
from brtf.metrics import rrse
from brtf.model.local_models import FlatSlab, GaussianSlab, NoOutliers, StudentSlab
from brtf.search.problems import sweep_order
from brtf.view.report.page import build_page
from mixtures import overlapping_spectra

CUBE = (20, 20, 20)


def fit(data, **options):
    return brtf.BRTF(**{"random_state": 0, **options}).fit(data.observed)


def expected_rrse(data):
    """sqrt(σ² · dof · entries / good entries) / ‖X‖, dof = R (Σ I_n − N + 1)."""
    shape, rank = data.low_rank.shape, data.factors[0].shape[1]
    dof = rank * (sum(shape) - len(shape) + 1)
    n_good = np.count_nonzero(data.mask & (data.outliers == 0))
    return np.sqrt(data.noise_variance * dof * data.low_rank.size / n_good) / np.linalg.norm(data.low_rank)


def true_rate(data):
    return np.mean(data.outliers[data.mask] != 0)


def coverage(model, data):
    low, high = model.predict_interval(level=0.95)
    return np.mean((low <= data.low_rank) & (data.low_rank <= high))


def assert_found(model, data, *, largest_error=1.25, noise=0.1, rate=0.03, covered=(0.88, 0.99)):
    """Rank, error relative to the expected one, noise variance, rate of outliers and coverage.

    Of some hundred degrees of freedom the error scatters by 5–10 %; an error a quarter above costs a coverage of 0.88.
    """
    assert model.converged_
    assert model.rank_ == data.factors[0].shape[1]
    assert rrse(model.low_rank(), data.low_rank) <= largest_error * expected_rrse(data)
    assert model.noise_variance_ == pytest.approx(data.noise_variance, rel=noise)
    assert model.outlier_rate_ == pytest.approx(true_rate(data), abs=rate)
    assert covered[0] <= coverage(model, data) <= covered[1]


class TestThePapersTensor:
    @pytest.mark.parametrize("seed", [0, 1])
    @pytest.mark.parametrize("magnitude", ["10std", "max"])
    @pytest.mark.parametrize(
        ("missing", "outliers"), [(0.0, 0.1), (0.0, 0.4), (0.5, 0.1), (0.8, 0.1), (0.9, 0.1), (0.7, 0.3)]
    )
    def test_with_outliers(self, missing, outliers, magnitude, seed):
        data = paper_synthetic(missing=missing, outliers=outliers, magnitude=magnitude, seed=seed)
        assert_found(fit(data), data)

    @pytest.mark.parametrize("seed", [0, 1])
    def test_without_outliers(self, seed):
        data = paper_synthetic(outliers=0.0, seed=seed)
        assert_found(fit(data), data, rate=0.01)


HARDER = {
    "collinear": {"collinearity": 0.9},
    "strengths 1000:30:1": {"strengths": [1000, 30, 1], "noise": 1e-8},
    "matrix": {"shape": (60, 50)},
    "order 4": {"shape": (12, 11, 10, 9)},
    "one long mode": {"shape": (1000, 5, 7)},
    "positive factors": {"factor_law": "uniform"},
    "no outliers": {"outliers": 0.0},
    "60 % outliers": {"outliers": 0.6},
    "one-sided outliers": {"outlier_law": "one-sided"},
    "whole fibres outlying": {"outlier_pattern": "fibres"},
    "whole fibres missing": {"missing": 0.5, "missing_pattern": "fibres"},
    "rank 12": {"rank": 12},
}


class TestHarderOnes:
    @pytest.mark.parametrize("name", HARDER)
    @pytest.mark.filterwarnings("ignore::brtf.FitWarning")  # 60 % are no exception any more
    def test_found(self, name):
        data = synthetic(**{"shape": CUBE, "rank": 3, "outliers": 0.1, "seed": 0, **HARDER[name]})
        assert_found(fit(data), data, rate=0.01 if name == "no outliers" else 0.03)

    def test_student_noise(self):
        """Least squares is not the best for it: the error is below. The variance of t₃ noise is itself uncertain."""
        data = synthetic(CUBE, 3, outliers=0.1, noise_law="student-t", seed=0)
        assert_found(fit(data), data, largest_error=0.8, noise=0.3)

    def test_tiny(self):
        """Ten degrees of freedom and sixty entries: everything scatters."""
        data = synthetic((5, 4, 3), 1, outliers=0.1, seed=0)
        assert_found(fit(data), data, largest_error=1.6, noise=0.5, rate=0.05, covered=(0.7, 1.0))

    def test_no_noise(self):
        data = synthetic(CUBE, 3, outliers=0.1, noise=0.0, seed=0)
        model = fit(data)
        assert model.rank_ == 3
        assert rrse(model.low_rank(), data.low_rank) < 1e-7
        assert model.result_.stop_reason is StopReason.BELOW_RESOLUTION
        assert model.outlier_rate_ == pytest.approx(0.1, abs=0.01)

    def test_nothing_but_noise_and_outliers(self):
        data = synthetic(CUBE, 0, outliers=0.1, seed=0)
        model = fit(data)
        assert model.rank_ == 0
        assert model.result_.stop_reason is StopReason.RANK_ZERO
        assert model.noise_variance_ == pytest.approx(data.noise_variance, rel=0.1)
        assert model.outlier_rate_ == pytest.approx(0.1, abs=0.03)
        np.testing.assert_array_equal(model.low_rank(), 0.0)


class TestChoiceOfTheLocalModel:
    @pytest.mark.parametrize(
        ("law", "magnitude", "kind"), [("log-uniform", 300.0, StudentSlab), ("uniform", 10.0, FlatSlab)]
    )
    def test_outliers_of_a_law_choose_its_model(self, law, magnitude, kind):
        data = synthetic(CUBE, 3, outliers=0.2, outlier_law=law, magnitude=magnitude, seed=0)
        model = fit(data)
        assert isinstance(model.result_.state.local, kind)
        assert any(kind.__name__ in event for event in model.trace_["event"])
        assert_found(model, data)

    def test_gaussian_outliers_choose_a_slab_that_is_close_to_gaussian(self):
        """Another model is chosen only where it is better by a nat, so a Student-t must be one of a single scale."""
        data = synthetic(
            CUBE, 3, outliers=0.2, outlier_law=lambda rng, n: rng.standard_normal(n), magnitude=5.0, seed=0
        )
        model = fit(data)
        local = model.result_.state.local
        assert isinstance(local, GaussianSlab) or (isinstance(local, StudentSlab) and local.shape > 5.0)
        assert_found(model, data)


SMALL = synthetic((14, 12, 10), 3, outliers=0.1, missing=0.2, seed=0)


OVERLAPPING = overlapping_spectra()


def interrupted_above(monkeypatch, model, n_records, **kept):
    """Ctrl-C where the state has more components than the two that its model allows; returns the note."""
    follow = fitting.run

    def interrupted(observations, settings, rng, watch, since):
        def watched(moment):
            watch(moment)
            if moment.n_records >= n_records and moment.state.rank > 2:
                raise KeyboardInterrupt

        return follow(observations, settings, rng, watched, since)

    with monkeypatch.context() as patch:
        patch.setattr(fitting, "run", interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:
            model.fit(OVERLAPPING, **kept)
    return caught.value.__notes__[-1]


def assert_reduced_in_haste(model, largest_error):
    """The state kept has two components, more led to it, and the bound in the trace is its own."""
    result = model.result_
    assert model.rank_ == 2
    assert re.fullmatch(r"reduced to 2 \([+-][0-9.]+\)", str(result.trace[-1].event))
    assert result.trace[-2].rank > 2
    assert (result.trace[-1].sweep, result.trace[-1].rank) == (result.trace[-2].sweep, 2)
    observations = observe(OVERLAPPING)
    problem = Problem(observations, sweep_order(observations), collapsed=True)
    assert result.trace[-1].bound == pytest.approx(evaluate(problem, result.state).bound, rel=1e-9)
    assert result.trace[-1].noise_variance == result.state.noise_variance
    assert rrse(model.low_rank(), OVERLAPPING) < largest_error
    assert result.cap_gain is None


@pytest.fixture(scope="module")
def small():
    """A fit of the easy problem on which properties are tried."""
    return fit(SMALL)


class TestTrace:
    @pytest.mark.parametrize(
        "options", [{}, {"init": "random"}, {"max_rank": 2}, {"robust": False}, {"max_rank": 30, "tol": 0.0}], ids=str
    )
    @pytest.mark.filterwarnings("ignore::brtf.FitWarning")  # of a cap that is too low
    def test_last_record_is_of_the_state_returned(self, options):
        model = fit(SMALL, noise="common", **options)
        state, last = model.result_.state, model.result_.trace[-1]
        observations = observe(SMALL.observed)
        problem = Problem(observations, sweep_order(observations), collapsed=True)
        assert last.bound == pytest.approx(evaluate(problem, state).bound, rel=1e-9)
        assert model.bound_ == model.trace_["bound"][-1]  # in units of the data
        assert model.rank_ == last.rank == state.rank
        assert last.noise_variance == state.noise_variance
        assert model.n_sweeps_ == last.sweep <= 500

    def test_another_form_of_the_bound_is_said(self):
        """Many components of complete data are searched with completed data, whose bound is looser."""
        data = observe(synthetic((9, 8, 7), 2, outliers=0.1, seed=0).observed)
        model = brtf.BRTF(random_state=0).fit(replace(data, plan=Plan(weighted_rank=1)))
        trace = model.result_.trace
        (last,) = (k for k, record in enumerate(trace) if record.event.kind is Kind.FORM)
        assert str(trace[last].event) == "another form of the bound: weighted entries"
        assert trace[last].bound > trace[last - 1].bound
        drawn = comparable(trace)
        assert len(drawn) == len(trace) and drawn[last - 1].bound == drawn[last].bound == trace[last].bound
        assert "earlier values are shifted to match" in build_page(model.result_)

    @pytest.mark.parametrize("max_sweeps", [1, 5, 10])
    def test_sweeps_are_limited(self, max_sweeps):
        with pytest.warns(UserWarning, match="max_sweeps"):
            model = fit(SMALL, max_sweeps=max_sweeps)
        assert model.n_sweeps_ <= max_sweeps
        assert model.result_.stop_reason is StopReason.MAX_SWEEPS
        assert not model.converged_
        assert np.isfinite(model.low_rank()).all()

    @pytest.mark.parametrize("max_rank", [1, 2])
    @pytest.mark.filterwarnings("ignore::brtf.FitWarning")  # of one more component
    def test_rank_is_limited(self, max_rank):
        """On the way there may be more components; the answer and its last sweeps keep to the cap."""
        with pytest.warns(brtf.FitWarning, match=f"max_rank={max_rank} was reached"):
            model = fit(SMALL, max_rank=max_rank, noise="common")
        assert model.rank_ == max_rank
        assert np.all(model.trace_["rank"] <= max(2 * max_rank, max_rank + 2))
        gain = model.result_.cap_gain
        more = fit(SMALL, max_rank=max_rank + 1, noise="common")
        assert gain == pytest.approx(more.bound_ - model.bound_, rel=0.05)

    @pytest.mark.parametrize(("size", "rank", "cap"), [(12, 12, 6), (15, 20, 12)])
    def test_a_cap_is_told_of_though_noise_per_slice_hides_what_it_cost(self, size, rank, cap):
        """Noise is chosen after the rank has come down, so that loss is not what is missing at the end."""
        rng = np.random.default_rng(0)
        factors = [rng.normal(size=(size, rank)) for _ in range(3)]
        data = np.einsum("ir,jr,kr->ijk", *factors) + 0.1 * rng.normal(size=(size,) * 3)
        with pytest.warns(brtf.FitWarning, match=f"max_rank={cap} was reached; one more component would raise"):
            model = brtf.BRTF(cap, random_state=0).fit(data)
        assert model.rank_ == cap and model.result_.state.slices is not None

    def test_a_cap_that_is_not_felt_changes_nothing(self, small):
        model = fit(SMALL, max_rank=3)
        assert model.result_.cap_gain is None
        assert model.bound_ == pytest.approx(small.bound_, abs=1.0)

    @pytest.mark.parametrize("max_sweeps", [3, 30])
    @pytest.mark.filterwarnings("ignore::brtf.FitWarning")  # there are three components
    def test_the_cap_holds_even_where_sweeps_run_out(self, max_sweeps):
        with pytest.warns(UserWarning, match="max_sweeps"):
            model = brtf.BRTF(2, max_sweeps=max_sweeps, tol=0.0, random_state=0).fit(OVERLAPPING)
        assert model.rank_ <= 2

    def test_the_cap_holds_even_where_the_time_runs_out(self):
        """The first start, which no sweep has improved yet, has more components than allowed."""
        with pytest.warns(ConvergenceWarning, match="max_seconds"):
            model = brtf.BRTF(2, max_seconds=1e-9, random_state=0).fit(OVERLAPPING)
        assert_reduced_in_haste(model, 0.7)

    @pytest.mark.parametrize("options", [{"n_jobs": 2}, {"noise": "per-slice"}], ids=str)
    def test_the_cap_holds_even_where_the_fit_is_interrupted(self, options, monkeypatch):
        model = brtf.BRTF(2, random_state=0, **options)
        note = interrupted_above(monkeypatch, model, n_records=5)
        assert model.result_.stop_reason is StopReason.INTERRUPTED
        assert note.endswith("rank 2, not converged.")
        assert_reduced_in_haste(model, 0.3)
        noise = model.trace_["noise_variance"]
        assert noise[-1] > 2 * noise[-2]  # it takes what is left over

    @pytest.mark.filterwarnings("ignore::brtf.FitWarning")  # there are three components
    def test_a_checkpoint_above_the_cap_leads_to_the_same_end(self, monkeypatch, tmp_path):
        options = {"max_rank": 2, "max_sweeps": 40, "random_state": 0, "noise": "common", "link": None}
        options, path = {**options, "arrangement": None, "smooth_residual": None}, tmp_path / "c.brtf"
        interrupted_above(monkeypatch, brtf.BRTF(**options), n_records=1, checkpoint=path)
        with pytest.warns(ConvergenceWarning, match="max_sweeps"):
            resumed = brtf.BRTF(**options).fit(OVERLAPPING, resume=path)
        with pytest.warns(ConvergenceWarning, match="max_sweeps"):
            whole = brtf.BRTF(**options).fit(OVERLAPPING)
        assert resumed.trace_.tobytes() == whole.trace_.tobytes()
        assert resumed.result_.cap_gain == brtf.load(path).result_.cap_gain

    def test_what_was_asked_for_is_there_even_where_sweeps_run_out(self):
        with pytest.warns(UserWarning, match="max_sweeps"):
            model = fit(SMALL, max_rank=2, max_sweeps=12, outlier_modes=(2,))
        assert model.result_.state.structure.modes == (2,)

    @pytest.mark.parametrize("max_rank", [3, 4, None])
    def test_knowing_the_rank_does_not_hurt(self, max_rank):
        """Overlapping spectra: the way to three components leads through more."""
        model = brtf.BRTF(max_rank, random_state=0).fit(OVERLAPPING)
        assert model.rank_ == 3
        assert model.outlier_rate_ < 0.01
        assert np.sqrt(model.noise_variance_) == pytest.approx(1e-3, rel=0.05)

    def test_there_is_no_cap_unless_one_is_given(self):
        """More components than the longest mode has rows."""
        data = synthetic((12, 11, 10), 16, noise=1e-6, seed=0)
        model = fit(data)
        assert model.rank_ == 16
        assert model.noise_variance_ == pytest.approx(data.noise_variance, rel=0.2)

    def test_births_are_told_and_raise_the_rank(self, small):
        data = synthetic((20, 18, 16), 12, outliers=0.05, seed=0)
        model = fit(data)
        born = [(row["event"], row["rank"]) for row in model.trace_ if row["event"].startswith("born")]
        assert [rank for event, rank in born if "+" in event][-1] == 12
        assert model.rank_ == 12

    def test_surplus_components_go_and_the_trace_tells(self, small):
        """Started with copies of the truth, cut in two, and with noise."""
        rng = np.random.default_rng(0)
        share = 2.0 ** (-1 / 3)
        init = [
            np.hstack([share * factor, share * factor, 0.3 * rng.standard_normal((len(factor), 2))])
            for factor in SMALL.factors
        ]
        model = fit(SMALL, init=init)
        assert model.rank_ == 3
        started, ranks = model.trace_["event"][0], model.trace_["rank"]
        assert started == f"start with {ranks[0]}"
        for before, row in zip(ranks, model.trace_[1:], strict=False):
            assert row["rank"] == before or row["event"].split()[0] in ("died", "merged", "pruned", "born", "condensed")
        assert model.bound_ == pytest.approx(small.bound_, abs=1.0)


class TestAccidentsOfTheInput:
    def test_same_seed_same_bytes(self):
        first, second = (fit(SMALL, init="random") for _ in range(2))
        assert first.trace_.tobytes() == second.trace_.tobytes()
        for one, other in zip(first.factors_, second.factors_, strict=True):
            assert one.tobytes() == other.tobytes()

    @pytest.mark.parametrize("seed", [1, 2])
    def test_another_random_start_ends_at_the_same_place(self, small, seed):
        model = fit(SMALL, init="random", random_state=seed)
        assert model.trace_["bound"][0] != small.trace_["bound"][0]
        assert model.rank_ == small.rank_
        assert model.bound_ == pytest.approx(small.bound_, abs=1.0)

    @pytest.mark.parametrize("factor", [1e-100, 1e-8, 1e100])
    def test_scale(self, small, factor):
        """Values scaled and divided by their scale differ by rounding, which a fit amplifies some 1e5 times."""
        model = brtf.BRTF(random_state=0).fit(factor * SMALL.observed)
        assert model.rank_ == small.rank_
        assert type(model.result_.state.local) is type(small.result_.state.local)
        wanted = small.low_rank()
        np.testing.assert_allclose(model.low_rank() / factor, wanted, rtol=0, atol=1e-8 * np.abs(wanted).max())
        assert np.sqrt(model.noise_variance_) / factor == pytest.approx(np.sqrt(small.noise_variance_), rel=1e-8)
        assert model.outlier_rate_ == pytest.approx(small.outlier_rate_, rel=1e-8)
        shift = SMALL.mask.sum() * np.log(factor)
        assert model.bound_ + shift == pytest.approx(small.bound_, abs=1e-9 * abs(shift))

    @pytest.mark.parametrize("missing", [0.0, 0.2])
    def test_a_matrix_turned(self, missing):
        """Its components can be rotated: the bound is flat there, and rounding decides where sweeps end."""
        data = synthetic((30, 20), 3, outliers=0.1, missing=missing, seed=0)
        model, turned = fit(data), brtf.BRTF(random_state=0).fit(data.observed.T)
        assert turned.bound_ == pytest.approx(model.bound_, abs=0.2)
        difference = np.abs(turned.low_rank().T - model.low_rank()).max()
        assert difference < 0.1 * np.sqrt(model.noise_variance_)

    @pytest.mark.parametrize("shape", [(14, 12, 10), (12, 12, 12)])
    @pytest.mark.parametrize("missing", [0.0, 0.2])
    def test_order_of_modes(self, shape, missing):
        data = synthetic(shape, 3, outliers=0.1, missing=missing, seed=0)
        model = fit(data)
        modes = (2, 0, 1)
        turned = brtf.BRTF(random_state=0).fit(data.observed.transpose(modes))
        assert turned.bound_ == pytest.approx(model.bound_, rel=1e-9)
        total = np.ones(3)
        for found, mode in zip(turned.factors_, modes, strict=True):
            wanted = model.factors_[mode]
            signs = np.sign(np.sum(found * wanted, axis=0))  # which mode is last decides the signs
            total *= signs
            np.testing.assert_allclose(signs * found, wanted, rtol=0, atol=1e-7 * np.abs(wanted).max())
        np.testing.assert_array_equal(total, 1.0)

    def test_layout(self, small):
        coords, values = np.nonzero(SMALL.mask), SMALL.observed[SMALL.mask]
        listed = brtf.BRTF(random_state=0).fit(brtf.Observations.from_coords(coords, values, SMALL.mask.shape))
        assert listed.bound_ == pytest.approx(small.bound_, rel=1e-9)
        assert listed.rank_ == small.rank_


class TestOptions:
    def test_without_outliers(self):
        data = synthetic((14, 12, 10), 3, seed=0)
        model = fit(data, robust=False)
        assert_found(model, data)
        assert model.outlier_rate_ == 0.0
        assert isinstance(model.result_.state.local, NoOutliers)
        np.testing.assert_array_equal(model.outliers(), 0.0)

    def test_without_outliers_it_is_nearly_the_model_that_finds_none(self):
        """The same low-rank part to a tenth of its error."""
        data = synthetic((14, 12, 10), 3, seed=0)
        plain, robust = fit(data, robust=False), fit(data)
        assert rrse(robust.low_rank(), plain.low_rank()) < 0.1 * expected_rrse(data)
        assert robust.outlier_rate_ < 0.01

    def test_start_from_given_factors(self, small):
        model = fit(SMALL, init=SMALL.factors)
        assert model.trace_["event"][0] == "start with 3"
        assert model.bound_ == pytest.approx(small.bound_, abs=1.0)
        assert_found(model, SMALL)

    def test_given_factors_are_one_start_among_others(self, small):
        """Those of other data do no harm."""
        rng = np.random.default_rng(5)
        model = fit(SMALL, init=[10.0 * rng.standard_normal((length, 6)) for length in SMALL.mask.shape])
        assert model.bound_ == pytest.approx(small.bound_, abs=1.0)


def test_new_slices_get_their_loadings():
    """Outliers in the new slices included: within four standard deviations, and on average about one."""
    data = synthetic((40, 12, 10), 3, outliers=0.1, seed=2)
    model = brtf.BRTF(random_state=0).fit(data.observed[:30])
    assert model.rank_ == 3
    new = data.observed[30:].copy()
    new[0, :3] = np.nan
    loadings, std = model.transform(new, return_std=True)
    products = np.einsum("ir,jr->ijr", *model.factors_[1:]).reshape(-1, 3)
    truth = np.linalg.lstsq(products, data.low_rank[30:].reshape(10, -1).T, rcond=None)[0].T
    standardised = (loadings - truth) / std
    assert np.abs(standardised).max() < 4.0
    assert 0.6 < np.sqrt(np.mean(standardised**2)) < 1.6
    # Rows that know nothing of each other: one alone gets the same loadings.
    np.testing.assert_allclose(model.transform(new[3:4]), loadings[3:4], rtol=1e-5, atol=1e-7)
