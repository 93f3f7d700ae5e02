"""Which entries to hold out, so that they are missing as the missing ones are: single ones, whole fibres, or gaps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.data.observations import Observations, numbered_along

Mask = NDArray[np.bool_]

HELD_OUT_SHARE = 20
"""One entry in this many is held out."""
FEWEST_HELD_OUT = 100
"""Held-out entries below which a difference of densities says nothing."""
SPARSEST = 16
"""Cells per observed entry up to which all cells are examined: a list of the entries takes as many bytes."""
LONGER, STANDARD_ERRORS = 2.0, 5.0
"""How many times longer than in random order gaps must be, and by how many standard errors their number must differ."""
MOST_COPIES = 50
"""Copies of the gaps that are moved into the observed entries, at most."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Entries to hold out.

    Attributes
    ----------
    chosen : (M,)
    gap : number of the gap of every one of them; their densities belong together
    """

    chosen: Mask
    gap: NDArray[np.intp]

    def by_gap(self, values: Array) -> Array:
        """The sums over the gaps of values at the entries held out."""
        return np.asarray(np.bincount(self.gap, weights=values), dtype=np.float64)


def held_out(observations: Observations, rng: np.random.Generator) -> HeldOut | None:
    """One in twenty entries at random; of modes along which whole fibres are missing, whole fibres.

    Where entries are missing in gaps along a mode, the same gaps at other places. None where that would be too few.
    """
    whole = [mode for mode in range(observations.order) if _misses_whole_fibres(observations, mode)]
    kept = [mode for mode in range(observations.order) if mode not in whole]
    if not kept:
        return None
    found = None if whole else _in_gaps(observations, rng)
    if found is None:
        fibre = numbered_along(observations, kept)
        n_fibres = int(fibre.max()) + 1
        out = np.zeros(n_fibres, dtype=bool)
        out[rng.choice(n_fibres, max(1, n_fibres // HELD_OUT_SHARE), replace=False)] = True
        chosen: Mask = out[fibre]
        found = HeldOut(chosen, np.arange(np.count_nonzero(chosen)))
    n_chosen = np.count_nonzero(found.chosen)
    return found if FEWEST_HELD_OUT <= n_chosen < found.chosen.size else None


def _misses_whole_fibres(observations: Observations, mode: int) -> bool:
    """Whether most missing entries lie in wholly unobserved fibres along a mode."""
    length = observations.shape[mode]
    fibres = numbered_along(observations, [other for other in range(observations.order) if other != mode])
    n_empty = observations.n_entries // length - (int(fibres.max()) + 1)
    return 2 * n_empty * length > observations.n_entries - observations.n_observed


def _in_gaps(observations: Observations, rng: np.random.Generator) -> HeldOut | None:
    """Gaps of the lengths of those that are missing, elsewhere; None where entries are not missing in gaps.

    A copy of the missing entries, moved at random along every mode, covers observed ones. Of the runs of these, as
    many are held out as make up one entry in twenty.
    """
    if observations.n_entries > SPARSEST * observations.n_observed:
        return None
    where = tuple(observations.entry_coords())
    observed = np.zeros(observations.shape, dtype=bool)
    observed[where] = True
    along = _mode_of_gaps(~observed)
    if along is None:
        return None
    gap = np.zeros(observations.shape, dtype=np.intp)
    n_wanted, n_gaps = observations.n_observed // HELD_OUT_SHARE, 0
    for _ in range(MOST_COPIES):
        moved = np.roll(~observed, rng.integers(0, observations.shape), axis=tuple(range(observations.order)))
        runs = _runs(moved & observed & (gap == 0), along)
        sizes = np.bincount(runs.ravel())[1:]
        drawn = rng.permutation(sizes.size)
        taken = drawn[: np.searchsorted(np.cumsum(sizes[drawn]), n_wanted) + 1]
        numbers = np.zeros(sizes.size + 1, dtype=np.intp)
        numbers[taken + 1] = n_gaps + 1 + np.arange(taken.size)
        gap += numbers[runs]
        n_gaps, n_wanted = n_gaps + taken.size, n_wanted - int(sizes[taken].sum())
        if n_wanted <= 0:
            break
    of_entries = gap[where]
    chosen = of_entries > 0
    return HeldOut(chosen, of_entries[chosen] - 1)


def _mode_of_gaps(missing: Mask) -> int | None:
    """The mode along which missing entries follow each other most, if their gaps are far longer than chance makes them.

    Chance is what rows in random order give: some fibres may miss more than others.
    """
    rng, longest, found = np.random.default_rng(0), LONGER, None
    for mode, length in enumerate(missing.shape):
        along = np.moveaxis(missing, mode, 0)
        n_first = int(along[:-1].sum())
        together, by_chance = (
            int(np.count_nonzero(rows[1:] & rows[:-1])) for rows in (along, along[rng.permutation(length)])
        )
        if together - by_chance <= STANDARD_ERRORS * math.sqrt(together + by_chance):
            continue
        ratio = (n_first - by_chance) / max(n_first - together, 1)
        if ratio > longest:
            longest, found = ratio, mode
    return found


def _runs(covered: Mask, mode: int) -> NDArray[np.intp]:
    """The number, from 1, of the run along a mode that every covered cell is in; 0 elsewhere."""
    along = np.moveaxis(covered, mode, -1)
    begins = along.copy()
    begins[..., 1:] &= ~along[..., :-1]
    numbers = np.cumsum(begins).reshape(along.shape)
    return np.moveaxis(np.where(along, numbers, 0), -1, mode)
