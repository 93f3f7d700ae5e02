"""Moves of the search: each makes another state from a point; none of them decides.

A move may be wrong: :mod:`brtf.search.loop` settles it for a few sweeps and keeps it only if the bound rose.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np
from numpy.typing import NDArray

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.observations import Block, Observations, block_positions
from brtf.data.passes import Field, Remembered, Sums, add_up
from brtf.inference.entry_posterior import relative_precision
from brtf.inference.sweep import (
    Fit,
    Point,
    Problem,
    evaluate,
    retemper,
    typical_residual,
    with_noise,
)
from brtf.inference.updates import (
    Weighing,
    WeightsAndTargets,
    add_up_rows,
    gaussian_rows,
    row_statistics,
    update_component_precisions,
)
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.evidence_table import tabulate
from brtf.model.local_models import SlabModel
from brtf.model.state import Prior, State, component_amplitudes
from brtf.search.approximation import approximate
from brtf.search.starts import densest_along, leading_left_singular, rank_one_terms

SMALL_VARIANCE = 1e-3
"""Posterior variance of a new component relative to its mean square: known well enough not to die at once."""
BEYOND_CHANCE = 1.2
"""A birth is proposed only if its rank-one fit explains this many times what the same residual with random signs gives:
without structure the ratio is 0.85–1.2, and components worth having show 2 and more."""
RANDOM_FITS, RANK_ONE_ROUNDS, RANK_ONE_GAIN = 4, 10, 0.005
"""Random starts of a rank-one fit, beside the spectral ones; rounds of alternating least squares, and the relative gain
below which they end."""
FEW_COMPONENTS = 16
"""Up to so many components, each one's worth is looked at by taking it away."""
CONDENSING_GAIN = 0.1
"""Nats a step below which the approximation by fewer components has ended."""
FEW_ENTRIES = 20.0
"""Effective number of entries, the product of the modes' effective rows, below which a component may describe outliers
that happen to lie in one place."""
SINGLE_ROW = 1.2
"""Effective number of rows, (Σa²)²/Σa⁴, below which a component counts as having one."""
LIKE = 0.25
"""Cosines in two modes, multiplied, beyond which one component may stand in for another; chance gives 0.1–0.2."""
LOST_ROW = 3.0
"""Standard deviations by which a row's mean weight must lie below that of all entries for the row to seem lost."""
L1_STEPS, MODEL_STEPS = 12, 6
"""Reweighted least-squares steps of a robust refit of rows: with L1 weights, and with the model's own."""
SETTLED_ROWS = 1e-3
"""Change of the rows in such a step, as a share of the largest, below which the others are left out."""
FEWEST_FOR_STEADY, STEADY_TERMS = 8, 3
"""Length from which what is steady along a mode is a start, and the most components it gives."""
CLIP = 3.0
"""Robust standard deviations beyond which residuals are clipped where weights cannot be trusted yet."""


def empty_state(problem: Problem, model: SlabModel | None) -> State:
    """Rank 0: everything is noise and outliers."""
    observations = problem.observations
    state = State(
        prior=Prior(tau_rate=1e-18, largest_precision=problem.largest_precision),
        factors=tuple(
            RowGaussians(np.zeros((length, 0)), np.zeros((_n_covariances(problem, length), 0, 0)))
            for length in observations.shape
        ),
        lam=Gamma(np.zeros(0), np.zeros(0)),
        tau=Gamma(np.asarray(1.0), np.asarray(1.0)),
        outliers=model,
    )
    return with_noise(state, 1.0, model, observations.n_observed)


def spectral_start(problem: Problem, n_components: int, model: SlabModel | None) -> State:
    """C7: components along leading directions of the unfoldings of the clipped data, missing entries made up for."""
    observations = problem.observations
    clipped = replace(problem, limit=CLIP)
    density = observations.n_observed / observations.n_entries
    columns = []
    for mode in range(observations.order):
        vectors, strengths = leading_left_singular(observations, mode, n_components, clipped.values)
        columns.append(vectors * (strengths / density) ** (1.0 / observations.order))
    n_columns = min(column.shape[1] for column in columns)
    return add_components(problem, empty_state(problem, model), [column[:, :n_columns] for column in columns])


def steady_start(problem: Problem, mode: int, n_components: int, model: SlabModel | None) -> State | None:
    """C19: what is seen most steadily along a mode, as first components; None where nothing much is.

    In a video that is the background, whatever passes before it: a start that outliers do not move.
    """
    observations = problem.observations
    steady = densest_along(observations, mode) if observations.shape[mode] >= FEWEST_FOR_STEADY else None
    if steady is None:
        return None
    columns = rank_one_terms(steady, min(STEADY_TERMS, n_components))
    if not columns:
        return None
    columns.insert(mode, np.ones((observations.shape[mode], columns[0].shape[1])))
    state = add_components(problem, empty_state(problem, model), columns)
    rest = Fit.of(replace(problem, collapsed=False), state.factors).residual
    typical, before = (typical_residual(problem, state, field) for field in (rest, problem.values))
    if not 0 < typical < 0.5 * before:
        return None
    return with_noise(state, 1.0 / typical**2, model, observations.n_observed)


def random_start(problem: Problem, n_components: int, model: SlabModel | None, rng: np.random.Generator) -> State:
    """Random components that together have the power of the clipped data."""
    observations, clipped = problem.observations, replace(problem, limit=CLIP)

    def add(sums: Sums, block: Block) -> None:
        sums[0][...] += np.sum(clipped.values(block) ** 2)

    (power,) = add_up(observations, lambda: (np.zeros(()),), add)
    amplitude = (float(power) / observations.n_observed / n_components) ** (0.5 / observations.order)
    drawn = {mode: rng.standard_normal((observations.shape[mode], n_components)) for mode in problem.modes}
    columns = [amplitude * drawn[mode] for mode in range(observations.order)]
    return add_components(problem, empty_state(problem, model), columns)


def add_components(problem: Problem, state: State, columns: list[Array]) -> State:
    """The state with further components of the given factor columns (I_n, K), balanced, the noise level retempered.

    Their variance is a small share of their power, and little enough that Var x stays below the noise: otherwise every
    entry of an accurate fit would look like an outlier.
    """
    power = np.array([np.mean(column**2, axis=0) for column in columns])
    used = np.flatnonzero(np.all(power > 0, axis=0))
    share = np.exp(np.mean(np.log(power[:, used]), axis=0))
    scaled = [column[:, used] * np.sqrt(share / own[used]) for column, own in zip(columns, power, strict=True)]
    old, new = state.rank, np.arange(state.rank, state.rank + used.size)

    def joined(variance: Array) -> State:
        factors = []
        for rows, column in zip(state.factors, scaled, strict=True):
            cov = np.zeros((rows.cov.shape[0], old + used.size, old + used.size))
            cov[:, :old, :old] = rows.cov
            cov[:, new, new] = variance
            factors.append(RowGaussians(np.hstack([rows.mean, column]), cov))
        return replace(state, factors=tuple(factors))

    tempered = retemper(problem, joined(SMALL_VARIANCE * share))
    var_share = len(columns) * float(tempered.tau.mean) * share ** len(columns)
    noise_share = 1.0 / np.maximum(var_share, 1e-300)
    variance = share * np.minimum(SMALL_VARIANCE, noise_share)
    joint = update_component_precisions(replace(tempered, factors=joined(variance).factors))
    centred = [
        new if old.centre is None else new.centred(joint.lam)
        for old, new in zip(state.factors, joint.factors, strict=True)
    ]
    return replace(joint, factors=tuple(centred))


def remove_components(state: State, components: NDArray[np.intp]) -> State:
    """The state without the given components."""
    return state.select_components(np.setdiff1d(np.arange(state.rank), components))


def birth(
    problem: Problem, point: Point, n_components: int, rng: np.random.Generator, *, clipped: bool
) -> State | None:
    """C9: add components that fit what is left over: rank-one fits of the residual, one after another.

    The residual is weighted as the model weighs it, or clipped where the weights cannot be trusted. None where the
    residual has no more structure than the same residual with random signs.
    """
    weigh = _relative_weights(problem, point, clipped=clipped)
    limit = CLIP * typical_residual(problem, point.state, point.fit.residual) if clipped else np.inf
    columns: list[list[Array]] = []
    for k in range(n_components):
        found = [np.hstack([fitted[mode] for fitted in columns]) for mode in range(len(columns and columns[0]))]
        left = _what_is_left(problem, point, weigh, limit, found)
        fitted, gain = best_rank_one(problem, left, rng)
        if k == 0:
            enough = gain / BEYOND_CHANCE
            _, chance = best_rank_one(problem, _with_random_signs(problem, left, rng), rng, enough)
            if chance > enough:
                return None
        if _lives_on_a_fibre(fitted):
            return None
        columns.append(fitted)
    stacked = [np.hstack([fitted[mode] for fitted in columns]) for mode in range(problem.observations.order)]
    return add_components(problem, point.state, stacked)


def _what_is_left(problem: Problem, point: Point, weigh: Field, limit: float, found: list[Array]) -> Weighing:
    """Weights, and weight times residual, clipped at the limit and less the components found so far."""

    def left(block: Block) -> tuple[Array, Array]:
        weights, residual = weigh(block), point.fit.residual(block)
        if np.isfinite(limit):
            most = limit / np.sqrt(weights)
            residual = np.clip(residual, -most, most)
        if found:
            residual = residual - kernels.low_rank_at(block, found)
        return weights, residual * weights

    return Remembered(problem.observations, left)


def _with_random_signs(problem: Problem, weighing: Weighing, rng: np.random.Generator) -> Weighing:
    """The same weights; targets with random signs, drawn anew for every block but always the same for it."""
    seed = int(rng.integers(2**62))

    def flipped(block: Block) -> tuple[Array | None, Array]:
        weights, targets = weighing(block)
        signs = np.random.default_rng((seed, block.entries.start)).integers(0, 2, targets.size)
        return weights, np.where(signs, targets, -targets)

    return Remembered(problem.observations, flipped)


def _lives_on_a_fibre(columns: list[Array]) -> bool:
    """Whether a component has but one row in two modes: then it describes a fibre of outliers and nothing shared."""
    effective = [n_rows for n_rows, column in zip(_effective_rows(columns), columns, strict=True) if len(column) > 1]
    return sum(n_rows < SINGLE_ROW for n_rows in effective) >= 2


def _effective_rows(columns: list[Array]) -> list[float]:
    """(Σa²)²/Σa⁴ of a component in every mode."""
    return [float(np.sum(c**2) ** 2 / np.maximum(np.sum(c**4), 1e-300)) for c in columns]


def best_rank_one(
    problem: Problem, weighing: Weighing, rng: np.random.Generator, enough: float = math.inf
) -> tuple[list[Array], float]:
    """The best of several alternating least-squares fits of one component, and Σ t x, twice its gain at unit noise.

    Starts are the leading directions of the unfoldings and random ones; all are fitted side by side, as columns.
    Minimises Σ (t²/w − 2 t x + w x²) over x = a⁽¹⁾∘…∘a⁽ᴺ⁾, until Σ t x is ``enough`` or no longer grows.
    """
    observations = problem.observations
    columns: list[Array] = [np.empty(0)] * observations.order
    for mode in problem.modes:
        leading, _ = leading_left_singular(observations, mode, 2, lambda block: weighing(block)[1])
        drawn = rng.standard_normal((observations.shape[mode], RANDOM_FITS))
        columns[mode] = np.hstack([leading, drawn / np.linalg.norm(drawn, axis=0)])
    n_starts = min(column.shape[1] for column in columns)
    columns = [column[:, -n_starts:].copy() for column in columns]
    explained, last = np.zeros(n_starts), problem.modes[-1]
    for _ in range(RANK_ONE_ROUNDS):
        before = float(explained.max())
        for mode in problem.modes:
            columns[last] /= np.maximum(np.sqrt(np.einsum("ir,ir->r", columns[last], columns[last])), 1e-150)
            products, norms = weighted_contractions(observations, weighing, columns, mode)
            columns[mode] = products / np.maximum(norms, 1e-6 * np.max(norms, axis=0) + 1e-150)
            explained, last = np.einsum("ir,ir->r", products, columns[mode]), mode
        if explained.max() > enough or explained.max() < (1.0 + RANK_ONE_GAIN) * before:
            break
    best = int(np.argmax(explained))
    return [column[:, [best]] for column in columns], float(explained[best])


def weighted_contractions(
    observations: Observations, weighing: Weighing, columns: list[Array], mode: int
) -> tuple[Array, Array]:
    """The targets contracted with the columns of all other modes, and the weights with their squares; each (I_n, C)."""
    squares = [column**2 for column in columns]

    def add(sums: Sums, block: Block) -> None:
        (weights, targets), own = weighing(block), kernels.listed(block)
        kernels.contract(own, targets, columns, mode, sums[0])
        kernels.contract(own, weights, squares, mode, sums[1])

    products, norms = add_up_rows(observations, mode, [columns[mode].shape] * 2, add)
    return products, norms


def collinear_pairs(state: State) -> list[tuple[int, int]]:
    """Pairs of components that one might replace, most likely first.

    Those whose rank-one terms have a cosine beyond ½, and those that agree in all modes but one: their sum has
    rank one.
    """
    cosines = np.array([np.abs(_cosines(rows.mean)) for rows in state.factors])
    together = np.prod(cosines, axis=0)
    but_one = together / np.maximum(np.min(cosines, axis=0), 1e-300)
    likeness = np.maximum(together, np.where(but_one > 0.8, but_one, 0.0))
    pairs = [(r, s) for r in range(state.rank) for s in range(r + 1, state.rank) if likeness[r, s] > 0.5]
    return sorted(pairs, key=lambda pair: -likeness[pair])


def _cosines(columns: Array) -> Array:
    sized = columns / np.maximum(np.abs(columns).max(axis=0), 1e-300)  # squares of a vanishing component underflow
    unit = sized / np.maximum(np.linalg.norm(sized, axis=0), 1e-300)
    return unit.T @ unit


def merge(problem: Problem, point: Point, pair: tuple[int, int], rng: np.random.Generator) -> State:
    """C11: one component in place of two: the rank-one fit of their sum and of what is left over."""
    rest = remove_components(point.state, np.array(pair))
    residual, weigh = (
        Fit.of(replace(problem, collapsed=False), rest.factors).residual,
        _relative_weights(problem, point),
    )

    def weighing(block: Block) -> tuple[Array, Array]:
        weights = weigh(block)
        return weights, residual(block) * weights

    fitted, _ = best_rank_one(problem, Remembered(problem.observations, weighing), rng)
    return add_components(problem, rest, fitted)


def death(problem: Problem, point: Point, component: int) -> State:
    """C10: the state without one component."""
    return retemper(problem, remove_components(point.state, np.array([component])))


def condense(problem: Problem, point: Point) -> State | None:
    """C15: fewer components: the best approximation of the present low-rank part, without looking at the data.

    Nearly collinear components trade places so slowly in sweeps that taking one away rarely succeeds; here they settle
    first. As many go as it pays for: those whose absence costs less than their price. None where no components are
    alike, or where already the first would cost more than a few times its price.
    """
    state = point.state
    if not 2 <= state.rank <= FEW_COMPONENTS or _likeness(state).max() <= LIKE:
        return None
    price, best, least = _price(problem), None, math.inf
    for n_components in range(state.rank - 1, 0, -1):
        loss, columns = _approximate(problem, point, n_components)
        if loss - (state.rank - n_components) * price < least:
            best, least = columns, loss - (state.rank - n_components) * price
        if loss > (state.rank - n_components) * price:
            break
    if best is None or least > 4.0 * price:
        return None
    return add_components(problem, remove_components(state, np.arange(state.rank)), best)


def reduce_rank(problem: Problem, point: Point, n_components: int) -> State:
    """Fewer components, whatever it costs: the best approximation of the present low-rank part by so many."""
    state = point.state
    _, columns = _approximate(problem, point, n_components)
    return add_components(problem, remove_components(state, np.arange(state.rank)), columns)


def _approximate(problem: Problem, point: Point, n_components: int) -> tuple[float, list[Array]]:
    """Nats that are lost with so many components in place of the present ones, and their columns in every mode."""
    state = point.state
    share = problem.observations.n_observed / problem.observations.n_entries
    per_square = 0.5 * float(state.tau.mean) * point.mean_weight * share  # nats
    given = [state.factors[mode].mean for mode in problem.modes]  # an order that does not depend on the layout
    ridge = 0.5 * float(np.min(state.lam.mean)) / per_square
    error, columns = approximate(given, n_components, CONDENSING_GAIN / per_square, ridge)
    return per_square * error, [columns[problem.modes.index(mode)] for mode in range(len(columns))]


def _price(problem: Problem) -> float:
    """Nats that the parameters of a component cost, roughly: ln M a row."""
    return float(sum(problem.observations.shape) * np.log(max(problem.observations.n_observed, 3)))


def expendable_components(problem: Problem, point: Point) -> list[int]:
    """Components whose death could raise the bound, likeliest first.

    Those that others may take over, having a like component in at least two modes, and those whose entries, left to
    noise and outliers, cost no more than a few times the price of their parameters.
    """
    state = point.state
    alike = _likeness(state)
    losses = np.array([_loss_without(problem, point, r) for r in range(state.rank)])
    weak = losses < 5.0 * _price(problem)
    order = np.lexsort((losses, -alike, ~weak))
    return [int(r) for r in order if weak[r] or alike[r] > LIKE]


def _likeness(state: State) -> Array:
    """How like another component each one is in two modes: the largest product of two cosines, (R,)."""
    cosines = np.sort([np.abs(_cosines(rows.mean)) for rows in state.factors], axis=0)
    likeness = np.prod(cosines[-2:], axis=0)
    np.fill_diagonal(likeness, 0.0)
    return likeness.max(axis=1, initial=0.0)


def _loss_without(problem: Problem, point: Point, component: int) -> float:
    """Nats that are lost when a component is taken away and nothing else changes.

    Among many components, where looking is expensive, the loss of Gaussian noise ½ τ̄ w̄ M · amp² stands for it; but not
    where a component describes few entries: these may be outliers, which cost much less as such.
    """
    state = point.state
    columns = [rows.mean[:, component] for rows in state.factors]
    if state.rank <= FEW_COMPONENTS or math.prod(_effective_rows(columns)) < FEW_ENTRIES:
        return point.bound - evaluate(problem, remove_components(state, np.array([component]))).bound
    amplitude = float(component_amplitudes(state)[component])
    return 0.5 * float(state.tau.mean) * point.mean_weight * problem.observations.n_observed * amplitude**2


def refresh_rows(problem: Problem, point: Point, mode: int) -> State | None:
    """C8: robust refit of the rows of one mode, given the other modes; None if no row changed.

    A row whose entries were once called outliers stays lost, for its regression has local optima. Only where a row
    counts for less than the others, its entries' weights being low, is there something to look for. A row is replaced
    if its evidence, Σ ln f − ½ aᵀΛa, rises by more than two nats.
    """
    state = point.state
    if state.rank == 0 or not isinstance(state.outliers, SlabModel) or not _any_row_lost(problem, point, mode):
        return None
    old, rows = state.factors[mode], robust_rows(problem, state, mode)
    tau, model = float(state.tau.mean), state.outliers
    residual = Fit.of(replace(problem, collapsed=False), state.with_factor(mode, rows).factors).residual

    def add(sums: Sums, block: Block) -> None:
        relative, positions = relative_precision(state, block), block_positions(block, (mode,))
        noise = tau if relative is None else tau * relative
        for total, deviation in zip(sums, (point.fit.residual(block), residual(block)), strict=True):
            total += np.bincount(positions, model.posterior(noise * deviation**2).log_evidence, old.n_rows)

    sums = add_up(problem.observations, lambda: (np.zeros(old.n_rows), np.zeros(old.n_rows)), add)
    centre = 0.0 if old.centre is None else old.centre.mean
    before, after = (
        total - 0.5 * ((candidate.mean - centre) ** 2) @ state.lam.mean
        for total, candidate in zip(sums, (old, rows), strict=True)
    )
    better = after > before + 2.0
    if not better.any():
        return None
    return state.with_factor(
        mode, RowGaussians(np.where(better[:, None], rows.mean, old.mean), old.cov_packed, old.centre)
    )


def _any_row_lost(problem: Problem, point: Point, mode: int) -> bool:
    """Whether the mean weight of some row lies further below that of all entries than chance would have it."""
    n_rows = problem.observations.shape[mode]

    def add(sums: Sums, block: Block) -> None:
        positions, weight = block_positions(block, (mode,)), point.local(block).weight
        sums[0][...] += np.bincount(positions, minlength=n_rows)
        sums[1][...] += np.bincount(positions, weight, n_rows)
        sums[2][...] += np.square(weight, dtype=np.float64).sum()

    def zeros() -> Sums:
        return np.zeros(n_rows), np.zeros(n_rows), np.zeros(())

    entries, weights, squares = add_up(problem.observations, zeros, add)
    mean = weights.sum() / entries.sum()
    spread = math.sqrt(max(float(squares) / entries.sum() - mean**2, 0.0))
    return bool(np.any(mean * entries - weights > LOST_ROW * spread * np.sqrt(entries)))


def robust_rows(problem: Problem, state: State, mode: int) -> RowGaussians:
    """Rows of one mode refitted from nothing: by L1 regression, then with the model's own weights.

    The L1 fit is convex, so it does not depend on where the rows stood.
    """
    model, tau = state.outliers, float(state.tau.mean)
    if not isinstance(model, SlabModel):
        raise TypeError("robust_rows needs a local model with outliers")
    table, given = tabulate(model), state.factors[mode].centre
    centre = 0.0 if given is None else given.mean
    rows, residual = state.factors[mode], cast(Field, problem.values)

    def by_size(size: Array, smallest: float) -> Array:
        return smallest / np.maximum(size, smallest)

    def by_model(size: Array, smallest: float) -> Array:
        return kernels.evidence(table, tau * size**2)[1]

    for weight_of, n_steps in ((by_size, L1_STEPS), (by_model, MODEL_STEPS)):
        for _ in range(n_steps):
            smallest, before = 0.1 / 1.4826 * typical_residual(problem, state, residual) + 1e-300, rows.mean
            weigh = _weighed_by_size(problem, state, residual, partial(weight_of, smallest=smallest))
            grams, products = row_statistics(problem.observations, state.factors, mode, weigh)
            rows = gaussian_rows(tau * grams + np.diag(state.lam.mean), tau * products + state.lam.mean * centre)
            residual = Fit.of(replace(problem, collapsed=False), state.with_factor(mode, rows).factors).residual
            if np.abs(rows.mean - before).max() < SETTLED_ROWS * np.abs(rows.mean).max():
                break
    return rows


def _weighed_by_size(problem: Problem, state: State, residual: Field, weight_of: Callable[[Array], Array]) -> Weighing:
    """Weights by the size of the residuals in units of their slices' noise."""

    def weigh(block: Block) -> WeightsAndTargets:
        relative, size = relative_precision(state, block), np.abs(residual(block))
        weights = weight_of(size) if relative is None else relative * weight_of(np.sqrt(relative) * size)
        return weights, weights * problem.values(block)

    return weigh


def _relative_weights(problem: Problem, point: Point, *, clipped: bool = False) -> Field:
    """Weights of the entries in a rank-one fit: the slices' relative precision, times the model's weights."""

    def weigh(block: Block) -> Array:
        relative = relative_precision(point.state, block)
        local = np.ones(block.n_entries) if clipped else np.minimum(point.local(block).weight, 1.0)
        return local if relative is None else relative * local

    return weigh


def _n_covariances(problem: Problem, length: int) -> int:
    return 1 if problem.observations.layout == "complete" and not problem.collapsed else length
