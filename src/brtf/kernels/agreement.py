"""Whether compiled kernels agree with the reference, tried on a few entries before the first use of each kind.

Compiled code comes from a compiler of which a new version may be wrong, for a processor that nobody has tried, and out
of files. What it says of a few entries is therefore compared to the reference once in a process, for every type of
numbers and every width of sums that it is used for. That takes a few milliseconds in all; what differs is not used, but
stops the program.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from brtf.data.arrays import Array
from brtf.data.observations import Block
from brtf.kernels.arguments import PassSums
from brtf.kernels.reference import N_BINS
from brtf.model.distributions import pack_symmetric
from brtf.model.evidence_table import EvidenceTable

FEW = 37
"""Entries of a trial: some whole steps of any width, and a rest."""
SHAPE = (3, 4, 41)
"""Lengths of the modes of a trial, of which the last is long enough for products of thin matrices."""
TAU = 2.0
"""Precision of the entries of a trial."""
TOLERANCE = 1e-3
"""Largest difference, relative to the largest number: far above rounding in single precision, far below a mistake."""


class Agreement:
    """Compares two twins on trials, each of them once."""

    def __init__(self, compiled: ModuleType, reference: ModuleType) -> None:
        self._twins = compiled, reference
        self._passed: set[tuple[object, ...]] = set()

    def of_contract(self, block: Block, n_columns: int) -> None:
        """Contractions of a block of that layout with matrices of so many columns, rounded up to a power of two."""
        layout = "coordinates" if block.coords is not None else "complete" if block.mask is None else "masked"
        width = min(32, 1 << max(0, n_columns - 1).bit_length())
        if ("contract", layout, width) in self._passed:
            return
        rng = np.random.default_rng(0)
        matrices = [rng.standard_normal((length, width)) for length in SHAPE]
        for trial in (_trial(layout, 0.3, rng), _trial(layout, 0.9, rng)):
            for mode, length in enumerate(SHAPE):
                found = [np.ones((length, width)) for _ in self._twins]
                for twin, out in zip(self._twins, found, strict=True):
                    twin.contract(trial, trial.values, matrices, mode, out)
                _compare("contract", f"of a {layout} block, {width} columns", *found)
        self._passed.add(("contract", layout, width))

    def of_local_posteriors(self, table: EvidenceTable, dtype: np.dtype[Any]) -> None:
        """Local posteriors by that table of entries of that type."""
        if ("local_posteriors", dtype) in self._passed:
            return
        residual, found = 3.0 * np.random.default_rng(0).standard_normal(FEW).astype(dtype), []
        for twin in self._twins:
            histogram = np.zeros((2, N_BINS))
            local = twin.local_posteriors(table, TAU, residual, None, None, *histogram)
            sums = np.array([local.log_evidence, local.weight_sum, local.largest])
            found.append([sums, local.rho, local.weight, histogram.sum(axis=1)])
        for parts in zip(*found, strict=True):
            _compare("local_posteriors", f"of {dtype}", *parts)
        self._passed.add(("local_posteriors", dtype))

    def of_solve_completed(self, table: EvidenceTable, largest_weight: float, dtype: np.dtype[Any]) -> None:
        """Rows of complete data of that type, solved for by that table."""
        if ("solve_completed", dtype) in self._passed:
            return
        rng, rank = np.random.default_rng(0), 6
        shapes = (3, FEW), (3, rank), (rank, FEW)
        values, left, right = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
        covs, offset, found = pack_symmetric(np.eye(rank))[None] / FEW, np.ones(rank), []
        for twin in self._twins:
            none = np.zeros(0)
            sums = PassSums(np.zeros(N_BINS), np.zeros(N_BINS), none, none, (), np.zeros((FEW, rank)))
            rows = twin.solve_completed(values, 1.5, left, right, table, TAU, largest_weight, None, covs, offset, sums)
            found.append([rows.mean, sums.products, np.array([rows.log_evidence, rows.weight_sum, rows.largest])])
        for parts in zip(*found, strict=True):
            _compare("solve_completed", f"of {dtype}", *parts)
        self._passed.add(("solve_completed", dtype))


def _compare(kernel: str, what: str, compiled: Array, reference: Array) -> None:
    """Stop where numbers of the compiled kernel are not those of the reference."""
    size = float(np.max(np.abs(reference), initial=0.0, where=np.isfinite(reference)))
    if np.allclose(compiled, reference, rtol=0.0, atol=TOLERANCE * size, equal_nan=True):
        return
    raise RuntimeError(
        f"The compiled kernel {kernel} ({what}) differs from the reference, by up to "
        f"{np.nanmax(np.abs(compiled - reference)):.3g} in numbers of up to {size:.3g}. Its code is wrong: remove the "
        "compiled code that is kept (__pycache__ of the package, or NUMBA_CACHE_DIR), try another version of Numba, or "
        "set BRTF_KERNELS=numpy, which does without compiled code and takes longer."
    )


def _trial(layout: str, share: float, rng: np.random.Generator) -> Block:
    """A block of that layout, with a share of its entries observed where it can have missing ones."""
    mask = rng.random(SHAPE) < share
    n_entries = mask.size if layout == "complete" else int(mask.sum())
    values, entries = rng.standard_normal(n_entries), slice(0, n_entries)
    if layout == "coordinates":
        return Block(entries, values, slice(0, SHAPE[0]), None, np.array(np.nonzero(mask)), SHAPE)
    return Block(entries, values, slice(0, SHAPE[0]), None if layout == "complete" else mask, None, SHAPE)
