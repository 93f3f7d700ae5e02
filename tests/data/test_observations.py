"""The front door: one set of entries from every kind of input, and a clear error for the rest."""

import math
import re
import tracemalloc
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from brtf.data.checks import Labels
from brtf.data.observations import Observations, warn_empty_slices
from brtf.data.observe import observe
from brtf.data.scale import robust_scale

SEED = 20240229
INF, NAN = np.inf, np.nan


def tensor_with_missing(shape=(5, 4, 3), missing=0.4, seed=SEED):
    """A dense tensor whose missing entries are NaN."""
    rng = np.random.default_rng(seed)
    array = rng.normal(size=shape)
    array[rng.random(shape) < missing] = NAN
    return array


def assert_same_entries(left, right):
    """Equality is exact: the front door copies numbers, it does not compute."""
    assert left.shape == right.shape
    np.testing.assert_array_equal(left.entry_coords(), right.entry_coords())
    np.testing.assert_array_equal(left.values.reshape(-1), right.values.reshape(-1))
    assert left.scale == right.scale


def reversed_twice(array):
    """The same array through negative strides."""
    return np.ascontiguousarray(array[::-1, :, ::-1])[::-1, :, ::-1]


def as_memmap(array, tmp_path):
    path = tmp_path / "tensor.npy"
    np.save(path, array)
    return np.load(path, mmap_mode="r")


def as_read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def shuffled_coords(array):
    order = np.random.default_rng(SEED).permutation(np.count_nonzero(~np.isnan(array)))
    coords = np.stack(np.nonzero(~np.isnan(array)))[:, order]
    return Observations.from_coords(coords, array[tuple(coords)], array.shape)


class CoordinateList:
    """What a sparse array of another library looks like."""

    def __init__(self, array):
        present = ~np.isnan(array)
        self.coords = np.stack(np.nonzero(present)).astype(np.uint8)
        self.data = array[present]
        self.shape = array.shape


class ArrayLike:
    """What an array of another library looks like."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return np.array(self.array, dtype=dtype)


def as_long_table(array):
    coords = np.nonzero(~np.isnan(array))
    return pd.DataFrame({"i": coords[0], "j": coords[1], "k": coords[2], "y": array[coords]})


def as_coo(array):
    coords = np.nonzero(~np.isnan(array))
    return scipy.sparse.coo_array((array[coords], coords), shape=array.shape)


# --- the layout does not matter ---------------------------------------------------------------------------

FORMS = {
    "mask": lambda Y, _: observe(np.where(np.isnan(Y), INF, Y), mask=~np.isnan(Y)),
    "mask as lists": lambda Y, _: observe(Y, mask=(~np.isnan(Y)).tolist()),
    "numpy.ma": lambda Y, _: observe(np.ma.array(np.nan_to_num(Y, nan=INF), mask=np.isnan(Y))),
    "numpy.ma and mask": lambda Y, _: observe(
        np.ma.array(Y, mask=np.isnan(Y) & (np.indices(Y.shape)[0] < 2)),
        mask=~(np.isnan(Y) & (np.indices(Y.shape)[0] >= 2)),
    ),
    "nested list": lambda Y, _: observe(Y.tolist()),
    "coo_array": lambda Y, _: observe(as_coo(Y)),
    "coordinates of another library": lambda Y, _: observe(CoordinateList(Y)),
    "from_coords, shuffled": lambda Y, _: shuffled_coords(Y),
    "from_coords, tuple": lambda Y, _: Observations.from_coords(np.nonzero(~np.isnan(Y)), Y[~np.isnan(Y)], Y.shape),
    "from_coords, NaN stored": lambda Y, _: Observations.from_coords(
        np.indices(Y.shape).reshape(3, -1), Y.ravel(), list(Y.shape)
    ),
    "from_coords, numpy.ma, reversed": lambda Y, _: Observations.from_coords(
        np.indices(Y.shape).reshape(3, -1)[:, ::-1],
        np.ma.array(np.nan_to_num(Y), mask=np.isnan(Y)).ravel()[::-1],
        Y.shape,
    ),
    "from_frame": lambda Y, _: Observations.from_frame(as_long_table(Y).sample(frac=1, random_state=SEED)),
    "from_frame, positions": lambda Y, _: Observations.from_frame(as_long_table(Y), shape=Y.shape),
    "DataArray": lambda Y, _: observe(xr.DataArray(Y, dims=("i", "j", "k"))),
    "memmap": lambda Y, tmp_path: observe(as_memmap(Y, tmp_path)),
    "F order": lambda Y, _: observe(np.asfortranarray(Y)),
    "F order, mask": lambda Y, _: observe(np.asfortranarray(Y), np.asfortranarray(~np.isnan(Y))),
    "negative strides": lambda Y, _: observe(reversed_twice(Y)),
    "big-endian": lambda Y, _: observe(Y.astype(">f8")),
    "read-only": lambda Y, _: observe(as_read_only(Y)),
    "__array__": lambda Y, _: observe(ArrayLike(Y)),
    "longdouble": lambda Y, _: observe(Y.astype(np.longdouble)),
    "Observations": lambda Y, _: observe(observe(Y)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_input_gives_the_same_entries(form, tmp_path):
    Y = tensor_with_missing()
    expected = observe(Y)
    assert expected.layout == "masked"
    assert_same_entries(FORMS[form](Y, tmp_path), expected)


def test_every_sparse_format_gives_the_same_entries():
    Y = tensor_with_missing((6, 5))
    for sparse_format in ("coo", "csr", "csc", "lil", "dok"):
        observations = observe(as_coo(Y).asformat(sparse_format))
        assert observations.layout == "coordinates"
        assert_same_entries(observations, observe(Y))
    assert_same_entries(observe(scipy.sparse.csr_matrix(as_coo(Y))), observe(Y))


def test_stored_zeros_are_observed_and_stored_nan_is_missing():
    sparse = scipy.sparse.coo_array(([0.0, NAN, 2.0], ([0, 1, 2], [0, 1, 1])), shape=(3, 2))
    observations = observe(sparse)
    np.testing.assert_array_equal(observations.entry_coords(), [[0, 2], [0, 1]])
    np.testing.assert_array_equal(observations.values, [0.0, 2.0])


@pytest.mark.parametrize("form", ["plain", "all-true mask", "F order", "negative strides", "uint8 view"])
def test_complete_inputs_have_the_complete_layout(form):
    Y = np.arange(60, dtype=float).reshape(5, 4, 3)
    mask = np.ones(Y.shape, dtype=bool) if form == "all-true mask" else None
    given_array = {"F order": np.asfortranarray(Y), "negative strides": reversed_twice(Y)}.get(form, Y)
    if form == "uint8 view":
        given_array = np.repeat(Y.astype(np.uint8), 2, axis=1)[:, ::2]
    observations = observe(given_array, mask)
    assert observations.layout == "complete"
    assert observations.mask is None
    assert observations.values.flags.c_contiguous
    np.testing.assert_array_equal(observations.values, Y)
    assert_same_entries(observations, observe(as_coo(Y)))


def test_a_dense_input_stays_dense_however_little_is_observed():
    Y = np.full((10, 10, 10), NAN)
    Y[0, 0, 0] = 1.0
    assert observe(Y).layout == "masked"


def test_counts():
    observations = observe(tensor_with_missing())
    assert observations.order == 3
    assert observations.n_entries == 60
    assert observations.n_observed == np.count_nonzero(~np.isnan(tensor_with_missing()))


@given(st.data())
def test_the_order_of_coordinates_does_not_matter(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 2**40), min_size=2, max_size=4)))
    places = data.draw(
        st.lists(st.tuples(*(st.integers(0, n - 1) for n in shape)), min_size=1, max_size=12, unique=True)
    )
    permutation = data.draw(st.permutations(range(len(places))))
    values = np.arange(1.0, len(places) + 1)
    coords = np.array(places).T
    left = Observations.from_coords(coords, values, shape)
    right = Observations.from_coords(coords[:, permutation], values[permutation], shape)
    assert_same_entries(left, right)
    assert [tuple(c) for c in left.coords.T.tolist()] == sorted(places)
    assert [places[int(v) - 1] for v in left.values] == sorted(places)


# --- blocks -----------------------------------------------------------------------------------------------


@given(
    shape=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    missing=st.sampled_from([0.0, 0.3, 0.9]),
    sparse=st.booleans(),
    n_entries=st.integers(1, 200),
    seed=st.integers(0, 2**16),
)
def test_blocks_end_to_end_are_the_entry_vector(shape, missing, sparse, n_entries, seed):
    Y = tensor_with_missing(tuple(shape), missing, seed)
    Y.flat[0] = 1.0
    observations = observe(as_coo(Y)) if sparse else observe(Y)
    blocks = list(observations.blocks(n_entries))
    coords = observations.entry_coords()
    np.testing.assert_array_equal(np.concatenate([b.values for b in blocks]), Y[tuple(coords)])
    assert [b.entries.start for b in blocks[1:]] == [b.entries.stop for b in blocks[:-1]]
    assert (blocks[0].entries.start, blocks[-1].entries.stop) == (0, observations.n_observed)
    for block in blocks:
        assert block.layout == observations.layout
        assert np.shares_memory(block.values, observations.values) or block.values.size == 0
        here = coords[:, block.entries]
        if block.layout == "coordinates":
            np.testing.assert_array_equal(block.coords, here)
            assert block.rows == slice(0, shape[0])
            assert block.values.size <= n_entries
        else:
            n_rows = block.rows.stop - block.rows.start
            assert n_rows == 1 or n_rows * math.prod(shape[1:]) <= n_entries
            observed = np.ones((n_rows, *shape[1:]), bool) if block.mask is None else block.mask
            assert observed.shape == (n_rows, *shape[1:])
            rows, *others = np.nonzero(observed)
            np.testing.assert_array_equal([rows + block.rows.start, *others], here)
    if not sparse:
        assert sum(b.rows.stop - b.rows.start for b in blocks) == shape[0]


def test_block_size_must_be_positive():
    with pytest.raises(ValueError, match="n_entries must be at least 1, got 0"):
        next(observe(np.ones((2, 2))).blocks(0))


# --- types, memory, and what is left untouched --------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_dtype", "kept"),
    [
        ("f4", "f4"),
        (">f4", "f4"),
        ("f8", "f8"),
        (">f8", "f8"),
        ("f2", "f8"),
        ("g", "f8"),
        ("u1", "f8"),
        ("i8", "f8"),
        ("?", "f8"),
    ],
)
def test_real_types_become_native_floats(given_dtype, kept):
    Y = np.array([[0, 1], [1, 0]], dtype=given_dtype)
    for observations in (
        observe(Y),
        observe(Y, mask=np.array([[True, True], [False, True]])),
        observe(scipy.sparse.coo_array(Y.astype(kept))),
        Observations.from_coords([[0, 1], [1, 0]], Y.ravel()[1:3], (2, 2)),
    ):
        assert observations.values.dtype == np.dtype(kept)
        assert observations.values.dtype.isnative
    for forced in (np.float32, np.float64):
        assert observe(Y, dtype=forced).values.dtype == forced
        assert observe(observe(Y), dtype=forced).values.dtype == forced
        np.testing.assert_array_equal(observe(Y, dtype=forced).values, [[0, 1], [1, 0]])


def test_only_two_types_can_be_forced():
    with pytest.raises(ValueError, match="dtype must be float32 or float64, got float16"):
        observe(np.ones((2, 2)), dtype=np.float16)


@pytest.mark.parametrize("size", [1e300, 1e-300])
def test_a_forced_type_must_hold_the_values(size):
    with pytest.raises(ValueError, match=r"Y reaches 1e.* in magnitude, beyond the range of float32"):
        observe(np.full((2, 2), size), dtype=np.float32)


def test_complete_floats_are_shared_and_read_only(tmp_path):
    Y = np.ones((3, 4))
    for array in (Y, Y.astype(np.float32), as_memmap(Y, tmp_path)):
        observations = observe(array)
        assert type(observations.values) is np.ndarray
        assert np.shares_memory(observations.values, array)
        with pytest.raises(ValueError, match="read-only"):
            observations.values[0, 0] = 2.0


def test_unaligned_input_is_read():
    buffer = b"\0" + np.arange(6.0).tobytes()
    Y = np.frombuffer(buffer, dtype=np.float64, offset=1).reshape(2, 3)
    assert not Y.flags.aligned
    observations = observe(Y)
    assert observations.values.flags.aligned
    np.testing.assert_array_equal(observations.values, np.arange(6.0).reshape(2, 3))


def test_inputs_are_not_modified():
    Y = tensor_with_missing()
    mask = ~np.isnan(Y)
    complete = np.nan_to_num(Y)
    masked = np.ma.array(Y, mask=~mask)
    sparse = as_coo(Y[0])
    labelled = xr.DataArray(Y, dims=("i", "j", "k"))
    inputs = [Y, mask, complete, masked.data, masked.mask, sparse.data, *sparse.coords, labelled.values]
    before = [array.copy() for array in inputs]
    writeable = [array.flags.writeable for array in inputs]
    observe(Y, mask)
    for given_input in (Y, complete, masked, sparse, labelled):
        observe(given_input)
    for array, copy, flag in zip(inputs, before, writeable, strict=True):
        np.testing.assert_array_equal(array, copy)
        assert array.flags.writeable == flag


def test_the_mask_is_a_copy_in_c_order():
    Y = tensor_with_missing()
    mask = np.asfortranarray(~np.isnan(Y))
    observations = observe(np.nan_to_num(Y), mask)
    assert observations.mask.flags.c_contiguous
    assert not np.shares_memory(observations.mask, mask)


def test_huge_shapes_cost_nothing():
    coords = np.array([[3, 0, 2**22 - 1], [5, 1, 0], [2, 2**22 - 1, 7]])
    tracemalloc.start()
    for length in (2**22, 2**40, 2**62):
        observations = Observations.from_coords(coords, [1.0, 2.0, 3.0], (length,) * 3)
        assert observations.n_entries == length**3
        np.testing.assert_array_equal(observations.values, [2.0, 1.0, 3.0])
        assert len(list(observations.blocks())) == 1
        with pytest.warns(UserWarning, match="empty slices"):
            warn_empty_slices(observations)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**21  # bytes; a vector of booleans over one mode alone would take 2**22


# --- the robust scale ---------------------------------------------------------------------------------------


def test_robust_scale_is_the_spread_of_gaussian_values_whatever_the_outliers():
    values = np.random.default_rng(SEED).normal(scale=3.0, size=40_000)
    # Standard error of the median of |y|: about 0.8 % at this size; four of them.
    assert robust_scale(values) == pytest.approx(3.0, rel=0.032)
    values[:400] = 1e6
    assert robust_scale(values) == pytest.approx(3.0, rel=0.05)  # 1 % outliers move the median by 1.2 %


@pytest.mark.parametrize("factor", [1e-100, 1e-8, 3.0, 1e8, 1e100])
def test_robust_scale_follows_the_values(factor):
    values = np.random.default_rng(SEED).normal(size=101)
    # Three roundings of one part in 2**53 each.
    assert robust_scale(factor * values) == pytest.approx(factor * robust_scale(values), rel=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_values", [1, 2, 3, 200_000, 200_001])
def test_robust_scale_has_the_median_to_the_last_bit(n_values, dtype):
    rng = np.random.default_rng(n_values)
    values = (rng.standard_normal(n_values) * 10.0 ** rng.integers(-3, 4, n_values)).astype(dtype)
    low, high = np.sort(np.abs(values))[[(n_values - 1) // 2, n_values // 2]].astype(np.float64)
    assert robust_scale(values) == 1.4826 * (low + 0.5 * (high - low))
    rounded = np.round(values)  # many ties
    low, high = np.sort(np.abs(rounded))[[(n_values - 1) // 2, n_values // 2]].astype(np.float64)
    assert robust_scale(rounded) == (1.4826 * (low + 0.5 * (high - low)) or np.abs(rounded).max() or 1.0)


def test_robust_scale_of_mostly_zero_and_zero_values():
    assert robust_scale(np.array([0.0, 0.0, 0.0, -7.0])) == 7.0
    assert robust_scale(np.zeros(3)) == 1.0


@pytest.mark.parametrize(
    "values",
    [
        [1e300, -1e300],
        [1.7e308, 1.7e308],
        [5e-324, -5e-324, 0.0],
        [1e-310, 5e-324, 5e-324],
        [1e-300, 1e-300, 1e300],
        [5e-324, 5e-324, 1.7e308],
    ],
)
def test_scaled_values_and_their_squares_are_finite(values):
    array = np.array(values)
    scale = robust_scale(array)
    assert 0.0 < scale < INF
    assert np.isfinite((array / scale) ** 2).all()
    assert np.abs(array / scale).max() > 0.1
    assert observe(array[None, :]).scale == scale


@pytest.mark.parametrize("values", [[3e38, 3e38], [1e-45, 1e-45], [1e-45, 1e-45, 3e38], [1e-44, 1e-45, 1e-45]])
def test_scaled_float32_values_and_their_squares_are_finite(values):
    array = np.array(values, dtype=np.float32)
    scaled = np.divide(array, np.float32(robust_scale(array)), dtype=np.float32)  # as the fit does
    assert np.isfinite(scaled**2).all()


# --- labels -------------------------------------------------------------------------------------------------


def test_labels_of_a_data_array_are_kept():
    Y = xr.DataArray(
        tensor_with_missing((2, 3, 4)),
        dims=("city", "day", "sensor"),
        coords={"city": ["Oslo", "Rome"], "sensor": [3, 5, 7, 9], "lat": ("city", [59.9, 41.9])},
        name="ozone",
    )
    labels = observe(Y).labels
    assert labels.dims == ("city", "day", "sensor")
    assert labels.name == "ozone"
    assert labels.coords[0].tolist() == ["Oslo", "Rome"]
    assert labels.coords[1] is None
    assert labels.coords[2].tolist() == [3, 5, 7, 9]


def test_labels_of_a_wide_table_are_kept():
    frame = pd.DataFrame([[1.0, NAN], [3.0, 4.0]], index=pd.Index(["a", "b"], name="user"))
    observations = observe(frame)
    assert observations.labels.dims == ("user", "column")
    assert observations.labels.coords[0].tolist() == ["a", "b"]
    assert observations.labels.coords[1] is None
    assert_same_entries(observations, observe(frame.to_numpy()))


def test_tables_of_mixed_and_nullable_numbers_are_read():
    frame = pd.DataFrame({"x": pd.array([1, None], dtype="Int64"), "y": [0.5, 2.0], "z": [True, False]})
    assert_same_entries(observe(frame), observe([[1.0, 0.5, 1.0], [NAN, 2.0, 0.0]]))
    with pytest.raises(TypeError, match=r"'w' \(dtype (str|object)\)"):
        observe(frame.assign(w=["a", "b"]))


def test_long_table_with_labels():
    frame = pd.DataFrame(
        {
            "user": ["eve", "ann", "bob", "ann"],
            "item": [30, 10, 10, 30],
            "stars": [5.0, 4.0, NAN, 1.0],
        }
    )
    observations = Observations.from_frame(frame)
    assert observations.shape == (3, 2)
    assert observations.labels.dims == ("user", "item")
    assert observations.labels.name == "stars"
    assert observations.labels.coords[0].tolist() == ["ann", "bob", "eve"]  # a missing value keeps its label
    assert observations.labels.coords[1].tolist() == [10, 30]
    np.testing.assert_array_equal(observations.coords, [[0, 0, 2], [0, 1, 1]])
    np.testing.assert_array_equal(observations.values, [4.0, 1.0, 5.0])
    turned = Observations.from_frame(frame[["stars", "item", "user"]], index=["user", "item"])
    assert_same_entries(turned, observations)
    named = Observations.from_frame(frame[["stars", "user", "item"]], value="stars")
    assert_same_entries(named, observations)


LONG = pd.DataFrame({"user": ["ann", "bob", "ann"], "item": [7, 8, 7], "stars": [1.0, 2.0, 3.0]})


@pytest.mark.parametrize(
    ("frame", "options", "error", "message"),
    [
        (LONG, {}, ValueError, "entries 0 and 2 are both at [user=ann, item=7] (1 duplicate in all)"),
        (
            LONG.assign(stars=[1, INF, 2])[:2],
            {},
            ValueError,
            "Y[user=bob, item=8] is inf (1 infinite entry in",
        ),
        (LONG, {"value": "score"}, ValueError, "frame has no column 'score'"),
        (LONG, {"index": ["user", "thing"]}, ValueError, "frame has no column 'thing'"),
        (LONG, {"index": ["user"]}, ValueError, "frame needs order >= 2"),
        (LONG, {"index": "user"}, TypeError, "index must be a list of columns"),
        (LONG, {"index": ["user", "item", "stars"]}, ValueError, "no column of values"),
        (LONG[["user", "item"]], {}, ValueError, "frame needs order >= 2"),
        (LONG.assign(user=["ann", None, "bob"]), {}, ValueError, "no label in column 'user' at row 1"),
        (LONG, {"shape": (9, 9)}, TypeError, "coords must be integers"),
        (LONG[:0], {}, ValueError, "everything is missing"),
        (LONG.assign(stars="5"), {}, TypeError, "the column of values, 'stars', must hold real numbers"),
        (LONG, {"index": ["user", "itme"]}, ValueError, "Did you mean 'item'?"),
        (
            LONG.assign(item="tea", user="ann", week=[1, 2, 3]),
            {"index": ["user", "item"], "value": "stars"},
            ValueError,
            "or tell them apart by another column, index=['user', 'item', 'week']",
        ),
        (LONG.set_axis(["user", "user", "stars"], axis=1), {}, ValueError, "several columns of one name"),
        ({"user": [1]}, {}, TypeError, "an Arrow table or a DuckDB relation, got a dict"),
    ],
)
def test_bad_long_tables(frame, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Observations.from_frame(frame, **options)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (Labels(("i",), (None,)), "labels has 1 dims and 1 coords, but shape (2, 2) has 2 modes"),
        (
            Labels(("i", "j"), (None, np.arange(3))),
            "labels.coords[1] has 3 labels, but the mode has length 2",
        ),
    ],
)
def test_labels_must_fit_the_shape(labels, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Observations.from_coords([[0], [1]], [1.0], (2, 2), labels=labels)


# --- bad input, row by row ----------------------------------------------------------------------------------


def with_inf():
    Y = np.zeros((4, 2, 9))
    Y[3, 0, 8] = INF
    Y[3, 1, 8] = -INF
    return Y


@pytest.mark.parametrize(
    ("Y", "error", "message"),
    [
        (np.array(3.0), ValueError, "Y needs order >= 2 (a matrix or a tensor), got order 0"),
        (np.ones(3), ValueError, "Y needs order >= 2 (a matrix or a tensor), got order 1 with shape (3,)"),
        (
            scipy.sparse.coo_array([1.0, 2.0]),
            ValueError,
            "needs order >= 2 (a matrix or a tensor), got order 1",
        ),
        (None, TypeError, "Y needs order >= 2: an array of numbers, got None"),
        ({"a": 1}, TypeError, "Y needs order >= 2: an array of numbers, got a dict"),
        ("tensor.npy", TypeError, "Y needs order >= 2: an array of numbers, got a str"),
        (np.ones((3, 0, 2)), ValueError, "Y: mode 1 has length 0, in shape (3, 0, 2)"),
        ([[1.0, 2.0], [3.0]], ValueError, "Y is ragged: its nested lists differ in length"),
        (
            with_inf(),
            ValueError,
            "Y[3, 0, 8] is inf (2 infinite entries in all). "
            "Remove them or mark them missing: pass mask=, or set them to NaN.",
        ),
        (np.asfortranarray(with_inf()), ValueError, "Y[3, 0, 8] is inf (2 infinite entries in all)"),
        (as_coo(with_inf()), ValueError, "Y[3, 0, 8] is inf (2 infinite entries in all)"),
        (np.array([[0.0, -INF]]), ValueError, "Y[0, 1] is -inf (1 infinite entry in all)"),
        (np.full((2, 2), NAN), ValueError, "Y has no observed entry: everything is missing"),
        (np.ma.array(np.ones((2, 2)), mask=True), ValueError, "everything is missing"),
        (scipy.sparse.coo_array((3, 2, 2)), ValueError, "everything is missing"),
        (scipy.sparse.coo_array(([NAN], ([0], [0]))), ValueError, "everything is missing"),
        (np.ones((2, 2), dtype=object), TypeError, "Y must hold real numbers, got dtype object"),
        ([[1.0, None], [2.0, 3.0]], TypeError, "got dtype object"),
        (np.array([["a", "b"]]), TypeError, "got dtype <U1"),
        (np.array([[b"a", b"b"]]), TypeError, "got dtype |S1"),
        (np.zeros((2, 2), dtype="M8[D]"), TypeError, "got dtype datetime64[D]"),
        (np.zeros((2, 2), dtype="m8[s]"), TypeError, "got dtype timedelta64[s]"),
        (np.zeros((2, 2), dtype=[("x", "f8")]), TypeError, "got dtype [('x', '<f8')]"),
        (np.ones((2, 2), dtype=complex), TypeError, "got dtype complex128"),
    ],
)
def test_bad_arrays(Y, error, message):
    with pytest.raises(error, match=re.escape(message)):
        observe(Y)


ONES = np.ones((2, 3))


@pytest.mark.parametrize(
    ("Y", "mask", "error", "message"),
    [
        (ONES, np.ones((3, 2), bool), ValueError, "mask has shape (3, 2), but Y has shape (2, 3)"),
        (ONES, np.ones((2, 3), int), TypeError, "mask must be boolean, True = observed, got dtype int64"),
        (ONES, np.ones((2, 3), int), TypeError, "Pass mask == 1 if that is what its numbers mean"),
        (ONES, np.ones((2, 3)), TypeError, "or ~numpy.isnan(mask) if NaN stands for missing"),
        (ONES, np.full((2, 3), "False"), TypeError, "such as mask == 'True'"),
        (ONES, np.full((2, 3), None), TypeError, "such as mask == 'True'"),
        (ONES, np.zeros((2, 3), bool), ValueError, "everything is missing"),
        (
            [[1.0, 2.0, NAN], [NAN, 1.0, NAN]],
            [[True, True, False], [True, True, True]],
            ValueError,
            "mask says that Y[1, 0] is observed, but it is NaN (2 such entries in all)",
        ),
        (scipy.sparse.coo_array(ONES), ONES > 0, ValueError, "mask= was given together with a sparse Y"),
        (observe(ONES), ONES > 0, ValueError, "mask= was given together with Observations"),
    ],
)
def test_bad_masks(Y, mask, error, message):
    with pytest.raises(error, match=re.escape(message)):
        observe(Y, mask)


@pytest.mark.parametrize("index", [["a", "a"], ["a", "v"]])
def test_a_column_named_twice(index):
    frame = pd.DataFrame({"a": [0, 1], "b": [1, 0], "v": [1.0, 2.0]})
    with pytest.raises(ValueError, match=re.escape(f"is named twice, in index={index} and value='v'")):
        Observations.from_frame(frame, index=index, value="v")


FRAME = pd.DataFrame(ONES, index=["a", "b"], columns=["x", "y", "z"])
ARRAY = xr.DataArray(np.ones((2, 2)), dims=("row", "column"), coords={"row": ["a", "b"]})


@pytest.mark.parametrize(
    ("Y", "mask", "message"),
    [
        (FRAME, FRAME.iloc[::-1] > 0, "at position 0 there is b, but a in Y. Order the mask as Y, with mask.reindex_l"),
        (FRAME, FRAME.rename(columns={"z": "w"}) > 0, "at position 2 there is w, but z in Y"),
        (ARRAY, ARRAY.transpose() > 0, "The modes of mask are ('column', 'row'), but those of Y are ('row', 'column')"),
        (ARRAY, ARRAY.assign_coords(row=["b", "a"]) > 0, "The labels of mode 'row' of mask are not those of Y"),
        (ARRAY.chunk(), ARRAY.chunk().transpose() > 0, "The modes of mask are ('column', 'row')"),
    ],
)
def test_masks_labelled_otherwise(Y, mask, message):
    """They would be read by position: other entries would be taken for missing."""
    with pytest.raises(ValueError, match=re.escape(message)):
        observe(Y, mask)


def test_masks_labelled_alike_or_not_at_all():
    observed = np.array([[True, False, True], [True, True, True]])
    for Y, mask in (
        (FRAME, FRAME.where(observed).notna()),
        (FRAME, pd.DataFrame(observed)),
        (FRAME, observed),
        (ONES, pd.DataFrame(observed, index=["b", "a"])),
        (ARRAY, xr.DataArray(observed[:, :2], dims=("row", "column"))),
        (ARRAY, xr.DataArray(observed[:, :2])),
        (ARRAY, observed[:, :2]),
    ):
        assert observe(Y, mask).n_observed == np.asarray(mask).sum()


GOOD = [[0, 1, 2], [1, 0, 2]]


@pytest.mark.parametrize(
    ("coords", "values", "shape", "error", "message"),
    [
        (
            [[0, 2, 1, 2, 1], [1, 0, 1, 0, 1]],
            np.ones(5),
            (3, 3),
            ValueError,
            "coords has duplicates: entries 1 and 3 are both at [2, 0] (2 duplicates in all)",
        ),
        (
            [[0, 1, -2], [1, 0, 2]],
            np.ones(3),
            (3, 3),
            ValueError,
            "entry 2 is at [-2, 2], outside shape (3, 3)",
        ),
        (
            [[0, 1, 9], [1, 3, 2]],
            np.ones(3),
            (3, 3),
            ValueError,
            "entry 1 is at [1, 3], outside shape (3, 3) (2",
        ),
        (
            [np.array([2**64 - 1], np.uint64), [0]],
            [1.0],
            (3, 3),
            ValueError,
            "entry 0 is at [18446744073709551615, 0]",
        ),
        (np.array(GOOD, float), np.ones(3), (3, 3), TypeError, "coords must be integers, got dtype float64"),
        ([[0, 1, 1.5], [1, 0, 2]], np.ones(3), (3, 3), TypeError, "in mode 0: entry 2 is at [1.5, 2]"),
        (np.array(GOOD) > 0, np.ones(3), (3, 3), TypeError, "coords must be integers, got dtype bool"),
        (GOOD, np.ones(4), (3, 3), ValueError, "coords[0] has length 3, but there are 4 values"),
        (
            [[0, 1, 2], [1, 0]],
            np.ones(3),
            (3, 3),
            ValueError,
            "coords[1] has length 2, but there are 3 values",
        ),
        (
            np.array(GOOD).T,
            np.ones(3),
            (3, 3),
            ValueError,
            "(N, M) = (2, 3), a row per mode and a column per",
        ),
        (np.array(GOOD).T, np.ones(3), (3, 3), ValueError, "got (3, 2). Pass coords.T."),
        (np.array(GOOD)[0], np.ones(3), (3, 3), ValueError, "got (3,)."),
        (GOOD, np.ones((3, 1)), (3, 3), ValueError, "values must have one mode, a number per entry"),
        (GOOD, [1.0, -INF, 2.0], (3, 3), ValueError, "Y[1, 0] is -inf (1 infinite entry in all)"),
        (GOOD, ["a", "b", "c"], (3, 3), TypeError, "values must hold real numbers, got dtype <U1"),
        ([[], []], [], (3, 3), ValueError, "everything is missing"),
        (GOOD, np.full(3, NAN), (3, 3), ValueError, "everything is missing"),
        (GOOD, np.ma.array(np.ones(3), mask=True), (3, 3), ValueError, "everything is missing"),
        (GOOD, np.ones(3), (3,), ValueError, "shape needs order >= 2"),
        (GOOD, np.ones(3), (3, 0), ValueError, "shape: mode 1 has length 0"),
        (GOOD, np.ones(3), (-3, 3), ValueError, "shape: mode 0 has length -3"),
        (GOOD, np.ones(3), (3, 2**62 + 1), ValueError, "Every mode needs a length between 1 and 2**62"),
        (GOOD, np.ones(3), (3, 3.0), TypeError, "shape must be a sequence of integers"),
        (GOOD, np.ones(3), 3, TypeError, "shape must be a sequence of integers"),
    ],
)
def test_bad_coordinates(coords, values, shape, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Observations.from_coords(coords, values, shape)


def test_repeated_entries_of_a_sparse_array_are_refused():
    sparse = scipy.sparse.coo_array(([1.0, 2.0], ([0, 0], [1, 1])), shape=(2, 2))
    with pytest.raises(ValueError, match="duplicates"):
        observe(sparse)


def test_long_integers_are_rounded_with_a_warning():
    for extreme, dtype in ((2**53 + 1, np.int64), (-(2**63), np.int64), (2**64 - 1, np.uint64)):
        Y = np.array([[extreme, 1]], dtype=dtype)
        with pytest.warns(UserWarning, match=r"integers beyond 2\*\*53 in magnitude"):
            observations = observe(Y)
        np.testing.assert_array_equal(observations.values, Y.astype(float))
    observe(np.array([[2**53, -(2**53)]]))  # exact: no warning, which would be an error here
    observe(np.array([[2**60, 1]]), mask=[[False, True]])  # missing, so it does not exist


def test_empty_slices_are_named():
    Y = np.ones((9, 3, 2))
    Y[[0, 2, 3, 4, 5, 8]] = NAN
    Y[:, 1] = NAN
    for observations in (observe(Y), observe(as_coo(Y))):
        with pytest.warns(UserWarning) as caught:
            warn_empty_slices(observations)
        first, second = (str(warning.message) for warning in caught)
        assert first.startswith("Mode 0 has 6 empty slices (index 0, 2, 3, 4, 5, ...): nothing is observed there")
        assert second.startswith("Mode 1 has 1 empty slice (index 1): nothing")
        assert second.endswith("estimates rest on the other slices and are uncertain.")
    with pytest.warns(UserWarning, match=r"Mode day has 1 empty slice \(2024-01-02\): nothing"):
        days = np.array(["2024-01-01", "2024-01-02", "2024-01-03"], dtype="M8[ns]")
        warn_empty_slices(observe(xr.DataArray([[1, 2], [NAN, NAN], [3, 4]], {"day": days}, ("day", "site"))))


def test_dates_in_a_form_that_sorts_wrongly_are_told():
    days = pd.date_range("2024-01-30", periods=4)
    table = pd.DataFrame([(site, day, 1.0) for site in "ab" for day in days], columns=["site", "day", "rain"])
    for form in ("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%y"):
        with pytest.warns(UserWarning, match="Column 'day' holds dates as text"):
            Observations.from_frame(table.assign(day=table["day"].dt.strftime(form)))
    Observations.from_frame(table.assign(day=table["day"].dt.strftime("%Y-%m-%d")))  # no warning, which would fail
    Observations.from_frame(table.assign(day=table["day"].dt.strftime("%d-%m")))
    Observations.from_frame(table)


def test_a_pandas_table_whose_rows_have_several_labels_is_refused_with_the_call_to_use():
    rows = pd.MultiIndex.from_product([["a", "b"], ["x", "y"]], names=["shop", "item"])
    wide = pd.DataFrame(np.arange(8.0).reshape(4, 2), index=rows, columns=["Jan", "Feb"])
    with pytest.raises(ValueError, match=r"from_frame\(Y.stack\(\).reset_index\(\)\)"):
        observe(wide)
    assert Observations.from_frame(wide.stack().reset_index()).shape == (2, 2, 2)
    with pytest.raises(ValueError, match=r"from_frame\(Y.reset_index\(\)\)"):
        observe(wide[["Jan"]])


def test_no_warning_without_empty_slices():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_empty_slices(observe(np.ones((2, 2))))
        warn_empty_slices(observe([[1.0, NAN], [NAN, 1.0]]))
        warn_empty_slices(observe(scipy.sparse.coo_array(np.eye(2))))
