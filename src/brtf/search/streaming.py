"""Streaming: absorb blocks of new rows of the first mode; the earlier posterior becomes the prior.

Only the state is kept of the data absorbed so far, read as a likelihood (:class:`Earlier`), so the cost of a block
depends on the block and the state, not on the number of earlier entries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from brtf.data.arrays import Array
from brtf.data.checks import Labels
from brtf.data.observations import Observations
from brtf.data.passes import workers
from brtf.inference.factor_update import weighing
from brtf.inference.judge import judge
from brtf.inference.learn_noise import noise_prior, with_noise
from brtf.inference.noise_fit import Histogram, joint_step
from brtf.inference.point import Point, evaluate
from brtf.inference.problem import Problem
from brtf.inference.statistics import row_statistics
from brtf.inference.trace import Record, StopReason
from brtf.inference.update_rows import gaussian_rows
from brtf.inference.updates import update_component_precisions
from brtf.model.distributions import LOG_TWO_PI, Gamma, RowGaussians
from brtf.model.local_models import WIDEST_SLAB
from brtf.model.row_priors import RowPrior
from brtf.model.settings import Settings
from brtf.model.state import MeanFieldOutliers, State
from brtf.search.fold_in import fold_in
from brtf.search.moment import Deadline, Outcome
from brtf.search.stopping import stop_reason

FIRST_LOG_RHO = -16.0
"""Smallest ρ of the distribution of deviations: one entry in 4000 lies below, where ln f is constant."""
BIN_STEP, POINTS_PER_BIN = 0.08, 8
"""Step in ln ρ of the distribution of deviations, and the refinement of its evaluation for the edge of a flat slab."""
FEWEST_EXPECTED = 1e-6
"""Expected number of entries below which a bin of deviations is dropped."""


@dataclass(frozen=True, eq=False)
class RowLikelihood:
    """The likelihood of a mode's rows under earlier data: exp(hᵢᵀaᵢ − ½ aᵢᵀPᵢaᵢ) of every row.

    Attributes
    ----------
    precision : (I, R, R) or (1, R, R), the matrices P_i
    linear : (I, R), the vectors h_i
    """

    precision: Array
    linear: Array

    @classmethod
    def of(cls, rows: RowGaussians, prior: RowPrior, lam: Gamma) -> RowLikelihood:
        """The posterior of the rows divided by their prior."""
        return cls(*prior.likelihood(rows, lam, gaussian_rows))

    def expected_log(self, rows: RowGaussians) -> float:
        """Σ_i E[hᵢᵀaᵢ − ½ aᵢᵀPᵢaᵢ] under the given posterior of the rows."""
        second_moment = rows.mean[:, :, None] * rows.mean[:, None, :] + rows.cov
        return float(np.sum(self.linear * rows.mean) - 0.5 * np.sum(self.precision * second_moment))


@dataclass(frozen=True, eq=False)
class Earlier:
    """Likelihood of the data absorbed so far, read from their posterior.

    Attributes
    ----------
    state : the posterior; its rows of the first mode are fixed
    likelihoods : of the rows of all modes but the first
    deviations : histogram of the deviations expected under the state
    """

    state: State
    likelihoods: tuple[RowLikelihood, ...]
    deviations: Histogram

    @classmethod
    def of(cls, state: State) -> Earlier:
        """The summary of a state."""
        others = zip(state.factors[1:], state.row_priors[1:], strict=True)
        likelihoods = tuple(RowLikelihood.of(rows, prior, state.lam) for rows, prior in others)
        return cls(state, likelihoods, expected_deviations(state))

    @property
    def bound(self) -> float:
        """The bound before the new block."""
        state = self.state
        return (
            self.log_likelihood(state)
            - state.row_divergences
            - state.lam.kl(state.prior.lam_concentration, state.prior.lam_rate)
            - state.tau.kl(state.prior.tau_concentration, state.prior.tau_rate)
            - (0.0 if state.structure is None or state.structure.sides is None else state.structure.sides.kl)
            + state.local_model.log_prior
        )

    def log_likelihood(self, state: State) -> float:
        """Expected log likelihood of the earlier data under another posterior, up to a constant."""
        rho, entries = float(state.tau.mean) * self.deviations.deviation, 0.0
        for count, log_factor in self.deviations.sides:
            log_evidence = _log_evidence(state, rho, log_factor)
            entries += float(count @ (0.5 * (float(state.tau.mean_log) - LOG_TWO_PI) + log_evidence))
        rows = zip(self.likelihoods, state.factors[1:], strict=True)
        return entries + sum(likelihood.expected_log(factor) for likelihood, factor in rows)


def expected_deviations(state: State) -> Histogram:
    """The expected histogram of earlier deviations: of M entries, M (ρ/2π)^½ f(ρ) d ln ρ lie at ρ.

    Noise and outlier parameters learnt from it alone are those of the state, and its M = 2(a^τ − a₀^τ) entries have
    their proper weight against new ones.
    """
    n_observed = 2.0 * (float(state.tau.concentration) - state.prior.tau_concentration)
    log_rho = np.arange(FIRST_LOG_RHO, np.log(WIDEST_SLAB) + 10.0, BIN_STEP / POINTS_PER_BIN)
    rho = np.exp(log_rho)
    sides = None if state.structure is None else state.structure.sides
    log_sides = (0.0, 0.0) if sides is None else sides.mean_logs
    log_mass = 0.5 * log_rho + np.stack([_log_evidence(state, rho, log_factor) for log_factor in log_sides])
    mass = np.exp(log_mass - log_mass.max())
    positive, negative = n_observed * mass / mass.sum()
    count = positive + negative
    used = count > FEWEST_EXPECTED
    above = None if sides is None else positive[used]
    whole = Histogram(rho[used] / float(state.tau.mean), count[used], 0.0, above, log_sides)
    return whole.coarsened(POINTS_PER_BIN)


def _log_evidence(state: State, rho: Array, log_factor: float) -> Array:
    """ln f(ρ) on a side where the slab's density is multiplied by that factor."""
    side, log_total = state.local_model.on_side(log_factor)
    return log_total + side.posterior(rho).log_evidence


def absorb(
    observations: Observations,
    state: State,
    settings: Settings,
    watch: Callable[[Record], object] | None = None,
    steps: Array | None = None,
) -> Outcome:
    """The posterior after a block of new rows of the first mode; ``watch`` receives every record.

    The new rows are initialized by :func:`brtf.search.fold_in.fold_in`; then the block is swept, at least once, until a
    sweep gains less than ``tol`` nats per new entry or ``max_seconds`` have passed. Earlier rows of the first mode are
    unchanged and precede the new ones. The bounds of the trace are bounds of ln p(block | earlier data).

    Parameters
    ----------
    observations : the block, in the units of the state: (n, I_1, …, I_{N−1})
    state : the posterior so far
    steps : (n,) distances of the new rows, where they are in order, from the last one and from each other; 1 if None
    """
    if isinstance(state.local, MeanFieldOutliers):
        raise ValueError('partial_fit goes on only from calibrated inference, got a fit with inference="paper".')
    if state.slices is not None:
        raise ValueError(
            f"partial_fit needs one noise level, got one per slice of modes {state.slices.modes}. "
            'Fit with noise="common".'
        )
    if state.structure is not None and not state.structure.one_by_one:
        raise ValueError(
            "partial_fit needs outliers each on its own, added to the data, at one rate. Fit without "
            'outlier_modes, outlier_labels and outlier_kind, and with noise="common".'
        )
    with workers(settings.n_jobs):
        steps = np.ones(observations.shape[0]) if steps is None else steps
        return _absorb(observations, state, settings, watch, steps)


def _absorb(
    observations: Observations,
    state: State,
    settings: Settings,
    watch: Callable[[Record], object] | None,
    steps: Array,
) -> Outcome:
    deadline = Deadline(settings.max_seconds)
    earlier = Earlier.of(state)
    modes = (*range(1, observations.order), 0)  # the new rows have just been fitted to the others
    problem = Problem(observations, modes, collapsed=True)
    new = fold_in(observations, state, settings, following=steps)
    point = evaluate_with(problem, earlier, state.with_factor(0, *new))
    before = earlier.bound
    trace: list[Record] = []
    reason = None
    while reason is None:
        swept = sweep_block(problem, earlier, point)
        gain = swept.bound - point.bound
        if judge(swept, point):
            point = swept
        bound = point.bound - before if np.isfinite(gain) else np.nan
        trace.append(Record(len(trace) + 1, bound, point.rank, point.state.noise_variance))
        if watch is not None:
            watch(trace[-1])
        reason = stop_reason(trace, settings, observations.n_observed)
        if gain < settings.tol * observations.n_observed:
            reason = StopReason.CONVERGED if point.rank else StopReason.RANK_ZERO
        elif reason is None and deadline.look():
            reason = StopReason.MAX_SECONDS
    return Outcome(_appended(state, point.state), tuple(trace), reason)


def sweep_block(problem: Problem, earlier: Earlier, point: Point) -> Point:
    """One pass over the block: V_i = (P_i + τ̄ G_i + diag λ̄)⁻¹, ã_i = V_i (h_i + τ̄ Σ w y ⊛ ã), λ, then the noise.

    (P, h) is the likelihood of the earlier data, absent for new rows of the first mode. λ is updated from all rows, the
    noise from all entries.
    """
    state = point.state
    tau, weigh = float(state.tau.mean), weighing(problem, state, point.fit)
    for mode in problem.modes:
        grams, products = row_statistics(problem.observations, state.factors, mode, weigh)
        precision, linear = tau * grams, tau * products
        if mode > 0:
            likelihood = earlier.likelihoods[mode - 1]
            precision, linear = precision + likelihood.precision, linear + likelihood.linear
        # the priors' own parameters are fixed: earlier rows determine them better than the new ones
        rows, prior = state.row_priors[mode].posterior(precision, linear, state.lam, gaussian_rows)
        state = state.with_factor(mode, rows, prior)
    lam = update_component_precisions(_appended(earlier.state, state)).lam
    swept = evaluate_with(problem, earlier, replace(state, lam=lam))
    learnt = evaluate_with(problem, earlier, noise_of_all(earlier, swept))
    return learnt if judge(learnt, swept) else swept  # the histogram is accurate to second order in its bins


def noise_of_all(earlier: Earlier, point: Point) -> State:
    """Noise and outlier parameters from the deviations of all entries, earlier and new."""
    state = point.state
    old, new = earlier.deviations, point.deviations
    above = None
    if old.positive is not None and new.positive is not None:  # the share of positive outliers is fixed
        above = np.concatenate([old.positive, new.positive])
    joined = replace(
        new,
        deviation=np.concatenate([old.deviation, new.deviation]),
        count=np.concatenate([old.count, new.count]),
        penalty=0.0,
        positive=above,
    )
    n_observed = round(float(joined.count.sum()))
    tau, model, _ = joint_step(float(state.tau.mean), state.local_model, joined, noise_prior(state), max_steps=6)
    return with_noise(state, tau, model, n_observed)


def evaluate_with(problem: Problem, earlier: Earlier, state: State) -> Point:
    """The point of a state with the new rows and the other modes; its bound covers the earlier data and the block."""
    point = evaluate(problem, state)
    terms = replace(
        point.terms,
        likelihood=point.terms.likelihood + earlier.log_likelihood(state),
        factors=point.terms.factors - earlier.state.row_priors[0].kl(earlier.state.factors[0], state.lam),
    )
    return replace(point, terms=terms)


def _appended(earlier: State, new: State) -> State:
    """The state of the new rows and the other modes, with the earlier rows of the first mode prepended."""
    both = (earlier.factors[0], new.factors[0])
    covs = [np.broadcast_to(rows.cov, (rows.n_rows, rows.rank, rows.rank)) for rows in both]
    rows = RowGaussians(np.concatenate([rows.mean for rows in both]), np.concatenate(covs))
    return new.with_factor(0, rows, earlier.row_priors[0].followed_by(new.row_priors[0]))


def place_last(block: Observations, earlier: Observations) -> Observations:
    """The block as the last rows of the enlarged tensor, whose earlier rows have no entries.

    In coordinates, so that nothing has the size of the tensor. Labels are those of the earlier data; row labels are
    concatenated where both have them.
    """
    coords = block.entry_coords().copy()
    coords[0] += earlier.shape[0]
    coords.flags.writeable = False
    labels = earlier.labels
    if labels is not None:
        first = (labels.coords[0], None if block.labels is None else block.labels.coords[0])
        rows = None if first[0] is None or first[1] is None else np.concatenate([first[0], first[1]])
        labels = Labels(labels.dims, (rows, *labels.coords[1:]), labels.name)
    container = None if earlier.container is None else earlier.container.followed_by(block.container, labels)
    shape = (earlier.shape[0] + block.shape[0], *block.shape[1:])
    return Observations(shape, block.values.reshape(-1), None, coords, earlier.scale, labels, container=container)
