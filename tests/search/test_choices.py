"""The link, the arrangement and the noise that the bound chooses: on data that need one, and on data that need none."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import brtf
from brtf import BRTF, Observations
from brtf.data.observe import observe
from brtf.data.plan import Plan
from brtf.io.storage import CorruptFile, read_archive, write_archive
from brtf.metrics import rrse
from brtf.model.links import Link, Logarithm, ShiftedLogarithm, SquareRoot, possible_links
from brtf.model.settings import Settings
from brtf.search import choices, race
from brtf.search.choices import Chosen, choose
from brtf.search.moment import Deadline
from brtf.search.race import Race, _runs_of, part_of
from brtf.search.reading import given_reading

pytestmark = pytest.mark.filterwarnings(  # the fits to compare with are bad ones
    "ignore::sklearn.exceptions.ConvergenceWarning", "ignore::brtf.FitWarning"
)
PLAIN = {"link": None, "arrangement": None, "noise": "common", "outlier_kind": "additive"}


def merged(seed, groups=((0, 1), (2,)), shape=(14, 12, 18), rank=2):
    """A tensor of low rank only where two modes are read as one, and noise."""
    rng = np.random.default_rng(seed)
    lengths = [int(np.prod([shape[mode] for mode in group])) for group in groups]
    matrix = rng.standard_normal((lengths[0], rank)) @ rng.standard_normal((rank, lengths[1]))
    axes = [mode for group in groups for mode in group]
    tensor = matrix.reshape([shape[mode] for mode in axes]).transpose(np.argsort(axes))
    return tensor, tensor + 0.1 * rng.standard_normal(shape)


def cp(seed, factors, shape=(20, 16, 14), rank=2):
    rng = np.random.default_rng(seed)
    drawn = [factors(rng, (length, rank)) for length in shape]
    return rng, np.einsum("ir,jr,kr->ijk", *drawn)


def counts(seed):
    rng, level = cp(seed, lambda rng, size: rng.gamma(2.0, 1.0, size))
    return 3 * level, rng.poisson(3 * level).astype(float)


def multiplicative(seed):
    rng, log_level = cp(seed, lambda rng, size: 0.5 * rng.standard_normal(size))
    return np.exp(2 + log_level), np.exp(2 + log_level + 0.1 * rng.standard_normal(log_level.shape))


def per_sensor(seed):
    """Noise over two decades."""
    rng, level = cp(seed, lambda rng, size: rng.standard_normal(size))
    std = level.std() * 10 ** rng.uniform(-2, 0, level.shape[0])
    return level, level + std[:, None, None] * rng.standard_normal(level.shape)


def one_sided(seed):
    rng, level = cp(seed, lambda rng, size: rng.standard_normal(size))
    outlying = rng.random(level.shape) < 0.1
    return level, level + 0.1 * rng.standard_normal(level.shape) + outlying * rng.uniform(0, 10, level.shape)


def spoilt(tensor, layout, seed=0):
    """The tensor with a fifth missing, in some layout."""
    tensor = np.where(np.random.default_rng(seed).random(tensor.shape) < 0.2, np.nan, tensor)
    if layout == "masked":
        return tensor
    coords = np.nonzero(np.isfinite(tensor))
    return Observations.from_coords(coords, tensor[coords], tensor.shape)


class TestChosen:
    @pytest.mark.parametrize("groups", [((0, 1), (2,)), ((0, 2), (1,)), ((0,), (1, 2))])
    def test_merged_modes_are_found(self, groups):
        truth, tensor = merged(0, groups)
        model = BRTF(random_state=0).fit(tensor)
        assert model.arrangement_ == groups
        assert model.rank_ == 2
        kept = BRTF(random_state=0, arrangement=None).fit(tensor)
        assert kept.arrangement_ == ((0,), (1,), (2,))
        assert model.bound_ > kept.bound_ + 100
        assert rrse(truth, model.low_rank()) < rrse(truth, kept.low_rank())
        chosen = model.choices_["arrangement"]
        assert chosen.value == groups
        assert chosen.gain > 100
        assert "as one" in str(model.summary())

    def test_counts_are_fitted_as_square_roots(self):
        for seed in range(3):
            _, tensor = counts(seed)
            model = BRTF(random_state=0).fit(tensor)
            assert model.link_ == "sqrt"
            assert model.arrangement_ == ((0,), (1,), (2,))
            assert model.bound_ > BRTF(random_state=0, **PLAIN).fit(tensor).bound_ + 100
            assert model.choices_["link"].gain > 100

    def test_multiplicative_noise_is_fitted_in_logarithms(self):
        for seed in range(3):
            truth, tensor = multiplicative(seed)
            model = BRTF(random_state=0).fit(tensor)
            assert model.link_ == "log"
            assert rrse(truth, model.low_rank()) < rrse(truth, BRTF(random_state=0, **PLAIN).fit(tensor).low_rank())

    def test_noise_per_sensor(self):
        for seed in range(3):
            truth, tensor = per_sensor(seed)
            model = BRTF(random_state=0, modes=None).fit(tensor)
            assert (model.noise_, model.noise_modes_, model.rank_) == ("per-slice", (0,), 2)
            assert model.outlier_rate_ < 0.01
            assert model.choices_["noise"].gain > 100
            assert rrse(truth, model.low_rank()) < 0.5 * rrse(
                truth, BRTF(random_state=0, modes=None, **PLAIN).fit(tensor).low_rank()
            )

    def test_one_sided_outliers(self):
        truth, tensor = one_sided(0)
        model = BRTF(random_state=0).fit(tensor)
        assert model.result_.state.structure.sides.mean > 0.95
        assert model.rank_ == 2
        assert rrse(truth, model.low_rank()) < 0.03

    @pytest.mark.parametrize("missing", [0.0, 0.6])
    @pytest.mark.parametrize("outliers", [0.0, 0.1, 0.3])
    def test_nothing_changes_where_nothing_is_to_be_chosen(self, outliers, missing):
        """The search goes on from the first runner, and looks for no order in between: the same to the last bit."""
        tensor = brtf.datasets.paper_synthetic(outliers=outliers, missing=missing, seed=5).observed
        model, plain = (BRTF(random_state=0, modes=None, **options).fit(tensor) for options in ({}, PLAIN))
        assert (model.link_, model.arrangement_, model.noise_) == (None, ((0,), (1,), (2,)), "common")
        assert model.bound_ == plain.bound_
        assert model.n_sweeps_ == plain.n_sweeps_
        np.testing.assert_array_equal(model.low_rank(), plain.low_rank())

    def test_the_link_is_chosen_again_where_modes_are_read_as_one(self):
        """Trips between pairs of places, each with a taste of its own: as given they look multiplicative."""
        rng = np.random.default_rng(0)
        size, hours = np.exp(0.9 * rng.standard_normal(8)), np.arange(120) % 24
        bumps = [np.exp(-0.5 * ((hours - centre) / width) ** 2) for centre, width in ((8, 1.5), (13, 4), (18, 2))]
        weights = rng.gamma(0.7, 1.0, (8, 8, 3)) * np.exp(0.7 * rng.standard_normal((8, 8, 1)))
        mean = 20 * np.outer(size, size)[:, :, None] * (weights @ np.array(bumps))
        trips = rng.poisson(mean * rng.gamma(20, 1 / 20, mean.shape)).astype(float)
        trips[rng.random(trips.shape) < 0.4] = np.nan
        model = BRTF(random_state=0).fit(trips)
        assert model.arrangement_ == ((0, 1), (2,))
        for link in {None, "sqrt", "log1p"} - {model.link_}:
            other = BRTF(random_state=0, link=link, arrangement=model.arrangement_).fit(trips)
            assert model.bound_ > other.bound_ - 1.0

    def test_positive_data_without_need_of_a_link(self):
        rng, level = cp(0, lambda rng, size: rng.uniform(0.5, 1.5, size))
        model = BRTF(random_state=0).fit(level + 0.05 * rng.standard_normal(level.shape))
        assert (model.link_, model.arrangement_, model.noise_) == (None, ((0,), (1,), (2,)), "common")


GROUPS = ((0, 2), (1,))


@pytest.fixture(scope="module", params=["masked", "coordinates"])
def fits(request):
    _, tensor = merged(1, GROUPS)
    tensor = np.where(np.random.default_rng(2).random(tensor.shape) < 0.05, tensor + 9, tensor)
    given = spoilt(tensor, request.param)
    dense = spoilt(tensor, "masked")
    options = {"random_state": 0, "link": None, "noise": "auto"}
    matrix = dense.transpose(0, 2, 1).reshape(-1, dense.shape[1])
    model = BRTF(arrangement=GROUPS, **options).fit(given)
    other = BRTF(**options).fit(spoilt_like(matrix, request.param))
    return dense, model, other


class TestMergedAnswers:
    """A fit with merged modes is the fit of the merged array, and its answers have the shape of the data."""

    @staticmethod
    def back(array, shape=(14, 12, 18)):
        return np.asarray(array).reshape(shape[0], shape[2], shape[1]).transpose(0, 2, 1)

    def test_answers(self, fits):
        _, model, other = fits
        assert model.bound_ == pytest.approx(other.bound_, rel=1e-9)
        assert model.rank_ == other.rank_
        close = {"rtol": 1e-6, "atol": 1e-6}
        np.testing.assert_allclose(model.low_rank(), self.back(other.low_rank()), **close)
        for method in ("outliers", "outlier_probability"):
            found, wanted = getattr(model, method)(), getattr(other, method)()
            found, wanted = (array if isinstance(array, np.ndarray) else array.toarray() for array in (found, wanted))
            np.testing.assert_allclose(found, self.back(wanted), **close)
        for of in ("low_rank", "observation"):
            for found, wanted in zip(model.predict_interval(of=of), other.predict_interval(of=of), strict=True):
                np.testing.assert_allclose(found, self.back(wanted), **close)
            found, wanted = (fit.predict(return_std=True, of=of)[1] for fit in (model, other))
            np.testing.assert_allclose(found, self.back(wanted), **close)
        assert [factor.shape for factor in model.factors_] == [(14 * 18, model.rank_), (12, model.rank_)]

    def test_some_entries(self, fits):
        _, model, _ = fits
        coords = np.array([[0, 13, 5], [11, 0, 3], [17, 2, 9]])
        np.testing.assert_allclose(model.predict(coords), model.low_rank()[tuple(coords)], rtol=1e-12)
        low, _ = model.predict_interval(coords, of="observation")
        np.testing.assert_allclose(low, model.predict_interval(of="observation")[0][tuple(coords)], rtol=1e-9)
        assert model.sample(3, coords).shape == (3, 3)
        assert model.sample(2).shape == (2, 14, 12, 18)

    def test_score_and_imputation(self, fits):
        dense, model, other = fits
        matrix = dense.transpose(0, 2, 1).reshape(-1, dense.shape[1])
        assert model.score(dense) == pytest.approx(other.score(matrix), rel=1e-9)
        imputed, observed = model.impute(), np.isfinite(dense)
        np.testing.assert_array_equal(imputed[observed], dense[observed])
        np.testing.assert_allclose(imputed[~observed], model.low_rank()[~observed])

    def test_saved_and_read(self, fits, tmp_path):
        _, model, _ = fits
        model.save(tmp_path / "fit.brtf")
        again = brtf.load(tmp_path / "fit.brtf")
        assert again.arrangement_ == GROUPS
        assert again.get_params()["arrangement"] == GROUPS
        np.testing.assert_array_equal(again.low_rank(), model.low_rank())
        np.testing.assert_array_equal(np.asarray(again.noise_variances_), model.noise_variances_)

    def test_new_slices(self, fits):
        dense, model, _ = fits
        loadings, std = model.transform(dense[:3], return_std=True)
        assert loadings.shape == std.shape == (3, 18, model.rank_)
        np.testing.assert_allclose(
            loadings.reshape(-1, model.rank_), model.factors_[0][: 3 * 18], atol=0.2 * np.abs(loadings).max()
        )

    def test_views(self, fits, tmp_path):
        _, model, _ = fits
        axes = model.plot_factors()
        assert axes.shape == (model.rank_, 2)
        model.report(tmp_path / "page.html")
        assert "mode 0 · mode 2" in (tmp_path / "page.html").read_text(encoding="utf-8")
        dataset = model.to_xarray()
        assert dataset["factor_mode_0_mode_2"].shape == (14, 18, model.rank_)
        assert dataset["low_rank"].shape == (14, 12, 18)


def spoilt_like(matrix, layout):
    if layout == "masked":
        return matrix
    coords = np.nonzero(np.isfinite(matrix))
    return Observations.from_coords(coords, matrix[coords], matrix.shape)


@pytest.mark.parametrize("seed", [0, 2])
def test_zeros_of_counts_are_no_noise(seed):
    """Trips from eight places to eight, of which every pair has a mixture of courses of its own; many are zero.

    A noise level that fits the zeros alone, or modes read one by one, err by more than the counts themselves do.
    """
    rng, n_hours = np.random.default_rng(seed), 150
    courses = 1.2 + np.cos(2.0 * np.pi * (np.arange(n_hours)[:, None] / 24.0 + rng.random(3)))
    mixture = rng.gamma(0.5, 1.0, (8, 8, 3)) * np.exp(rng.normal(0.0, 1.0, (8, 8, 1)))
    rate = np.einsum("ijk,tk->ijt", mixture, courses)
    rate *= 3.0 / rate.mean()
    counts = rng.poisson(rate).astype(float)
    assert np.mean(counts == 0.0) > 0.3
    hidden = rng.random(counts.shape) < 0.4
    model = BRTF(random_state=0).fit(np.where(hidden, np.nan, counts))
    assert model.arrangement_ == ((0, 1), (2,))
    error = (model.predict(of="signal") - rate)[hidden]
    assert np.sqrt(np.mean(error**2)) < np.sqrt(np.mean(rate[hidden]))


def test_values_that_repeat_exactly_choose_no_link():
    """Black pixels would gain the density of zero in the square root, ln 1/√y each, whatever the rest."""
    rng = np.random.default_rng(0)
    picture = 100 + 30 * np.einsum("ir,jr,kr->ijk", *(rng.normal(size=(length, 2)) for length in (24, 20, 3)))
    data = np.clip(picture + rng.normal(size=picture.shape), 1.0, None)
    black = rng.random((24, 20)) < 0.2
    data[black] = 0.0
    found = choose(observe(data), Settings(outlier_kind="replacement", outlier_modes=(2,)), np.random.default_rng(0))
    assert [one.option for one in found.comparisons] == ["arrangement"]
    assert found.reading.link.name is None


def test_noise_along_merged_modes_has_their_shape():
    rng = np.random.default_rng(0)
    truth, _ = merged(0, ((0, 2), (1,)))
    std = 10 ** rng.uniform(-1.5, 0, (14, 18))
    tensor = truth + std[:, None, :] * rng.standard_normal(truth.shape)
    model = BRTF(arrangement=((0, 2), (1,)), noise="per-slice", noise_modes=(2, 0), random_state=0).fit(tensor)
    assert model.noise_modes_ == (0, 2)
    assert model.noise_variances_.shape == (14, 18)
    assert np.corrcoef(np.log(model.noise_variances_).ravel(), np.log(std).ravel())[0, 1] > 0.8  # 12 entries each


def test_blocks_go_on_from_merged_modes():
    _, tensor = merged(3, shape=(20, 8, 15))
    model = BRTF(arrangement=((0, 1), (2,)), random_state=0)
    for start in (0, 10):
        model.partial_fit(tensor[start : start + 10])
    assert model.shape_in_ == (20, 8, 15)
    assert model.low_rank().shape == (20, 8, 15)
    assert rrse(tensor, model.low_rank()) < 0.1


class TestCheckpoints:
    def test_a_resumed_fit_keeps_what_was_chosen(self, tmp_path, monkeypatch):
        _, tensor = merged(4)
        tensor = np.exp(0.3 * tensor)
        path = tmp_path / "c.brtf"
        whole = BRTF(random_state=0).fit(tensor)
        assert whole.link_ is not None
        assert whole.arrangement_ == ((0, 1), (2,))
        BRTF(random_state=0).fit(tensor, checkpoint=path, every=0)
        monkeypatch.setattr(choices, "choose", None)  # not asked again
        header, arrays = read_archive(path)
        resumed = BRTF(random_state=0).fit(tensor, resume=path)
        assert (resumed.link_, resumed.arrangement_) == (whole.link_, whole.arrangement_)
        assert resumed.bound_ == whole.bound_
        assert resumed.choices_ == whole.choices_
        np.testing.assert_array_equal(resumed.low_rank(), whole.low_rank())
        for change in ({"link": "cube"}, {"groups": [[0, 1]]}, {"numbers": {"smallest": -1.0}}, {"comparisons": [[1]]}):
            forged = json.loads(json.dumps(header))
            forged["outline"]["reading"].update(change)
            write_archive(tmp_path / "forged.brtf", forged, arrays)
            with pytest.raises(CorruptFile, match="is not a checkpoint of brtf"):
                brtf.load(tmp_path / "forged.brtf")

    def test_any_moment_of_the_race_leads_to_the_same_end(self):
        """Stopped and continued, a search ends as without a pause."""
        _, tensor = counts(0)
        observations, rng = observe(tensor), np.random.default_rng(0)
        chosen = choose(observations, Settings(), np.random.default_rng(0))
        assert isinstance(chosen, Chosen)
        assert chosen.since is not None
        settings = chosen.reading.settings(Settings())
        modelled = chosen.reading.apply(observations)
        ends = [brtf.search.run.run(modelled, settings, rng, since=since) for since in (None, chosen.since)]
        assert ends[0].trace[-1].bound == ends[1].trace[-1].bound
        assert len(ends[0].trace) == len(ends[1].trace)


class TestOptions:
    def test_named_modes_are_not_merged(self):
        _, tensor = merged(0)
        model = BRTF(random_state=0, noise_modes=(0,), max_sweeps=60).fit(tensor)
        assert all(len(group) == 1 or 0 not in group for group in model.arrangement_)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"arrangement": "merged"}, "arrangement must be None"),
            ({"arrangement": ((0, 1, 2),)}, "arrangement must be None"),
            ({"arrangement": ((0, 1), (1, 2))}, "arrangement must be at least two groups"),
            ({"arrangement": ((0, 1), (2,)), "noise_modes": (1,)}, "noise_modes=.* does not go with arrangement"),
            ({"arrangement": ((0, 1), (2,)), "outlier_modes": (0,)}, "outlier_modes=.* does not go with arrangement"),
            ({"arrangement": ((0, 1), (2,)), "inference": "paper"}, 'arrangement needs inference="calibrated"'),
            ({"link": "cube"}, "link must be None or one of"),
            ({"modes": ()}, 'modes must be None, "auto" or a dictionary .* got \\(\\)'),
        ],
    )
    def test_bad_options_are_named(self, options, message):
        with pytest.raises(ValueError, match=message):
            BRTF(**options).fit(np.ones((3, 4, 5)))

    def test_the_paper_has_no_choices(self):
        _, tensor = counts(0)
        model = BRTF(inference="paper", max_rank=4, max_sweeps=400, tol=1e-4, random_state=0).fit(tensor)
        assert (model.link_, model.arrangement_, model.noise_) == (None, ((0,), (1,), (2,)), "common")
        assert model.choices_ == {}

    def test_links_that_the_data_allow(self):
        kinds = {
            (-1.0, 2.0): [Link],
            (0.0, 2.0): [Link, SquareRoot, ShiftedLogarithm],
            (0.5, 2.0): [Link, SquareRoot, Logarithm],
            (2.0, 2.0): [Link],
        }
        for values, wanted in kinds.items():
            assert [type(link) for link in possible_links(observe(np.array([values, values])))] == wanted


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("n_different", [10, 2])
def test_modes_are_merged_only_for_as_few_numbers(n_different, at_once, monkeypatch):
    """Ten components of (12, 11, 10) have 310 numbers. Of (132, 10), ten have 1410 and two 282, which is worth a race.

    There are two where only two loadings of the last mode differ: the least rank is that of any unfolding.
    """
    rng, shape = np.random.default_rng(0), (12, 11, 10)
    factors = [rng.standard_normal((length, 10)) for length in shape]
    factors[2] = factors[2][:, np.arange(10) % n_different]
    tensor = np.einsum("ir,jr,kr->ijk", *factors) + 1e-3 * rng.standard_normal(shape)
    settings = Settings(arrangement="auto", max_rank=20)
    field = Race(observe(tensor), settings, np.random.default_rng(0), Deadline(None))
    reading = given_reading(field.whole, settings)
    field.runner(reading).go_to(200)
    monkeypatch.setattr(race.Runner, "found_all_at_once", at_once)
    assert field.runner(reading).rank_merged((0, 1)) == n_different
    groups = [one.arrangement.groups for one in field.mergers(reading)]
    assert (((0, 1), (2,)) in groups) == (n_different == 2)


def test_large_data_race_on_a_part():
    _, tensor = merged(5)
    observations = replace(observe(tensor), plan=Plan(raced_data=1200))
    part = part_of(observations, np.random.default_rng(0))
    assert 1200 <= part.n_observed < 2 * 1200
    chosen = choose(observations, Settings(), np.random.default_rng(0))
    assert chosen.reading.arrangement.groups == ((0, 1), (2,))
    assert chosen.since is None
    assert chosen.comparisons[-1].n_entries == part.n_observed


def test_the_starts_of_sketched_data_save_a_race_where_they_find_all():
    """The search of all entries then goes on, as without a choice; and a race is run where they do not."""
    sketched = Plan(raced_data=1200, sketched_data=1000)
    data = brtf.datasets.synthetic((24, 22, 20), 3, outliers=0.05, seed=0)
    observations = replace(observe(data.observed), plan=sketched)
    field = Race(observations, Settings(), np.random.default_rng(0), Deadline(None))
    field.begin(given_reading(observations, Settings()))
    assert not field.runners
    chosen = choose(observations, Settings(), np.random.default_rng(0))
    assert chosen.since is not None
    assert chosen.since.state.rank == 3
    assert chosen.comparisons[-1].tried == ()
    _, tensor = merged(5)
    chosen = choose(replace(observe(tensor), plan=sketched), Settings(), np.random.default_rng(0))
    assert chosen.reading.arrangement.groups == ((0, 1), (2,))


def test_the_bound_of_a_part_is_scaled_to_the_whole():
    """Where part and whole are the same, the estimate is the bound itself."""
    _, tensor = merged(6)
    observations = observe(tensor)
    running = race.Race(observations, Settings(), np.random.default_rng(0), Deadline(None))
    runner = running.runner(given_reading(observations, Settings()))
    runner.go_to(10)
    exact = runner.bound
    runner.growth = 1.0 + 1e-12  # takes the other branch
    assert runner.bound == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(("length", "count", "run"), [(100, 20, 4), (17, 5, 2), (8, 8, 3), (50, 7, 1), (30, 12, 12)])
def test_positions_in_runs(length, count, run):
    for seed in range(20):
        found = _runs_of(length, count, run, np.random.default_rng(seed))
        assert found.size == count and found[0] >= 0 and found[-1] < length
        steps = np.diff(found)
        assert (steps >= 1).all() and np.count_nonzero(steps > 1) < math.ceil(count / run)


@pytest.mark.parametrize("seed", [0, 1])
def test_readings_race_in_no_order_and_the_winner_is_put_in_order(seed):
    """Also where its search found all components in the race, and so was refused there."""
    rng = np.random.default_rng(seed)
    course = np.cumsum(rng.standard_normal((60, 2)), axis=0) / 5
    tensor = np.einsum("ir,jr,kr->ijk", course, rng.standard_normal((8, 2)), rng.standard_normal((6, 2)))
    data = tensor + 0.5 * rng.standard_normal(tensor.shape)
    raced = []
    chosen = choose(observe(data), Settings(), np.random.default_rng(0), watch=raced.append)
    assert raced and not any(moment.state is not None and moment.state.is_ordered for moment in raced)
    assert chosen.since is not None
    assert BRTF(random_state=0).fit(data).modes_[0] == ("ordered",)
