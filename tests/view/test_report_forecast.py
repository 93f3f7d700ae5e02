"""The page continues ordered modes, on a time axis where they have dates."""

from copy import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from brtf import BRTF
from brtf.data.arrangement import Arrangement
from pages import Page

for library in ("jinja2", "PIL"):
    pytest.importorskip(library, reason="a report needs jinja2 and pillow: pip install brtf[viz]")
from brtf.view.report.layout import layout_of  # noqa: E402
from brtf.view.report.page import build_page  # noqa: E402
from brtf.view.report.parts.forecast import forecast_part  # noqa: E402
from brtf.view.report.subject import Subject  # noqa: E402


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    course = np.sin(np.arange(40) / 5) + 2
    level = course[:, None, None] * np.outer(rng.exponential(size=5), rng.exponential(size=4))
    weeks = pd.date_range("2023-01-02", periods=40, freq="7D")
    data = xr.DataArray(
        level + 0.1 * rng.standard_normal(level.shape),
        dims=("week", "shop", "item"),
        coords={"week": weeks, "shop": [f"Shop {k}" for k in range(5)]},
    )
    return BRTF(modes={0: "ordered"}, random_state=0).fit(data)


def test_fibres_go_on_with_their_bands(model):
    page = Page(build_page(model.result_))
    assert "here 8 positions ahead" in page.text
    ahead = model.forecast(8, level=0.9)
    first = str(np.datetime_as_string(ahead.labels[0], unit="D"))
    assert first == "2023-10-09"
    assert page.text.count(f"{first}: ") >= 6
    low = f"{ahead.low[0, 0, 0]:.2f}".rstrip("0")
    assert low in page.text.replace("−", "-")


def test_merged_modes_do_not_continue_courses_of_single_fibres(model, monkeypatch):
    result = model.result_
    monkeypatch.setattr(Arrangement, "is_as_given", False)
    state = copy(result.state)
    object.__setattr__(state, "smooth", "a course")
    result = replace(result, state=state)
    part = forecast_part(Subject(result, layout_of(result.observations, None, None), ["component 0"]))
    assert not part.blocks and "do not continue" in part.left_out[0]


def test_without_an_order_there_is_no_forecast():
    rng = np.random.default_rng(1)
    level = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((length, 2)) for length in (9, 8, 7)))
    plain = BRTF(modes=None, random_state=0).fit(level + 0.1 * rng.standard_normal(level.shape))
    assert "forecast" not in {a.get("id") for _, a in Page(build_page(plain.result_)).elements}


def test_what_is_in_order_but_not_of_times_is_continued_on_request_only(model):
    """Nobody asks what follows the last wavelength."""
    result = model.result_
    labels = replace(result.observations.labels, coords=(np.arange(40.0), *result.observations.labels.coords[1:]))
    numbered = replace(result, observations=replace(result.observations, labels=labels))
    found = replace(numbered, settings=replace(result.settings, modes="auto"))
    parts = [
        forecast_part(Subject(one, layout_of(one.observations, None, None), ["component 0"]))
        for one in (numbered, found)
    ]
    assert parts[0].blocks and not parts[0].left_out
    assert not parts[1].blocks and "week, whose labels are no times" in parts[1].left_out[0]
