"""What a fit means afterwards: the posterior's moments against draws from it, and a file that says it all again."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import xarray as xr
from scipy import stats
from sklearn.exceptions import ConvergenceWarning

from brtf import BRTF, Observations, load
from brtf.datasets import synthetic
from brtf.inference.trace import Record, StopReason
from brtf.io.archive import pack
from brtf.io.storage import CorruptFile, write_archive
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.settings import Settings

SHAPE = (9, 8, 7)
SEED = 5
N_DRAWS = 4000


def problem(**options):
    """A small tensor of rank 2 with some outliers, missing entries NaN; at this seed the truth is found."""
    return synthetic(SHAPE, 2, strengths=(1, 1), seed=0, **{"outliers": 0.05, "missing": 0.2, **options})


def fit(data, **options):
    return BRTF(**{"max_rank": 4, "inference": "paper", "tol": 1e-3, "random_state": 0, **options}).fit(data)


@pytest.fixture(scope="module", params=["complete", "masked"])
def found(request):
    """One covariance shared by all rows, and one for each."""
    return fit(problem(missing=0.0 if request.param == "complete" else 0.2).observed)


@pytest.fixture(scope="module")
def coords():
    """Some entries, in no order and one of them twice."""
    drawn = np.random.default_rng(SEED).integers(0, np.array(SHAPE)[:, None], size=(3, 12))
    return np.concatenate([drawn, drawn[:, :1]], axis=1)


def spread(result, factor):
    """The same posterior with all row covariances multiplied."""
    factors = tuple(RowGaussians(rows.mean, rows.cov * factor) for rows in result.state.factors)
    return replace(result, state=replace(result.state, factors=factors))


# ---- moments -----------------------------------------------------------------------------------------------


class TestLowRank:
    def test_mean_is_the_composition_of_the_factors(self, found):
        composed = np.einsum("ir,jr,kr->ijk", *found.factors_)
        # Two orders of summation of products of order one.
        np.testing.assert_allclose(found.low_rank(), composed, rtol=0, atol=1e-13)

    def test_answers_at_coordinates_are_those_of_the_whole(self, found, coords):
        index = tuple(coords)

        def ask(at):
            return [
                *found.predict(at, return_std=True),
                *found.predict(at, return_std=True, of="observation"),
                *found.predict_interval(at, level=0.8),
                *found.predict_interval(at, level=0.8, of="observation"),
            ]

        for some, whole in zip(ask(coords), ask(None), strict=True):
            # A matrix product and a sum over gathered rows round differently.
            np.testing.assert_allclose(some, whole[index], rtol=1e-12, atol=1e-13)

    def test_coordinates_may_be_index_arrays(self, found, coords):
        np.testing.assert_array_equal(found.predict(tuple(coords)), found.predict(coords))
        np.testing.assert_array_equal(found.predict(coords.tolist()), found.predict(coords.astype(np.uint8)))

    def test_variance_is_that_of_the_factors_in_their_units(self, found):
        pairs = zip(found.factors_, found.factor_covariances_, strict=True)
        moments = [np.einsum("ir,is->irs", mean, mean) + cov for mean, cov in pairs]
        variance = np.einsum("irs,jrs,krs->ijk", *moments) - found.low_rank() ** 2
        # The difference of two squares of order one loses all but thirteen of their digits.
        np.testing.assert_allclose(found.predict(return_std=True)[1] ** 2, variance, rtol=1e-6, atol=1e-13)

    @pytest.mark.parametrize("factor", [1.0, 300.0])
    def test_moments_are_those_of_draws(self, found, coords, factor):
        wide = spread(found.result_, factor)
        draws = wide.sample(N_DRAWS, np.random.default_rng(SEED), coords, of="low_rank")
        mean, variance = wide.low_rank(coords), wide.std(coords) ** 2
        # Standard errors from the draws' own second and fourth moments; four of them.
        assert (np.abs(draws.mean(axis=0) - mean) < 4 * draws.std(axis=0) / np.sqrt(N_DRAWS)).all()
        squares = (draws - mean) ** 2
        assert (np.abs(squares.mean(axis=0) - variance) < 4 * squares.std(axis=0) / np.sqrt(N_DRAWS)).all()

    def test_first_order_leaves_out_positive_terms(self, found):
        wide = spread(found.result_, 1000.0)
        exact, first_order = wide.factor_variance(), wide.factor_variance(method="first-order")
        assert (exact > first_order).all()
        assert exact.sum() > 1.05 * first_order.sum()

    def test_both_variances_agree_for_tiny_covariances(self, found):
        tiny = spread(found.result_, 1e-10)
        exact, first_order = tiny.factor_variance(), tiny.factor_variance(method="first-order")
        # What is left out is of second order in the covariances: 1e-10 of the whole, more where the means are small.
        np.testing.assert_allclose(exact, first_order, rtol=1e-6)

    def test_another_method_is_refused(self, found):
        with pytest.raises(ValueError, match="method must be 'exact' or 'first-order', got 'delta'"):
            found.result_.factor_variance(method="delta")


class TestIntervals:
    @pytest.mark.parametrize("level", [0.5, 0.95])
    @pytest.mark.parametrize("of", ["low_rank", "observation"])
    @pytest.mark.parametrize("dof", [3.0, None])
    def test_hold_their_share_of_draws(self, found, coords, of, level, dof):
        # For tiny covariances x is Gaussian, and y around it Student-t, exactly: nothing but the draws is in doubt.
        result = spread(found.result_, 1e-4)
        if dof is not None:
            heavy = Gamma(np.asarray(dof / 2), dof / 2 / result.state.tau.mean)
            result = replace(result, state=replace(result.state, tau=heavy))
        low, high = result.interval(coords, level=level, of=of)
        draws = result.sample(N_DRAWS, np.random.default_rng(SEED), coords, of=of)
        share = np.mean((low <= draws) & (draws <= high), axis=0)
        assert (np.abs(share - level) < 4 * np.sqrt(level * (1 - level) / N_DRAWS)).all()

    def test_are_centred_and_nested(self, found):
        for of in ("low_rank", "observation"):
            low, high = found.predict_interval(level=0.9, of=of)
            np.testing.assert_allclose((low + high) / 2, found.low_rank(), rtol=0, atol=1e-13)
            narrower = found.predict_interval(level=0.8, of=of)
            assert (low < narrower[0]).all()
            assert (narrower[1] < high).all()

    def test_an_observation_is_less_certain_than_the_low_rank_part(self, found):
        inner, outer = found.predict_interval(), found.predict_interval(of="observation")
        assert (outer[0] < inner[0]).all()
        assert (inner[1] < outer[1]).all()


class TestSample:
    def test_a_seed_gives_the_same_draws(self, found):
        first, second = (found.sample(2, random_state=3) for _ in range(2))
        np.testing.assert_array_equal(first, second)
        assert not np.array_equal(first[0], first[1])

    def test_noise_is_added_to_the_low_rank_part(self, found):
        around = found.sample(200, random_state=3) - found.sample(200, random_state=4, of="low_rank")
        variance = found.noise_variance_ + 2 * found.predict(return_std=True)[1] ** 2
        # Noise is independent from entry to entry: the mean square of 10⁵ is known to a percent.
        assert np.mean(around**2) == pytest.approx(variance.mean(), rel=0.03)


# ---- outliers and numbers ----------------------------------------------------------------------------------


class TestOutliers:
    def test_probability_is_that_of_a_deviation_beyond_three_robust_standard_deviations(self, found):
        data = problem(missing=0.0 if found.n_observed_ == np.prod(SHAPE) else 0.2)
        deviation = np.abs(data.observed - found.low_rank())[data.mask]
        limit = 3 * stats.median_abs_deviation(deviation, center=lambda *_, **__: 0.0, scale="normal")
        posterior = found.result_.state.local
        std = np.sqrt(posterior.var) * found.result_.scale
        law = stats.norm(found.outliers()[data.mask], std)
        # 1.4826 is the factor of the robust standard deviation to four decimals.
        np.testing.assert_allclose(found.outlier_probability()[data.mask], law.sf(limit) + law.cdf(-limit), atol=1e-4)

    def test_large_outliers_are_found(self, found):
        data = problem(missing=0.0 if found.n_observed_ == np.prod(SHAPE) else 0.2)
        large = data.mask & (np.abs(data.outliers) > 1)  # ten standard deviations of the noise
        np.testing.assert_allclose(found.outliers()[large], data.outliers[large], rtol=0, atol=0.5)
        assert found.outlier_probability()[large].min() > 0.9
        clean = data.mask & (data.outliers == 0)
        assert found.outlier_probability()[clean].mean() < 0.05

    @pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
    def test_entries_met_exactly_are_none(self):
        data = np.zeros(SHAPE)
        data[0, 0, 0] = 100.0
        probability = fit(data).outlier_probability()
        assert probability.flat[0] > 0.99
        assert probability.flat[1:].max() < 0.05


def test_the_bound_is_that_of_the_state_that_was_kept(found):
    result = found.result_
    accident = Record(len(result.trace) + 1, np.nan, result.rank, 1.0)
    stopped = replace(result, trace=(*result.trace, accident), stop_reason=StopReason.NOT_FINITE)
    assert stopped.bound == result.bound
    assert np.isnan(replace(stopped, trace=(accident,)).bound)


# ---- save and load -----------------------------------------------------------------------------------------


def masked():
    return problem().observed


def sparse():
    data = problem()
    return scipy.sparse.coo_array((data.observed[data.mask], np.nonzero(data.mask)), shape=SHAPE)


def labelled():
    days = pd.date_range("2024-02-26", periods=9)
    names = np.array([*"abcdefg", "<b>&\n"], dtype=object)
    coords = {"day": days, "place": names, "height": np.linspace(0, 1, 7)}
    return xr.DataArray(masked(), dims=("day", "place", "height"), coords=coords, name="rain")


def table():
    """A long table: sparse and labelled."""
    rows, columns = np.nonzero(problem().mask[0])
    return Observations.from_frame(
        pd.DataFrame({"user": rows, "item": [f"item {j}" for j in columns], "stars": masked()[0][rows, columns]})
    )


def single_precision():
    return masked().astype(np.float32)


def four_modes():
    return synthetic((7, 6, 5, 4), 2, strengths=(1, 1), missing=0.2, seed=0).observed


def noise():
    return np.random.default_rng(3).normal(size=(8, 7, 6))


CASES = {
    "complete": (lambda: problem(missing=0.0).observed, {}),
    "masked": (masked, {}),
    "sparse": (sparse, {}),
    "labelled": (labelled, {}),
    "table": (table, {}),
    "single precision": (single_precision, {}),
    "held in single precision": (masked, {"dtype": np.float32}),
    "four modes": (four_modes, {}),
    "without outliers": (masked, {"robust": False}),
    "rank zero": (noise, {}),
    "own options": (masked, {"max_rank": np.int64(3), "init": "random", "max_sweeps": 7, "tol": 0}),
    "warm start": (masked, {"init": [np.ones((length, 2)) for length in SHAPE]}),
}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES.keys())
def saved(request, tmp_path_factory):
    """Data, the model fitted to them, the file it was saved to and the model read back."""
    make, options = request.param
    path = tmp_path_factory.mktemp("saved") / "result.brtf"
    data = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = fit(data, **options)
    model.save(path)
    return data, model, path, load(path)


def plain(answer):
    """An answer as arrays that can be compared bit for bit."""
    if scipy.sparse.issparse(answer):
        return [np.stack(answer.coords), answer.data]
    if isinstance(answer, (tuple, list)):
        return [array for part in answer for array in plain(part)]
    array = np.asarray(answer)
    return [array.astype(str) if array.dtype == object else array]


ANSWERS = {
    "low_rank": lambda model, data, at: model.low_rank(),
    "outliers": lambda model, data, at: model.outliers(),
    "outlier_probability": lambda model, data, at: model.outlier_probability(),
    "impute": lambda model, data, at: model.impute(replace_outliers=True),
    "predict": lambda model, data, at: model.predict(at, return_std=True, of="observation"),
    "predict_interval": lambda model, data, at: model.predict_interval(at),
    "predict_interval of observations": lambda model, data, at: model.predict_interval(level=0.5, of="observation"),
    "sample": lambda model, data, at: model.sample(2, random_state=0),
    "score": lambda model, data, at: model.score(data),
    "transform": lambda model, data, at: model.transform(data, return_std=True),
}


class TestSaveAndLoad:
    @pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
    def test_every_method_answers_as_before(self, saved, answer):
        data, model, _, again = saved
        at = np.zeros((len(model.shape_in_), 2), dtype=int)
        for one, other in zip(plain(answer(model, data, at)), plain(answer(again, data, at)), strict=True):
            assert one.dtype == other.dtype
            assert one.shape == other.shape
            assert one.tobytes() == other.tobytes()

    def test_every_attribute_is_as_before(self, saved):
        _, model, _, again = saved
        fitted = [name for name in vars(model) if name.endswith("_") and name != "result_"]
        assert fitted == [name for name in vars(again) if name.endswith("_") and name != "result_"]
        for name in fitted:
            for one, other in zip(plain(getattr(model, name)), plain(getattr(again, name)), strict=True):
                assert one.tobytes() == other.tobytes()

    def test_settings_and_history_are_kept(self, saved):
        _, model, _, again = saved
        assert again.result_.trace == model.result_.trace
        for name in ("stop_reason", "seconds", "version"):
            assert getattr(again.result_, name) == getattr(model.result_, name)
        for name in Settings.__dataclass_fields__:
            kept = getattr(model.result_.settings, name)
            if isinstance(kept, list):  # the factors a fit started from are no part of what it found
                kept = "spectral"
            assert again.get_params()[name] == kept

    def test_saving_again_gives_the_same_bytes(self, saved, tmp_path):
        *_, path, again = saved
        again.save(tmp_path / "again.brtf")
        assert (tmp_path / "again.brtf").read_bytes() == path.read_bytes()

    def test_labels_come_back(self, tmp_path):
        tensor = labelled()
        fit(tensor).save(tmp_path / "labelled.brtf")
        filled = load(tmp_path / "labelled.brtf").impute()
        xr.testing.assert_identical(filled.where(~np.isnan(masked())), tensor)

    def test_column_names_come_back(self, tmp_path):
        frame = pd.DataFrame(problem(missing=0.0).observed[0], columns=list("abcdefg"))
        fit(frame).save(tmp_path / "frame.brtf")
        again = load(tmp_path / "frame.brtf")
        assert list(again.feature_names_in_) == list("abcdefg")
        with pytest.raises(ValueError, match="feature names"):
            again.transform(frame[list("gfedcba")])

    def test_a_missing_file_is_missing(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            load(tmp_path / "nothing.brtf")


# ---- files that do not add up ------------------------------------------------------------------------------


def drop(name):
    return lambda header, arrays: arrays.pop(name)


def put(name, change):
    def apply(header, arrays):
        arrays[name] = change(arrays[name])

    return apply


def write(*names, value):
    def apply(header, arrays):
        for name in names[:-1]:
            header = header[name]
        header[names[-1]] = value

    return apply


def first_entry(value):
    def change(array):
        changed = np.array(array)
        changed.flat[0] = value
        return changed

    return change


DAMAGES = {
    "no values": (drop("values"), "'values' is missing"),
    "no factor": (drop("factor.1.mean"), "'factor.1.mean' is missing"),
    "no trace": (drop("trace.bound"), "'trace.bound' is missing"),
    "no outliers": (drop("outliers.var"), "'outliers.var' is missing"),
    "no prior": (lambda header, arrays: header.pop("prior"), "'prior' is missing"),
    "rows": (put("factor.0.mean", lambda mean: mean[:-1]), "factor.0.mean"),
    "columns": (put("factor.2.mean", lambda mean: mean[:, :1]), "factor.2.mean"),
    "covariances": (put("factor.1.cov", lambda cov: cov[:2]), "factor.1.cov"),
    "covariance of another rank": (put("factor.1.cov", lambda cov: cov[:, :1, :1]), "factor.1.cov"),
    "covariance without modes": (put("factor.1.cov", lambda cov: np.array(0.5)), "does not fit"),
    "factors of text": (put("factor.0.mean", lambda mean: mean.astype(str)), "factor.0.mean"),
    "a factor that is NaN": (put("factor.0.mean", first_entry(np.nan)), "factor.0.mean"),
    "precisions": (put("lam.concentration", lambda lam: lam[:1]), "lam.concentration"),
    "negative precisions": (put("lam.rate", np.negative), "lam is not positive"),
    "a noise per entry": (put("tau.rate", lambda rate: np.repeat(rate, 3)), "tau.rate"),
    "fewer outliers": (put("outliers.mean", lambda mean: mean[1:]), "outliers.mean"),
    "fewer outlier precisions": (put("outliers.gamma.rate", lambda rate: rate[1:]), "outliers.gamma.rate"),
    "mask of another shape": (put("mask", lambda mask: mask[1:]), "mask is not what it should be"),
    "mask of numbers": (put("mask", lambda mask: mask.astype(np.uint8)), "mask is not what it should be"),
    "mask of another count": (put("mask", np.logical_not), "values is not what it should be"),
    "values of another count": (put("values", lambda values: values[1:]), "values is not what it should be"),
    "values that are infinite": (put("values", first_entry(np.inf)), "values is not what it should be"),
    "values of another scale": (put("values", first_entry(1e300)), "Y reaches 1e+300, more than 1e+100 times"),
    "values of integers": (put("values", lambda values: values.astype(int)), "values is not what it should be"),
    "masked values without mask": (drop("mask"), "values is not what it should be"),
    "a trace of two lengths": (put("trace.rank", lambda rank: rank[1:]), "a value has the wrong type or size"),
    "a trace of one number": (put("trace.rank", lambda rank: np.array(2)), "does not fit"),
    "an infinite rank": (put("trace.rank", lambda rank: np.full(rank.shape, np.inf)), "a value has the wrong"),
    "outliers without a variance": (put("outliers.var", first_entry(0.0)), "outliers.var is not positive"),
    "scale of nothing": (write("scale", value=None), "a value has the wrong type or size"),
    "noise below zero": (put("trace.noise_variance", np.negative), "a noise variance below 0"),
    "shape of text": (write("shape", value="987"), "shape must be a sequence of integers"),
    "shape of fractions": (write("shape", value=[9.5, 8, 7]), "shape must be a sequence of integers"),
    "shape of order one": (write("shape", value=[504]), "order >= 2"),
    "shape too long": (write("shape", value=[9, 8, 2**40]), "mask is not what it should be"),
    "scale zero": (write("scale", value=0.0), "the scale is 0.0"),
    "scale of text": (write("scale", value="large"), "a value has the wrong type or size"),
    "stop reason": (write("stop_reason", value="BORED"), "the stop reason 'BORED' is unknown"),
    "stop reason of no kind": (write("stop_reason", value=["CONVERGED"]), "does not fit"),
    "option out of range": (write("settings", "tol", value=-1), "tol must be"),
    "option unknown": (write("settings", "colour", value="red"), "colour"),
    "scatter of no modes": (write("settings", "scatter", value=5), "scatter needs to know which mode is emission"),
    "no local model": (write("local_model", value=None), "a value has the wrong type or size"),
    "variances whose inverses overflow": (put("factor.1.cov", first_entry(1e-310)), "that are not positive"),
    "events": (write("events", value=[]), "does not fit"),
    "labels": (write("labels", value={"dims": ["day"], "name": None}), "labels has 1 dims and 3 coords"),
    "labels without names": (write("labels", value={"dims": ["x", "y", "z"]}), "'name' is missing"),
}
SPARSE_DAMAGES = {
    "coordinates beyond the shape": (put("coords", first_entry(99)), "outside shape"),
    "negative coordinates": (put("coords", first_entry(-1)), "outside shape"),
    "duplicates": (put("coords", lambda coords: np.repeat(coords[:, :1], coords.shape[1], axis=1)), "duplicates"),
    "coordinates of fractions": (put("coords", lambda coords: coords + 0.5), "coords is not what it should be"),
    "coordinates of another count": (put("coords", lambda coords: coords[:, 1:]), "coords is not what it should be"),
    "coordinates of another order": (put("coords", lambda coords: coords[1:]), "coords is not what it should be"),
    "values that are NaN": (put("values", first_entry(np.nan)), "values is not what it should be"),
}


@pytest.fixture(scope="module")
def fitted_results():
    return {"masked": fit(masked()).result_, "sparse": fit(sparse()).result_}


class TestDamagedFiles:
    """Whole, unaltered containers, with content that cannot be a result."""

    def refuse(self, result, damage, sentence, path):
        header, arrays = pack(result)
        damage(header, arrays)
        write_archive(path, header, arrays)
        with pytest.raises(CorruptFile) as caught:
            load(path)
        message = str(caught.value)
        assert sentence in message
        assert message.startswith(f"{path} is not a result of brtf: ")
        assert message.endswith(").")
        assert "\n" not in message

    @pytest.mark.parametrize(("damage", "sentence"), DAMAGES.values(), ids=DAMAGES.keys())
    def test_is_refused_in_one_sentence(self, fitted_results, damage, sentence, tmp_path):
        self.refuse(fitted_results["masked"], damage, sentence, tmp_path / "damaged.brtf")

    @pytest.mark.parametrize(("damage", "sentence"), SPARSE_DAMAGES.values(), ids=SPARSE_DAMAGES.keys())
    def test_is_refused_in_one_sentence_when_sparse(self, fitted_results, damage, sentence, tmp_path):
        self.refuse(fitted_results["sparse"], damage, sentence, tmp_path / "damaged.brtf")

    def test_noise_without_a_variance(self, tmp_path):
        result = fit(masked(), inference="calibrated").result_
        model = {"kind": "GaussianSlab", "probability": 0.1, "shape": 1.5, "width": 10.0}
        damage = write("local_model", value=model)
        self.refuse(result, damage, "the numbers of the local model", tmp_path / "damaged.brtf")

    def test_undamaged_is_accepted(self, fitted_results, tmp_path):
        for result in fitted_results.values():
            write_archive(tmp_path / "whole.brtf", *pack(result))
            assert load(tmp_path / "whole.brtf").rank_ == result.rank
