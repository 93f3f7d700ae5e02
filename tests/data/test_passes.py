"""Passes over the data: neither threads, nor memory, nor blocks change what comes out, and fits do not meet."""

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, replace
from functools import cache
from threading import Barrier, Event, Thread

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import oracle
from brtf import BRTF, kernels
from brtf.data import blas
from brtf.data.arrangement import Arrangement
from brtf.data.observations import Observations
from brtf.data.observe import observe
from brtf.data.passes import LANES, Remembered, add_up, count_workers, whole, workers
from brtf.data.plan import Plan
from brtf.datasets import synthetic
from brtf.inference.entry_posterior import grouped, initial_law
from brtf.inference.point import evaluate
from brtf.inference.problem import Problem
from brtf.inference.sweep import sweep
from brtf.model.links import IDENTITY
from brtf.model.local_models import StudentSlab
from brtf.model.settings import Settings
from brtf.model.state import OutlierStructure
from brtf.results.result import Result
from brtf.search.run import run

DATA = synthetic((9, 5, 4), 1, outliers=0.1, missing=0.2, seed=0)
SETTINGS = Settings(1, init="random", max_sweeps=40)
"""A start, and the search for as long as there are sweeps."""
OPTIONS = {
    "plain": {},
    "replaced": {"noise": "per-slice", "outlier_kind": "replacement"},
    "shared": {"outlier_modes": (2,)},
    "rates of labels": {"outlier_labels": np.random.default_rng(0).integers(0, 3, (9, 1, 4))},
}


def in_blocks(observations, n_entries=4, **sizes):
    """Many blocks, also of small data: of one row, or of a few coordinates."""
    return replace(observations, plan=Plan(block_entries=n_entries, **sizes))


def data_of(layout):
    if layout == "complete":
        return in_blocks(observe(DATA.low_rank + DATA.outliers + DATA.noise))
    observations = in_blocks(observe(DATA.observed))
    if layout == "masked":
        return observations
    return in_blocks(Observations.from_coords(observations.entry_coords(), observations.values, observations.shape), 16)


def fitted(layout, kind="plain", n_jobs=None):
    return run(data_of(layout), replace(SETTINGS, n_jobs=n_jobs, **OPTIONS[kind]), np.random.default_rng(0))


@cache
def fitted_alone(layout, kind="plain"):
    """By one thread."""
    return fitted(layout, kind)


def numbers_of(state):
    """Every number of a state, in order."""
    parts = [array for rows in state.factors for array in (rows.mean, rows.cov)]
    parts += [array for gamma in (state.lam, state.tau) for array in (gamma.concentration, gamma.rate)]
    parts += [np.array(astuple(state.local))]
    if state.slices is not None:
        parts += [state.slices.precision.concentration, state.slices.precision.rate, state.slices.concentration]
    if state.structure is not None:
        parts += [state.structure.n_channels] + ([] if state.structure.law is None else [state.structure.law.density])
    return np.concatenate([np.ravel(part) for part in parts])


def assert_same(found, wanted):
    """To the last bit, every sweep of the way."""
    assert [record.bound for record in found.trace] == [record.bound for record in wanted.trace]
    np.testing.assert_array_equal(numbers_of(found.state), numbers_of(wanted.state))


# ---- threads -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "kind", "numbers"),
    [
        ("masked", "plain", (1, 2, 3, -1)),
        ("complete", "plain", (2,)),
        ("coordinates", "plain", (2,)),
        ("masked", "replaced", (3,)),
        ("masked", "shared", (3,)),
    ],
)
def test_threads_do_not_change_a_digit(layout, kind, numbers):
    assert len(data_of(layout).block_list) > LANES
    for n_jobs in numbers:
        assert_same(fitted(layout, kind, n_jobs), fitted_alone(layout, kind))


def test_fits_at_once_are_fits_one_after_another():
    """Three fits by three threads, two of them with threads of their own."""
    kinds = [("masked", 2), ("coordinates", 3), ("complete", None)]
    together = Barrier(len(kinds))

    def fit(kind):
        together.wait()
        return fitted(kind[0], n_jobs=kind[1])

    with ThreadPoolExecutor(len(kinds)) as pool:
        found = list(pool.map(fit, kinds))
    for (layout, _), one in zip(kinds, found, strict=True):
        assert_same(one, fitted_alone(layout))


def blas_threads():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.fixture
def two_blas_threads():
    """BLAS on two threads, set by a thread that has ended: one alive would be the only one allowed to set limits."""
    limits = []
    blas._run_apart(lambda: limits.append(threadpool_limits(limits=2, user_api="blas")))
    if blas_threads() != {2}:
        pytest.skip("this BLAS has no threads to limit")
    yield
    blas._run_apart(limits[0].restore_original_limits)


def test_blas_is_held_until_the_last_of_several_fits_has_ended(two_blas_threads):
    first_in, second_in, first_out = Event(), Event(), Event()
    during = []

    def first():
        with workers(None):
            first_in.set()
            second_in.wait()
        first_out.set()

    def second():
        first_in.wait()
        with workers(2):
            second_in.set()
            first_out.wait()
            during.append(blas_threads())

    threads = [Thread(target=first), Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert during == [{1}]
    assert blas_threads() == {2}


def test_blas_is_given_back_after_an_error(two_blas_threads):
    with pytest.raises(RuntimeError, match="wrong"), workers(2):
        assert blas_threads() == {1}
        raise RuntimeError("wrong")
    assert blas_threads() == {2}


def test_the_number_of_workers():
    n_cores = os.cpu_count()
    assert count_workers(None) == 1
    assert [count_workers(n) for n in (1, 2, LANES, LANES + 1, 1000)] == [1, 2, LANES, LANES, LANES]
    assert count_workers(-1) == min(n_cores, LANES)
    assert count_workers(-n_cores - 5) == 1


@pytest.mark.parametrize("n_jobs", [0, 1.5, True, "2"])
def test_a_wrong_number_of_workers_is_refused(n_jobs):
    with pytest.raises(ValueError, match="n_jobs must be None or an integer other than 0"):
        BRTF(n_jobs=n_jobs).fit(np.eye(3))


# ---- sums over blocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_jobs", [None, 3])
@pytest.mark.parametrize("n_rows", [1, 3, LANES, 2 * LANES + 3])
def test_every_block_is_added_once(n_rows, n_jobs):
    observations = in_blocks(observe(np.arange(1.0, 8 * n_rows + 1).reshape(n_rows, 8)), 1)
    assert len(observations.block_list) == n_rows

    def add(sums, block):
        sums[0][block.entries] += block.values
        sums[1][...] += block.values.sum()

    with workers(n_jobs):
        entries, total = add_up(observations, lambda: (np.zeros(observations.n_observed), np.zeros(())), add)
    np.testing.assert_array_equal(entries, observations.values.ravel())
    assert total == observations.values.sum()


def test_an_error_in_a_block_is_raised():
    def add(sums, block):
        raise ZeroDivisionError(str(block.rows))

    for n_jobs in (None, 2):
        with pytest.raises(ZeroDivisionError), workers(n_jobs):
            add_up(data_of("masked"), lambda: (np.zeros(1),), add)


def test_a_block_is_computed_once_of_small_data_only():
    n_observed = data_of("masked").n_observed
    for largest, n_calls in ((n_observed, 1), (n_observed - 1, 2)):
        observations = in_blocks(data_of("masked"), cached_data=largest)
        calls = []
        field = Remembered(observations, lambda block, calls=calls: calls.append(block) or block.values)
        for _ in range(2):
            np.testing.assert_array_equal(whole(observations, field), observations.values)
        assert len(calls) == n_calls * len(observations.block_list)


def test_a_block_without_entries_is_not_taken_for_the_next():
    """Both start at the same entry."""
    data = np.arange(12.0).reshape(4, 3)
    data[[0, 2]] = np.nan
    observations = in_blocks(observe(data), 1)
    assert [block.values.size for block in observations.block_list] == [0, 3, 0, 3]
    field = Remembered(observations, lambda block: block.values)
    for _ in range(2):
        assert [field(block).size for block in observations.block_list] == [0, 3, 0, 3]


# ---- memory and blocks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layout", "kind"), [("masked", "replaced"), ("complete", "plain"), ("coordinates", "plain")])
def test_computing_again_gives_what_was_remembered(layout, kind, monkeypatch):
    remembering = fitted_alone(layout, kind)
    monkeypatch.setattr(Remembered, "__call__", lambda self, block: self._of_block(block))
    assert_same(fitted(layout, kind), remembering)


def structured_state(state, observations):
    values = observations.values / observations.scale
    return replace(state, structure=OutlierStructure(law=initial_law(float(values.min()), float(values.max()))))


@pytest.mark.parametrize("structured", [False, True])
@pytest.mark.parametrize("collapsed", [False, True], ids=["form 1", "form 2"])
@pytest.mark.parametrize("layout", oracle.LAYOUTS)
def test_small_blocks_are_one_block(layout, collapsed, structured):
    """Some of them without entries; sums in another order, after four sweeps, agree to some thousand roundings."""
    case = oracle.slab_case(1, 3, layout, StudentSlab)
    state = structured_state(case.state, case.observations) if structured else case.state

    def swept(observations):
        problem = Problem(observations, (0, 1, 2), collapsed)
        point = evaluate(problem, state)
        for _ in range(4):
            point = sweep(problem, point, hold_noise=True)
        return point, len(problem.observations.block_list)

    whole_point, n_blocks = swept(case.observations)
    assert n_blocks == 1
    point, n_blocks = swept(in_blocks(case.observations, 1))
    assert n_blocks > 1
    assert point.bound == pytest.approx(whole_point.bound, rel=1e-11)
    np.testing.assert_allclose(numbers_of(point.state), numbers_of(whole_point.state), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("layout", ["masked", "coordinates"])
def test_outliers_that_hang_together_stay_in_one_block(layout):
    observations = data_of(layout)
    for modes in ((0,), (2,), (1, 2)):
        blocks = grouped(observations, modes).block_list
        parted = 0 in modes or layout == "coordinates"
        assert (len(blocks) == 1) == parted
        assert sum(block.values.size for block in blocks) == observations.n_observed
    assert len(observations.block_list) > LANES


def test_what_a_block_remembers_is_not_handed_to_another():
    """A block of other rows has other positions, and a worker need not be sent lists that it can make."""
    (block,) = observe(DATA.observed).in_one_block().block_list
    shifted = slice(1, block.shape[0] + 1)
    positions = kernels.positions(block, (0,))
    kernels.listed(block)
    np.testing.assert_array_equal(kernels.positions(replace(block, rows=shifted), (0,)), positions + 1)
    assert kernels.listed(replace(block, rows=shifted)).rows == shifted
    assert not pickle.loads(pickle.dumps(block)).cache


def test_a_problem_with_other_data_counts_anew():
    problem = Problem(observe(DATA.observed), (0, 1, 2), False)
    counts = problem.n_entries_along((1,))
    assert problem.n_entries_along((1,)) is counts
    fewer = DATA.observed.copy()
    fewer[0] = np.nan
    other = replace(problem, observations=observe(fewer))
    np.testing.assert_array_equal(other.n_entries_along((1,)), np.isfinite(fewer).sum(axis=(0, 2)))
    assert len(other.chains_along(2).order) < len(problem.chains_along(2).order)


def test_local_posteriors_of_blocks_without_entries():
    """Also of the Student slab, which tabulates up to the largest deviation there is."""
    data = DATA.observed.copy()
    data[3] = np.nan
    observations = in_blocks(observe(data))
    found = run(observations, SETTINGS, np.random.default_rng(0))
    state = replace(found.state, local=StudentSlab(0.1, 1.0, 100.0))
    result = Result(
        observations,
        state,
        found.trace,
        found.stop_reason,
        SETTINGS,
        0.0,
        "",
        IDENTITY,
        Arrangement.as_given(observations.order),
    )
    probability = result.outlier_probability_at_entries()
    assert probability.shape == (observations.n_observed,)
    assert np.all((probability >= 0) & (probability <= 1))
