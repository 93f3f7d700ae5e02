"""Robust regression of the rows of one mode, given the other modes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.passes import Field
from brtf.data.scale import SD_PER_MEDIAN
from brtf.inference.entry_posterior import relative_precision
from brtf.inference.factor_update import without_smooth
from brtf.inference.learn_noise import typical_residual
from brtf.inference.problem import Fit, Problem
from brtf.inference.statistics import Weighing, WeightsAndTargets, row_statistics
from brtf.inference.update_rows import gaussian_rows
from brtf.model.distributions import RowGaussians
from brtf.model.evidence_table import tabulate
from brtf.model.state import State

L1_STEPS, MODEL_STEPS = 12, 6
"""Reweighted least-squares steps of a robust refit of rows: with L1 weights, and with the model's own."""
SETTLED_ROWS = 1e-3
"""Relative change of the rows in a step below which the remaining steps are skipped."""


def robust_rows(problem: Problem, state: State, mode: int) -> RowGaussians:
    """Refit the rows of one mode from scratch: by L1 regression, then with the model's own weights.

    The L1 fit is convex, so it does not depend on the current rows.
    """
    tau, table, prior = float(state.tau.mean), tabulate(state.local_model), state.row_priors[mode]
    rows, residual = state.factors[mode], cast(Field, problem.values)

    def by_size(size: Array, smallest: float) -> Array:
        smallest = max(smallest, float(np.finfo(size.dtype).tiny))  # all residuals may be zero
        return smallest / np.maximum(size, smallest)

    def by_model(size: Array, smallest: float) -> Array:
        return kernels.evidence(table, tau * size**2)[1]

    for weight_of, n_steps in ((by_size, L1_STEPS), (by_model, MODEL_STEPS)):
        for _ in range(n_steps):
            smallest, before = 0.1 / SD_PER_MEDIAN * typical_residual(problem, state, residual), rows.mean
            weigh = _weighed_by_size(problem, state, residual, partial(weight_of, smallest=smallest))
            grams, products = row_statistics(problem.observations, state.factors, mode, weigh)
            rows, _ = prior.posterior(tau * grams, tau * products, state.lam, gaussian_rows)
            residual = Fit.of(replace(problem, collapsed=False), state.with_factor(mode, rows)).residual
            if np.abs(rows.mean - before).max() < SETTLED_ROWS * np.abs(rows.mean).max():
                break
    return rows


def _weighed_by_size(problem: Problem, state: State, residual: Field, weight_of: Callable[[Array], Array]) -> Weighing:
    """Weights from the size of the residuals in units of the slices' noise."""

    def weigh(block: Block) -> WeightsAndTargets:
        relative, size = relative_precision(state, block), np.abs(residual(block))
        weights = weight_of(size) if relative is None else relative * weight_of(np.sqrt(relative) * size)
        return weights, weights * without_smooth(state, block, problem.values(block))

    return weigh
