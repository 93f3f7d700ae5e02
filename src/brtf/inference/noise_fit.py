"""Noise and outlier numbers learnt together: one optimum over (ln τ, logit π, shape parameter, ln ζ) at fixed factors.

Everything an entry contributes depends on its D alone, so the data enter as a histogram of ln D.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logit

from brtf import kernels
from brtf.data.arrays import Array
from brtf.kernels.reference import N_BINS
from brtf.model.local_models import WIDEST_SLAB, FlatSlab, SlabModel, StudentSlab
from brtf.model.state import LARGEST_PRECISION, Sides

MINORITY = 9.0
"""Outliers are few unless the data say otherwise: π ~ Beta(1, 10), worth 8 nats at π = .6. Else, where there are none,
noise could pass for a slab of the least width, with π near one, at no loss."""
LITTLE = 1e-6
"""Nats that are not worth another step."""
ROUGHLY = 0.1
"""The same where optima are compared."""
SHARPEST_EDGE, EDGE_MARGIN = 2.0**22, 2.0**-11
"""ζ beyond which the edge of a flat slab is sharper than tables show, and the share of ρ by which it then stays away
from the largest outlier: a table that steps over the edge would call that one, and its neighbours, impossible."""
LONGEST_STEP = 3.0
"""Of any parameter; all of them are logarithms, or run over less."""
NOISE_QUANTILES, OUTLIER_SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9), (0.02, 0.2, 0.5, 0.75)
"""Shares of entries that may be no larger than the noise, and of outliers, from which optima are looked for."""
LARGEST_SHARE, LOPSIDED, NEARLY_ALL = 0.05, 3.0, 0.95
"""The share of entries that deviate most, by how many standard deviations their signs must be out of balance for
outliers to be looked for on one side, and the share of outliers that starts there."""
SIDED_STEPS = 20
"""Steps, in turns, of the sides of outliers and of all other numbers."""
PROBABILITY_RANGE = (1e-8, 0.98)
"""Where π may lie: at the ends the model is without outliers, or without entries that are none."""


@dataclass(frozen=True, eq=False)
class Histogram:
    """Deviations of the entries, binned over ln D.

    Attributes
    ----------
    deviation : (B,) mean D of each bin
    count : (B,) number of entries in it
    penalty : form 1 only: Σ Var x, which then enters as −½ τ w_max Σ Var x; zero in form 2
    positive : (B,) how many of them lie above x; None where the outliers' sign does not matter
    log_sides : ln of what the slab's density is multiplied with above and below x
    """

    deviation: Array
    count: Array
    penalty: float
    positive: Array | None = None
    log_sides: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def of(cls, deviation: Array, penalty: float) -> Histogram:
        """Bin the deviations D (M,)."""
        counts, totals = np.zeros(N_BINS), np.zeros(N_BINS)
        kernels.count_deviations(deviation, counts, totals)
        return cls.from_bins(counts, totals, float(deviation.max()), penalty)

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
        """The histogram of all bins, empty ones left out; the largest D stands alone.

        A slab that ends must end beyond it. Where ``positive`` counts the entries above x in every bin, the largest
        counts as the others of its bin do.
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
        """The histogram of bins that count shares of entries; none where nothing is counted."""
        used = counts > 1e-12
        floor = max(largest * 1e-32, 1e-300)
        return cls(np.maximum(totals[used] / counts[used], floor), counts[used], penalty)

    def quantile(self, share: float) -> float:
        """The D that the given share of the entries does not exceed, to within a bin."""
        below = np.cumsum(self.count)
        return float(np.interp(share * below[-1], below - 0.5 * self.count, self.deviation))

    def coarsened(self, n_joined: int) -> Histogram:
        """The same histogram with neighbouring bins joined, but for the last."""
        first = np.append(np.arange(0, self.count.size - 1, n_joined), self.count.size - 1)
        count = np.add.reduceat(self.count, first)
        deviation = np.add.reduceat(self.count * self.deviation, first) / count
        positive = None if self.positive is None else np.add.reduceat(self.positive, first)
        return replace(self, deviation=deviation, count=count, positive=positive)

    @property
    def sides(self) -> tuple[tuple[Array, float], ...]:
        """The counts of each side, with ln of what the slab's density is multiplied with there; one where all alike."""
        if self.positive is None:
            return ((self.count, 0.0),)
        return (self.positive, self.log_sides[0]), (self.count - self.positive, self.log_sides[1])


@dataclass(frozen=True)
class NoisePrior:
    """Ga(a₀^τ, b₀^τ) of the noise precision, and the largest that it may have."""

    concentration: float
    rate: float
    largest: float = LARGEST_PRECISION


@dataclass(frozen=True, eq=False)
class Ascent:
    """The part of the bound that depends on K parameters, and what a step of scoring needs.

    Attributes
    ----------
    value : float
    gradient : (K,)
    information : (K, K) Σ of the products of the entries' scores: the expected curvature where the model is right
    """

    value: float
    gradient: Array
    information: Array


def ascend(
    objective: Callable[[Array], Ascent],
    start: Array,
    limits: list[tuple[float, float]],
    *,
    max_steps: int,
    little: float = LITTLE,
) -> tuple[Array, float]:
    """The nearest maximum within limits, by scoring: Newton's method with the information for the curvature.

    Along the last step the curvature that was met there takes its place, for the model may be wrong. A step that does
    not raise the objective is shortened. Ends where a step gains less than ``little`` nats. Returns the parameters and
    the value there.
    """
    low, high = np.array(limits).T
    place = np.clip(start, low, high)
    here, damping = objective(place), 0.0
    curvature = here.information
    for _ in range(max_steps):
        candidate = kernels.scoring_step(place, here.gradient, curvature, low, high, damping, LONGEST_STEP)
        if np.array_equal(candidate, place):
            break
        there = objective(candidate)
        gain, moved, drop = there.value - here.value, candidate - place, here.gradient - there.gradient
        if gain > 0.0:
            place, here, damping = candidate, there, 0.2 * damping if damping > 0.01 else 0.0
        else:
            damping = max(10.0 * damping, 0.3)
        curvature = kernels.corrected(here.information, moved, drop)
        if abs(gain) < little:
            break
    return place, here.value


def _objective(parameters: Array, kind: type[SlabModel], histogram: Histogram, prior: NoisePrior) -> Ascent:
    """The part of the bound that depends on (ln τ, logit π, shape parameter, ln ζ)."""
    tau = math.exp(parameters[0])
    model = kind.from_parameters(parameters[1:])
    log_evidence, gradient, information = _scores(model, tau, histogram)
    penalty = tau * (prior.rate + 0.5 * model.largest_weight * histogram.penalty)
    half = 0.5 * histogram.count.sum() + prior.concentration
    value = half * parameters[0] - penalty + log_evidence
    value += MINORITY * math.log1p(-model.probability)
    gradient[0] += prior.concentration - penalty
    gradient[1] -= MINORITY * model.probability
    if kind is not StudentSlab:  # w_max = 1 + 1/ν depends on ν
        gradient[2] -= 0.5 * tau * histogram.penalty
    information[0, 0] += penalty
    information[1, 1] += MINORITY * model.probability * (1.0 - model.probability)
    return Ascent(float(value), gradient, information)


def _scores(model: SlabModel, tau: float, histogram: Histogram) -> tuple[float, Array, Array]:
    """As :func:`brtf.kernels.scores`; a side on which the slab's density is multiplied is a model with another π."""
    log_evidence, gradient, information = 0.0, np.zeros(4), np.zeros((4, 4))
    for count, log_factor in histogram.sides:
        side, log_total = model.on_side(log_factor)
        value, by_parameter, products = kernels.scores(side, tau, histogram.deviation, count)
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


def worth(tau: float, model: SlabModel, histogram: Histogram, prior: NoisePrior) -> float:
    """The part of the bound that depends on the noise precision and the outlier numbers."""
    return _objective(np.concatenate([[np.log(tau)], model.parameters]), type(model), histogram, prior).value


def _limits(kind: type[SlabModel], prior: NoisePrior) -> list[tuple[float, float]]:
    shape = sorted(kind.shape_parameter(value) for value in kind.shape_range)
    return [
        (-700.0, float(np.log(prior.largest))),
        (float(logit(PROBABILITY_RANGE[0])), float(logit(PROBABILITY_RANGE[1]))),
        (shape[0], shape[1]),
        (float(np.log(kind.narrowest)), float(np.log(WIDEST_SLAB))),
    ]


def joint_step(
    tau: float,
    model: SlabModel,
    histogram: Histogram,
    prior: NoisePrior,
    *,
    max_steps: int = 40,
    little: float = LITTLE,
) -> tuple[float, SlabModel, float]:
    """C5: the nearest optimum of (τ, π, shape, ζ) from the given point; returns them and the objective there.

    To within ``little`` nats a step.
    """
    kind = type(model)
    limits = _limits(kind, prior)
    if kind is FlatSlab:  # entries beyond its edge are what it cannot explain
        model = replace(model, width=max(model.width, tau * float(histogram.deviation[-1])))
    start = np.concatenate([[np.log(tau)], model.parameters])

    def objective(place: Array) -> Ascent:
        return _objective(place, kind, histogram, prior)

    found, value = ascend(objective, start, limits, max_steps=max_steps, little=little)
    tau, model = float(np.exp(found[0])), kind.from_parameters(found[1:])
    if kind is FlatSlab and model.width > SHARPEST_EDGE:
        beyond = (1.0 + EDGE_MARGIN) * tau * float(histogram.deviation[-1])
        model = replace(model, width=min(max(model.width, beyond), WIDEST_SLAB))
        value = worth(tau, model, histogram, prior)
    return tau, model, value


def branch_step(
    tau: float,
    model: SlabModel,
    regular: Histogram,
    outlying: Histogram | None,
    prior: NoisePrior,
    n_counted: float,
    *,
    max_steps: int = 6,
) -> tuple[float, SlabModel]:
    """C17: (τ, shape, ζ) given which entries are outliers: the histograms count what share of each is one, or is not.

    ``n_counted`` is the number of entries that carry noise: all, or those not replaced, where ``outlying`` is None.
    """
    kind, half = type(model), 0.5 * n_counted + prior.concentration
    limits = [limit for k, limit in enumerate(_limits(kind, prior)) if k != 1]

    def objective(parameters: Array) -> Ascent:
        precision = float(np.exp(parameters[0]))
        candidate = kind.from_parameters(np.array([0.0, *parameters[1:]]))
        penalty = precision * (prior.rate + 0.5 * candidate.largest_weight * regular.penalty)
        value, gradient = half * parameters[0] - penalty, np.array([half - penalty, 0.0, 0.0])
        information = np.diag([penalty, 0.0, 0.0])
        if kind is not StudentSlab:  # w_max = 1 + 1/ν depends on ν
            gradient[1] -= 0.5 * precision * regular.penalty
        for place, histogram in enumerate((regular, outlying)):
            if histogram is not None:
                branch = candidate.branch_gradients(precision * histogram.deviation)[place]
                parts = (branch.by_log_rho, branch.by_shape, branch.by_width)
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
    """π where the bound is largest, given how many of the groups of entries are outliers."""
    return float(np.clip(n_outlying / (n_groups + MINORITY), *PROBABILITY_RANGE))


def global_step(
    kind: type[SlabModel],
    histogram: Histogram,
    prior: NoisePrior,
    starts: Iterable[tuple[float, SlabModel]] = (),
    precisions: Iterable[float] | None = None,
    *,
    little: float = LITTLE,
) -> tuple[float, SlabModel, float]:
    """C12: the best of several optima: starts over noise levels and outlier shares, compared on a coarse histogram.

    Noise levels are those of the given precisions, or else quantiles of D. Outliers are as large as the entries that
    would be some, or as the largest: a few of another world tell nothing of the others. The last steps end as those of
    :func:`joint_step` do.
    """
    order = np.cumsum(histogram.count) / histogram.count.sum()

    def quantile(share: float) -> float:
        return float(histogram.deviation[np.searchsorted(order, share)])

    if precisions is None:
        precisions = [min(1.0 / quantile(share), prior.largest) for share in NOISE_QUANTILES]
    coarse, candidates = histogram.coarsened(6), list(starts)
    shape = 1.0 if kind is StudentSlab else 30.0
    sizes = [(share, quantile(1.0 if kind is FlatSlab else 1.0 - 0.5 * share)) for share in OUTLIER_SHARES]
    if kind is not FlatSlab:
        sizes.append((OUTLIER_SHARES[0], 0.3 * quantile(1.0)))
    for tau in precisions:
        widths = [float(np.clip(tau * size, 2 * kind.narrowest, WIDEST_SLAB)) for _, size in sizes]
        candidates += [(tau, kind(share, shape, width)) for (share, _), width in zip(sizes, widths, strict=True)]
    best = sorted(candidates, key=lambda start: worth(start[0], start[1], coarse, prior), reverse=True)[:3]
    polished = [joint_step(tau, model, coarse, prior, max_steps=12, little=ROUGHLY) for tau, model in best]
    tau, model, _ = max(polished, key=lambda found: found[2])
    return joint_step(tau, model, histogram, prior, little=little)


def sided_step(
    tau: float, model: SlabModel, histogram: Histogram, prior: NoisePrior
) -> tuple[float, SlabModel, Sides, float]:
    """C23: (τ, π, shape, ζ) and q(a) for a histogram that counts signs; returns them and the objective less KL(q(a)).

    The better of two optima: from the present numbers, and, where the largest deviations are mostly of one sign, from
    outliers that nearly all have it. Symmetric outliers that are hardly larger than the noise pass for noise.
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
    tau: float, model: SlabModel, sides: Sides, histogram: Histogram, prior: NoisePrior
) -> tuple[float, SlabModel, Sides, float]:
    before = -math.inf
    for _ in range(SIDED_STEPS):
        sided = replace(histogram, log_sides=sides.mean_logs)
        tau, model, value = joint_step(tau, model, sided, prior, little=ROUGHLY)
        value -= sides.kl
        if value < before + ROUGHLY:
            break
        before, sides = value, _learnt_sides(tau, model, sided)
    return tau, model, sides, value


def _learnt_sides(tau: float, model: SlabModel, histogram: Histogram) -> Sides:
    """q(a) given how probable outliers are on each side."""
    rho = tau * histogram.deviation
    positive, negative = (
        float(count @ model.on_side(log_factor)[0].posterior(rho).outlier_probability)
        for count, log_factor in histogram.sides
    )
    return Sides(1.0 + positive, 1.0 + negative)


def in_terms_of(kind: type[SlabModel], model: SlabModel) -> SlabModel:
    """Another local model with as many outliers of the same size, and the same noise if it can have it."""
    shape = 1.0 if kind is StudentSlab else 30.0 if isinstance(model, StudentSlab) else model.shape
    width = model.width * (3.0 if kind is FlatSlab else 1.0) / (3.0 if isinstance(model, FlatSlab) else 1.0)
    return kind(model.probability, shape, float(np.clip(width, 2 * kind.narrowest, WIDEST_SLAB)))
