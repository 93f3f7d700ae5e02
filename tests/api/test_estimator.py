"""The scikit-learn face: scikit-learn's own checks, then the contract for tensors that those checks cannot know."""

import pickle
import re
import warnings
from inspect import signature

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import xarray as xr
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from brtf import BRTF, FitWarning, Observations, load
from brtf.datasets import synthetic

NAN = np.nan
SHAPES = {3: (9, 8, 7), 4: (7, 6, 5, 4)}


def problem(order=3, **options):
    """A small tensor of rank 2 with some outliers, missing entries NaN; at this seed the truth is found."""
    return synthetic(SHAPES[order], 2, strengths=(1, 1), seed=0, **{"outliers": 0.05, "missing": 0.2, **options})


def model(max_rank=4, **options):
    """A model that converges within a second on such a tensor."""
    return BRTF(max_rank, **{"inference": "paper", "tol": 1e-3, "random_state": 0, **options})


@pytest.fixture(scope="module", params=SHAPES)
def fitted(request):
    return model().fit(problem(request.param).observed)


def compose(factors):
    """Σ_r of the outer products of the factors' columns, by einsum."""
    letters = "abcdef"[: len(factors)]
    return np.einsum(",".join(f"{letter}r" for letter in letters) + f"->{letters}", *factors)


def everything(found):
    """What a fit says, for exact comparison."""
    return [found.low_rank(), np.asarray(found.outliers()), found.bound_, found.noise_variance_, *found.factors_]


def assert_same_fit(left, right):
    for one, other in zip(everything(left), everything(right), strict=True):
        np.testing.assert_array_equal(one, other)


# ---- scikit-learn's own checks -----------------------------------------------------------------------------

# The model's types are stricter, and its sentences speak of modes: matrices are only one case.
STRICTER = {
    "check_complex_data": "complex data are refused with a TypeError that names the dtype, like other non-real types",
    "check_dtype_object": "object arrays are refused with a TypeError: numbers are converted by the user, not guessed",
    "check_estimators_empty_data_messages": "an empty mode is refused by its number: tensors have no features",
    "check_fit2d_predict1d": "data of order 1 are refused by their order and shape",
}
# predict() answers at integer coordinates of the tensor; these checks hand it a data matrix.
AT_COORDINATES = dict.fromkeys(
    [
        "check_dict_unchanged",
        "check_estimator_sparse_array",
        "check_estimator_sparse_matrix",
        "check_estimators_dtypes",
        "check_estimators_pickle",
        "check_f_contiguous_array_estimator",
        "check_fit_idempotent",
        "check_methods_sample_order_invariance",
        "check_methods_subset_invariance",
        "check_n_features_in_after_fitting",
    ],
    "predict takes integer coordinates of entries, not data",
)


class Loadings(BRTF):
    """BRTF as a mere transformer: without predict, what is left of the checks that call it applies."""

    @property
    def predict(self):
        raise AttributeError("predict")


def name_of(check):
    return check.func.__name__


quiet = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


# older versions do not look whether what should fail does
STRICTLY = {"xfail_strict": True} if "xfail_strict" in signature(parametrize_with_checks).parameters else {}


@quiet
@pytest.mark.filterwarnings("ignore:Mode . has:UserWarning")
@parametrize_with_checks(
    [BRTF(inference="paper"), BRTF()], expected_failed_checks=lambda estimator: STRICTER | AT_COORDINATES, **STRICTLY
)
def test_scikit_learn(estimator, check):
    check(estimator)


@quiet
@pytest.mark.filterwarnings("ignore:Mode . has:UserWarning")
@pytest.mark.parametrize(
    "check",
    [check for _, check in estimator_checks_generator(Loadings(inference="paper")) if name_of(check) in AT_COORDINATES],
    ids=name_of,
)
def test_scikit_learn_apart_from_predict(check):
    check(Loadings(inference="paper", max_sweeps=20))  # quicker: the default was checked above


# ---- what a fit leaves behind ------------------------------------------------------------------------------


class TestFitted:
    def test_attributes(self, fitted):
        shape, rank = fitted.shape_in_, fitted.rank_
        data = problem(len(shape))
        assert shape == data.observed.shape
        assert rank == 2
        assert [factor.shape for factor in fitted.factors_] == [(length, rank) for length in shape]
        assert [cov.shape for cov in fitted.factor_covariances_] == [(length, rank, rank) for length in shape]
        assert fitted.component_precisions_.shape == (rank,)
        assert fitted.n_observed_ == data.mask.sum()
        assert fitted.n_features_in_ == np.prod(shape[1:])
        assert 0 < fitted.noise_variance_ < 1
        assert 0 < fitted.outlier_rate_ < 1
        assert fitted.converged_ is True
        assert fitted.stop_reason_.startswith("Converged")
        assert fitted.result_.rank == rank

    def test_the_trace_has_a_row_a_sweep_and_ends_in_the_final_numbers(self, fitted):
        trace = fitted.trace_
        assert trace.shape == (fitted.n_sweeps_,) == (fitted.n_iter_,)
        np.testing.assert_array_equal(trace["sweep"], np.arange(1, fitted.n_sweeps_ + 1))
        assert trace["bound"][-1] == fitted.bound_
        assert trace["rank"][-1] == fitted.rank_
        assert trace["noise_variance"][-1] == fitted.noise_variance_
        assert "pruned 1" in trace["event"] or "pruned 2" in trace["event"]

    def test_low_rank_is_the_sum_of_outer_products(self, fitted):
        # Two orders of summation of a few products: a few units in the last place of the largest.
        np.testing.assert_allclose(fitted.low_rank(), compose(fitted.factors_), rtol=0, atol=1e-13)

    def test_truth_is_found(self, fitted):
        data = problem(len(fitted.shape_in_))
        # The noise has standard deviation 0.1 and averages out over some ten entries per parameter.
        assert np.sqrt(np.mean((fitted.low_rank() - data.low_rank) ** 2)) < 0.1

    def test_tensor_sized_answers_have_the_shape_of_the_data(self, fitted):
        for answer in (fitted.low_rank(), fitted.outliers(), fitted.outlier_probability(), fitted.impute()):
            assert answer.shape == fitted.shape_in_
        assert fitted.sample(3).shape == (3, *fitted.shape_in_)

    def test_outliers_live_at_observed_entries(self, fitted):
        mask = problem(len(fitted.shape_in_)).mask
        assert not fitted.outliers()[~mask].any()
        probability = fitted.outlier_probability()
        assert not probability[~mask].any()
        assert probability.min() >= 0
        assert probability.max() <= 1
        assert fitted.outlier_rate_ == pytest.approx(probability[mask].mean())

    def test_impute_fills_only_what_is_missing(self, fitted):
        data = problem(len(fitted.shape_in_))
        filled = fitted.impute()
        assert filled[data.mask].tobytes() == data.observed[data.mask].tobytes()
        np.testing.assert_array_equal(filled[~data.mask], fitted.low_rank()[~data.mask])

    def test_impute_can_take_the_outliers_out(self, fitted):
        data = problem(len(fitted.shape_in_))
        cleaned = fitted.impute(replace_outliers=True)
        expected = np.where(data.mask, data.observed - fitted.outliers(), fitted.low_rank())
        np.testing.assert_array_equal(cleaned, expected)

    def test_unconverged_is_a_warning_with_the_reason(self):
        unsettled = model(max_sweeps=2)
        with pytest.warns(ConvergenceWarning, match="raise max_sweeps"):
            unsettled.fit(problem().observed)
        assert unsettled.converged_ is False
        assert unsettled.n_sweeps_ == 2

    def test_progress_goes_to_stderr_and_only_when_asked(self, capsys):
        model().fit(problem().observed)
        assert capsys.readouterr() == ("", "")
        model(progress=True).fit(problem().observed)
        written = capsys.readouterr()
        assert written.out == ""
        assert "sweep" in written.err

    @pytest.mark.parametrize("seed", [7, np.random.RandomState, np.random.default_rng])
    def test_one_seed_gives_one_fit(self, seed):
        data = problem().observed
        states = [seed(7) if callable(seed) else seed for _ in range(2)]
        assert_same_fit(*(model(random_state=state, init="random").fit(data) for state in states))

    def test_a_warm_start_takes_its_rank_from_the_factors(self, fitted):
        again = model(init=fitted.factors_).fit(problem(len(fitted.shape_in_)).observed)
        assert again.rank_ == fitted.rank_
        # S and the noise are found anew, and may claim other entries: the same answer within the noise, 0.1.
        assert np.sqrt(np.mean((again.low_rank() - fitted.low_rank()) ** 2)) < 0.1

    def test_float32_data_stay_float32_and_agree(self):
        data = problem().observed
        single = model(dtype=np.float32).fit(data)
        assert single.result_.observations.values.dtype == np.float32
        # Rounding to single precision moves the data by 1e-7 of their size.
        np.testing.assert_allclose(single.low_rank(), model().fit(data).low_rank(), rtol=0, atol=1e-5)


# ---- what goes in ------------------------------------------------------------------------------------------


class TestInput:
    @pytest.mark.parametrize("order", SHAPES)
    def test_nothing_is_modified(self, order):
        data = problem(order)
        given = [data.observed, data.mask, *data.factors]
        before = [array.copy() for array in given]
        found = model(init=data.factors).fit(data.observed, mask=data.mask)
        (
            found.outliers(),
            found.impute(replace_outliers=True),
            found.score(data.observed),
            found.transform(data.observed),
        )
        for array, copy in zip(given, before, strict=True):
            assert array.tobytes() == copy.tobytes()

    @pytest.mark.parametrize("order", SHAPES)
    def test_every_way_to_say_missing_is_the_same(self, order):
        data = problem(order)
        zeros = np.where(data.mask, data.observed, 0.0)
        by_nan = model().fit(data.observed)
        assert_same_fit(by_nan, model().fit(zeros, data.mask))
        assert_same_fit(by_nan, model().fit(zeros, mask=data.mask))
        assert_same_fit(by_nan, model().fit(np.ma.MaskedArray(zeros, ~data.mask)))

    def test_a_mask_given_twice(self):
        data = problem()
        with pytest.raises(ValueError, match="mask was given twice"):
            model().fit(data.observed, data.mask, mask=data.mask)

    @pytest.mark.parametrize("target", [np.arange(9.0), np.ones((9, 1)), list("abcabcabc")])
    def test_a_target_is_ignored(self, target):
        data = problem().observed
        assert_same_fit(model().fit(data), model().fit(data, target))

    @pytest.mark.parametrize("order", SHAPES)
    def test_in_a_pipeline(self, order):
        data = problem(order)
        halve = FunctionTransformer(lambda tensor: tensor / 2)
        pipeline = make_pipeline(halve, model()).fit(data.observed, np.zeros(len(data.observed)))
        alone = model().fit(data.observed / 2)
        assert_same_fit(pipeline[-1], alone)
        np.testing.assert_array_equal(pipeline.transform(data.observed), alone.transform(data.observed / 2))
        masked = make_pipeline(halve, model()).fit(np.nan_to_num(data.observed), brtf__mask=data.mask)
        assert_same_fit(masked[-1], alone)

    @pytest.mark.parametrize(
        "convert",
        [
            lambda whole: whole.astype(np.uint8),
            lambda whole: whole.astype(np.int16),
            lambda whole: whole.astype(np.float16),
            lambda whole: whole.astype(">f8"),
            lambda whole: whole.astype(">i4"),
            np.asfortranarray,
            lambda whole: np.ascontiguousarray(whole[::-1, :, ::-1])[::-1, :, ::-1],
            lambda whole: np.repeat(whole, 2, axis=1)[:, ::2],
            lambda whole: whole.tolist(),
        ],
        ids=["uint8", "int16", "float16", "big-endian", "big-endian int", "F-order", "reversed", "strided", "lists"],
    )
    def test_numbers_are_what_counts(self, convert):
        data = problem(missing=0.0, outliers=0.0).low_rank
        whole = np.round(255 * (data - data.min()) / np.ptp(data))
        assert_same_fit(model().fit(whole), model().fit(convert(whole)))

    def test_bool_is_zero_and_one(self):
        positive = problem(missing=0.0).low_rank > 0
        with pytest.warns(FitWarning, match="only two values"):
            assert_same_fit(model().fit(positive), model().fit(positive.astype(float)))

    @pytest.mark.parametrize("factor", [5e-324, 1e-300, 1e300], ids=["denormal", "tiny", "huge"])
    def test_extreme_sizes_are_finite(self, factor):
        data = np.round(100 * problem().observed) * factor
        found = model().fit(data)
        mean, std = found.predict(return_std=True)
        answers = [mean, std, *found.predict_interval(of="observation"), found.sample(2, random_state=0)]
        answers += [found.impute(), found.outliers(), found.bound_, found.score(data), *found.transform(data, True)]
        for answer in answers:
            assert np.isfinite(answer).all()
        # Units do not change what is found: down to the spacing of denormals, which is the factor itself.
        ordinary = model().fit(np.round(100 * problem().observed))
        np.testing.assert_allclose(mean / factor, ordinary.low_rank(), rtol=0.02, atol=2)

    @quiet
    @pytest.mark.parametrize("value", [0.0, 1.0, -7.0])
    @pytest.mark.parametrize("robust", [True, False])
    def test_constant_data_fit(self, value, robust):
        found = model(robust=robust).fit(np.full((6, 5, 4), value))
        assert found.rank_ in (0, 1)
        mean, std = found.predict(return_std=True)
        for answer in (mean, std, found.bound_, found.noise_variance_, found.outliers(), found.sample()):
            assert np.isfinite(answer).all()
        # All entries are alike: none stands out.
        assert found.outlier_rate_ < 0.05

    def test_an_empty_slice_warns_and_falls_back_to_the_prior(self):
        data = problem(missing=0.0).observed.copy()
        data[3] = NAN
        with pytest.warns(UserWarning, match=r"Mode 0 has 1 empty slice \(index 3\)"):
            found = model().fit(data)
        mean, std = found.predict(return_std=True)
        assert np.abs(mean[3]).max() < 1e-9 * np.abs(mean).max()
        # The prior's width is the size of a typical row; the others are known to the noise over √(8 · 7 entries).
        assert std[3].mean() > 5 * np.delete(std, 3, axis=0).mean()

    def test_sparse_matrices_are_observed_where_stored(self):
        data = problem().observed[0]
        rows, columns = np.nonzero(~np.isnan(data))
        values = data[rows, columns]
        stored = scipy.sparse.csr_array((values, (rows, columns)), shape=data.shape)
        found = model().fit(stored)
        dense = model().fit(data)
        # Two layouts add the same numbers in another order.
        np.testing.assert_allclose(found.low_rank(), dense.low_rank(), rtol=0, atol=1e-8)
        assert scipy.sparse.issparse(found.outliers())
        np.testing.assert_allclose(found.outliers().toarray(), dense.outliers(), rtol=0, atol=1e-8)
        assert scipy.sparse.issparse(found.outlier_probability())

    @pytest.mark.parametrize("labels", [list("abcdefgh"), np.arange(8) + 400.5, np.arange(8).astype("M8[D]")])
    def test_labels_of_tensors_are_compared(self, labels):
        tensor = xr.DataArray(problem(missing=0.0).observed, {"x": labels}, ("t", "x", "y"))
        found = model(inference="calibrated", arrangement=None).fit(tensor)
        np.testing.assert_array_equal(found.transform(tensor), found.transform(tensor.to_numpy()))
        for answer in (found.transform, found.score, lambda Y: found.anomalies(Y=Y), found.partial_fit):
            with pytest.raises(ValueError, match=r"labels of mode 'x' of Y are not those of the fit: at position 0 "):
                answer(tensor[:, ::-1])
        with pytest.raises(ValueError, match=r"The modes of Y are .* Transpose Y accordingly"):
            found.transform(tensor.rename(x="y", y="x").drop_vars("y"))

    def test_rows_that_are_scored_have_the_fitted_labels(self):
        frame = pd.DataFrame(problem(missing=0.0).observed[:, :, 0]).rename(index="row {}".format)
        found = model().fit(frame)
        with pytest.raises(ValueError, match=r"labels of mode .* at position 0 there is row \d+, but was row 0"):
            found.score(frame[::-1])
        assert np.isfinite(found.transform(frame[::-1])).all(axis=None)

    def test_column_names_are_kept_and_compared(self):
        names = [f"column {j}" for j in range(8)]
        frame = pd.DataFrame(problem(missing=0.0).observed[:, :, 0], columns=names)
        found = model().fit(frame)
        assert found.feature_names_in_.dtype == object
        np.testing.assert_array_equal(found.feature_names_in_, names)
        np.testing.assert_array_equal(found.transform(frame), found.transform(frame.to_numpy()))
        for answer in (found.transform, found.score):
            with pytest.raises(ValueError, match="feature names should match"):
                answer(frame[names[::-1]])
        assert not hasattr(found.fit(frame.to_numpy()), "feature_names_in_")


class TestHuge:
    """Shapes whose dense tensor no machine holds."""

    @staticmethod
    def sparse(side):
        rng = np.random.default_rng(5)
        return Observations.from_coords(rng.integers(0, side, (3, 200)), rng.normal(size=200), (side,) * 3)

    @quiet
    @pytest.mark.filterwarnings("ignore:Mode . has:UserWarning")
    def test_sparse_in_sparse_out(self):
        data = self.sparse(2**14)
        found = model(max_rank=2, max_sweeps=3).fit(data)
        for answer in (found.outliers(), found.outlier_probability()):
            assert scipy.sparse.issparse(answer)
            assert answer.shape == data.shape
            assert answer.nnz == 200
        assert found.predict(data.coords).shape == (200,)
        low, high = found.predict_interval(data.coords, of="observation")
        assert (low < high).all()
        assert found.sample(2, data.coords).shape == (2, 200)
        for whole_tensor in (found.low_rank, found.predict, found.predict_interval, found.impute, found.sample):
            with pytest.raises(MemoryError, match=r"dense tensor of shape .* GB; pass coords="):
                whole_tensor()
        with pytest.raises(MemoryError, match="draw fewer"):
            found.sample(10**12, data.coords)

    @pytest.mark.filterwarnings("ignore:Mode . has:UserWarning")
    def test_what_does_not_fit_is_refused_before_it_is_tried(self, monkeypatch):
        monkeypatch.setattr("brtf.data.memory.available_bytes", lambda: 10**9)
        with pytest.raises(MemoryError, match=r"a fit of shape .* with max_rank 2 would take .* lower max_rank"):
            model(max_rank=2).fit(self.sparse(2**22))


class TestLabels:
    def test_a_labelled_tensor_comes_back_labelled(self):
        data = problem()
        tensor = xr.DataArray(
            data.observed,
            dims=("day", "place", "hour"),
            coords={"day": pd.date_range("2024-02-26", periods=9), "place": list("abcdefgh")},
            name="rain",
        )
        found = model().fit(tensor)
        filled = found.impute()
        assert isinstance(filled, xr.DataArray)
        assert filled.name == "rain"
        xr.testing.assert_identical(filled.where(data.mask), tensor)
        assert not filled.isnull().any()
        assert_same_fit(found, model().fit(data.observed))


# ---- new data ----------------------------------------------------------------------------------------------


class TestNewData:
    def test_transform_gives_loadings_of_new_slices(self, fitted):
        data = problem(len(fitted.shape_in_))
        loadings, std = fitted.transform(data.observed[:3], return_std=True)
        assert loadings.shape == std.shape == (3, fitted.rank_)
        assert (std > 0).all()
        rebuilt = compose([loadings, *fitted.factors_[1:]])
        # As well as the fit itself knows those slices: noise 0.1 over some twenty entries per loading.
        assert np.sqrt(np.mean((rebuilt - data.low_rank[:3]) ** 2)) < 0.15

    def test_transform_of_the_training_data_is_fit_transform(self, fitted):
        data = problem(len(fitted.shape_in_)).observed
        np.testing.assert_array_equal(model().fit_transform(data), fitted.transform(data))
        # Close to the factor itself: q(γ) is found anew for held modes, and stops within its own tolerance.
        np.testing.assert_allclose(fitted.transform(data), fitted.factors_[0], rtol=0, atol=0.1)

    def test_slices_do_not_see_each_other(self, fitted):
        data = problem(len(fitted.shape_in_)).observed
        alone = np.concatenate([fitted.transform(row[None]) for row in data])
        # All rows iterate until the slowest has settled, to 1e-8 of the largest loading.
        np.testing.assert_allclose(alone, fitted.transform(data), rtol=0, atol=1e-6)

    def test_score_is_higher_for_data_like_those_seen(self, fitted):
        data = problem(len(fitted.shape_in_), missing=0.0, outliers=0.0)
        assert fitted.score(data.low_rank) > fitted.score(data.low_rank[::-1].copy())
        assert fitted.score(data.low_rank, data.mask) == fitted.score(data.low_rank, mask=data.mask)

    def test_other_shapes_are_refused(self, fitted):
        data = problem(len(fitted.shape_in_)).observed
        with pytest.raises(ValueError, match="modes after the first must be"):
            fitted.transform(data[:, 1:])
        with pytest.raises(ValueError, match="mark what is not observed as NaN"):
            fitted.score(data[1:])

    @quiet
    def test_rank_zero_is_an_answer(self):
        noise = np.random.default_rng(3).normal(size=(8, 7, 6))
        found = model().fit(noise)
        assert found.rank_ == 0
        assert [factor.shape for factor in found.factors_] == [(8, 0), (7, 0), (6, 0)]
        assert not found.low_rank().any()
        assert not found.predict(return_std=True)[1].any()
        assert found.transform(noise).shape == (8, 0)
        low, high = found.predict_interval(of="observation")
        assert (low < high).all()

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"robust": False},
            {"noise": "per-slice"},
            {"outlier_modes": (2,)},
            {"outlier_labels": np.eye(9, 7, dtype=int)[None]},
            {"outlier_kind": "replacement"},
            {"calibrate": "conformal"},
        ],
        ids=str,
    )
    @pytest.mark.filterwarnings("ignore::brtf.FitWarning")  # there is nothing to replace
    def test_every_method_answers_at_rank_zero(self, options, tmp_path):
        noise = np.random.default_rng(0).standard_normal((8, 9, 7))
        found = BRTF(random_state=0, **options).fit(noise)
        assert found.rank_ == 0
        found.save(tmp_path / "zero.brtf")
        for one in (found, load(tmp_path / "zero.brtf")):
            loadings, std = one.transform(noise[:3], return_std=True)
            assert loadings.shape == std.shape == (3, 0)
            assert one.sample(2).shape == (2, 8, 9, 7)
            assert np.isfinite(one.predict_interval(of="observation")).all()
            assert one.score(noise) > -2.0
            assert one.to_frame("imputed").shape == (noise.size, 6)
            assert one.to_xarray()["factor_mode_0"].shape == (8, 0)
            one.report(tmp_path / "zero.html")
            assert "rank" in str(one.summary())
        assert BRTF(random_state=0, **options).fit_transform(noise).shape == (8, 0)

    @pytest.mark.parametrize("robust", [True, False])
    def test_partial_fit_goes_on_at_rank_zero(self, robust):
        noise = np.random.default_rng(0).standard_normal((12, 9, 7))
        found = BRTF(robust=robust, random_state=0).fit(noise[:8]).partial_fit(noise[8:])
        assert found.factors_[0].shape == (12, 0)
        assert 0.8 < found.noise_variance_ < 1.2


# ---- what a user may get wrong -----------------------------------------------------------------------------

METHODS = {
    "low_rank": lambda m: m.low_rank(),
    "outliers": lambda m: m.outliers(),
    "outlier_probability": lambda m: m.outlier_probability(),
    "impute": lambda m: m.impute(),
    "predict": lambda m: m.predict(),
    "predict_interval": lambda m: m.predict_interval(),
    "sample": lambda m: m.sample(),
    "score": lambda m: m.score(problem().observed),
    "transform": lambda m: m.transform(problem().observed),
    "save": lambda m: m.save("never.brtf"),
}
WRONG_OPTIONS = [
    *[("max_rank", value) for value in (0, -1, 2.0, True, "3", NAN)],
    *[("inference", value) for value in ("Paper", None, 1)],
    *[("robust", value) for value in (None, 1, "yes")],
    *[("init", value) for value in ("svd", [], None, 3)],
    *[("max_sweeps", value) for value in (0, -5, 10.0, None, NAN)],
    *[("tol", value) for value in (-1e-9, NAN, np.inf, "1e-6", None)],
    *[("dtype", value) for value in (np.int32, np.complex128, "f2")],
    *[("random_state", value) for value in (-1, 1.5, "seed")],
    *[("smooth_residual", value) for value in ("time", 0.5, np.array([1.0, 2.0]), True)],
]
WRONG_STARTS = {
    "one mode too few": ([np.ones((9, 2)), np.ones((8, 2))], "init must have one factor matrix per mode (3), got 2"),
    "wrong rows": ([np.ones((9, 2)), np.ones((9, 2)), np.ones((7, 2))], "init[1] must have shape (8, 2)"),
    "wrong rank": ([np.ones((9, 2)), np.ones((8, 2)), np.ones((7, 3))], "init[2] must have shape (7, 2)"),
    "no columns": ([np.ones((9, 0)), np.ones((8, 0)), np.ones((7, 0))], "at least one column"),
    "vectors": ([np.ones(9), np.ones(8), np.ones(7)], "init[0] must have shape"),
    "NaN": ([np.full((9, 2), NAN), np.ones((8, 2)), np.ones((7, 2))], "init[0] holds values that are not finite"),
}


class TestErrors:
    @pytest.mark.parametrize("call", METHODS.values(), ids=METHODS.keys())
    def test_nothing_works_before_fit(self, call, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(NotFittedError, match="not fitted yet"):
            call(model())

    @pytest.mark.parametrize(("name", "value"), WRONG_OPTIONS)
    def test_an_option_out_of_range_is_named_at_fit(self, name, value):
        wrong = model(**{name: value})  # the constructor takes anything, as scikit-learn asks
        with pytest.raises(ValueError, match=f"^{name} must be"):
            wrong.fit(problem().observed)
        assert not hasattr(wrong, "result_")

    @pytest.mark.parametrize(("factors", "sentence"), WRONG_STARTS.values(), ids=WRONG_STARTS.keys())
    def test_a_start_that_does_not_fit_is_named(self, factors, sentence):
        with pytest.raises(ValueError, match=re.escape(sentence)):
            model(init=factors).fit(problem().observed)

    @pytest.mark.parametrize(
        ("data", "error", "sentence"),
        [
            (None, TypeError, "needs order >= 2"),
            ("tensor", TypeError, "needs order >= 2"),
            ({"a": 1}, TypeError, "needs order >= 2"),
            (3.0, ValueError, "needs order >= 2"),
            (np.ones(3), ValueError, "needs order >= 2"),
            (np.ones((3, 0, 2)), ValueError, "mode 1 has length 0"),
            (np.full((3, 2), NAN), ValueError, "no observed entry"),
            (np.array([[1, 2], [3, np.inf]]), ValueError, r"Y\[1, 1\] is inf \(1 infinite entry in all\)"),
            (np.ones((3, 2), dtype=complex), TypeError, "complex128"),
            (np.ones((3, 2), dtype=object), TypeError, "object"),
            (np.array([["a", "b"]]), TypeError, "dtype <U1"),
            (np.zeros((3, 2), dtype="M8[s]"), TypeError, r"datetime64\[s\]"),
        ],
    )
    def test_bad_data_are_refused_everywhere(self, fitted, data, error, sentence):
        for use in (model().fit, fitted.score, fitted.transform):
            with pytest.raises(error, match=sentence):
                use(data)

    @pytest.mark.parametrize(
        ("coords", "error", "sentence"),
        [
            (np.zeros((5, 3), dtype=int), ValueError, r"\(N, M\) = \(3, 5\).* got \(5, 3\). Pass coords.T"),
            ([0, 1, 2], ValueError, "a row per mode and a column per entry"),
            (4, ValueError, "a row per mode and a column per entry"),
            (np.zeros((3, 0), dtype=int), ValueError, "coords holds no entry"),
            ([], ValueError, "coords holds no entry"),
            (np.zeros((3, 2)), TypeError, "coords must be integers"),
            ([[0], [0], [7]], ValueError, r"entry 0 is at \[0, 0, 7\], outside shape \(9, 8, 7\)"),
            ([[0], [-1], [0]], ValueError, "outside shape"),
        ],
    )
    def test_coordinates_that_are_none(self, coords, error, sentence):
        found = model(max_rank=2, tol=1.0).fit(problem().observed)
        for ask in (found.predict, found.predict_interval, lambda asked: found.sample(coords=asked)):
            with pytest.raises(error, match=sentence):
                ask(coords)

    def test_questions_out_of_range(self, fitted):
        for level in (0, 1, -0.5, 95, NAN):
            with pytest.raises(ValueError, match="level must be a number between 0 and 1"):
                fitted.predict_interval(level=level)
        for number in (0, -1, 2.0, True):
            with pytest.raises(ValueError, match="n must be an integer of at least 1"):
                fitted.sample(number)
        for ask in (fitted.predict_interval, fitted.sample, lambda of: fitted.predict(return_std=True, of=of)):
            with pytest.raises(ValueError, match="of must be 'low_rank', 'signal' or 'observation'"):
                ask(of="noise")
        with pytest.raises(ValueError, match="random_state must be"):
            fitted.sample(random_state=-1)


# ---- options -----------------------------------------------------------------------------------------------


class TestOptions:
    def test_options_are_attributes_beside_the_methods(self):
        found = BRTF(robust=False, link="log")
        assert (found.robust, found.link) == (False, "log")
        assert callable(found.outliers)
        assert callable(found.transform)
        assert repr(found) == "BRTF(link='log', robust=False)"
        assert found.set_params(robust=True, link="auto").get_params() == BRTF().get_params()

    @pytest.mark.parametrize("copy", [clone, lambda found: pickle.loads(pickle.dumps(found))], ids=["clone", "pickle"])
    def test_copies_keep_them(self, copy):
        original = model(robust=False, link="log", init="random")
        assert copy(original).get_params() == original.get_params()

    def test_a_pickled_fit_answers_and_a_clone_is_not_fitted(self, fitted):
        assert_same_fit(pickle.loads(pickle.dumps(fitted)), fitted)
        assert not hasattr(clone(fitted), "result_")

    def test_without_outliers_there_are_none(self):
        found = model(robust=False).fit(problem(outliers=0.0).observed)
        assert not found.outliers().any()
        assert not found.outlier_probability().any()
        assert found.outlier_rate_ == 0

    @pytest.mark.parametrize(
        ("name", "remedy"),
        [
            ("outliers", "it is now robust=."),
            ("transform", "it is now link=."),
            ("max_rnk", "did you mean max_rank=?"),
            ("outlier_mode", "did you mean outlier_modes=?"),
            ("zzz", "its options are "),
        ],
    )
    def test_an_unknown_option_is_answered_with_the_one_that_was_meant(self, name, remedy):
        sentence = f"^BRTF has no option {name}=: {re.escape(remedy)}"
        with pytest.raises(TypeError, match=sentence):
            BRTF(**{name: False})
        with pytest.raises(ValueError, match=sentence):
            BRTF().set_params(**{name: False})

    def test_the_signature_lists_them(self):
        assert set(signature(BRTF).parameters) == set(BRTF().get_params())


# ---- units -------------------------------------------------------------------------------------------------


class TestUnits:
    @pytest.mark.parametrize("factor", [1e-100, 1e-3, 1e100])
    def test_answers_are_in_the_units_of_the_data(self, fitted, factor):
        data = problem(len(fitted.shape_in_)).observed
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            scaled = model().fit(factor * data)
        # factor * data rounds each entry by 1e-16 of itself, and a hundred sweeps contract rather than amplify.
        close = {"rtol": 1e-9, "atol": 1e-9 * factor}
        mean, std = scaled.predict(return_std=True)
        np.testing.assert_allclose(mean, factor * fitted.low_rank(), **close)
        np.testing.assert_allclose(std, factor * fitted.predict(return_std=True)[1], **close)
        np.testing.assert_allclose(scaled.outliers(), factor * fitted.outliers(), **close)
        np.testing.assert_allclose(scaled.predict_interval(), np.multiply(factor, fitted.predict_interval()), **close)
        draws = [found.sample(2, random_state=0) for found in (scaled, fitted)]
        np.testing.assert_allclose(draws[0], factor * draws[1], **close)
        np.testing.assert_allclose(scaled.impute(), factor * fitted.impute(), **close)
        assert scaled.outlier_rate_ == pytest.approx(fitted.outlier_rate_, rel=1e-9)
        assert scaled.noise_variance_ == pytest.approx(factor**2 * fitted.noise_variance_, rel=1e-9, abs=0)
        assert scaled.n_sweeps_ == fitted.n_sweeps_
        shift = -fitted.n_observed_ * np.log(factor)
        assert scaled.bound_ == pytest.approx(fitted.bound_ + shift, rel=1e-9)
        np.testing.assert_allclose(scaled.trace_["bound"], fitted.trace_["bound"] + shift, rtol=1e-9)
        assert scaled.score(factor * data) == pytest.approx(fitted.score(data) - np.log(factor), rel=1e-9)
