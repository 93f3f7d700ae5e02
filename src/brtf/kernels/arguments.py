"""Named arguments of a pass over entries, besides the data, the sums to which it adds, and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.kernels.tables import EvidenceTable

NO_PRODUCTS = np.zeros((0, 0))
LOG2_BINS = 3
"""Bins of the histogram of D per octave, as a power of two: they are 9 to 12 % wide."""
FIRST_BIN_OCTAVE, LAST_BIN_OCTAVE = -110, 66
"""D from 1e-33 to 1e20, for data of unit scale; values outside are counted in the outermost bins."""
N_BINS = (LAST_BIN_OCTAVE - FIRST_BIN_OCTAVE) << LOG2_BINS
Gradient = Callable[[Array], tuple[Array, ...]]
"""ln f at every ρ, and its derivatives by ln ρ and by each of K parameters."""


class StudentNumbers(NamedTuple):
    """Student-t noise with Gaussian or flat outliers, whose derivatives have a loop of their own.

    Attributes
    ----------
    flat : whether the outliers are uniform; Gaussian otherwise
    probability, shape, width : π, ν and ζ
    constants : ln Γ((ν+1)/2) / Γ(ν/2) · (2/ν)^{1/2}, and twice its derivative by ln ν
    """

    flat: bool
    probability: float
    shape: float
    width: float
    constants: tuple[float, float]


class SlicePositions(NamedTuple):
    """Slice or group of every entry: in a block of complete data (b, C), entry (i, c) belongs to rows[i] + columns[c].

    Entries of any block, one by one, are a block of one column.

    Attributes
    ----------
    rows : (b,)
    columns : (C,)
    """

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]

    @classmethod
    def of_entries(cls, positions: NDArray[np.int64]) -> SlicePositions:
        """The positions (m,) of entries one by one."""
        return cls(positions, np.zeros(1, np.int64))

    @property
    def by_row(self) -> bool:
        """Whether all entries of a row belong to one slice."""
        return not self.columns.any()


NOWHERE = SlicePositions(np.zeros(0, np.int64), np.zeros(0, np.int64))
"""No slices or groups."""


class SliceWeights(NamedTuple):
    """Noise of slices: every entry has the relative precision ω̄ of its slice.

    Attributes
    ----------
    relative : (G,) ω̄
    at : the slices of the entries
    """

    relative: Array
    at: SlicePositions


class Mixture(NamedTuple):
    """The two branches of an entry, noise alone (spike) or with an outlier (slab), and their prior weights.

    Attributes
    ----------
    spike, slab : ln f of each branch
    log_rates : (2, G) ln π and ln(1 − π) of slices; G = 1 where the rate is common
    at : the slices of the entries, for rates
    log_sides : (2,) added to the slab where y ≥ x̄, and where y < x̄
    log_law : (B,) ln h(y) in equal bins of y, in place of the slab where outliers replace the data; empty otherwise
    law_range : (2,) where these bins begin, and how many of them there are per unit of y
    log_counted : (G,) subtracted from ln h(y), for the slices of the noise; G = 1 where the noise is common
    groups : the group of every entry, 0, 1, …, whose entries share an outlier indicator, within rows of complete data;
        empty where entries are independent
    n_channels : χ, the number of entries of a group per independent one
    clipped : standard deviations at which residuals are clipped before their correlation is measured
    """

    spike: EvidenceTable
    slab: EvidenceTable
    log_rates: Array
    at: SlicePositions
    log_sides: Array
    log_law: Array
    law_range: Array
    log_counted: Array
    groups: SlicePositions
    n_channels: float
    clipped: float


class StructureSums(NamedTuple):
    """Sums over entries whose outliers have a structure.

    Attributes
    ----------
    regular_counts, regular_totals : histogram of ω̄ D of regular entries, Σ (1 − p) and Σ (1 − p) ω̄ D in each bin
    outlying_counts, outlying_totals : the same of outliers, weighted by p
    law : Σ p in each bin of the law of replaced values; empty without one
    rates : (G,) Σ p over each slice of the outlier rates; empty where all entries have the same
    groups : Σ p and number of the groups that share an outlier, or of the entries where each is on its own; Σ of the
        squared sums, and Σ of the squares, of clipped residuals of regular entries in groups
    positive : histogram of ω̄ D of entries with y ≥ x̄; empty where outliers have no sides
    sides : Σ p of entries with y ≥ x̄, and of the others
    """

    regular_counts: Array
    regular_totals: Array
    outlying_counts: Array
    outlying_totals: Array
    law: Array
    rates: Array
    groups: Array
    positive: Array
    sides: Array


class PassSums(NamedTuple):
    """Sums to which a pass adds the contribution of a block.

    Attributes
    ----------
    counts, totals : histogram of ω̄ D, number and sum in each bin
    squares : (G,) Σ ρ w over each slice of the noise; empty where it is common
    replaced : (G,) Σ p over each slice of the noise, where outliers replace the data
    structured : where outliers have a structure; otherwise empty
    products : (C, R) the completed data, weighted, times the new rows; empty where none are solved for
    """

    counts: Array
    totals: Array
    squares: Array
    replaced: Array
    structured: StructureSums | tuple[()]
    products: Array = NO_PRODUCTS


@dataclass(frozen=True, eq=False)
class WeighedEntries:
    """Sums over the local posteriors of entries, and per-entry results.

    Attributes
    ----------
    log_evidence : Σ ln f
    weight_sum : Σ w
    largest : the largest ω̄ D
    rho : (m,) ρ
    weight : (m,) w
    outlier : (m,) responsibility p, of a mixture; None of a table
    """

    log_evidence: float
    weight_sum: float
    largest: float
    rho: Array
    weight: Array
    outlier: Array | None = None


@dataclass(frozen=True, eq=False)
class CompletedRows:
    """Result of one pass over a block of complete data.

    Attributes
    ----------
    log_evidence, weight_sum, largest : see :class:`WeighedEntries`
    mean : (b, R) new rows of mode 0
    """

    log_evidence: float
    weight_sum: float
    largest: float
    mean: Array


def plain(array: Array) -> Array:
    """The array in C order and float64, of the type that the loops are compiled for."""
    if array.dtype == np.float64 and array.flags.carray:
        return array
    return np.require(array, np.float64, ["C", "W"])
