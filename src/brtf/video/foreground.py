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
"""Level of what is not foreground: dark and bright objects both stand out."""
CERTAIN = 1e-9
"""Probabilities closer than this to 0 or 1 are taken for it: beyond, only rounding tells them apart."""
START_ERRORS = 0.05
"""Share of deceptive pixels, of both kinds, in the first round: with none, no pixel would be overruled."""
MAX_ROUNDS = 20
N_SHARES = 10
"""Steps to the shares of deceptive pixels of a mask; they are nearly there after the first."""
CAPACITY = 1000
"""Units per nat of the integers that a flow is made of."""


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
    """How probably each pixel of each frame shows something else than the background; NaN where it is missing.

    The model's own posterior probability of an outlier, the mean over the channels: where these share their outliers,
    all have the same. A pixel is foreground when it is above ½, a decision without a threshold to tune: more likely an
    outlier than not, given the noise level, the share and the size of outliers that were learnt.

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

    A hidden Markov random field, all its numbers learnt from the clip. Every observed pixel i of a frame belongs to an
    object, o_i = 1, or not, and neighbours tend to agree: p(o) ∝ exp(h Σ_i o_i − β Σ_{i~j} |o_i − o_j|). A pixel of an
    object may look like the background, with probability ε₁, and a pixel of the background may be an outlier
    nevertheless, a glint or a moving leaf, with probability ε₀. With the pixel's own evidence for an outlier,
    r = p (1−π) / ((1−p) π), π the mean of p, its log-odds of an object are bounded:

        u = h + ln ((1−ε₁) r + ε₁) − ln (1−ε₀ + ε₀ r)

    The most probable o given the numbers is a minimum cut, found exactly by a maximum flow; h and β maximise the
    pseudo-likelihood of o; ε₀ and ε₁ are the expected shares of deceptive pixels. The three alternate, from the mask of
    single pixels, as long as mask and numbers explain the clip better together,

        J = Σ_i ln p(o_i | its neighbours) + Σ_{o_i=1} ln ((1−ε₁) r_i + ε₁) + Σ_{o_i=0} ln (1−ε₀ + ε₀ r_i)

    A mask is smoother than what it is the best guess of, and numbers learnt from it ask for a smoother one still:
    without J small objects would be called deceptive one after the other until none is left. Missing pixels take after
    the nearest observed one, and two observed pixels are neighbours where their regions touch: the four around a pixel,
    if all are observed.

    Parameters
    ----------
    probability : ndarray, (height, width, frames)
        Of an outlier, as :func:`foreground_probability` gives it; NaN where a pixel is missing.

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
        if np.count_nonzero(mask) in (0, np.count_nonzero(seen)):  # nothing to tell apart
            break
        field, coupling, agreement = _neighbour_law(mask, seen)
        inside, outside = _deceptive(1 / ratio[mask]), _deceptive(ratio[seen & ~mask])
        explained = agreement + np.log(ratio[mask]).sum() + inside[1] + outside[1]
        if explained <= best:
            break
        if np.isfinite(best):  # in the first round the mask is that of single pixels, which deceives nobody
            overlooked, false = inside[0], outside[0]
        kept, best = mask, explained
        odds = field + np.log((1 - overlooked) * ratio + overlooked) - np.log(1 - false + false * ratio)
        mask = np.stack([_most_probable(frame, coupling) for frame in np.moveaxis(odds, 2, 0)], axis=2)
    return np.stack([_spread(kept[:, :, frame], seen[:, :, frame]) for frame in range(kept.shape[2])], axis=2)


def _deceptive(against: Array) -> tuple[float, float]:
    """The likeliest share ε of deceptive pixels, given the evidence a against each, and Σ ln (1 − ε + ε a)."""
    share = START_ERRORS
    for _ in range(N_SHARES):
        expected = share * against / (1 - share + share * against)
        share = float((expected.sum() + CERTAIN) / (expected.size + 1))  # what was never seen may yet happen
    return share, float(np.log1p(share * (against - 1)).sum())


def _regions(seen: Mask) -> NDArray[np.intp]:
    """For every pixel of a frame (height, width) the number of the nearest one that was seen."""
    numbers = np.cumsum(seen).reshape(seen.shape) - 1
    if seen.all():
        return numbers
    return numbers[tuple(distance_transform_edt(~seen, return_distances=False, return_indices=True))]


def _pairs(seen: Mask) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The numbers of neighbours among the pixels that were seen, each pair once."""
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
    """The mask of a frame, where a pixel was not seen that of the nearest one."""
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
    # half a pixel in and half a pixel out for every balance: finite numbers also where neighbours always agree
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
