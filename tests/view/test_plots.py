"""Plots: axes in, the same axes out, and on them the numbers of the views."""

import sys

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from brtf import BRTF
from brtf.datasets import synthetic
from brtf.view.view_data import by_strength, factor_profiles, half_width, outlier_map

matplotlib = pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install brtf[viz]")
matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402  the backend is chosen first

DATA = synthetic((10, 9, 8), 2, outliers=0.08, missing=0.2, seed=0)
LABELLED = xr.DataArray(
    DATA.observed,
    dims=("price in $", "day", "nm"),
    coords={
        "price in $": [f"${k}_{k}$" for k in range(10)],  # would be a formula, or none that can be read
        "day": pd.date_range("2024-01-30", periods=9),
        "nm": np.linspace(400.0, 700.0, 8),
    },
)


@pytest.fixture(scope="module")
def model():
    return BRTF(max_rank=4, random_state=0).fit(LABELLED)


@pytest.fixture(autouse=True)
def closed():
    yield
    pyplot.close("all")


def drawn(axes):
    """Draw the figure, so that labels that cannot be set in type fail here."""
    figure = np.atleast_1d(np.asarray(axes, dtype=object)).ravel()[0].figure
    figure.canvas.draw()
    return figure


def test_components_are_bars_of_their_strengths(model):
    ax = model.plot_components()
    heights = [bar.get_height() for bar in ax.patches]
    np.testing.assert_allclose(heights, model.result_.strengths[by_strength(model.result_)])
    drawn(ax)


def test_components_have_the_names_they_are_given(model):
    names = ["first $x", "second"]
    ax = model.plot_components(names=names)
    assert [text.get_text() for text in ax.get_xticklabels()] == [r"first \$x", "second"]
    axes = model.plot_factors(names=names)
    assert [ax.get_ylabel() for ax in axes[:, 0]] == [r"first \$x", "second"]
    drawn(axes)
    with pytest.raises(ValueError, match="names must be a text for each of the 2 components"):
        model.plot_factors(names=["one"])


def test_factors_are_lines_with_their_bands(model):
    axes = model.plot_factors(level=0.8)
    assert axes.shape == (model.rank_, 3)
    for row, component in enumerate(by_strength(model.result_)):
        for mode in range(3):
            mean, std = (part[:, component] for part in factor_profiles(model.result_)[mode])
            np.testing.assert_array_equal(axes[row, mode].lines[-1].get_ydata(), mean)
            paths = axes[row, mode].collections[0].get_paths()
            assert len(paths) == (10 if mode == 0 else 1)  # bars at the points of a mode with names, else one band
            edge = np.concatenate([path.vertices[:, 1] for path in paths])
            assert axes[row, mode].lines[-1].get_linestyle() == ("None" if mode == 0 else "-")
            assert edge.max() == pytest.approx((mean + half_width(0.8) * std).max())
    texts = [text.get_text() for text in axes[-1, 1].get_xticklabels()]
    drawn(axes)
    assert "2024-01-30" in texts
    assert axes[-1, 0].get_xlabel() == r"price in \$"
    assert axes[0, 2].lines[-1].get_xdata()[-1] == 700.0


def test_some_factors_on_given_axes(model):
    _, given = pyplot.subplots(2, 1)
    axes = model.plot_factors(components=[1], modes=[2, 0], axes=given)
    assert axes.shape == (1, 2)
    assert list(axes.ravel()) == list(given)
    mean = factor_profiles(model.result_)[2][0][:, 1]
    np.testing.assert_array_equal(given[0].lines[-1].get_ydata(), mean)


def test_the_trace_climbs_to_the_best(model):
    axes = model.plot_trace()
    assert axes.shape == (2,)
    gap = axes[0].lines[0].get_ydata()
    assert gap[-1] == gap.min()
    bottom, top = axes[0].get_ylim()
    assert bottom > gap.max() >= gap.min() > top  # up is better
    assert axes[1].lines[0].get_ydata()[-1] == model.rank_
    drawn(axes)
    _, given = pyplot.subplots(1, 2)
    assert list(model.plot_trace(axes=given)) == list(given)


def test_outliers_are_a_map_on_the_axes_given(model):
    _, given = pyplot.subplots()
    ax = model.plot_outliers(modes=(2, 0), ax=given)
    assert ax is given
    probability = model.result_.outlier_probability_at_entries()
    expected = outlier_map(model.result_.observations, probability, (2, 0))
    np.testing.assert_array_equal(ax.images[0].get_array().filled(np.nan), expected)
    assert ax.get_ylabel() == "nm"
    drawn(ax)


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        ("plot_factors", {"components": [5]}, "components must be one or more of 0 to 1, got 5"),
        ("plot_factors", {"modes": []}, "modes must be one or more of 0 to 2, got none"),
        ("plot_factors", {"level": 95}, "level must be a number between 0 and 1, got 95"),
        ("plot_factors", {"axes": [None]}, "axes must hold 6 axes, 2 x 3, got 1"),
        ("plot_outliers", {"modes": (1, 1)}, "modes must be two different ones"),
        ("plot_outliers", {"modes": (0, 3)}, "modes must be one or more of 0 to 2, got 3"),
    ],
)
def test_what_cannot_be_drawn_is_refused(model, method, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        getattr(model, method)(**options)


def test_a_fit_of_rank_zero_has_no_factors_to_draw():
    found = BRTF(random_state=0).fit(np.zeros((5, 4)))
    assert found.rank_ == 0
    assert len(found.plot_components().patches) == 0
    drawn(found.plot_trace())
    with pytest.raises(ValueError, match="rank 0"):
        found.plot_factors()


def test_without_matplotlib_the_error_says_what_to_install(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r'pip install "brtf\[viz\]"'):
        model.plot_components()


def test_counted_positions_have_whole_ticks_and_only_those_in_order_are_joined():
    rng = np.random.default_rng(0)
    course = np.cumsum(rng.normal(size=(14, 1)), axis=0) + 4
    level = course @ rng.exponential(size=(1, 11)) + 0.05 * rng.normal(size=(14, 11))
    model = BRTF(modes={0: "ordered", 1: ("unordered", "nonnegative")}, random_state=0).fit(level)
    in_order, in_none = model.plot_factors()[0]
    assert not in_order.containers and in_order.collections  # a line in its band
    (bars,) = in_none.containers
    _, _, (whiskers,) = bars
    assert min(end[1] for segment in whiskers.get_segments() for end in segment) >= 0
    rank = model.plot_trace()[1]
    for axis in (in_order.xaxis, in_none.xaxis, rank.yaxis):
        assert all(tick == round(tick) for tick in axis.get_ticklocs())


def test_named_ticks_are_evenly_spaced():
    names = [f"P{k:02d}" for k in range(14)]
    table = xr.DataArray(np.outer(np.arange(1.0, 15), np.arange(1.0, 10)), {"product": names}, ("product", "week"))
    ax = BRTF(1, random_state=0).fit(table).plot_outliers(modes=(0, 1))
    assert [text.get_text() for text in ax.get_yticklabels()] == names[::2]
