"""Slices whose noise is far above that of the others, judged by the noise that the fit found for every slice."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import polygamma
from scipy.stats import chi2

from brtf.data.arrays import Array
from brtf.data.scale import SD_PER_MEDIAN
from brtf.model.distributions import Gamma


def noise_evidence(precision: Gamma) -> Array:
    """(G,) ln Bayes factor of noise beyond that of the other slices, from the precisions q(ω) of their noise.

    Regular slices have ln ω_g ~ N(μ, s²), known with variance v_g. A few noisy ones must not widen that population: μ
    is the median, and s² the squared median deviation beyond what is due to v, at its upper 95 % limit. With additional
    noise of half-Cauchy size u, ln ω_g is d = ln(1 + u²) lower, which has density 1 / (π (e^d − 1)^{1/2}).
    """
    logs, error = precision.mean_log, polygamma(1, precision.concentration)
    centre, n_others = float(np.median(logs)), logs.size - 1
    if n_others < 1:
        return np.full(logs.shape, -np.inf)
    deviation = SD_PER_MEDIAN * float(np.median(np.abs(logs - centre)))
    square = np.maximum(deviation**2 * n_others / float(chi2.ppf(0.05, n_others)) - np.median(error), 0.0) + error
    lower = np.maximum(centre - logs, 0.0)
    extra = np.maximum(lower, np.sqrt(square))  # the density is smeared over as much
    log_alternative = -math.log(math.pi) - 0.5 * (extra + np.log(-np.expm1(-extra)))
    return np.asarray(log_alternative + 0.5 * np.log(2.0 * math.pi * square) + 0.5 * lower**2 / square)
