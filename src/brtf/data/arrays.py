"""The arrays of numbers that everything else hands around."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class SentOnce:
    """Numbers that never change and may be many: a cluster gets them once, and keeps them while they are used."""

    @property
    def nbytes(self) -> int:
        """How much is sent."""
        raise TypeError("SentOnce is abstract")
