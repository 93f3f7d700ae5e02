"""Small generated versions of what real data do: each is recovered, and where a simpler model fails, it is shown to.

Noise that differs between slices is in test_slices, shared outliers and dead sensors are in test_structured_fits.
"""

import numpy as np
import pytest

from brtf import BRTF
from brtf.metrics import coverage, f_measure, rrse


def low_rank_of(shape, rank, rng):
    """Of unit standard deviation."""
    tensor = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((length, rank)) for length in shape))
    return tensor / tensor.std()


def test_noise_with_heavy_tails():
    """t₃ noise: least squares loses the efficiency that its tails cost."""
    rng = np.random.default_rng(1)
    low_rank = low_rank_of((16, 12, 8), 2, rng)
    noise, new = 0.1 * rng.standard_t(3, (2, *low_rank.shape))
    model = BRTF(noise="common", random_state=0).fit(low_rank + noise)
    gaussian = BRTF(noise="common", robust=False, random_state=0).fit(low_rank + noise)
    assert model.rank_ == 2
    assert rrse(model.low_rank(), low_rank) < 0.95 * rrse(gaussian.low_rank(), low_rank)
    assert model.bound_ > gaussian.bound_ + 100
    assert model.score(low_rank + new) > gaussian.score(low_rank + new) + 0.05
    low, high = model.predict_interval(of="observation")
    # 1536 entries: a standard error of .006.
    assert coverage(low, high, low_rank + new) == pytest.approx(0.95, abs=0.02)
    low, high = model.predict_interval()
    assert coverage(low, high, low_rank) > 0.9


def test_salt_and_pepper():
    """A third of the entries is black or white, on a picture of all greys, under noise as large as a grey level in ten.

    Added outliers of any size cannot be told from noise near black and white; values that are black or white can.
    """
    rng = np.random.default_rng(0)
    shape = (20, 16, 8)
    picture = np.einsum("ir,jr,kr->ijk", *(rng.uniform(0.0, 1.0, (length, 2)) for length in shape))
    picture /= picture.max()
    noisy = picture + 0.1 * rng.standard_normal(shape)
    hit = rng.random(shape) < 0.35
    data = np.where(hit, (rng.random(shape) < 0.5).astype(float), noisy)
    replaced = BRTF(outlier_kind="replacement", random_state=0).fit(data)
    added = BRTF(outlier_kind="additive", random_state=0).fit(data)
    assert replaced.rank_ == 2
    found, other = (f_measure(model.outlier_probability() > 0.5, hit) for model in (replaced, added))
    assert found > 0.96
    assert found > other + 0.05
    errors = [rrse(model.low_rank(), picture) for model in (replaced, added)]
    assert errors[0] < 0.85 * errors[1]
    # What least squares would cost that knows the outliers: 86 parameters of 1660 entries at noise .1 of .4.
    assert errors[0] < 1.3 * np.sqrt(86 / (~hit).sum()) * 0.1 / np.sqrt(np.mean(picture**2))
    law = replaced.result_.state.structure.law
    mass = law.density / law.density.sum()
    places = law.bins(np.array([0.0, 1.0]) / replaced.result_.scale)
    np.testing.assert_allclose(mass[places], 0.5, atol=0.06)
    assert replaced.outlier_rate_ == pytest.approx(0.35, abs=0.05)


def test_slices_whose_levels_differ_a_hundredfold():
    """Levels, noise and outliers of the slices go from 1 to 100: the small ones count as much as the large."""
    rng = np.random.default_rng(0)
    level = np.geomspace(1.0, 100.0, 16)
    rows = [1 + 0.3 * rng.standard_normal((length, 2)) for length in (16, 12, 8)]
    low_rank = np.einsum("ir,jr,kr->ijk", level[:, None] * rows[0], *rows[1:])
    hit = rng.random(low_rank.shape) < 0.05
    noise = 0.04 * level[:, None, None] * rng.standard_normal(low_rank.shape)
    data = low_rank + noise + 5.0 * level[:, None, None] * hit * rng.uniform(-1.0, 1.0, low_rank.shape)
    model = BRTF(noise="auto", random_state=0).fit(data)
    assert model.noise_modes_ == (0,)
    assert model.rank_ == 2
    assert f_measure(model.outlier_probability() > 0.5, hit) > 0.9
    assert model.outlier_rate_ == pytest.approx(0.05, abs=0.015)
    # 96 entries a slice know a variance to 15 %.
    ratio = np.log(model.noise_variances_ / (0.04 * level) ** 2)
    assert np.abs(ratio).max() < 0.6
    error = np.sqrt(np.mean((model.low_rank() - low_rank) ** 2, axis=(1, 2))) / level
    # 12 of the 96 entries' worth of parameters a slice, all slices alike.
    assert error.max() < 0.04 * np.sqrt(12 / 96) * 2.0


@pytest.mark.parametrize("size", [1e9, 1e13])
def test_entries_of_another_world_are_outliers_like_any(size):
    """A few entries 1e9 or 1e13 times too large: the ordinary outliers beside them are still found."""
    rng = np.random.default_rng(2)
    low_rank = low_rank_of((14, 10, 8), 2, rng)
    hit = rng.random(low_rank.shape) < 0.06
    data = low_rank + 0.1 * rng.standard_normal(low_rank.shape) + hit * rng.uniform(-5, 5, low_rank.shape)
    data[0, 0, 0], data[5, 5, 5], data[3, 4, 5] = size, -size, size / 2
    hit[0, 0, 0] = hit[5, 5, 5] = hit[3, 4, 5] = True
    model = BRTF(random_state=0).fit(data)
    assert model.rank_ == 2
    assert rrse(model.low_rank(), low_rank) < 0.03
    assert f_measure(model.outlier_probability() > 0.5, hit) > 0.93
    assert model.outlier_rate_ == pytest.approx(hit.mean(), abs=0.02)
