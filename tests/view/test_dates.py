"""A time axis has round dates, in order, inside its range, and each is the time that its text says."""

import numpy as np
import pytest

from brtf.data.checks import Labels
from brtf.data.observe import observe
from brtf.data.times import as_times
from brtf.view.dates import date_ticks
from brtf.view.view_data import axis_of


def microseconds(text):
    return float(np.datetime64(text, "us").astype(np.int64))


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        ("2016-10-04", "2016-12-19", ["10 Oct 2016", "24 Oct", "7 Nov", "21 Nov", "5 Dec", "19 Dec"]),
        ("2019-11-01", "2020-04-01", ["Nov 2019", "Dec", "Jan 2020", "Feb", "Mar", "Apr"]),
        ("2010-01-01", "2023-05-01", ["2010", "2015", "2020"]),
        ("2016-10-04T10:00", "2016-10-04T10:07", ["4 Oct 10:00", "10:05"]),
        ("1000-01-01", "2900-01-01", ["1000", "1500", "2000", "2500"]),
        ("1969-12-31T23:59:50", "1970-01-01T00:00:09", ["31 Dec 23:59:50", "23:59:55", "1 Jan 00:00:00", "00:00:05"]),
    ],
)
def test_ticks_are_round(low, high, texts):
    assert [text for _, text in date_ticks(microseconds(low), microseconds(high))] == texts


def test_ticks_of_any_range_are_few_and_in_order():
    rng = np.random.default_rng(0)
    for _ in range(500):
        low = rng.uniform(microseconds("1500-01-01"), microseconds("2200-01-01"))
        extent = 10 ** rng.uniform(6.5, 16)
        values = [value for value, _ in date_ticks(low, low + extent)]
        assert 1 <= len(values) <= 7
        assert (np.diff(values) > 0).all()
        assert low <= values[0] and values[-1] <= low + extent


def test_text_that_reads_as_dates_is_a_time_axis():
    days = np.array(["2024-02-28", "2024-02-29", "2024-03-02"], dtype=object)
    labels = Labels(("day", "place"), (days, np.array(["a", "b"])))
    observed = observe(np.arange(6.0).reshape(3, 2))
    object.__setattr__(observed, "labels", labels)
    axis = axis_of(observed, 0)
    assert axis.kind == "date"
    np.testing.assert_allclose(np.diff(axis.values), [86400e6, 2 * 86400e6])
    assert axis.text(1) == "2024-02-29"
    assert axis_of(observed, 1).kind == "name"


@pytest.mark.parametrize("labels", [["2024-02-30"], ["12-05"], ["2024-01-01", "total"], ["20240101"], [5]])
def test_other_text_is_not(labels):
    assert as_times(np.array(labels, dtype=object)) is None
