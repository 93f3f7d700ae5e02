"""Whole objects from the evidence of single pixels: a field of neighbours, whose trust in evidence is learnt."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt, label, uniform_filter
from scipy.special import expit

from brtf.kernels.masks import settle_field

Array = NDArray[np.float64]
Single = NDArray[np.float32]
Mask = NDArray[np.bool_]

ERRORS, ERRORS_WEIGHT = 0.02, 100.0
"""Share of the pixels of an object, and of the scene, that look like the other, and its weight in pixels."""
MOST_ERRORS = 0.5
COUPLING = 10.0
"""Log odds that a pixel is given if all of its neighbours agree."""
RARE = -1.5
"""Log odds of an object at a pixel whose evidence is even, where nothing is known about the place, and at least."""
REACH, WIDTH = 2, 1.2
TEMPERATURES = (4.0, 2.0, 1.5, 1.0, 1.0, 1.0, 1.0, 1.0)
"""At first neighbours weigh their evidence, and later their decisions."""
N_ROUNDS = 3
PATCH, REGION = 3, 7
"""Sides in pixels of what counts as an alarm, and of the square in which alarms are counted."""
SURE = 60.0


@dataclass(frozen=True, eq=False)
class _Trust:
    """How far evidence is trusted: shares of an object's and of the scene's pixels that look like the other, and prior.

    The prior holds the log odds (height, width) of an object at a pixel whose evidence is even.
    """

    overlooked: float
    false: float
    prior: Array | float

    def odds(self, ratio: Array) -> Single:
        """Log odds of an object, from log Bayes factors that are true but for errors."""
        inside, outside = math.log(self.overlooked), math.log(self.false)
        bounded = np.logaddexp(math.log1p(-self.overlooked) + ratio, inside)
        return np.asarray(bounded - np.logaddexp(math.log1p(-self.false), outside + ratio) + self.prior, np.float32)


def whole_objects(evidence: Single, shadow: Single) -> Mask:
    """The mask (frames, height, width) of whole objects.

    A pixel's evidence is bounded, as a share of pixels look like what they are not: ε₁ of an object's, ε₀ of the
    scene's. It is decided together with the 5 × 5 pixels around, by a mean field. Both shares are learnt from the mask,
    and so is how likely an object is: where what deviates turns out to be objects, even evidence is even; where alarms
    are often false, as among leaves, an object must stand out. What grows in this way is kept if it holds a pixel that
    stood out at first. Missing pixels take the evidence of the nearest one that was seen.

    Parameters
    ----------
    evidence : ndarray, (frames, height, width), log Bayes factors of an object against the scene, NaN where missing
    shadow : ndarray, (frames, height, width), log odds of an object against a shadow
    """
    evidence, shadow = _complete(evidence, shadow)
    offset = np.arange(-REACH, REACH + 1)
    near = np.exp(-0.5 * (offset[:, None] ** 2 + offset**2) / WIDTH**2)
    near[REACH, REACH] = 0
    odds = np.empty(evidence.shape, dtype=np.float32)
    trust = _Trust(ERRORS, ERRORS, RARE)
    sure: Mask | None = None
    for number in range(N_ROUNDS):
        ratio = against_both(evidence, shadow, trust.prior)
        settle_field(trust.odds(ratio), near.astype(np.float32), COUPLING, np.array(TEMPERATURES), odds)
        sure = odds > 0 if sure is None else sure
        if number < N_ROUNDS - 1:
            trust = _learnt(evidence, ratio, expit(odds), trust)
    return _grown(sure if sure is not None else odds > 0, odds > 0)


def against_both(evidence: Single, shadow: Single, prior: Array | float) -> Array:
    """Log Bayes factors of an object against scene and shadow: log odds with a prior ratio to the scene, without it."""
    with np.errstate(invalid="ignore"):  # NaN where missing
        return np.asarray(-np.logaddexp(-evidence - prior, -shadow) - prior, dtype=np.float64)


def _complete(evidence: Single, shadow: Single) -> tuple[Single, Single]:
    """Bounded evidence, with that of the nearest pixel where one is missing; none for an object in an empty frame."""
    seen = ~np.isnan(evidence)
    evidence = np.clip(np.where(seen, evidence, -SURE), -SURE, SURE)
    if seen.all():
        return evidence, shadow
    shadow = shadow.copy()
    for own, other, there in zip(evidence, shadow, seen, strict=True):
        if there.any() and not there.all():
            nearest = tuple(distance_transform_edt(~there, return_distances=False, return_indices=True))
            own[:], other[:] = own[nearest], other[nearest]
    return evidence, shadow


def _learnt(evidence: Single, ratio: Array, object_: Single, trust: _Trust) -> _Trust:
    """The shares of errors by one step of expectation and maximisation, and the prior by counting alarms.

    An alarm is the first frame in which most pixels of a patch deviate from the scene. The prior odds are the share of
    alarms around a pixel that were objects.
    """
    ratio = np.exp(np.clip(ratio, -SURE, SURE))
    shares = []
    for error, against, weight in (
        (trust.overlooked, 1 / ratio, object_), (trust.false, ratio, 1 - object_)
    ):  # fmt: skip
        wrong = float(np.sum(weight * (error * against / (1 - error + error * against)), dtype=np.float64))
        total = float(np.sum(weight, dtype=np.float64))
        shares.append(min((wrong + ERRORS_WEIGHT * ERRORS) / (total + ERRORS_WEIGHT), MOST_ERRORS))
    alarm = uniform_filter((evidence + RARE > 0).astype(np.float32), (1, PATCH, PATCH)) > 0.5
    alarm[1:] &= ~alarm[:-1]
    n_alarms, n_true = alarm.sum(axis=0, dtype=np.float64), np.sum(object_, axis=0, where=alarm, dtype=np.float64)
    share = (n_true.sum() + 1) / (n_alarms.sum() + 2)
    prior = np.log((uniform_filter(n_true, REGION) + share) / (uniform_filter(n_alarms, REGION) + 1))
    return _Trust(shares[0], shares[1], np.maximum(prior, RARE))


def _grown(sure: Mask, mask: Mask) -> Mask:
    """The regions of a mask, in each frame, in which something is sure."""
    beside = np.zeros((3, 3, 3), dtype=bool)
    beside[1] = True
    region, n_regions = label(mask, beside)
    kept = np.zeros(n_regions + 1, dtype=bool)
    kept[region[sure & mask]] = True
    return np.asarray(kept[region])
