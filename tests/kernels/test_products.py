"""Products of thin matrices: the same as NumPy's, whatever is left over of rows, columns and components."""

import numpy as np
import pytest

from brtf.kernels.products import COLUMNS, add_product, add_projections, multiply

SHAPES = [
    (n_rows, n_columns, rank)
    for n_rows in (1, 2, 3, 5, 9)
    for n_columns in (1, 4, 7, 16, 37, 2 * COLUMNS + 21)
    for rank in (0, 1, 3, 4, 5, 11)
]


@pytest.fixture(params=[np.float32, np.float64])
def matrices(request):
    def make(n_rows, n_columns, rank):
        rng = np.random.default_rng(n_rows + 10 * n_columns + rank)
        shapes = (n_rows, rank), (rank, n_columns), (n_rows, n_columns)
        return [rng.standard_normal(shape).astype(request.param) for shape in shapes]

    return make


@pytest.mark.parametrize("shape", SHAPES)
def test_products_equal_numpy(matrices, shape):
    left, right, rows = matrices(*shape)
    # Sums of some thousand terms of size one at most, each rounded.
    digits = {"rtol": 1e-4, "atol": 1e-3} if left.dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-12}
    out = np.full_like(rows, np.nan)
    multiply(left, right, out)
    np.testing.assert_allclose(out, left @ right, **digits)
    sums = np.ones_like(right)
    add_product(left.T.copy(), rows, sums)
    np.testing.assert_allclose(sums, 1.0 + left.T @ rows, **digits)
    projections = np.ones_like(left)
    add_projections(rows, right, projections)
    np.testing.assert_allclose(projections, 1.0 + rows @ right.T, **digits)
