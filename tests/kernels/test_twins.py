"""The compiled kernels equal their plain NumPy twins: every function, layout, order, density and rank."""

import numpy as np
import pytest

from brtf import kernels
from brtf.data.observations import Observations
from brtf.data.observe import observe
from brtf.kernels import compiled, entries, reference
from brtf.kernels.arguments import N_BINS, PassSums, SlicePositions, SliceWeights
from brtf.kernels.compiled.contractions import WIDE
from brtf.model.distributions import RowGaussians
from brtf.model.evidence_table import tabulate
from brtf.model.local_models import FlatSlab, GaussianSlab

# Sums of up to some hundred products of numbers near 1, in another order.
ROUNDING = {"rtol": 1e-11, "atol": 1e-12}
SHAPES = {2: (23, 19), 3: (11, 9, 13), 4: (7, 5, 6, 4)}
# Entry by entry, and as a dense product with zeros; nearly empty blocks have fibres without entries.
DENSITIES = (0.04, 0.3, 0.8)


def make_observations(order, layout, density=1.0):
    rng = np.random.default_rng(order)
    data = rng.standard_normal(SHAPES[order])
    mask = rng.random(data.shape) < density
    if layout == "complete":
        return observe(data)
    if layout == "masked":
        return observe(data, mask)
    return Observations.from_coords(np.nonzero(mask), data[mask], data.shape)


def random_rows(shape, rank, *, shared=False):
    rng = np.random.default_rng(rank)
    rows = []
    for length in shape:
        half = rng.standard_normal((1 if shared else length, rank, rank))
        rows.append(RowGaussians(rng.standard_normal((length, rank)), half @ half.transpose(0, 2, 1)))
    return rows


CASES = [
    ("complete", 1.0),
    *(("masked", density) for density in DENSITIES),
    *(("coordinates", density) for density in DENSITIES),
]


@pytest.mark.parametrize("rank", [0, 1, 3, 8])
@pytest.mark.parametrize("order", SHAPES)
@pytest.mark.parametrize(("layout", "density"), CASES)
class TestContractions:
    def pairs(self, order, layout, density, of_block):
        """What both twins say of every block: two to a tensor, so that rows are not those of the whole."""
        observations = make_observations(order, layout, density)
        for block in observations.blocks(max(1, observations.n_entries // 2)):
            yield of_block(compiled, block), of_block(reference, block)

    def test_low_rank_at(self, order, layout, density, rank):
        means = [rows.mean for rows in random_rows(SHAPES[order], rank)]
        for found, wanted in self.pairs(order, layout, density, lambda twin, block: twin.low_rank_at(block, means)):
            np.testing.assert_allclose(found, wanted, **ROUNDING)

    def test_low_rank_at_of_many_columns(self, order, layout, density, rank):
        matrices = [np.random.default_rng(rank).standard_normal((length, WIDE + rank)) for length in SHAPES[order]]
        for found, wanted in self.pairs(order, layout, density, lambda twin, block: twin.low_rank_at(block, matrices)):
            np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-11)

    @pytest.mark.parametrize("shared", [False, True])
    def test_variance_at(self, order, layout, density, rank, shared):
        factors = random_rows(SHAPES[order], rank, shared=shared)
        packed = ("outer_packed", "second_moment_packed", "cov_packed")
        matrices = [[getattr(rows, name) for rows in factors] for name in packed]
        for found, wanted in self.pairs(order, layout, density, lambda twin, block: twin.variance_at(block, *matrices)):
            np.testing.assert_allclose(found, wanted, **ROUNDING)

    def test_positions(self, order, layout, density, rank):
        modes = tuple(np.random.default_rng(rank).permutation(order)[: max(1, order - 1 - rank % 2)].tolist())
        for found, wanted in self.pairs(order, layout, density, lambda twin, block: twin.positions(block, modes)):
            np.testing.assert_array_equal(found, wanted)

    def test_contract(self, order, layout, density, rank):
        moments = [rows.second_moment_packed for rows in random_rows(SHAPES[order], rank)]

        def summed(twin, block, mode):
            weights = np.random.default_rng(block.entries.start).uniform(size=block.values.size)
            n_rows = block.n_rows if mode == 0 else SHAPES[order][mode]
            out = np.ones((n_rows, moments[mode].shape[1]))  # what is there already stays
            twin.contract(block, weights, moments, mode, out)
            return out

        for mode in range(order):
            both = self.pairs(order, layout, density, lambda twin, block, mode=mode: summed(twin, block, mode))
            for found, wanted in both:
                np.testing.assert_allclose(found, wanted, **ROUNDING)

    def test_contract_one(self, order, layout, density, rank):
        if layout == "coordinates":
            pytest.skip("dense layouts only")
        means = [rows.mean for rows in random_rows(SHAPES[order], rank)]

        def summed(twin, block, mode):
            weights = np.random.default_rng(block.entries.start).uniform(size=block.values.size)
            lengths = [block.n_rows, *block.shape[1:]]
            del lengths[mode]
            out = np.ones((*lengths, rank))
            twin.contract_one(block, weights, means[mode], mode, out)
            return out

        for mode in range(order):
            both = self.pairs(order, layout, density, lambda twin, block, mode=mode: summed(twin, block, mode))
            for found, wanted in both:
                np.testing.assert_allclose(found, wanted, **ROUNDING)


@pytest.mark.parametrize("n_columns", [*range(1, 10), 15, 16, 17, 31, 32, 33, 47, 49, 64, 70])
@pytest.mark.parametrize(
    ("shape", "density"),
    [((4, 3, 150), 0.2), ((4, 70, 9), 0.3), ((60, 2, 7), 0.5), ((2, 130), 0.3), ((3, 2, 2, 40), 0.6)],
)
def test_sums_of_any_width(shape, density, n_columns):
    """Columns are summed some at a time, the last of them overlapping; lists of a block serve all its contractions."""
    rng = np.random.default_rng(n_columns)
    (block,) = observe(rng.standard_normal(shape), rng.random(shape) < density).blocks(10**6)
    matrices = [rng.standard_normal((length, n_columns)) for length in shape]
    both = compiled.listed(block), reference.listed(block)
    for mode in (*range(len(shape)), 0):
        weights = rng.uniform(size=block.n_entries)
        lengths = [length for k, length in enumerate(shape) if k != mode]
        outs = [(np.ones((shape[mode], n_columns)), np.ones((*lengths, n_columns))) for _ in both]
        for twin, own, (out, partial) in zip((compiled, reference), both, outs, strict=True):
            twin.contract(own, weights, matrices, mode, out)
            twin.contract_one(own, weights, matrices[mode], mode, partial)
        for found, wanted in zip(*outs, strict=True):
            np.testing.assert_allclose(found, wanted, **ROUNDING)


@pytest.mark.parametrize(("n_rows", "kept"), [(2000, True), (4000, False)])
def test_blocks_of_small_data_list_their_entries_once(n_rows, kept):
    """Also where there are several blocks; those of large data would take memory."""
    rng = np.random.default_rng(0)
    shape = n_rows, 80
    blocks = observe(rng.standard_normal(shape), rng.random(shape) < 0.7).block_list
    assert len(blocks) > 1
    for block in blocks:
        assert (compiled.positions(block, (0,)) is compiled.positions(block, (0,))) is kept
        assert (compiled.listed(block) is compiled.listed(block)) is kept


RHO = np.concatenate([[0.0, 1e-300, 1e-5, 1e25, 1e300], np.geomspace(1e-6, 1e22, 1000)])


@pytest.mark.parametrize(
    "model", [GaussianSlab(0.1, 5.0, 100.0), FlatSlab(0.2, 50.0, 1e4)], ids=lambda model: type(model).__name__
)
def test_evidence(model):
    for found, wanted in zip(*(twin.evidence(tabulate(model), RHO) for twin in (compiled, reference)), strict=True):
        np.testing.assert_allclose(found, wanted, **ROUNDING)


def test_count_deviations():
    sums = []
    for twin in (compiled, reference):
        counts, totals = np.zeros(N_BINS), np.zeros(N_BINS)
        twin.count_deviations(RHO, counts, totals)
        sums.append((counts, totals))
    for found, wanted in zip(*sums, strict=True):
        np.testing.assert_allclose(found, wanted, **ROUNDING)


@pytest.mark.parametrize("rank", [1, 5, 49])
@pytest.mark.parametrize("n_matrices", [1, 6])
def test_solve_rows(rank, n_matrices):
    rng = np.random.default_rng(rank)
    half = rng.standard_normal((n_matrices, rank, rank))
    precision, linear = half @ half.transpose(0, 2, 1) + np.eye(rank), rng.standard_normal((6, rank))
    for found, wanted in zip(*(twin.solve_rows(precision, linear) for twin in (compiled, reference)), strict=True):
        # Inverses of matrices whose condition is up to 1e4.
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-10)


def test_the_environment_chooses_among_these():
    assert kernels.twin("numba") is compiled
    assert kernels.twin("numpy") is reference
    with pytest.raises(ValueError, match="BRTF_KERNELS must be one of numba, numpy, got 'c'"):
        kernels.twin("c")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("spread", [False, True], ids=["form 1", "form 2"])
@pytest.mark.parametrize("slices", [False, True], ids=["common noise", "slices"])
def test_local_posteriors_are_their_parts(dtype, spread, slices):
    """In one pass what histogram, look-up and sums say; pieces of 512 entries and what is left over."""
    rng = np.random.default_rng(0)
    n_entries, tau, table = 3 * entries.PIECE + 7, 30.0, tabulate(GaussianSlab(0.1, 5.0, 100.0))
    residual = (rng.standard_normal(n_entries) * np.geomspace(1e-3, 1e3, n_entries)).astype(dtype)
    variance = rng.uniform(0.0, 0.1, n_entries) if spread else None
    at = rng.integers(0, 50, n_entries)
    noise = SliceWeights(rng.uniform(0.5, 2.0, 50).astype(dtype), SlicePositions.of_entries(at)) if slices else None
    answers = []
    for twin in (compiled, reference):
        sums = PassSums(*(np.zeros(n) for n in (N_BINS, N_BINS, 50 * slices, 0)), ())
        found = twin.local_posteriors(table, tau, residual, residual, variance, noise, sums)
        assert found.weight.dtype == dtype
        answers.append((found.log_evidence, found.weight_sum, found.largest, found.weight, *sums[:3]))
    deviation = residual.astype(float) ** 2 + (0.0 if variance is None else variance)
    deviation = deviation if noise is None else deviation * noise.relative[at]
    log_evidence, weight = reference.evidence(table, tau * deviation)
    digits = {"rtol": 1e-11} if dtype == np.float64 else {"rtol": 1e-6}
    for sums in answers:
        np.testing.assert_allclose(sums[0], log_evidence.sum(), **digits)
        np.testing.assert_allclose(sums[1], weight.sum(), **digits)
        np.testing.assert_allclose(sums[3], weight, **digits)
        if slices:
            np.testing.assert_allclose(sums[6], np.bincount(at, tau * deviation * weight), rtol=1e-5)
    for found, wanted in zip(*answers, strict=True):
        # Single precision rounds variances before they are added; an entry at the edge of a bin may change sides.
        if np.size(found) != N_BINS or dtype == np.float64:
            np.testing.assert_allclose(found, wanted, **digits)
    assert answers[0][4].sum() == n_entries


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_completed(dtype):
    rng = np.random.default_rng(0)
    values, residual, weight = rng.standard_normal((3, 1000)).astype(dtype)
    found, wanted = (twin.completed(values, residual, weight, 1.2) for twin in (compiled, reference))
    assert found.dtype == wanted.dtype == dtype
    np.testing.assert_allclose(found, wanted, rtol=0, atol=20 * np.finfo(dtype).eps)
