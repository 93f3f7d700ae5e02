"""Tables of local models: they are the models to the stated tolerance, and their weights are their own slopes."""

import itertools

import numpy as np
import pytest

import oracle
from brtf import kernels
from brtf.kernels.tables import LAST_OCTAVE, SHIFT, usual_places
from brtf.model.evidence_table import tabulate, tabulate_branches
from brtf.model.local_models import FlatSlab, GaussianSlab, StudentSlab

END = 2.0**LAST_OCTAVE
RHO = np.concatenate([[0.0, 5e-324, 1e-300], np.geomspace(1e-9, END, 4001), np.geomspace(END, 1e25, 60)])
"""Some 40 a factor of two: within every segment but those of the finest octaves, and off their knots."""

VALUE = 2e-6
"""ln f, relative to the larger of one and itself. Cubics through values and slopes are right to 4e-8 where noise turns
into outliers, at 128 segments an octave, and to 5e-7 elsewhere, at 8; ln J of the Student slab, itself interpolated, to
9e-7."""
WEIGHT = 3e-5
"""w, absolute: slopes lose a factor of 128."""

kinds = pytest.mark.parametrize("kind", oracle.SLABS)


def models(kind):
    """The numbers that fits end with, and the corners of where they may go."""
    rng = np.random.default_rng(0)
    yield from (oracle.random_slab(kind, rng) for _ in range(10))
    low, high = kind.shape_range
    shapes = (low, 3.0, 30.0, high)
    for probability, shape, width in itertools.product((1e-8, 0.05, 0.98), shapes, (1.0, 1e3, 1e12)):
        yield kind(probability, shape, width * kind.narrowest)


def within_reach(model, rho):
    """Where an entry can be: slabs that fall off like a Gaussian are as wide as the largest outliers.

    Beyond, Student-t noise takes over again, with a kink that 8 segments an octave do not resolve: there ln f is right
    to 1e-4, at twenty times the width, or to 2 %, at a density of e^{−1000}.
    """
    if isinstance(model, GaussianSlab):
        return rho < 8.0 * (1.0 + model.width)
    if isinstance(model, FlatSlab):
        return rho < (np.sqrt(model.width) + 5.0) ** 2
    return np.ones(rho.size, dtype=bool)


def assert_close(rho, found, wanted):
    (log_evidence, weight), (wanted_log, wanted_weight) = found, wanted
    error = np.abs(log_evidence - wanted_log) / np.maximum(1.0, np.abs(wanted_log))
    assert error.max() < VALUE, rho[np.argmax(error)]
    error = np.abs(weight - wanted_weight)
    assert error.max() < WEIGHT, rho[np.argmax(error)]


@kinds
def test_a_table_is_its_model(kind):
    for model in models(kind):
        rho = RHO[within_reach(model, RHO)]
        exact = model.posterior(rho)
        assert_close(rho, kernels.evidence(tabulate(model), rho), (exact.log_evidence, exact.weight))


@kinds
def test_the_tables_of_the_branches_are_the_branches(kind):
    for model in models(kind):
        log_spike, spike_weight, log_slab, slab_weight = model.branches(RHO)
        inside = within_reach(model, RHO) & (RHO < END)
        spike, slab = tabulate_branches(model)
        for table, log_evidence, weight in ((spike, log_spike, spike_weight), (slab, log_slab, slab_weight)):
            weight = np.broadcast_to(weight, RHO.shape)
            found = kernels.evidence(table, RHO[inside])
            assert_close(RHO[inside], found, (log_evidence[inside], weight[inside]))


@kinds
def test_the_branches_weighed_are_the_table(kind):
    """Where each entry is on its own, both ways of looking up must agree, or a structure would not reduce to none."""
    for model in models(kind):
        rho = RHO[within_reach(model, RHO) & (RHO < END)]
        (log_spike, spike_weight), (log_slab, slab_weight) = (
            kernels.evidence(table, rho) for table in tabulate_branches(model)
        )
        log_spike, log_slab = log_spike + np.log1p(-model.probability), log_slab + np.log(model.probability)
        log_evidence = np.logaddexp(log_spike, log_slab)
        outlier = np.exp(log_slab - log_evidence)
        weight = (1 - outlier) * spike_weight + outlier * slab_weight
        assert_close(rho, kernels.evidence(tabulate(model), rho), (log_evidence, weight))


@kinds
def test_weights_are_the_slopes_of_the_table_itself(kind):
    """By differences within a segment; across a knot the slope is continuous, but its derivative is not."""
    rng = np.random.default_rng(1)
    for _ in range(5):
        table = tabulate(oracle.random_slab(kind, rng))
        lower, width = table.rows[:-1, 0], 1.0 / table.rows[:-1, 1]
        middle, step = lower + 0.5 * width, 0.25 * width
        (before, _), (after, _) = kernels.evidence(table, middle - step), kernels.evidence(table, middle + step)
        _, weight = kernels.evidence(table, middle)
        cubic = table.rows[:-1, 5] * (0.25**2) / width  # a cubic's secant exceeds its tangent by c₃ h²
        slope = (after - before) / (2 * step) - cubic
        # Values are known to 1e-16 of themselves, and the difference is taken over half a segment of 1/128 and more.
        rounding = 1e-15 * np.abs(before) / step + 1e-12 * np.abs(slope)
        assert np.all(np.abs(slope + 0.5 * weight) <= rounding + 1e-15)


@kinds
def test_values_and_weights_are_continuous(kind):
    model = oracle.random_slab(kind, np.random.default_rng(2))
    table = tabulate(model)
    knots = table.rows[1:, 0]
    before, after = kernels.evidence(table, np.nextafter(knots, 0.0)), kernels.evidence(table, knots)
    # Weights are continuous to single precision, ln f to that times the width of a segment.
    np.testing.assert_allclose(before[1], after[1], rtol=4e-7)
    np.testing.assert_allclose(before[0], after[0], rtol=1e-9, atol=4e-7 * np.max(0.5 * after[1] / table.rows[:-1, 1]))


@pytest.mark.parametrize("width", [36.0, 500.0, 3.7e4, 1e6, 1e9])
def test_the_edge_of_a_flat_slab(width):
    """The noise blurs it over √ρ = h ± a few: segments are at most a quarter of that, up to ζ = 1e6."""
    model = FlatSlab(0.1, 1e4, width)
    rho = (np.sqrt(width) + np.linspace(-6.0, 5.0, 2001)) ** 2
    exact = model.posterior(rho)
    log_evidence, weight = kernels.evidence(tabulate(model), rho)
    # For wider slabs a segment of 1/4096 of an octave is as wide as the edge itself: h/8192 of the noise.
    blur = max(1.0, np.sqrt(width) / 2000.0)
    np.testing.assert_allclose(log_evidence, exact.log_evidence, rtol=0, atol=2e-4 * blur**4)
    # Far inside an outlier pulls with no more than e^{-18}, and beyond the edge like regular noise.
    np.testing.assert_allclose(weight, exact.weight, rtol=0, atol=2e-3 * blur**4)


@pytest.mark.parametrize("model", [StudentSlab(0.1, 0.3, 100.0), GaussianSlab(0.1, 3.0, 1e4), FlatSlab(0.1, 3.0, 1e4)])
def test_gigantic_outliers_lose_their_weight(model):
    """Beyond the table ln f falls like the power of ρ of a Student-t: not like a line, which would pull without end."""
    rho = np.geomspace(END, 1e200, 50)
    log_evidence, weight = kernels.evidence(tabulate(model), rho)
    degrees = 2 * model.shape if isinstance(model, StudentSlab) else model.shape
    power = 0.5 * (degrees + 1.0)
    np.testing.assert_allclose(weight, 2.0 * power / rho, rtol=1e-4)
    np.testing.assert_allclose(np.diff(log_evidence), -power * np.diff(np.log(rho)), rtol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@kinds
def test_bits_say_the_place_in_both_precisions(kind, dtype):
    """The bits of ρ + 2⁻¹² are read as place and fraction of the segment."""
    table = tabulate(oracle.random_slab(kind, np.random.default_rng(3)))
    fine, rough, turn, before_fine, before_rough = usual_places(np.dtype(dtype))
    usual = slice(table.n_usual)
    for fraction in (0.0, 0.25, 0.5, 0.75):
        shifted = (table.rows[usual, 0] + fraction / table.rows[usual, 1] + SHIFT).astype(dtype)
        pattern = shifted.view(turn.dtype)
        below, before = np.where(pattern < turn, [[fine], [before_fine]], [[rough], [before_rough]])
        np.testing.assert_array_equal((pattern >> below) - before, np.arange(table.n_usual))
        np.testing.assert_allclose((pattern & ((1 << below) - 1)) / (1 << below), fraction, atol=1e-15)


@kinds
def test_weights_are_quadratics_in_single_precision_and_ln_f_their_integral(kind):
    table = tabulate(oracle.random_slab(kind, np.random.default_rng(3)))
    w0, w1, w2, half_width = table.quadratics[:-1].astype(float).T
    _, per_width, _, c1, c2, c3 = table.rows[: table.n_usual].T
    np.testing.assert_array_equal(half_width, -0.5 / per_width)
    for ours, theirs in ((w0, c1), (w1 / 2, c2), (w2 / 3, c3)):
        np.testing.assert_allclose(half_width * ours, theirs, rtol=1e-12)
    assert not table.quadratics[-1].any()


def test_a_model_is_tabulated_once():
    model = GaussianSlab(0.1, 4.0, 100.0)
    assert tabulate(model) is tabulate(model)
    assert tabulate_branches(model) is tabulate_branches(model)
