"""Background and foreground of a clip from a fitted model, and masks of whole objects instead of single pixels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt
from scipy.optimize import minimize
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow
from scipy.special import expit, logit

from brtf.video.clips import Clip
from brtf.video.frames import Image

if TYPE_CHECKING:
    from brtf.api.estimator import BRTF

__all__ = ["background_images", "foreground_images", "foreground_probability", "smooth_mask"]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

NEUTRAL = 128.0
"""Grey level around the foreground, against which both dark and bright objects stand out."""
CERTAIN = 1e-9
"""Probabilities closer than this to 0 or 1 are clipped: beyond it they differ only by rounding."""
START_ERRORS = 0.05
"""Misclassification rate of both kinds in the first round: with zero, no pixel could change."""
MAX_ROUNDS = 20
N_SHARES = 10
"""Number of EM steps for the misclassification rates of a mask; the first nearly suffices."""
CAPACITY = 1000
"""Integer units of flow per nat."""


def background_images(model: BRTF, clip: Clip) -> Iterator[Image]:
    """The low-rank part of a fit to ``clip.tensor``, frame by frame."""
    positions = np.indices(clip.tensor.shape[:-1]).reshape(clip.tensor.ndim - 1, -1)
    for frame in range(clip.n_frames):
        yield clip.image(model.predict(np.vstack([positions, np.full(positions.shape[1], frame)])))


def foreground_images(clip: Clip, mask: Mask) -> Iterator[Image]:
    """The clip where the mask (height, width, frames) is True, on a neutral grey, frame by frame."""
    for frame in range(clip.n_frames):
        image = clip.image(clip.values[:, :, frame])
        shown = mask[:, :, frame] & ~np.isnan(image.reshape(*mask.shape[:2], -1)[:, :, 0])
        yield np.where(shown[:, :, None] if image.ndim == 3 else shown, image, NEUTRAL)


def foreground_probability(model: BRTF, clip: Clip) -> Array:
    """Probability that each pixel of each frame is foreground; NaN where it is missing.

    This is the model's outlier probability, averaged over the channels (which all have the same if they share
    outliers). A pixel is foreground if it is above ½. There is no threshold to tune: the noise level and the rate and
    size of outliers are learnt.

    Parameters
    ----------
    model : BRTF
        Fitted to ``clip.tensor``.
    clip : Clip

    Returns
    -------
    ndarray, (height, width, frames)
    """
    probability = model.outlier_probability().reshape(clip.values.shape).mean(axis=1)
    probability[np.isnan(clip.values[:, 0])] = np.nan
    return probability.reshape(clip.height, clip.width, clip.n_frames)


def smooth_mask(probability: Array) -> Mask:
    """The mask of connected objects that best agrees with the probabilities of single pixels.

    A hidden Markov random field whose parameters are learnt from the clip. Every observed pixel i of a frame belongs to
    an object, o_i = 1, or not, and neighbours tend to agree: p(o) ∝ exp(h Σ_i o_i − β Σ_{i~j} |o_i − o_j|). A pixel of
    an object looks like the background with probability ε₁, and a pixel of the background is an outlier (a glint, a
    moving leaf) with probability ε₀. With the pixel's own evidence for an outlier, r = p (1−π) / ((1−p) π), where π is
    the mean of p, its log-odds of being part of an object are bounded:

        u = h + ln ((1−ε₁) r + ε₁) − ln (1−ε₀ + ε₀ r)

    The most probable o given the parameters is a minimum cut, found exactly by a maximum flow; h and β maximise the
    pseudo-likelihood of o; ε₀ and ε₁ are the expected misclassification rates. The three updates alternate, starting
    from the mask of single pixels, as long as the joint likelihood of mask and parameters rises,

        J = Σ_i ln p(o_i | its neighbours) + Σ_{o_i=1} ln ((1−ε₁) r_i + ε₁) + Σ_{o_i=0} ln (1−ε₀ + ε₀ r_i)

    The most probable mask is smoother than the true one, and parameters learnt from it favour an even smoother one:
    without J small objects would disappear one after the other. Missing pixels take the label of the nearest observed
    one, and two observed pixels are neighbours if their regions touch: the four around a pixel, if all are observed.

    Parameters
    ----------
    probability : ndarray, (height, width, frames)
        Outlier probability as returned by :func:`foreground_probability`; NaN where a pixel is missing.

    Returns
    -------
    ndarray of bool, (height, width, frames)
    """
    seen = ~np.isnan(probability)
    if not seen.any():
        return seen
    bounded = np.clip(probability, CERTAIN, 1 - CERTAIN)
    ratio = np.exp(logit(bounded) - logit(float(np.mean(bounded[seen]))))
    mask = probability > 0.5
    false = overlooked = START_ERRORS
    kept, best = mask, -np.inf
    for _ in range(MAX_ROUNDS):
        if np.count_nonzero(mask) in (0, np.count_nonzero(seen)):  # only one class left
            break
        field, coupling, agreement = _neighbour_law(mask, seen)
        inside, outside = _deceptive(1 / ratio[mask]), _deceptive(ratio[seen & ~mask])
        explained = agreement + np.log(ratio[mask]).sum() + inside[1] + outside[1]
        if explained <= best:
            break
        if np.isfinite(best):  # in the first round the mask is that of single pixels, without misclassified ones
            overlooked, false = inside[0], outside[0]
        kept, best = mask, explained
        odds = field + np.log((1 - overlooked) * ratio + overlooked) - np.log(1 - false + false * ratio)
        mask = np.stack([_most_probable(frame, coupling) for frame in np.moveaxis(odds, 2, 0)], axis=2)
    return np.stack([_spread(kept[:, :, frame], seen[:, :, frame]) for frame in range(kept.shape[2])], axis=2)


def _deceptive(against: Array) -> tuple[float, float]:
    """Maximum-likelihood misclassification rate ε, given the evidence a against each pixel, and Σ ln (1 − ε + ε a)."""
    share = START_ERRORS
    for _ in range(N_SHARES):
        expected = share * against / (1 - share + share * against)
        share = float((expected.sum() + CERTAIN) / (expected.size + 1))  # never exactly zero
    return share, float(np.log1p(share * (against - 1)).sum())


def _regions(seen: Mask) -> NDArray[np.intp]:
    """For every pixel of a frame (height, width) the number of the nearest observed one."""
    numbers = np.cumsum(seen).reshape(seen.shape) - 1
    if seen.all():
        return numbers
    return numbers[tuple(distance_transform_edt(~seen, return_distances=False, return_indices=True))]


def _pairs(seen: Mask) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Pairs of neighbours among the observed pixels, each pair once."""
    regions = _regions(seen)
    n_seen = np.count_nonzero(seen)
    above = regions[:-1].ravel(), regions[1:].ravel()
    left = regions[:, :-1].ravel(), regions[:, 1:].ravel()
    one, other = (np.concatenate(ends) for ends in zip(above, left, strict=True))
    if n_seen < seen.size:
        apart = one != other
        one, other = np.minimum(one, other)[apart], np.maximum(one, other)[apart]
        one, other = np.divmod(np.unique(one * n_seen + other), n_seen)
    return one, other


def _spread(mask: Mask, seen: Mask) -> Mask:
    """The mask of a frame with missing pixels set to the value of the nearest observed one."""
    return mask[seen][_regions(seen)] if seen.any() else mask


def _neighbour_law(mask: Mask, seen: Mask) -> tuple[float, float, float]:
    """h, β and the log of the pseudo-likelihood that they maximise.

    logit P(o_i | neighbours) = h + β (neighbours in − neighbours out).
    """
    balances = []
    for frame in np.flatnonzero(seen.any(axis=(0, 1))):
        one, other = _pairs(seen[:, :, frame])
        sign = np.where(mask[:, :, frame][seen[:, :, frame]], 1.0, -1.0)
        balances.append(
            np.bincount(one, sign[other], minlength=sign.size) + np.bincount(other, sign[one], minlength=sign.size)
        )
    is_object = np.moveaxis(mask, 2, 0)[np.moveaxis(seen, 2, 0)]
    levels, level = np.unique(np.concatenate(balances), return_inverse=True)
    # add half a pixel of each class for every count: finite also if neighbours always agree
    n_all = np.bincount(level) + 1.0
    n_in = np.bincount(level, is_object) + 0.5

    def loss(law: Array) -> tuple[float, Array]:
        log_odds = law[0] + law[1] * levels
        excess = n_all * expit(log_odds) - n_in
        return float(n_all @ np.logaddexp(0.0, log_odds) - n_in @ log_odds), np.array([excess.sum(), excess @ levels])

    found = minimize(loss, np.array([0.0, 1.0]), jac=True, method="L-BFGS-B", bounds=[(None, None), (0.0, None)])
    return float(found.x[0]), float(found.x[1]), -float(found.fun)


def _most_probable(odds: Array, coupling: float) -> Mask:
    """The o that maximises Σ_i u_i o_i − β Σ_{i~j} |o_i − o_j| for one frame of log-odds u, NaN where not seen."""
    seen = ~np.isnan(odds)
    mask = np.zeros(odds.shape, dtype=bool)
    units = np.rint(CAPACITY * odds[seen]).astype(np.int32)
    one, other = _pairs(seen)
    inside, outside = np.flatnonzero(units > 0), np.flatnonzero(units < 0)
    source, sink = units.size, units.size + 1
    tails = np.concatenate([one, other, np.full(inside.size, source), outside])
    heads = np.concatenate([other, one, inside, np.full(outside.size, sink)])
    link = np.full(2 * one.size, round(CAPACITY * coupling), dtype=np.int32)
    capacities = np.concatenate([link, units[inside], -units[outside]])
    graph = coo_array((capacities, (tails, heads)), shape=(sink + 1, sink + 1)).tocsr()
    residual = graph - maximum_flow(graph, source, sink).flow
    residual.eliminate_zeros()
    reached = np.zeros(sink + 1, dtype=bool)
    reached[breadth_first_order(residual, source, return_predecessors=False)] = True
    mask[seen] = reached[:source]
    return mask
