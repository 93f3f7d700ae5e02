"""Noise and outlier numbers learnt together: one optimum over (ln τ, logit π, shape parameter, ln ζ) at fixed factors.

Everything an entry contributes depends on its D alone, so the data enter as a histogram of ln D.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize
from scipy.special import logit

from brtf import kernels
from brtf.distributions import Array
from brtf.kernels.reference import N_BINS
from brtf.local import WIDEST_SLAB, FlatSlab, SlabModel, StudentSlab

LARGEST_PRECISION = 1e16
"""Cap of τ̄ for data of unit scale: noise smaller than 1e-8 of the data is below their resolution."""
MINORITY = 9.0
"""Outliers are few unless the data say otherwise: π ~ Beta(1, 10), worth 8 nats at π = .6. Else, where there are none,
noise could pass for a slab of the least width, with π near one, at no loss."""
LITTLE = 1e-6
"""Nats that are not worth another step."""
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
    """

    deviation: Array
    count: Array
    penalty: float

    @classmethod
    def of(cls, deviation: Array, penalty: float) -> Histogram:
        """Bin the deviations D (M,)."""
        counts, totals = np.zeros(N_BINS), np.zeros(N_BINS)
        kernels.count_deviations(deviation, counts, totals)
        return cls.from_bins(counts, totals, float(deviation.max()), penalty)

    @classmethod
    def from_bins(cls, counts: Array, totals: Array, largest: float, penalty: float) -> Histogram:
        """The histogram of all bins, empty ones left out; the largest D stands alone.

        A slab that ends must end beyond it.
        """
        last = np.flatnonzero(counts)[-1]
        rest = np.where(np.arange(counts.size) == last, 1.0, 0.0)
        counts, totals = counts - rest, np.maximum(totals - rest * largest, 0.0)
        used = counts > 0
        floor = max(largest * 1e-32, 1e-300)
        deviation = np.append(totals[used] / counts[used], largest)
        return cls(np.maximum.accumulate(np.maximum(deviation, floor)), np.append(counts[used], 1.0), penalty)

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
        return Histogram(np.add.reduceat(self.count * self.deviation, first) / count, count, self.penalty)


@dataclass(frozen=True)
class NoisePrior:
    """Ga(a₀^τ, b₀^τ) of the noise precision."""

    concentration: float
    rate: float


def _objective(
    parameters: Array, kind: type[SlabModel], histogram: Histogram, prior: NoisePrior
) -> tuple[float, Array]:
    """Minus the part of the bound that depends on (ln τ, logit π, shape parameter, ln ζ), and its gradient."""
    tau = float(np.exp(parameters[0]))
    model = kind.from_parameters(parameters[1:])
    rho = tau * histogram.deviation
    log_evidence, by_rho, *by_model = model.gradient(rho)
    half = 0.5 * histogram.count.sum() + prior.concentration
    penalty = tau * (prior.rate + 0.5 * model.largest_weight * histogram.penalty)
    value = half * parameters[0] - penalty + histogram.count @ log_evidence
    value += MINORITY * np.log1p(-model.probability)
    gradient = np.array([half - penalty + histogram.count @ by_rho, *(histogram.count @ part for part in by_model)])
    gradient[1] -= MINORITY * model.probability
    if kind is not StudentSlab:  # w_max = 1 + 1/ν depends on ν
        gradient[2] -= 0.5 * tau * histogram.penalty
    return -float(value), -gradient


def _limits(kind: type[SlabModel]) -> list[tuple[float, float]]:
    shape = sorted(kind.shape_parameter(value) for value in kind.shape_range)
    return [
        (-700.0, float(np.log(LARGEST_PRECISION))),
        (float(logit(PROBABILITY_RANGE[0])), float(logit(PROBABILITY_RANGE[1]))),
        (shape[0], shape[1]),
        (float(np.log(kind.narrowest)), float(np.log(WIDEST_SLAB))),
    ]


def joint_step(
    tau: float, model: SlabModel, histogram: Histogram, prior: NoisePrior, *, max_steps: int = 40
) -> tuple[float, SlabModel, float]:
    """C5: the nearest optimum of (τ, π, shape, ζ) from the given point; returns them and the objective there."""
    kind = type(model)
    limits = _limits(kind)
    if kind is FlatSlab:  # entries beyond its edge are what it cannot explain
        model = replace(model, width=max(model.width, tau * float(histogram.deviation[-1])))
    start = np.concatenate([[np.log(tau)], model.parameters])
    start = np.clip(start, [low for low, _ in limits], [high for _, high in limits])
    found = minimize(
        _objective,
        start,
        args=(kind, histogram, prior),
        jac=True,
        method="L-BFGS-B",
        bounds=limits,
        options=_until_settled(histogram.count.sum(), max_steps),
    )
    return float(np.exp(found.x[0])), kind.from_parameters(found.x[1:]), -float(found.fun)


def _until_settled(n_entries: float, max_steps: int) -> dict[str, float]:
    """Options of L-BFGS-B: it ends where a step gains less than about ``LITTLE`` nats, the bound being M nats or so.

    Its test of the gradient is of no use here: within bounds it measures how far a step of that size could go.
    """
    return {"maxiter": max_steps, "ftol": LITTLE / max(n_entries, 1.0), "gtol": 1e-12}


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
    limits = [limit for k, limit in enumerate(_limits(kind)) if k != 1]

    def cost(parameters: Array) -> tuple[float, Array]:
        precision = float(np.exp(parameters[0]))
        candidate = kind.from_parameters(np.array([0.0, *parameters[1:]]))
        penalty = precision * (prior.rate + 0.5 * candidate.largest_weight * regular.penalty)
        value, gradient = half * parameters[0] - penalty, np.array([half - penalty, 0.0, 0.0])
        if kind is not StudentSlab:  # w_max = 1 + 1/ν depends on ν
            gradient[1] -= 0.5 * precision * regular.penalty
        for place, histogram in enumerate((regular, outlying)):
            if histogram is not None:
                branch = candidate.branch_gradients(precision * histogram.deviation)[place]
                value += histogram.count @ branch.log_evidence
                parts = (branch.by_log_rho, branch.by_shape, branch.by_width)
                gradient += [np.sum(histogram.count * part) for part in parts]
        return -float(value), -gradient

    start = np.array([np.log(tau), *model.parameters[1:]])
    start = np.clip(start, [low for low, _ in limits], [high for _, high in limits])
    options = _until_settled(n_counted, max_steps)
    found = minimize(cost, start, jac=True, method="L-BFGS-B", bounds=limits, options=options)
    learnt = kind.from_parameters(np.array([0.0, *found.x[1:]]))
    return float(np.exp(found.x[0])), replace(learnt, probability=model.probability)


def shared_rate(n_outlying: float, n_groups: float) -> float:
    """π where the bound is largest, given how many of the groups of entries are outliers."""
    return float(np.clip(n_outlying / (n_groups + MINORITY), *PROBABILITY_RANGE))


def global_step(
    kind: type[SlabModel], histogram: Histogram, prior: NoisePrior, starts: Iterable[tuple[float, SlabModel]] = ()
) -> tuple[float, SlabModel, float]:
    """C12: the best of several optima: starts over noise levels and outlier shares, compared on a coarse histogram."""
    order = np.cumsum(histogram.count) / histogram.count.sum()
    coarse = histogram.coarsened(6)
    widest = float(histogram.deviation[-1])
    shape = 1.0 if kind is StudentSlab else 30.0
    candidates = list(starts)
    for quantile in (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9):
        tau = min(1.0 / histogram.deviation[np.searchsorted(order, quantile)], LARGEST_PRECISION)
        width = float(np.clip((1.0 if kind is FlatSlab else 0.3) * widest * tau, 2 * kind.narrowest, WIDEST_SLAB))
        candidates += [(tau, kind(probability, shape, width)) for probability in (0.02, 0.2, 0.5, 0.75)]

    def cost(candidate: tuple[float, SlabModel]) -> float:
        tau, model = candidate
        return _objective(np.concatenate([[np.log(tau)], model.parameters]), kind, coarse, prior)[0]

    best = sorted(candidates, key=cost)[:3]
    polished = [joint_step(tau, model, coarse, prior) for tau, model in best]
    tau, model, _ = max(polished, key=lambda found: found[2])
    return joint_step(tau, model, histogram, prior)
