"""The lower bound of the model evidence (25): a pure function of one state, with every constant kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brtf.data.arrays import Array
from brtf.data.observations import Observations
from brtf.inference.updates import Fit, expected_square_sum, fit_at_entries
from brtf.model.state import MeanFieldOutliers, State

LOG_TWO_PI = float(np.log(2.0 * np.pi))


@dataclass(frozen=True)
class BoundTerms:
    """The named terms of the bound, in nats; larger is better. Zero where the model has no such part."""

    likelihood: float
    factors: float
    component_precisions: float
    noise: float
    outliers: float
    outlier_precisions: float

    @property
    def total(self) -> float:
        return float(sum(vars(self).values()))


def lower_bound(observations: Observations, state: State) -> BoundTerms:
    """The bound L = E ln p(Y, Θ) + H(q) of a state, for the data in units of their scale."""
    return bound_terms(state, fit_at_entries(observations, state.factors))


def bound_terms(state: State, fit: Fit) -> BoundTerms:
    """The bound from the low-rank part at the entries, which must belong to the same state."""
    outliers, outlier_precisions = (
        _outlier_terms(state.outliers) if isinstance(state.outliers, MeanFieldOutliers) else (0.0, 0.0)
    )
    log_precision = float(state.tau.mean_log)
    return BoundTerms(
        likelihood=0.5 * fit.residual.size * (log_precision - LOG_TWO_PI)
        - 0.5 * float(state.tau.mean) * expected_square_sum(fit, state.outliers),
        factors=-state.row_divergences,
        component_precisions=-state.lam.kl(state.prior.lam_concentration, state.prior.lam_rate),
        noise=-state.tau.kl(state.prior.tau_concentration, state.prior.tau_rate),
        outliers=outliers,
        outlier_precisions=outlier_precisions,
    )


def calibrated_terms(state: State, n_observed: int, log_evidence: float, slice_sizes: Array | None) -> BoundTerms:
    """C3, C4: the bound with the local posteriors integrated out: ½M(E ln τ − ln 2π) + Σ ln f(τ̄ D) − Σ KL.

    ``log_evidence`` is the second term: in form 2 with D = E[(y−x)²], in form 1 with D = (y−x̄)² and less
    ½ τ̄ w_max Σ Var x. With noise that differs between slices ρ = τ̄ ω̄_g D, and ½ E[ln ω_g] is added for every one of the
    ``slice_sizes`` entries of a slice.
    """
    likelihood = 0.5 * n_observed * (float(state.tau.mean_log) - LOG_TWO_PI) + log_evidence
    noise = -state.tau.kl(state.prior.tau_concentration, state.prior.tau_rate)
    if state.slices is not None and slice_sizes is not None:
        slices = state.slices
        likelihood += 0.5 * float(slice_sizes @ slices.precision.mean_log)
        noise -= slices.precision.kl(slices.concentration, slices.concentration)
    structure = state.structure
    parts = () if structure is None else (structure.rates, structure.sides)
    return BoundTerms(
        likelihood=likelihood,
        factors=-state.row_divergences,
        component_precisions=-state.lam.kl(state.prior.lam_concentration, state.prior.lam_rate),
        noise=noise,
        outliers=-sum(part.kl for part in parts if part is not None),
        outlier_precisions=0.0,
    )


def _outlier_terms(outliers: MeanFieldOutliers) -> tuple[float, float]:
    """E ln p(S | γ) + H(q(S)), and −KL(q(γ) ‖ p(γ))."""
    square = outliers.mean**2 + outliers.var
    sparse = 0.5 * np.sum(outliers.gamma.mean_log - outliers.gamma.mean * square + np.log(outliers.var) + 1.0)
    return float(sparse), -outliers.gamma.kl(outliers.concentration, outliers.rate)
