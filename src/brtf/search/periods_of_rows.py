"""Periods at which the rows of a mode repeat themselves, and the carriers that their courses may ride on."""

from __future__ import annotations

import numpy as np

from brtf.data.arrays import Array
from brtf.data.periods import FEWEST_CYCLES
from brtf.data.positions import Positions
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.row_priors.chain_kinds import NO_CARRIERS, carriers_of


def possible_periods(rows: RowGaussians, lam: Gamma, positions: Positions) -> list[int]:
    """Periods that time stamps or, where rows are evenly spaced, the rows themselves suggest, ascending."""
    even = bool(np.allclose(positions.steps, 1.0))
    return sorted({*positions.periods, *(likely_periods(rows, lam) if even else ())})


def carriers_along(rows: RowGaussians, lam: Gamma, positions: Positions) -> Array:
    """Carriers of the possible periods; none where rows are not evenly spaced."""
    if not np.allclose(positions.steps, 1.0):
        return NO_CARRIERS
    periods = possible_periods(rows, lam, positions)
    return carriers_of([period for period in periods if FEWEST_CYCLES * period <= rows.n_rows])


def likely_periods(rows: RowGaussians, lam: Gamma) -> tuple[int, ...]:
    """The two periods at which the rows resemble themselves most, in rows; fewer where there are none."""
    n_rows = rows.n_rows
    course = (rows.mean - rows.mean.mean(axis=0)) * np.sqrt(lam.mean)
    power = np.abs(np.fft.rfft(course, 2 * n_rows, axis=0)) ** 2
    likeness = np.fft.irfft(power.sum(axis=1))[: n_rows // 2 + 1] / np.arange(n_rows, n_rows - n_rows // 2 - 1, -1)
    peaks = np.flatnonzero((likeness[2:-1] > likeness[1:-2]) & (likeness[2:-1] >= likeness[3:])) + 2
    peaks = peaks[likeness[peaks] > 0.0]
    return tuple(int(peak) for peak in peaks[np.argsort(-likeness[peaks], kind="stable")][:2])
