"""How loops are compiled: once per type, kept on disk, without the interpreter's lock."""

from __future__ import annotations

from numba import njit

loop = njit(cache=True, nogil=True)
"""A loop compiled as it stands."""
sum_loop = njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
"""A loop whose sums may be taken in any order, so that a processor adds several terms at once."""
