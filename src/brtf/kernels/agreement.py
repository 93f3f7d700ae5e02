"""Check that compiled kernels agree with the reference, on a few entries before the first use of each kind.

A new compiler version may be wrong, the processor may be untested, and cached code may be damaged. Compiled results for
a few entries are therefore compared with the reference once per process, for every number type and sum width in use.
This takes a few milliseconds in total; a difference raises an error.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from brtf.data.arrays import Array, read_only
from brtf.data.blocks import Block
from brtf.kernels.arguments import N_BINS, PassSums
from brtf.kernels.packed import pack_symmetric
from brtf.kernels.tables import EvidenceTable

FEW = 37
"""Entries of a check: several whole vectors of any width, and a remainder."""
SHAPE = (3, 4, 41)
"""Lengths of the modes of a check; the last is long enough for the thin-matrix products."""
TAU = 2.0
"""Noise precision of the entries of a check."""
TOLERANCE = 1e-3
"""Tolerance relative to the largest number: far above single-precision rounding, far below a real error."""


class Agreement:
    """Compare two implementations, once per kind of call."""

    def __init__(self, compiled: ModuleType, reference: ModuleType) -> None:
        self._twins = compiled, reference
        self._passed: set[tuple[object, ...]] = set()

    def of_contract(self, block: Block, n_columns: int) -> None:
        """Check contractions of a block of that layout with ``n_columns`` columns, rounded up to a power of two."""
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
        """Check local posteriors from that table for entries of that type."""
        if ("local_posteriors", dtype) in self._passed:
            return
        residual, found = 3.0 * np.random.default_rng(0).standard_normal(FEW).astype(dtype), []
        for twin in self._twins:
            none, histogram = np.zeros(0), np.zeros((2, N_BINS))
            sums = PassSums(histogram[0], histogram[1], none, none, ())
            local = twin.local_posteriors(table, TAU, residual, residual, None, None, sums)
            totals = np.array([local.log_evidence, local.weight_sum, local.largest])
            found.append([totals, local.rho, local.weight, histogram.sum(axis=1)])
        for parts in zip(*found, strict=True):
            _compare("local_posteriors", f"of {dtype}", *parts)
        self._passed.add(("local_posteriors", dtype))

    def of_solve_completed(self, table: EvidenceTable, largest_weight: float, dtype: np.dtype[Any]) -> None:
        """Check the solution for rows of complete data of that type with that table."""
        if ("solve_completed", dtype) in self._passed:
            return
        rng, rank = np.random.default_rng(0), 6
        shapes = (3, FEW), (3, rank), (rank, FEW)
        values, left, right = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
        values = read_only(values)  # as data are: the code is compiled for that
        covs, offset, found = pack_symmetric(np.eye(rank))[None] / FEW, np.ones(rank), []
        for twin in self._twins:
            none = np.zeros(0)
            sums = PassSums(np.zeros(N_BINS), np.zeros(N_BINS), none, none, (), np.zeros((FEW, rank)))
            rows = twin.solve_completed(
                read_only(values), 1.5, left, right, table, TAU, largest_weight, None, covs, offset, sums
            )
            found.append([rows.mean, sums.products, np.array([rows.log_evidence, rows.weight_sum, rows.largest])])
        for parts in zip(*found, strict=True):
            _compare("solve_completed", f"of {dtype}", *parts)
        self._passed.add(("solve_completed", dtype))


def _compare(kernel: str, what: str, compiled: Array, reference: Array) -> None:
    """Raise an error if results of the compiled kernel differ from the reference."""
    size = float(np.max(np.abs(reference), initial=0.0, where=np.isfinite(reference)))
    if np.allclose(compiled, reference, rtol=0.0, atol=TOLERANCE * size, equal_nan=True):
        return
    raise RuntimeError(
        f"The compiled kernel {kernel} ({what}) differs from the reference by up to "
        f"{np.nanmax(np.abs(compiled - reference)):.3g} in values of up to {size:.3g}, so it was compiled wrongly. "
        "Delete the cached code (__pycache__ of the package, or NUMBA_CACHE_DIR), try another version of Numba, or set "
        "BRTF_KERNELS=numpy, which needs no compiled code but is slower."
    )


def _trial(layout: str, share: float, rng: np.random.Generator) -> Block:
    """A random block of that layout, partly observed if the layout allows missing entries."""
    mask = read_only(rng.random(SHAPE) < share)
    n_entries = mask.size if layout == "complete" else int(mask.sum())
    values, entries = rng.standard_normal(n_entries), slice(0, n_entries)
    if layout == "coordinates":
        return Block(entries, values, slice(0, SHAPE[0]), None, read_only(np.array(np.nonzero(mask))), SHAPE)
    return Block(entries, values, slice(0, SHAPE[0]), None if layout == "complete" else mask, None, SHAPE)
