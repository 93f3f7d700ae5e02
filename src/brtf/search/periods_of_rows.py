"""Periods at which the rows of a mode repeat themselves, and the carriers that their courses may ride on."""

from __future__ import annotations

import numpy as np

from brtf.data.arrays import Array
from brtf.data.periods import FEWEST_CYCLES
from brtf.data.positions import Positions
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.row_priors.chain_kinds import NO_CARRIERS, carriers_of

LIKELIEST = 2
"""Periods that the rows themselves suggest."""
FEW_ROWS = 128
"""Rows up to which every period that is seen twice is possible: the likeness of few rows says too little."""


def likeliest_periods(rows: RowGaussians, lam: Gamma, positions: Positions) -> list[int]:
    """Periods that time stamps or, where rows are evenly spaced, the rows themselves suggest, ascending."""
    even = bool(np.allclose(positions.steps, 1.0))
    return sorted({*positions.periods, *(alike_at(rows, lam)[:LIKELIEST] if even else ())})


def possible_periods(rows: RowGaussians, lam: Gamma, positions: Positions) -> list[int]:
    """The likeliest periods, and of few rows that are evenly spaced all, ascending."""
    few = rows.n_rows <= FEW_ROWS and bool(np.allclose(positions.steps, 1.0))
    return sorted({*likeliest_periods(rows, lam, positions), *range(2, rows.n_rows // 2 + 1 if few else 2)})


def carriers_along(rows: RowGaussians, lam: Gamma, positions: Positions) -> Array:
    """Carriers of the likeliest periods; none where rows are not evenly spaced."""
    if not np.allclose(positions.steps, 1.0):
        return NO_CARRIERS
    periods = likeliest_periods(rows, lam, positions)
    return carriers_of([period for period in periods if FEWEST_CYCLES * period <= rows.n_rows])


def alike_at(rows: RowGaussians, lam: Gamma) -> tuple[int, ...]:
    """The periods at which the rows resemble themselves more than at those beside, in rows, the most alike first."""
    n_rows = rows.n_rows
    course = (rows.mean - rows.mean.mean(axis=0)) * np.sqrt(lam.mean)
    power = np.abs(np.fft.rfft(course, 2 * n_rows, axis=0)) ** 2
    likeness = np.fft.irfft(power.sum(axis=1))[: n_rows // 2 + 1] / np.arange(n_rows, n_rows - n_rows // 2 - 1, -1)
    peaks = np.flatnonzero((likeness[2:-1] > likeness[1:-2]) & (likeness[2:-1] >= likeness[3:])) + 2
    peaks = peaks[likeness[peaks] > 0.0]
    return tuple(int(peak) for peak in peaks[np.argsort(-likeness[peaks], kind="stable")])
