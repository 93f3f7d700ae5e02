"""Fits with modes without negative loadings: as asked for, chosen by the bound, saved, resumed, streamed, merged."""

import numpy as np
import pytest
import xarray as xr
from sklearn.exceptions import ConvergenceWarning

import brtf
from brtf.inference.bound import bound
from brtf.inference.problem import Problem
from brtf.inference.trace import Kind
from brtf.io.checkpoint import Keeper
from brtf.model.generative import GenerativeModel, sample
from brtf.model.row_priors import NonNegative
from brtf.model.state import Prior

EVERY = {0: "nonnegative", 1: "nonnegative", 2: "nonnegative"}
SHAPE = (14, 30, 18)


def band(wavelength, centre, width):
    return np.exp(-0.5 * ((wavelength - centre) / width) ** 2)


def mixtures(seed, *, missing=0.2, spoiled=0.03, noise=0.01):
    """Concentrations × emission × excitation of three substances, some absent from some samples."""
    rng = np.random.default_rng(seed)
    emission, excitation = (
        np.column_stack([band(np.linspace(0, 1, n), rng.uniform(0.1, 0.9), rng.uniform(0.05, 0.15)) for _ in range(3)])
        for n in SHAPE[1:]
    )
    concentration = rng.uniform(0, 1, (SHAPE[0], 3)) * (rng.uniform(size=(SHAPE[0], 3)) < 0.7)
    truth = [concentration, emission, excitation]
    pure = np.einsum("ir,jr,kr->ijk", *truth)
    data = pure + noise * rng.standard_normal(SHAPE)
    data[rng.uniform(size=SHAPE) < spoiled] += 0.7
    data[rng.uniform(size=SHAPE) < missing] = np.nan
    return data, pure, truth


def model(**options):
    plain = {"link": None, "arrangement": None, "modes": "auto"}
    return brtf.BRTF(**{"random_state": 0, **plain, **options})


def modes_without_negative(fitted):
    return tuple(m for m, prior in enumerate(fitted.result_.state.row_priors) if isinstance(prior, NonNegative))


@pytest.fixture(scope="module")
def asked():
    data, pure, truth = mixtures(1)
    return data, pure, truth, model(modes=EVERY).fit(data)


def test_spectra_are_recovered_and_never_negative(asked):
    data, pure, truth, fitted = asked
    assert fitted.rank_ == 3
    assert modes_without_negative(fitted) == (0, 1, 2)
    assert all((factor > 0).all() for factor in fitted.factors_)
    assert max(brtf.metrics.fme_per_mode(fitted.factors_, truth)) < 0.05
    plain = model(modes=None).fit(data)
    assert modes_without_negative(plain) == ()
    assert min(factor.min() for factor in plain.factors_) < 0
    assert fitted.bound_ > plain.bound_
    error, other = (brtf.metrics.rrse(m.low_rank(), pure) for m in (fitted, plain))
    assert error < 1.1 * other


def test_rows_and_prior_say_the_same(asked):
    """Means and variances are those of the truncated normals, after all moves, extrapolations and changes of scale."""
    state = asked[-1].result_.state
    for rows, prior in zip(state.factors, state.row_priors, strict=True):
        np.testing.assert_allclose(prior.rows.mean, rows.mean, rtol=1e-9)
        np.testing.assert_allclose(prior.rows.variances, rows.variances, rtol=1e-9)
        assert not np.abs(rows.cov[:, ~np.eye(3, dtype=bool)]).any()


def test_bound_of_the_result_is_that_of_its_state(asked):
    *_, fitted = asked
    result = fitted.result_
    problem = Problem(result.observations, (0, 1, 2), collapsed=True)
    assert bound(problem, result.state).total == pytest.approx(result.trace[-1].bound, rel=1e-9)


@pytest.mark.parametrize("seed", [2, 3])
def test_some_modes_and_not_others(seed):
    data, pure, _ = mixtures(seed)
    data[5:] *= -1.0  # concentrations of either sign
    pure[5:] *= -1.0
    fitted = model(modes={1: "nonnegative"}).fit(data)
    assert fitted.rank_ == 3
    assert (fitted.factors_[1] > 0).all()
    assert 0 not in modes_without_negative(fitted)
    assert brtf.metrics.rrse(fitted.low_rank(), pure) < 0.05
    largest = fitted.factors_[0][np.argmax(np.abs(fitted.factors_[0]), axis=0), np.arange(3)]
    assert 2 in modes_without_negative(fitted) or (largest > 0).all()


def test_the_bound_chooses_it_where_loadings_have_one_sign():
    data, *_ = mixtures(1)
    chosen = model().fit(data)
    assert modes_without_negative(chosen)
    told = [record.event for record in chosen.result_.trace if record.event.kind is Kind.NON_NEGATIVE]
    assert any(event.accepted and event.gain > 1.0 for event in told)


@pytest.mark.parametrize("seed", range(3))
def test_it_is_not_even_tried_where_loadings_have_either(seed):
    data = brtf.datasets.synthetic((20, 15, 12), 3, outliers=0.05, missing=0.2, seed=seed).observed
    fitted = model().fit(data)
    assert not any("without negative" in record.event.words for record in fitted.result_.trace)


def test_a_mode_of_which_something_else_is_said_is_left_alone():
    data, *_ = mixtures(1)
    assert modes_without_negative(model(modes=dict.fromkeys(range(3), "unordered")).fit(data)) == ()


def test_a_mode_that_must_be_non_negative_is_even_where_data_say_otherwise():
    data = brtf.datasets.synthetic((20, 15, 12), 2, seed=0).observed
    hurried, fitted = (model(modes={-1: "nonnegative"}, max_sweeps=sweeps) for sweeps in (1, 500))
    with pytest.warns(ConvergenceWarning):
        hurried.fit(data)
    fitted.fit(data)
    for one in (hurried, fitted):
        assert modes_without_negative(one) == (2,)
        assert (one.factors_[2] > 0).all()


def test_layouts_agree():
    data, *_ = mixtures(4)
    seen = ~np.isnan(data)
    listed = brtf.Observations.from_coords(np.stack(np.nonzero(seen)), data[seen], data.shape)
    bounds = [model(modes={1: "nonnegative"}).fit(one).bound_ for one in (data, np.asfortranarray(data), listed)]
    np.testing.assert_allclose(bounds, bounds[0], rtol=1e-6)


def test_modes_by_name():
    data, *_ = mixtures(1)
    named = xr.DataArray(data, dims=("sample", "emission", "excitation"))
    fitted = model(modes={"emission": ("nonnegative",)}).fit(named)
    assert 1 in modes_without_negative(fitted)
    with pytest.raises(ValueError, match="modes names 'colour', but Y has the modes 'sample', 'emission', 'exc"):
        model(modes={"colour": "nonnegative"}).fit(named)
    with pytest.raises(ValueError, match="the modes of Y have no names"):
        model(modes={"colour": "nonnegative"}).fit(data)


@pytest.mark.parametrize(
    ("modes", "message"),
    [
        ({3: "nonnegative"}, "modes must be different modes of a tensor of order 3"),
        ({0: "nonnegative", -3: "unordered"}, "modes must be different modes"),
        ({0: "positive"}, 'modes must be None, "auto" or a dictionary'),
        ({0: ()}, "modes must be None"),
        ({True: "nonnegative"}, "modes must be None"),
        ("nonnegative", "modes must be None"),
        ([1], "modes must be None"),
    ],
)
def test_what_cannot_be_said_of_modes(modes, message):
    with pytest.raises(ValueError, match=message):
        model(modes=modes).fit(np.arange(24.0).reshape(2, 3, 4))


def test_the_paper_has_no_such_modes():
    with pytest.raises(ValueError, match='modes needs inference="calibrated"'):
        brtf.BRTF(inference="paper", modes=EVERY).fit(np.ones((3, 3)))


@pytest.mark.filterwarnings("ignore:Stopped after max_sweeps")  # one merged row for every pair settles slowly
def test_merged_modes_cannot_be_spoken_of():
    data, *_ = mixtures(1)
    with pytest.raises(ValueError, match="does not go with arrangement"):
        brtf.BRTF(modes={1: "nonnegative"}, arrangement=((0,), (1, 2)), random_state=0).fit(data)
    fitted = brtf.BRTF(modes={0: "nonnegative"}, arrangement=((0,), (1, 2)), random_state=0).fit(data)
    assert 0 in modes_without_negative(fitted)


def test_saved_and_loaded(asked, tmp_path):
    data, *_, fitted = asked
    fitted.save(tmp_path / "m.brtf")
    loaded = brtf.load(tmp_path / "m.brtf")
    assert loaded.result_.settings == fitted.result_.settings
    for found, wanted in zip(loaded.result_.state.row_priors, fitted.result_.state.row_priors, strict=True):
        np.testing.assert_array_equal(found.location, wanted.location)
        np.testing.assert_array_equal(found.precision, wanted.precision)
    for found, wanted in zip(
        loaded.transform(data[:3], return_std=True), fitted.transform(data[:3], True), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


def test_resumed_to_the_same_digits(asked, tmp_path, monkeypatch):
    data, *_, fitted = asked
    keep, path, seen = Keeper.keep, tmp_path / "c.brtf", []

    def interrupted(keeper, moment):
        keep(keeper, moment)
        seen.append(moment)
        if len(seen) == 40:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Keeper, "keep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model(modes=EVERY).fit(data, checkpoint=path, every=1e9)
    resumed = model(modes=EVERY).fit(data, resume=path)
    assert [record.bound for record in resumed.result_.trace] == [record.bound for record in fitted.result_.trace]
    with pytest.raises(ValueError, match="was made with modes="):
        model(modes=None).fit(data, resume=path)


def test_new_rows_are_not_negative_either(asked):
    data, _, _, fitted = asked
    new, std = fitted.transform(data[:4], return_std=True)
    assert (new > 0).all() and (std > 0).all()
    np.testing.assert_allclose(new, fitted.factors_[0][:4], rtol=0.1, atol=0.02)


def test_streamed():
    data, pure, _ = mixtures(1)
    fitted = model(modes=EVERY, noise="common").fit(data[:10])
    before = fitted.factors_[0].copy()
    fitted.partial_fit(data[10:])
    assert fitted.factors_[0].shape == (14, fitted.rank_)
    np.testing.assert_allclose(fitted.factors_[0][:10], before, rtol=1e-9)
    assert all((factor > 0).all() for factor in fitted.factors_)
    assert brtf.metrics.rrse(fitted.low_rank()[10:], pure[10:]) < 0.05


@pytest.mark.parametrize("seed", range(2))
def test_intervals_cover_what_the_model_draws(seed):
    """Loadings from the prior itself: intervals of the low-rank part hold it."""
    rng = np.random.default_rng(seed)
    drawing = GenerativeModel(2, Prior(20.0, 20.0, 200.0, 10.0), nonnegative_modes=(0, 1, 2))
    truth, data = sample(drawing, (25, 20, 15), rng)
    data[rng.uniform(size=data.shape) < 0.3] = np.nan
    fitted = model(modes=EVERY).fit(data)
    assert fitted.rank_ == 2
    low, high = fitted.predict_interval()
    assert 0.9 < brtf.metrics.coverage(low, high, truth.low_rank) < 0.99
