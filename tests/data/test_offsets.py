"""Labels of pairs of positions, by how far these are apart."""

import numpy as np
import pytest

from brtf.data.offsets import offsets


def same_partition(ours, theirs):
    """Whether two labellings tell the same pairs apart."""
    pairs = set(zip(np.ravel(ours).tolist(), np.ravel(theirs).tolist(), strict=True))
    return len(pairs) == np.unique(ours).size == np.unique(theirs).size


def test_numbers_are_as_far_apart_as_their_difference():
    emission, excitation = np.arange(250, 301), np.arange(240, 281, 5)
    labels = offsets(emission, excitation)
    assert labels.dtype == np.int64
    assert set(labels.ravel()) == set(range(labels.max() + 1))
    steps = np.floor((emission[:, None] - excitation) / 5 + 0.5)  # of the coarser spacing
    assert same_partition(labels, steps)


@pytest.mark.parametrize("factor", [0.1, 1e-9, 1e9, -1.0])
def test_units_do_not_matter(factor):
    """Labels such as 0.1, 0.2, … are rounded, and differences of half a step stay together."""
    first, second = np.arange(30), np.arange(3, 21, 2)
    labels = offsets(first * factor, second * factor)
    if factor > 0:
        np.testing.assert_array_equal(labels, offsets(first, second))
    assert (np.bincount(labels.ravel()) <= 2 * second.size).all()


def test_the_order_of_positions_does_not_matter():
    rng = np.random.default_rng(0)
    first, second = rng.permutation(20), rng.permutation(12)
    labels = offsets(first, second)
    assert same_partition(labels, first[:, None] - second)


def test_times_of_any_kind_compare():
    days = np.arange("2024-01-01", "2024-02-10", dtype="M8[D]")
    labels = offsets(days[:30], days[5:].astype(str))
    assert same_partition(labels, np.arange(30)[:, None] - np.arange(5, 40))
    hours = np.arange(24).astype("m8[h]")
    assert same_partition(offsets(hours, hours[3:15].astype("m8[s]")), np.arange(24)[:, None] - np.arange(3, 15))


def test_names_are_the_same_or_not():
    origin, destination = np.array(["a", "b", "c", "d"]), np.array(["b", "d", "e"], dtype=object)
    labels = offsets(origin, destination)
    assert same_partition(labels, origin[:, None] == destination)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.arange(5), np.arange(10, 15)),  # ranges apart
        (np.arange(5), np.array(["a", "b"])),
        (np.arange(5), np.arange(5).astype("m8[s]")),
        (np.arange("2024-01-01", "2024-01-06", dtype="M8[D]"), np.arange(5)),
        (np.array(["a", "b"]), np.array(["c", "d"])),  # no name occurs twice
        (np.array(["a"]), np.array(["a"])),  # and here no other
        (np.arange(5), np.array([3])),  # without a spacing
        (np.array([0.0, np.inf, 1.0]), np.arange(3)),
    ],
)
def test_what_does_not_compare(first, second):
    assert offsets(first, second) is None
    assert offsets(second, first) is None
