"""The pass over complete data that solves rows on the spot equals looking entry by entry, for every kind of noise."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit

import oracle
from brtf.data.blocks import block_positions, row_and_column_positions
from brtf.data.observations import Observations
from brtf.data.observe import observe
from brtf.data.plan import Plan
from brtf.inference.entry_posterior import EntryLaw, initial_law, initial_rates, zero_sums
from brtf.inference.factor_update import update_all_factors
from brtf.inference.learn_noise import slice_noise
from brtf.inference.point import evaluate
from brtf.inference.problem import Problem
from brtf.inference.update_rows import Spectrum
from brtf.kernels import compiled, entries, mixtures, reference
from brtf.kernels.arguments import N_BINS, PassSums, StructureSums
from brtf.kernels.packed import pack_symmetric, unpack_symmetric
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.local_models import FlatSlab, GaussianSlab
from brtf.model.row_priors import Centred
from brtf.model.state import OutlierStructure, Prior, Sides, State

SHAPE = (37, 4, 11)
RANK = 3

# Single precision has 24 bits; residuals and sums of a thousand entries lose some of them.
DIGITS = {np.float64: 1e-9, np.float32: 2e-4}
MODES = [(), (0,), (1,), (2,), (0, 1), (2, 0), (0, 1, 2)]
STRUCTURES = {
    "none": lambda _: None,
    "rates of rows": lambda n: OutlierStructure(rates=rates((0,), n)),
    "rates of columns": lambda n: OutlierStructure(rates=rates((2, 1), n)),
    "sides": lambda _: OutlierStructure(sides=Sides(30.0, 10.0)),
    "sides and rates": lambda n: OutlierStructure(sides=Sides(3.0, 9.0), rates=rates((0, 2), n)),
    "shared": lambda _: OutlierStructure((1,), 1.7),
    "shared along two modes": lambda _: OutlierStructure((1, 2), 5.0),
    "replaced": lambda _: OutlierStructure(law=law()),
    "replaced and shared": lambda _: OutlierStructure((2,), 2.5, law=law()),
    "replaced, with rates": lambda n: OutlierStructure(law=law(), rates=rates((1,), n)),
}


def rates(modes, shape):
    n_slices = int(np.prod([shape[mode] for mode in modes]))
    found, rng = initial_rates(modes, n_slices, 0.1), np.random.default_rng(4)
    return replace(found, outlying=rng.uniform(1.0, 5.0, n_slices), regular=rng.uniform(5.0, 50.0, n_slices))


def law():
    flat = initial_law(-8.0, 9.0)
    density = np.random.default_rng(5).uniform(0.5, 1.5, flat.density.size)
    return replace(flat, density=flat.density * density / density.mean())


LARGE = Plan(small_data=0, cached_data=0, block_entries=25)
"""Small data are handled as large ones are: in one pass, and in blocks of a few rows."""


def make(dtype, modes, structure, kind, shape=SHAPE):
    """A problem with gross errors, some of which are gigantic, and a state near it with noise of slices."""
    rng = np.random.default_rng(0)
    factors = [rng.standard_normal((length, RANK)) for length in shape]
    data = np.einsum("ir,jr,kr->ijk", *factors) + 0.1 * rng.standard_normal(shape)
    wrong = rng.random(shape) < 0.1
    data[wrong] += rng.normal(scale=5.0, size=wrong.sum())
    data[0, 0, 0] = 1e5
    problem = Problem(replace(observe(data.astype(dtype)), plan=LARGE), (1, 2, 0), collapsed=False)
    scale = problem.observations.scale ** (1 / 3)
    rows = tuple(
        RowGaussians(true / scale + 0.02 * rng.standard_normal(true.shape), 1e-3 * np.eye(RANK)[None])
        for true in factors
    )
    lam = Gamma(np.full(RANK, 5.0), rng.uniform(1.0, 5.0, RANK))
    state = State(Prior(), rows, lam, Gamma(np.asarray(500.0), np.asarray(4.0)), oracle.random_slab(kind, rng))
    if modes:
        state = slice_noise(problem, state, modes)
        rate = state.slices.precision.rate * rng.uniform(0.3, 3.0, state.slices.precision.rate.size)
        state = replace(
            state, slices=replace(state.slices, precision=Gamma(state.slices.precision.concentration, rate))
        )
    state = state.with_factor(0, state.factors[0], Centred.proposed(state.factors[0], lam))
    return problem, replace(state, structure=structure(shape))


def same_points(found, wanted, digits):
    """Everything that a pass finds, but for the edges of bins: histograms are compared by their sums."""
    assert found.bound == pytest.approx(wanted.bound, rel=digits)
    assert found.mean_weight == pytest.approx(wanted.mean_weight, rel=digits)
    for ours, theirs in ((found.slice_squares, wanted.slice_squares), (found.slice_entries, wanted.slice_entries)):
        if theirs is None:
            assert ours is None
        else:
            np.testing.assert_allclose(ours, theirs, rtol=100 * digits)
    assert found.deviations.count.sum() == wanted.deviations.count.sum()
    if wanted.structure_sums is None:
        assert found.structure_sums is None
        return
    for place, (ours, theirs) in enumerate(zip(found.structure_sums, wanted.structure_sums, strict=True)):
        if StructureSums._fields[place] in ("law", "rates", "groups", "sides"):
            np.testing.assert_allclose(ours, theirs, rtol=100 * digits, atol=10 * digits)
        else:
            assert ours.sum() == pytest.approx(
                theirs.sum(), rel=1e-2, abs=1e-9
            )  # D is counted at the middle of a segment


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("modes", MODES, ids=lambda modes: "noise of " + (str(modes) if modes else "all"))
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("kind", [GaussianSlab, FlatSlab])  # the edge of a flat slab has segments of its own
def test_one_pass_finds_what_a_look_entry_by_entry_does(kind, structure, modes, dtype):
    problem, state = make(dtype, modes, STRUCTURES[structure], kind)
    wanted, found = evaluate(problem, state), evaluate(problem, state, ahead=True)
    digits = DIGITS[dtype]
    same_points(found, wanted, digits)
    state = update_all_factors(problem, state, wanted.fit)
    for ours, theirs in zip(found.ahead.factors, state.factors, strict=True):
        np.testing.assert_allclose(ours.mean, theirs.mean, rtol=100 * digits, atol=digits)
        np.testing.assert_allclose(ours.cov_packed, theirs.cov_packed, rtol=100 * digits, atol=digits * 1e-2)
        np.testing.assert_allclose(ours.log_det_cov, theirs.log_det_cov, rtol=digits)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("modes", MODES, ids=lambda modes: "noise of " + (str(modes) if modes else "all"))
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("kind", [GaussianSlab, FlatSlab])
def test_twins_solve_alike(kind, structure, modes, dtype):
    """Rows and all sums, also where each row has a covariance of its own; what is in the sums already stays."""
    problem, state = make(dtype, modes, STRUCTURES[structure], kind)
    (block,) = problem.observations.blocks(10**6)
    rng, tau, digits = np.random.default_rng(3), float(state.tau.mean), DIGITS[dtype]
    local, noise = EntryLaw(state).of_rows(block)
    structured = () if state.structure is None else zero_sums(state.structure)
    n_slices = state.slices.mean.size if modes else 0
    half = rng.standard_normal((1 if not modes else SHAPE[0], RANK, RANK))
    covs, offset = pack_symmetric(half @ half.transpose(0, 2, 1)) / 44.0, rng.standard_normal(RANK)
    left, right = (matrix.astype(dtype) for matrix in (state.factors[0].mean, rng.standard_normal((RANK, 44))))
    answers = []
    for twin in (compiled, reference):
        shapes = [(N_BINS,), (N_BINS,), (n_slices,), (n_slices,)]
        sums = PassSums(
            *(np.ones(shape) for shape in shapes),
            structured and StructureSums(*(np.ones(part.shape) for part in structured)),
            np.ones((44, RANK)),
        )
        scale, largest = problem.observations.scale, state.local.largest_weight
        data = block.values.reshape(SHAPE[0], -1), scale, left, right
        found = twin.solve_completed(*data, local, tau, largest, noise, covs, offset, sums)
        answers.append((found, sums))
    (ours, our_sums), (theirs, their_sums) = answers
    for name in ("log_evidence", "weight_sum", "largest"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=10 * digits)
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=100 * digits, atol=10 * digits)
    np.testing.assert_allclose(our_sums.products, their_sums.products, rtol=100 * digits, atol=1e3 * digits)
    np.testing.assert_allclose(our_sums.squares, their_sums.squares, rtol=100 * digits)
    np.testing.assert_allclose(our_sums.replaced, their_sums.replaced, rtol=100 * digits)
    unbinned = ("law", "rates", "groups", "sides")  # single precision may put an entry into the next bin
    for name in structured and StructureSums._fields:
        if dtype is np.float64 or name in unbinned:
            own, other = (getattr(sums.structured, name) for sums in (our_sums, their_sums))
            np.testing.assert_allclose(own, other, rtol=100 * digits, atol=10 * digits)
    if dtype is np.float64:
        np.testing.assert_allclose(our_sums.counts, their_sums.counts)
        np.testing.assert_allclose(our_sums.totals, their_sums.totals, rtol=1e-9)


@pytest.mark.parametrize("layout", ["complete", "masked", "coordinates"])
@pytest.mark.parametrize("spread", [False, True], ids=["form 1", "form 2"])
@pytest.mark.parametrize("modes", [(), (0,), (2, 1)], ids=lambda modes: "noise of " + (str(modes) if modes else "all"))
@pytest.mark.parametrize("structure", [name for name in STRUCTURES if name != "none"])
@pytest.mark.parametrize("kind", [GaussianSlab, FlatSlab])
def test_twins_judge_entries_alike(kind, structure, modes, spread, layout):
    """Weights, responsibilities and all sums of entries one by one, in every layout; more of them than in a piece."""
    problem, state = make(np.float64, modes, STRUCTURES[structure], kind, (60, 7, 11))
    rng, data = np.random.default_rng(6), problem.observations.values
    seen = np.ones(data.shape, bool) if layout == "complete" else rng.random(data.shape) < 0.7
    observations = problem.observations if layout == "complete" else observe(data, seen)
    if layout == "coordinates":
        observations = Observations.from_coords(np.nonzero(seen), data[seen], data.shape)
    (block,) = observations.in_one_block().block_list
    assert block.n_entries > entries.PIECE
    law, tau, values = EntryLaw(state), float(state.tau.mean), problem.values(block)
    residual = 0.3 * rng.standard_normal(values.size) + np.where(rng.random(values.size) < 0.1, values, 0.0)
    variance = rng.uniform(0.0, 0.01, values.size) if spread else None
    answers = []
    for twin in (compiled, reference):
        sums = law.zeros()
        local, noise = law.of_entries(block)
        found = twin.local_posteriors(local, tau, values, residual, variance, noise, sums)
        sums_of_all = [*sums[:4], *sums.structured]
        numbers = found.log_evidence, found.weight_sum, found.largest
        answers.append([*numbers, found.rho, found.weight, found.outlier, *sums_of_all])
    for ours, theirs in zip(*answers, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-10)


def test_log_odds_become_shares():
    odds = np.concatenate([[0.0, -0.0, 1e-300, 750.0, -750.0, 1e300, -1e300], np.linspace(-60.0, 60.0, 4001)])
    share, softened = np.empty(odds.size), np.empty(odds.size)
    mixtures.soften(odds, share, softened)
    np.testing.assert_allclose(share, expit(odds), rtol=1e-14, atol=1e-300)
    np.testing.assert_allclose(softened, np.logaddexp(0.0, odds), rtol=1e-14, atol=1e-300)


@pytest.mark.parametrize("modes", [(0,), (2,), (0, 2), (2, 0), (1, 2), (2, 1, 0), ()])
def test_positions_of_rows_and_columns_add_up(modes):
    for block in observe(np.ones(SHAPE)).blocks(200):
        rows, columns = row_and_column_positions(block, modes)
        wanted = block_positions(block, modes) if modes else np.zeros(block.n_entries)
        np.testing.assert_array_equal(np.add.outer(rows, columns).ravel(), wanted)


@pytest.mark.parametrize("strength", [1.0, 1e8, 1e-8])
def test_rows_of_proportional_grams_are_solved_for_together(strength):
    """Inverses and determinants of each, with components of very different strength."""
    rng = np.random.default_rng(2)
    half = rng.standard_normal((30, 4)) * [1.0, 1e3, 1e-3, strength]
    gram, lam = half.T @ half, rng.uniform(0.5, 2.0, 4)
    weights = np.geomspace(1e-4, 1e4, 50)
    packed, log_det = Spectrum.of(gram, np.diag(lam)).covariances(weights)
    precision = weights[:, None, None] * gram + np.diag(lam)
    _, packed_wanted, wanted = reference.solve_rows(precision, np.zeros((50, 4)))
    cov = unpack_symmetric(packed_wanted, 4)
    spread = np.sqrt(np.einsum("irr->ir", cov))
    error = (unpack_symmetric(packed, 4) - cov) / (spread[:, :, None] * spread[:, None, :])
    assert np.abs(error).max() < 1e-9
    np.testing.assert_allclose(log_det, wanted, atol=1e-9)
