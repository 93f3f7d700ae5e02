"""Noise and outlier parameters, fitted jointly: maximize over ln τ and the local model's parameters at fixed factors.

The contribution of an entry depends on its D alone, so the data enter as a histogram of ln D.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from brtf import kernels
from brtf.data.arrays import Array
from brtf.inference.ascent import LITTLE, Ascent, ascend
from brtf.model.local_models import MINORITY, PROBABILITY_RANGE, LocalModel
from brtf.model.state import LARGEST_PRECISION, Sides

ROUGHLY = 0.1
"""Gain in nats at which it stops while optima are being compared."""
NOISE_QUANTILES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9)
"""Quantiles of D that serve as starting noise levels."""
COARSE, POLISHED, POLISHING_STEPS = 6, 3, 12
"""Bins that are merged where optima are compared, how many of the best starts are improved before, and in how many
steps. Conventions: the last ascent uses all bins and is not limited so."""
LARGEST_SHARE, LOPSIDED, NEARLY_ALL = 0.05, 3.0, 0.95
"""Share of the largest deviations whose signs are examined, the imbalance in standard deviations from which one-sided
outliers are tried, and the share of outliers on that side to start from."""
CLEAR_OF_EDGE = 3.0
"""Noise standard deviations from the edge of a flat slab at which hardly an outlier lies beyond it."""
SIDED_STEPS = 20
"""Alternating updates of the sides and of all other parameters."""


@dataclass(frozen=True, eq=False)
class Histogram:
    """Deviations of the entries, binned over ln D.

    Attributes
    ----------
    deviation : (B,) mean D of each bin
    count : (B,) number of entries in it
    penalty : form 1 only: Σ Var x, which then enters as −½ τ w_max Σ Var x; zero in form 2
    positive : (B,) number of those above x; None where outliers are symmetric
    log_sides : ln of the factors of the slab's density above and below x
    """

    deviation: Array
    count: Array
    penalty: float
    positive: Array | None = None
    log_sides: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def from_bins(
        cls,
        counts: Array,
        totals: Array,
        largest: float,
        penalty: float,
        positive: Array | None = None,
        log_sides: tuple[float, float] = (0.0, 0.0),
    ) -> Histogram:
        """The histogram from all bins, without the empty ones; the largest D gets a bin of its own.

        The edge of a flat slab must lie beyond it. If ``positive`` counts the entries above x in every bin, the largest
        D has the same share of positive signs as its bin.
        """
        share = None if positive is None else np.divide(positive, counts, out=np.zeros_like(counts), where=counts > 0)
        last = np.flatnonzero(counts)[-1]
        rest = np.where(np.arange(counts.size) == last, 1.0, 0.0)
        counts, totals = counts - rest, np.maximum(totals - rest * largest, 0.0)
        used = counts > 0
        floor = max(largest * 1e-32, 1e-300)
        deviation = np.append(totals[used] / counts[used], largest)
        deviation, count = np.maximum.accumulate(np.maximum(deviation, floor)), np.append(counts[used], 1.0)
        above = None if share is None else count * np.append(share[used], share[last])
        return cls(deviation, count, penalty, above, log_sides)

    @classmethod
    def from_shares(cls, counts: Array, totals: Array, largest: float, penalty: float) -> Histogram:
        """The histogram from bins with fractional counts; None where all are zero."""
        used = counts > 1e-12
        floor = max(largest * 1e-32, 1e-300)
        return cls(np.maximum(totals[used] / counts[used], floor), counts[used], penalty)

    def quantile(self, share: float) -> float:
        """The quantile of D at the given share, to within a bin."""
        below = np.cumsum(self.count)
        return float(np.interp(share * below[-1], below - 0.5 * self.count, self.deviation))

    def coarsened(self, n_joined: int) -> Histogram:
        """The histogram with neighbouring bins merged, except the last."""
        first = np.append(np.arange(0, self.count.size - 1, n_joined), self.count.size - 1)
        count = np.add.reduceat(self.count, first)
        deviation = np.add.reduceat(self.count * self.deviation, first) / count
        positive = None if self.positive is None else np.add.reduceat(self.positive, first)
        return replace(self, deviation=deviation, count=count, positive=positive)

    @property
    def sides(self) -> tuple[tuple[Array, float], ...]:
        """The counts of each side, with ln of the slab's factor there; a single side where outliers are symmetric."""
        if self.positive is None:
            return ((self.count, 0.0),)
        return (self.positive, self.log_sides[0]), (self.count - self.positive, self.log_sides[1])


@dataclass(frozen=True)
class NoisePrior:
    """Prior Ga(a₀^τ, b₀^τ) of the noise precision, and its upper limit."""

    concentration: float
    rate: float
    largest: float = LARGEST_PRECISION


def _objective(parameters: Array, kind: type[LocalModel], histogram: Histogram, prior: NoisePrior) -> Ascent:
    """The part of the bound that depends on ln τ and the parameters of the local model."""
    tau = math.exp(parameters[0])
    model = kind.from_parameters(parameters[1:])
    log_evidence, gradient, information = _scores(model, tau, histogram)
    penalty = tau * (prior.rate + 0.5 * model.largest_weight * histogram.penalty)
    half = 0.5 * histogram.count.sum() + prior.concentration
    value = half * parameters[0] - penalty + log_evidence
    value += model.log_prior
    gradient[0] += prior.concentration - penalty
    gradient[1:] -= 0.5 * tau * histogram.penalty * model.largest_weight_gradient
    information[0, 0] += penalty
    if model.has_outliers:
        gradient[1] -= MINORITY * model.probability
        information[1, 1] += MINORITY * model.probability * (1.0 - model.probability)
    return Ascent(float(value), gradient, information)


def _scores(model: LocalModel, tau: float, histogram: Histogram) -> tuple[float, Array, Array]:
    """:func:`brtf.kernels.scores` summed over sides; a factor on the slab's density amounts to another π."""
    n_parameters = 1 + model.parameters.size
    log_evidence, gradient, information = 0.0, np.zeros(n_parameters), np.zeros((n_parameters, n_parameters))
    for count, log_factor in histogram.sides:
        side, log_total = model.on_side(log_factor)
        law = side.gradient, side.student_numbers
        value, by_parameter, products = kernels.scores(*law, tau, histogram.deviation, count)
        shift, n_entries = side.probability - model.probability, float(count.sum())
        if log_factor:  # ∂ ln f / ∂ logit π = p − π, whatever the factor
            products[1] += shift * by_parameter
            products[:, 1] += shift * by_parameter
            products[1, 1] += shift**2 * n_entries
            by_parameter[1] += shift * n_entries
        log_evidence += value + n_entries * log_total
        gradient += by_parameter
        information += products
    return log_evidence, gradient, information


def worth(tau: float, model: LocalModel, histogram: Histogram, prior: NoisePrior) -> float:
    """The part of the bound that depends on the noise precision and the outlier parameters."""
    return _objective(np.concatenate([[np.log(tau)], model.parameters]), type(model), histogram, prior).value


def _limits(kind: type[LocalModel], prior: NoisePrior) -> list[tuple[float, float]]:
    return [(-700.0, float(np.log(prior.largest))), *kind.limits()]


def joint_step(
    tau: float,
    model: LocalModel,
    histogram: Histogram,
    prior: NoisePrior,
    *,
    max_steps: int = 40,
    little: float = LITTLE,
) -> tuple[float, LocalModel, float]:
    """C5: the nearest optimum of τ and the local model's parameters; returns them and the objective.

    Stops when a step gains less than ``little`` nats; in closed form where τ is the only parameter.
    """
    if model.is_gaussian:
        rate = prior.rate + 0.5 * (float(histogram.count @ histogram.deviation) + histogram.penalty)
        tau = min((prior.concentration + 0.5 * float(histogram.count.sum())) / rate, prior.largest)
        return tau, model, worth(tau, model, histogram, prior)
    kind, largest = type(model), float(histogram.deviation[-1])
    limits = _limits(kind, prior)
    model = model.reaching(tau * largest)
    start = np.concatenate([[np.log(tau)], model.parameters])

    def objective(place: Array) -> Ascent:
        return _objective(place, kind, histogram, prior)

    if model.edge is None:
        found, value = ascend(objective, start, limits, max_steps=max_steps, little=little)
    else:
        found, value = _ascend_with_edge(objective, start, limits, math.sqrt(largest), max_steps, little)
    tau, model = float(np.exp(found[0])), kind.from_parameters(found[1:])
    clear = model.clear_of(tau * largest)
    return tau, clear, value if clear is model else worth(tau, clear, histogram, prior)


def _ascend_with_edge(
    objective: Callable[[Array], Ascent],
    start: Array,
    limits: list[tuple[float, float]],
    largest: float,
    max_steps: int,
    little: float,
) -> tuple[Array, float]:
    """The maximum over (ln τ, …, ln ζ), where ζ^{1/2} is a sharp edge in standard deviations of the noise.

    The edge is measured from the largest deviation, u = ζ^{1/2} − τ^{1/2} |r|_max, in which the objective changes at
    the scale of one; in ln ζ it would fall off a wall, and steps would creep along it. An edge far beyond that
    deviation is drawn in first: that raises the density of all outliers.
    """
    narrowest, widest = (0.5 * end for end in limits[-1])

    def with_width(place: Array) -> tuple[Array, Array]:
        """The parameters with ln ζ for u, and their derivatives."""
        reach = math.exp(0.5 * place[0]) * largest
        log_root = min(max(math.log(max(reach + place[-1], 1e-300)), narrowest), widest)
        by_place = np.eye(place.size)
        by_place[-1, -1] = 2.0 * math.exp(-log_root)
        by_place[-1, 0] = 0.5 * reach * by_place[-1, -1]
        return np.append(place[:-1], 2.0 * log_root), by_place

    def measured(place: Array) -> Ascent:
        parameters, by_place = with_width(place)
        found = objective(parameters)
        return Ascent(found.value, found.gradient @ by_place, by_place.T @ found.information @ by_place)

    reach = math.exp(0.5 * start[0]) * largest
    drawn_in = min(math.exp(0.5 * start[-1]) - reach, CLEAR_OF_EDGE)
    nearest = math.exp(narrowest) - reach
    place = np.append(start[:-1], max(drawn_in, nearest))
    found, value = ascend(measured, place, [*limits[:-1], (nearest, math.inf)], max_steps=max_steps, little=little)
    return with_width(found)[0], value


def branch_step(
    tau: float,
    model: LocalModel,
    regular: Histogram,
    outlying: Histogram | None,
    prior: NoisePrior,
    n_counted: float,
    *,
    max_steps: int = 6,
) -> tuple[float, LocalModel]:
    """C17: τ and the local model's parameters except π, given the responsibilities.

    The two histograms count each entry by the probability that it is regular, or an outlier.

    ``n_counted`` is the number of entries with noise: all, or those not replaced, where ``outlying`` is None.
    """
    kind, half = type(model), 0.5 * n_counted + prior.concentration
    limits = [limit for k, limit in enumerate(_limits(kind, prior)) if k != 1]

    def objective(parameters: Array) -> Ascent:
        precision = float(np.exp(parameters[0]))
        candidate = kind.from_parameters(np.array([0.0, *parameters[1:]]))
        penalty = precision * (prior.rate + 0.5 * candidate.largest_weight * regular.penalty)
        value, gradient = half * parameters[0] - penalty, np.zeros(parameters.size)
        information = np.zeros((parameters.size, parameters.size))
        gradient[0], information[0, 0] = half - penalty, penalty
        gradient[1:] -= 0.5 * precision * regular.penalty * candidate.largest_weight_gradient[1:]
        for place, histogram in enumerate((regular, outlying)):
            if histogram is not None:
                branch = candidate.branch_gradients(precision * histogram.deviation)[place]
                parts = (branch.by_log_rho, *branch.by_parameters)
                scores = np.stack([np.broadcast_to(part, histogram.count.shape) for part in parts])
                value += histogram.count @ branch.log_evidence
                gradient += scores @ histogram.count
                scores[0] += 0.5
                information += scores * histogram.count @ scores.T
        return Ascent(float(value), gradient, information)

    start = np.array([np.log(tau), *model.parameters[1:]])
    found, _ = ascend(objective, start, limits, max_steps=max_steps)
    learnt = kind.from_parameters(np.array([0.0, *found[1:]]))
    return float(np.exp(found[0])), replace(learnt, probability=model.probability)


def shared_rate(n_outlying: float, n_groups: float) -> float:
    """The π that maximizes the bound, given the expected number of outlying groups."""
    return float(np.clip(n_outlying / (n_groups + MINORITY), *PROBABILITY_RANGE))


def global_step(
    kind: type[LocalModel],
    histogram: Histogram,
    prior: NoisePrior,
    starts: Iterable[tuple[float, LocalModel]] = (),
    precisions: Iterable[float] | None = None,
    *,
    little: float = LITTLE,
) -> tuple[float, LocalModel, float]:
    """C12: the best of several optima: starts over noise levels and outlier shares, compared on a coarse histogram.

    Noise levels are the given precisions, or else quantiles of D; the outlier parameters at each are the local model's
    own starts. The final ascent has the tolerance of :func:`joint_step`.
    """
    order = np.cumsum(histogram.count) / histogram.count.sum()

    def quantile(share: float) -> float:
        return float(histogram.deviation[np.searchsorted(order, share)])

    if precisions is None:
        precisions = [min(1.0 / quantile(share), prior.largest) for share in NOISE_QUANTILES]
    coarse, candidates = histogram.coarsened(COARSE), list(starts)
    for tau in precisions:
        candidates += [(tau, start) for start in kind.starts(tau, quantile)]
    best = sorted(candidates, key=lambda start: worth(start[0], start[1], coarse, prior), reverse=True)[:POLISHED]
    polished = [joint_step(tau, model, coarse, prior, max_steps=POLISHING_STEPS, little=ROUGHLY) for tau, model in best]
    tau, model, _ = max(polished, key=lambda found: found[2])
    return joint_step(tau, model, histogram, prior, little=little)


def sided_step(
    tau: float, model: LocalModel, histogram: Histogram, prior: NoisePrior
) -> tuple[float, LocalModel, Sides, float]:
    """C23: (τ, π, shape, ζ) and q(a) for a histogram with signs; returns them and the objective minus KL(q(a)).

    The better of two optima: from the current parameters and, where the largest deviations are mostly of one sign, from
    outliers that nearly all have it. Otherwise one-sided outliers hardly larger than the noise would pass for noise.
    """
    starts = [(tau, model, _learnt_sides(tau, model, histogram))]
    largest = np.cumsum(histogram.count[::-1])[::-1] <= LARGEST_SHARE * histogram.count.sum()
    n_largest, n_positive = float(histogram.count[largest].sum()), float(histogram.sides[0][0][largest].sum())
    if abs(2.0 * n_positive - n_largest) > LOPSIDED * math.sqrt(n_largest):
        ends = (math.log(2.0 * NEARLY_ALL), math.log(2.0 * (1.0 - NEARLY_ALL)))
        log_sides = ends if 2.0 * n_positive > n_largest else ends[::-1]
        lopsided = replace(histogram, log_sides=log_sides)
        tau, model, _ = global_step(type(model), lopsided, prior, little=ROUGHLY)
        starts.append((tau, model, _learnt_sides(tau, model, lopsided)))
    return max((_settled_sides(*start, histogram, prior) for start in starts), key=lambda found: found[3])


def _settled_sides(
    tau: float, model: LocalModel, sides: Sides, histogram: Histogram, prior: NoisePrior
) -> tuple[float, LocalModel, Sides, float]:
    before = -math.inf
    for _ in range(SIDED_STEPS):
        sided = replace(histogram, log_sides=sides.mean_logs)
        tau, model, value = joint_step(tau, model, sided, prior, little=ROUGHLY)
        value -= sides.kl
        if value < before + ROUGHLY:
            break
        before, sides = value, _learnt_sides(tau, model, sided)
    return tau, model, sides, value


def _learnt_sides(tau: float, model: LocalModel, histogram: Histogram) -> Sides:
    """q(a) given the responsibilities on each side."""
    rho = tau * histogram.deviation
    positive, negative = (
        float(count @ model.on_side(log_factor)[0].posterior(rho).outlier_probability)
        for count, log_factor in histogram.sides
    )
    return Sides(1.0 + positive, 1.0 + negative)
