"""Shadows: what darkens a neighbourhood by one factor and keeps its texture and colour is not an object."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import binary_erosion
from scipy.special import gammaln, ndtr

from brtf.kernels.shadows import REACH, pair_odds, strongest_contrast

Array = NDArray[np.float64]
Single = NDArray[np.float32]
Mask = NDArray[np.bool_]

DEGREES = (2.0, 3.0, 4.0, 8.0, 16.0, 50.0)
"""Degrees of freedom among which the tails are chosen."""
N_PAIRS, FEWEST_PAIRS = 6_000, 50
"""Pairs of pixels from which the law of shadows is learnt, and how many of them must be in shadow."""
STARTS = (0.15, 0.3, 0.45, 0.6, 0.75, 0.9)
"""Attenuations from which the law is learnt; the likeliest result is kept."""
TOGETHER = 16
"""Frames whose odds are computed together: each takes a dozen numbers for every pixel meanwhile."""
N_EM, N_DEGREES = 60, 5
"""Rounds of expectation and maximisation, and after how many of them the tails are chosen again."""
SMALLEST_SHARE, NONE = 1e-4, 1e-12
"""No share is smaller, so that logarithms are finite; and that of what there is not."""
STEP = 1e-4
"""Variance by which the attenuations of two neighbours in shadow differ. If it were learnt, it would grow until dark
and smooth objects are shadows."""
N_LEVELS, LEVELS_WEIGHT = 64, 20.0
"""Bins of the law of the levels of objects in grey, and its weight, in pixels, of any level alike."""
LEVELS_NEAR = np.exp(-0.5 * np.arange(-3, 4) ** 2)
"""How far a level tells of the bins around."""
N_NUMBERS = 4
"""Numbers of the law of shadows in grey: share, mean and variance of the attenuation, degrees of freedom."""
ROUND = 0.05
"""Variance that is added to that of objects' texture, in units of the noise: nothing is flatter than rounding."""


@dataclass(frozen=True, eq=False)
class ShadowLaw:
    """What shadows and objects look like in one clip, learnt from pairs of neighbouring pixels.

    Attributes
    ----------
    shadow, dark : float
        Shares, among what deviates from the scene, of shadows and of objects that are as dark as shadows.
    broken : float
        Rate at which neighbours belong to different things.
    mean, variance : float
        Of the attenuation a: a pixel in shadow shows (1 − a) times the scene.
    tint : ndarray, (channels,)
        Attenuation of the channels relative to their mean: the sky lights shadows.
    texture, dark_texture : ndarray, (channels, channels)
        Scale of the difference of two neighbours on an object, and on a dark object.
    degrees : tuple of float
        Degrees of freedom of the noise in shadow, and of the two textures.
    levels : ndarray, (bins,), or None
        Log density of the levels of objects in grey; in colour that of what deviates from the scene counts.
    """

    shadow: float
    dark: float
    broken: float
    mean: float
    variance: float
    tint: Array
    texture: Array
    dark_texture: Array
    degrees: tuple[float, ...]
    levels: Array | None = None

    @property
    def log_shares(self) -> tuple[float, float, float]:
        """Of shadows, dark objects and other objects."""
        rest = max(1 - self.shadow - self.dark, SMALLEST_SHARE)
        return math.log(self.shadow), math.log(self.dark), math.log(rest)


def log_t(square: Any, degrees: float, n_channels: int) -> Any:
    """Log density of a multivariate t of unit scale at a squared distance."""
    constant = gammaln((degrees + n_channels) / 2) - gammaln(degrees / 2) - n_channels / 2 * np.log(degrees * np.pi)
    return constant - 0.5 * (degrees + n_channels) * np.log1p(square / degrees)


def shadow_odds(
    values: Single,
    scene: Single,
    variance: Single,
    whitening: Array,
    deviates: Mask,
    broad: Single,
    width: int,
    usual: ShadowLaw | None = None,
) -> tuple[Single, ShadowLaw | None]:
    """Log odds (pixels, frames) of an object against a shadow where frames deviate from the scene, else infinite.

    In shadow y = x − a b + ε, where b is the scene x with the tint of shadows and the attenuation a is nearly that of
    the neighbours: texture is kept. On an object it is the levels that neighbours nearly share. In colour an object may
    be as dark as a shadow: a third kind has the attenuations of the shadows but continues as objects do, so only
    texture and colour can speak for a shadow. In grey these say little; but a shadow takes the same share from every
    material, and an object keeps its levels wherever it is, so these have any law, which is learnt. Neighbours may also
    belong to different things, and the edge of a shadow has any attenuation from none to that of the shadow. All shares
    and scales are learnt by EM from pairs well inside of what deviates, each with the neighbour where the scene differs
    most. If most of these differences would drown in noise in a shadow, texture cannot tell, and nothing is taken for a
    shadow. Nor is it if the pairs are about as likely without shadows: each number of their law must gain half the
    logarithm of the number of places, squares of 5 × 5 pixels, as one place tells the same in all frames.

    Parameters
    ----------
    values : ndarray, (pixels, channels, frames), in channels whose noise is independent
    scene, variance : ndarray, (pixels, channels), of the scene in these channels
    whitening : ndarray, (channels, channels), from levels to these channels
    deviates : ndarray of bool, (pixels, frames)
    broad : ndarray, (pixels, frames), log density of the colours of objects
    width : int, of a frame
    usual : ShadowLaw of other times: it is the start, and the law where too little deviates to learn one
    """
    side = 2 * REACH + 1
    frames = deviates.reshape(-1, width, deviates.shape[1])
    inner = binary_erosion(frames, np.ones((side, side, 1)), border_value=1).reshape(deviates.shape)
    none = np.full(deviates.shape, np.inf, dtype=np.float32)
    pixel, frame = np.nonzero(inner)
    few = np.random.default_rng(0).choice(pixel.size, min(N_PAIRS, pixel.size), replace=False)
    pixel, frame = pixel[few], frame[few]
    beside = np.empty_like(pixel)
    strongest_contrast(pixel, frame, scene, variance, inner, width, beside)
    pair, when = np.stack([pixel, beside], axis=1)[beside >= 0], frame[beside >= 0][:, None]
    levels = (scene @ np.linalg.inv(whitening).T).astype(np.float64)
    law = usual
    if len(pair) >= FEWEST_PAIRS:
        pairs = _Pairs(values[pair, :, when], levels[pair], variance[pair], broad[pair, when], whitening)
        starts = STARTS if usual is None else (usual.mean,)
        law, likelihood = max((_learnt(pairs, start) for start in starts), key=lambda found: found[1])
        if law.shadow * len(pair) < FEWEST_PAIRS or pairs.contrast(1 - law.mean) < 1:
            return none, None
        gain = likelihood - _learnt(pairs, law.mean, shadows=False)[1]
        n_places = max(np.count_nonzero(inner.any(axis=1)) / side**2, 1.0)
        if gain * n_places < 0.5 * (N_NUMBERS + law.tint.size - 1) * math.log(n_places):
            return none, None
    if law is None or pixel.size == 0:
        return none, None

    outside = 1 - np.count_nonzero(inner) / np.count_nonzero(deviates)
    for begin in range(0, deviates.shape[1], TOGETHER):
        now = slice(begin, begin + TOGETHER)
        shown = np.ascontiguousarray(values[:, :, now])
        there, other = np.ascontiguousarray(deviates[:, now]), np.ascontiguousarray(broad[:, now])
        none[:, now] = _odds_by(law, outside, scene, variance, whitening, width, shown, there, other)
    return none, law


def _odds_by(
    law: ShadowLaw, outside: float, scene: Single, variance: Single, whitening: Array, width: int, values: Single,
    deviates: Mask, broad: Single,
) -> Single:  # fmt: skip
    """The odds of :func:`shadow_odds` by a law, where the share ``outside`` of what deviates is at an edge."""
    odds = np.full(deviates.shape, np.inf, dtype=np.float32)
    levels = (scene @ np.linalg.inv(whitening).T).astype(np.float64)
    n_channels = values.shape[1]
    tinted = (law.tint * levels) @ whitening.T
    rest = np.nan_to_num(scene[:, :, None] - values)  # what is missing does not deviate
    size = (tinted**2 / variance).sum(axis=1)
    spread = -0.5 * np.log(variance.astype(np.float64)).sum(axis=1)
    across = np.einsum("pc,pct->pt", tinted / variance, rest)
    square = np.einsum("pc,pct->pt", 1 / variance, rest**2)
    entry = size[:, None], across, square, spread[:, None]
    full, mean, spread_of_mean = _attenuated(entry, law.mean, law.variance, law.degrees[0], n_channels)
    part = _attenuated(entry, law.mean / 2, law.mean**2 / 12, law.degrees[0], n_channels)[0]
    log_shadow, log_dark, log_light = law.log_shares
    if law.levels is not None:
        broad = law.levels[_bins(values[:, 0])].astype(np.float32)
    any_shadow = log_shadow + np.logaddexp(math.log1p(-outside) + full, math.log(max(outside, 1e-9)) + part)
    light, dark = log_light + np.nan_to_num(broad), log_dark + full
    whole = np.logaddexp(np.logaddexp(light, dark), any_shadow)
    textures = np.stack([law.texture, law.dark_texture])
    constants = [
        float(log_t(0.0, degrees, n_channels)) - 0.5 * np.linalg.slogdet(texture)[1]
        for degrees, texture in zip(law.degrees[1:], textures, strict=True)
    ]
    pair_odds(
        values, deviates, width, size, spread, across, square, float(log_t(0.0, law.degrees[0], n_channels)),
        law.degrees[0], STEP, np.stack([log_shadow + full, mean, np.broadcast_to(spread_of_mean, mean.shape)]),
        any_shadow, light, dark, whole, law.broken, np.linalg.inv(np.linalg.cholesky(textures)), np.array(constants),
        np.array(law.degrees[1:]), odds,
    )  # fmt: skip
    return odds


Entry = tuple[Array, Array, Array, Array]
"""Per entry bΛb, bΛ(x − y), (x − y)Λ(x − y) and −½ ln |Σ|, where Λ = Σ⁻¹."""


def _attenuated(entry: Entry, mean: Any, variance: Any, degrees: float, n_channels: int) -> tuple[Array, Array, Array]:
    """Log density of entries whose attenuation is N(mean, variance) cut to (0, 1); its mean and variance given each."""
    size, across, square, spread = entry
    distance = square - 2 * mean * across + mean**2 * size
    distance = np.maximum(distance - variance * (across - mean * size) ** 2 / (1 + variance * size), 0)
    after = variance / (1 + variance * size)
    there = after * (mean / variance + across)
    density = spread - 0.5 * np.log1p(variance * size) + log_t(distance, degrees, n_channels)
    return density + _inside(there, after) - _inside(mean, variance), there, after


def _inside(mean: Any, variance: Any) -> Any:
    """Log probability that a normal number lies between 0 and 1."""
    root = np.sqrt(variance)
    return np.log(np.maximum(ndtr((1 - mean) / root) - ndtr(-mean / root), 1e-300))


class _Pairs:
    """Pairs (pairs, 2, channels) of neighbours, the second of which is where the scene differs most."""

    def __init__(self, values: Single, levels: Array, variance: Single, broad: Single, whitening: Array) -> None:
        self.levels, self.broad, self.whitening = levels, broad.astype(np.float64), whitening
        self.variance = variance.astype(np.float64)
        self.rest = levels @ whitening.T - values
        self.lost = levels - values @ np.linalg.inv(whitening).T
        self.difference = (values[:, 0] - values[:, 1]).astype(np.float64)
        self.spread = -0.5 * np.log(self.variance).sum(axis=2)
        self.bins = _bins(values[:, :, 0]) if values.shape[2] == 1 else None

    def entries(self, tint: Array) -> Entry:
        tinted = (tint * self.levels) @ self.whitening.T
        size, across, square = (
            (one / self.variance).sum(axis=2) for one in (tinted**2, tinted * self.rest, self.rest**2)
        )
        return size, across, square, self.spread

    def contrast(self, gain: float) -> float:
        """Median difference of the two pixels of the scene in a shadow, in standard deviations of its noise."""
        scene = self.levels @ self.whitening.T
        square = ((scene[:, 0] - scene[:, 1]) ** 2 / self.variance.sum(axis=1)).sum(axis=1)
        return gain * math.sqrt(np.median(square))

    def apart(self, texture: Array) -> Array:
        """Squared distance of the two values."""
        return np.asarray(np.einsum("nc,cd,nd->n", self.difference, np.linalg.inv(texture), self.difference))


def _learnt(pairs: _Pairs, start: float, *, shadows: bool = True) -> tuple[ShadowLaw, float]:
    """The law by EM from an attenuation, with or without ``shadows``, and its log likelihood per pair."""
    n_channels = pairs.difference.shape[1]
    floor = ROUND * np.eye(n_channels)
    texture = 0.1 * np.cov(pairs.difference.T).reshape(n_channels, n_channels) + floor
    third = 1 / 3
    dark = third if pairs.bins is None else SMALLEST_SHARE
    law = ShadowLaw(
        third if shadows else NONE, dark, 0.2, start, 0.0025, np.ones(n_channels), texture, texture, (16.0, 3.0, 3.0)
    )
    if pairs.bins is not None:
        law = replace(law, levels=_level_law(pairs.bins, np.ones(pairs.bins.shape)))
    likelihood = -math.inf
    for number in range(N_EM):
        entry = pairs.entries(law.tint)
        shadow, mean, variance = _attenuated(entry, law.mean, law.variance, law.degrees[0], n_channels)
        first = tuple(part[:, 0] for part in entry)
        ahead = variance[:, 1] + STEP
        continued = _attenuated(first, mean[:, 1], ahead, law.degrees[0], n_channels)[0]  # type: ignore[arg-type]
        apart = [pairs.apart(one) for one in (law.texture, law.dark_texture)]
        smooth, dark_smooth = (
            log_t(square, degrees, n_channels) - 0.5 * np.linalg.slogdet(one)[1]
            for square, degrees, one in zip(apart, law.degrees[1:], (law.texture, law.dark_texture), strict=True)
        )
        log_shadow, log_dark, log_light = law.log_shares
        broad = pairs.broad if law.levels is None else law.levels[pairs.bins]
        whole = np.logaddexp(np.logaddexp(log_shadow, log_dark) + shadow, log_light + broad)
        same = math.log1p(-law.broken)
        kinds = np.stack(
            [
                same + log_shadow + shadow[:, 1] + continued,
                same + log_dark + shadow[:, 1] + dark_smooth,
                same + log_light + broad[:, 1] + smooth,
                math.log(law.broken) + whole.sum(axis=1),
            ]
        )
        total = np.logaddexp.reduce(kinds, axis=0)
        likelihood = float(total.mean())
        in_shadow, in_dark, in_light, in_two = np.exp(kinds - total)
        as_shadow = in_shadow[:, None] + in_two[:, None] * np.exp(log_shadow + shadow - whole)
        as_dark = in_dark[:, None] + in_two[:, None] * np.exp(log_dark + shadow - whole)
        weight = as_shadow + as_dark
        weight[:, 0] -= in_shadow + in_dark  # these follow from their neighbours
        n = weight.sum() + 1e-9
        middle = float((weight * mean).sum() / n)
        lost = np.einsum("nk,nkc->c", as_shadow * mean, pairs.levels * pairs.lost)
        lost = lost / np.einsum("nk,nkc->c", as_shadow * (mean**2 + variance), pairs.levels**2).clip(1e-9)
        law = replace(
            law,
            shadow=float(np.clip(as_shadow.mean(), SMALLEST_SHARE, 1 - 2 * SMALLEST_SHARE)) if shadows else NONE,
            dark=float(np.clip(as_dark.mean(), SMALLEST_SHARE, 1 - 2 * SMALLEST_SHARE)),
            broken=float(np.clip(in_two.mean(), SMALLEST_SHARE, 1 - SMALLEST_SHARE)),
            mean=middle,
            variance=float((weight * (variance + (mean - middle) ** 2)).sum() / n) + 1e-4,
            tint=lost / lost.mean() if in_shadow.sum() > FEWEST_PAIRS else law.tint,
            texture=_scatter(pairs, in_light, apart[0], law.degrees[1], law.texture) + floor,
            dark_texture=_scatter(pairs, in_dark, apart[1], law.degrees[2], law.texture) + floor,
        )
        if pairs.bins is not None:
            of_objects = 1 - as_shadow - as_dark
            of_objects[:, 0] -= in_light
            law = replace(law, dark=SMALLEST_SHARE, levels=_level_law(pairs.bins, of_objects))
        if number % N_DEGREES == N_DEGREES - 1:
            size, across, square, _ = first
            rest = np.maximum(
                square - 2 * mean[:, 1] * across + mean[:, 1] ** 2 * size
                - ahead * (across - mean[:, 1] * size) ** 2 / (1 + ahead * size), 0
            )  # fmt: skip
            law = replace(
                law,
                degrees=tuple(
                    max(DEGREES, key=lambda degrees: float(weight @ log_t(square, degrees, n_channels)))
                    for weight, square in zip((in_shadow, in_light, in_dark), (rest, *apart), strict=True)
                ),
            )
    return law, likelihood


def _scatter(pairs: _Pairs, weight: Array, apart: Array, degrees: float, prior: Array) -> Array:
    """Scale of the differences of pairs in a t, with the weight of one pair for a prior."""
    n_channels = pairs.difference.shape[1]
    share = weight * (degrees + n_channels) / (degrees + apart)
    return np.asarray(((pairs.difference.T * share) @ pairs.difference + prior) / (weight.sum() + 1))


def _bins(levels: Single) -> NDArray[np.intp]:
    """The bins of grey levels."""
    return np.clip(np.nan_to_num(levels) * (N_LEVELS / 256), 0, N_LEVELS - 1).astype(np.intp)


def _level_law(bins: NDArray[np.intp], weight: Array) -> Array:
    """Log density (bins,) of the levels of objects."""
    count = np.bincount(bins.ravel(), weight.ravel(), N_LEVELS)
    near = np.convolve(count, LEVELS_NEAR / LEVELS_NEAR.sum(), "same") + LEVELS_WEIGHT / N_LEVELS
    return np.asarray(np.log(near / near.sum() * (N_LEVELS / 256)))
