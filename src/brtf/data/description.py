"""What data are, in one line: for people who want to know whether they were understood."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from brtf.data.observations import Observations


def described(observations: Observations) -> str:
    """Modes with their lengths, names and first and last labels, what is missing, the name and the units."""
    dims = observations.dim_names or (None,) * observations.order
    modes = []
    for length, dim, own in zip(observations.shape, dims, observations.mode_labels, strict=True):
        ends = "" if own is None or not len(own) else f" ({label_text(own[0])} … {label_text(own[-1])})"
        modes.append(f"{length:,}{'' if dim is None else f' {dim}'}{ends}")
    missing = 100.0 * (1.0 - observations.n_observed / observations.n_entries)
    share = f"{missing:.3g} %" if missing else "none"
    told = f"{' × '.join(modes)}; {observations.n_observed:,} values, {share} missing"
    units = getattr(observations.container, "attrs", {}).get("units")
    if observations.name or units:
        told += f"; {observations.name or 'values'}{f' in {units}' if units else ''}"
    return told


def label_text(label: Any) -> str:
    """A label as people write it: dates without a time of day that is midnight, numbers with six digits."""
    if isinstance(label, datetime.datetime):
        label = np.datetime64(label.replace(tzinfo=None))
    if isinstance(label, np.datetime64):
        return "NaT" if np.isnat(label) else str(np.datetime_as_string(label, unit="auto"))
    return f"{label:.6g}" if isinstance(label, (float, np.floating)) else str(label)
