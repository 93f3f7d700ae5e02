"""Data, starts and questions far outside the ordinary: an answer, or a sentence; never a crash or a NaN."""

import warnings

import numpy as np
import pytest

from brtf import BRTF, Observations, evaluate
from brtf.data.observe import observe

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture
def matrix():
    return 1 + 0.1 * np.random.default_rng(0).standard_normal((5, 6))


@pytest.mark.parametrize("inference", ["calibrated", "paper"])
@pytest.mark.parametrize("robust", [True, False])
@pytest.mark.parametrize("size", [3e8, 1e30, 1e200])
def test_one_gigantic_entry(matrix, size, robust, inference):
    matrix[0, 0] = size
    model = BRTF(inference=inference, robust=robust, max_sweeps=60, random_state=0).fit(matrix)
    assert np.isfinite(model.low_rank()).all()
    assert np.isfinite(model.bound_)


@pytest.mark.filterwarnings("ignore::brtf.FitWarning")  # of two values
def test_a_direction_of_no_strength_is_no_direction():
    data = np.array([[0, np.nan, 0, 1], [0, np.nan, np.nan, 1]])
    with pytest.warns(UserWarning, match="empty slice"):
        model = BRTF(3, random_state=0).fit(data)
    assert np.isfinite(model.low_rank()).all()


def test_new_data_of_other_units_are_refused(matrix):
    model = BRTF(random_state=0).fit(matrix)
    matrix[0, 0] = 1e160
    for ask in (model.transform, model.score, model.partial_fit):
        with pytest.raises(ValueError, match=r"Y reaches 1e\+160, more than 1e\+100 times the scale"):
            ask(matrix)


def test_a_link_decides_which_new_data_are_too_large(matrix):
    """A square root still overflows where it is squared; 1e200 times as much only adds to a logarithm."""
    positive = np.abs(matrix) + 1.0
    model = BRTF(link="sqrt", random_state=0, max_sweeps=20).fit(positive)
    for ask in (model.transform, model.score):
        with pytest.raises(ValueError, match=r"sqrt\(Y\) reaches .*, more than 1e\+100 times the scale"):
            ask(positive * 1e220)
    model = BRTF(link="log", random_state=0, max_sweeps=20).fit(positive)
    assert np.isfinite(model.score(positive * 1e200))


@pytest.mark.parametrize("inference", ["calibrated", "paper"])
def test_a_start_of_other_units_is_refused(matrix, inference):
    factors = [np.ones((5, 1)), np.ones((6, 1))]
    with pytest.raises(ValueError, match=r"init gives values of .* scales of the data"):
        BRTF(inference=inference, init=factors, random_state=0).fit(matrix * 1e-160)
    found = BRTF(inference=inference, init=factors, max_sweeps=20, random_state=0).fit(matrix * 1e300)
    assert np.isfinite(found.low_rank()).all()


def test_a_start_beyond_single_precision_is_refused(matrix):
    factors = [np.full((5, 1), 1e20), np.full((6, 1), 1e20)]
    with pytest.raises(ValueError, match=r"init gives values of .* scales of the data"):
        BRTF(init=factors, dtype=np.float32, random_state=0).fit(matrix)


def test_a_start_with_too_many_columns_is_refused(matrix):
    factors = [np.ones((5, 3)), np.ones((6, 3))]
    with pytest.raises(ValueError, match="init has 3 columns, but max_rank is 2"):
        BRTF(2, init=factors).fit(matrix)


@pytest.mark.parametrize("noise", ["common", "per-slice"])
def test_extreme_levels(matrix, noise):
    model = BRTF(noise=noise, random_state=0).fit(matrix)
    low, high = model.predict_interval(level=1 - 1e-16, of="observation")
    assert np.all(high - low == np.inf)
    low, high = model.predict_interval(level=1e-300, of="observation")
    assert np.all(high >= low)
    with pytest.raises(ValueError, match="level must be a number between 0 and 1"):
        model.predict_interval(level="a")


def test_transform_knows_the_noise_of_slices_without_outliers():
    rng = np.random.default_rng(0)
    factors = rng.standard_normal((30, 2)), rng.standard_normal((20, 2))
    noise = rng.standard_normal((30, 20)) * np.where(np.arange(20) < 10, 0.01, 3.0)
    data = factors[0] @ factors[1].T + noise
    model = BRTF(robust=False, noise="per-slice", noise_modes=(1,), random_state=0).fit(data)
    assert model.noise_modes_ == (1,)
    # rows were updated once more than the other mode: equal to the tolerance of the fit
    np.testing.assert_allclose(model.transform(data), model.factors_[0], atol=1e-3 * np.abs(model.factors_[0]).max())


def test_transform_knows_the_noise_of_slices_of_the_other_modes():
    """Noise that differs between rows and columns: a new row has typical noise, but columns keep theirs."""
    rng = np.random.default_rng(0)
    spread = np.outer(np.exp(rng.normal(0, 0.5, 40)), np.where(np.arange(12) < 6, 0.05, 1.0))[:, :, None]
    truth = np.einsum("ir,jr,kr->ijk", *(rng.normal(size=(length, 2)) for length in (40, 12, 9)))
    data = truth + spread * rng.normal(size=truth.shape)
    model = BRTF(noise="per-slice", noise_modes=(0, 1), arrangement=None, random_state=0).fit(data)
    std = model.transform(data[:1], return_std=True)[1]
    whole = model.result_.state.without_slices_along(0).slices
    assert whole.modes == (1,)
    assert whole.mean[:6].min() > 20.0 * whole.mean[6:].max()
    # Least squares with weights: the loadings are known to about .05 / √54 of their scale.
    assert std.max() < 0.1


def test_few_entries_a_slice_give_wide_intervals():
    """Six entries know a variance poorly: Student-t intervals cover new data, Gaussian ones (.90) would not."""
    rng = np.random.default_rng(0)
    low_rank = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((n, 2)) for n in (40, 30, 6)))
    spread = np.exp(rng.normal(0, 0.7, (40, 30, 1)))
    model = BRTF(noise="per-slice", noise_modes=(0, 1), robust=False, max_rank=3, random_state=0)
    model.fit(low_rank + 0.1 * spread * rng.standard_normal(low_rank.shape))
    new = low_rank + 0.1 * spread * rng.standard_normal(low_rank.shape)
    low, high = model.predict_interval(of="observation")
    assert 0.93 < np.mean((low <= new) & (new <= high)) < 0.97


@pytest.mark.filterwarnings("ignore:Mode . has .* empty slices")
def test_fibres_of_a_tensor_of_any_size():
    coords = np.random.default_rng(0).integers(0, 2**40, (3, 60))
    sparse = Observations.from_coords(coords, np.ones(60), (2**40,) * 3)
    with pytest.raises(MemoryError, match="lower max_rank"):
        evaluate(sparse, pattern="fibres", model=BRTF(max_rank=1))


@pytest.mark.filterwarnings("ignore:Mode", "ignore::brtf.FitWarning")  # most slices are empty
def test_a_tensor_of_more_positions_than_64_bits_count(tmp_path):
    rng = np.random.default_rng(0)
    shape = (300,) * 8
    coords = np.unique(101 * rng.integers(0, 3, (8, 1500)), axis=1)
    factor = rng.normal(size=300)
    values = np.prod(factor[coords], axis=0) + 0.01 * rng.normal(size=coords.shape[1])
    data = Observations.from_coords(coords, values, shape)
    model = BRTF(max_rank=2, random_state=0).fit(data)
    np.testing.assert_allclose(model.predict(coords[:, :3]), values[:3], atol=0.1)
    model.report(tmp_path / "page.html")
    with pytest.raises(ValueError, match="smooth_residual"):
        BRTF(smooth_residual=0).fit(data)


def test_a_multi_index_is_a_long_table():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": [0, 0, 1, 1], "b": [0, 1, 0, 1], "value": [1.0, 2.0, 3.0, 4.0]})
    for long in (table.set_index(["a", "b"]), table.set_index(["a", "b"])["value"]):
        with pytest.raises(ValueError, match="from_frame"):
            BRTF().fit(long)


def test_a_long_table_is_not_a_matrix():
    pandas = pytest.importorskip("pandas")
    row, column = (axis.ravel() for axis in np.indices((6, 5)))
    numbered = pandas.DataFrame({"row": row, "column": column, "y": row * column + 0.5})
    with pytest.raises(ValueError, match=r"from_frame\(Y, index=\['row', 'column'\], value='y'\), or Y.to_numpy\(\)"):
        BRTF().fit(numbered)
    with pytest.raises(ValueError, match="from_frame"):
        BRTF().fit(numbered[numbered["y"] > 1])
    with pytest.raises(ValueError, match="from_frame"):
        BRTF().fit(numbered.astype(int))
    for labels in (
        numbered["row"].map("r{}".format),
        pandas.to_datetime(numbered["row"]),
        numbered["row"].astype("category"),
    ):
        with pytest.raises(TypeError, match=r"from_frame\(Y, index=\['row', 'column'\], value='y'\)"):
            BRTF().fit(numbered.assign(row=labels))


def test_a_wide_table_is_a_matrix():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    measured, counted = rng.standard_normal((30, 3)).round(1), rng.poisson(3.0, (30, 6))
    for matrix in (measured, counted, counted.astype(bool), counted[:, :3] * [100, 10, 1]):
        frame = pandas.DataFrame(matrix).add_prefix("x")
        np.testing.assert_array_equal(observe(frame).values, matrix)
    year = pandas.Index(range(1990, 2010), name="year")
    grid = pandas.DataFrame(np.indices((5, 4)).reshape(2, -1).T, index=year).assign(y=0.5)
    assert observe(grid).shape == (20, 3)  # somebody has named the rows
    with pytest.raises(ValueError, match="52 columns besides its values"):
        Observations.from_frame(pandas.DataFrame(np.eye(53)))


@pytest.mark.parametrize("option", ["noise_modes", "outlier_modes"])
def test_a_mode_is_no_list_of_modes(matrix, option):
    with pytest.raises(ValueError, match=f"{option} must be None or a list of modes"):
        BRTF(noise="per-slice", **{option: np.array(0)}).fit(matrix)


def test_a_number_beyond_floats_is_refused(matrix):
    with pytest.raises(ValueError, match="tol must be a number"):
        BRTF(tol=10**400).fit(matrix)


def test_a_result_is_shown_in_a_line(matrix):
    for noise in ("common", "per-slice"):
        model = BRTF(noise=noise, random_state=0).fit(matrix)
        shown = repr(model.result_)
        assert len(shown) < 200
        for words in (
            f"shape={matrix.shape}",
            f"rank={model.rank_}",
            "bound=",
            "noise_variance=",
            "outlier_rate=",
            "True",
        ):
            assert words in shown


def test_a_misspelt_quantity_is_refused(matrix):
    model = BRTF(random_state=0).fit(matrix)
    for wrong in ("obs", np.array(["low_rank", "observation"]), None):
        with pytest.raises(ValueError, match="of must be 'low_rank', 'signal' or 'observation'"):
            model.predict(of=wrong)
    with pytest.raises(ValueError, match="of must be 'outliers' or 'imputed'"):
        model.to_frame(of=np.array(["outliers", "imputed"]))


def test_sizes_too_far_apart_for_floats_are_refused_or_answered(capfd):
    """LAPACK wrote to the terminal here, and its error came through."""
    rng = np.random.default_rng([1, 0])
    for inference in ("paper", "calibrated"):
        data = rng.choice([-1.0, 1.0], (5, 7, 8)) * 10.0 ** rng.uniform(-100, 100, (5, 7, 8))
        try:
            model = BRTF(inference=inference, robust=False, max_sweeps=20, random_state=0).fit(data)
        except ValueError as error:
            assert "or less: the fit overflowed" in str(error)
        else:
            assert np.isfinite(model.low_rank()).all()
    assert capfd.readouterr() == ("", "")


def test_columns_that_are_no_names_are_refused():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": [0, 1], "b": [0, 1], "y": [1.0, 2.0]})
    with pytest.raises(TypeError, match=r"index and value must name columns of frame, got \{\}"):
        Observations.from_frame(table, index=["a", "b"], value={})
    with pytest.raises(TypeError, match="index must be a list of columns"):
        Observations.from_frame(table, index=3)


def test_a_table_without_columns_is_refused():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="mode 1 has length 0"):
        BRTF().fit(pandas.DataFrame(index=range(3)))


def test_a_masked_array_of_records_is_refused():
    records = np.ma.masked_array(np.zeros((2, 3), [("a", "f8"), ("b", "i4")]))
    with pytest.raises(TypeError, match="Y must hold real numbers"):
        BRTF().fit(records)


def test_a_number_is_no_type(matrix):
    with pytest.raises(ValueError, match=r"dtype must be float32 or float64, got np\.float64\(nan\)"):
        BRTF(dtype=np.float64("nan")).fit(matrix)


def test_residuals_of_all_sizes_are_searched_for_structure():
    """Most are so far below the others that their ratio is beyond floats."""
    matrix = np.full((6, 7), 1e-300)
    matrix[0, :3] = 1e20
    model = BRTF(robust=False, random_state=0, max_sweeps=40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # doubts about such a fit
        model.fit(matrix)
    assert np.isfinite(model.low_rank()).all()
