"""Scattered light in fluorescence landscapes: which cells show it, by the wavelengths of emission and excitation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.data.checks import Labels
from brtf.data.observations import Observations, entry_positions

WATER = 3400.0
"""Raman shift of water, the stretching of O–H, per cm."""
AXES = ("emission", "excitation")
EXAMPLE = '{"width": 15, "emission": 1, "excitation": 2}'


def resolved(said: Any, dims: Sequence[str], order: int) -> dict[str, Any]:
    """What the option ``scatter`` says, in full: the width, the modes by number, and the Raman shift or None.

    Parameters
    ----------
    said : a width, or a dict of a width, modes by number or name, and a Raman shift
    dims : the names of the modes; none if they have none
    order : the number of modes
    """
    given = dict(said) if isinstance(said, Mapping) else {"width": said}
    modes = {axis: _mode_of(axis, given.get(axis), dims, order) for axis in AXES}
    if modes["emission"] == modes["excitation"]:
        raise ValueError(f"scatter needs two modes, but emission and excitation are both mode {modes['emission']}.")
    raman = given.get("raman", WATER)
    return {"width": float(given["width"]), **modes, "raman": None if raman is None else float(raman)}


def _mode_of(axis: str, said: Any, dims: Sequence[str], order: int) -> int:
    """The number of the mode of emission or excitation: the one named, or the one whose name begins like it."""
    if said is None:
        alike = [mode for mode, dim in enumerate(dims) if dim.lower().startswith(axis[:2])]
        if len(alike) != 1:
            known = f"Y has the modes {', '.join(map(repr, dims))}" if dims else "the modes of Y have no names"
            raise ValueError(f"scatter needs to know which mode is {axis}: {known}. Say so, as in scatter={EXAMPLE}.")
        return alike[0]
    if isinstance(said, str):
        if said not in dims:
            raise ValueError(f"scatter names {said!r} as {axis}, but Y has the modes {list(dims)}. Use its number.")
        return list(dims).index(said)
    if not -order <= said < order:
        raise ValueError(f"scatter says that {axis} is mode {said}, but Y has {order} modes, counted from 0.")
    return int(said) % order


def scattered(emission: Array, excitation: Array, width: float, raman: float | None) -> NDArray[np.bool_]:
    """Where scattered light is expected, (emission, excitation), from the wavelengths in nm.

    Rayleigh scatter of the first order and all below it, where nothing fluoresces; that of the second order, at twice
    the excitation; and Raman scatter at 1/(1/excitation − shift), likewise of both orders.
    """
    observed, lines = emission[:, None], [2.0 * excitation]
    if raman is not None:
        with np.errstate(divide="ignore"):
            line = 1.0 / np.maximum(1.0 / excitation - 1e-7 * raman, 0.0)  # a nm is 1e-7 cm
        lines += [line, 2.0 * line]
    near = [np.abs(observed - line) <= width for line in lines]
    return np.logical_or.reduce([observed - excitation <= width, *near])


def scatter_cells(said: Mapping[str, Any], labels: Labels | None) -> NDArray[np.bool_]:
    """:func:`scattered` for the wavelengths that label the modes of emission and excitation."""
    waves = [_wavelengths(axis, said[axis], labels) for axis in AXES]
    return scattered(waves[0], waves[1], said["width"], said["raman"])


def _wavelengths(axis: str, mode: int, labels: Labels | None) -> Array:
    own = None if labels is None else labels.coords[mode]
    if own is None or own.dtype.kind not in "iuf" or not (own > 0).all():
        what = "has no labels" if own is None else "has labels that are no positive numbers"
        raise ValueError(
            f"scatter needs the wavelengths of {axis}, but mode {mode} {what}. Pass an xarray.DataArray with "
            "nanometres as coordinates, or set the cells of scatter to NaN."
        )
    return own.astype(np.float64)


def without_scatter(
    observations: Observations, said: Mapping[str, Any] | None, labels: Labels | None = None
) -> Observations:
    """The observations without the entries where scattered light is expected; unchanged without the option.

    Wavelengths are the given labels, or those of the observations.
    """
    if said is None:
        return observations
    cells = scatter_cells(said, observations.labels if labels is None else labels)
    modes = sorted(said[axis] for axis in AXES)
    hidden = (cells if said["emission"] < said["excitation"] else cells.T).ravel()
    hit = hidden[entry_positions(observations, modes)]
    if hit.all():
        raise ValueError(
            f"scatter leaves no entry: all lie within {said['width']:g} nm of scattered light, or at emissions shorter "
            "than the excitation. Are the wavelengths in nm, and is emission the mode that is said to be?"
        )
    return observations.select(~hit)
