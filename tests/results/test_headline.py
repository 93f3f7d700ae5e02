"""The findings in plain words are those of the fit."""

import numpy as np
import pytest

from brtf import BRTF
from brtf.data.observe import observe
from brtf.datasets import synthetic
from brtf.results.headline import coverage, explained_share, headline, percent

DATA = synthetic((14, 12, 10), 2, outliers=0.06, missing=0.2, seed=3)


@pytest.fixture(scope="module")
def result():
    return BRTF(random_state=0).fit(DATA.observed).result_


def test_the_share_explained_is_that_of_the_truth(result):
    """1 − R² is the noise's share of the variance of the regular entries, less what the parameters take up."""
    regular = DATA.mask & (DATA.outliers == 0)
    clean = (DATA.low_rank + DATA.noise)[regular]
    noise = np.sum(DATA.noise[regular] ** 2) / np.sum((clean - clean.mean()) ** 2)
    n_parameters = 2 * (14 + 12 + 10 - 2)
    unexplained = 1 - explained_share(result)
    assert unexplained == pytest.approx(noise * (1 - n_parameters / regular.sum()), rel=0.02)
    share = percent(1 - unexplained)
    assert headline(result)[0] == f"2 patterns explain {share} of the variation that is not due to outliers."


def test_outliers_do_not_count_as_unexplained():
    clean = BRTF(random_state=0).fit(np.where(DATA.mask, DATA.low_rank + DATA.noise, np.nan)).result_
    dirty = BRTF(random_state=0).fit(DATA.observed).result_
    assert explained_share(dirty) == pytest.approx(explained_share(clean), abs=5e-4)


def test_held_out_entries_are_counted(result):
    hidden = observe(np.where(DATA.mask, np.nan, DATA.low_rank + DATA.noise + DATA.outliers))
    values, coords = hidden.values, hidden.entry_coords()
    low, high = result.interval(coords, level=0.95, of="observation")
    inside = np.mean((low <= values) & (values <= high))
    assert coverage(result, hidden) == (inside, hidden.n_observed)
    assert headline(result, hidden)[2] == (
        f"{percent(inside)} of {hidden.n_observed} held-out entries were inside their 95\xa0% intervals."
    )
    assert headline(result)[2].startswith("No entry was held out, so the intervals are unchecked; ")


def test_calibration_entries_are_held_out_entries():
    found = BRTF(calibrate="conformal", random_state=0).fit(DATA.observed).result_
    assert f"of {found.held_back.n_observed} held-out entries" in headline(found)[2]


def test_nothing_found_is_said():
    rng = np.random.default_rng(0)
    nothing = BRTF(random_state=0).fit(rng.standard_normal((8, 7, 6))).result_
    assert headline(nothing)[0] == "No pattern was found: the data look like noise around zero."
    constant = BRTF(random_state=0).fit(np.full((6, 5, 4), 3.0)).result_
    assert headline(constant)[0] == "One pattern was found."
    plain = BRTF(robust=False, random_state=0).fit(DATA.low_rank + DATA.noise).result_
    assert "fitted without outliers" in headline(plain)[1]
    assert headline(plain)[0].endswith("of the variation.")


def test_less_than_all_is_never_written_as_all():
    assert [percent(share) for share in (1.0, 0.99997, 0.97, 0.0694)] == [
        "100\xa0%",
        "99.997\xa0%",
        "97\xa0%",
        "6.94\xa0%",
    ]
