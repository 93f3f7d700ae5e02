"""Background, foreground and masks: the decision of the model, and the field that makes objects of pixels."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import brtf
from brtf.metrics import f_measure
from brtf.video import Clip
from brtf.video.clips import LUMA
from brtf.video.foreground import (
    NEUTRAL,
    _most_probable,
    _neighbour_law,
    background_images,
    foreground_images,
    foreground_probability,
    smooth_mask,
)


def objects(height: int = 40, width: int = 50, frames: int = 6) -> np.ndarray:
    """Two discs that move, (height, width, frames)."""
    row, column, time = np.meshgrid(np.arange(height), np.arange(width), np.arange(frames), indexing="ij")
    large = (row - 20) ** 2 + (column - 12 - time) ** 2 < 81
    return large | ((row - 12) ** 2 + (column - 38) ** 2 < 36)


def deceptive(mask: np.ndarray, seed: int = 0) -> np.ndarray:
    """Probabilities that are nearly certain, and wrong for 5 % of the pixels."""
    wrong = np.random.default_rng(seed).random(mask.shape) < 0.05
    return np.where(mask ^ wrong, 0.999, 0.001)


# ---- the decision ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toy() -> tuple[brtf.BRTF, Clip, np.ndarray]:
    data = brtf.datasets.toy_video(height=24, width=32, frames=40, missing=0.3, seed=0)
    grey = (np.moveaxis(data.observed, 1, 2) @ LUMA)[:, None].astype(np.float32)
    clip = Clip(grey, data.height, data.width)
    model = brtf.BRTF(2, noise="per-slice", random_state=0).fit(clip.tensor)
    return model, clip, data.foreground_mask.reshape(24, 32, 40)


def test_the_models_own_decision_finds_the_objects(toy: tuple[brtf.BRTF, Clip, np.ndarray]) -> None:
    model, clip, true = toy
    probability = foreground_probability(model, clip)
    missing = np.isnan(clip.values[:, 0]).reshape(true.shape)
    np.testing.assert_array_equal(np.isnan(probability), missing)
    # grey objects before a grey wall cannot all be seen; flickering light must not be taken for one
    assert f_measure(probability > 0.5, true, ignore=missing) > 0.9


def test_cleaning_also_decides_where_nothing_was_observed(toy: tuple[brtf.BRTF, Clip, np.ndarray]) -> None:
    model, clip, true = toy
    probability = foreground_probability(model, clip)
    # without it a missing pixel is background: three in ten of the objects are lost
    assert f_measure(smooth_mask(probability), true) > f_measure(probability > 0.5, true) + 0.02


def test_background_is_the_low_rank_part(toy: tuple[brtf.BRTF, Clip, np.ndarray]) -> None:
    model, clip, _ = toy
    images = np.stack(list(background_images(model, clip)), axis=-1)
    np.testing.assert_allclose(images.reshape(clip.tensor.shape), model.low_rank(), rtol=1e-12)  # order of sums


def test_channels_are_averaged() -> None:
    data = brtf.datasets.synthetic((12, 3, 10), 1, outliers=0.1, missing=0.2, seed=0)
    values = data.observed.astype(np.float32)
    values[np.isnan(values).any(axis=1)[:, None].repeat(3, axis=1)] = np.nan
    clip = Clip(values, 3, 4)
    model = brtf.BRTF(1, random_state=0).fit(clip.tensor)
    images = list(background_images(model, clip))
    np.testing.assert_allclose(images[7], model.low_rank()[:, :, 7].reshape(3, 4, 3), rtol=1e-6)
    found = foreground_probability(model, clip)
    expected = model.outlier_probability().mean(axis=1).reshape(3, 4, 10)
    seen = ~np.isnan(values[:, 0]).reshape(3, 4, 10)
    np.testing.assert_array_equal(found[seen], expected[seen])
    assert np.isnan(found[~seen]).all()


def test_foreground_stands_on_grey() -> None:
    rng = np.random.default_rng(0)
    for n_channels in (1, 3):
        values = rng.uniform(0, 255, (12, n_channels, 2)).astype(np.float32)
        values[5, :, 1] = np.nan
        mask = rng.random((3, 4, 2)) < 0.5
        mask[1, 1, 1] = True  # which was not observed
        clip = Clip(values, 3, 4)
        for frame, image in enumerate(foreground_images(clip, mask)):
            shown = mask[:, :, frame].ravel() & ~np.isnan(values[:, 0, frame])
            pixels = image.reshape(12, n_channels)
            np.testing.assert_array_equal(pixels[shown], values[shown, :, frame])
            assert (pixels[~shown] == NEUTRAL).all()


# ---- the field ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_the_cut_is_the_most_probable_of_all_masks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    odds, coupling = rng.normal(0, 2, (3, 4)), rng.random()

    def log_probability(mask: np.ndarray) -> float:
        borders = sum(np.abs(np.diff(mask.astype(int), axis=axis)).sum() for axis in (0, 1))
        return float(odds[mask].sum() - coupling * borders)

    best = max(log_probability(np.array(bits).reshape(3, 4)) for bits in product((False, True), repeat=12))
    # odds and couplings are integers of a thousandth of a nat inside
    assert log_probability(_most_probable(odds, coupling)) == pytest.approx(best, abs=0.03)


def test_without_coupling_every_pixel_decides_for_itself() -> None:
    odds = np.random.default_rng(0).normal(size=(20, 30))
    odds[3, 4:9] = np.nan
    np.testing.assert_array_equal(_most_probable(odds, 0.0), odds > 5e-4)  # half a unit


def test_the_neighbour_law_of_independent_pixels_has_no_coupling() -> None:
    rng = np.random.default_rng(0)
    mask = rng.random((100, 100, 10)) < 0.2
    for seen in (np.ones(mask.shape, dtype=bool), rng.random(mask.shape) < 0.3):
        field, coupling, _ = _neighbour_law(mask & seen, seen)
        # of 30 000 pixels and more: a standard error of the coupling is below 0.01, of the field below 0.04
        assert coupling < 0.03
        assert field == pytest.approx(np.log(0.2 / 0.8), abs=0.1)


def test_the_neighbour_law_is_that_of_a_field_drawn_from_it() -> None:
    rng = np.random.default_rng(0)
    field, coupling = -0.1, 0.3
    mask = rng.random((80, 80, 4)) < 0.5
    row, column = np.indices((80, 80))
    for sweep in range(200):  # Gibbs sampling of the two colours of a chessboard in turn
        padded = np.pad(np.where(mask, 1, -1), ((1, 1), (1, 1), (0, 0)))
        balance = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
        drawn = rng.random(mask.shape) < 1 / (1 + np.exp(-field - coupling * balance))
        mask = np.where(((row + column) % 2 == sweep % 2)[:, :, None], drawn, mask)
    found = _neighbour_law(mask, np.ones(mask.shape, dtype=bool))[:2]
    # the spread over seeds is 0.01 and 0.006
    np.testing.assert_allclose(found, (field, coupling), atol=0.04)


def test_deceptive_pixels_are_overruled_by_their_neighbours() -> None:
    true = objects()
    probability = deceptive(true)
    assert f_measure(probability > 0.5, true) < 0.9
    assert f_measure(smooth_mask(probability), true) > 0.95  # at edges and in corners neighbours are few


def test_a_mask_without_errors_stays_as_it_is() -> None:
    true = objects()
    found = smooth_mask(np.where(true, 0.999, 0.001))
    assert np.mean(found != true) < 1e-3  # corners of discs at most


def test_one_pixel_in_ten_is_enough_for_large_objects() -> None:
    true = objects(80, 100, 4).repeat(2, axis=0).repeat(2, axis=1)
    probability = np.where(true, 0.999, 0.001)
    probability[np.random.default_rng(0).random(true.shape) < 0.9] = np.nan
    assert f_measure(smooth_mask(probability), true) > 0.85  # borders are known to two pixels


@pytest.mark.parametrize("seed", range(3))
def test_small_objects_seen_in_few_places_do_not_vanish(seed: int) -> None:
    # discs of 30 to 80 pixels, one pixel in ten seen: three to eight each, most of them beside the background
    row, column, time = np.meshgrid(np.arange(36), np.arange(48), np.arange(40), indexing="ij")
    true = (row - 10) ** 2 + (column - 4 - time) ** 2 < 10
    true |= (row - 25) ** 2 + (column - 44 + time) ** 2 < 25
    probability = np.where(true, 0.999, 0.001)
    probability[np.random.default_rng(seed).random(true.shape) < 0.9] = np.nan
    found, seen = smooth_mask(probability), ~np.isnan(probability)
    assert f_measure(found, true, ignore=~seen) > 0.9  # nothing deceives: what is seen is right


def test_frames_in_which_nothing_is_seen_or_nothing_moves() -> None:
    probability = deceptive(objects())
    probability[:, :, 2] = np.nan
    found = smooth_mask(probability)
    assert not found[:, :, 2].any()
    assert found[:, :, 3].any()
    for constant, expected in ((0.0, False), (1.0, True), (np.nan, False)):
        assert (smooth_mask(np.full((4, 5, 2), constant)) == expected).all()
