"""Fewer components in place of many: the nearest low-rank part, found on a small core."""

import numpy as np
import pytest

from brtf.search.approximation import _by_pencil, _compose, _normal_equations, approximate


def factors_of(shape, rank, seed=0, likeness=0.0):
    """Components whose columns have about the given cosine in every mode."""
    rng = np.random.default_rng(seed)
    factors = []
    for length in shape:
        common, own = rng.standard_normal((length, 1)), rng.standard_normal((length, rank))
        factors.append(np.sqrt(likeness) * common + np.sqrt(1.0 - likeness) * own)
    return factors


@pytest.mark.parametrize("likeness", [0.0, 0.9])
@pytest.mark.parametrize("shape", [(9, 8, 7), (4, 3, 9), (6, 5, 4, 3)])
def test_components_that_were_split_come_together_again(shape, likeness):
    """Three components written as six, two of them from parts that nearly cancel."""
    truth = factors_of(shape, 3, likeness=likeness)
    rng = np.random.default_rng(1)
    mixed = [np.hstack([factor, factor]) for factor in truth]
    share = rng.uniform(-1.0, 2.0, 3)
    mixed[0] = np.hstack([truth[0] * share, truth[0] * (1.0 - share)])
    error, found = approximate(mixed, 3, 1e-16, 0.0)
    size = np.sum(_compose(truth) ** 2)
    assert error < 1e-12 * size
    np.testing.assert_allclose(_compose(found), _compose(truth), atol=1e-6 * np.sqrt(size))


def test_a_matrix_is_cut_at_its_singular_values():
    factors = factors_of((12, 9), 5)
    strengths = np.linalg.svd(_compose(factors), compute_uv=False)
    error, found = approximate(factors, 2, 1e-16, 0.0)
    assert error == pytest.approx(np.sum(strengths[2:] ** 2))
    assert np.sum((_compose(factors) - _compose(found)) ** 2) == pytest.approx(error)


def test_the_error_is_that_of_the_answer_and_no_rank_one_step_lowers_it():
    """At a minimum the gradient vanishes."""
    factors = factors_of((7, 6, 5), 4, seed=3)
    error, found = approximate(factors, 2, 1e-20, 0.0)
    assert np.sum((_compose(factors) - _compose(found)) ** 2) == pytest.approx(error)
    _, gradient = _normal_equations(_compose(factors), found, 0.0)
    assert np.abs(gradient).max() < 1e-3 * np.sqrt(error)


def test_normal_equations_are_those_of_the_jacobian():
    columns, core = factors_of((4, 3, 5), 2, seed=1), _compose(factors_of((4, 3, 5), 3, seed=2))
    flat = np.concatenate([column.ravel() for column in columns])

    def composed(vector):
        ends = np.cumsum([column.size for column in columns])[:-1]
        return _compose([p.reshape(c.shape) for p, c in zip(np.split(vector, ends), columns, strict=True)]).ravel()

    step = 1e-6
    jacobian = np.stack(
        [(composed(flat + step * unit) - composed(flat - step * unit)) / (2 * step) for unit in np.eye(flat.size)],
        axis=1,
    )
    normal, gradient = _normal_equations(core, columns, 0.3)
    np.testing.assert_allclose(normal, jacobian.T @ jacobian + 0.3 * np.eye(flat.size), atol=1e-7)
    wanted = jacobian.T @ (core.ravel() - composed(flat)) - 0.3 * flat
    np.testing.assert_allclose(gradient, wanted, atol=1e-7)


def test_many_components_are_reduced_too():
    """Where Levenberg–Marquardt steps would cost too much, alternating least squares does."""
    truth = factors_of((40, 40, 40), 30)
    surplus = [np.hstack([factor, 1e-3 * factor[:, :2]]) for factor in truth]
    error, found = approximate(surplus, 30, 1e-12, 0.0)
    assert found[0].shape == (40, 30)
    assert error < 1e-4 * np.sum(_compose(truth) ** 2)


def test_slices_whose_ratio_is_beyond_floats():
    core = np.zeros((2, 2, 2))
    core[0, 0, 0], core[1, 1, 0], core[1, 1, 1] = 1.0, 1e-320, 0.5
    np.testing.assert_allclose(_compose(_by_pencil(core, 2)), core, atol=1e-12)
