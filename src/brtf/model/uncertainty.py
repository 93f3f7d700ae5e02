"""Uncertainty of the low-rank part that the posterior of the factors leaves out.

The factors' covariances ignore that outlier indicators are uncertain, and that there may be components too weak to be
detected. Both effects follow from the state alone.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from brtf.model.distributions import RowGaussians
from brtf.model.local_models import LocalModel
from brtf.model.predictive import ErrorLaw
from brtf.model.state import MeanFieldOutliers, State, component_amplitudes

QUADRATURE_NODES = 4001
"""Nodes of the trapezoidal rule over the distribution of a deviation; half as many change results by less than 1e-5."""

LARGEST_RATIO = 50.0
"""Ratio of the smallest detectable power to the mean power found, above which all noise may be hidden components."""

NEARLY_ZERO = 1e-12
"""Share of a variance used in place of zero, which has no logarithm, in a table of widths."""


@lru_cache(maxsize=64)
def information(model: LocalModel) -> tuple[float, float]:
    """C20: Fisher information of an entry about x in units of τ̄, E[w²ρ], and its ratio to the mean weight E[w].

    The factors' covariances count an entry by its weight, as if its outlier indicator were known; its information is
    the mean square of its score, √τ̄ w ρ^{1/2}. The two are equal where no indicator is uncertain. For Student-t
    noise of ν degrees of freedom without outliers the ratio is (ν + 1)/(ν + 3).
    """
    if model.is_gaussian:
        return 1.0, 1.0
    largest = math.asinh(60.0 + 40.0 * math.sqrt(model.outlier_scale_sq))
    nodes = np.linspace(0.0, largest, QUADRATURE_NODES)
    deviation = np.sinh(nodes)  # in standard deviations of the noise
    local = model.posterior(deviation**2)
    mass = np.exp(local.log_evidence) * np.cosh(nodes)
    mass[0] *= 0.5
    mass /= mass.sum()
    score_square, weight = float(mass @ (local.weight * deviation) ** 2), float(mass @ local.weight)
    return score_square, min(score_square / weight, 1.0)


def honest_rows(state: State, widening: float = 1.0) -> tuple[RowGaussians, ...]:
    """The factors' posterior as its priors report it, covariances widened for uncertain outlier indicators.

    ``widening`` is another factor of the covariances: 1, or what held-out entries ask for.
    """
    factors = tuple(
        prior.reported(rows, state.lam) for prior, rows in zip(state.row_priors, state.factors, strict=True)
    )
    replaced = state.structure is not None and state.structure.law is not None
    if replaced or isinstance(state.local, MeanFieldOutliers) or state.local.is_gaussian:
        ratio = 1.0
    else:
        ratio = information(state.local)[1]
    if ratio == widening:
        return factors
    return tuple(RowGaussians(rows.mean, rows.cov_packed * (widening / ratio)) for rows in factors)


def hidden_law(state: State) -> ErrorLaw:
    """C21: distribution of the part of x in components too weak to be detected, in units of the scale.

    Noise alone has rank-one fits of amplitude α* = Σ_n √I_n / J^{1/2}, J the Fisher information of all entries: weaker
    components are not detected. The power α² of a component is assumed exponential, the maximum-entropy distribution,
    with the mean power P of those found. A component is then hidden with probability F = 1 − e^{−t}, t = α*²/P; if R
    were found, the number of hidden ones is negative binomial, (R + 1) F / (1 − F) in the mean. With probability
    (1 − F)^{R+1} none is; the mean of their total variance is (R + 1) P (eᵗ − 1 − t), and their sum, if there are any,
    is taken to be Gaussian. If none was found, P is taken to be α*², and one or more are hidden, each as large as
    possible. The estimated noise contains them, so it limits their variance. Zero in the paper's inference.
    """
    if isinstance(state.local, MeanFieldOutliers):
        return _gaussian_or_zero(1.0, 0.0)
    n_counted = 2.0 * (float(state.tau.concentration) - state.prior.tau_concentration)
    per_entry, tau = information(state.local)[0], float(state.tau.mean)
    edge_square = sum(math.sqrt(rows.n_rows) for rows in state.factors) ** 2 / (tau * per_entry * n_counted)
    power = float(np.mean(component_amplitudes(state) ** 2)) if state.rank else 0.0
    if power > 0:
        ratio = min(edge_square / power, LARGEST_RATIO)
        probability = -math.expm1(-(state.rank + 1) * ratio)
        hidden = (state.rank + 1) * power * (math.expm1(ratio) - ratio)
    else:
        probability, hidden = 1.0, edge_square * math.expm1(1.0)
    if_any = hidden / probability if hidden > 0.0 else 0.0
    return _gaussian_or_zero(probability, if_any / (1.0 + tau * if_any))


def hidden_variance(state: State) -> float:
    """The variance of that distribution, in units of the squared scale."""
    law = hidden_law(state)
    return float(law.weight @ law.scale_sq)


def _gaussian_or_zero(probability: float, variance: float) -> ErrorLaw:
    """Gaussian of that variance with the given probability, otherwise zero, up to ``NEARLY_ZERO`` of the variance."""
    if probability < 1.0 and variance > 0.0:
        weight, scale_sq = np.array([1.0 - probability, probability]), variance * np.array([NEARLY_ZERO, 1.0])
    else:
        weight, scale_sq = np.ones(1), np.array([variance])
    return ErrorLaw(weight, np.full(weight.size, np.inf), scale_sq, np.zeros(weight.size))
