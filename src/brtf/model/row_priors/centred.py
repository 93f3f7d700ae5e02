"""Rows around a centre, learnt from them or from other rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.row_priors.row_prior import IndependentRows, RowPrior, register


@dataclass(frozen=True, eq=False)
class KnownCentre(IndependentRows):
    """Rows around a centre learnt from other rows: a_i ~ N(μ, diag(λ)⁻¹), with q(μ_r) = N(mean_r, var_r) fixed.

    Attributes
    ----------
    mean, var : (R,)
    """

    mean: Array
    var: Array
    name = "about a known centre"
    words = "vary about a common centre"

    def __post_init__(self) -> None:
        if not (self.var > 0).all():
            raise ValueError("the variance of a centre is not positive")

    @classmethod
    def shapes(cls, n_rows: int, rank: int) -> dict[str, tuple[int, ...]]:
        return {"mean": (rank,), "var": (rank,)}

    @classmethod
    def proposed(cls, rows: RowGaussians, lam: Gamma) -> RowPrior | None:
        return None

    def terms(self, lam: Gamma) -> tuple[Array, Array]:
        """diag λ̄ and λ̄ μ̄."""
        return np.diag(lam.mean)[None], (lam.mean * self.mean)[None]

    def squares(self, rows: RowGaussians) -> tuple[int, Array]:
        """I and Σ_i E[(a_ir − μ_r)²]."""
        deviation, variances = rows.mean - self.mean, rows.variances
        spread = variances[0] * rows.n_rows if rows.shared else variances.sum(axis=0)
        return rows.n_rows, np.einsum("ir,ir->r", deviation, deviation) + spread + rows.n_rows * self.var

    def learnt(self, rows: RowGaussians, lam: Gamma) -> RowPrior:
        return self

    def for_new_rows(self, n_rows: int, after: RowGaussians | None = None) -> RowPrior:
        return KnownCentre(self.mean, self.var)

    def followed_by(self, new: RowPrior) -> RowPrior:
        return self

    def select(self, keep: NDArray[Any]) -> RowPrior:
        return type(self)(self.mean[keep], self.var[keep])

    def rescaled(self, ratio: Array) -> RowPrior:
        return type(self)(self.mean * ratio, self.var * ratio**2)


class LearntCentre(IndependentRows):
    """What a centre learnt from the rows adds to their prior, as it has that of a row: μ ~ N(0, diag(λ)⁻¹)."""

    mean: Array
    var: Array

    @property
    def own_log_det(self) -> float:
        """Σ_r ln var_r."""
        return float(np.sum(np.log(self.var)))

    def squares(self, rows: RowGaussians) -> tuple[int, Array]:
        """One more than of rows about a known centre, and their squares plus E[μ_r²]."""
        n_rows, power = super().squares(rows)  # type: ignore[safe-super]
        return n_rows + 1, power + self.var + self.mean**2


@register
@dataclass(frozen=True, eq=False)
class Centred(LearntCentre, KnownCentre):
    """Rows around a centre learnt from them, with the prior of a row: μ ~ N(0, diag(λ)⁻¹)."""

    name = "centred"

    @classmethod
    def proposed(cls, rows: RowGaussians, lam: Gamma) -> Centred:
        """C18: q(μ_r) = N(Σ_i ã_ir/(I+1), 1/((I+1) λ̄_r))."""
        n_counted = rows.n_rows + 1
        return cls(rows.mean.sum(axis=0) / n_counted, 1.0 / (n_counted * lam.mean))

    def learnt(self, rows: RowGaussians, lam: Gamma) -> Centred:
        """The prior with the optimal centre for these rows."""
        return self.proposed(rows, lam)
