"""The paper's prior of a mode's rows: independent, around zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.row_priors.row_prior import IndependentRows, RowPrior, register


@register
@dataclass(frozen=True, eq=False)
class ZeroMean(IndependentRows):
    """The paper's prior (7): a_i ~ N(0, diag(λ)⁻¹)."""

    name = "about zero"
    words = "vary about zero"
    rotates = True

    @classmethod
    def shapes(cls, n_rows: int, rank: int) -> dict[str, tuple[int, ...]]:
        return {}

    @classmethod
    def proposed(cls, rows: RowGaussians, lam: Gamma) -> ZeroMean:
        return cls()

    def terms(self, lam: Gamma) -> tuple[Array, Array]:
        """diag λ̄ and zero."""
        return np.diag(lam.mean)[None], np.zeros((1, lam.mean.size))

    def squares(self, rows: RowGaussians) -> tuple[int, Array]:
        """I and Σ_i E[a_ir²]."""
        return rows.n_rows, rows.component_power

    def learnt(self, rows: RowGaussians, lam: Gamma) -> ZeroMean:
        return self

    def for_new_rows(self, n_rows: int, after: RowGaussians | None = None) -> ZeroMean:
        return self

    def followed_by(self, new: RowPrior) -> ZeroMean:
        return self

    def select(self, keep: NDArray[Any]) -> ZeroMean:
        return self

    def rescaled(self, ratio: Array) -> ZeroMean:
        return self
