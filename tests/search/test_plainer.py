"""The way back to common noise and one rate of outliers, once all components are found."""

import numpy as np
import pytest

from brtf import BRTF
from brtf.datasets import synthetic
from brtf.search.moves.plainer import plainer

ORDER_4 = ((12, 6, 9, 8), (7, 8, 6, 12))


@pytest.mark.parametrize("shape", ORDER_4)
def test_noise_that_differed_only_while_components_were_missing(shape):
    """Ends as well as a search that may not choose, and says so."""
    for seed in range(3):
        data = synthetic(shape, 6, outliers=0.3, missing=0.3, seed=seed)
        options = {"random_state": seed, "arrangement": None}
        model = BRTF(**options).fit(data.observed)
        plain = BRTF(**options, noise="common", outlier_kind="additive").fit(data.observed)
        assert (model.noise_, model.rank_) == ("common", 6)
        assert model.result_.state.structure is None
        assert model.bound_ > plain.bound_ - 1.0
        assert model.choices_["noise"].gain is None or model.choices_["noise"].gain > 0
        assert "-" not in model.choices_["noise"].sentence


def test_noise_that_differs_stays_so_and_its_gain_is_that_of_the_end():
    data = synthetic((20, 15, 10), 2, noise=1.0, seed=0)
    levels = np.geomspace(0.05, 0.5, 20)[:, None, None]
    observed = data.low_rank + levels * (data.observed - data.low_rank)
    model = BRTF(random_state=0).fit(observed)
    common = BRTF(random_state=0, noise="common", outlier_kind="additive").fit(observed)
    assert (model.noise_, model.noise_modes_) == ("per-slice", (0,))
    choice = model.choices_["noise"]
    assert choice.gain > 100 and "better than one level for all entries" in choice.sentence
    # at the same factors, and of all states that are plainer: no less than after sweeps of a state of its own
    assert choice.gain >= model.bound_ - common.bound_ - 1.0


def test_what_was_asked_for_is_kept():
    data = synthetic((12, 10, 8), 2, outliers=0.2, seed=0)
    model = BRTF(random_state=0, noise="per-slice").fit(data.observed)
    assert model.noise_ == "per-slice"
    state = model.result_.state
    assert all(one.slices is not None for one in plainer(state, noise_differs=True))
    assert all(one.slices is None for one in list(plainer(state, noise_differs=False))[:1])
