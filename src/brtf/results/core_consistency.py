"""Core consistency: how well data support components that do not interact."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.observations import Observations
from brtf.results.result import Result

MOST_PRODUCTS = 5e8
"""Largest number of products, entries times pairs of components, for which the page computes it: about a second."""


def balanced(factors: list[Array], shape: tuple[int, ...]) -> list[Array]:
    """Rescale every component so that its columns have the same norm in all modes."""
    shapes = [factor.shape for factor in factors]
    n_components = shapes[0][1] if shapes and len(shapes[0]) == 2 else 0
    if n_components == 0 or shapes != [(length, n_components) for length in shape]:
        raise ValueError(
            f"factors have shapes {shapes}, but Y has shape {shape}. Pass one matrix per mode, with a row for every "
            "position and the same number of columns, at least one."
        )
    norms = np.stack([np.linalg.norm(factor, axis=0) for factor in factors])
    if not (np.isfinite(norms).all() and norms.all()):
        raise ValueError("factors have a column that is zero or not finite. Leave that component out in all modes.")
    size = np.exp(np.mean(np.log(norms), axis=0))
    return [factor / norm * size for factor, norm in zip(factors, norms, strict=True)]


def consistency(observations: Observations, factors: list[Array], residual: Callable[[Block], Array]) -> float:
    """100 (1 − Σ (g − t)² / R), with G − T the residuals contracted with the pseudoinverses of balanced factors.

    ``residual`` gives what the factors leave of the entries of a block.
    """
    n_components, order = factors[0].shape[1], observations.order
    inverses = [np.asarray(np.linalg.pinv(factor), dtype=np.float64) for factor in factors]
    # One column for every combination of components in the modes after the first, in C order.
    combinations = np.indices((n_components,) * (order - 1)).reshape(order - 1, -1)
    columns = [inverse.T[:, chosen] for inverse, chosen in zip(inverses[1:], combinations, strict=True)]
    excess = np.zeros((n_components, combinations.shape[1]))
    for block in observations.blocks():
        rows = slice(observations.shape[0]) if block.coords is not None else block.rows
        contracted = np.zeros((factors[0][rows].shape[0], combinations.shape[1]))
        kernels.contract(block, residual(block), [factors[0], *columns], 0, contracted)
        excess += inverses[0][:, rows] @ contracted
    return float(100.0 * (1.0 - np.sum(excess**2) / n_components))


def consistency_of(result: Result) -> float | str:
    """The core consistency of a fit, in which an outlier counts as much as it may be none; or why there is none."""
    observations, rank = result.observations, result.rank
    if observations.in_chunks:
        return "The result does not contain the entries."
    if rank < 2:
        return "It compares components, and there are fewer than two."
    if len(result.state.factors) == 2:
        return "For a matrix it is meaningless: any rotation of the components fits equally well."
    if not result.arrangement.is_as_given:
        return "It is defined for modes that are read as they are, not merged or folded."
    if observations.n_observed * rank ** (observations.order - 1) > MOST_PRODUCTS:
        return f"It would take too long with {rank} components of {observations.n_observed:,} entries."
    residual = result.residuals_at_entries() * (1.0 - result.outlier_probability_at_entries()) / result.scale
    share = result.scale ** (1.0 / observations.order)
    factors = [factor / share for factor in result.factor_means()]
    if not all(np.linalg.norm(factor, axis=0).all() for factor in factors):
        return "A component is zero in some mode."
    return consistency(observations, balanced(factors, observations.shape), lambda block: residual[block.entries])
