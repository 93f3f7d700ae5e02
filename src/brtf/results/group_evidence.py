"""The evidence that a group of entries is shifted, noisier or full of outliers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logsumexp

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.observations import distinct_columns
from brtf.inference.entry_posterior import log_branches, relative_precision
from brtf.inference.statistics import scaled_values, variance_field
from brtf.model.distributions import RowGaussians
from brtf.model.evidence_table import tabulate_branches
from brtf.model.state import MeanFieldOutliers
from brtf.results.noisy_slices import noise_evidence
from brtf.results.outlying_slices import rate_evidence
from brtf.results.result import Result
from brtf.results.shifted_slices import may_be_zero, shifts_of_fibres, shifts_of_slices

KINDS = ("shift", "spread", "outliers")
"""What may be wrong with a group."""
NODES = 33
"""Nodes of a Gauss–Legendre integral, of which at least half lie in the region that matters: less than a standard
deviation of a Gaussian peak apart, where its integral is exact to 1e-6."""
NEGLIGIBLE = 20.0
"""Nats below the maximum at which an integrand no longer matters."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """The evidence of every group that has an observed entry, in nats.

    Attributes
    ----------
    fixed : the modes at whose positions the groups are fixed
    positions : (len(fixed), G) of the groups
    members : (M,) the group of every entry
    by_kind : (3, G) ln Bayes factor of shift, spread and outliers
    own : (M,) the part of x̄ that explains a group's anomaly away, and is no pattern that it shares with others
    """

    fixed: tuple[int, ...]
    positions: NDArray[np.intp]
    members: NDArray[np.intp]
    by_kind: Array
    own: Array

    @classmethod
    def of(cls, result: Result, fixed: tuple[int, ...], *, fitted: bool = True) -> Evidence:
        """Compare the explanations of all groups with the given modes fixed.

        ``fitted`` says whether they took part in the fit, which may then explain an anomaly away: by a noise or a share
        of outliers of its own for every slice, or by a component for slices that are off together. Such slices are
        compared with the others by what the fit found.
        """
        if isinstance(result.state.local, MeanFieldOutliers):
            raise ValueError(
                "Fibres, slices and rows are judged by the noise of calibrated inference: fit with "
                'inference="calibrated", or ask for of="entries".'
            )
        observations = result.observations
        coords = observations.entry_coords()[list(fixed)]
        members = distinct_columns(coords, tuple(observations.shape[mode] for mode in fixed))
        _, first = np.unique(members, return_index=True)
        positions = coords[:, first]
        own = _own_components(result, fixed, positions, members)
        if not fitted:
            return cls(fixed, positions, members, _Entries.of(result, members, own).evidence(), own)
        most = np.full(positions.shape[1], np.inf)
        if len(result.arrangement.groups) == observations.order and not result.arrangement.periods:
            free = np.bincount(members, own != 0.0) == 0
            shift, evidence = _expressed_shifts(result, fixed, positions, members)
            own += np.where(free[members], shift, 0.0)
            most = np.where(free, evidence, most)
        by_kind = np.minimum(_Entries.of(result, members, own).evidence(), most)
        for kind, evidence in _explained_away(result, fixed, positions):
            by_kind[KINDS.index(kind)] = np.maximum(by_kind[KINDS.index(kind)], evidence)
        return cls(fixed, positions, members, by_kind, own)

    @property
    def total(self) -> Array:
        """(G,) ln Bayes factor of an anomaly of any kind, each a third of the prior."""
        return np.asarray(logsumexp(self.by_kind, axis=0) - math.log(len(KINDS)))

    @staticmethod
    def probability_of(evidence: Array, seen: Array) -> Array:
        """Posterior probabilities of an anomaly for groups of the given evidence, (G,).

        Averaged over the share of anomalous groups, which has a uniform prior and is learnt from the evidence of the
        groups seen: Π_g (1 − share + share · Bayes factor_g). Bayes factors above one are divided out of it: huge ones
        would leave no digits for the share.
        """
        above_one = np.maximum(seen, 0.0)

        def log_likelihood(share: Array) -> Array:
            return np.logaddexp(np.log1p(-share[0]) - above_one, np.log(share[0]) + (seen - above_one)).sum(
                keepdims=True
            )

        shares, logs = integrand(log_likelihood, 1)
        weights = np.exp(logs[:, 0] - logsumexp(logs))
        odds = np.log(shares) - np.log1p(-shares) + evidence  # (K, G)
        return np.asarray(np.minimum(weights @ expit(odds), 1.0))  # the weights add up to one but for rounding


def _own_components(
    result: Result, fixed: tuple[int, ...], positions: NDArray[np.intp], members: NDArray[np.intp]
) -> Array:
    """The part of x̄ at every entry, (M,), from components that belong to its group alone."""
    observations, own = result.observations, np.zeros(members.size)
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
    return own


def _expressed_shifts(
    result: Result, fixed: tuple[int, ...], positions: NDArray[np.intp], members: NDArray[np.intp]
) -> tuple[Array, Array]:
    """The shifts of groups that the fit expresses by components: at every entry, (M,), and how evident each is, (G,).

    Infinitely evident where there is none.
    """
    factors, coords, (n_groups,) = result.state.factors, result.observations.entry_coords(), positions.shape[1:]
    if len(fixed) > 1:
        return shifts_of_fibres(factors, fixed, positions)[members], np.full(n_groups, np.inf)
    n_observed = np.bincount(members)
    precision = float(result.state.tau.mean) * np.bincount(members, result.relative_precision_of(result.observations))
    evidence, size, constant = shifts_of_slices(factors, fixed[0], positions[0], n_observed / precision, n_observed)
    entries = np.flatnonzero((evidence > 0.0)[members])
    patterns = [rows.mean[coords[mode, entries]] for mode, rows in enumerate(factors) if mode not in fixed]
    shift = np.zeros(members.size)
    shift[entries] = size[members[entries]] * (np.prod(patterns, axis=0) @ constant)
    return shift, np.where(evidence > 0.0, evidence, np.inf)


def _explained_away(result: Result, fixed: tuple[int, ...], positions: NDArray[np.intp]) -> Iterator[tuple[str, Array]]:
    """The evidence of groups against each other, by kind, (G,), where the fit has something for each of them."""
    state, arrangement, shape = result.state, result.arrangement, result.observations.shape
    if arrangement.periods:
        return
    place = np.ravel_multi_index(tuple(positions), [shape[mode] for mode in fixed])
    if state.slices is not None and result.noise_modes == fixed:
        yield "spread", noise_evidence(state.slices.precision)[place]
    rates = None if state.structure is None else state.structure.rates
    if rates is not None and arrangement.modes_of(rates.modes) == fixed:
        yield "outliers", rates.at_positions(rate_evidence(rates))[place]


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
    n_channels : χ, by which sums over the entries of a unit are divided
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
        explanations = [self.shifted, self.spread, *([self.with_outliers] if np.isfinite(self.log_slab).any() else [])]
        found = [logsumexp(integrand(how, self.n_groups)[1], axis=0) - regular for how in explanations]
        return np.stack([*found, *([np.full(self.n_groups, -np.inf)] * (len(KINDS) - len(found)))])

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

    ``positions`` are those of the rows along the mode: one row each, unless the mode is read as one with others.
    """
    loading = rows.mean[:, component]
    most = int(positions[np.argmax(np.abs(loading))])
    others = np.flatnonzero(positions != most)
    if not others.size:
        return None
    error = np.broadcast_to(rows.cov, (rows.n_rows, rows.rank, rows.rank))[others, component, component]
    return most if may_be_zero(loading[others], error) else None
