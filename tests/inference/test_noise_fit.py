"""Noise and outlier numbers: nothing is lost in the histogram, steps climb to an optimum, truth is found."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from brtf import kernels
from brtf.inference.noise_fit import Histogram, NoisePrior, branch_step, global_step, joint_step
from brtf.kernels.arguments import LOG2_BINS
from brtf.model.evidence_table import tabulate
from brtf.model.local_models import WIDEST_SLAB, FlatSlab, GaussianSlab, StudentSlab
from brtf.model.state import LARGEST_PRECISION

PRIOR = NoisePrior(1e-6, 1e-18)
N_ENTRIES = 20_000
kinds = pytest.mark.parametrize("kind", [StudentSlab, GaussianSlab, FlatSlab])


def deviations(kind, probability, *, variance=0.04, seed=0, n_entries=N_ENTRIES, dof=np.inf):
    """Squares of Gaussian or Student-t noise, a share of it with outliers of the kind's law, twenty times as large."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal(n_entries) if np.isinf(dof) else rng.standard_t(dof, n_entries)
    size = 20.0
    slab = {
        StudentSlab: lambda: rng.standard_t(2.0, n_entries),  # a₀ = 1
        GaussianSlab: lambda: rng.standard_normal(n_entries),
        FlatSlab: lambda: rng.uniform(-np.sqrt(3.0), np.sqrt(3.0), n_entries),
    }[kind]()
    outlier = np.arange(n_entries) < round(probability * n_entries)
    return variance * (noise + np.where(outlier, size * slab, 0.0)) ** 2


def start_of(kind):
    return 5.0, kind(0.3, 3.0 if kind is StudentSlab else 20.0, 100.0)


class TestHistogram:
    @given(logs=st.lists(st.floats(-80.0, 80.0), min_size=1, max_size=200), n_zeros=st.integers(0, 3))
    @settings(max_examples=100, deadline=None)
    def test_counts_and_total_deviation_are_kept(self, logs, n_zeros):
        """To the rounding of sums; an exact fit, D = 0, counts as 1e-32 of the largest deviation."""
        deviation = np.concatenate([np.exp(logs), np.zeros(n_zeros)])
        fine = oracle.histogram(deviation, 0.5)
        for found in (fine, fine.coarsened(1), fine.coarsened(6)):
            assert found.count.sum() == deviation.size
            assert found.count @ found.deviation == pytest.approx(deviation.sum(), rel=1e-12)
            assert np.all(found.count > 0)
            assert np.all(np.diff(found.deviation) >= -1e-15 * found.deviation[:-1])
            assert found.penalty == 0.5

    def test_a_bin_is_no_wider_than_its_step(self):
        deviation = np.sort(deviations(GaussianSlab, 0.1))
        found = oracle.histogram(deviation, 0.0)
        upper = np.cumsum(found.count).astype(int)
        for low, high, mean in zip(np.r_[0, upper[:-1]], upper, found.deviation, strict=True):
            assert np.log(deviation[high - 1] / deviation[low]) <= oracle.BIN_WIDTH * (1 + 1e-9)
            assert deviation[low] * (1 - 1e-12) <= mean <= deviation[high - 1] * (1 + 1e-12)

    def test_it_stands_for_the_entries(self):
        """The sum of ln f over bins is that over entries to second order: here to 2e-4 nats an entry."""
        deviation = deviations(StudentSlab, 0.2)
        found = oracle.histogram(deviation, 0.0)
        for kind in (StudentSlab, GaussianSlab, FlatSlab):
            model = kind(0.2, 3.0, 400.0)
            binned = found.count @ model.posterior(25.0 * found.deviation).log_evidence
            exact = model.posterior(25.0 * deviation).log_evidence.sum()
            assert binned == pytest.approx(exact, abs=2e-4 * N_ENTRIES)


@pytest.mark.parametrize("accuracy", [1e-1, 1e-3, 1e-6])
def test_a_table_knows_where_a_flat_slab_ends(accuracy):
    """However small the noise beside the outliers: no entry near the edge is taken for an impossible one, or a gift."""
    deviation = accuracy**2 * deviations(GaussianSlab, 0.0)
    deviation[:2000] = np.random.default_rng(3).uniform(-1.0, 1.0, 2000) ** 2
    tau, model, _ = global_step(FlatSlab, oracle.histogram(deviation, 0.0), PRIOR)
    exact = model.posterior(tau * deviation).log_evidence
    tabulated, _ = kernels.evidence(tabulate(model), tau * deviation)
    np.testing.assert_allclose(tabulated, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [30.0, 1e3, 1e5])
@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_noise_beside_a_sharp_edge_is_learnt(size, ratio):
    """Noise misjudged by a factor of two, its outliers known: the steps reach the optimum that the truth leads to.

    The edge of outliers that are so much larger than the noise is a wall, along which the steps must not creep.
    """
    for seed in range(5):
        rng = np.random.default_rng(seed)
        errors = rng.standard_normal(350) + np.where(rng.random(350) < 0.3, rng.uniform(-size, size, 350), 0.0)
        histogram = oracle.histogram(errors**2, 0.0)
        best = joint_step(1.0, FlatSlab(0.3, 1e4, size**2), histogram, PRIOR, max_steps=200)
        found = joint_step(ratio, FlatSlab(0.3, 1e4, ratio * size**2), histogram, PRIOR)
        assert found[2] > best[2] - 0.1
        assert found[0] == pytest.approx(best[0], rel=0.05)


def gradient_at(kind, tau, model, histogram, step=1e-5):
    """Central differences of the objective over (ln τ, logit π, ln shape, ln ζ)."""
    here = np.concatenate([[np.log(tau)], model.parameters])
    slopes = []
    for direction in np.eye(4):
        ahead, behind = (
            oracle.noise_objective(np.exp(at[0]), kind.from_parameters(at[1:]), histogram, PRIOR)
            for at in (here + step * direction, here - step * direction)
        )
        slopes.append((ahead - behind) / (2 * step))
    return np.array(slopes)


@kinds
class TestJointStep:
    @pytest.mark.parametrize("penalty", [0.0, 30.0])
    @pytest.mark.parametrize("max_steps", [1, 6, 40])
    def test_objective_never_falls(self, kind, max_steps, penalty):
        rng = np.random.default_rng(3)
        for seed in range(6):
            histogram = oracle.histogram(deviations(kind, 0.2, seed=seed, n_entries=500), penalty)
            tau, model = float(10.0 ** rng.uniform(-2, 4)), oracle.random_slab(kind, rng)
            before = oracle.noise_objective(tau, model, histogram, PRIOR)
            tau, model, value = joint_step(tau, model, histogram, PRIOR, max_steps=max_steps)
            after = oracle.noise_objective(tau, model, histogram, PRIOR)
            assert after >= before
            # The step's own value is of the direct sums, the other of the table: 1e-6 of ln f each.
            assert value == pytest.approx(after, rel=1e-6, abs=1e-3)

    @pytest.mark.parametrize("probability", [0.0, 0.2])
    @pytest.mark.parametrize("penalty", [0.0, 30.0])
    @pytest.mark.parametrize("dof", [4.0, np.inf])
    def test_gradient_vanishes_or_points_outward(self, kind, probability, penalty, dof):
        """To 1e-4 per entry, of slopes of up to one per entry away from the optimum."""
        histogram = oracle.histogram(deviations(kind, probability, dof=dof), penalty)
        tau, model, _ = joint_step(*start_of(kind), histogram, PRIOR, max_steps=1000)
        here = np.concatenate([[np.log(tau)], model.parameters])
        slopes = gradient_at(kind, tau, model, histogram) / N_ENTRIES
        low, high = oracle.noise_limits(kind)
        inside = (here > low + 1e-6) & (here < high - 1e-6)
        assert np.all(np.abs(slopes[inside]) < 1e-4)
        assert np.all(slopes[here <= low + 1e-6] < 1e-4)
        assert np.all(slopes[here >= high - 1e-6] > -1e-4)

    def test_as_many_entries_again_do_not_end_it_sooner(self, kind):
        """Counts times 300: the same optimum to what LITTLE nats can move, but for the prior that π is small."""
        few = oracle.histogram(deviations(kind, 0.2, dof=4.0), 0.0)
        many = Histogram(few.deviation, 300.0 * few.count, 0.0)
        found = [joint_step(*start_of(kind), histogram, PRIOR, max_steps=200) for histogram in (few, many)]
        (tau, model, _), (other_tau, other, _) = found
        assert np.log(other_tau / tau) == pytest.approx(0.0, abs=0.02)
        np.testing.assert_allclose(other.parameters, model.parameters, rtol=0.03, atol=0.02)

    def test_numbers_stay_within_their_limits(self, kind):
        """Exact fits ask for an infinite precision; one outlier of 1e200 for a slab without limits."""
        for deviation in (np.full(50, 1e-300), np.r_[np.full(50, 1e-4), 1e200]):
            tau, model, _ = joint_step(*start_of(kind), oracle.histogram(deviation, 0.0), PRIOR)
            assert 0 < tau <= LARGEST_PRECISION * (1 + 1e-9)
            assert kind.shape_range[0] * (1 - 1e-9) <= model.shape <= kind.shape_range[1] * (1 + 1e-9)
            assert kind.narrowest * (1 - 1e-9) <= model.width <= WIDEST_SLAB * (1 + 1e-9)


@pytest.mark.parametrize("kind", [GaussianSlab, StudentSlab])
def test_branch_step_of_any_number_of_entries(kind):
    """What is noise and what an outlier being known, counts times 300 ask for the same numbers."""
    deviation = deviations(kind, 0.2, dof=4.0)
    outlying = np.arange(N_ENTRIES) < 0.2 * N_ENTRIES
    found = []
    for times in (1.0, 300.0):
        regular, slab = (oracle.histogram(deviation[which], 0.0) for which in (~outlying, outlying))
        counted = [Histogram(part.deviation, times * part.count, 0.0) for part in (regular, slab)]
        tau, model = branch_step(*start_of(kind), *counted, PRIOR, times * N_ENTRIES, max_steps=200)
        found.append([np.log(tau), *model.parameters[1:]])
    np.testing.assert_allclose(found[0], found[1], rtol=0.02, atol=0.02)
    # Noise of squared scale .04, known to some per cent; Gaussian noise takes it for twice that, the variance of t₄.
    wanted = 25.0 if kind is GaussianSlab else 12.5
    assert found[0][0] == pytest.approx(np.log(wanted), abs=0.1)


@pytest.mark.parametrize("reach", [3.0, 4.0])
def test_outliers_hardly_larger_than_the_noise_are_found(reach):
    """At 20,000 entries the share has a standard error of .02 or less, 3 of which are allowed."""
    rng = np.random.default_rng(int(reach))
    outliers = np.where(rng.random(N_ENTRIES) < 0.3, rng.uniform(-reach, reach, N_ENTRIES), 0.0)
    histogram = oracle.histogram((rng.standard_normal(N_ENTRIES) + outliers) ** 2, 0.0)
    tau, model, _ = global_step(FlatSlab, histogram, PRIOR)
    assert model.probability == pytest.approx(0.3, abs=0.06)
    assert model.width == pytest.approx(reach**2, rel=0.1)
    assert tau == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("kind", [GaussianSlab, FlatSlab])
@pytest.mark.parametrize("n_entries", [300, 3000])
def test_noise_alone_has_hardly_any_outliers(kind, n_entries):
    for seed in range(10):
        histogram = oracle.histogram(np.random.default_rng(seed).standard_normal(n_entries) ** 2, 0.0)
        assert global_step(kind, histogram, PRIOR)[1].probability < 0.05


@kinds
class TestGlobalStep:
    @pytest.mark.parametrize("probability", [0.0, 0.1, 0.4, 0.6])
    def test_noise_and_share_of_outliers_are_recovered(self, kind, probability):
        """Within four standard errors, which are half as large again as with known outliers: some hide in the noise."""
        histogram = oracle.histogram(deviations(kind, probability), 0.0)
        tau, model, _ = global_step(kind, histogram, PRIOR)
        noise_error = 1.5 * np.sqrt(2.0 / (N_ENTRIES * (1 - probability)))
        share_error = 1.5 * np.sqrt((probability + 0.001) / N_ENTRIES)
        assert model.noise_inflation / tau == pytest.approx(0.04, rel=4 * noise_error)
        assert model.probability == pytest.approx(probability, abs=4 * share_error)

    def test_it_is_at_least_as_good_as_any_start_given(self, kind):
        histogram = oracle.histogram(deviations(kind, 0.3, seed=1), 0.0)
        rng = np.random.default_rng(0)
        for _ in range(3):
            start = (float(10.0 ** rng.uniform(0, 2)), oracle.random_slab(kind, rng))
            _, _, value = global_step(kind, histogram, PRIOR, [start])
            assert value >= oracle.noise_objective(*start, histogram, PRIOR)

    @pytest.mark.parametrize("probability", [0.1, 0.6])
    def test_it_is_no_worse_than_the_best_of_many_single_steps(self, kind, probability):
        """Outliers of the kind's law; of all sizes up to a thousand times the noise where the law has tails at all."""
        rng = np.random.default_rng(5)
        deviation = deviations(kind, probability if kind is FlatSlab else 0.0)
        if kind is not FlatSlab:
            n_outliers = round(probability * N_ENTRIES)
            deviation[:n_outliers] *= 10.0 ** rng.uniform(0.0, 6.0, n_outliers)
        histogram = oracle.histogram(deviation, 0.0)
        starts = [(float(10.0 ** rng.uniform(-3, 3)), oracle.random_slab(kind, rng)) for _ in range(12)]
        values = [joint_step(*start, histogram, PRIOR, max_steps=200)[2] for start in starts]
        _, _, found = global_step(kind, histogram, PRIOR)
        assert found > max(values) - 1.0

    @pytest.mark.parametrize("n_bins", [-56, 400])
    def test_scale(self, kind, n_bins):
        """Whole bins further, everything but τ stays; other factors shift the bins, which costs second order."""
        deviation = deviations(kind, 0.2, n_entries=3000)
        tau, model, _ = global_step(kind, oracle.histogram(deviation, 0.0), PRIOR)
        for shift, tolerance in ((float(n_bins), 1e-4), (n_bins + 0.4, 2e-2)):
            factor = float(2.0 ** (shift / (1 << LOG2_BINS)))
            scaled_tau, scaled, _ = global_step(kind, oracle.histogram(factor * deviation, 0.0), PRIOR)
            assert scaled_tau * factor == pytest.approx(tau, rel=tolerance)
            assert scaled.probability == pytest.approx(model.probability, rel=tolerance)
            # Shape and width are the less well determined: their errors are some ten times as large.
            assert scaled.width == pytest.approx(model.width, rel=10 * tolerance)
            assert np.log(scaled.shape) == pytest.approx(np.log(model.shape), abs=10 * tolerance)
