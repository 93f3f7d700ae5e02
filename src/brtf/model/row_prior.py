"""Priors p(A⁽ⁿ⁾ | λ) of a mode's rows, each with the posterior of its own parameters.

Nothing outside this module depends on which prior a mode has. To add one, subclass :class:`RowPrior`, or
:class:`IndependentRows` for independent rows, and list it in :data:`ROW_PRIORS`: the search then proposes it for every
mode, and files can store it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.model.distributions import Gamma, RowGaussians

RowSolver = Callable[[Array, Array], RowGaussians]
"""Rows with the given precision matrices, (I, R, R) or (1, R, R), and linear terms, (I, R)."""


class RowPrior(ABC):
    """The prior of a mode's rows given λ, with the posterior of its own parameters; frozen.

    A prior consists of arrays, the arguments of its constructor. :meth:`shapes` declares their shapes, and the
    constructor rejects invalid values, since both may come from a file.
    """

    name: ClassVar[str]
    """Name in files and events."""
    rotates: ClassVar[bool] = False
    """Whether the prior of a row is N(0, diag(λ)⁻¹): only then may components be rotated."""

    @classmethod
    @abstractmethod
    def shapes(cls, n_rows: int, rank: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the constructor's arrays for so many rows."""

    @classmethod
    @abstractmethod
    def proposed(cls, rows: RowGaussians, lam: Gamma) -> RowPrior | None:
        """The best prior of this kind for the given rows; None where it does not apply to them."""

    @abstractmethod
    def posterior(self, precision: Array, linear: Array, lam: Gamma, solve: RowSolver) -> tuple[RowGaussians, RowPrior]:
        """The rows' posterior, given the likelihood exp(hᵢᵀaᵢ − ½ aᵢᵀPᵢaᵢ) of every row, and the prior to go with it.

        The returned prior is this one, with any joint statistics of the rows' posterior that it needs; its own
        parameters are not updated here.

        Parameters
        ----------
        precision : (I, R, R), or (1, R, R) where all rows share it; the matrices P_i
        linear : (I, R), the vectors h_i
        """

    @abstractmethod
    def shared_terms(self, lam: Gamma) -> tuple[Array, Array] | None:
        """Precision (R, R) and linear term (R,) of every row's prior, if rows are independent and share them.

        Rows can then be solved one by one as their statistics become available. None where they must be solved
        together, by :meth:`posterior`.
        """

    @abstractmethod
    def likelihood(self, rows: RowGaussians, lam: Gamma, solve: RowSolver) -> tuple[Array, Array]:
        """The likelihood of every row: its posterior divided by this prior, as (P, h) of :meth:`posterior`."""

    @abstractmethod
    def row_log_density(self, mean: Array, lam: Gamma) -> Array:
        """E[ln p(a_i | λ)] at the given rows, up to a constant per row, (I,)."""

    @abstractmethod
    def squares(self, rows: RowGaussians) -> tuple[int, Array]:
        """For U2: number of Gaussians of precision λ_r per component, and the sum of their expected squares, (R,)."""

    @abstractmethod
    def kl(self, rows: RowGaussians, lam: Gamma) -> float:
        """KL(q(A⁽ⁿ⁾) ‖ p(A⁽ⁿ⁾ | λ)) plus that of the prior's own parameters, averaged over q(λ)."""

    @abstractmethod
    def learnt(self, rows: RowGaussians, lam: Gamma) -> RowPrior:
        """The prior with its own parameters at the minimum of KL; the rows may have other components than before."""

    @abstractmethod
    def for_new_rows(self, n_rows: int) -> RowPrior:
        """The prior of so many new rows that follow these, with its own parameters fixed as learnt from these."""

    @abstractmethod
    def followed_by(self, new: RowPrior) -> RowPrior:
        """The prior of these rows followed by new ones that had the prior of :meth:`for_new_rows`."""

    @abstractmethod
    def select(self, keep: NDArray[Any]) -> RowPrior:
        """The prior of the kept components."""

    @abstractmethod
    def rescaled(self, ratio: Array) -> RowPrior:
        """The prior of rows whose components are multiplied by ``ratio`` (R,)."""


class IndependentRows(RowPrior):
    """Rows that are independent given the prior's own parameters."""

    @abstractmethod
    def terms(self, lam: Gamma) -> tuple[Array, Array]:
        """Precision matrices (1 or I, R, R) and linear terms (1 or I, R) of the rows' priors, averaged over q(λ)."""

    @property
    def own_log_det(self) -> float:
        """ln|cov| of the prior's own parameters."""
        return 0.0

    def posterior(self, precision: Array, linear: Array, lam: Gamma, solve: RowSolver) -> tuple[RowGaussians, RowPrior]:
        """V_i = (P_i + Λ_i)⁻¹, ã_i = V_i (h_i + l_i), with (Λ_i, l_i) the terms of the row's prior."""
        own_precision, own_linear = self.terms(lam)
        return solve(precision + own_precision, linear + own_linear), self

    def shared_terms(self, lam: Gamma) -> tuple[Array, Array] | None:
        """The terms, where all rows share them."""
        precision, linear = self.terms(lam)
        return (precision[0], linear[0]) if len(precision) == len(linear) == 1 else None

    def likelihood(self, rows: RowGaussians, lam: Gamma, solve: RowSolver) -> tuple[Array, Array]:
        """P_i = V_i⁻¹ − Λ_i, h_i = V_i⁻¹ ã_i − l_i. λ̄ may have moved since V was updated; P is kept non-negative."""
        precision, linear = self.terms(lam)
        natural = solve(rows.cov, rows.mean)  # the inverse map has the same form: (V, ã) to (V⁻¹, V⁻¹ã)
        root = np.linalg.cholesky(precision)
        back = np.linalg.inv(root)
        ratios, directions = np.linalg.eigh(back @ natural.cov @ back.transpose(0, 2, 1))
        directions = root @ directions
        excess = (directions * np.maximum(ratios - 1.0, 0.0)[:, None, :]) @ directions.transpose(0, 2, 1)
        return excess, natural.mean - linear

    def row_log_density(self, mean: Array, lam: Gamma) -> Array:
        """l_iᵀa_i − ½ a_iᵀΛ_i a_i."""
        precision, linear = self.terms(lam)
        return np.asarray(np.sum(linear * mean, axis=1) - 0.5 * np.einsum("ir,irs,is->i", mean, precision, mean))

    def kl(self, rows: RowGaussians, lam: Gamma) -> float:
        """Σ_r over all squares: ½ λ̄_r E[·²] − ½ E[ln λ_r] − ½, minus ½ ln|cov| of rows and own parameters."""
        n_counted, power = self.squares(rows)
        log_dets = rows.log_det_cov.sum() * (rows.n_rows if rows.shared else 1) + self.own_log_det
        return float(
            -0.5 * log_dets - 0.5 * n_counted * (rows.rank + np.sum(lam.mean_log)) + 0.5 * np.sum(lam.mean * power)
        )


@dataclass(frozen=True, eq=False)
class ZeroMean(IndependentRows):
    """The paper's prior (7): a_i ~ N(0, diag(λ)⁻¹)."""

    name = "about zero"
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

    def for_new_rows(self, n_rows: int) -> ZeroMean:
        return self

    def followed_by(self, new: RowPrior) -> ZeroMean:
        return self

    def select(self, keep: NDArray[Any]) -> ZeroMean:
        return self

    def rescaled(self, ratio: Array) -> ZeroMean:
        return self


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

    def for_new_rows(self, n_rows: int) -> RowPrior:
        return KnownCentre(self.mean, self.var)

    def followed_by(self, new: RowPrior) -> RowPrior:
        return self

    def select(self, keep: NDArray[Any]) -> RowPrior:
        return type(self)(self.mean[keep], self.var[keep])

    def rescaled(self, ratio: Array) -> RowPrior:
        return type(self)(self.mean * ratio, self.var * ratio**2)


@dataclass(frozen=True, eq=False)
class Centred(KnownCentre):
    """Rows around a centre learnt from them, with the prior of a row: μ ~ N(0, diag(λ)⁻¹)."""

    name = "centred"

    @classmethod
    def proposed(cls, rows: RowGaussians, lam: Gamma) -> Centred:
        """C18: q(μ_r) = N(Σ_i ã_ir/(I+1), 1/((I+1) λ̄_r))."""
        n_counted = rows.n_rows + 1
        return cls(rows.mean.sum(axis=0) / n_counted, 1.0 / (n_counted * lam.mean))

    @property
    def own_log_det(self) -> float:
        """Σ_r ln var_r."""
        return float(np.sum(np.log(self.var)))

    def squares(self, rows: RowGaussians) -> tuple[int, Array]:
        """I + 1 and Σ_i E[(a_ir − μ_r)²] + E[μ_r²]."""
        n_rows, power = super().squares(rows)
        return n_rows + 1, power + self.var + self.mean**2

    def learnt(self, rows: RowGaussians, lam: Gamma) -> Centred:
        """The prior with the optimal centre for these rows."""
        return self.proposed(rows, lam)


ROW_PRIORS: dict[str, type[RowPrior]] = {kind.name: kind for kind in (ZeroMean, Centred)}
"""The priors that the search proposes for every mode, by the name used in files."""
