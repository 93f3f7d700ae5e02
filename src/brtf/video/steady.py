"""The steady levels of every pixel of a clip, and how sure it is that a frame shows none of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter
from scipy.sparse import coo_array
from scipy.special import expit, gammaln

from brtf.kernels.pixels import difference_noise, displaced_density, fit_levels, level_density, repeated

Array = NDArray[np.float64]
Single = NDArray[np.float32]
Entries = tuple[NDArray[np.intp], NDArray[np.intp]]
"""Pixel and frame of the entries of a clip."""

ROUNDING = 1 / 12
"""Variance of the rounding of a level to a whole number."""
N_LEVELS = 3
FEWEST_SHARE, FEWEST = 0.08, 3
"""A level holds at least this share of a pixel's frames, and so many of them."""
NORMAL_QUARTILE = 0.6745
"""Median of the absolute value of a standard normal number."""
REPEATED, LAG = 0.5, 16
"""Share of successive frames that are equal where a codec repeats a pixel, and frames after which it is compared."""
UNDISTURBED, UNDISTURBED_QUANTILE = 0.8, 1.2816
"""Share of the distances of such frames that no object disturbs, and below what it is for a normal number."""
AROUND = 5
"""Side in pixels of the square in which the noise of repeated pixels is averaged."""
QUIETEST = 0.3
"""Noise variance of a pixel relative to the median pixel, at least: few frames may agree by chance."""
DEGREES = (2.0, 3.0, 4.0, 6.0, 10.0, 20.0, 50.0)
"""Degrees of freedom among which the tails of the noise are chosen."""
N_SAMPLED, N_LOOKED_AT = 100_000, 1_000_000
"""Entries from which laws are learnt, and among which those are found that are near something."""
REACH = 5
"""Pixels by which a part of the scene may move: leaves in the wind, what is left of a shaking camera."""
STRANGE = 0.3
"""Share of what moved that shows parts of two things, or what was hidden before."""
FEWEST_KNOWN = 0.05
"""Least share of what moved that shows the scene: none of it would be no movement."""
MOST_MOVING = 0.9
"""Largest share of a scene that moves."""
REGION = 7
"""Side of the square in which pixels share the rates of foreground and of moving scene."""
PRIOR_FRAMES = 10.0
"""Frames of background that a pixel is given before its rates are learnt."""
SQUARE = 8
"""Side in pixels of the squares in which what moves is counted."""
N_RATES = 8
SPILL_SIDES = (9, 17)
"""Sides in pixels of the squares over which what deviates spills: codecs work on blocks of 8 and 16 pixels."""
CLEAR = 3.0
"""Standard deviations beyond which something is no noise of the camera."""
SPILL_DEGREES = 4.0
"""Degrees of freedom of the noise while its spill is learnt: in some blocks there is more of it than in others."""
LEAST_SPILL, N_SPILL, FEWEST_SPILLED = 1e-5, 40, 100
"""Share to begin with, rounds of expectation and maximisation, and the entries that these need."""
UNIFORM = 0.1
"""Share of colours of an object that follow no law but lie anywhere between 0 and 255."""


@dataclass(frozen=True, eq=False)
class Levels:
    """The steady levels of the pixels, in channels whose noise is independent and of unit size.

    Attributes
    ----------
    values : ndarray, (pixels, channels, frames)
    whitening : ndarray, (channels, channels), from levels to ``values``
    mean, variance : ndarray, (pixels, levels, channels)
    share : ndarray, (pixels, levels + 1), the last for what belongs to no level
    noise : ndarray, (pixels, channels)
        Variance between successive frames.
    floor : ndarray, (channels,)
        Variance of rounding, below which no variance falls.
    """

    values: Single
    whitening: Array
    mean: Single
    variance: Single
    share: Single
    noise: Single
    floor: Array

    @property
    def anywhere(self) -> float:
        """Log density of a colour that may be any."""
        n_channels = self.values.shape[1]
        return float(-n_channels * math.log(256.0) - np.linalg.slogdet(self.whitening)[1])

    @property
    def broad(self) -> float:
        """Log density of what belongs to no level: a nat per further channel above any colour, as channels agree."""
        return self.anywhere + self.values.shape[1] - 1.0

    def fitted(self, pixels: NDArray[np.intp], frames: slice) -> Levels:
        """These levels, but at some pixels those that are found in some of the frames."""
        values = np.ascontiguousarray(self.values[pixels][:, :, frames])
        mean, variance, share = self.mean.copy(), self.variance.copy(), self.share.copy()
        part = np.zeros_like(mean[pixels]), np.ones_like(variance[pixels]), np.zeros_like(share[pixels])
        fewest = np.maximum(FEWEST_SHARE * np.count_nonzero(~np.isnan(values[:, 0]), axis=1), FEWEST)
        fit_levels(values, self.noise[pixels], self.floor, self.broad, fewest, *part)
        mean[pixels], variance[pixels], share[pixels] = part
        return replace(self, mean=mean, variance=variance, share=share)

    def images(self, which: NDArray[np.intp]) -> Single:
        """The levels ``which`` (pixels,), in the units of the clip: (pixels, channels)."""
        chosen = self.mean[np.arange(len(which)), which].astype(np.float64)
        return (chosen @ np.linalg.inv(self.whitening).T).astype(np.float32)


def find_levels(values: Single, width: int) -> Levels:
    """Find the steady levels of pixels × channels × frames; a frame has a ``width``."""
    n_pixels, n_channels, _ = values.shape
    repeats = np.empty(n_pixels, dtype=np.bool_)
    repeated(values, REPEATED, repeats)
    whitening, floor = _whitening(values, _lag(values) if repeats.mean() > REPEATED else 1)
    white = whitened(values, whitening)
    noise = _noise(white, repeats, width)
    usual = np.nanmedian(noise, axis=0) if np.isfinite(noise).any() else floor
    noise = np.maximum(np.maximum(np.where(np.isnan(noise), usual, noise), QUIETEST * usual), floor)
    empty = np.zeros((n_pixels, N_LEVELS, n_channels), dtype=np.float32)
    share = np.zeros((n_pixels, N_LEVELS + 1), dtype=np.float32)
    levels = Levels(white, whitening, empty, np.ones_like(empty), share, noise.astype(np.float32), floor)
    return levels.fitted(np.arange(n_pixels), slice(None))


def _lag(values: Single) -> int:
    """Frames after which a codec has sent most pixels again, or a sixth of a short clip."""
    return min(LAG, max(1, values.shape[2] // 6))


def _noise(white: Single, repeats: NDArray[np.bool_], width: int) -> Single:
    """Noise variance (pixels, channels) by the median distance of successive frames.

    Codecs repeat what hardly changes, and send it again now and then: where a pixel ``repeats`` itself, successive
    frames are equal whatever the noise. There it is the mean over such pixels around, from frames that are further
    apart, and from those that differ most, but for what an object may do.
    """
    noise = np.empty(white.shape[:2], dtype=np.float32)
    difference_noise(white, 1, 0.5, NORMAL_QUARTILE, noise)
    if repeats.any():
        far = np.zeros_like(noise)
        some = np.empty_like(noise[repeats])
        difference_noise(white[repeats], _lag(white), UNDISTURBED, UNDISTURBED_QUANTILE, some)
        far[repeats] = np.nan_to_num(some)
        total = uniform_filter(far.reshape(-1, width, white.shape[1]), (AROUND, AROUND, 1), mode="nearest")
        share = uniform_filter(repeats.reshape(-1, width).astype(np.float32), AROUND, mode="nearest")
        around = total.reshape(noise.shape) / np.maximum(share.reshape(-1, 1), AROUND**-2)
        noise[repeats] = np.fmax(noise, around)[repeats]
    return noise


def whitened(values: Single, whitening: Array) -> Single:
    """Pixels × channels × frames in channels whose noise is independent."""
    return values if values.shape[1] == 1 else np.matmul(whitening.astype(np.float32), values)


def _whitening(values: Single, lag: int) -> tuple[Array, Array]:
    """The map that makes the noise of the channels independent, and the variance that rounding has behind it.

    The noise is told from frames ``lag`` apart; if that is more than one, repeated frames are left out.
    """
    n_pixels, n_channels, _ = values.shape
    if n_channels == 1:
        return np.eye(1), np.full(1, ROUNDING)
    some = values[np.random.default_rng(0).choice(n_pixels, min(n_pixels, 2000), replace=False)]
    steps = np.moveaxis(some[:, :, lag:] - some[:, :, :-lag], 1, 2).reshape(-1, n_channels)
    steps = steps[~np.isnan(steps).any(axis=1)]
    if lag > 1:
        steps = steps[(np.abs(steps) > 0.5).any(axis=1)]
    covariance = np.eye(n_channels)
    if len(steps) > n_channels:
        scale = np.median(np.abs(steps), axis=0) / NORMAL_QUARTILE + math.sqrt(ROUNDING)
        calm = steps[(np.abs(steps) < 3 * scale).all(axis=1)]
        if len(calm) > n_channels:
            covariance = np.cov(calm.T) / 2
    whitening = np.linalg.inv(np.linalg.cholesky(covariance + 0.1 * ROUNDING * np.eye(n_channels)))
    return whitening, np.diag(whitening @ whitening.T) * ROUNDING


@dataclass(frozen=True, eq=False)
class Evidence:
    """How sure it is that a pixel of a frame shows no level of the scene, and what was learnt on the way.

    Attributes
    ----------
    values : ndarray, (pixels, frames)
        Log Bayes factor of an object against the scene.
    deviates : ndarray of bool, (pixels, frames)
        What is far from every level of the scene.
    objects : ndarray, (pixels, frames)
        Log density of the colours of objects.
    degrees : float
        Degrees of freedom of the noise.
    moving : float
        Mean share of a scene that moved a little.
    """

    values: Single
    deviates: NDArray[np.bool_]
    objects: Single
    degrees: float
    moving: float


def foreground_evidence(levels: Levels, share: Single, width: int) -> Evidence:
    """Log Bayes factor of an object against the scene.

    The scene has the density ρ₀ Σ_k s_k t(y | level k) + ρ g(y), where g has the levels of the pixels around: leaves
    move, and a camera shakes, and neighbours move together. Its share ρ and the share of objects are learnt in the
    neighbourhood of every pixel, ρ times how much the rest of the frame moves (gusts), and the degrees of freedom of t
    from all pixels. Near what deviates the noise is larger, as codecs and lenses spill its light around it.
    Only what shows the scene elsewhere counts as movement: several objects are no gust. An object has a normal law of
    colours, that of what deviates from the scene, or any colour.

    Parameters
    ----------
    levels : Levels
    share : ndarray, (pixels, levels)
        Shares of the levels that are part of the scene; they sum to one.
    width : int
        Of a frame.
    """
    values, mean, variance = levels.values, levels.mean, levels.variance
    n_pixels = len(values)
    density, deviates, broad, degrees = _still_scene(levels, share, width)
    moved, explained = np.full_like(density, -1e4), np.zeros_like(density)
    reach = np.arange(-REACH, REACH + 1)
    near = np.exp(-0.5 * (reach[:, None] ** 2 + reach**2) / (1 + REACH / 2) ** 2)
    displaced_density(
        values, mean, variance, share, near / near.sum(), width, deviates, broad, STRANGE, moved, explained
    )

    def pooled(counts: NDArray[Any]) -> Array:
        return np.asarray(uniform_filter(counts.reshape(-1, width), REGION, mode="nearest").ravel())

    seen = ~np.isnan(density)
    n_seen = pooled(np.count_nonzero(seen, axis=1).astype(np.float64))
    objects, moving, gust = np.full(n_pixels, 0.05), np.full(n_pixels, 0.05), np.ones_like(density)
    pixel, frame = np.nonzero(deviates)
    own, other, away, clear = (part[pixel, frame].astype(np.float64) for part in (density, broad, moved, explained))
    for _ in range(N_RATES):
        moves = np.minimum(moving[pixel] * gust[pixel, frame], MOST_MOVING)
        still = np.maximum(1 - objects[pixel] - moves, 0.05)
        parts = np.stack([np.log(still) + own, np.log(objects)[pixel] + other, np.log(moves) + away])
        parts = np.exp(parts - parts.max(axis=0))
        parts /= parts.sum(axis=0)
        known = float(
            np.sum(parts[2] * clear) / max(np.sum(parts[2]), 1e-9)
        )  # share of what moved that shows the scene
        parts[2] *= clear
        gust = gusts((pixel, frame), parts[2], moving * known, seen, width)
        objects = (pooled(np.bincount(pixel, parts[1], n_pixels)) + 0.5) / (n_seen + PRIOR_FRAMES)
        moving = (pooled(np.bincount(pixel, parts[2], n_pixels)) / max(known, FEWEST_KNOWN) + 0.05) / (
            pooled(np.sum(gust, axis=1, where=seen)) + PRIOR_FRAMES
        )
    moves = np.minimum(moving[:, None] * gust, MOST_MOVING)
    scene = np.log(np.maximum(1 - objects[:, None] - moves, 0.05)) + density
    scene[pixel, frame] = np.logaddexp(scene[pixel, frame], np.log(moves[pixel, frame]) + away)
    return Evidence((broad - scene).astype(np.float32), deviates, broad, degrees, float(moving.mean()))


def gusts(entry: Entries, moved: Array, rate: Array, seen: NDArray[np.bool_], width: int) -> Single:
    """How many times more than usual the scene moves in every frame, (pixels, frames), as seen away from each pixel.

    A gust moves all that can move. An object that passes is in one place only, and must not be taken for a gust there:
    the square of a pixel and the eight around it have no say.
    """
    n_pixels, n_frames = seen.shape
    row, column = np.divmod(np.arange(n_pixels), width)
    across = -(-width // SQUARE)
    square = row // SQUARE * across + column // SQUARE
    n_squares = int(square[-1]) + 1
    found = np.bincount(square[entry[0]] * n_frames + entry[1], moved, n_squares * n_frames)
    expected = coo_array((rate, (square, np.arange(n_pixels))), shape=(n_squares, n_pixels)) @ seen.astype(np.float64)
    others = []
    for count in (found.reshape(expected.shape), expected):
        around = 9 * uniform_filter(count.reshape(-1, across, n_frames), (3, 3, 1), mode="constant")
        others.append(np.maximum(count.sum(axis=0) - around.reshape(count.shape), 0))
    return np.asarray((others[0] + 1) / (others[1] + 1), dtype=np.float32)[square]


def _still_scene(levels: Levels, share: Single, width: int) -> tuple[Single, NDArray[np.bool_], Single, float]:
    """Log density of a scene that does not move, what is far from it, log density of objects, degrees of freedom."""
    values, mean, variance = levels.values, levels.mean, levels.variance
    n_pixels, n_channels, n_frames = values.shape
    density = np.empty((n_pixels, n_frames), dtype=np.float32)
    distance, rest = np.empty_like(density), np.empty_like(density)
    gate = n_channels + 3 * math.sqrt(2 * n_channels)
    spill, around = np.zeros((0, n_channels)), np.zeros((0, n_pixels, n_frames), dtype=np.float32)
    level_density(values, mean, variance, share, 1e6, 0.0, spill, around, density, distance, rest)
    broad = _object_density(levels, distance > gate)
    around = _around(rest, width)
    spill = learnt_spill(levels, share, around)
    level_density(values, mean, variance, share, 1e6, 0.0, spill, around, density, distance, rest)
    deviates = distance > gate
    degrees = _tails(levels, share, distance, broad)
    constant = _t_constant(degrees, n_channels)
    level_density(values, mean, variance, share, degrees, constant, spill, around, density, distance, rest)
    return density, deviates, broad, degrees


def _around(rest: Single, width: int) -> Single:
    """What deviates around every pixel of every frame, (squares, pixels, frames): means of ``rest`` over squares."""
    seen = ~np.isnan(rest)
    shape = -1, width, rest.shape[1]
    around = np.empty((len(SPILL_SIDES), *rest.shape), dtype=np.float32)
    for mean, side in zip(around, SPILL_SIDES, strict=True):
        whole = np.where(seen, rest, np.float32(0)).reshape(shape)
        uniform_filter(whole, (side, side, 1), output=mean.reshape(shape), mode="nearest")
        if not seen.all():
            known = uniform_filter(seen.astype(np.float32).reshape(shape), (side, side, 1), mode="nearest")
            mean /= np.maximum(known.reshape(rest.shape), 1 / side**2)
    return around


def learnt_spill(levels: Levels, share: Single, around: Single) -> Array:
    """Shares (squares, channels) of what deviates around a pixel that its noise has on top, by maximum likelihood.

    It is asked where these surroundings deviate by more than the noise of the camera. A pixel that deviates less than
    half as much as they do is the scene with such noise, by a t, or a part of an object like the scene, which may have
    any colour within that limit.
    """
    n_channels = levels.values.shape[1]
    pixels, usual = np.arange(len(share)), share.argmax(axis=1)
    noise = levels.variance[pixels, usual]
    strongest = around.max(axis=0)  # of the squares
    few = np.random.default_rng(0).integers(0, strongest.size, N_LOOKED_AT)
    few = few[strongest.ravel()[few] > 4 * CLEAR**2 * np.median(noise.mean(axis=1))][:N_SAMPLED]
    pixel, frame = np.divmod(few, strongest.shape[1])
    square = (levels.values[pixel, :, frame] - levels.mean[pixel, usual[pixel]]).astype(np.float64) ** 2
    limit = strongest[pixel, frame] / 4
    small = square.mean(axis=1) < limit
    if np.count_nonzero(small) < FEWEST_SPILLED:
        return np.zeros((len(around), n_channels))
    pixel, frame, square = pixel[small], frame[small], square[small]
    near, camera = around[:, pixel, frame].astype(np.float64), noise[pixel].astype(np.float64)
    ball = gammaln(n_channels / 2 + 1) - n_channels / 2 * np.log(math.pi * n_channels * limit[small])
    spill, rate = np.full((len(around), n_channels), LEAST_SPILL), 0.1
    for _ in range(N_SPILL):
        variance = camera + near.T @ spill
        distance = (square / variance).sum(axis=1)
        scene = _t_constant(SPILL_DEGREES, n_channels) - 0.5 * np.log(variance).sum(axis=1)
        scene -= 0.5 * (SPILL_DEGREES + n_channels) * np.log1p(distance / SPILL_DEGREES)
        weight = expit(math.log1p(-rate) + scene - math.log(rate) - ball)
        rate = float(np.clip(1 - weight.mean(), 0.01, 0.99))
        scaled = weight * (SPILL_DEGREES + n_channels) / (SPILL_DEGREES + distance)
        spill *= (near * scaled @ (square / variance**2)) / (near * weight @ (1 / variance))
    return spill


def _object_density(levels: Levels, deviates: NDArray[np.bool_]) -> Single:
    """Log density of the colours of objects at every pixel and frame: a normal law of what deviates, or any colour."""
    n_channels = levels.values.shape[1]
    pixel, frame = np.nonzero(deviates)
    if pixel.size < 20 * n_channels:
        pixel, frame = np.nonzero(~np.isnan(levels.values[:, 0]))
    if pixel.size == 0:
        return np.full(deviates.shape, np.nan, dtype=np.float32)
    few = np.random.default_rng(0).choice(pixel.size, min(pixel.size, 20_000), replace=False)
    colours = levels.values[pixel[few], :, frame[few]].astype(np.float64)
    middle = np.median(colours, axis=0)
    about = colours - colours.mean(axis=0)
    covariance = about.T @ about / len(about) + np.eye(n_channels)
    inverse = np.linalg.inv(np.linalg.cholesky(covariance)).astype(np.float32)
    rest = np.matmul(inverse, levels.values - middle[:, None].astype(np.float32))
    normal = -0.5 * np.einsum("pct,pct->pt", rest, rest) - 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]
    with np.errstate(invalid="ignore"):  # NaN where missing
        density = np.logaddexp(math.log(1 - UNIFORM) + normal, math.log(UNIFORM) + levels.anywhere)
    return density.astype(np.float32)


def _t_constant(degrees: float, n_channels: int) -> float:
    return float(
        gammaln((degrees + n_channels) / 2) - gammaln(degrees / 2) - n_channels / 2 * math.log(degrees * math.pi)
    )


def _tails(levels: Levels, share: Single, distance: Single, broad: Single) -> float:
    """The degrees of freedom that make distances to the nearest level, with a share of objects, most likely."""
    n_pixels, n_channels, n_frames = levels.values.shape
    sampled = np.random.default_rng(0).integers(0, n_pixels * n_frames, N_SAMPLED)
    sampled = sampled[~np.isnan(distance.ravel()[sampled])]
    if sampled.size == 0:
        return DEGREES[-1]
    pixel = sampled // n_frames
    size = 0.5 * np.log(levels.variance[pixel, share.argmax(axis=1)[pixel]]).sum(axis=1)
    far, other = distance.ravel()[sampled].astype(np.float64), broad.ravel()[sampled] + size
    likelihoods = []
    for degrees in DEGREES:
        own = _t_constant(degrees, n_channels) - 0.5 * (degrees + n_channels) * np.log1p(far / degrees)
        rate = 0.05
        for _ in range(15):
            odds = math.log(rate) + other - math.log1p(-rate) - own
            rate = float(np.clip(np.mean(1 / (1 + np.exp(-np.clip(odds, -50, 50)))), 1e-4, 0.9))
        likelihoods.append(float(np.mean(np.logaddexp(math.log1p(-rate) + own, math.log(rate) + other))))
    return DEGREES[int(np.argmax(likelihoods))]
