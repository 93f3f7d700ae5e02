"""Slices with far more outliers than the others, judged by the outliers that the fit found in every slice."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize
from scipy.special import betaln, expit

from brtf.data.arrays import Array
from brtf.model.state import SliceRates


def rate_evidence(rates: SliceRates) -> Array:
    """(G,) ln Bayes factor of a share of outliers beyond that of the other slices.

    A slice with o outliers among o + r entries has the probability ∫ π^o (1 − π)^r p(π) dπ. The share of a regular
    slice is Beta(a, b), that of another one uniform. Slices of the second kind must not widen the population of the
    first: a, b and the part of the slices that is not regular, at most a half, maximise the likelihood of all slices.
    """
    outlying, regular = (
        np.maximum(n - m, 0.0) for n, m in zip((rates.outlying, rates.regular), rates.prior, strict=True)
    )
    uniform = betaln(outlying + 1.0, regular + 1.0)

    def regular_log(a: float, b: float) -> Array:
        return np.asarray(betaln(outlying + a, regular + b) - betaln(a, b))

    def loss(place: Array) -> float:
        rate, size, part = expit(place[0]), np.exp(place[1]), 0.5 * expit(place[2])
        known = np.log1p(-part) + regular_log(rate * size, (1.0 - rate) * size)
        return -float(np.logaddexp(known, np.log(part) + uniform).sum())

    middle = float(np.median((outlying + 0.5) / (outlying + regular + 1.0)))
    starts = [[np.log(middle / (1.0 - middle)), size, -2.0] for size in (1.0, 4.0, 8.0)]
    limits = [(-15.0, 15.0), (-5.0, 15.0), (-10.0, 10.0)]
    best = min((minimize(loss, start, bounds=limits) for start in starts), key=lambda found: float(found.fun)).x
    rate, size = expit(best[0]), np.exp(best[1])
    higher = outlying > rate * (outlying + regular)
    return np.where(higher, uniform - regular_log(rate * size, (1.0 - rate) * size), -np.inf)
