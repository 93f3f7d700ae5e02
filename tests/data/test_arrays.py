"""Positions of arrays."""

import numpy as np
import pytest

from brtf.data.arrays import evenly_spaced


@pytest.mark.parametrize(("length", "most"), [(1, 5), (4, 5), (5, 5), (1000, 7)])
def test_positions_are_spread_from_end_to_end(length, most):
    positions = evenly_spaced(length, most)
    assert positions[0] == 0
    assert positions[-1] == length - 1
    assert positions.size == min(length, most)
    assert np.ptp(np.diff(positions)) <= 1 if positions.size > 1 else True
