"""Core consistency of a fit, and its components in halves of the data."""

import numpy as np
import pytest

from brtf import BRTF
from brtf.datasets import synthetic
from brtf.ranks import core_consistency, split_half
from brtf.results.core_consistency import consistency_of
from brtf.results.split_half import congruences

DATA = synthetic((24, 14, 12), 3, missing=0.1, seed=4)


@pytest.fixture(scope="module")
def model():
    return BRTF(random_state=0).fit(DATA.observed)


class TestCoreConsistency:
    def test_is_that_of_the_factors_where_nothing_is_an_outlier(self):
        clean = BRTF(robust=False, random_state=0).fit(DATA.observed)
        assert consistency_of(clean.result_) == pytest.approx(core_consistency(clean.factors_, DATA.observed), abs=1e-6)

    def test_outliers_do_not_count(self):
        clean = synthetic((24, 14, 12), 2, seed=5)
        dirty = clean.observed.copy()
        dirty[np.random.default_rng(0).random(dirty.shape) < 0.05] += 40.0
        fit = BRTF(random_state=0).fit(dirty)
        assert consistency_of(fit.result_) > 95
        assert consistency_of(fit.result_) > core_consistency(fit.factors_, dirty)

    @pytest.mark.parametrize(("shape", "rank", "reason"), [((20, 15), 2, "matrix"), ((9, 8, 7), 1, "fewer than two")])
    def test_where_it_means_nothing_the_reason_is_given(self, shape, rank, reason):
        result = BRTF(random_state=0).fit(synthetic(shape, rank, seed=0).observed).result_
        assert reason in consistency_of(result)


class TestSplitHalf:
    def test_true_components_are_in_both_halves(self, model):
        found = split_half(model)
        assert found.mode == 0
        assert found.ranks == (3, 3)
        assert found.stable.all()
        np.testing.assert_array_equal(np.sort(np.concatenate(found.positions)), np.arange(24))
        assert (found.first >= found.SAME).all() and (found.second >= found.SAME).all()

    def test_a_component_of_one_row_is_in_one_half_alone(self):
        level = synthetic((24, 14, 12), 2, seed=4)
        special = 9.0 * np.outer(np.sin(np.arange(14.0)), np.cos(np.arange(12.0)))
        data = level.observed.copy()
        data[7] += special
        whole = BRTF(random_state=0).fit(data)
        assert whole.rank_ == 3
        found = split_half(whole)
        alone = np.argmax([abs(factor[7]) / np.abs(factor).sum() for factor in whole.factors_[0].T])
        assert not found.stable[alone]
        assert found.stable[np.arange(3) != alone].all()

    def test_other_modes_can_be_split(self, model):
        found = split_half(model, mode=1, seed=3)
        assert found.mode == 1 and [half.size for half in found.positions] == [7, 7]
        assert found.stable.all()

    def test_what_cannot_be_split_is_refused(self, model):
        matrix = BRTF(random_state=0).fit(synthetic((20, 15), 2, seed=0).observed)
        with pytest.raises(ValueError, match="three or more modes, got 2 modes"):
            split_half(matrix)
        for mode in (3, True, -1):
            with pytest.raises(ValueError, match="mode must be one of 0, 1, 2, those with four or more positions"):
                split_half(model, mode=mode)

    def test_congruence_does_not_depend_on_scale_or_sign(self):
        rng = np.random.default_rng(0)
        factors = [rng.standard_normal((n, 3)) for n in (6, 7)]
        other = [factors[0][:, [2, 0, 1]] * [2.0, -3.0, 1e-9], factors[1][:, [2, 0, 1]] * [-1.0, 5.0, 1.0]]
        found = congruences(factors, other)
        np.testing.assert_allclose(found[[2, 0, 1], [0, 1, 2]], 1.0)
        assert (found <= 1 + 1e-12).all()


def test_the_page_shows_both(model, tmp_path):
    model.report(tmp_path / "page.html", split_half=True, names=["A", "B", "C"])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Both halves show the same components" in page
    assert "The core consistency is" in page
    model.report(tmp_path / "page.html")
    assert "Split-half analysis. It takes two more fits" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_folded_mode_has_its_page_and_halves(tmp_path):
    """Leverage is that of the positions of the mode as it was given; the other mode is split."""
    rng = np.random.default_rng(0)
    days, hours, sensors = (rng.standard_normal((length, 2)) for length in (20, 12, 8))
    level = np.einsum("ir,jr,kr->ijk", days + 1.0, hours, sensors).reshape(-1, 8)
    model = BRTF(arrangement={0: 12}, random_state=0).fit(level + 0.1 * rng.standard_normal(level.shape))
    model.report(tmp_path / "page.html", split_half=True)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "not merged or folded" in page
    assert "leverage of the positions of mode 0" in page
    assert split_half(model).mode == 1
    with pytest.raises(ValueError, match="that are not folded, got 0"):
        split_half(model, mode=0)
