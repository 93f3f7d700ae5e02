"""The protocol of a prior of a mode's rows, and the registry of the priors that the search proposes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.model.distributions import Gamma, RowGaussians

RowSolver = Callable[[Array, Array], RowGaussians]
"""Rows with the given precision matrices, (I, R, R) or (1, R, R), and linear terms, (I, R)."""


ROW_PRIORS: dict[str, type[RowPrior]] = {}
"""The priors that the search proposes for every mode, by the name used in files."""
Kind = TypeVar("Kind", bound="type[RowPrior]")
TOGETHER = 2**12
"""Numbers of the matrices that are looked at together."""


def register(kind: Kind) -> Kind:
    """Class decorator: let the search propose the prior for every mode, and files store it."""
    ROW_PRIORS[kind.name] = kind
    return kind


@dataclass(frozen=True, eq=False)
class RowTerms:
    """Precision and linear term of the priors of independent rows, which differ by a factor at most.

    Attributes
    ----------
    precision : (R, R)
    linear : (R,)
    factors : (I,), of both terms of every row; None where all rows have the same
    """

    precision: Array
    linear: Array
    factors: Array | None = None

    def at(self, rows: slice) -> tuple[Array, Array]:
        """Precision matrices (1 or b, R, R) and linear terms (1 or b, R) of some rows."""
        if self.factors is None:
            return self.precision[None], self.linear[None]
        factors = self.factors[rows, None]
        return factors[:, None] * self.precision, factors * self.linear


class RowPrior(ABC):
    """The prior of a mode's rows given λ, with the posterior of its own parameters; frozen.

    A prior consists of arrays, the arguments of its constructor. :meth:`shapes` declares their shapes, and the
    constructor rejects invalid values, since both may come from a file.
    """

    name: ClassVar[str]
    """Name in files and events."""
    words: ClassVar[str]
    """How the loadings of a mode with this prior vary, in plain words: the end of a sentence about them."""
    rotates: ClassVar[bool] = False
    """Whether the prior of a row is N(0, diag(λ)⁻¹), but for a factor: only then may components be rotated."""
    signed: ClassVar[bool] = True
    """Whether a component may change its sign."""
    ordered: ClassVar[bool] = False
    """Whether rows follow each other."""

    @classmethod
    @abstractmethod
    def shapes(cls, n_rows: int, rank: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the constructor's arrays for ``n_rows`` rows; −1 where any length will do."""

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
    def shared_terms(self, lam: Gamma) -> RowTerms | None:
        """Precision and linear term of every row's prior, if rows are independent and share them, but for a factor.

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
    def slope(self, mean: Array, lam: Gamma) -> Array:
        """−∂ E[ln p(A⁽ⁿ⁾ | λ)]/∂a at the given rows, (I, R), which is linear in them."""

    @abstractmethod
    def squares(self, rows: RowGaussians) -> tuple[int, Array]:
        """For U2: number of Gaussians of precision λ_r per component, and the sum of their expected squares, (R,)."""

    @abstractmethod
    def kl(self, rows: RowGaussians, lam: Gamma) -> float:
        """KL(q(A⁽ⁿ⁾) ‖ p(A⁽ⁿ⁾ | λ)) plus that of the prior's own parameters, averaged over q(λ)."""

    @abstractmethod
    def learnt(self, rows: RowGaussians, lam: Gamma) -> RowPrior:
        """The prior with its own parameters at the minimum of KL; the rows may have other components than before."""

    def second_moments(self, rows: RowGaussians) -> Array:
        """Σ_i E[a_i a_iᵀ], rows weighted as in :meth:`squares`, (R, R); asked where components may be rotated."""
        return rows.gram + rows.cov_sum

    def evened(self, rows: RowGaussians, lam: Gamma) -> RowPrior:
        """This prior, or the one closest to it under which rows of equal statistics have equal covariances."""
        return self

    def adapted(self, rows: RowGaussians, lam: Gamma) -> tuple[RowGaussians, RowPrior]:
        """The nearest posterior to the given rows that the prior allows, and the prior learnt from it."""
        return rows, self.learnt(rows, lam)

    def begun_again(self, rows: RowGaussians, lam: Gamma) -> tuple[RowGaussians, RowPrior]:
        """Other rows of the same mode, which were found without this prior, with a prior of its kind learnt from them.

        They may have other components, whose λ is not that of this prior's rows.
        """
        return self.adapted(rows, lam)

    def moved(self, rows: RowGaussians, mean: Array) -> tuple[RowGaussians, RowPrior]:
        """The posterior with its means replaced by the given ones, (I, R), or close to them, and the matching prior."""
        return rows.with_mean(mean), self

    def reported(self, rows: RowGaussians, lam: Gamma) -> RowGaussians:
        """The rows with the covariances to report, where the posterior leaves out what they depend on."""
        return rows

    def sampler(self, rows: RowGaussians, reported: RowGaussians) -> Callable[[np.random.Generator], Array]:
        """A function that draws all rows (I, R) from their posterior, with the reported means and covariances.

        ``rows`` are those of the posterior itself, which may depend on each other; by default they do not.
        """
        root = np.linalg.cholesky(reported.cov)
        return lambda rng: reported.mean + np.einsum("irs,is->ir", root, rng.standard_normal(reported.mean.shape))

    @abstractmethod
    def for_new_rows(self, n_rows: int, after: RowGaussians | None = None) -> RowPrior:
        """The prior of ``n_rows`` new rows, with its own parameters fixed as learnt from these.

        The new rows continue the given ones, which are those of this prior; None where they do not follow any.
        """

    def at_steps(self, steps: Array) -> RowPrior:
        """The prior of new rows that continue others, at distances (n,) from the last one and from each other."""
        return self

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

    def shared_terms(self, lam: Gamma) -> RowTerms | None:
        """The terms, where all rows share them."""
        precision, linear = self.terms(lam)
        return RowTerms(precision[0], linear[0]) if len(precision) == len(linear) == 1 else None

    def likelihood(self, rows: RowGaussians, lam: Gamma, solve: RowSolver) -> tuple[Array, Array]:
        """P_i = V_i⁻¹ − Λ_i, h_i = V_i⁻¹ ã_i − l_i. λ̄ may have moved since V was updated; P is kept non-negative."""
        precision, linear = self.terms(lam)
        natural = solve(rows.cov, rows.mean)  # the inverse map has the same form: (V, ã) to (V⁻¹, V⁻¹ã)
        return excess(natural.cov, precision), natural.mean - linear

    def slope(self, mean: Array, lam: Gamma) -> Array:
        """Λ_i a_i − l_i."""
        precision, linear = self.terms(lam)
        return np.asarray((precision @ mean[:, :, None])[:, :, 0] - linear)

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


def excess(precision: Array, own: Array) -> Array:
    """What is left of precision matrices (I, R, R) without those of a prior, (1 or I, R, R), which are diagonal.

    A prior that has moved since may ask for more than there is in some directions; nothing is left of these, so that
    what is left is never negative.
    """
    left, of_prior = np.asarray(precision - own), np.broadcast_to(own, precision.shape)
    together = max(1, TOGETHER // max(1, left.shape[-1] ** 2))  # of no components too
    for start in range(0, len(left), together):
        part = slice(start, start + together)
        try:
            np.linalg.cholesky(left[part])
        except np.linalg.LinAlgError:
            left[part] = _without_negative(precision[part], of_prior[part])
    return left


def _without_negative(precision: Array, own: Array) -> Array:
    """The precision matrices without those of the prior, in the directions in which there is more than those."""
    scale = np.sqrt(np.einsum("irr->ir", own))
    ratios, directions = np.linalg.eigh(precision / (scale[:, :, None] * scale[:, None, :]))
    directions = scale[:, :, None] * directions
    return np.asarray((directions * np.maximum(ratios - 1.0, 0.0)[:, None, :]) @ directions.transpose(0, 2, 1))
