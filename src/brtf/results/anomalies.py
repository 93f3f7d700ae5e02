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
that no other group uses is left out where that group is judged.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logsumexp

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.exports import Table, distinct_names, long_table, mode_names
from brtf.data.observations import distinct_columns
from brtf.inference.entry_posterior import log_branches, relative_precision
from brtf.inference.statistics import scaled_values, variance_field
from brtf.model.distributions import RowGaussians
from brtf.model.evidence_table import tabulate_branches
from brtf.model.state import MeanFieldOutliers
from brtf.results.noisy_slices import noise_evidence
from brtf.results.result import Result

Of = Literal["entries", "fibres", "slices", "rows"]
KINDS = ("shift", "spread", "outliers")
"""What may be wrong with a group."""
NODES = 33
"""Nodes of a Gauss–Legendre integral, of which at least half lie in the region that matters: less than a standard
deviation of a Gaussian peak apart, where its integral is exact to 1e-6."""
NEGLIGIBLE = 20.0
"""Nats below the maximum at which an integrand no longer matters."""


def discoveries(probability: Array, q: float) -> NDArray[np.intp]:
    """The largest set with an expected share of false discoveries of at most q, the most probable first.

    The expected share is the mean of 1 − p over the set; it cannot fall as less probable ones are added.
    """
    if isinstance(q, bool) or not isinstance(q, numbers.Real) or not 0 < q < 1:
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
    kinds = [Evidence.of(result, group) for group in groupings(result, of, mode)]
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
    elif isinstance(mode, (int, np.integer)) and not isinstance(mode, bool) and -order <= mode < order:
        chosen = [int(mode) % order]
    else:
        raise ValueError(f"mode must be None, a mode from 0 to {order - 1} or one of {names}, got {mode!r}.")
    if of == "slices":
        return [(fixed,) for fixed in chosen]
    return [tuple(other for other in range(order) if other != along) for along in chosen]


def private_positions(result: Result, fixed: tuple[int, ...]) -> list[tuple[int, ...] | None]:
    """Per component its position along each of the fixed modes if only that one uses it; None if others do too."""
    arrangement, shape = result.arrangement, result.observations.shape
    along = [[(result.state.factors[k], positions) for k, positions in arrangement.factors_of(m, shape)] for m in fixed]
    found: list[tuple[int, ...] | None] = []
    for r in range(result.rank):
        places = [[_private_position(rows, positions, r) for rows, positions in factors] for factors in along]
        known = [[place for place in halves if place is not None] for halves in places]
        if known != places:
            found.append(None)
            continue
        periods = [arrangement.periods.get(mode, 1) for mode in fixed]
        found.append(tuple(h[0] * period + sum(h[1:]) for h, period in zip(known, periods, strict=True)))
    return found


def _private_position(rows: RowGaussians, positions: NDArray[np.intp], component: int) -> int | None:
    """The one position of a mode that uses a component, if the loadings at all others may be zero.

    The others are estimates a_j ~ N(0, s² + V_j). They may be zero if no s raises their likelihood by more than a nat.
    ``positions`` are those of the rows along the mode: one row each, unless the mode is read as one with others.
    """
    loading = rows.mean[:, component]
    most = int(positions[np.argmax(np.abs(loading))])
    others = np.flatnonzero(positions != most)
    if not others.size:
        return None
    square = np.square(loading[others])
    error = np.broadcast_to(rows.cov, (rows.n_rows, rows.rank, rows.rank))[others, component, component]
    size = np.geomspace(1e-6, 1.0, 121)[:, None] * square.max()
    gain = 0.5 * np.sum(square / error - square / (error + size) - np.log1p(size / error), axis=1)
    return most if gain.max() < 1.0 else None


def shared_pattern(result: Result) -> Result:
    """The result without the components that belong to one row of the first mode alone, to judge new rows by."""
    keep = np.array([place is None for place in private_positions(result, (0,))], dtype=bool)
    return replace(result, state=result.state.select_components(keep))


@dataclass(frozen=True, eq=False)
class Evidence:
    """The evidence of every group that has an observed entry, in nats.

    Attributes
    ----------
    fixed : the modes at whose positions the groups are fixed
    positions : (len(fixed), G) of the groups
    members : (M,) the group of every entry
    by_kind : (3, G) ln Bayes factor of shift, spread and outliers
    private : the components that belong to one group alone, by group
    """

    fixed: tuple[int, ...]
    positions: NDArray[np.intp]
    members: NDArray[np.intp]
    by_kind: Array
    private: dict[int, list[int]]

    @classmethod
    def of(cls, result: Result, fixed: tuple[int, ...]) -> Evidence:
        """Compare the explanations of all groups with the given modes fixed."""
        if isinstance(result.state.outliers, MeanFieldOutliers):
            raise ValueError(
                "Fibres, slices and rows are judged by the noise of calibrated inference: fit with "
                'inference="calibrated", or ask for of="entries".'
            )
        observations = result.observations
        coords = observations.entry_coords()[list(fixed)]
        members = distinct_columns(coords, tuple(observations.shape[mode] for mode in fixed))
        _, first = np.unique(members, return_index=True)
        positions, own = coords[:, first], np.zeros(members.size)
        private: dict[int, list[int]] = {}
        for component, place in enumerate(private_positions(result, fixed)):
            if place is not None:
                for mine in np.flatnonzero((positions == np.reshape(place, (-1, 1))).all(axis=0)):
                    private.setdefault(int(mine), []).append(component)
        for group, components in private.items():
            entries = np.flatnonzero(members == group)
            places = result.arrangement.coords(observations.entry_coords()[:, entries], observations.shape)
            rows_and_places = zip(result.state.factors, places, strict=True)
            terms = np.prod([rows.mean[place][:, components] for rows, place in rows_and_places], axis=0)
            own[entries] = terms.sum(axis=1)
        by_kind, slices = _Entries.of(result, members, own).evidence(), result.state.slices
        if slices is not None and result.noise_modes == fixed and not result.arrangement.periods:
            # the fit gave every slice its noise, which explains a spread away
            lengths = [observations.shape[mode] for mode in fixed]
            noisier = noise_evidence(slices.precision)[np.ravel_multi_index(tuple(positions), lengths)]
            spread = KINDS.index("spread")
            by_kind[spread] = np.maximum(by_kind[spread], noisier)
        return cls(fixed, positions, members, by_kind, private)

    @property
    def total(self) -> Array:
        """(G,) ln Bayes factor of an anomaly of any kind, each a third of the prior."""
        return np.asarray(logsumexp(self.by_kind, axis=0) - math.log(len(KINDS)))

    @staticmethod
    def probability_of(evidence: Array, seen: Array) -> Array:
        """Posterior probabilities of an anomaly for groups of the given evidence, (G,).

        Averaged over the share of anomalous groups, which has a uniform prior and is learnt from the evidence of the
        groups seen: Π_g (1 − share + share · Bayes factor_g).
        """

        def log_likelihood(share: Array) -> Array:
            return np.logaddexp(np.log1p(-share[0]), np.log(share[0]) + seen).sum(keepdims=True)

        shares, logs = integrand(log_likelihood, 1)
        weights = np.exp(logs[:, 0] - logsumexp(logs))
        odds = np.log(shares) - np.log1p(-shares) + evidence  # (K, G)
        return np.asarray(weights @ expit(odds))


@dataclass(frozen=True, eq=False)
class _Entries:
    """What the explanations of a group need of its entries.

    Entries with a shared outlier are a unit: they are outliers together or not at all.

    Attributes
    ----------
    z, variance : (M,) y − x̄ and Var x in units of the noise
    members : (M,) the group of every entry
    units : (M,) the unit of every entry; None if each is its own
    unit_members : (U,) the group of every unit
    log_slab : (U,) ln f with an outlier
    log_rates : ln π and ln(1 − π) of every unit, or of all
    n_channels : κ, by which sums over the entries of a unit are divided
    log_spike : ln f of noise alone as a function of ρ
    """

    z: Array
    variance: Array
    members: NDArray[np.intp]
    units: NDArray[np.intp] | None
    unit_members: NDArray[np.intp]
    log_slab: Array
    log_rates: tuple[Array | float, Array | float]
    n_channels: float
    log_spike: Callable[[Array], Array]

    @classmethod
    def of(cls, result: Result, members: NDArray[np.intp], own: Array) -> _Entries:
        """The entries of a fit, with their groups and the part of x̄ that belongs to their group alone, (M,)."""
        state, observations = result.state, result.entries_together
        own = result.arrangement.regrouped(own, result.observations)
        model, structure = state.local_model, state.structure
        means, variance_at = [rows.mean for rows in state.factors], variance_field(state.factors)
        spike_table = tabulate_branches(model)[0] if model.has_outliers else None
        pieces: list[tuple[Array, ...]] = []
        for block in observations.block_list:
            values = scaled_values(observations, block)
            relative = relative_precision(state, block)
            precision = float(state.tau.mean) * (np.ones(values.size) if relative is None else relative)
            residual, variance = values - kernels.low_rank_at(block, means) + own[block.entries], variance_at(block)
            if state.smooth is not None:
                residual = residual - state.smooth.mean[block.entries]
                variance = variance + state.smooth.var[block.entries]
            z, variance = np.sqrt(precision) * residual, precision * variance
            log_rate, log_rest, log_slab = log_branches(state, block, values, np.square(z) + variance, z >= 0.0)
            rates = (np.broadcast_to(log_rate, z.shape), np.broadcast_to(log_rest, z.shape))
            pieces.append((z, variance, log_slab, *rates))
        vectors = (result.as_given(np.concatenate(part)) for part in zip(*pieces, strict=True))
        z, variance, log_slab, log_rate, log_rest = vectors
        units, unit_members, n_channels = None, members, 1.0
        if structure is not None and structure.modes:
            given, shared = result.observations, result.arrangement.modes_of(structure.modes)
            alone = [mode for mode in range(given.order) if mode not in shared]
            coords = np.concatenate([given.entry_coords()[alone], members[None]])
            units = distinct_columns(coords, (*(given.shape[mode] for mode in alone), int(members.max()) + 1))
            _, first = np.unique(units, return_index=True)
            n_channels = structure.n_channels
            log_slab = np.bincount(units, log_slab) / n_channels
            unit_members, log_rate, log_rest = members[first], log_rate[first], log_rest[first]
        return cls(
            *(z, variance, members, units, unit_members, log_slab, (log_rate, log_rest), n_channels),
            lambda rho: -0.5 * rho if spike_table is None else kernels.evidence(spike_table, rho)[0],
        )

    @property
    def n_groups(self) -> int:
        return int(self.members.max()) + 1

    def evidence(self) -> Array:
        """(3, G) ln Bayes factors of shift, spread and outliers."""
        regular = self.log_likelihood(self.log_spike(np.square(self.z) + self.variance), self.log_rates)
        explanations = [self.shifted, self.spread, *([self.with_outliers] if self._has_slab else [])]
        found = [logsumexp(integrand(how, self.n_groups)[1], axis=0) - regular for how in explanations]
        return np.stack([*found, *([np.full(self.n_groups, -np.inf)] * (len(KINDS) - len(found)))])

    @property
    def _has_slab(self) -> bool:
        return bool(np.isfinite(self.log_slab).any())

    def log_likelihood(self, log_spike: Array, log_rates: tuple[Array | float, Array | float]) -> Array:
        """(G,) ln of the probability of the entries of every group, with ln f of noise alone at every entry."""
        log_rate, log_rest = log_rates
        if self.units is not None:
            log_spike = np.bincount(self.units, log_spike) / self.n_channels
        each = np.logaddexp(log_rest + log_spike, log_rate + self.log_slab)
        return np.asarray(self.n_channels * np.bincount(self.unit_members, each, self.n_groups))

    def shifted(self, t: Array) -> Array:
        """With an error δ_g of all entries at the quantile t of the Cauchy distribution, in units of the noise."""
        delta = np.tan(math.pi * (t - 0.5))[self.members]
        return self.log_likelihood(self.log_spike(np.square(self.z - delta) + self.variance), self.log_rates)

    def spread(self, t: Array) -> Array:
        """With additional noise whose size is at the quantile t of the half-Cauchy distribution."""
        ratio = (1.0 + np.square(np.tan(0.5 * math.pi * t)))[self.members]
        log_spike = self.log_spike((np.square(self.z) + self.variance) / ratio) - 0.5 * np.log(ratio)
        return self.log_likelihood(log_spike, self.log_rates)

    def with_outliers(self, t: Array) -> Array:
        """With a share t of outliers."""
        share = t[self.unit_members]
        return self.log_likelihood(self.log_spike(np.square(self.z) + self.variance), (np.log(share), np.log1p(-share)))


def integrand(log_function: Callable[[Array], Array], n: int) -> tuple[Array, Array]:
    """Nodes (K, n) in (0, 1) and ln of function times weight there, so that their logsumexp is ln ∫₀¹.

    Gauss–Legendre, over the region of each of the n functions that matters.
    """
    places, weights = np.polynomial.legendre.leggauss(NODES)
    places = 0.5 * (1.0 + places)[:, None]
    ends = np.vstack([np.zeros(1), places, np.ones(1)])  # node k is between ends k and k + 2
    low, high = np.zeros(n), np.ones(n)
    while True:
        width = high - low
        nodes = low + places * width
        logs = np.stack([log_function(node) for node in nodes])
        matters = logs > logs.max(axis=0) - NEGLIGIBLE
        first, last = matters.argmax(axis=0), NODES - 1 - matters[::-1].argmax(axis=0)
        zoomed = (last - first < NODES // 2) & (width > 1e3 * np.finfo(float).eps)
        if not zoomed.any():
            return nodes, logs + np.log(0.5 * weights)[:, None] + np.log(width)
        below, above = ends[first, 0], ends[last + 2, 0]
        low, high = np.where(zoomed, low + below * width, low), np.where(zoomed, low + above * width, high)


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
    joined = {name: np.concatenate(column) for name, column in columns.items()}
    order = np.lexsort([-joined["evidence"], -joined["probability"]])
    names = mode_names(result.observations)
    named = distinct_names(names[name] if isinstance(name, int) else name for name in joined)
    return dict(zip(named, (column[order] for column in joined.values()), strict=True))


GROUP_COLUMNS = (
    *("n_observed", "n_outliers", "observed", "expected", "low", "high"),
    *("probability", "evidence", "kind"),
)


def _describe(
    result: Result,
    found: Evidence,
    probability: Array,
    chosen: NDArray[np.intp],
    level: float,
    first_position: int,
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
    for alone, components in found.private.items():
        others = replace(result, state=result.state.select_components(np.delete(np.arange(result.rank), components)))
        mine = np.flatnonzero(group == rank[alone])
        expected[mine], low[mine], high[mine] = _expectations(others, coords[:, mine], level)

    def sums(column: Array) -> Array:
        return np.bincount(group, column, chosen.size).astype(np.float64)

    weight = np.where(sums(1.0 - outlying)[group] >= 1.0, 1.0 - outlying, 1.0)
    total = sums(weight)
    centre = sums(weight * expected) / total
    half = np.sqrt(sums(np.square(weight * 0.5 * (high - low)))) / total
    labels = (None,) * observations.order if observations.labels is None else observations.labels.coords
    columns: dict[int | str, NDArray[Any]] = {}
    for mode, positions in zip(found.fixed, found.positions[:, chosen], strict=True):
        own = labels[mode]
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
