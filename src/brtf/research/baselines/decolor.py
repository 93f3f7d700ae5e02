"""Detecting contiguous outliers in the low-rank representation: moving objects before a static camera."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from brtf.research.baselines.algebra import Array, squared_norm
from brtf.research.baselines.matrix import leading_singular, shrink_singular
from brtf.research.baselines.registry import Mask, Method, Recovery

Pairs = NDArray[np.intp]

CAPACITY = 1000
"""Capacity of the edge between two neighbours. Flows are integers, so costs are rounded to a thousandth of γ."""


def recover(
    matrix: Array,
    observed: Mask,
    rng: np.random.Generator,
    *,
    frame_shape: tuple[int, int],
    max_rank: int | None = None,
    smoothness: float = 1.0,
    max_sweeps: int = 50,
    tol: float = 1e-4,
) -> Recovery:
    """A background of low rank, and a foreground of contiguous pixels in the frames of a video.

    min ½ ‖(1 − S) ⊛ (Y − B)‖² + α ‖B‖_* + β Σ S_i + γ Σ |S_i − S_j| over B and S ∈ {0, 1}, the last sum over pixels of
    a frame side by side or one above the other. In turn: B by soft-impute, α falling until the rank is large enough;
    β by the noise; S exactly, by a minimum cut of every frame. Deterministic: the seed has no effect. The data are grey
    frames, (pixels, frames) or (height, width, frames); ``mode`` is that of the frames.

    Parameters
    ----------
    frame_shape : tuple of int
        (height, width), the pixels counted along the rows of a frame; (width, height) if along its columns.
    max_rank : int, optional
        α falls until the rank of the background exceeds this, √(shorter side of the matrix) by default; the final
        rank may therefore be larger.
    smoothness : float
        γ / β, usually 1 to 5; 0 decides every pixel on its own.
    max_sweeps : int
    tol : float
        Relative change of the objective in a sweep below which the fit has converged.

    Returns
    -------
    Recovery
        The outliers are Y − B in the foreground and zero elsewhere; no factors.
    """
    pairs = _neighbours(frame_shape, len(matrix))
    enough = math.isqrt(min(matrix.shape)) if max_rank is None else max_rank
    strengths = leading_singular(matrix, rank=2)[1]
    alpha, smallest_alpha = float(strengths[-1]), 1e-3 * float(np.abs(matrix).max())
    sigma = float(matrix.std())
    beta, smallest_beta = 0.5 * sigma**2, 0.5 * (3.0 * sigma / 20.0) ** 2
    background, foreground = matrix, np.zeros(matrix.shape, dtype=bool)
    objective = math.inf
    for _ in range(max_sweeps):
        background, strengths, alpha = _soft_impute(matrix, foreground, background, alpha, smallest_alpha, enough)
        error = matrix - background
        sigma = _noise(error[~foreground], sigma)
        if np.count_nonzero(foreground) < matrix.size / 1e4:
            beta /= 2.0
        else:
            beta = min(max(beta / 2.0, 4.5 * sigma**2, smallest_beta), beta)
        gamma = smoothness * beta
        cost = 0.5 * error**2
        foreground = np.stack([_cut(excess, gamma, pairs) for excess in (cost - beta).T], axis=1)
        n_unequal = np.count_nonzero(foreground[pairs[0]] != foreground[pairs[1]])
        previous = objective
        objective = float(cost[~foreground].sum() + alpha * strengths.sum())
        objective += beta * np.count_nonzero(foreground) + gamma * n_unequal
        if foreground.any() and abs(previous - objective) < tol * objective:
            break
    return Recovery(background, np.where(foreground, error, 0.0), strengths.size)


def _neighbours(frame_shape: tuple[int, int], n_pixels: int) -> Pairs:
    """The pixels of a frame that lie side by side or one above the other: shape (2, number of pairs)."""
    try:
        height, width = frame_shape
        pixels = np.arange(n_pixels).reshape(height, width)
    except (TypeError, ValueError):
        raise ValueError(
            f"frame_shape must be (height, width) of frames with {n_pixels} pixels, as many as there are rows in a "
            f"column of Y, got {frame_shape!r}. Give grey frames, and the mode= that counts them."
        ) from None
    side_by_side = np.stack([pixels[:, :-1].ravel(), pixels[:, 1:].ravel()])
    above = np.stack([pixels[:-1].ravel(), pixels[1:].ravel()])
    return np.concatenate([side_by_side, above], axis=1)


def _soft_impute(
    matrix: Array, foreground: Mask, background: Array, alpha: float, smallest_alpha: float, enough: int
) -> tuple[Array, Array, float]:
    """The background, its singular values, and the first α that leaves more than ``enough`` of them."""
    while True:
        objective = math.inf
        for _ in range(20):
            background, strengths = shrink_singular(np.where(foreground, background, matrix), alpha)
            previous = objective
            objective = alpha * float(strengths.sum()) + 0.5 * squared_norm((matrix - background)[~foreground])
            if abs(previous - objective) < 1e-4 * objective:
                break
        if strengths.size > enough or alpha <= smallest_alpha:
            return background, strengths, alpha
        alpha *= 0.707


def _noise(errors: Array, previous: float) -> float:
    """The standard deviation of the errors of the background; the previous one if that moved by less than 1 %."""
    sigma = float(errors.std()) if errors.size else previous
    return previous if abs(sigma - previous) < 0.01 * previous else sigma


def _cut(excess: Array, gamma: float, pairs: Pairs) -> Mask:
    """The foreground of a frame, the S that minimises γ Σ |S_i − S_j| − Σ S_i excess_i, by a minimum cut.

    Parameters
    ----------
    excess : ndarray (pixels,)
        How much more a pixel costs as background than as foreground.
    gamma : float
        The cost of two unequal neighbours.
    pairs : ndarray (2, number of pairs)
        The neighbours.
    """
    if gamma == 0:
        return excess > 0
    # The foreground is what the source can still reach. Nothing outweighs an excess of five edges: a pixel has four.
    terminal = np.rint(CAPACITY * np.clip(excess / gamma, -5.0, 5.0)).astype(np.int32)
    likely, unlikely = np.flatnonzero(terminal > 0), np.flatnonzero(terminal < 0)
    source, sink = excess.size, excess.size + 1
    tails = np.concatenate([pairs[0], pairs[1], np.full(likely.size, source), unlikely])
    heads = np.concatenate([pairs[1], pairs[0], likely, np.full(unlikely.size, sink)])
    edges = np.full(2 * pairs.shape[1], CAPACITY, dtype=np.int32)
    capacities = np.concatenate([edges, terminal[likely], -terminal[unlikely]])
    graph = csr_array((capacities, (tails, heads)), shape=(sink + 1, sink + 1))
    residual = graph - maximum_flow(graph, source, sink).flow
    residual.eliminate_zeros()
    reached = np.zeros(sink + 1, dtype=bool)
    reached[breadth_first_order(residual, source, return_predecessors=False)] = True
    return reached[:source]


METHOD = Method(
    name="decolor",
    recover=recover,
    missing=False,
    robust=True,
    works_on="matrix",
    source="Zhou, Yang & Yu, IEEE Trans. Pattern Anal. Mach. Intell. 35 (2013), for a static camera; written from the "
    "equations, the cut is SciPy's maximum_flow.",
)
