"""Arrangements of the modes, and parts of a tensor: every layout, there and back."""

from itertools import combinations

import numpy as np
import pytest

from brtf.data.arrangement import Arrangement
from brtf.data.observations import Observations
from brtf.data.observe import observe

SHAPE = (4, 3, 5, 2)
ARRANGEMENTS = [
    Arrangement.as_given(4),
    Arrangement(((0, 1), (2,), (3,))),
    Arrangement(((0, 2), (1,), (3,))),
    Arrangement(((0, 3), (1, 2))),
    Arrangement(((0,), (1, 3), (2,))),
    Arrangement(((0, 1, 3), (2,))),
]


def observed(layout):
    rng = np.random.default_rng(0)
    dense = rng.standard_normal(SHAPE)
    if layout == "complete":
        return dense, observe(dense)
    dense[rng.random(SHAPE) < 0.4] = np.nan
    if layout == "masked":
        return dense, observe(dense)
    coords = np.nonzero(np.isfinite(dense))
    return dense, Observations.from_coords(coords, dense[coords], SHAPE)


def as_dense(observations):
    dense = np.full(observations.shape, np.nan)
    dense[tuple(observations.entry_coords())] = observations.values.ravel()
    return dense


@pytest.mark.parametrize("arrangement", ARRANGEMENTS, ids=lambda arrangement: str(arrangement.groups))
@pytest.mark.parametrize("layout", ["complete", "masked", "coordinates"])
def test_there_and_back(layout, arrangement):
    dense, observations = observed(layout)
    merged = arrangement.apply(observations)
    wanted = dense.transpose([m for g in arrangement.groups for m in g]).reshape(arrangement.shape(SHAPE))
    assert merged.layout == layout
    np.testing.assert_array_equal(as_dense(merged), wanted)
    np.testing.assert_array_equal(arrangement.tensor(wanted, SHAPE), dense)
    values = merged.values.ravel()
    np.testing.assert_array_equal(arrangement.entries(values, observations), observations.values.ravel())
    coords = observations.entry_coords()
    np.testing.assert_array_equal(wanted[tuple(arrangement.coords(coords, SHAPE))], dense[tuple(coords)])
    if merged.coords is not None:  # sorted in C order, as every method expects
        places = np.ravel_multi_index(tuple(merged.coords), merged.shape)
        assert (np.diff(places) > 0).all()


def test_arrays_along_some_groups():
    arrangement = Arrangement(((0, 2), (1,), (3,)))
    wanted = np.random.default_rng(1).standard_normal((4, 3, 5))
    merged = wanted.transpose(0, 2, 1).reshape(20, 3)
    np.testing.assert_array_equal(arrangement.along((0, 1), merged, SHAPE), wanted)
    assert arrangement.modes_of((0, 1)) == (0, 1, 2)
    assert arrangement.factor_numbers((0, 2, 3)) == (0, 2)
    assert arrangement.keeps((0, 2))
    assert not arrangement.keeps((0, 1))


def test_merging_pairs():
    found = {Arrangement.as_given(3).merging(*pair).groups for pair in combinations(range(3), 2)}
    assert found == {((0, 1), (2,)), ((0, 2), (1,)), ((0,), (1, 2))}


@pytest.mark.parametrize(
    "groups", [((0, 1, 2),), ((0,), (1,)), ((0, 1), (1, 2)), ((0, 1), (3,)), ((0,), (1,), (2,), (-4,))]
)
def test_groups_must_hold_every_mode_once(groups):
    with pytest.raises(ValueError, match="arrangement must be at least two groups"):
        Arrangement.checked(groups, 3)


def test_modes_count_from_the_end_too():
    assert Arrangement.checked([(-1, 0), [1]], 3).groups == ((0, 2), (1,))


@pytest.mark.parametrize("layout", ["complete", "masked", "coordinates"])
def test_a_part_of_the_tensor(layout):
    dense, observations = observed(layout)
    positions = [np.array([0, 3]), np.array([1, 2]), np.array([0, 2, 4]), np.array([0, 1])]
    part = observations.at_positions(positions)
    np.testing.assert_array_equal(as_dense(part), dense[np.ix_(*positions)])
    assert part.layout == layout


FOLDS = [{0: 3}, {1: 2}, {2: 2, 0: 2}, {-2: 4}]


@pytest.mark.parametrize("folds", FOLDS, ids=str)
@pytest.mark.parametrize("layout", ["complete", "masked", "coordinates"])
def test_folded_there_and_back(layout, folds):
    dense, observations = observed(layout)
    arrangement = Arrangement.folded(folds, SHAPE)
    folded, shape = arrangement.apply(observations), arrangement.shape(SHAPE)
    assert folded.shape == shape
    assert len(arrangement.read_modes) == len(shape) == len(SHAPE) + len(folds)
    found = as_dense(folded)
    for place in np.ndindex(SHAPE):
        spread = []
        for mode, position in enumerate(place):
            period = arrangement.periods.get(mode)
            spread += [position] if period is None else [position // period, position % period]
        np.testing.assert_array_equal(found[tuple(spread)], dense[place])
    assert folded.n_observed == observations.n_observed
    np.testing.assert_array_equal(arrangement.tensor(found, SHAPE), dense)
    np.testing.assert_array_equal(arrangement.tensor(found[None], SHAPE), dense[None])
    np.testing.assert_array_equal(arrangement.entries(folded.values.ravel(), observations), observations.values.ravel())
    coords = observations.entry_coords()
    np.testing.assert_array_equal(found[tuple(arrangement.coords(coords, SHAPE))], dense[tuple(coords)])


def test_arrays_along_one_half_are_repeated():
    arrangement = Arrangement.folded({2: 2}, SHAPE)
    assert arrangement.shape(SHAPE) == (4, 3, 3, 2, 2)
    assert arrangement.modes_of((3,)) == (2,)
    assert arrangement.factor_numbers((2,)) == (2, 3)
    np.testing.assert_array_equal(arrangement.along((3,), np.array([1.0, 2.0]), SHAPE), [1, 2, 1, 2, 1])
    np.testing.assert_array_equal(arrangement.along((2,), np.array([1.0, 2.0, 3.0]), SHAPE), [1, 1, 2, 2, 3])
    both = arrangement.along((0, 3), np.arange(8.0).reshape(4, 2), SHAPE)
    np.testing.assert_array_equal(both[1], [2, 3, 2, 3, 2])
    np.testing.assert_array_equal(arrangement.along((2, 3), np.arange(6.0).reshape(3, 2), SHAPE), np.arange(5))


@pytest.mark.parametrize(
    ("folds", "message"),
    [({4: 2}, "folds mode 4"), ({0: 4}, "below its length"), ({0: 1}, "at least 2"), ({0: 2, -4: 3}, "twice")],
)
def test_impossible_folds_are_refused(folds, message):
    with pytest.raises(ValueError, match=message):
        Arrangement.folded(folds, SHAPE)
