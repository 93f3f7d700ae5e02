"""The chains of rows in order: both implementations are dense linear algebra."""

import numpy as np
import pytest

from brtf import kernels
from brtf.model.row_priors.chain_kinds import kinds_of

TWINS = [kernels.twin("numba"), kernels.twin("numpy")]


def dense(precision, beside, linear):
    """Mean, covariance and its log determinant from the whole precision matrix."""
    n_rows, rank = linear.shape
    whole = np.zeros((n_rows, rank, n_rows, rank))
    for t in range(n_rows):
        whole[t, :, t] = precision[t]
    for t in range(n_rows - 1):
        whole[t, :, t + 1] = whole[t + 1, :, t] = np.diag(beside[t])
    whole = whole.reshape(n_rows * rank, -1)
    cov = np.linalg.inv(whole)
    return (
        (cov @ linear.ravel()).reshape(n_rows, rank),
        cov.reshape(n_rows, rank, n_rows, rank),
        -np.linalg.slogdet(whole)[1],
    )


def chain(seed, n_rows, rank, shared):
    """A chain of components with memories of their own; with the same precision for all rows if ``shared``."""
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((1 if shared else n_rows, rank, rank))
    precision = np.array(np.broadcast_to(0.2 * root @ root.transpose(0, 2, 1), (n_rows, rank, rank)))
    steps = np.ones(n_rows - 1) if shared else rng.uniform(0.5, 3.0, n_rows - 1)
    kinds, kind, scale = kinds_of(steps, 6), rng.integers(0, 6, rank), rng.gamma(2.0, 1.0, rank)
    precision[:, np.arange(rank), np.arange(rank)] += scale * kinds.own[kind].T
    return precision, scale * kinds.beside[kind].T, rng.standard_normal((n_rows, rank))


@pytest.mark.parametrize("twin", TWINS, ids=["numba", "numpy"])
@pytest.mark.parametrize("shared", [False, True], ids=["rows differ", "rows alike"])
@pytest.mark.parametrize(("n_rows", "rank"), [(1, 2), (2, 1), (3, 3), (12, 4), (150, 3)])
def test_smoother_is_dense_algebra(twin, shared, n_rows, rank):
    for seed in range(3):
        given = chain(seed, n_rows, rank, shared)
        kept = [array.copy() for array in given]
        found = twin.smooth_chain(*given)
        mean, cov, log_det = dense(*given)
        np.testing.assert_allclose(found.mean, mean, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(found.cov, np.einsum("trts->trs", cov), rtol=1e-9, atol=1e-12)
        beside = np.array([cov[t, :, t + 1] for t in range(n_rows - 1)]).reshape(-1, rank, rank)
        np.testing.assert_allclose(found.cross, beside, rtol=1e-9, atol=1e-12)
        assert found.log_det == pytest.approx(log_det, rel=1e-11, abs=1e-9)
        for array, before in zip(given, kept, strict=True):
            np.testing.assert_array_equal(array, before)


@pytest.mark.parametrize("twin", TWINS, ids=["numba", "numpy"])
def test_evidence_is_dense_algebra(twin):
    rng = np.random.default_rng(0)
    n_rows, n_columns = 9, 3
    kinds = kinds_of(rng.uniform(0.5, 3.0, n_rows - 1), 5)
    precision, linear = rng.gamma(1.0, 2.0, (n_rows, n_columns)), rng.standard_normal((n_rows, n_columns))
    scale = rng.gamma(2.0, 1.0, n_columns)
    found = twin.chain_evidence(precision, linear, scale, kinds.own, kinds.beside)
    for k in range(5):
        prior = np.diag(kinds.own[k]) + np.diag(kinds.beside[k], 1) + np.diag(kinds.beside[k], -1)
        assert np.linalg.slogdet(prior)[1] == pytest.approx(kinds.log_det[k])
        for r in range(n_columns):
            joint = scale[r] * prior + np.diag(precision[:, r])
            square = linear[:, r] @ np.linalg.solve(joint, linear[:, r])
            expected = 0.5 * (n_rows * np.log(scale[r]) - np.linalg.slogdet(joint)[1] + square)
            assert found[k, r] == pytest.approx(expected, rel=1e-10)
