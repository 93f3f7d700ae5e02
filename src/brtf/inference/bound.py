"""The lower bound of the model evidence (25): a pure function of one state, with every constant kept.

:func:`bound` is the definition, for any state. Sweeps already have the sums over entries and compute the terms from
them: :func:`bound_terms` in the paper's inference, :func:`calibrated_terms` in calibrated inference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.passes import Sums, add_up
from brtf.inference.entry_posterior import EntryLaw, grouped, relative_precision
from brtf.inference.statistics import EntryFit, fit_at_entries, variance_field
from brtf.inference.updates import expected_square_sum
from brtf.model.distributions import LOG_TWO_PI
from brtf.model.state import MeanFieldOutliers, State

if TYPE_CHECKING:
    from brtf.inference.problem import Problem


@dataclass(frozen=True)
class BoundTerms:
    """The named terms of the bound, in nats; larger is better. Zero where the model lacks that part."""

    likelihood: float
    factors: float
    component_precisions: float
    noise: float
    outliers: float
    outlier_precisions: float
    smooth: float = 0.0

    @property
    def total(self) -> float:
        return float(sum(vars(self).values()))


def bound(problem: Problem, state: State) -> BoundTerms:
    """The bound L = E ln p(Y, Θ) + H(q) of any state, for the data in units of their scale.

    Θ is all unknowns: factors, centres, precisions of the components, of the noise and of its slices, and outliers with
    their rates and sides. The form of the bound is that of the problem. With a link it is the bound of the transformed
    data; for the bound of the original data add the log of the link's slope at every entry.

    Raises
    ------
    ValueError
        If the state does not match the shape and number of entries of the data.
    TypeError
        If its parts are incompatible: a structure without outliers, or slices or structure in the paper's inference.
    """
    observations, outliers = problem.observations, state.local
    lengths = tuple(rows.n_rows for rows in state.factors)
    if lengths != observations.shape:
        raise ValueError(f"The state is one of data of shape {lengths}, got data of shape {observations.shape}.")
    if isinstance(outliers, MeanFieldOutliers):
        if state.slices is not None or state.structure is not None or not math.isinf(problem.limit):
            raise TypeError("The paper's inference has no bound with noise per slice, structured outliers or clipping.")
        if outliers.mean.size != observations.n_observed:
            raise ValueError(
                f"The state has outliers of {outliers.mean.size} entries, got data of {observations.n_observed}."
            )
        return bound_terms(state, fit_at_entries(observations, state.factors))
    smooth = state.smooth
    if smooth is not None and (not problem.collapsed or smooth.mean.size != observations.n_observed):
        raise TypeError("A smooth residual has a bound in form 2 only, for the entries that it was fitted to.")
    means = [rows.mean_as(problem.dtype) for rows in state.factors]
    variance_at = variance_field(state.factors)
    rounding = problem.rounding
    price, law = 0.5 * float(state.tau.mean) * outliers.largest_weight, EntryLaw(state)

    def add(sums: Sums, block: Block) -> None:
        values = problem.values(block)
        residual = values - kernels.low_rank_at(block, means)
        variance = variance_at(block) if state.rank else np.zeros(block.n_entries)
        if smooth is not None:
            residual, variance = residual - smooth.mean[block.entries], variance + smooth.var[block.entries]
        own = None if rounding is None else rounding(block)
        if problem.collapsed:
            own = variance if own is None else variance + own
        found = law.posterior(block, values, residual, own)
        sums[0][...] += found.log_evidence
        if not problem.collapsed:
            relative = relative_precision(state, block)
            sums[0][...] -= price * float(variance.sum() if relative is None else relative @ variance)

    shared = () if state.structure is None else state.structure.modes
    (log_evidence,) = add_up(grouped(observations, shared), lambda: (np.zeros(()),), add)
    sizes = None if state.slices is None else problem.n_entries(state.slices)
    return calibrated_terms(state, observations.n_observed, float(log_evidence), sizes)


def bound_terms(state: State, fit: EntryFit) -> BoundTerms:
    """The bound in the paper's inference, from the low-rank part of the same state at the entries."""
    outliers, outlier_precisions = (
        _outlier_terms(state.local) if isinstance(state.local, MeanFieldOutliers) else (0.0, 0.0)
    )
    log_precision = float(state.tau.mean_log)
    return BoundTerms(
        likelihood=0.5 * fit.residual.size * (log_precision - LOG_TWO_PI)
        - 0.5 * float(state.tau.mean) * expected_square_sum(fit, state.local),
        factors=-state.row_divergences,
        component_precisions=-state.lam.kl(state.prior.lam_concentration, state.prior.lam_rate),
        noise=-state.tau.kl(state.prior.tau_concentration, state.prior.tau_rate),
        outliers=outliers,
        outlier_precisions=outlier_precisions,
    )


def calibrated_terms(state: State, n_observed: int, log_evidence: float, slice_sizes: Array | None) -> BoundTerms:
    """C3, C4: the bound with the local posteriors integrated out: ½M(E ln τ − ln 2π) + Σ ln f(τ̄ D) − Σ KL.

    ``log_evidence`` is the second term: in form 2 with D = E[(y−x)²], in form 1 with D = (y−x̄)² minus
    ½ τ̄ w_max Σ Var x. With noise that differs between slices ρ = τ̄ ω̄_g D, and ½ E[ln ω_g] is added for each of the
    ``slice_sizes`` entries of a slice. The rate of outliers, or the typical one of
    slices, is a point estimate, with the prior density that it has over none at all.
    """
    likelihood = 0.5 * n_observed * (float(state.tau.mean_log) - LOG_TWO_PI) + log_evidence
    noise = -state.tau.kl(state.prior.tau_concentration, state.prior.tau_rate)
    if state.slices is not None and slice_sizes is not None:
        slices = state.slices
        likelihood += 0.5 * float(slice_sizes @ slices.mean_log)
        noise -= slices.kl
    structure = state.structure
    parts = () if structure is None else (structure.rates, structure.sides)
    log_prior = (state.local_model if structure is None or structure.rates is None else structure.rates).log_prior
    return BoundTerms(
        likelihood=likelihood,
        factors=-state.row_divergences,
        component_precisions=-state.lam.kl(state.prior.lam_concentration, state.prior.lam_rate),
        noise=noise,
        outliers=log_prior - sum(part.kl for part in parts if part is not None),
        outlier_precisions=0.0,
        smooth=0.0 if state.smooth is None else -state.smooth.divergence,
    )


def _outlier_terms(outliers: MeanFieldOutliers) -> tuple[float, float]:
    """E ln p(S | γ) + H(q(S)), and −KL(q(γ) ‖ p(γ))."""
    square = outliers.mean**2 + outliers.var
    sparse = 0.5 * np.sum(outliers.gamma.mean_log - outliers.gamma.mean * square + np.log(outliers.var) + 1.0)
    return float(sparse), -outliers.gamma.kl(outliers.concentration, outliers.rate)
