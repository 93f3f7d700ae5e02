"""The kind of outliers that the bound chooses: what each kind promises, and what is chosen on generated data."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

import brtf
from brtf import BRTF
from brtf.data.observations import Observations
from brtf.data.observe import observe
from brtf.data.plan import Plan
from brtf.inference.entry_posterior import initial_law, initial_rates
from brtf.inference.point import evaluate, evaluate_at
from brtf.inference.problem import Problem
from brtf.inference.trace import Kind
from brtf.metrics import f_measure, rrse
from brtf.model.settings import Settings
from brtf.search.moves.outlier_kind import possible_rates, promised, repeated
from brtf.search.moves.structure import law_of_values
from brtf.search.problems import problem_at
from brtf.search.run import run as search

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::brtf.FitWarning")


def low_rank(seed, shape=(20, 16, 14), rank=2, positive=False):
    rng = np.random.default_rng(seed)
    factors = [rng.uniform(0.5, 1.5, (n, rank)) if positive else rng.standard_normal((n, rank)) for n in shape]
    truth = np.einsum("ir,jr,kr->ijk", *factors)
    truth /= truth.std()
    return rng, truth, truth + 0.1 * rng.standard_normal(shape)


def salt_and_pepper(seed, positive=True):
    rng, truth, data = low_rank(seed, positive=positive)
    hit = rng.random(truth.shape) < 0.1
    return truth, hit, np.where(hit, rng.choice([data.min(), data.max()], truth.shape), data)


def pixels(seed):
    """8-bit levels: every value repeats."""
    rng, truth, data = low_rank(seed, positive=True)
    scale, lowest = 200.0 / np.ptp(truth), truth.min()
    truth, data = (30 + scale * (part - lowest) for part in (truth, data))
    hit = rng.random(truth.shape) < 0.15
    return truth, hit, np.where(hit, rng.choice([0.0, 255.0], truth.shape), np.clip(np.round(data), 0, 255))


def colours(seed):
    rng, truth, data = low_rank(seed, (30, 24, 3))
    hit = np.broadcast_to(rng.random((30, 24, 1)) < 0.1, truth.shape)
    return truth, hit, data + hit * rng.uniform(-1, 1, truth.shape)


def bad_rows(seed):
    rng, truth, data = low_rank(seed)
    hit = (rng.random(truth.shape) < 0.4) & (np.arange(20) < 4)[:, None, None]
    return truth, hit, data + hit * rng.uniform(-3, 3, truth.shape)


def one_sided(seed):
    rng, truth, data = low_rank(seed)
    hit = rng.random(truth.shape) < 0.1
    return truth, hit, data + hit * rng.uniform(0, 5, truth.shape)


def additive(seed):
    rng, truth, data = low_rank(seed)
    hit = rng.random(truth.shape) < 0.1
    return truth, hit, data + hit * rng.uniform(-5, 5, truth.shape)


def landscapes(seed, shape=(8, 30, 20)):
    """Samples × emission × excitation, with scattered light near the excitation; also with as much of it anywhere."""
    rng = np.random.default_rng(seed)
    emission, excitation = np.linspace(250, 395, shape[1]), np.linspace(230, 363, shape[2])
    loadings = [rng.uniform(0.3, 1.5, (shape[0], 2))]
    for waves in (emission, excitation):
        loadings.append(np.exp(-0.5 * ((waves[:, None] - rng.uniform(270, 350, 2)) / rng.uniform(15, 35, 2)) ** 2))
    truth = np.einsum("ir,jr,kr->ijk", *loadings)
    data = truth + 0.02 * rng.standard_normal(shape)
    near = np.abs(emission[:, None] - excitation) <= 8
    anywhere = rng.permutation(near.ravel()).reshape(near.shape)
    coords = {"emission": emission, "excitation": excitation}
    for cells in (near, anywhere):
        hit = cells & (rng.random(shape) < 0.7)
        values = data + hit * rng.uniform(-1, 1, shape)
        yield truth, hit, xr.DataArray(values, coords, ("sample", *coords))


def trips(seed):
    """Origin × destination × hour; trips within a zone are counted badly. And the same with zones of other names."""
    rng, truth, data = low_rank(seed, (15, 15, 12))
    hit = (rng.random(data.shape) < 0.5) & np.eye(15, dtype=bool)[..., None]
    data = data + hit * rng.uniform(-5, 5, data.shape)
    zones = np.array([f"zone {letter}" for letter in "abcdefghijklmno"])
    for others in (zones, np.char.add(zones, "'")):
        yield truth, hit, xr.DataArray(data, {"from": zones, "to": others}, ("from", "to", "hour"))


def found(model):
    structure = model.result_.state.structure
    if structure is None:
        return set()
    parts = {"replaced": structure.law, "shared": structure.modes, "rates": structure.rates, "sides": structure.sides}
    return {name for name, part in parts.items() if part not in (None, ())}


class TestChosen:
    @pytest.mark.parametrize(
        ("make", "kind"),
        [
            (salt_and_pepper, {"replaced"}),
            (pixels, {"replaced"}),
            (colours, {"shared"}),
            (bad_rows, {"rates"}),
            (one_sided, {"sides"}),
            (additive, set()),
        ],
    )
    def test_on_generated_data(self, make, kind):
        for seed in range(2):
            truth, hit, data = make(seed)
            model, plain = (
                BRTF(random_state=0, outlier_kind=name, noise="common").fit(data) for name in ("auto", "additive")
            )
            assert found(model) == kind
            named = "replacement" if kind == {"replaced"} else "one-sided" if kind == {"sides"} else "additive"
            assert model.outlier_kind_ == named
            assert model.outlier_modes_ == ((2,) if kind == {"shared"} else ())
            assert model.bound_ >= plain.bound_
            assert f_measure(model.outlier_probability() > 0.5, hit) >= f_measure(
                plain.outlier_probability() > 0.5, hit
            )
            assert rrse(truth, model.low_rank()) < 1.1 * rrse(truth, plain.low_rank())
            choice = model.choices_["outlier_kind"]
            assert choice.value == model.outlier_kind_
            assert str(choice) in str(model.summary())
            if kind:
                assert choice.gain > 10
                assert "nats better than" in choice.sentence
            else:
                assert "each on its own" in choice.sentence

    @pytest.mark.parametrize("make", [landscapes, trips])
    def test_outliers_that_depend_on_the_distance_of_positions(self, make):
        """They are found where there are any: not where as many are anywhere, or where the labels tell no distance."""
        for seed in range(3):
            (truth, hit, data), (_, _, other) = make(seed)
            model, without = (BRTF(random_state=0, noise="common").fit(Y) for Y in (data, data.values))
            rates = model.result_.state.structure.rates
            modes = (1, 2) if make is landscapes else (0, 1)
            assert rates.modes == modes
            assert rates.labels.size == np.prod([data.shape[mode] for mode in modes])
            assert model.bound_ > without.bound_ + 10
            assert f_measure(model.outlier_probability() > 0.5, hit) >= f_measure(
                without.outlier_probability() > 0.5, hit
            )
            assert rrse(truth, model.low_rank()) < 1.1 * rrse(truth, without.low_rank())
            sentence = model.choices_["outlier_kind"].sentence
            assert f"with the distance of {data.dims[modes[0]]} and {data.dims[modes[1]]} (" in sentence
            rates = BRTF(random_state=0, noise="common").fit(other).result_.state.structure
            assert rates is None or rates.rates is None or rates.rates.labels is None

    def test_they_may_take_the_place_of_rates_per_slice(self):
        (_, hit, data), _ = landscapes(0)
        model = BRTF(random_state=0, noise="per-slice", noise_modes=(1,)).fit(data)
        accepted = [record.event.words for record in model.result_.trace if record.event.kind is Kind.RATES]
        assert accepted == ["outlier rates per slice", "outlier rates with the distance of modes 1 and 2"]
        assert model.result_.state.structure.rates.modes == (1, 2)
        assert f_measure(model.outlier_probability() > 0.5, hit) > 0.9

    def test_sides_and_replaced_values_are_told_in_words(self):
        assert "positive in" in BRTF(random_state=0).fit(one_sided(0)[2]).choices_["outlier_kind"].sentence
        sentence = BRTF(random_state=0, noise="common").fit(salt_and_pepper(0)[2]).choices_["outlier_kind"].sentence
        assert sentence.startswith("Outliers replace values (")

    @pytest.mark.parametrize("outliers", [0.0, 0.1, 0.3])
    def test_nothing_changes_where_outliers_are_plain(self, outliers):
        data = brtf.datasets.paper_synthetic(outliers=outliers, missing=0.3, seed=3).observed
        model, plain = (BRTF(random_state=0, outlier_kind=kind).fit(data) for kind in ("auto", "additive"))
        assert model.bound_ == plain.bound_
        assert model.n_sweeps_ == plain.n_sweeps_
        np.testing.assert_array_equal(model.low_rank(), plain.low_rank())

    def test_frequent_zeros_are_not_replaced_values(self):
        """Zeros where the level is low are data."""
        rng = np.random.default_rng(0)
        level = np.einsum("ir,jr,kr->ijk", *(rng.gamma(0.7, 1.0, (length, 2)) for length in (20, 16, 14)))
        for data in (rng.poisson(4.0 * level).astype(float), np.maximum(level + 0.1 * rng.normal(size=level.shape), 0)):
            assert (data == 0).mean() > 0.1
            assert "replaced" not in found(BRTF(random_state=0, link=None).fit(data))

    def test_coordinates_and_missing_entries(self):
        data = colours(0)[2]
        observed = np.random.default_rng(1).random(data.shape) < 0.9
        coords = np.nonzero(observed)
        given = Observations.from_coords(coords, data[coords], data.shape)
        for Y in (given, np.where(observed, data, np.nan)):
            model = BRTF(random_state=0, noise="common").fit(Y)
            assert model.outlier_modes_ == (2,)

    @pytest.mark.parametrize("mode", [0, 1])
    def test_blocks_do_not_matter(self, mode):
        """Outliers shared along the first mode, or between coordinates, lie in different blocks at first."""
        data = np.moveaxis(colours(0)[2], 2, mode)
        whole = BRTF(random_state=0, noise="common").fit(data)
        assert whole.outlier_modes_ == (mode,)
        coords = np.nonzero(np.isfinite(data))
        for given in (observe(data), Observations.from_coords(coords, data[coords], data.shape)):
            model = BRTF(random_state=0, noise="common").fit(replace(given, plan=Plan(block_entries=500)))
            assert model.outlier_modes_ == (mode,)
            assert model.bound_ == pytest.approx(whole.bound_, abs=0.1)

    def test_paper_and_robust(self):
        data = additive(0)[2]
        assert BRTF(inference="paper", max_rank=2, max_sweeps=3).fit(data).outlier_kind_ == "additive"
        assert "outlier_kind" not in BRTF(robust=False, random_state=0).fit(data).choices_


def a_point(data, **options):
    """A fit with plain outliers, as a problem and a point."""
    settings = Settings(outlier_kind="additive", noise="common", link=None, arrangement=None, max_rank=2, **options)
    observations = observe(data)
    moments = []
    search(observations, settings, np.random.default_rng(0), moments.append)
    problem = problem_at(observations, settings, moments[-1])
    return problem, evaluate(problem, replace(moments[-1].state, structure=None))


class TestPromises:
    """What a kind promises is a lower bound of what it gains at the same factors; for shared outliers it is exact."""

    @pytest.mark.parametrize("make", [salt_and_pepper, colours, bad_rows, additive])
    def test_are_kept(self, make):
        problem, point = a_point(make(1)[2])
        law = law_of_values(problem)
        shape, rng = problem.observations.shape, np.random.default_rng(0)
        rated = [initial_rates((mode,), shape[mode], 0.1) for mode in (0, 2)]
        rated.append(initial_rates((0, 1), 4, 0.1, rng.integers(0, 4, shape[0] * shape[1])))
        for one in promised(problem, point, law, [1, 2], rated):
            state = replace(point.state, structure=one.structure)
            gain = evaluate_at(problem, state, point.fit).bound - point.bound
            if one.structure.law is not None:
                assert gain > one.nats - 1e-6  # the learnt law is at least as good as its evidence
            elif one.structure.modes:
                assert gain < one.nats + 1e-6  # at the rate of single outliers, and not yet at the best one
            else:
                assert gain > one.nats - 1e-6

    def test_are_gains_over_the_present_rates(self):
        problem, point = a_point(next(landscapes(1))[2])
        slices, labelled = (one for one in possible_rates(problem, point.state) if one.modes in ((1,), (1, 2)))
        plain = {one.structure.rates.modes: one for one in promised(problem, point, None, [], [slices, labelled])}
        present = evaluate_at(problem, replace(point.state, structure=plain[1,].structure), point.fit)
        assert [one.modes for one in possible_rates(problem, present.state)] == [(1, 2)]
        (one,) = promised(problem, present, None, [], [labelled])
        gain = evaluate_at(problem, replace(point.state, structure=one.structure), point.fit).bound - present.bound
        assert gain > one.nats > 10
        after = evaluate_at(problem, replace(point.state, structure=one.structure), point.fit)
        assert possible_rates(problem, after.state) == []

    def test_the_evidence_of_shared_outliers_at_their_rate(self):
        problem, point = a_point(colours(0)[2])
        (one,) = promised(problem, point, None, [2], [])
        rates = np.linspace(0.02, 0.3, 57)
        gains = []
        for rate in rates:
            local = replace(point.state.local_model, probability=float(rate))
            state = replace(point.state, local=local, structure=one.structure)
            gains.append(evaluate_at(problem, state, point.fit).bound - point.bound)
        assert one.nats == pytest.approx(max(gains), abs=1.0)

    def test_dependent_channels_bound_the_same_evidence(self):
        """χ ln Σ π f^{1/χ} ≤ ln Σ π f: bounds with any χ can be compared."""
        problem, point = a_point(colours(0)[2])
        (one,) = promised(problem, point, None, [2], [])
        bounds = [
            evaluate_at(
                problem, replace(point.state, structure=replace(one.structure, n_channels=kappa)), point.fit
            ).bound
            for kappa in (1.0, 1.2, 2.0, 3.0)
        ]
        assert bounds == sorted(bounds, reverse=True)


class TestLaw:
    def test_bins_of_rounded_data_are_levels(self):
        data = np.random.default_rng(0).integers(3, 12, (6, 5, 4)).astype(float)
        problem = Problem(observe(data), (0, 1, 2), collapsed=True, largest_precision=12.0 * observe(data).scale ** 2)
        law = law_of_values(problem)
        assert law.density.size == 9
        np.testing.assert_array_equal(law.bins(data / observe(data).scale), data - 3)

    def test_bins_are_at_most_256(self):
        assert initial_law(0.0, 1.0).density.size == 256
        assert initial_law(0.0, 255.0, step=1.0).density.size == 256
        assert initial_law(0.0, 1000.0, step=1.0).density.size == 256

    def test_price_is_likelihood_less_evidence(self):
        law, counts = initial_law(-1.0, 3.0), np.random.default_rng(0).gamma(0.3, 1.0, 256)
        likelihood = float(counts @ np.log(law.learnt(counts).density))
        assert law.price(counts) == pytest.approx(likelihood - law.log_evidence(counts))
        assert law.price(counts) > 0

    def test_repeated_values(self):
        smooth = 1e4 * np.exp(-0.5 * np.linspace(-3, 3, 256) ** 2)
        assert repeated(smooth) < 0.01
        assert repeated(np.bincount([0, 255], [50, 50], 256)) == 0.98
        assert repeated(np.random.default_rng(0).permutation(np.repeat([1.0, 0.0], [80, 176]))) == 0.0  # all different
        assert repeated(np.zeros(256)) == 0.0
