"""The smooth residual: what every fibre along a mode does by itself, beside the low-rank part.

y = x + g + s + ε: along a mode every fibre f has a course g_f, an autoregression with E[g²] = σ²/η_f and correlation
φ^Δ between positions Δ apart. η_f ~ Ga(a, a) has mean one, and the learnt a controls how much the fibres differ: at
σ = 0 nothing is left of it, and it costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.data.chains import Chains
from brtf.model.distributions import Gamma

LARGEST_MEMORY = 1.0 - 1e-6
"""Upper limit of φ: beyond it a course is a constant to rounding."""
SMALLEST_VARIANCE = 1e-16
"""Lower limit of σ² for data of unit scale, below their resolution."""


@dataclass(frozen=True, eq=False)
class SmoothResidual:
    """q(g) at the observed entries, with its parameters.

    Attributes
    ----------
    mode : the mode along which g is smooth
    memory : φ, the correlation of neighbours
    variance : σ², of a typical fibre, in units of the data's squared scale
    relative : q(η), Gamma over the F fibres with entries
    concentration : a
    mean, var : (M,) ḡ and Var g at the entries
    next_cov : (M,) Cov of g at an entry and at the next one of its fibre; 0 for the last
    divergence : KL(q(g) ‖ p(g | η)), averaged over q(η), plus KL(q(η) ‖ p(η))
    """

    mode: int
    memory: float
    variance: float
    relative: Gamma
    concentration: float
    mean: Array
    var: Array
    next_cov: Array
    divergence: float

    @cached_property
    def variances(self) -> Array:
        """σ²/η̄ of every fibre with entries, (F,)."""
        return self.variance / self.relative.mean

    def at(self, chains: Chains, coords: NDArray[np.intp]) -> tuple[Array, Array]:
        """ḡ and Var g at any positions (N, m): between entries interpolated, far from them 0 and σ_f².

        Given its neighbours g₁ and g₂ at distances d and e, g has the mean (p g₁ + q g₂)/(1 − φ^{2(d+e)}), with
        p = φ^d (1 − φ^{2e}) and q = φ^e (1 − φ^{2d}), and a variance of its own.
        """
        before, after, since, until = chains.places(coords)
        mean, var, cov = (chains.sorted(vector) for vector in (self.mean, self.var, self.next_cov))
        number = chains.fibre_numbers(coords)
        own = np.where(number >= 0, self.variances[number], self.variance)
        first = np.where(before >= 0, self.memory**since, 0.0)
        last = np.where(after >= 0, self.memory**until, 0.0)
        rest = 1.0 - np.square(first * last)
        exact = (before >= 0) & (since == 0)
        rest = np.where(exact, 1.0, rest)
        weight_first = np.where(exact, 1.0, first * (1.0 - last**2) / rest)
        weight_last = np.where(exact, 0.0, last * (1.0 - first**2) / rest)
        left = np.where(exact, 0.0, own * (1.0 - first**2) * (1.0 - last**2) / rest)
        found = weight_first * mean[before] + weight_last * mean[after]
        shared = np.where((before >= 0) & (after >= 0), cov[before], 0.0)
        spread = weight_first**2 * var[before] + weight_last**2 * var[after] + 2.0 * weight_first * weight_last * shared
        return found, left + np.maximum(spread, 0.0)

    def select(self, chosen: NDArray[np.bool_]) -> SmoothResidual:
        """q(g) at some of the entries only, for answers; the divergence stays that of all."""
        return replace(self, mean=self.mean[chosen], var=self.var[chosen], next_cov=self.next_cov[chosen])
