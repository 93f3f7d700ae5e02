"""The numbers behind the plots and the report page: what to draw, not how."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from brtf.data.arrays import Array
from brtf.data.description import label_text
from brtf.data.observations import Observations, entry_positions
from brtf.data.scale import root_mean_square
from brtf.data.times import as_times
from brtf.inference.trace import Kind, Record, comparable
from brtf.model.predictive import ErrorLaw
from brtf.model.row_priors import InOrder
from brtf.results.result import Result

MOST_HELD_OUT = 20_000
"""Largest number of held-out entries to compare: coverage is then accurate to 0.7 %, two standard deviations."""
LEVELS = np.array([0.05, *np.linspace(0.1, 0.9, 9), 0.95, 0.99])
MOST_DOTS = 60
"""Number of positions of a profile that have a dot each."""
N_BINS = 61
"""Bins of the histogram of the residuals."""
MARKS = {
    Kind.BIRTH: "birth",
    Kind.DEATH: "death",
    Kind.MERGE: "merge",
    Kind.CONDENSE: "merge",
    Kind.PRUNE: "prune",
}
"""Events that change the number of components, by the marks that stand for them in a picture."""


# ---- names ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Axis:
    """Name and labels of a mode and its positions.

    Attributes
    ----------
    name : name of the mode
    kind : "position" without labels, "number" or "date" for increasing labels, else "name"
    values : (I,) coordinate of each position on an axis
    labels : (I,) the labels, or the positions themselves
    """

    name: str
    kind: Literal["position", "number", "date", "name"]
    values: Array
    labels: NDArray[Any]

    @property
    def length(self) -> int:
        return self.labels.size

    def text(self, position: int) -> str:
        """The label of a position, as text."""
        return label_text(self.labels[position])

    def number(self, position: int) -> float | None:
        """The position or its label as a number to sort by; None if that is a name or a date."""
        return float(self.values[position]) if self.kind in ("number", "position") else None


def axis_of(observations: Observations, mode: int) -> Axis:
    """The axis of a mode, with its labels if it has any."""
    length, given = observations.shape[mode], observations.mode_labels[mode]
    name = str(observations.dim_names[mode]) if observations.dim_names else f"mode {mode}"
    if given is None:
        return Axis(name, "position", np.arange(length, dtype=np.float64), np.arange(length))
    return _labelled_axis(name, given)


def axis_with(axis: Axis, more: NDArray[Any]) -> Axis:
    """An axis with further labels after its own."""
    if axis.kind == "position":
        length = axis.length + more.size
        return Axis(axis.name, "position", np.arange(length, dtype=np.float64), np.arange(length))
    own = axis.labels
    if own.dtype.kind != more.dtype.kind:
        own, more = own.astype(object), more.astype(object)
    return _labelled_axis(axis.name, np.concatenate([own, more]))


def _labelled_axis(name: str, given: NDArray[Any]) -> Axis:
    positions = np.arange(given.size, dtype=np.float64)
    times = as_times(given)
    if times is not None or given.dtype.kind in "iuf":
        values = given.astype(float) if times is None else times.astype("M8[us]").astype(np.int64).astype(np.float64)
        if np.isfinite(values).all() and (np.diff(values) > 0).all():
            return Axis(name, "number" if times is None else "date", values, given)
    return Axis(name, "name", positions, given)


def axis_of_factor(result: Result, group: int) -> Axis:
    """The axis of a factor: that of its mode, or the positions of modes that were read as one, in C order.

    Of a folded mode there are two: the rounds, each at the label of its first position, and the phases.
    """
    arrangement = result.arrangement
    modes = arrangement.read_modes[group]
    if modes[0] in arrangement.periods:
        axis, period = axis_of(result.observations, modes[0]), arrangement.periods[modes[0]]
        if arrangement.read_modes[group - 1 : group] == (modes,):
            name = f"{axis.name}, within a round of {period}"
            return Axis(name, "position", np.arange(period, dtype=np.float64), np.arange(period))
        return Axis(f"{axis.name}, in rounds of {period}", axis.kind, axis.values[::period], axis.labels[::period])
    if len(modes) == 1:
        return axis_of(result.observations, modes[0])
    axes = [axis_of(result.observations, mode) for mode in modes]
    length = math.prod(axis.length for axis in axes)
    name = " · ".join(axis.name for axis in axes)
    return Axis(name, "position", np.arange(length, dtype=np.float64), np.arange(length))


def follow_each_other(result: Result, group: int, axis: Axis) -> bool:
    """Whether a line may join the loadings of a factor: not between names, nor between few rows of a mere set."""
    if axis.kind != "position":
        return axis.kind != "name"
    return isinstance(result.state.row_priors[group], InOrder) or axis.length > MOST_DOTS


def longest_modes(shape: tuple[int, ...]) -> tuple[int, int]:
    """The two longest modes, in increasing order: the most useful ones for a map of a tensor."""
    first, second = sorted(np.argsort([-length for length in shape], kind="stable")[:2].tolist())
    return first, second


# ---- components ----------------------------------------------------------------------------------------------


def component_names(result: Result, names: Sequence[str] | None) -> list[str]:
    """The user's names of the components, one each in the order of the columns of the factors, or their numbers."""
    if names is None:
        return [f"component {component}" for component in range(result.rank)]
    if isinstance(names, str) or len(names) != result.rank or not all(isinstance(name, str) for name in names):
        got = repr(names) if isinstance(names, str) else f"{len(names)}: {list(names)!r}"
        raise ValueError(f"names must be a text for each of the {result.rank} components, strongest first, got {got}.")
    return list(names)


def by_strength(result: Result) -> NDArray[np.intp]:
    """The components from the strongest to the weakest, (R,)."""
    return np.argsort(-result.strengths, kind="stable")


def factor_profiles(result: Result) -> list[tuple[Array, Array]]:
    """Means and standard deviations (I_n, R) of the factor of every mode or group of merged modes.

    Each column has root mean square one.

    The size of a component is reported as its strength. Signs can be moved between modes: in every mode but the last
    that has negative loadings at all, the entry of largest size is made positive.
    """
    profiles = []
    flips = np.ones((len(result.rows), result.rank))
    signed = [mode for mode, prior in enumerate(result.state.row_priors) if prior.signed]
    for mode in signed[:-1]:
        mean = result.rows[mode].mean
        flips[mode] = np.where(mean[np.argmax(np.abs(mean), axis=0), np.arange(result.rank)] < 0, -1.0, 1.0)
    if signed:
        flips[signed[-1]] = np.prod(flips, axis=0)
    for flip, rows in zip(flips, result.rows, strict=True):
        size = np.sqrt(np.mean(rows.mean**2, axis=0))
        size = np.where(size > 0, size, 1.0)
        std = np.broadcast_to(np.sqrt(np.einsum("irr->ir", rows.cov)), rows.mean.shape)
        profiles.append((flip * rows.mean / size, std / size))
    return profiles


def leverages(result: Result) -> dict[tuple[int, ...], Array]:
    """How much every row shapes the components: the diagonal of A (AᵀA)⁺ Aᵀ, (I_n,), by modes or groups of them."""
    found = {}
    for modes, factor in result.mode_factors().items():
        size = np.linalg.norm(factor, axis=0)
        left, values, _ = np.linalg.svd(factor / np.where(size > 0, size, 1.0), full_matrices=False)
        used = values > values.max(initial=0.0) * 1e-10
        found[modes] = np.sum(left[:, used] ** 2, axis=1)
    return found


def slice_misfit(result: Result, mode: int) -> Array:
    """Root mean square of the residuals at every position of a mode, (I_n,), in standard deviations of their noise.

    An entry counts as much as it may be no outlier; NaN where nothing was observed.
    """
    regular = 1.0 - result.outlier_probability_at_entries()
    positions, length = entry_positions(result.observations, [mode]), result.observations.shape[mode]
    with np.errstate(invalid="ignore", divide="ignore"):
        square = np.bincount(positions, regular * result.standardized_residuals() ** 2, length)
        return np.sqrt(square / np.bincount(positions, regular, length))


def half_width(level: float) -> float:
    """Half width of a central Gaussian interval of the given level, in standard deviations."""
    if not 0 < level < 1:
        raise ValueError(f"level must be a number between 0 and 1, got {level!r}.")
    return float(ndtri(0.5 * (1 + level)))


# ---- the course of the fit -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Move:
    """A change of the structure, kept or dropped: one of ``birth``, ``death``, ``merge``, ``prune``, ``other``."""

    kind: str
    kept: bool
    record: Record


def moves(trace: tuple[Record, ...]) -> list[Move]:
    """The events of a trace, in order."""
    return [
        Move(MARKS.get(record.event.kind, "other"), record.event.accepted, record)
        for record in trace
        if record.event.kind is not Kind.SWEEP
    ]


def nats_below_best(trace: tuple[Record, ...]) -> tuple[Array, Array, float]:
    """Sweeps, how far the bound was then below the best one, in nats, and what counts as none.

    Records without a finite bound are left out, and so are those that do not compare with the last. The last number is
    a power of ten below every gap of a hundredth of a nat or more: on a logarithmic scale smaller gaps stand there.
    """
    records = comparable(trace)
    sweeps = np.array([record.sweep for record in records], dtype=np.float64)
    bounds = np.array([record.bound for record in records])
    finite = np.isfinite(bounds)
    gap = bounds[finite].max(initial=-np.inf) - bounds[finite]
    smallest = float(np.min(gap, initial=1.0, where=gap >= 1e-2))
    return sweeps[finite], gap, 10.0 ** (math.ceil(math.log10(smallest)) - 1)


# ---- residuals -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ResidualHistogram:
    """Residuals t(y) − x̄ in standard deviations of the noise, and the counts expected from the fitted distribution.

    The bins have equal width in asinh of the residual, because outliers may be a thousand times as large as the noise.

    Attributes
    ----------
    edges : (B+1,) of the bins
    count : (B,) entries in each
    expected : (B,) counts expected from noise and outliers
    noise : (B,) counts expected from noise alone; equal to ``expected`` if outliers have no common distribution
    """

    edges: Array
    count: Array
    expected: Array
    noise: Array


def residual_histogram(result: Result) -> ResidualHistogram:
    """The residuals of all observed entries against the fitted distribution of noise and outliers."""
    residuals = np.arcsinh(result.standardized_residuals())
    reach = max(float(np.abs(residuals).max()) * (1 + 1e-9), np.arcsinh(4.0))
    edges = np.linspace(-reach, reach, N_BINS + 1)
    count = np.histogram(residuals, edges)[0].astype(np.float64)
    law, structure = result.error_law, result.state.structure
    alone = ErrorLaw(law.weight[:1], law.dof[:1], law.scale_sq[:1], law.reach[:1])
    if structure is not None and structure.law is not None:  # of values, not of deviations
        law = alone
    noise_sd = float(np.sqrt(result.state.noise_variance))
    expected, noise = (result.observations.n_observed * _bin_masses(part, edges, noise_sd) for part in (law, alone))
    return ResidualHistogram(np.sinh(edges), count, expected, noise)


def _bin_masses(law: ErrorLaw, edges: Array, unit: float) -> Array:
    """Probability of each bin between edges in asinh(residual / unit), by the midpoint rule with 32 points per bin."""
    n_points = 32
    step = (edges[1] - edges[0]) / n_points
    points = edges[:-1, None] + step * (np.arange(n_points) + 0.5)
    deviation = unit * np.sinh(points)
    density = np.exp(law.log_density(deviation, np.zeros_like(deviation)))
    return step * unit * (density * np.cosh(points)).sum(axis=1)


# ---- outliers ------------------------------------------------------------------------------------------------


def outlier_rates(observations: Observations, probability: Array, mode: int) -> Array:
    """Mean outlier probability of the observed entries at every position of a mode, (I_n,); NaN where none is.

    ``probability`` is that of the observed entries, (M,).
    """
    return _mean_by(entry_positions(observations, [mode]), probability, observations.shape[mode])


def outlier_map(
    observations: Observations, probability: Array, modes: tuple[int, int], *, most_cells: int = 160
) -> Array:
    """Mean outlier probability over two modes, the first vertical; NaN where nothing was observed.

    If a mode is longer than ``most_cells``, neighbouring positions share a cell.
    """
    lengths = tuple(observations.shape[mode] for mode in modes)
    cells = tuple(min(length, most_cells) for length in lengths)
    row, column = np.divmod(entry_positions(observations, modes), lengths[1])
    cell = (row * cells[0] // lengths[0]) * cells[1] + column * cells[1] // lengths[1]
    return _mean_by(cell, probability, cells[0] * cells[1]).reshape(cells)


def full_colour(observations: Observations, cells: Array) -> float:
    """The mean outlier probability shown in full colour on a map: the largest, or that of one outlier per cell."""
    return max(float(np.nanmax(cells)), np.count_nonzero(~np.isnan(cells)) / observations.n_observed)


def _mean_by(group: NDArray[np.intp], values: Array, n_groups: int) -> Array:
    count = np.bincount(group, minlength=n_groups)
    total = np.bincount(group, weights=values, minlength=n_groups)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


# ---- calibration ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Calibration:
    """How well a fit predicts held-out entries.

    Attributes
    ----------
    level : (L,) levels of the intervals of a new observation
    covered : (L,) share of the held-out values inside the intervals
    n_entries : held-out entries that were compared
    rmse, mae, log_density : root mean square and mean of |y − x̄|, and the mean log predictive density in nats
    """

    level: Array
    covered: Array
    n_entries: int
    rmse: float
    mae: float
    log_density: float


def calibration(result: Result, held_out: Observations, most: int = MOST_HELD_OUT) -> Calibration:
    """Compare the model's intervals with held-out entries; every k-th of them if there are more than ``most``.

    The intervals do not include a conformal factor.
    """
    result = replace(result, held_back=None)
    every = -(-held_out.n_observed // most)
    chosen = np.zeros(held_out.n_observed, dtype=bool)
    chosen[::every] = True
    held_out = held_out.select(chosen)
    coords, values = held_out.entry_coords(), held_out.values.ravel().astype(np.float64)
    error = values - result.low_rank(coords)
    covered = []
    for level in LEVELS:
        low, high = result.interval(coords, level=float(level), of="observation")
        covered.append(np.mean((low <= values) & (values <= high)))
    return Calibration(
        level=LEVELS,
        covered=np.array(covered),
        n_entries=values.size,
        rmse=root_mean_square(error),
        mae=float(np.mean(np.abs(error))),
        log_density=float(np.mean(result.log_density(held_out))),
    )
