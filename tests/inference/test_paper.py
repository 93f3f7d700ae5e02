"""Whole runs of the paper's inference: the bound rises, accidents do not matter, stops say why, truth is found."""

from dataclasses import replace

import numpy as np
import pytest

import oracle
from brtf.data.observe import observe
from brtf.data.plan import Plan
from brtf.datasets import paper_synthetic, synthetic
from brtf.inference import paper
from brtf.inference.trace import Event, Kind, Record, StopReason
from brtf.metrics import rrse
from brtf.model.local_models import NoOutliers
from brtf.model.settings import Settings
from brtf.search.run import run
from brtf.search.stopping import stop_reason


def fit(observations, *, seed=0, **options):
    settings = Settings(inference="paper", **{"max_rank": 4, "max_sweeps": 60, **options})
    return run(observations, settings, np.random.default_rng(seed))


def problem(order=3, *, complete=False):
    """A small tensor of rank 2 with some outliers; the seeds are such that components survive."""
    shape, seed = {2: ((12, 10), 0), 3: ((10, 9, 8), 1), 4: ((5, 4, 3, 6), 1)}[order]
    data = synthetic(shape, 2, outliers=0.05, missing=0.0 if complete else 0.2, seed=seed)
    return oracle.Problem(np.where(data.mask, data.observed, 0.0), data.mask)


def means(found):
    return [rows.mean for rows in found.state.factors]


def low_rank(observations, found):
    """The low-rank part of the whole tensor, in the data's units."""
    product = np.ones((*observations.shape, found.state.rank))
    for mean, index in zip(means(found), np.indices(observations.shape), strict=True):
        product *= mean[index]
    return observations.scale * product.sum(axis=-1)


def bounds(found):
    return [record.bound for record in found.trace]


def bytes_of(found):
    local = found.state.local
    arrays = [array for rows in found.state.factors for array in (rows.mean, rows.cov)]
    arrays += [found.state.lam.rate, found.state.tau.rate]
    arrays += [] if local is None else [local.mean, local.var, local.gamma.rate]
    return [array.tobytes() for array in arrays]


def assert_same_run(found, wanted, rtol=1e-10):
    """Equal to rounding, which sixty sweeps amplify a thousandfold at most; the rest is room for other machines."""
    assert found.state.rank > 0  # otherwise there is nothing to compare
    assert found.stop_reason is wanted.stop_reason
    assert [(record.rank, record.event) for record in found.trace] == [
        (record.rank, record.event) for record in wanted.trace
    ]
    np.testing.assert_allclose(bounds(found), bounds(wanted), rtol=rtol)
    for ours, theirs in zip(means(found), means(wanted), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol * np.abs(theirs).max())


@pytest.mark.parametrize("init", ["spectral", "random"])
@pytest.mark.parametrize("robust", [True, False])
@pytest.mark.parametrize("layout", oracle.LAYOUTS)
@pytest.mark.parametrize("order", [2, 3, 4])
def test_bound_never_falls_while_the_rank_is_constant(order, layout, robust, init):
    data = problem(order, complete=layout == "complete")
    found = fit(data.observations(layout), robust=robust, init=init, max_sweeps=80, tol=0.0)
    assert len(found.trace) == 80
    assert np.isfinite(bounds(found)).all()
    for before, after in zip(found.trace, found.trace[1:], strict=False):
        if before.event.kind is Kind.SWEEP:
            # Terms of the size of the entries' count cancel in the bound: 1e-16 of each, with room.
            assert after.bound >= before.bound - 1e-10 * max(abs(before.bound), data.mask.sum())


class TestAccidentsOfTheInput:
    @pytest.mark.parametrize("init", ["spectral", "random"])
    @pytest.mark.parametrize("layout", oracle.LAYOUTS)
    def test_same_seed_same_bytes(self, layout, init):
        data = problem(complete=layout == "complete")
        first, second = (fit(data.observations(layout), init=init, max_sweeps=30) for _ in range(2))
        assert first.trace == second.trace
        assert bytes_of(first) == bytes_of(second)

    def test_another_seed_another_random_start(self):
        observations = problem().observations("masked")
        first, second = (fit(observations, init="random", max_sweeps=1, seed=seed) for seed in (0, 1))
        assert bounds(first) != bounds(second)

    @pytest.mark.parametrize("layout", oracle.LAYOUTS)
    @pytest.mark.parametrize("factor", [1e-100, 1e-3, 1e100])
    def test_scale(self, factor, layout):
        """Values scaled and divided by their scale differ by rounding."""
        data = problem(complete=layout == "complete")
        scaled = oracle.Problem(factor * data.tensor, data.mask)
        found, wanted = fit(scaled.observations(layout)), fit(data.observations(layout))
        assert_same_run(found, wanted)

    def test_scale_by_a_power_of_two_changes_no_bit(self):
        data = problem()
        scaled = oracle.Problem(2.0**-300 * data.tensor, data.mask)
        found, wanted = fit(scaled.observations("masked")), fit(data.observations("masked"))
        assert bytes_of(found) == bytes_of(wanted)
        assert found.trace == wanted.trace

    def test_a_mask_that_is_true_everywhere_is_no_mask(self):
        data = problem(complete=True)
        plain, masked = observe(data.tensor), observe(data.tensor, mask=data.mask)
        assert bytes_of(fit(plain)) == bytes_of(fit(masked))

    @pytest.mark.parametrize("robust", [True, False])
    def test_complete_shortcut_is_the_masked_run(self, robust):
        """The same mathematics by other sums."""
        data = problem(complete=True)
        found, wanted = (fit(data.observations(layout), robust=robust) for layout in ("complete", "masked"))
        assert_same_run(found, wanted)

    @pytest.mark.parametrize("order", [2, 3, 4])
    def test_layout(self, order):
        data = problem(order)
        found, wanted = (fit(data.observations(layout)) for layout in ("coordinates", "masked"))
        assert_same_run(found, wanted)

    @pytest.mark.parametrize("layout", oracle.LAYOUTS)
    def test_blocks(self, layout):
        data = problem(complete=layout == "complete")
        observations = data.observations(layout)
        pieces = replace(observations, plan=Plan(block_entries=12))
        assert len(pieces.block_list) > 1
        assert_same_run(fit(pieces), fit(observations))

    def test_single_precision_is_swept_in_double(self):
        data = problem(complete=True)
        single = data.tensor.astype(np.float32)
        found, wanted = fit(observe(single)), fit(observe(single.astype(np.float64)))
        assert found.state.factors[0].mean.dtype == np.float64
        # The scale of single data is itself found in single precision, 6e-8.
        assert_same_run(found, wanted, rtol=1e-6)


class TestStops:
    def test_converged(self):
        found = fit(problem().observations("masked"), tol=1e-3)
        assert found.stop_reason is StopReason.CONVERGED
        assert found.stop_reason.converged
        assert abs(found.trace[-1].bound - found.trace[-2].bound) < 1e-3 * problem().mask.sum()

    def test_max_sweeps(self):
        found = fit(problem().observations("masked"), max_sweeps=3, tol=0.0)
        assert found.stop_reason is StopReason.MAX_SWEEPS
        assert not found.stop_reason.converged
        assert [record.sweep for record in found.trace] == [1, 2, 3]

    @pytest.mark.parametrize("layout", oracle.LAYOUTS)
    @pytest.mark.parametrize("kind", ["zero", "noise"])
    @pytest.mark.parametrize("robust", [True, False])
    def test_rank_zero(self, layout, kind, robust):
        """A tolerance of a hundredth of a nat: noise and outliers go on sharing what is left, ever more slowly."""
        mask = np.random.default_rng(0).random((9, 8, 7)) < 0.7
        tensor = np.random.default_rng(1).standard_normal(mask.shape) * (kind == "noise")
        data = oracle.Problem(tensor, mask | (layout == "complete"))
        found = fit(data.observations(layout), robust=robust, tol=1e-2)
        assert found.stop_reason is StopReason.RANK_ZERO
        assert found.stop_reason.converged
        assert found.state.rank == 0
        assert np.isfinite(bounds(found)).all()
        np.testing.assert_array_equal(low_rank(data.observations(layout), found), 0.0)

    def test_not_finite_keeps_the_last_finite_state(self, monkeypatch):
        observations = problem().observations("masked")
        before = fit(observations, max_sweeps=2)
        terms, n_calls = paper.bound_terms, 0

        def broken(*arguments):
            nonlocal n_calls
            n_calls += 1
            found = terms(*arguments)
            return replace(found, noise=np.nan) if n_calls == 3 else found

        monkeypatch.setattr(paper, "bound_terms", broken)
        found = fit(observations)
        assert found.stop_reason is StopReason.NOT_FINITE
        assert not found.stop_reason.converged
        assert len(found.trace) == 3
        assert bytes_of(found) == bytes_of(before)

    @pytest.mark.parametrize(
        ("steps", "reason"),
        [
            ([(1.0, 3, "")], None),
            ([(1.0, 3, ""), (1.11, 3, "")], None),
            ([(1.0, 3, ""), (1.09, 3, "")], StopReason.CONVERGED),
            ([(-1.0, 3, ""), (1e-9, 3, "")], None),
            ([(1.0, 3, ""), (1.0, 3, "")], StopReason.CONVERGED),
            ([(1.0, 0, ""), (1.0, 0, "")], StopReason.RANK_ZERO),
            ([(1.0, 3, ""), (1.0, 2, "pruned 1")], None),
            ([(1.0, 2, "pruned 1"), (1.0, 2, "")], None),
            ([(1.0, 3, ""), (np.nan, 3, "")], StopReason.NOT_FINITE),
            ([(1.0, 3, ""), (-np.inf, 3, "")], StopReason.NOT_FINITE),
            ([(float(n), 3, "") for n in range(5)], StopReason.MAX_SWEEPS),
        ],
    )
    def test_stop_is_read_off_the_trace(self, steps, reason):
        """A tolerance of 0.001 nats at each of 100 entries: changes of a tenth of a nat or more go on."""
        trace = [
            Record(n + 1, bound, rank, 1.0, Event(Kind.PRUNE if event else Kind.SWEEP, words=event))
            for n, (bound, rank, event) in enumerate(steps)
        ]
        settings = Settings(inference="paper", tol=1e-3, max_sweeps=5)
        assert stop_reason(trace, settings, n_observed=100) is reason

    def test_watch_sees_every_moment(self):
        seen = []
        settings = Settings(inference="paper", max_rank=2, max_sweeps=4, tol=0.0)
        found = run(problem().observations("masked"), settings, np.random.default_rng(0), seen.append)
        assert seen[0].latest is None
        assert tuple(moment.latest for moment in seen[1:]) == found.trace == seen[-1].trace


def test_trace_tells_of_rank_and_noise():
    data = problem()
    found = fit(data.observations("masked"), max_rank=6)
    assert found.trace[-1].rank == found.state.rank
    assert found.trace[-1].noise_variance == pytest.approx(1.0 / float(found.state.tau.mean), rel=1e-14)
    ranks = [6] + [record.rank for record in found.trace]
    for record, before, after in zip(found.trace, ranks, ranks[1:], strict=False):
        assert str(record.event) == ("" if after == before else f"pruned {before - after}")


def test_without_outliers_the_state_has_none():
    found = fit(problem().observations("masked"), robust=False, max_sweeps=5)
    assert isinstance(found.state.local, NoOutliers)


class TestStarts:
    @pytest.mark.parametrize("scale", [1.0, 1e6])
    def test_given_factors_are_kept_where_they_fit(self, scale):
        data = synthetic((12, 10, 8), 2, noise=1e-4, missing=0.2, seed=3)
        share = scale ** (1 / 3)
        found = fit(observe(scale * data.observed), init=[share * factor for factor in data.factors])
        assert found.state.rank == 2
        for mean, factor in zip(means(found), data.factors, strict=True):
            cosines = np.sum(mean * factor, axis=0) / (np.linalg.norm(mean, axis=0) * np.linalg.norm(factor, axis=0))
            # In place, sign included; what is left is the noise of standard deviation 0.01.
            assert np.all(cosines > 0.999)

    def test_given_factors_are_not_modified(self):
        data = synthetic((12, 10, 8), 2, seed=3)
        copies = [factor.copy() for factor in data.factors]
        fit(observe(data.observed), init=data.factors, max_sweeps=2)
        for factor, copy in zip(data.factors, copies, strict=True):
            np.testing.assert_array_equal(factor, copy)

    @pytest.mark.parametrize(
        ("shapes", "message"),
        [
            ([(10, 2), (9, 2)], "one factor matrix per mode"),
            ([(10, 2), (9, 3), (8, 2)], r"init\[1\] must have shape \(9, 2\)"),
            ([(10, 0), (9, 0), (8, 0)], r"init\[0\].*at least one column"),
        ],
    )
    def test_factors_that_do_not_fit_are_refused(self, shapes, message):
        with pytest.raises(ValueError, match=message):
            fit(problem().observations("masked"), init=[np.ones(shape) for shape in shapes])

    def test_factors_that_are_not_finite_are_refused(self):
        init = [np.ones((10, 2)), np.ones((9, 2)), np.full((8, 2), np.nan)]
        with pytest.raises(ValueError, match=r"init\[2\].*not finite"):
            fit(problem().observations("masked"), init=init)

    @pytest.mark.parametrize("layout", oracle.LAYOUTS)
    def test_rank_may_exceed_every_mode(self, layout):
        data = problem(complete=layout == "complete")
        found = fit(data.observations(layout), max_rank=12, max_sweeps=20)
        assert np.isfinite(bounds(found)).all()


class TestRecovery:
    """The paper's tensor; thresholds leave a third or more above the worst of the seeds."""

    @pytest.mark.parametrize(("seed", "magnitude"), [(seed, "10std" if seed % 2 else "max") for seed in range(10)])
    def test_complete(self, seed, magnitude):
        data = paper_synthetic(outliers=0.1, magnitude=magnitude, seed=seed)
        observations = observe(data.observed)
        found = fit(observations, max_rank=30, max_sweeps=500)
        assert found.state.rank == 3
        assert rrse(low_rank(observations, found), data.low_rank) <= 0.02

    @pytest.mark.parametrize("seed", range(10))
    def test_half_missing(self, seed):
        data = paper_synthetic(outliers=0.1, magnitude="max", missing=0.5, seed=seed)
        observations = observe(data.observed)
        found = fit(observations, max_rank=10, max_sweeps=500)
        assert found.state.rank == 3
        assert rrse(low_rank(observations, found), data.low_rank) <= 0.03
