"""Forecasts: rows beyond the last one, bands that cover what comes, labels that continue, files."""

import json
from datetime import date, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import brtf
from brtf import BRTF
from brtf.cli import main
from brtf.data.positions import Positions, continued
from brtf.inference.update_rows import gaussian_rows
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.row_priors import Ordered
from brtf.results.misfit_ahead import misfit_ahead
from brtf.results.rows_ahead import FittedCourse, Past, Seen, best_repetition, rows_ahead

HORIZON = 10


def wandering(n_rows, phi, rank, rng):
    rows = rng.standard_normal((n_rows, rank))
    for t in range(1, n_rows):
        rows[t] = phi * rows[t - 1] + np.sqrt(1.0 - phi**2) * rows[t]
    return rows


@pytest.fixture(scope="module")
def season():
    """A matrix whose first mode repeats every seven rows, the first rows fitted and the rest to come."""
    rng = np.random.default_rng(1)
    pattern = rng.standard_normal((7, 3))[np.arange(84) % 7] + 0.3 * wandering(84, 0.9, 3, rng)
    data = pattern @ rng.standard_normal((3, 25)) + 0.3 * rng.standard_normal((84, 25))
    options = {"link": None, "arrangement": None, "noise": "common", "random_state": 0}
    return brtf.BRTF(modes={0: "ordered"}, **options).fit(data[:-HORIZON]), data


def courses_of(past, period=7):
    """Some courses: rows on their own, a level, and levels beside a pattern."""
    return [*list(past._levels())[::3], *list(past._patterns(period))[::17]]


def test_a_course_goes_on_as_dense_algebra_says():
    """About a constant of any size; the evidence is that of the differences of rows, for any size of the course."""
    rng, n_rows, n_ahead = np.random.default_rng(0), 12, 5
    places = np.delete(np.arange(n_rows + 2.0), [3, 7])
    values = rng.standard_normal((n_rows, 2))
    told, odd = rng.uniform(0.3, 2.0, n_rows), np.where(np.arange(n_rows) == 4, 5.0, 0.0)
    past = Past(values, told, places, places[-1] + 1.0 + np.arange(n_ahead), odd)
    contrasts = np.linalg.qr(np.column_stack([np.ones(n_rows), np.eye(n_rows)[:, 1:]]))[0][:, 1:].T
    beyond = []
    for course in courses_of(past):
        fit = FittedCourse(past, course)
        cov = course.going_on[:, :n_rows] + np.diag(course.alone / told + odd)
        squares = np.einsum(
            "id,id->d", contrasts @ values, np.linalg.solve(contrasts @ cov @ contrasts.T, contrasts @ values)
        )
        np.testing.assert_allclose(fit.squares, squares, rtol=1e-8)
        log_det = np.linalg.slogdet(contrasts @ cov @ contrasts.T)[1]
        beyond.append(fit.evidence + 0.5 * log_det + 0.5 * (n_rows - 1) * np.log(squares))
        large = 1e7  # the variance of the constant
        across = np.linalg.solve(cov + large, course.going_on[:, n_rows:] + large)
        mean, variance = fit.forecast
        np.testing.assert_allclose(mean, across.T @ values, atol=1e-5)
        dense = (
            course.going_on[0, 0]
            + course.alone
            + large
            - np.sum(across * (course.going_on[:, n_rows:] + large), axis=0)
        )
        np.testing.assert_allclose(variance, np.outer(dense, squares / (n_rows - 3)), rtol=1e-4)
    np.testing.assert_allclose(beyond, np.broadcast_to(beyond[0], np.shape(beyond)), atol=1e-8)


def test_a_row_of_its_own_is_one_that_the_others_do_not_expect():
    rng = np.random.default_rng(1)
    values = rng.standard_normal((12, 3))
    past = Past(values - values.mean(axis=0), np.ones(12), np.arange(12.0), np.arange(12.0, 14.0))
    for course in courses_of(past):
        fit, kept = FittedCourse(past, course), np.arange(12) != 5
        left_out = Past(past.values[kept], np.ones(11), past.places[kept], np.array([5.0]))
        alike = course._replace(going_on=course.going_on[np.ix_(kept, np.append(np.flatnonzero(kept), 5))])
        other = FittedCourse(left_out, alike)
        mean, variance = other.forecast
        expected = variance[0] / (other.squares / 8)
        ratio = np.sum((past.values[5] - mean[0]) ** 2) / expected[0] / (fit.squares.sum() / 11)
        assert fit.odd_variances[5] == pytest.approx(max(ratio - 1.0, 0.0) * expected[0])
        assert fit.odd_gains[5] == pytest.approx(max(0.0, 0.5 * (max(ratio, 1.0) - 1.0 - np.log(max(ratio, 1.0)))))


def weekly(n_rows, rng, rank=4):
    """A level, a pattern of seven rows and a little that wanders."""
    pattern = rng.standard_normal((7, rank))[np.arange(n_rows) % 7]
    return 5.0 * rng.standard_normal(rank) + pattern + 0.1 * wandering(n_rows, 0.7, rank, rng)


def row_posterior(courses, loadings):
    """Rows that data of unit noise would tell, with λ and a prior in order."""
    gram, lam = loadings.T @ loadings, Gamma(np.full(courses.shape[1], 10.0), np.full(courses.shape[1], 100.0))
    cov = np.linalg.inv(gram + 0.1 * np.eye(len(gram)))
    rows = RowGaussians(courses @ (gram @ cov), np.broadcast_to(cov, (len(courses), *cov.shape)).copy())
    share = np.zeros((rows.rank, 5))
    share[:, 0] = 1.0
    return rows, Ordered.begun(rows, lam, np.ones(len(courses) - 1), share), lam


def test_a_holiday_is_not_repeated():
    rng = np.random.default_rng(2)
    whole = weekly(49, rng)
    seen = whole[:42].copy()
    seen[37] -= 5.0
    rows, prior, lam = row_posterior(seen, 30.0 * rng.standard_normal((40, 4)))
    found = rows_ahead(rows, prior, lam, np.arange(42.0), 42.0 + np.arange(7), (), range(2, 22))
    assert np.sqrt(np.mean((found.mean - whole[42:]) ** 2)) < 0.3
    assert np.abs(seen[35:42] - whole[42:]).max() > 4.0


def test_components_that_cancel_each_other_still_do_so_ahead():
    """Two components of nearly equal loadings: their difference wanders widely, their sum repeats itself."""
    rng = np.random.default_rng(3)
    whole, loading = weekly(42, rng, 1), rng.standard_normal((40, 1))
    apart = 100.0 * rng.standard_normal((42, 1))
    courses = np.hstack([apart, whole - apart])
    loadings = 30.0 * np.hstack([loading, loading + 1e-3 * rng.standard_normal((40, 1))])
    rows, prior, lam = row_posterior(courses[:35], loadings)
    found = rows_ahead(rows, prior, lam, np.arange(35.0), 35.0 + np.arange(7), (), range(2, 18))
    error = (found.mean - courses[35:]) @ loadings.T / 30.0
    assert np.sqrt(np.mean(error**2)) < 0.4 * np.std(whole)


def test_dates_tell_of_weeks_that_were_seen_once_and_a_half():
    rng = np.random.default_rng(4)
    data = weekly(18, rng) @ rng.standard_normal((4, 30)) + 0.1 * rng.standard_normal((18, 30))
    xarray = pytest.importorskip("xarray")
    days = np.datetime64("2024-01-01") + np.arange(11)
    named = xarray.DataArray(data[:11], dims=("day", "place"), coords={"day": days})
    options = {"link": None, "arrangement": None, "noise": "common", "random_state": 0}
    model = brtf.BRTF(modes={"day": "ordered"}, **options).fit(named)
    error = model.forecast(7, mode="day").mean - data[11:]
    assert np.sqrt(np.mean(error**2)) < 1.1 * np.sqrt(np.mean((data[4:11] - data[11:]) ** 2))
    without = brtf.BRTF(modes={0: "ordered"}, **options).fit(data[:11]).forecast(7, mode=0).mean - data[11:]
    assert np.mean(error**2) < 0.5 * np.mean(without**2)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_courses_of_single_fibres_go_on_from_where_they_are():
    """g fades from its last value as φ^h, and its variance rises to σ², beside the low-rank part."""
    rng, n_rows = np.random.default_rng(3), 90
    level = wandering(n_rows, 0.95, 1, rng) @ rng.standard_normal((1, 20))
    data = 3.0 * level + wandering(n_rows, 0.9, 20, rng) + 0.05 * rng.standard_normal((n_rows, 20))
    data[rng.random(data.shape) < 0.1] = np.nan
    options = {"link": None, "arrangement": None, "noise": "common", "max_rank": 1, "random_state": 0}
    model = brtf.BRTF(modes={0: "ordered"}, smooth_residual=0, **options).fit(data)
    smooth = model.result_.state.smooth
    ahead, structure = model.forecast(40), model.forecast(40, of="low_rank")
    course = ahead.mean - structure.mean
    last = (model.result_.signal() - model.result_.low_rank())[-1]
    np.testing.assert_allclose(course[0], smooth.memory * last, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(course[39], smooth.memory**40 * last, rtol=1e-9, atol=1e-12)
    spread = ahead.std**2 - structure.std**2
    assert (np.diff(spread, axis=0) > -1e-9).all()
    wanted = model.noise_variance_ + smooth.variances * model.result_.scale**2
    of_student = 2e-3 * structure.std[-1].max() ** 2  # of observations x is a part, and has the factor of their law
    np.testing.assert_allclose(spread[-1], wanted, rtol=0.05, atol=of_student)


def weeks(seed, n_rows=25, rank=8):
    """Levels that wander slowly beside a weekly pattern a quarter of their size, seen less than three times."""
    rng = np.random.default_rng(seed)
    pattern, level = 0.5 * rng.standard_normal((7, rank)), 2.0 * rng.standard_normal(rank)
    days = level + pattern[np.arange(n_rows) % 7] + 0.3 * wandering(n_rows, 0.9, rank, rng)
    places, hours = rng.standard_normal((20, rank)), rng.standard_normal((25, rank))
    signal = np.einsum("ir,jr,kr->ijk", places, days, hours)
    return signal + 0.3 * rng.standard_normal(signal.shape)


def test_a_weekly_pattern_is_found_beside_slow_levels():
    """Slow chains alone would explain it too: the forecast beats the same day last week, with bands that hold."""
    options = {"modes": {1: "ordered"}, "link": None, "arrangement": None, "noise": "common", "random_state": 0}
    errors, covered = [], []
    for seed in range(3):
        data = weeks(seed)
        future, last_week = data[:, 18:], data[:, 11:18]
        model = brtf.BRTF(**options).fit(data[:, :18])
        assert model.result_.state.row_priors[1].centre.shape[1] == 7
        ahead = model.forecast(7, mode=1, level=0.9)
        errors.append([np.sqrt(np.mean((guess - future) ** 2)) for guess in (ahead.mean, last_week)])
        covered.append(np.mean((ahead.low <= future) & (future <= ahead.high)))
    own, naive = np.mean(errors, axis=0)
    assert own < 0.95 * naive
    assert 0.82 < np.mean(covered) < 0.97


def test_a_season_goes_on(season):
    model, data = season
    ahead = model.forecast(HORIZON)
    assert ahead.mean.shape == ahead.std.shape == (HORIZON, 25)
    assert ahead.labels.tolist() == list(range(74, 84))
    future = data[-HORIZON:]
    naive = data[-HORIZON - 14 : -14]  # the same phase, two periods before
    assert np.sqrt(np.mean((ahead.mean - future) ** 2)) < 0.9 * np.sqrt(np.mean((naive - future) ** 2))
    covered = np.mean((ahead.low <= future) & (future <= ahead.high))
    assert 0.8 < covered < 0.98


def test_bands_widen_and_are_narrower_for_the_low_rank_part(season):
    model, _ = season
    far, own = model.forecast(60), model.forecast(60, mode=0, of="low_rank", level=0.5)
    assert far.std[-7:].mean() > far.std[:7].mean()
    assert (own.std < far.std).all()
    assert (own.high - own.low < far.high - far.low).all()
    np.testing.assert_allclose(own.mean, far.mean)


def test_tables_and_files(season, tmp_path):
    model, _ = season
    frame = model.forecast(2).to_frame()
    assert list(frame) == ["mode_0", "mode_1", "mean", "std", "low", "high"]
    assert len(frame) == 50
    model.save(tmp_path / "m.brtf")
    assert np.array_equal(brtf.load(tmp_path / "m.brtf").forecast(2).mean, model.forecast(2).mean)
    arguments = ["forecast", str(tmp_path / "m.brtf"), "--horizon", "2"]
    run = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path / "f.csv")])
    assert run.exit_code == 0, run.output
    assert len((tmp_path / "f.csv").read_text().splitlines()) == 51
    run = CliRunner().invoke(main, [*arguments, "--json", "--out", str(tmp_path / "f.json")])
    document = json.loads(run.stdout)
    assert document["forecast"][0]["mean"] == pytest.approx(frame["mean"][0])
    assert json.loads((tmp_path / "f.json").read_text())["forecast"] == document["forecast"]


def test_what_cannot_be_continued_is_refused(season):
    model, data = season
    for horizon in (0, -1, 1.5, True, None, 10**9):
        with pytest.raises(ValueError, match="horizon must be a whole number"):
            model.forecast(horizon)
    with pytest.raises(ValueError, match="rows of mode 1 are in no order; mode 0 is"):
        model.forecast(3, mode=1)
    for mode in (2, "time", 0.5):
        with pytest.raises(ValueError, match="mode must be a mode of the data"):
            model.forecast(3, mode=mode)
    plain = brtf.BRTF(modes=None, link=None, arrangement=None, random_state=0).fit(data)
    with pytest.raises(ValueError, match=r"No mode is in order .*modes={mode: 'ordered'} \(--modes MODE=ordered\)"):
        plain.forecast(3)


def test_the_mode_of_times_is_named_where_none_is_in_order(season):
    pd, xr = pytest.importorskip("pandas"), pytest.importorskip("xarray")
    data = season[1]
    days = pd.date_range("2024-01-01", periods=data.shape[0])
    named = xr.DataArray(data, dims=("day", *"abc"[: data.ndim - 1]), coords={"day": days})
    plain = brtf.BRTF(modes=None, link=None, arrangement=None, random_state=0).fit(named)
    with pytest.raises(ValueError, match=r"modes={'day': 'ordered'} \(--modes day=ordered\)"):
        plain.forecast(3)


def test_a_forecast_says_what_it_is_in_one_line(season):
    model, _ = season
    n, *rest = model.shape_in_
    told = f"Forecast(mode_0 {n} … {n + 2}, shape={(3, *rest)}, level=0.9, of='observation')"
    assert repr(model.forecast(3, mode=0)) == told


def test_times_go_on_where_several_modes_are_in_order():
    """Nobody asks what follows the last latitude; without times the mode is to be named, and how is said."""
    xr = pytest.importorskip("xarray")
    rng = np.random.default_rng(0)
    field = wandering(60, 0.95, 2, rng) @ wandering(25, 0.9, 2, rng).T + 0.1 * rng.standard_normal((60, 25))
    days = np.datetime64("2024-01-01") + np.arange(60)
    model = brtf.BRTF(modes={0: "ordered", 1: "ordered"}, link=None, arrangement=None, max_rank=2, random_state=0)
    dated = xr.DataArray(field, {"day": days, "latitude": np.arange(25.0)}, ("day", "latitude"))
    assert str(model.fit(dated).forecast(2).labels[0])[:10] == "2024-03-01"
    with pytest.raises(ValueError, match=r"day and latitude: .*mode='day' \(--mode day\)"):
        model.fit(dated.assign_coords(day=np.arange(60))).forecast(2)
    with pytest.raises(ValueError, match=r"modes 0 and 1: .*mode=0 \(--mode 0\)"):
        model.fit(field).forecast(2)


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        (np.array(["2024-01-30", "2024-01-31"], "M8[D]"), ["2024-02-01", "2024-02-02"]),
        (np.array(["2024-01-31 22:00", "2024-01-31 23:00"]), ["2024-02-01 00:00", "2024-02-01 01:00"]),
        (np.array(["2023-11", "2023-12"], "M8[M]"), ["2024-01", "2024-02"]),
        (np.array([5, 7, 9]), ["11", "13"]),
        (np.array([0.5, 1.0]), ["1.5", "2.0"]),
        (np.array([3.0, 2.0]), ["1.0", "0.0"]),
        (np.array(["a", "b"]), ["+1", "+2"]),
        (None, ["2", "3"]),
    ],
)
def test_labels_go_on(labels, wanted):
    found = continued(labels, 2, 2)
    assert [str(label)[: len(text)] for label, text in zip(found, wanted, strict=True)] == wanted


BERLIN = ZoneInfo("Europe/Berlin")


def stamps(first, n, freq, **options):
    return np.asarray(pd.date_range(first, periods=n, freq=freq, **options))


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        (stamps("2024-03-28", 3, "D", tz="Europe/Berlin"), stamps("2024-03-31", 3, "D", tz="Europe/Berlin")),
        (stamps("2024-10-26 22:00", 3, "h", tz=BERLIN), stamps("2024-10-27 01:00", 4, "h", tz=BERLIN)),
        (stamps("2024-03-30 22:00", 3, "h", tz=BERLIN), stamps("2024-03-31 01:00", 4, "h", tz=BERLIN)),
        (np.asarray(pd.period_range("2024-11", periods=3, freq="M")), pd.period_range("2025-02", periods=2, freq="M")),
        (np.asarray(pd.period_range("2024Q3", periods=3, freq="Q")), pd.period_range("2025Q2", periods=2, freq="Q")),
        (stamps("2023-11-30", 3, "ME"), stamps("2024-02-29", 3, "ME")),
        (stamps("2023-11-15", 3, "D")[:1] + np.array([0, 30, 61]).astype("m8[D]"), ["2024-02-15", "2024-03-15"]),
        (stamps("2024-01-01", 20, "B"), stamps("2024-01-29", 7, "B")),
        (stamps("2024-01-01", 3, "D", tz="UTC").astype(str), ["2024-01-04 00:00:00+00:00"]),
        (np.array(["2024-03-29T00:00Z", "2024-03-30T00:00Z"]), ["2024-03-31T00:00Z", "2024-04-01T00:00Z"]),
        (np.array([date(2024, 2, 28), date(2024, 2, 29)]), [date(2024, 3, 1)]),
        (
            np.array([datetime(2024, 3, 30, hour, tzinfo=BERLIN) for hour in (1, 2)]),
            [datetime(2024, 3, 30, 3, tzinfo=BERLIN)],
        ),
        (np.array([1, 3], "m8[h]"), np.array([5, 7], "m8[h]")),
        (np.array([7, 5, 9]), ["+1"]),
        (np.array(["00001234", "00001235"]), ["+1"]),
    ],
)
def test_times_go_on_by_their_clock_and_calendar(labels, wanted):
    found = continued(labels, len(labels), len(wanted))
    assert [str(label) for label in np.asarray(found)] == [
        str(np.datetime64(label, "us") if found.dtype.kind == "M" else label) for label in wanted
    ]
    assert found.dtype.kind == labels.dtype.kind or isinstance(found[0], str)


def test_days_and_hours_of_a_zone_are_even():
    for freq, periods in (("D", (7,)), ("h", (24, 168))):
        along = Positions.of(stamps("2024-03-29", 60, freq, tz="Europe/Berlin"), 60)
        assert along.periods == periods
        np.testing.assert_array_equal(along.steps, 1.0)


def test_working_days_are_forecast_a_week_after_themselves():
    """The five days that follow a Friday are Monday to Friday, and repeat those of a week ago."""
    rng = np.random.default_rng(0)
    level = 3.0 * rng.standard_normal((5, 3))[np.arange(45) % 5] + 0.1 * rng.standard_normal((45, 3))
    data = pd.DataFrame(level @ rng.standard_normal((3, 20)), stamps("2024-01-01", 45, "B"))
    model = brtf.BRTF(modes={0: "ordered"}, link=None, arrangement=None, random_state=0).fit(data[:40])
    ahead = model.forecast(5, mode=0)
    assert [str(day)[:10] for day in ahead.labels] == [str(day)[:10] for day in data.index[40:]]
    assert np.sqrt(np.mean((ahead.mean - data[40:]) ** 2)) < 0.2 * data.to_numpy().std()


def test_times_in_no_order_are_refused():
    """Neither a fit with order nor a forecast may take rows for neighbours that their times tell apart."""
    rng = np.random.default_rng(0)
    data, days = rng.standard_normal((20, 6)), stamps("2024-01-01", 20, "D")
    shuffled, lacking, twice = rng.permutation(days), days.copy(), days.copy()
    lacking[7], twice[9] = np.datetime64("NaT"), days[8]
    options = {"link": None, "arrangement": None, "max_rank": 2, "random_state": 0}
    for wrong, place in ((shuffled, "at position"), (lacking, "position 7"), (twice, "position 9")):
        frame = pd.DataFrame(data, wrong)
        for said in ({"modes": {0: "ordered"}}, {"modes": {0: "cyclic"}}, {"smooth_residual": 0}):
            with pytest.raises(ValueError, match=f"Mode 0 is in order, but its times are not: .*{place}"):
                brtf.BRTF(**said, **options).fit(frame)
        brtf.BRTF(**options).fit(frame)  # a mere set of rows
    backwards = brtf.BRTF(modes={0: "ordered"}, **options).fit(pd.DataFrame(data, days[::-1]))
    with pytest.raises(ValueError, match="Sort Y by them"):
        backwards.forecast(2)


def test_positions_of_labels():
    hours = np.datetime64("2024-01-01T00") + np.array([0, 1, 2, 5]).astype("m8[h]")
    found = Positions.of(hours, 4)
    np.testing.assert_allclose(found.steps, [1, 1, 3])
    assert found.periods == (24, 168)
    assert found.places.tolist() == [0, 1, 2, 5]
    for labels in (None, np.array(["a", "b", "c", "d"]), np.array([1, 3, 2, 4]), np.array([1, 1, 2, 3])):
        even = Positions.of(labels, 4)
        assert even.steps.tolist() == [1, 1, 1] and even.periods == ()


def test_names_of_modes_and_times_are_used():
    rng = np.random.default_rng(2)
    data = wandering(60, 0.97, 2, rng) @ rng.standard_normal((2, 12)) + 0.2 * rng.standard_normal((60, 12))
    days = np.datetime64("2024-03-01") + np.arange(60)
    xarray = pytest.importorskip("xarray")
    named = xarray.DataArray(data, dims=("day", "place"), coords={"day": days})
    model = brtf.BRTF(modes={"day": "ordered"}, link=None, arrangement=None, random_state=0).fit(named)
    assert model.modes_[0] == ("ordered",)
    ahead = model.forecast(3, mode="day")
    assert [str(day)[:10] for day in ahead.labels] == ["2024-04-30", "2024-05-01", "2024-05-02"]
    assert list(ahead.table)[:2] == ["day", "place"]


def growing_apart(n_rows, rng, rank=4):
    """Every day of the week a level of its own that wanders from week to week."""
    steps = np.where(np.arange(n_rows)[:, None] < 7, 3.0, 0.6) * rng.standard_normal((n_rows, rank))
    for row in range(7, n_rows):
        steps[row] += steps[row - 7]
    return steps


@pytest.mark.parametrize("seed", range(3))
def test_last_week_counts_as_far_as_it_did_in_the_past(seed):
    """Days that wander: most of the last week is repeated, and the forecast is as good as that. Other days: none."""
    rng = np.random.default_rng(seed)
    loadings = 30.0 * rng.standard_normal((40, 4))
    whole = growing_apart(42, rng)
    rows, prior, lam = row_posterior(whole[:35], loadings)
    found = rows_ahead(rows, prior, lam, np.arange(35.0), 35.0 + np.arange(7), (7,), ())
    error, last = (np.sqrt(np.mean((guess - whole[35:]) ** 2)) for guess in (found.mean, whole[28:35]))
    assert error < 1.1 * last
    alone = rng.standard_normal((35, 4))
    rows, prior, lam = row_posterior(alone, loadings)
    gram = rows_seen(rows, prior, lam).precision.mean(axis=0)
    assert best_repetition(rows_seen(rows, prior, lam), 7, (7,), gram)[1] < 0.2


def rows_seen(rows, prior, lam):
    precision = prior.likelihood(rows, lam, gaussian_rows)[0]
    precision = np.broadcast_to(precision, (rows.n_rows, *precision.shape[1:]))
    return Seen(rows.mean, rows.cov, precision, np.arange(float(rows.n_rows)), rows.n_rows, np.ones(rows.n_rows, bool))


def test_the_last_row_that_was_seen_and_is_as_expected_is_repeated():
    rng = np.random.default_rng(0)
    rows, prior, lam = row_posterior(growing_apart(21, rng), 30.0 * rng.standard_normal((40, 4)))
    seen = rows_seen(rows, prior, lam)
    regular = np.arange(21) != 18
    kept = np.arange(21) != 15
    seen = Seen(*(part[kept] for part in (seen.mean, seen.cov, seen.precision, seen.places)), 20, regular[kept])
    repeats, there = seen.repeated(21.0 + np.arange(9), 7)
    assert there.all()
    np.testing.assert_array_equal(repeats, rows.mean[[14, 8, 16, 17, 11, 19, 20, 14, 8]])


@pytest.mark.filterwarnings("ignore::brtf.FitWarning", "ignore::sklearn.exceptions.ConvergenceWarning")
class TestMisfit:
    """Fibres with a weekly pattern of their own beside a low-rank part."""

    @staticmethod
    def fitted(strength, seed=0, **options):
        rng = np.random.default_rng(seed)
        own = strength * rng.standard_normal((7, 30, 8))[np.arange(49) % 7]
        shared = np.einsum("tr,ir,kr->tik", 2 + wandering(49, 0.9, 2, rng), *(rng.random((n, 2)) for n in (30, 8)))
        whole = shared + own + 0.3 * rng.standard_normal(own.shape)
        known = np.where(rng.random((42, 30, 8)) < 0.1, np.nan, whole[:42])
        options = {"max_rank": 2, "arrangement": None, "link": None, **options}
        return BRTF(modes={0: "ordered"}, random_state=0, **options).fit(known), whole[42:]

    def test_what_repeats_itself_is_forecast(self):
        model, ahead = self.fitted(0.5)
        found, bare = model.forecast(7), model.forecast(7, of="low_rank")
        error, without = (np.sqrt(np.mean((one.mean - ahead) ** 2)) for one in (found, bare))
        assert error < 0.8 * without
        assert np.mean((found.low <= ahead) & (ahead <= found.high)) > 0.86

    def test_nothing_is_added_where_nothing_does(self):
        model, _ = self.fitted(0.0)
        assert misfit_ahead(model.result_, 0, np.arange(42), np.arange(42, 49), [7]) is None

    def test_links_and_later_periods(self):
        """Under a link the misfit is one of t(Y); beyond a period it goes on from what was forecast."""
        model, _ = self.fitted(0.5)
        long = misfit_ahead(model.result_, 0, np.arange(42), np.arange(42, 56), [7])
        assert np.abs(long.values[:7]).mean() > np.abs(long.values[7:]).mean() > 0
        rng = np.random.default_rng(0)
        coords = rng.integers([[42], [0], [0]], [[56], [30], [8]], (3, 50))
        np.testing.assert_array_equal(long.at(coords), long.values[tuple(coords - np.array([[42], [0], [0]]))])
        assert not long.at(np.zeros((3, 1), int)).any()
