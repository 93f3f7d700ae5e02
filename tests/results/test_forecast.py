"""Forecasts: rows beyond the last one, bands that cover what comes, labels that continue, files."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import brtf
from brtf.cli import main
from brtf.data.positions import Positions, continued
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.row_priors import Ordered
from brtf.model.row_priors.chain_kinds import carriers_of, courses, memories

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


@pytest.mark.parametrize("carriers", [carriers_of([]), carriers_of([4])[:1]])
def test_rows_ahead_have_the_moments_of_draws(carriers):
    """Of kinds, centres, λ, the last row and the noise of the steps."""
    rng, n_draws, n_ahead = np.random.default_rng(0), 400_000, 4
    rows = RowGaussians(rng.standard_normal((6, 1)), np.full((6, 1, 1), 0.2))
    lam, share = Gamma(np.array([30.0]), np.array([20.0])), np.array([[0.2, 0.5, 0.3]])
    if len(carriers):
        share = np.hstack([0.4 * share, 0.6 * share])
    prior = Ordered.begun(rows, lam, np.ones(5), share, np.arange(6) % 2, carriers)
    found = prior.ahead(rows, lam, n_ahead)
    kind = rng.choice(share.size, n_draws, p=share[0])
    phi, along = np.exp(memories(3))[kind % 3], courses(carriers, np.arange(5.0, 10.0))[kind // 3]
    centre = rng.multivariate_normal(prior.centre[0], prior.centre_cov[0], n_draws)
    scale = rng.gamma(30.0, 1 / 20.0, n_draws) ** -0.5
    now = rows.mean[-1, 0] + np.sqrt(0.2) * rng.standard_normal(n_draws) - centre[:, 1]
    for h in range(n_ahead):
        now = phi * now / along[:, h] + scale * np.sqrt(1.0 - phi**2) * rng.standard_normal(n_draws)
        now *= along[:, h + 1]
        drawn = centre[:, h % 2] + now
        assert found.mean[h, 0] == pytest.approx(drawn.mean(), abs=5 * drawn.std() / np.sqrt(n_draws))
        assert found.cov[h, 0, 0] == pytest.approx(drawn.var(), rel=0.01)


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
    noise = model.noise_variance_
    np.testing.assert_allclose(spread[-1], noise + smooth.variances * model.result_.scale**2, rtol=0.05)


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
    with pytest.raises(ValueError, match="No mode is in order"):
        plain.forecast(3)


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
