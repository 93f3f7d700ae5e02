"""Var x at the entries: as a difference of squares or as a sum of positive terms, whichever is safe."""

import numpy as np
import pytest

from brtf import kernels
from brtf.data.arrays import Cache
from brtf.data.observations import Observations
from brtf.data.observe import observe
from brtf.data.passes import whole
from brtf.inference import statistics
from brtf.inference.statistics import HIGH_RANK, variance_field
from brtf.model.distributions import RowGaussians

SHAPES = [(9, 17), (5, 4, 13), (13, 4, 5), (3, 4, 2, 7)]


def random_factors(shape, spread):
    """Rows of high rank, with covariances of the given size; those of the last mode are shared."""
    rng = np.random.default_rng(len(shape))
    factors = []
    for mode, length in enumerate(shape):
        half = spread * rng.standard_normal((1 if mode == len(shape) - 1 else length, HIGH_RANK, HIGH_RANK))
        factors.append(RowGaussians(rng.standard_normal((length, HIGH_RANK)), half @ half.transpose(0, 2, 1)))
    return tuple(factors)


def observations_of(shape, layout):
    rng = np.random.default_rng(0)
    y, mask = rng.standard_normal(shape), rng.random(shape) < (0.3 if layout == "sparse" else 0.7)
    if layout == "complete":
        return observe(y)
    if layout == "coordinates":
        return Observations.from_coords(np.nonzero(mask), y[mask], shape)
    return observe(y, mask)


def summed(observations, factors):
    """Var x at all entries, every term positive."""
    return whole(observations, lambda block: statistics._sum_of_variances(block, factors, Cache()))


@pytest.mark.parametrize("layout", ["complete", "masked", "sparse", "coordinates"])
@pytest.mark.parametrize("shape", SHAPES)
class TestVariance:
    def test_as_a_difference(self, monkeypatch, shape, layout):
        observations, factors = observations_of(shape, layout), random_factors(shape, 0.1)
        wanted = summed(observations, factors)
        monkeypatch.setattr(kernels, "variance_at", None)
        np.testing.assert_allclose(whole(observations, variance_field(factors)), wanted, rtol=1e-8)

    def test_as_a_sum_where_it_would_cancel(self, shape, layout):
        """Covariances so small that E[x²] and x̄² have the same digits: their difference is noise, even negative."""
        observations, factors = observations_of(shape, layout), random_factors(shape, 1e-8)
        found = whole(observations, variance_field(factors))
        np.testing.assert_allclose(found, summed(observations, factors), rtol=1e-12)
        assert (found > 0.0).all()
