"""Array types shared by all packages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class SentOnce:
    """Base class of large immutable data that are sent to a cluster once and kept there while in use."""

    @property
    def nbytes(self) -> int:
        """Number of bytes to send."""
        raise TypeError("SentOnce is abstract")
