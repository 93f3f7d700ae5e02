"""Fits whose outliers hang together: what they say afterwards, what a file keeps of them, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import trapezoid
from sklearn.exceptions import ConvergenceWarning

import oracle
from brtf import BRTF, FitWarning, Observations, load
from brtf.data.arrangement import Arrangement
from brtf.data.observe import observe
from brtf.data.plan import Plan
from brtf.inference.trace import Record, StopReason
from brtf.io.archive import pack, unpack
from brtf.io.storage import CorruptFile, write_archive
from brtf.metrics import f_measure, rrse
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.links import IDENTITY, SquareRoot
from brtf.model.settings import Settings
from brtf.model.state import OutlierStructure, Prior, ReplacementLaw, Sides, SliceNoise, SliceRates, State
from brtf.results.result import Result

SHAPE = (16, 10, 6)


def make(kind):
    """Data of rank 2 with noise .1, which of their entries are outliers, and the options that say how these hang."""
    rng = np.random.default_rng(0)
    low_rank = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((length, 2)) for length in SHAPE))
    low_rank /= low_rank.std()
    data = low_rank + 0.1 * rng.standard_normal(SHAPE)
    if kind == "shared":
        hit = np.broadcast_to(rng.random((16, 10, 1)) < 0.1, SHAPE)
        return low_rank, hit, data + hit * rng.uniform(-1, 1, SHAPE), {"outlier_modes": (-1,)}
    if kind == "rates":
        hit = np.zeros(SHAPE, dtype=bool)
        hit[:3] = rng.random((3, 10, 6)) < 0.4
        return low_rank, hit, data + hit * rng.uniform(-8, 8, SHAPE), {"noise": "per-slice"}
    if kind == "labels":
        labels = rng.integers(3, 6, (1, 10, 6))
        hit = rng.random(SHAPE) < np.array([0.0, 0.4, 0.1])[labels - 3]
        return low_rank, hit, data + hit * rng.uniform(-8, 8, SHAPE), {"outlier_labels": labels}
    hit = np.zeros(SHAPE, dtype=bool)
    hit[:, 2], hit[:, 7] = rng.random((16, 6)) < 0.7, rng.random((16, 6)) < 0.5
    options = {"outlier_kind": "replacement"}
    if kind == "replaced, slices":
        options |= {"noise": "per-slice", "noise_modes": (2,)}
    return low_rank, hit, np.where(hit, 0.3, data), options


KINDS = ("shared", "rates", "labels", "replaced", "replaced, slices")
TRUTH = {kind: make(kind) for kind in KINDS}


@pytest.fixture(scope="module", params=KINDS)
def fit(request):
    low_rank, hit, data, options = TRUTH[request.param]
    return request.param, low_rank, hit, data, BRTF(3, random_state=0, **options).fit(data)


def test_the_structure_is_found(fit):
    kind, low_rank, hit, _, model = fit
    labels = model.outlier_labels
    structure = model.result_.state.structure
    assert model.converged_
    assert model.rank_ == 2
    # Twice what 260 parameters of 960 entries cost at noise .1.
    assert rrse(model.low_rank(), low_rank) < 0.06
    assert f_measure(model.outlier_probability() > 0.5, hit) > 0.9
    assert model.outlier_rate_ == pytest.approx(hit.mean(), abs=0.03)
    assert structure.modes == ((2,) if kind == "shared" else ())
    assert (structure.law is not None) == kind.startswith("replaced")
    assert (structure.rates is not None) == (kind in ("rates", "labels"))
    if kind == "labels":
        rates = [model.outlier_rates_[labels == label] for label in range(3, 6)]
        np.testing.assert_allclose([rate.mean() for rate in rates], [0.0, 0.4, 0.1], atol=0.05)
        assert all(np.ptp(rate) == 0.0 for rate in rates)
    assert np.mean(model.noise_variances_) == pytest.approx(0.01, rel=0.15)


def test_the_structure_is_worth_it(fit):
    """Shared outliers no larger than a few times the noise, and a sensor stuck within the range of its data."""
    kind, low_rank, hit, data, model = fit
    if kind not in ("shared", "replaced"):
        return
    plain = BRTF(3, random_state=0, outlier_kind="additive").fit(data)
    found, other = (f_measure(fitted.outlier_probability() > 0.5, hit) for fitted in (model, plain))
    assert found > other + 0.15
    errors = [rrse(fitted.low_rank(), low_rank) for fitted in (model, plain)]
    assert errors[0] < (0.95 if kind == "shared" else 0.3) * errors[1]


def test_outliers_and_what_is_left_without_them(fit):
    kind, _, _, data, model = fit
    probability, outliers = model.outlier_probability(), model.outliers()
    assert probability.shape == outliers.shape == SHAPE
    assert np.all((probability >= 0) & (probability <= 1))
    cleaned = model.impute(replace_outliers=True)
    np.testing.assert_allclose(cleaned, data - outliers, atol=1e-12)
    if kind == "shared":  # all of a group, or none
        np.testing.assert_allclose(np.ptp(probability, axis=2), 0.0, atol=1e-12)
    if kind.startswith("replaced"):  # what stands in place of an entry says nothing about it
        np.testing.assert_allclose(outliers, probability * (data - model.low_rank()), atol=1e-10)
        sure = probability > 1 - 1e-9
        np.testing.assert_allclose(cleaned[sure], model.low_rank()[sure], atol=1e-6)
    np.testing.assert_array_equal(model.impute(), data)


def test_intervals_hold_new_observations(fit):
    _, low_rank, hit, data, model = fit
    low, high = model.predict_interval(level=0.9)
    assert np.mean((low <= low_rank) & (low_rank <= high)) > 0.8
    clean = low_rank + 0.1 * np.random.default_rng(1).standard_normal(SHAPE)
    new = np.where(hit, data, clean)
    low, high = model.predict_interval(level=0.9, of="observation")
    # Intervals know the overall share of outliers only: they are as wide as to hold enough of all entries together.
    assert np.mean((low <= new) & (new <= high)) > 0.87
    mean, std = model.predict(return_std=True, of="observation")
    assert np.all(std > 0.09)
    coords = np.array([[0, 5], [2, 3], [1, 4]])
    at_entries = np.array(model.predict_interval(coords, of="observation"))
    everywhere = np.array(model.predict_interval(of="observation"))[(slice(None), *coords)]
    np.testing.assert_allclose(at_entries, everywhere, rtol=1e-5)
    np.testing.assert_allclose(model.predict(coords), mean[tuple(coords)], rtol=1e-12)


def test_draws_follow_the_density(fit):
    kind, _, _, data, model = fit
    coords = np.array([[4, 9], [2, 5], [1, 3]])
    draws = model.sample(4000, coords, random_state=0)
    assert draws.shape == (4000, 2)
    low, high = model.predict_interval(coords, level=0.8, of="observation")
    inside = np.mean((draws >= low) & (draws <= high), axis=0)
    # The interval of replaced values takes their law as flat about the centre.
    np.testing.assert_allclose(inside, 0.8, atol=0.03 if not kind.startswith("replaced") else 0.1)
    structure = model.result_.state.structure
    if structure.law is not None:
        stuck = np.abs(draws - 0.3) < np.ptp(data) / structure.law.density.size
        # 460 of 4000 are replaced, give or take 20, almost all of them within a bin of .3.
        assert np.all(np.mean(stuck, axis=0) > 0.8 * model.result_.state.local.probability)
    same = model.sample(3, coords, random_state=7)
    np.testing.assert_array_equal(model.sample(3, coords, random_state=7), same)
    of_low_rank = model.sample(500, coords, of="low_rank", random_state=1)
    np.testing.assert_allclose(of_low_rank.mean(axis=0), model.predict(coords), atol=0.02)


def test_scores_prefer_data_of_the_same_kind(fit):
    _, low_rank, hit, data, model = fit
    clean = low_rank + 0.1 * np.random.default_rng(2).standard_normal(SHAPE)
    assert model.score(np.where(hit, data, clean)) > model.score(clean + 1.0) + 1.0
    assert np.isfinite(model.score(data * 1e6))


def test_new_rows_are_folded_in(fit):
    _, low_rank, _, data, model = fit
    loadings, std = model.transform(data, return_std=True)
    # All else held, the same rows are found again, to within their own uncertainty: noise of slices of the first mode,
    # and outlier rates there, are those of a typical slice.
    difference = np.abs(loadings - model.factors_[0])
    assert np.quantile(difference / std, 0.9) < 1.5
    found = np.einsum("ir,jr,kr->ijk", loadings, *model.factors_[1:])
    assert rrse(found, low_rank) < 0.08
    # Each row on its own, however many there are; sweeps end when no row moves by more than 1e-8.
    np.testing.assert_allclose(model.transform(data[:1]), loadings[:1], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(model.transform(np.tile(data, (2, 1, 1)))[16:], loadings, rtol=1e-4, atol=1e-6)


# ---- densities ----------------------------------------------------------------------------------------------


GRID = np.concatenate(
    [-np.geomspace(1e4, 30.0, 1500), np.linspace(-30.0, 30.0, 9001)[1:-1], np.geomspace(30.0, 1e4, 1500)]
)
"""Values at which a density is added up: half a percent apart where it may have steps or peaks."""


def by_hand(structure, kind, values, *, scale=1.0, link=IDENTITY, **settings):
    """The result of a fit that found ones everywhere, in two slices of different noise."""
    observations = replace(observe(values), scale=scale)
    state = State(
        prior=Prior(),
        factors=tuple(RowGaussians(np.ones((length, 1)), np.full((1, 1, 1), 1e-3)) for length in values.shape),
        lam=Gamma(np.ones(1), np.ones(1)),
        tau=Gamma(np.asarray(500.0), np.asarray(5.0)),
        local=kind(0.15, 4.0, 60.0),
        slices=SliceNoise((0,), Gamma(np.array([200.0, 200.0]), np.array([400.0, 100.0])), 5.0),
        structure=structure,
    )
    trace = (Record(1, 0.0, 1, 0.1),)
    return Result(
        observations,
        state,
        trace,
        StopReason.CONVERGED,
        Settings(**settings),
        0.0,
        "0",
        link,
        Arrangement.as_given(observations.order),
    )


LAW = ReplacementLaw(-3.0, 5.0, np.full(256, 1.0 / 8.0))
RATES = SliceRates((0,), np.array([1.0, 2.0]), np.array([5.0, 9.0]), (1.0, 7.0))
LABELLED = replace(RATES, labels=np.array([1, 0]))


@pytest.mark.parametrize("kind", oracle.SLABS)
@pytest.mark.parametrize(
    "structure",
    [
        OutlierStructure((1,), 1.3),
        OutlierStructure(law=LAW),
        OutlierStructure(rates=RATES),
        OutlierStructure(rates=LABELLED),
        OutlierStructure(sides=Sides(9.0, 2.0)),
        OutlierStructure(rates=RATES, sides=Sides(2.0, 9.0)),
    ],
    ids=["shared", "replaced", "rates", "rates of labels", "sides", "sides at rates"],
)
def test_the_predictive_density_has_mass_one(structure, kind):
    """∫ p(y) dy = 1 in either slice; every column of this matrix is one point of the integral."""
    result = by_hand(structure, kind, np.stack([GRID, GRID]), scale=2.0)
    density = np.exp(result.log_density(result.observations)).reshape(2, -1)
    # The tails beyond hold 1e-4 of a Student-t of four degrees of freedom; the trapezoidal rule is right to 1e-3 here.
    np.testing.assert_allclose(trapezoid(density, GRID, axis=1), 1.0, atol=3e-3)


@pytest.mark.parametrize("of_slices", [(0.5, 2.0), (0.1, 30.0)])
def test_intervals_of_replaced_values_do_not_depend_on_the_noise_of_their_slice(of_slices):
    """A value that stands for anything is as far off in a quiet slice as in a noisy one."""
    result = by_hand(OutlierStructure(law=LAW), oracle.SLABS[1], np.ones((2, 3000)), scale=2.0)
    precision = Gamma(np.full(2, 200.0), 200.0 / np.array(of_slices))
    result = replace(result, state=replace(result.state, slices=replace(result.state.slices, precision=precision)))
    draws = result.sample(1, np.random.default_rng(5))[0]
    for level in (0.8, 0.9, 0.95):
        low, high = result.interval(level=level, of="observation")
        # 3000 draws: a standard error of .007. Wider than need be, as replaced values are taken to be off either way.
        assert np.all(np.mean((low <= draws) & (draws <= high), axis=1) > level - 0.02)
        assert np.all(high - low < 4.0 * 8.0)
    std = result.std(of="observation")[:, 0]
    assert np.all(std > draws.std(axis=1))
    assert np.all(std < 3.0 * draws.std(axis=1))


def test_the_density_of_replaced_roots_has_one_branch():
    """With link="sqrt" z and −z give one y, but no replaced value is negative: p(y) = π h(√y) / 2√y far off."""
    law = ReplacementLaw(0.5, 4.5, np.full(256, 0.25))
    values = np.array([[1.0, 16.0, 9.0], [1.0, 16.0, 9.0]])
    result = by_hand(OutlierStructure(law=law), oracle.SLABS[0], values, link=SquareRoot())
    found = np.exp(result.log_density(result.observations)).reshape(2, 3)[:, 1]
    np.testing.assert_allclose(found, 0.15 * 0.25 / (2 * 4.0), rtol=1e-6)


# ---- files -------------------------------------------------------------------------------------------------


def test_a_file_keeps_everything(fit, tmp_path):
    _, _, _, data, model = fit
    model.save(tmp_path / "fit.brtf")
    again = load(tmp_path / "fit.brtf")
    assert again.get_params()["outlier_kind"] == model.outlier_kind
    ours, theirs = again.result_.state.structure, model.result_.state.structure
    assert (ours.modes, ours.n_channels) == (theirs.modes, theirs.n_channels)
    if theirs.law is not None:
        assert (ours.law.lowest, ours.law.highest) == (theirs.law.lowest, theirs.law.highest)
        np.testing.assert_array_equal(ours.law.density, theirs.law.density)
    np.testing.assert_array_equal(again.outlier_labels, model.outlier_labels)
    np.testing.assert_array_equal(again.outlier_rates_, model.outlier_rates_)
    if theirs.rates is not None:
        np.testing.assert_array_equal(ours.rates.labels, theirs.rates.labels)
        assert (ours.rates.modes, ours.rates.prior) == (theirs.rates.modes, theirs.rates.prior)
        np.testing.assert_array_equal(ours.rates.outlying, theirs.rates.outlying)
        np.testing.assert_array_equal(ours.rates.regular, theirs.rates.regular)
    for ask in ("outlier_probability", "outliers", "low_rank", "predict_interval", "impute"):
        np.testing.assert_array_equal(getattr(again, ask)(), getattr(model, ask)())
    assert again.score(data) == model.score(data)
    np.testing.assert_array_equal(again.sample(2, random_state=0), model.sample(2, random_state=0))
    np.testing.assert_array_equal(again.transform(data[:2]), model.transform(data[:2]))
    again.save(tmp_path / "again.brtf")
    assert (tmp_path / "again.brtf").read_bytes() == (tmp_path / "fit.brtf").read_bytes()


@pytest.fixture(scope="module")
def packed():
    """A result with everything a structure can have, but for modes: law and rates."""
    values = np.random.default_rng(4).uniform(-3.0, 5.0, (2, 7, 3))
    return pack(by_hand(OutlierStructure(law=LAW, rates=RATES), oracle.SLABS[0], values))


def broken(packed, structure=None, arrays=None, **header):
    """The same with other content; what is ... or None is left out."""
    head, given = packed
    changed = {**head["structure"], **(structure or {})}
    head = {**head, "structure": {k: v for k, v in changed.items() if v is not ...}, **header}
    given = {**given, **(arrays or {})}
    return {k: v for k, v in head.items() if v is not ...}, {k: v for k, v in given.items() if v is not None}


HOSTILE = {
    "unknown modes": {"structure": {"modes": [3]}},
    "negative modes": {"structure": {"modes": [-1]}},
    "modes twice": {"structure": {"modes": [1, 1]}},
    "modes that are text": {"structure": {"modes": "ab"}},
    "all modes shared": {"structure": {"modes": [0, 1, 2], "rate_modes": ...}},
    "modes and rates": {"structure": {"modes": [1]}},
    "too few channels": {"structure": {"n_channels": 0.5}},
    "endless channels": {"structure": {"n_channels": 1e400}},
    "a range of nothing": {"structure": {"range": [1.0, 1.0]}},
    "a range upside down": {"structure": {"range": [2.0, 1.0]}},
    "an endless range": {"structure": {"range": [-1e308, 1e308]}},
    "half a range": {"structure": {"range": [1.0]}},
    "a law of nothing": {"arrays": {"structure.law": np.zeros(0)}},
    "a law with zeros": {"arrays": {"structure.law": np.zeros(256)}},
    "a law that is NaN": {"arrays": {"structure.law": np.full(256, np.nan)}},
    "a law of integers": {"arrays": {"structure.law": np.ones(256, dtype=int)}},
    "a law of two axes": {"arrays": {"structure.law": np.ones((2, 128))}},
    "no law": {"arrays": {"structure.law": None}},
    "rates of no mode": {"structure": {"rate_modes": []}},
    "rates of another mode": {"structure": {"rate_modes": [1]}},
    "negative rates": {"arrays": {"structure.outlying": -np.ones(2)}},
    "no regular rates": {"arrays": {"structure.regular": None}},
    "too few rates": {"arrays": {"structure.regular": np.ones(1)}},
    "labels of other rates": {"arrays": {"structure.labels": np.array([0, 2])}},
    "labels for one slice": {"arrays": {"structure.labels": np.array([1])}},
    "labels below zero": {"arrays": {"structure.labels": np.array([-1, 1])}},
    "labels that are no integers": {"arrays": {"structure.labels": np.array([0.0, 1.0])}},
    "a prior of zero": {"structure": {"rate_prior": [0.0, 1.0]}},
    "half a prior": {"structure": {"rate_prior": [1.0]}},
    "sides of replaced values": {"structure": {"sides": [2.0, 3.0]}},
    "less than no outliers on a side": {"structure": {"range": ..., "sides": [0.5, 3.0]}},
    "half of the sides": {"structure": {"range": ..., "sides": [2.0]}},
    "sides that are text": {"structure": {"range": ..., "sides": "ab"}},
    "no channels": {"structure": {"n_channels": None}},
    "a structure that is a number": {"header": 5},
    "no local model": {"local_model": ...},
}


def test_sides_without_a_law_are_read_again(packed):
    result = unpack(*broken(packed, structure={"range": ..., "sides": [2.0, 3.0]}))
    assert result.state.structure.sides.mean == 0.4


def test_labels_of_rates_are_read_again(packed):
    labels = np.array([1, 0])
    rates = unpack(*broken(packed, arrays={"structure.labels": labels})).state.structure.rates
    np.testing.assert_array_equal(rates.labels, labels)


def test_what_was_packed_is_read_again(packed):
    result = unpack(*broken(packed))
    assert result.state.structure.rates.modes == (0,)
    assert result.state.structure.law.density.size == 256
    assert np.all(np.isfinite(result.outlier_probability_at_entries()))


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused(packed, kind, tmp_path):
    changes = dict(HOSTILE[kind])
    if "header" in changes:
        changes = {"structure": None}
        header, arrays = packed
        header = {**header, "structure": 5}
    else:
        header, arrays = broken(packed, **changes)
    if kind == "endless channels":
        header["structure"]["n_channels"] = "inf"  # JSON has no infinity
    write_archive(tmp_path / "bad.brtf", header, arrays)
    with pytest.raises(CorruptFile, match="is not a result of brtf: its content does not fit"):
        load(tmp_path / "bad.brtf")


# ---- what is refused ---------------------------------------------------------------------------------------


LABELS = np.eye(4, 5, dtype=int)[None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outlier_modes": (0, 1, 2)}, "outlier_modes must leave out at least one mode"),
        ({"outlier_modes": (3,)}, r"outlier_modes must be different modes of a tensor of order 3, got \(3,\)"),
        ({"outlier_modes": (-4,)}, "outlier_modes must be different modes"),
        ({"outlier_modes": (1, 1)}, "outlier_modes must be different modes"),
        ({"outlier_modes": (1, -2)}, "outlier_modes must be different modes"),
        ({"outlier_modes": ()}, r"outlier_modes must be None or a list of modes, got \(\)"),
        ({"outlier_modes": 2}, "outlier_modes must be None or a list of modes, got 2"),
        ({"outlier_modes": "01"}, "outlier_modes must be None or a list of modes, got '01'"),
        ({"outlier_modes": (1.0,)}, "outlier_modes must be None or a list of modes"),
        ({"outlier_modes": (True,)}, "outlier_modes must be None or a list of modes"),
        ({"noise": "per-slice", "noise_modes": 1}, "noise_modes must be None or a list of modes, got 1"),
        ({"outlier_modes": (1,), "robust": False}, "outlier_modes, outlier_labels and outlier_kind need robust=True"),
        ({"outlier_kind": "replacement", "robust": False}, "need robust=True"),
        ({"outlier_modes": (1,), "inference": "paper"}, 'need inference="calibrated"'),
        ({"outlier_kind": "replacement", "inference": "paper"}, 'need inference="calibrated"'),
        ({"outlier_labels": np.ones((1, 4, 5), int)}, "outlier_labels must be .* not all equal"),
        ({"outlier_labels": -np.eye(4, 5, dtype=int)[None]}, "outlier_labels must be .* integers of at least 0"),
        ({"outlier_labels": np.eye(4, 5)[None]}, "outlier_labels must be .* integers"),
        ({"outlier_labels": "diagonal"}, "outlier_labels must be .* integers"),
        (
            {"outlier_labels": np.eye(4, 5, dtype=int)},
            r"outlier_labels must have the shape of Y, \(3, 4, 5\),.*got \(4, 5",
        ),
        (
            {"outlier_labels": np.eye(5, 4, dtype=int)[None]},
            r"outlier_labels must have the shape of Y.*got \(1, 5, 4\)",
        ),
        ({"outlier_labels": LABELS, "outlier_modes": (0,)}, "outlier_labels needs outliers each on its own"),
        ({"outlier_labels": LABELS, "robust": False}, "outlier_labels and outlier_kind need robust=True"),
        ({"outlier_labels": LABELS, "inference": "paper"}, 'need inference="calibrated"'),
        (
            {"outlier_labels": LABELS, "arrangement": ((0, 1), (2,))},
            "outlier_labels of shape .* not go with arrangement",
        ),
        ({"outlier_kind": "both"}, "outlier_kind must be one of .*'one-sided', 'replacement'.*got 'both'"),
        ({"outlier_kind": None}, "outlier_kind must be one of"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        BRTF(**options).fit(np.arange(60.0).reshape(3, 4, 5))


def test_any_sequence_of_modes_will_do():
    for modes in ([2], (2,), np.array([2]), range(2, 3), (-1,)):
        with pytest.warns(ConvergenceWarning):
            model = BRTF(outlier_modes=modes, random_state=0, max_sweeps=1).fit(np.arange(60.0).reshape(3, 4, 5))
        assert model.result_.settings.shared_modes(3) == (2,)


def test_partial_fit_is_refused(fit):
    kind, _, _, data, model = fit
    if kind == "labels":
        with pytest.raises(ValueError, match="partial_fit has outliers of one rate, got outlier_labels"):
            BRTF(outlier_labels=model.outlier_labels).partial_fit(data)
    reason = "one noise level" if model.noise_ == "per-slice" else "outliers each on its own"
    with pytest.raises(ValueError, match=f"partial_fit needs {reason}"):
        model.partial_fit(data)


# ---- labels ------------------------------------------------------------------------------------------------


class TestLabels:
    """Labels say which entries have one outlier rate; what else is said of the data does not matter."""

    LOW_RANK, HIT, DATA, OPTIONS = TRUTH["labels"]

    def fit(self, labels=None, **options):
        labels = self.OPTIONS["outlier_labels"] if labels is None else labels
        return BRTF(3, random_state=0, outlier_labels=labels, **options)

    def test_only_their_partition_counts(self):
        labels = self.OPTIONS["outlier_labels"]
        whole = np.broadcast_to(labels, SHAPE)
        first, second, third = (
            self.fit(given, max_sweeps=60).fit(self.DATA) for given in (labels, 9 - labels, whole.astype(np.uint8))
        )
        for other in (second, third):  # the prior of the rates comes from an optimiser that ends at a gain of 1e-9
            assert other.bound_ == pytest.approx(first.bound_, abs=1e-3)
            np.testing.assert_allclose(
                np.broadcast_to(other.outlier_rates_, SHAPE)[:1], first.outlier_rates_, rtol=1e-3
            )

    def test_a_list_and_a_mask_will_do(self):
        mask = self.OPTIONS["outlier_labels"] == 4
        listed, masked = (self.fit(given, max_sweeps=30).fit(self.DATA) for given in (mask.tolist(), mask))
        assert listed.bound_ == masked.bound_
        assert np.unique(masked.outlier_rates_).size == 2

    def test_are_kept_where_they_do_not_pay(self):
        labels = np.random.default_rng(5).integers(0, 4, (1, 10, 6))
        model = self.fit(labels).fit(self.DATA)
        assert model.result_.state.structure.rates.labels.size == 60
        assert model.bound_ < BRTF(3, random_state=0).fit(self.DATA).bound_ + 50.0

    @pytest.mark.parametrize(
        ("arrangement", "labels"),
        [
            (((0,), (1, 2)), OPTIONS["outlier_labels"]),
            (((0, 2), (1,)), np.random.default_rng(2).integers(0, 2, (16, 1, 6))),
            ({0: 5}, np.arange(16).reshape(-1, 1, 1) % 5 // 4),
            ({0: 5}, OPTIONS["outlier_labels"]),
        ],
        ids=["merged", "merged, not neighbours", "folded along", "folded beside"],
    )
    @pytest.mark.filterwarnings("ignore::brtf.FitWarning")  # folding does not suit these data
    def test_modes_read_otherwise(self, arrangement, labels):
        model = self.fit(labels, arrangement=arrangement).fit(self.DATA)
        rates, numbers = model.outlier_rates_, np.unique(labels, return_inverse=True)[1].reshape(labels.shape)
        rates = np.broadcast_to(rates, np.broadcast_shapes(rates.shape, labels.shape))
        numbers = np.broadcast_to(numbers, rates.shape)
        expected = model.outlier_probability()
        for label in range(int(numbers.max()) + 1):
            (rate,) = np.unique(rates[numbers == label])
            of_label = np.broadcast_to(labels == np.unique(labels)[label], SHAPE)
            assert rate == pytest.approx(expected[of_label].mean(), abs=0.02)

    def test_links_and_readings_are_chosen_beside_them(self):
        data = np.exp(0.3 * self.DATA)
        model = self.fit().fit(data)
        assert model.link_ == "log"
        assert model.result_.state.structure.rates.outlying.size == 3

    def test_a_race_on_a_part_is_without_them(self):
        plan = replace(observe(self.DATA).plan, raced_data=300)
        model = self.fit(max_sweeps=80).fit(replace(observe(self.DATA), plan=plan))
        assert model.result_.state.structure.rates.labels.size == 60

    def test_new_slices_have_the_rates_of_their_labels(self):
        model = self.fit().fit(self.DATA)
        np.testing.assert_allclose(model.transform(self.DATA[:3]), model.factors_[0][:3], atol=0.05)
        found = model.anomalies(0.1, of="fibres")
        assert np.isfinite(found.probability).all()

    def test_the_page_and_the_summary_tell_them(self, tmp_path):
        model = self.fit().fit(self.DATA)
        model.report(tmp_path / "page.html")
        assert "rates of labels along modes 1, 2" in (tmp_path / "page.html").read_text()
        assert "differ in number" not in str(model.summary())


# ---- accidents ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "options"),
    [(0.0, {"outlier_kind": "replacement"}), (-3.0, {"outlier_kind": "replacement"}), (1.0, {"outlier_modes": (1,)})],
)
@pytest.mark.filterwarnings("ignore::brtf.FitWarning")  # there is nothing to replace
def test_equal_values_are_not_replaced_ones(level, options):
    """A law of values that are all equal would have any density: it must not explain the data away."""
    model = BRTF(random_state=0, **options).fit(np.full((5, 4, 3), level))
    assert model.rank_ == (level != 0)
    assert model.outlier_rate_ < 0.01
    np.testing.assert_allclose(model.low_rank(), level, atol=1e-5)
    assert np.isfinite(model.sample(2)).all()
    assert np.isfinite(model.score(np.full((5, 4, 3), level)))


def test_sparse_data_go_through():
    low_rank, hit, data, options = TRUTH["shared"]
    observations = observe(data)
    sparse = Observations.from_coords(observations.entry_coords(), data.ravel(), SHAPE)
    model = BRTF(3, random_state=0, **options).fit(sparse)
    probability = model.outlier_probability()
    assert probability.shape == SHAPE
    np.testing.assert_array_equal(probability.coords, sparse.coords)
    assert f_measure(probability.data.reshape(SHAPE) > 0.5, hit) > 0.9
    pieces = replace(model.result_.observations, plan=Plan(block_entries=7))  # which would part groups of six
    again = replace(model.result_, observations=pieces)
    np.testing.assert_allclose(again.outlier_probability_at_entries(), probability.data, rtol=1e-9)
    assert rrse(model.low_rank(), low_rank) < 0.06


# ---- what nothing can be said of ---------------------------------------------------------------------------


def test_noise_is_not_taken_for_replaced_values():
    """A histogram of 256 free numbers fits any noise better than noise does; what it costs is counted."""
    noise = np.random.default_rng(0).standard_normal((20, 20, 20))
    with pytest.warns(FitWarning, match="do not support outliers that replace values"):
        model = BRTF(outlier_kind="replacement", random_state=0).fit(noise)
    assert model.outlier_rate_ < 0.02
    assert model.noise_variance_ == pytest.approx(1.0, rel=0.05)
    assert any("outliers added" in event for event in model.trace_["event"])


@pytest.mark.filterwarnings("ignore::brtf.FitWarning")  # there is nothing to replace
@pytest.mark.parametrize("kind", ["four values", "any value, shared"])
def test_values_without_structure_are_not_all_replaced(kind):
    """Their own histogram explains them best, but would leave no noise to learn."""
    if kind == "four values":
        data, options = np.random.default_rng(2).choice([0.0, 1.0, 5.0, 7.3], size=(6, 7, 4)), {}
    else:
        data, options = np.random.default_rng(3).uniform(size=(5, 6, 4)), {"outlier_modes": (2,)}
    model = BRTF(outlier_kind="replacement", random_state=0, **options).fit(data)
    assert model.outlier_rate_ < 0.5
    assert np.all(np.abs(model.sample(20, random_state=0)) < 10.0 * data.max())
    low, high = model.predict_interval(of="observation")
    assert np.all(high - low < 3.0 * data.max())
