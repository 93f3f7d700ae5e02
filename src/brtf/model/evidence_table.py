"""A local model as a table: ln f and its slope for any ρ by one look-up, for every model.

An entry's share in the bound is a function of one number, so it is tabulated once per change of the model and looked up
for every entry. :mod:`brtf.kernels.tables` has the layout. Between knots ln f is interpolated by a cubic that matches
values and slopes.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.kernels.tables import FIRST_OCTAVE, LAST_OCTAVE, SHIFT, USUAL, EvidenceTable
from brtf.model.local_models import LocalModel

LOG2_SEGMENTS_EDGE = 12
"""Log2 of the segments per octave at the edge of a flat slab, at most."""


@lru_cache(maxsize=16)
def tabulate(model: LocalModel) -> EvidenceTable:
    """The table of a local model, accurate to about 1e-6 in ln f at the sharpest features."""
    log2_segments = _resolution(model)
    posterior = model.posterior(_segments(log2_segments)[1])
    return _cubics(log2_segments, posterior.log_evidence, posterior.weight)


@lru_cache(maxsize=16)
def tabulate_branches(model: LocalModel) -> tuple[EvidenceTable, EvidenceTable]:
    """The tables of a local model's two branches: noise alone, and with an outlier."""
    log2_segments = _resolution(model)
    knots = _segments(log2_segments)[1]
    log_spike, spike_weight, log_slab, slab_shrinkage = model.branches(knots)
    return (
        _cubics(log2_segments, log_spike, np.broadcast_to(spike_weight, knots.shape)),
        _cubics(log2_segments, log_slab, slab_shrinkage),
    )


def _cubics(log2_segments: tuple[int, ...], values: Array, weights: Array) -> EvidenceTable:
    """The table through values and weights at all knots."""
    first, lower, width = _segments(log2_segments)
    rise = np.diff(values) / width
    left, right = weights[:-1], weights[1:]
    rows = np.empty((width.size + 1, 6))
    rows[:-1, 0], rows[:-1, 1], rows[:-1, 2] = lower[:-1], 1.0 / width, values[:-1]
    quadratic = (left, -4.0 * left - 2.0 * right - 12.0 * rise, 3.0 * (left + right) + 12.0 * rise)
    for power, coefficient in enumerate(quadratic):  # of w in t; the change of ln f is −½ width times its integral
        rows[:-1, 3 + power] = (-0.5 / (power + 1)) * width * coefficient.astype(np.float32)
    rows[-1] = (lower[-1], 1.0, values[-1], -0.5 * weights[-1], 0.0, 0.0)
    return EvidenceTable(rows, first, np.array(log2_segments))


def _resolution(model: LocalModel) -> tuple[int, ...]:
    """ln₂ of the number of segments of each octave."""
    octaves, log2_segments = range(FIRST_OCTAVE, LAST_OCTAVE), list(USUAL)
    if model.edge is not None:
        finest = min(math.ceil(0.5 * math.log2(model.edge)) + 4, LOG2_SEGMENTS_EDGE)
        nearest = math.floor(math.log2(model.edge))
        for octave in range(nearest - 1, nearest + 2):
            if octave in octaves:
                place = octave - FIRST_OCTAVE
                log2_segments[place] = max(log2_segments[place], finest)
    return tuple(log2_segments)


@lru_cache(maxsize=64)
def _segments(log2_segments: tuple[int, ...]) -> tuple[NDArray[np.int64], Array, Array]:
    """Row of each octave's first segment, the segment boundaries, and the segment widths."""
    counts = np.array([1 << power for power in log2_segments])
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    lower = [2.0**octave * (1.0 + np.arange(n) / n) for octave, n in enumerate(counts, FIRST_OCTAVE)]
    ends = np.append(np.concatenate(lower), 2.0**LAST_OCTAVE)
    return first, ends - SHIFT, np.diff(ends)
