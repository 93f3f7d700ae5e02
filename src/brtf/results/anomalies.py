"""Anomalies at a chosen false discovery rate: single entries, and whole fibres, slices and rows.

An entry is an outlier with its posterior probability under the fitted model. A group of entries is judged as a whole,
so that it can be anomalous although each of its entries is only slightly off. Its evidence is the logarithm of a Bayes
factor: the probability of its entries if something is wrong with all of them, over their probability if nothing is.
What may be wrong is one of three, a third of the prior each:

- a **shift**: the same error is added to every entry, of size |δ| ~ half-Cauchy in units of the noise;
- a **spread**: every entry has additional noise of its own, whose size has the same prior;
- **outliers**: the group has its own share of outliers, uniform between 0 and 1.

The size is integrated out numerically, with the other entries and parameters as fitted. The share of anomalous groups
is unknown too, and has a uniform prior.

A fit may spend a component on an anomalous group. That is no pattern which the group shares with others, so a component
that no other group uses is left out where that group is judged. Where every slice has its own noise or share of
outliers, or several slices share a component that is constant elsewhere, slices are compared by what the fit found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.data.checks import count_of, is_real, is_whole
from brtf.data.exports import Table, distinct_names, long_table, mode_names
from brtf.results.group_evidence import KINDS, Evidence, private_positions
from brtf.results.result import Result

Of = Literal["entries", "fibres", "slices", "rows"]


def discoveries(probability: Array, q: float) -> NDArray[np.intp]:
    """The largest set with an expected share of false discoveries of at most q, the most probable first.

    The expected share is the mean of 1 − p over the set; it cannot fall as less probable ones are added.
    """
    if not is_real(q) or not 0 < q < 1:
        raise ValueError(f"q must be a number between 0 and 1, the share of false discoveries, got {q!r}.")
    order = np.argsort(-probability, kind="stable")
    expected = np.cumsum(1.0 - probability[order]) / np.arange(1, probability.size + 1)
    return order[: int(np.searchsorted(expected, q, side="right"))]


def anomaly_table(
    result: Result,
    q: float,
    *,
    of: str = "entries",
    mode: int | str | None = None,
    level: float = 0.95,
    first_position: int = 0,
    shares: Result | None = None,
) -> Table:
    """The anomalies as columns by name, the most probable first; see :meth:`brtf.BRTF.anomalies`.

    ``shares`` is the fit whose share of anomalous groups applies; None: this one.
    """
    if not isinstance(of, str) or of not in get_args(Of):
        raise ValueError(f"of must be one of {', '.join(map(repr, get_args(Of)))}, got {of!r}.")
    if of == "entries":
        if mode is not None:
            raise ValueError(f"mode applies to fibres and slices, got mode={mode!r} for entries: leave it out.")
        return _entry_table(result, q, level, first_position)
    kinds = [Evidence.of(result, group, fitted=shares is None) for group in groupings(result, of, mode)]
    earlier = kinds if shares is None else [Evidence.of(shares, found.fixed) for found in kinds]
    pairs = zip(kinds, earlier, strict=True)
    probability = [Evidence.probability_of(found.total, before.total) for found, before in pairs]
    return _group_table(result, kinds, probability, q, level, first_position)


def _entry_table(result: Result, q: float, level: float, first_position: int) -> Table:
    """Labels or positions of the modes, then observed, expected, low, high and probability."""
    observations, probability = result.observations, result.outlier_probability_at_entries()
    chosen = discoveries(probability, q)
    values = observations.values.ravel()[chosen].astype(np.float64)
    coords = observations.entry_coords()[:, chosen]
    columns = _expectations(result, coords, level)
    far = np.abs(values - columns[0])
    order = np.lexsort([-far, -probability[chosen]])
    numbers_shown = zip(
        ("observed", "expected", "low", "high", "probability"), [values, *columns, probability[chosen]], strict=True
    )
    table = [(name, column[order]) for name, column in numbers_shown]
    return long_table(observations, coords[:, order], table, first_position=first_position)


def _expectations(result: Result, coords: NDArray[np.intp], level: float) -> tuple[Array, Array, Array]:
    """The low-rank part at some entries, and the interval of a regular observation."""
    if coords.shape[1] == 0:
        result.interval(np.zeros((result.observations.order, 1), np.intp), level=level)  # raises for a wrong level
        return np.empty(0), np.empty(0), np.empty(0)
    return result.low_rank(coords), *result.interval(coords, level=level, of="observation", regular=True)


SINGULAR = {"entries": "entry", "fibres": "fibre", "slices": "slice", "rows": "row"}


def count_in_words(of: str, found: Table, q: float, n_observed: int) -> str:
    """How many there are in a list, and how many of them are expected to be false alarms."""
    n = int(found["probability"].size)
    if not n:
        return f"No {SINGULAR[of]} looks wrong, at a false discovery rate of {100 * q:g} %."
    among = f" of {n_observed:,}" if of == "entries" else ""
    wrong = float(np.sum(1.0 - found["probability"]))
    alarms = "a false alarm is unlikely" if wrong < 0.1 else "a false alarm is possible"
    if wrong >= 0.5:
        n_wrong = round(wrong)
        alarms = f"expect about {count_of(n_wrong, 'false alarm', 'false alarms')}"
    if n == 1:
        return f"1{among} {of if among else SINGULAR[of]} looks wrong."
    return f"{n:,}{among} {of} look wrong; {alarms} among them."


# ---- groups ------------------------------------------------------------------------------------------------


def groupings(result: Result, of: str, mode: int | str | None) -> list[tuple[int, ...]]:
    """The modes at whose positions each kind of group is fixed: one per kind of slice or fibre asked for."""
    order = result.observations.order
    names = mode_names(result.observations)
    if of == "rows":
        if mode is not None:
            raise ValueError(f'rows are the slices of the first mode: leave out mode={mode!r}, or ask of="slices".')
        return [(0,)]
    if isinstance(mode, str) and mode in names:
        mode = names.index(mode)
    if mode is None:
        chosen = list(range(order))
    elif is_whole(mode) and -order <= mode < order:
        chosen = [int(mode) % order]
    else:
        raise ValueError(f"mode must be None, a mode from 0 to {order - 1} or one of {names}, got {mode!r}.")
    if of == "slices":
        return [(fixed,) for fixed in chosen]
    return [tuple(other for other in range(order) if other != along) for along in chosen]


def shared_pattern(result: Result) -> Result:
    """The result without the components that belong to one row of the first mode alone, to judge new rows by."""
    keep = np.array([place is None for place in private_positions(result, (0,))], dtype=bool)
    return replace(result, state=result.state.select_components(keep))


def _group_table(
    result: Result,
    kinds: Sequence[Evidence],
    probabilities: Sequence[Array],
    q: float,
    level: float,
    first_position: int,
) -> Table:
    """Labels or positions of the fixed modes, then what is known about the groups.

    Groups of different kinds share one table; a mode along which a group extends has None as its label there.
    """
    found = discoveries(np.concatenate(probabilities), q)
    ends = np.cumsum([probability.size for probability in probabilities])
    tables = []
    for kind, probability, end in zip(kinds, probabilities, ends, strict=True):
        mine = found[(found >= end - probability.size) & (found < end)] - (end - probability.size)
        tables.append(_describe(result, kind, probability, mine, level, first_position))
    shown: list[int | str] = [*sorted({mode for kind in kinds for mode in kind.fixed}), *GROUP_COLUMNS]
    columns: dict[int | str, list[NDArray[Any]]] = {name: [] for name in shown}
    for table in tables:
        for name, column in columns.items():
            column.append(table.get(name, np.full(table["probability"].size, None)))
    for name, column in columns.items():  # NumPy makes plain numbers of nanoseconds that stand beside None
        if any(part.dtype == object for part in column):
            columns[name] = [_times(part) if part.dtype.kind == "M" else part for part in column]
    joined = {name: np.concatenate(column) for name, column in columns.items()}
    order = np.lexsort([-joined["evidence"], -joined["probability"]])
    names = mode_names(result.observations)
    named = distinct_names(names[name] if isinstance(name, int) else name for name in joined)
    return dict(zip(named, (column[order] for column in joined.values()), strict=True))


def _times(labels: NDArray[Any]) -> NDArray[Any]:
    """Times as datetime.datetime."""
    return np.asarray(labels.astype("M8[us]").astype(object))


GROUP_COLUMNS = (
    *("n_observed", "n_outliers", "observed", "expected", "low", "high"),
    *("probability", "evidence", "kind"),
)


def _describe(
    result: Result, found: Evidence, probability: Array, chosen: NDArray[np.intp], level: float, first_position: int
) -> dict[int | str, NDArray[Any]]:
    """The columns of some groups of one kind; modes by number.

    The means are over the entries that are not outliers, by their probability, or over all if none is left.
    """
    observations = result.observations
    rank = np.full(found.total.size, -1)
    rank[chosen] = np.arange(chosen.size)
    entries = np.flatnonzero(rank[found.members] >= 0)
    group = rank[found.members[entries]]
    outlying = result.outlier_probability_at_entries()[entries]
    coords = observations.entry_coords()[:, entries]
    expected, low, high = _expectations(result, coords, level)
    mine = np.flatnonzero(found.own[entries])
    for column in (expected, low, high):
        column[mine] -= result.link.outliers(column[mine], found.own[entries[mine]] * result.scale)

    def sums(column: Array) -> Array:
        return np.bincount(group, column, chosen.size).astype(np.float64)

    weight = np.where(sums(1.0 - outlying)[group] >= 1.0, 1.0 - outlying, 1.0)
    total = sums(weight)
    centre = sums(weight * expected) / total
    reach = 0.5 * (high - low)
    unit = float(reach.max(initial=0.0)) or 1.0  # squares of very large or small numbers have no room
    half = unit * np.sqrt(sums(np.square(weight * (reach / unit)))) / total
    columns: dict[int | str, NDArray[Any]] = {}
    for mode, positions in zip(found.fixed, found.positions[:, chosen], strict=True):
        own = observations.mode_labels[mode]
        columns[mode] = positions + first_position if own is None else own[positions]
    return columns | {
        "n_observed": np.bincount(group, minlength=chosen.size),
        "n_outliers": sums(outlying),
        "observed": sums(weight * observations.values.ravel()[entries]) / total,
        "expected": centre,
        "low": centre - half,
        "high": centre + half,
        "probability": probability[chosen],
        "evidence": found.total[chosen],
        "kind": np.array(KINDS, dtype=object)[found.by_kind[:, chosen].argmax(axis=0)],
    }
