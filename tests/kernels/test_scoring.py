"""Scores of histograms: the compiled loop equals the definition."""

import numpy as np
import pytest

import oracle
from brtf.kernels import compiled, reference
from brtf.model.local_models import FlatSlab, GaussianSlab, StudentSlab

WIDE = [
    GaussianSlab(0.3, 2.1, 4.0),
    GaussianSlab(1e-8, 1e4, 1e30),
    FlatSlab(0.98, 5.0, 36.0),
    FlatSlab(0.01, 1e4, 1e20),
]


def bins(rng):
    deviation = np.concatenate([10.0 ** rng.uniform(-30.0, 25.0, 60), 10.0 ** rng.uniform(-2.0, 3.0, 60), [35.9, 36.1]])
    return deviation, rng.uniform(0.5, 1e4, deviation.size)


@pytest.mark.parametrize(
    "model",
    [
        *(oracle.random_slab(kind, np.random.default_rng(1)) for kind in oracle.SLABS),
        *WIDE,
        StudentSlab(0.1, 2.0, 50.0),
    ],
)
@pytest.mark.parametrize("tau", [1.0, 0.037])
def test_scores_equal_the_definition(model, tau):
    deviation, count = bins(np.random.default_rng(2))
    found, wanted = (
        twin.scores(model.gradient, model.student_numbers, tau, deviation, count) for twin in (compiled, reference)
    )
    assert found[0] == pytest.approx(wanted[0], rel=1e-11)
    # Sums of terms of either sign: digits are those of the largest.
    scale = np.sqrt(np.diag(wanted[2]) * count.sum())
    np.testing.assert_allclose(found[1] / scale, wanted[1] / scale, rtol=0, atol=1e-9)
    roots = np.sqrt(np.diag(wanted[2]))
    np.testing.assert_allclose(found[2] / np.outer(roots, roots), wanted[2] / np.outer(roots, roots), rtol=0, atol=1e-8)
