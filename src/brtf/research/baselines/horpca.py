"""Higher-order robust principal component analysis."""

from __future__ import annotations

import math

import numpy as np

from brtf.research.baselines.algebra import Array, fold, soft_threshold, squared_norm, typical_size, unfold
from brtf.research.baselines.matrix import shrink_singular
from brtf.research.baselines.registry import Mask, Method, Recovery


def recover(
    Y: Array,
    observed: Mask,
    rng: np.random.Generator,
    *,
    sparsity: float = 1.0,
    max_sweeps: int = 1000,
    tol: float = 1e-5,
) -> Recovery:
    """The convex compromise between low rank in every unfolding and few outliers.

    min Σ_n ‖unfold(X, n)‖_* + λ ‖E‖₁ subject to X + E = Y at the observed entries, λ = c / √(max_n I_n), the singleton
    model, by alternating directions: a copy X_n of X per mode, Z what they agree on, multipliers V_n and V_0.
    Deterministic: the seed has no effect.

    Parameters
    ----------
    sparsity : float
        c. Larger values give fewer outliers. The result depends strongly on it; good values lie between 1/4 and 4 and
        differ between complete and incomplete data.
    max_sweeps : int
    tol : float
        Relative disagreement of the copies, and relative change of Z in a sweep, below which the fit has converged.

    Returns
    -------
    Recovery
        The rank is that of the copies, one per mode; no CP factors.
    """
    order = Y.ndim
    step = 10.0 * typical_size(Y[observed])
    cutoff = step * sparsity / math.sqrt(max(Y.shape))
    n_constraints = order + observed  # of every entry: its copies, and X + E = Y where it is observed
    size = squared_norm(Y)
    agreed = np.zeros(Y.shape)
    multipliers = np.zeros((order, *Y.shape))
    multiplier = np.zeros(Y.shape)
    for _ in range(max_sweeps):
        shrunk = [shrink_singular(unfold(agreed + step * multipliers[mode], mode), step) for mode in range(order)]
        copies = np.stack([fold(matrix, mode, Y.shape) for mode, (matrix, _) in enumerate(shrunk)])
        outliers = np.where(observed, soft_threshold(Y - agreed + step * multiplier, cutoff), 0.0)
        previous = agreed
        agreed = np.sum(copies - step * multipliers, axis=0)
        agreed = (agreed + np.where(observed, Y - outliers + step * multiplier, 0.0)) / n_constraints
        gaps = copies - agreed
        gap = np.where(observed, agreed + outliers - Y, 0.0)
        multipliers -= gaps / step
        multiplier -= gap / step
        disagreement = (squared_norm(gaps) + squared_norm(gap)) / (size + order * squared_norm(agreed))
        change = squared_norm(agreed - previous)
        if disagreement < tol**2 and change < tol**2 * squared_norm(previous):
            break
    return Recovery(agreed, outliers, tuple(values.size for _, values in shrunk))


METHOD = Method(
    name="horpca",
    recover=recover,
    missing=True,
    robust=True,
    works_on="tensor",
    source="Goldfarb & Qin, SIAM J. Matrix Anal. Appl. 35 (2014), HoRPCA-S by ADAL; written from the equations.",
)
