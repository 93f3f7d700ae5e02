"""The chains of rows in order: both implementations are dense linear algebra."""

import numpy as np
import pytest

from brtf import kernels
from brtf.model.row_priors.chain_kinds import RING, Form, kinds_of

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


def wide(seed, n_rows, rank, shared, form):
    """A wide chain of components with kinds of their own; with the same precision for all rows if ``shared``."""
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((1 if shared else n_rows, rank, rank))
    precision = np.array(np.broadcast_to(0.2 * root @ root.transpose(0, 2, 1), (n_rows, rank, rank)))
    steps = np.ones(n_rows - 1) if shared else rng.uniform(0.5, 3.0, n_rows - 1)
    kinds, kind, scale = kinds_of(steps, 8, form=form), rng.integers(0, 8, rank), rng.gamma(2.0, 1.0, rank)
    precision[:, np.arange(rank), np.arange(rank)] += scale * kinds.own[kind].T
    return precision, scale * kinds.beside[kind].T, scale * kinds.far[kind].T, rng.standard_normal((n_rows, rank))


@pytest.mark.parametrize("twin", TWINS, ids=["numba", "numpy"])
@pytest.mark.parametrize("shared", [False, True], ids=["rows differ", "rows alike"])
@pytest.mark.parametrize("form", [RING, Form(n_second=5)], ids=["ring", "second order"])
@pytest.mark.parametrize(("n_rows", "rank"), [(1, 2), (2, 2), (3, 2), (4, 1), (5, 3), (12, 4), (150, 3)])
def test_wide_smoother_is_dense_algebra(twin, shared, form, n_rows, rank):
    for seed in range(3):
        given = wide(seed, n_rows, rank, shared, form)
        kept = [array.copy() for array in given]
        found = twin.smooth_wide_chain(*given)
        whole = np.zeros((n_rows, rank, n_rows, rank))
        for apart, blocks in enumerate(given[:3]):
            for t, block in enumerate(blocks):
                whole[t, :, t + apart] = whole[t + apart, :, t] = block if apart == 0 else np.diag(block)
        whole = whole.reshape(n_rows * rank, -1)
        cov = np.linalg.inv(whole)
        mean = (cov @ given[3].ravel()).reshape(n_rows, rank)
        cov = cov.reshape(n_rows, rank, n_rows, rank)
        close = {"rtol": 1e-7, "atol": 1e-10}
        np.testing.assert_allclose(found.mean, mean, **close)
        for apart, blocks in enumerate((found.cov, found.cross, found.across)):
            wanted = [cov[t, :, t + apart] for t in range(n_rows - apart)]
            np.testing.assert_allclose(blocks, np.reshape(wanted, (-1, rank, rank)), **close)
        assert found.log_det == pytest.approx(-np.linalg.slogdet(whole)[1], rel=1e-9, abs=1e-8)
        for array, before in zip(given, kept, strict=True):
            np.testing.assert_array_equal(array, before)


@pytest.mark.parametrize("twin", TWINS, ids=["numba", "numpy"])
def test_a_wide_chain_without_far_numbers_is_a_chain(twin):
    given = chain(0, 12, 3, False)
    wanted, found = twin.smooth_chain(*given), twin.smooth_wide_chain(*given[:2], np.zeros((10, 3)), given[2])
    for name in ("mean", "cov", "cross", "log_det"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("form", [Form(), RING, Form(n_second=3)], ids=["line", "ring", "second order"])
@pytest.mark.parametrize("twin", TWINS, ids=["numba", "numpy"])
def test_evidence_is_dense_algebra(twin, form):
    rng = np.random.default_rng(0)
    n_rows, n_columns = 9, 3
    kinds = kinds_of(rng.uniform(0.5, 3.0, n_rows - 1), 5, form=form)
    precision, linear = rng.gamma(1.0, 2.0, (n_rows, n_columns)), rng.standard_normal((n_rows, n_columns))
    scale = rng.gamma(2.0, 1.0, n_columns)
    found = twin.chain_evidence(precision, linear, scale, kinds.own, kinds.beside, kinds.far)
    for k in range(5):
        prior = np.diag(kinds.own[k]) + np.diag(kinds.beside[k], 1) + np.diag(kinds.beside[k], -1)
        if form.wide:
            prior += np.diag(kinds.far[k], 2) + np.diag(kinds.far[k], -2)
        assert np.linalg.slogdet(prior)[1] == pytest.approx(kinds.log_det[k])
        for r in range(n_columns):
            joint = scale[r] * prior + np.diag(precision[:, r])
            square = linear[:, r] @ np.linalg.solve(joint, linear[:, r])
            expected = 0.5 * (n_rows * np.log(scale[r]) - np.linalg.slogdet(joint)[1] + square)
            assert found[k, r] == pytest.approx(expected, rel=1e-10)
