"""Components of merged modes, split into those of the modes themselves."""

import numpy as np
import pytest

from brtf.data.arrangement import Arrangement
from brtf.data.observe import observe
from brtf.inference.problem import Problem
from brtf.model.distributions import RowGaussians
from brtf.search.components import add_components, empty_state
from brtf.search.split import split_components
from brtf.search.starts import START_MODEL

SHAPE = (6, 5, 4, 7)


def state_of(merged, columns):
    """A state in merged modes with the given columns and hardly any uncertainty."""
    observations = merged.apply(observe(np.random.default_rng(0).normal(size=SHAPE)))
    problem = Problem(observations, tuple(range(observations.order)), collapsed=True)
    state = add_components(problem, empty_state(problem, START_MODEL), columns)
    for mode, rows in enumerate(state.factors):
        state = state.with_factor(mode, RowGaussians(rows.mean, 1e-12 * rows.cov_packed))
    return state


def product(columns):
    """Σ_r of the outer products of the columns, in the shape of their lengths."""
    total = columns[0]
    for column in columns[1:]:
        total = (total[:, None] * column).reshape(-1, column.shape[1])
    return total.sum(axis=1).reshape([len(column) for column in columns])


@pytest.mark.parametrize(
    "merged, finer",
    [
        (((0, 1), (2,), (3,)), ((0,), (1,), (2,), (3,))),
        (((0,), (1, 3), (2,)), ((0,), (1,), (2,), (3,))),
        (((0, 2, 3), (1,)), ((0, 3), (1,), (2,))),
    ],
)
def test_products_of_rows_are_found(merged, finer):
    merged, finer = Arrangement(merged), Arrangement(finer)
    rng = np.random.default_rng(1)
    factors = {part: rng.normal(size=(n, 3)) for part, n in zip(finer.groups, finer.shape(SHAPE), strict=True)}
    truth = finer.tensor(product(list(factors.values())), SHAPE)
    whole = next(group for group in merged.groups if group not in finer.groups)
    columns = []
    for group in merged.groups:
        if group != whole:
            columns.append(factors[group])
            continue
        parts = [part for part in finer.groups if set(part) <= set(whole)]
        rows = np.einsum("pr,qr->pqr", *(factors[part] for part in parts))
        lengths = [SHAPE[mode] for part in parts for mode in part]
        axes = np.argsort([mode for part in parts for mode in part])
        columns.append(rows.reshape(*lengths, 3).transpose(*axes, len(lengths)).reshape(-1, 3))
    split = split_components(state_of(merged, columns), merged, finer, SHAPE)
    assert [one.shape[1] for one in split] == [3] * len(finer.groups)
    np.testing.assert_allclose(finer.tensor(product(split), SHAPE), truth, atol=1e-8)


def test_rows_that_are_no_products_stay_merged():
    merged, finer = Arrangement(((0, 1), (2,), (3,))), Arrangement.as_given(4)
    rng = np.random.default_rng(2)
    columns = [rng.normal(size=(n, 3)) for n in merged.shape(SHAPE)]
    assert split_components(state_of(merged, columns), merged, finer, SHAPE) is None


def test_no_components_are_no_start():
    merged, finer = Arrangement(((0, 1), (2,), (3,))), Arrangement.as_given(4)
    columns = [np.zeros((n, 0)) for n in merged.shape(SHAPE)]
    assert split_components(state_of(merged, columns), merged, finer, SHAPE) is None
