"""Forecasts: what comes after the last position of an ordered mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.data.checks import Labels, is_whole
from brtf.data.description import label_text
from brtf.data.exports import Table, as_frame, long_table, mode_names, to_dataset
from brtf.data.memory import check_memory
from brtf.data.observations import Observations
from brtf.data.positions import Positions, continued, joined, steps_onward
from brtf.data.times import as_times, check_times
from brtf.model.distributions import RowGaussians
from brtf.model.row_priors import NonNegativeOrder, Ordered
from brtf.results.choice_words import modes_in_words, named_modes
from brtf.results.misfit_ahead import MisfitAhead, misfit_ahead
from brtf.results.rows_ahead import rows_ahead
from brtf.search.periods_of_rows import possible_periods

if TYPE_CHECKING:
    from brtf.results.result import Quantity, Result

LONGEST = 10**7
"""Longest horizon: beyond it positions are not numbers that a person means."""


@dataclass(frozen=True, eq=False)
class Forecast:
    """The positions that follow the data along one mode, in the user's units.

    Attributes
    ----------
    mode : the mode that goes on
    labels : (h,) labels of the new positions: times and numbers continue at their typical distance
    mean, std, low, high : of the shape of the data, with h positions along the mode
    level : probability of the interval from ``low`` to ``high``
    of : "observation" for new observations, "low_rank" for the low-rank part
    observations : the new positions as data without any entry, in the container of the fitted data
    """

    mode: int
    labels: NDArray[Any]
    mean: Array
    std: Array
    low: Array
    high: Array
    level: float
    of: Quantity
    observations: Observations

    def __repr__(self) -> str:
        name = mode_names(self.observations)[self.mode]
        ends = f"{label_text(self.labels[0])} … {label_text(self.labels[-1])}"
        return f"Forecast({name} {ends}, shape={self.mean.shape}, level={self.level:g}, of={self.of!r})"

    @property
    def table(self) -> Table:
        """A row per entry as columns by name: labels or positions, mean, std, low, high."""
        coords = np.indices(self.mean.shape).reshape(self.mean.ndim, -1)
        return long_table(self.observations, coords, [(name, array.ravel()) for name, array in self._arrays.items()])

    @property
    def _arrays(self) -> dict[str, Array]:
        return {"mean": self.mean, "std": self.std, "low": self.low, "high": self.high}

    def to_frame(self) -> Any:
        """The table as a pandas.DataFrame, or a polars.DataFrame if the data came in one."""
        return as_frame(self.table, self.observations)

    def to_xarray(self) -> Any:
        """An xarray.Dataset of ``mean``, ``std``, ``low`` and ``high``, with labels and units."""
        return to_dataset(self.observations, self._arrays, {}, {}, {"level": self.level, "of": self.of})


def forecast(
    result: Result, horizon: int, mode: int | str | None = None, level: float = 0.9, of: Quantity = "observation"
) -> Forecast:
    """The next ``horizon`` positions of an ordered mode; None for the only one. See :meth:`brtf.BRTF.forecast`."""
    if not is_whole(horizon) or not 1 <= horizon <= LONGEST:
        raise ValueError(f"horizon must be a whole number of positions between 1 and {LONGEST}, got {horizon!r}.")
    chosen = _ordered_mode(result, mode)
    check_times(result.observations.mode_labels[chosen], chosen, backwards=False)
    ahead = _continued(result, chosen, int(horizon))
    shape = list(ahead.observations.shape)
    first, shape[chosen] = shape[chosen] - int(horizon), int(horizon)
    n_numbers = int(np.prod(shape, dtype=float))
    check_memory(8 * (len(shape) + 12) * n_numbers, f"a forecast of shape {tuple(shape)}", "lower horizon")
    coords = np.indices(shape).reshape(len(shape), -1)
    coords[chosen] += first
    low, high = ahead.interval(coords, level=level, of=of)
    mean = ahead.low_rank(coords) if of == "low_rank" else ahead.signal(coords)
    columns = {"mean": mean, "std": ahead.std(coords, of=of), "low": low, "high": high}
    known = ahead.observations.labels
    names = None if known is None else known.coords[chosen]
    labels = np.arange(first, first + int(horizon)) if names is None else names[first:]
    return Forecast(
        mode=chosen,
        labels=labels,
        **{name: column.reshape(shape) for name, column in columns.items()},
        level=level,
        of=of,
        observations=_unseen(result.observations, tuple(shape), chosen, labels),
    )


def _unseen(seen: Observations, shape: tuple[int, ...], mode: int, labels: NDArray[Any]) -> Observations:
    """Other positions of one mode, with their labels, as data without any entry."""
    own = seen.mode_labels
    named = Labels(tuple(mode_names(seen)), (*own[:mode], labels, *own[mode + 1 :]), seen.name)
    container = None if seen.container is None else seen.container.followed_by(None, named, mode)
    nothing = np.zeros((seen.order, 0), np.intp)
    return Observations(shape, np.zeros(0), None, nothing, seen.scale, named, container=container)


def forecast_modes(result: Result) -> tuple[int, ...]:
    """The modes that can be continued: those whose rows follow each other."""
    priors = zip(result.arrangement.read_modes, result.state.row_priors, strict=True)
    return tuple(group[0] for group, prior in priors if len(group) == 1 and _goes_on(result, group[0], prior))


def _goes_on(result: Result, mode: int, prior: Any) -> bool:
    """Whether the prior is one of rows in order, and the first of a folded mode, whose rounds go on."""
    first = result.arrangement.read_modes.index((mode,))
    return isinstance(prior, Ordered) and not prior.form.ring and result.state.row_priors[first] is prior


def _has_times(observations: Observations, mode: int) -> bool:
    own = observations.mode_labels[mode]
    return own is not None and as_times(own) is not None


def _ordered_mode(result: Result, mode: int | str | None) -> int:
    """The mode asked for, or the only ordered one, or the only one of these whose labels are times."""
    known, order = forecast_modes(result), result.observations.order
    names = result.observations.dim_names
    if mode is None:
        of_times = [ordered for ordered in known if _has_times(result.observations, ordered)]
        for candidates in (known, of_times):
            if len(candidates) == 1:
                return candidates[0]
        if known:
            first = repr(names[known[0]]) if names else known[0]
            raise ValueError(
                f"Several modes are in order, {named_modes(result, known)}: say which one to continue, such as "
                f"mode={first} (--mode {names[known[0]] if names else known[0]})."
            )
        of_times = [own for own in range(order) if _has_times(result.observations, own)]
        likely = names[of_times[0]] if names and len(of_times) == 1 else None
        raise ValueError(
            "No mode is in order in a way that goes on, so there is nothing to continue. Fit with "
            f"modes={{{'mode' if likely is None else repr(likely)}: 'ordered'}} (--modes {likely or 'MODE'}=ordered) "
            f"to say which is."
        )
    if isinstance(mode, str) and mode in names:
        mode = names.index(mode)
    if not is_whole(mode) or not -order <= mode < order:
        of_names = f" or one of {', '.join(map(repr, names))}" if names else ""
        raise ValueError(f"mode must be a mode of the data, 0 to {order - 1}{of_names}, got {mode!r}.")
    chosen = result.arrangement.factors_of(int(mode) % order, result.observations.shape)[0][0]
    prior = result.state.row_priors[chosen]
    if isinstance(prior, Ordered) and prior.form.ring:
        raise ValueError(
            f"Mode {mode} is cyclic: its last row is followed by the first. Fit with modes={{{mode}: 'ordered'}} to "
            "forecast."
        )
    if isinstance(prior, NonNegativeOrder):
        raise ValueError(
            f"Rows without negative loadings are not continued. Fit with modes={{{mode}: 'ordered'}} to forecast."
        )
    if int(mode) % order not in known:
        found = (
            f"{modes_in_words(known)} is" if len(known) == 1 else f"{modes_in_words(known)} are" if known else "none is"
        )
        raise ValueError(f"The rows of mode {mode} are in no order; {found}. Fit with modes={{{mode}: 'ordered'}}.")
    return int(mode) % order


def _continued(result: Result, mode: int, horizon: int) -> Result:
    """The result with further, unobserved positions along a mode."""
    observations, arrangement = result.observations, result.arrangement
    length = observations.shape[mode]
    shape = (*observations.shape[:mode], length + horizon, *observations.shape[mode + 1 :])
    factor = arrangement.read_modes.index((mode,))
    rows, prior = result.state.factors[factor], result.state.row_priors[factor]
    n_more = arrangement.shape(shape)[factor] - rows.n_rows
    if not isinstance(prior, Ordered):
        raise TypeError(f"the rows of mode {mode} are in no order")
    labels, own = observations.labels, observations.mode_labels[mode]
    later = None if own is None else continued(own, length, horizon)
    steps = steps_onward(own, later, horizon)
    folded = mode in arrangement.periods
    more = _rows_ahead(result, mode, rows, prior, np.arange(1.0, n_more + 1.0) if folded else steps)
    misfit = _misfit_ahead(result, mode, steps)
    covs = [np.broadcast_to(part.cov_packed, (part.n_rows, part.cov_packed.shape[1])) for part in (rows, more)]
    all_rows = RowGaussians(np.concatenate([rows.mean, more.mean]), np.concatenate(covs))
    if labels is not None:
        whole = None if own is None or later is None else joined(own, later)
        labels = Labels(labels.dims, (*labels.coords[:mode], whole, *labels.coords[mode + 1 :]), labels.name)
    coords = np.zeros((observations.order, 0), np.intp)
    values: NDArray[np.floating[Any]] = np.zeros(0)
    if result.state.smooth is not None:  # courses of their own go on from what was observed
        if not arrangement.is_as_given:
            raise ValueError(
                "A forecast beside a smooth residual needs every mode read on its own. Fit with arrangement=None, or "
                "with smooth_residual=None."
            )
        coords, values = observations.entry_coords(), observations.values.reshape(-1)
    unseen = Observations(shape, values, None, coords, observations.scale, labels)
    state = result.state.with_factor(factor, all_rows).without_slices_along(factor)
    return replace(result, observations=unseen, state=state, misfit=misfit)


def _misfit_ahead(result: Result, mode: int, steps: Array) -> MisfitAhead | None:
    """The part of the residuals that repeats with a period, continued; None beside a smooth residual, which covers it.

    ``steps`` are the distances from the last position to those that follow.
    """
    observations = result.observations
    along = Positions.of(observations.mode_labels[mode], observations.shape[mode])
    periods: Sequence[int] = along.periods
    if not periods and result.rank and mode not in result.arrangement.periods:
        factor = result.arrangement.read_modes.index((mode,))
        periods = possible_periods(result.state.factors[factor], result.state.lam, along)
    periods = [period for period in periods if 2 * period <= along.places[-1] + 1]
    if result.state.smooth is not None or observations.in_chunks or not periods:
        return None
    return misfit_ahead(result, mode, along.places, along.places[-1] + np.rint(steps).astype(np.int64), periods)


def _rows_ahead(result: Result, mode: int, rows: RowGaussians, prior: Ordered, steps: Array) -> RowGaussians:
    """The rows at these distances from the last one, with the periods given by the labels or suggested by the rows."""
    if rows.n_rows < 2:
        raise ValueError(f"mode {mode} has one position only: nothing tells how it goes on.")
    if not rows.rank:
        return RowGaussians(np.zeros((steps.size, 0)), np.zeros((steps.size, 0, 0)))
    fold = result.arrangement.periods.get(mode, 1)
    along = Positions.of(result.observations.mode_labels[mode], result.observations.shape[mode])
    calendar = [period // fold for period in along.periods if period % fold == 0]
    places = prior.places[-rows.n_rows :]
    own = Positions(prior.steps, (), np.rint(places).astype(np.int64))
    likely = [period for period in possible_periods(rows, result.state.lam, own) if 2 * period <= rows.n_rows]
    known = [period for period in calendar if 1 < period < rows.n_rows]
    others = [one.gram + one.cov_sum for one in result.state.factors if one is not rows]
    gram = np.prod(others, axis=0)
    return rows_ahead(rows, prior, result.state.lam, places, places[-1] + steps, known, likely, gram)
