"""Data in chunks are the same data: the numbers are those in memory, nothing large is held, no damage is silent."""

import gc
import operator
import os
import pickle
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import brtf
from brtf import BRTF, Observations
from brtf.data import cluster, executors, passes, tasks
from brtf.data.chunk_cache import HELD
from brtf.data.chunked_input import row_blocks
from brtf.data.observe import observe
from brtf.data.passes import SomeRows, add_up
from brtf.data.plan import Plan
from brtf.data.tasks import in_tree
from brtf.inference.update_rows import gaussian_rows
from brtf.io.archive import pack, unpack
from brtf.io.origin import Origin
from brtf.model.settings import Settings

zarr = pytest.importorskip("zarr")
da = pytest.importorskip("dask.array")

SHAPE = (45, 16, 12)
ROUNDING = 1e-9
"""Sums of a few thousand terms in another order, carried through a few sweeps."""
FEW = {"max_rank": 5, "max_sweeps": 8, "link": None, "arrangement": None, "random_state": 0}
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module", params=["complete", "masked"])
def tensor(request):
    data = brtf.datasets.synthetic(SHAPE, 3, outliers=0.05, noise=0.1, seed=1)
    tensor = np.array(data.observed)
    if request.param == "masked":
        tensor[np.random.default_rng(2).random(SHAPE) < 0.3] = np.nan
    return tensor


def stored(path, tensor, *, rows=5, fill_value=np.nan, checksum=True):
    codecs = [zarr.codecs.Crc32cCodec()] if checksum else []
    array = zarr.create_array(
        path,
        shape=tensor.shape,
        chunks=(rows, *tensor.shape[1:]),
        dtype=tensor.dtype,
        compressors=codecs,
        fill_value=fill_value,
        config={"write_empty_chunks": True},
    )
    array[...] = tensor
    return array


def mapped(path, tensor):
    np.save(path, tensor)
    return np.load(path, mmap_mode="r")


def in_chunks(kind, path, tensor, **options):
    """The tensor as observations in at least four chunks."""
    options = {"n_entries": 10 * tensor[0].size, **options}
    if kind == "zarr":
        return Observations.from_chunks(stored(path / "a.zarr", tensor), **options)
    if kind == "memmap":
        return Observations.from_chunks(mapped(path / "a.npy", tensor), **options)
    array = da.from_array(tensor, chunks=(7, -1, -1))
    if kind == "dask":
        return observe(array)
    xarray = pytest.importorskip("xarray")
    return observe(xarray.DataArray(array, dims=("time", "row", "column")))


def as_parts(path, tensor, *, suffix=".parquet", n_parts=4, shuffled=True):
    """The observed entries of a tensor as a directory of tables."""
    pandas = pytest.importorskip("pandas")
    path.mkdir()
    coords = np.argwhere(np.isfinite(tensor))
    if shuffled:
        coords = np.random.default_rng(3).permutation(coords)
    for number, part in enumerate(np.array_split(coords, n_parts)):
        frame = pandas.DataFrame(dict(zip("ijk", part.T, strict=True)) | {"value": tensor[tuple(part.T)]})
        file = path / f"{number}{suffix}"
        frame.to_parquet(file) if suffix == ".parquet" else frame.to_csv(file, index=False)
    return path


def same_fit(one, other, tolerance):
    assert one.rank_ == other.rank_
    np.testing.assert_allclose(one.bound_, other.bound_, rtol=tolerance)
    np.testing.assert_allclose(one.noise_variance_, other.noise_variance_, rtol=1e3 * tolerance)
    np.testing.assert_allclose(one.outlier_rate_, other.outlier_rate_, rtol=1e3 * tolerance)
    scale = np.abs(one.low_rank()).max()
    np.testing.assert_allclose(one.low_rank(), other.low_rank(), atol=1e3 * tolerance * scale)


def as_large(data):
    """Data in memory that are handled as large ones are, which those in chunks always are."""
    return replace(observe(data), plan=Plan(small_data=0, cached_data=0))


class TestSameAsInMemory:
    @pytest.mark.parametrize("kind", ["zarr", "memmap", "dask", "xarray"])
    def test_dense(self, kind, tensor, tmp_path):
        chunked, whole = in_chunks(kind, tmp_path, tensor), observe(tensor)
        assert len(chunked.chunks) >= 4
        assert (chunked.shape, chunked.layout, chunked.n_observed) == (whole.shape, whole.layout, whole.n_observed)
        assert (chunked.scale, chunked.largest) == (whole.scale, whole.largest)
        same_fit(BRTF(**FEW).fit(as_large(tensor)), BRTF(**FEW).fit(chunked), ROUNDING)

    @pytest.mark.parametrize("suffix", [".parquet", ".csv"])
    def test_coordinates(self, suffix, tensor, tmp_path):
        chunked = Observations.from_parts(as_parts(tmp_path / "parts", tensor, suffix=suffix), shape=SHAPE)
        coords = np.argwhere(np.isfinite(tensor)).T
        whole = Observations.from_coords(coords, tensor[tuple(coords)], SHAPE)
        assert (chunked.layout, chunked.n_observed, chunked.scale) == ("coordinates", whole.n_observed, whole.scale)
        # random signs are drawn by the place of a block, and the entries stand in another order here
        same_fit(BRTF(**FEW).fit(as_large(whole)), BRTF(**FEW).fit(chunked), ROUNDING)

    def test_an_explicit_mask(self, tmp_path):
        tensor = np.random.default_rng(0).standard_normal(SHAPE)
        mask = np.random.default_rng(1).random(SHAPE) < 0.8
        whole = observe(tensor, mask)
        pairs = [
            (stored(tmp_path / "a.zarr", tensor), stored(tmp_path / "m.zarr", mask, fill_value=False)),
            (mapped(tmp_path / "a.npy", tensor), mapped(tmp_path / "m.npy", mask)),
            (da.from_array(tensor, chunks=(7, -1, -1)), da.from_array(mask, chunks=(9, 4, -1))),
        ]
        for array, own in pairs:
            chunked = Observations.from_chunks(array, own)
            assert (chunked.n_observed, chunked.scale) == (whole.n_observed, whole.scale)

    @pytest.mark.parametrize("dtype", [np.float32, np.int16, np.uint8, ">f4"])
    def test_types(self, dtype, tmp_path):
        tensor = np.random.default_rng(0).integers(0, 100, SHAPE).astype(dtype)
        chunked, whole = in_chunks("memmap", tmp_path, tensor), observe(tensor)
        assert (chunked.values.dtype, chunked.scale) == (whole.values.dtype, whole.scale)

    @pytest.mark.parametrize("size", [1e-300, 1e300, 0.0])
    def test_extreme_values(self, size, tmp_path):
        tensor = size * np.random.default_rng(0).standard_normal(SHAPE)
        assert in_chunks("memmap", tmp_path, tensor).scale == observe(tensor).scale

    def test_new_structures_of_noise_and_outliers(self, tmp_path):
        tensor = np.array(brtf.datasets.synthetic(SHAPE, 2, outliers=0.05, noise=0.1, seed=4).observed)
        chunked = in_chunks("zarr", tmp_path, tensor)
        labels = np.random.default_rng(0).integers(0, 2, (SHAPE[0], 1, SHAPE[2]))
        for options in (
            {"noise": "per-slice"},
            {"outlier_modes": (2,)},
            {"outlier_kind": "replacement"},
            {"outlier_labels": labels},
        ):
            same_fit(BRTF(**FEW, **options).fit(as_large(tensor)), BRTF(**FEW, **options).fit(chunked), ROUNDING)


class TestTheTree:
    @pytest.mark.parametrize("n_values", range(1, 40))
    def test_is_one_of_neighbours(self, n_values):
        names = [str(k) for k in range(n_values)]
        level = names
        while len(level) > 1:
            pairs = [level[k : k + 2] for k in range(0, len(level), 2)]
            level = [f"({'+'.join(pair)})" if len(pair) == 2 else pair[0] for pair in pairs]
        assert in_tree(names, lambda one, other: f"({one}+{other})") == level[0]

    @pytest.mark.parametrize("n_values", [7, 8, 9, 64, 65, 100])
    def test_is_the_same_in_groups(self, n_values):
        def add(one, other):
            return f"({one}+{other})"

        names = [str(k) for k in range(n_values)]
        values = names
        while len(values) > 1:
            groups = [values[k : k + cluster.FAN_IN] for k in range(0, len(values), cluster.FAN_IN)]
            values = [in_tree(group, add) for group in groups]
        assert values[0] == in_tree(names, add)


def test_lanes_are_all_chunks_in_order(tmp_path):
    """Several chunks a lane change the order of a sum, and nothing else."""
    tensor = np.array(brtf.datasets.synthetic(SHAPE, 3, outliers=0.05, missing=0.2, seed=1).observed)
    chunked = in_chunks("zarr", tmp_path, tensor)
    alone = BRTF(**FEW).fit(chunked)
    chunked = replace(chunked, plan=Plan(fewest_lanes=2))
    assert [len(lane) for lane in chunked.lanes] == [2, 3]
    assert sum(chunked.lanes, ()) == chunked.chunks
    same_fit(alone, BRTF(**FEW).fit(chunked), ROUNDING)


class TestSomeRows:
    """Sums that are mostly zero travel without their zeros, to the same digits."""

    def arrays(self, n_used):
        rng, arrays = np.random.default_rng(0), []
        for _ in range(5):
            array = np.zeros((50, 3))
            array[rng.choice(50, n_used, replace=False)] = rng.standard_normal((n_used, 3))
            arrays.append(array)
        return arrays

    @pytest.mark.parametrize("n_used", [0, 1, 5, 20, 24, 26, 50])
    def test_add_up_as_arrays_do(self, n_used):
        arrays = self.arrays(n_used)
        packed = [SomeRows.of(array, 1) for array in arrays]
        assert all(isinstance(rows, SomeRows) == (n_used <= 25) for rows in packed)
        total = in_tree(packed, operator.add)
        total = total.dense() if isinstance(total, SomeRows) else total
        np.testing.assert_array_equal(total, in_tree(arrays, operator.add))

    def test_an_array_on_either_side(self):
        few, many = self.arrays(3)[0], self.arrays(40)[1]
        for total in (SomeRows.of(few, 1) + many, many + SomeRows.of(few, 1)):
            np.testing.assert_array_equal(total, few + many)

    def test_small_sums_stay_arrays(self):
        assert isinstance(SomeRows.of(np.zeros((50, 3)), 151), np.ndarray)

    def test_fits_are_the_same(self, tmp_path, monkeypatch):
        tensor = np.array(brtf.datasets.synthetic(SHAPE, 2, missing=0.5, seed=0).observed)
        chunked = Observations.from_parts(as_parts(tmp_path / "parts", tensor, shuffled=False), shape=SHAPE)
        apart = []
        original = SomeRows.dense
        monkeypatch.setattr(SomeRows, "dense", lambda self: (apart.append(1), original(self))[1])
        model = BRTF(**FEW).fit(replace(chunked, plan=Plan(sparse_sums=1)))
        n_apart = len(apart)
        assert n_apart
        whole = BRTF(**FEW).fit(chunked)
        assert len(apart) == n_apart
        assert whole.bound_ == model.bound_
        assert all(map(np.array_equal, whole.factors_, model.factors_))


def test_threads_do_not_change_a_digit(tmp_path):
    tensor = np.array(brtf.datasets.synthetic(SHAPE, 3, outliers=0.05, missing=0.2, seed=1).observed)
    chunked = in_chunks("zarr", tmp_path, tensor)
    one, two = (BRTF(**FEW, n_jobs=n_jobs).fit(chunked) for n_jobs in (1, 2))
    assert one.bound_ == two.bound_
    assert all(map(np.array_equal, one.factors_, two.factors_))


class TestRunsOfRows:
    """A mode that is too long is worked on in runs of its rows, to the same digits."""

    @pytest.mark.parametrize("kind", ["zarr", "parts", "memory"])
    def test_same_digits(self, kind, tmp_path, monkeypatch):
        tensor = np.array(brtf.datasets.synthetic(SHAPE, 3, outliers=0.05, missing=0.3, noise=0.1, seed=1).observed)
        observations = {
            "zarr": lambda: in_chunks("zarr", tmp_path, tensor),
            "parts": lambda: Observations.from_parts(as_parts(tmp_path / "parts", tensor), shape=SHAPE),
            "memory": lambda: Observations.from_coords(np.nonzero(~np.isnan(tensor)), tensor[~np.isnan(tensor)], SHAPE),
        }[kind]()
        plan = Plan(partial_bytes=0, partial_share=0.0)  # every mode by its own pass
        expected = BRTF(**FEW).fit(replace(observations, plan=plan))
        numbers, runs_of = [], passes.runs_of

        def counted(shapes, run_bytes):
            runs = runs_of(shapes, run_bytes)
            numbers.append(len(runs))
            return runs

        monkeypatch.setattr(passes, "runs_of", counted)
        plan = replace(plan, run_bytes=500, finished_bytes=500, sparse_sums=1, separate_bytes=0)
        found = BRTF(**FEW).fit(replace(observations, plan=plan))
        assert max(numbers) > 10
        assert found.bound_ == expected.bound_
        assert all(map(np.array_equal, found.factors_, expected.factors_))
        assert all(map(np.array_equal, found.factor_covariances_, expected.factor_covariances_))

    @pytest.mark.parametrize(("n_rows", "n_runs"), [(0, 1), (1, 1), (7, 4), (100, 50)])
    def test_every_row_is_in_one_run(self, n_rows, n_runs):
        runs = passes.runs_of([(n_rows, 2), (n_rows, 3)], 2 * 8 * 5)
        assert len(runs) == n_runs
        assert [row for run in runs for row in range(run.start, run.stop)] == list(range(n_rows))


class TestNothingLargeIsHeld:
    def test_pickled_data_are_an_outline(self, tmp_path):
        tensor = np.random.default_rng(0).standard_normal(SHAPE)
        for kind in ("zarr", "dask"):
            chunked = in_chunks(kind, tmp_path, tensor)
            assert len(pickle.dumps(chunked)) < 2000 < tensor.nbytes
            assert pickle.loads(pickle.dumps(chunked)).n_observed == tensor.size

    def test_messages_carry_no_data(self, tmp_path, monkeypatch):
        """What a pass sends is of the size of the factors, however many entries there are."""
        tensor = np.array(brtf.datasets.synthetic((400, 16, 12), 2, seed=0).observed)
        sizes, pack_task = [], tasks.pack_task

        def packed(task, separate_bytes):
            message, pieces = pack_task(task, separate_bytes)
            sizes.append(len(message) + sum(rows.nbytes for rows in pieces))
            return message, pieces

        monkeypatch.setattr(executors, "pack_task", packed)
        BRTF(max_rank=3, max_sweeps=3, random_state=0).fit(in_chunks("memmap", tmp_path, tensor))
        assert sizes
        assert max(sizes) < 0.25 * tensor.nbytes

    def test_rows_travel_as_means_and_packed_covariances(self):
        rng = np.random.default_rng(0)
        root = rng.standard_normal((1000, 5, 5))
        rows = gaussian_rows(root @ root.transpose(0, 2, 1) + np.eye(5), rng.standard_normal((1000, 5)))
        known = rows.second_moment_packed, rows.outer_packed, rows.mean_single
        sent = pickle.dumps(rows)
        assert len(sent) < 1000 * 20 * 8 + 1000
        received = pickle.loads(sent)
        np.testing.assert_array_equal(received.cov, rows.cov)
        np.testing.assert_array_equal(received.second_moment_packed, known[0])

    def test_many_rows_travel_by_themselves(self):
        rows = gaussian_rows(np.tile(np.eye(2), (50, 1, 1)), np.ones((50, 2)))
        message, pieces = tasks.pack_task(lambda lane: (rows, [rows]), rows.nbytes)
        assert pieces == [rows]
        assert len(message) < rows.nbytes
        assert tasks.unpack_task(message, pieces)(()) == (rows, [rows])

    @pytest.mark.filterwarnings("ignore::brtf.FitWarning")
    def test_what_needs_all_entries_says_what_to_do_instead(self, tmp_path, monkeypatch):
        monkeypatch.setattr(
            "brtf.results.fitted_entries.available_bytes", lambda: 1000
        )  # data are read at once if they are small
        tensor = np.random.default_rng(0).standard_normal(SHAPE)
        model = BRTF(**FEW).fit(in_chunks("zarr", tmp_path, tensor))
        for ask in (model.outliers, model.outlier_probability, model.impute, model.to_frame, model.to_xarray):
            with pytest.raises(ValueError, match=r"all entries in memory.*write\(STORE\.zarr\)"):
                ask()

    @pytest.mark.filterwarnings("ignore::brtf.FitWarning")
    def test_the_page_leaves_out_what_draws_entries(self, tmp_path):
        pytest.importorskip("jinja2")
        model = BRTF(**FEW).fit(in_chunks("zarr", tmp_path, np.random.default_rng(0).standard_normal(SHAPE)))
        model.report(tmp_path / "report.html")
        page = (tmp_path / "report.html").read_text(encoding="utf-8")
        assert "Residuals. A checkpoint, or the result" in page
        assert 'id="residuals"' not in page
        with pytest.raises(ValueError, match="all entries in memory"):
            model.plot_outliers()

    def test_loadings_need_no_entries_here(self, tmp_path):
        tensor = np.array(brtf.datasets.synthetic(SHAPE, 2, noise=0.1, seed=0).observed)
        chunked = in_chunks("zarr", tmp_path, tensor)
        model = BRTF(**FEW).fit(chunked)
        # blocks are the same, their sums are added in another order
        np.testing.assert_allclose(model.transform(chunked), model.transform(tensor), rtol=1e-6, atol=1e-6)

    def test_a_map_of_more_than_half_of_the_memory_is_not_read_at_once(self, tmp_path, monkeypatch):
        array = mapped(tmp_path / "a.npy", np.random.default_rng(0).standard_normal(SHAPE))
        assert not observe(array).in_chunks
        monkeypatch.setattr(brtf.data.chunked_input, "available_bytes", lambda: array.nbytes)
        assert observe(array).in_chunks
        assert not observe(array[::2]).in_chunks  # of which no file is a copy

    def test_options_that_need_all_entries_are_refused(self, tmp_path):
        chunked = in_chunks("zarr", tmp_path, np.abs(np.random.default_rng(0).standard_normal(SHAPE)))
        for options in ({"inference": "paper"}, {"link": "sqrt"}, {"calibrate": "conformal"}):
            with pytest.raises(ValueError, match=f"{next(iter(options))}=.* needs data in memory"):
                BRTF(**options).fit(chunked)
        with pytest.raises(ValueError, match="Leave the first mode out of outlier_modes"):
            BRTF(outlier_modes=(0,)).fit(chunked)

    def test_others_need_data_they_can_read(self):
        with pytest.raises(ValueError, match="executor='processes' needs data that others can read"):
            BRTF(executor="processes", n_jobs=1).fit(np.ones((3, 3)))

    def test_an_executor_is_one_of_three(self):
        with pytest.raises(TypeError, match="executor must be None"):
            BRTF(executor=3).fit(np.ones((3, 3)))


def uncached(chunked, **sizes):
    """The same chunks, none of which is in memory or will be kept there."""
    HELD.release()
    return replace(chunked, plan=Plan(cached_share=0.0, **sizes))


class TestDamageIsFound:
    def chunk_file(self, path, row):
        return path / "c" / str(row) / "0" / "0"

    def test_a_flipped_bit(self, tmp_path):
        array = stored(tmp_path / "a.zarr", np.random.default_rng(0).standard_normal(SHAPE))
        file = self.chunk_file(tmp_path / "a.zarr", 3)
        content = bytearray(file.read_bytes())
        content[100] ^= 1
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"rows 10:20 of .*a\.zarr cannot be read: .*checksum"):
            Observations.from_chunks(array, n_entries=10 * 16 * 12)

    def test_a_missing_chunk_is_not_zero(self, tmp_path):
        array = stored(tmp_path / "a.zarr", np.random.default_rng(0).standard_normal(SHAPE), fill_value=0.0)
        self.chunk_file(tmp_path / "a.zarr", 3).unlink()
        with pytest.raises(ValueError, match=r"rows 10:20 of .* stored chunk c/3/0/0 does not exist"):
            Observations.from_chunks(array, n_entries=10 * 16 * 12)

    def test_a_missing_chunk_of_the_older_format(self, tmp_path):
        options = {"zarr_format": 2, "fill_value": None, "chunks": (5, 16, 12)}
        array = zarr.create_array(tmp_path / "a.zarr", shape=SHAPE, dtype="f8", **options)
        array[10:] = 1.0
        with pytest.warns(UserWarning, match="has no checksums"), pytest.raises(ValueError, match="does not exist"):
            Observations.from_chunks(array)

    def test_a_missing_chunk_of_nan_is_missing_with_a_warning(self, tmp_path):
        array = stored(tmp_path / "a.zarr", np.random.default_rng(0).standard_normal(SHAPE))
        self.chunk_file(tmp_path / "a.zarr", 3).unlink()
        with pytest.warns(UserWarning, match=r"1 stored chunk of .* does not exist \(c/3/0/0"):
            chunked = Observations.from_chunks(array)
        assert chunked.n_observed == (SHAPE[0] - 5) * 16 * 12

    @pytest.mark.parametrize("kind", ["complete", "masked"])
    def test_a_chunk_that_vanishes_later(self, kind, tmp_path):
        tensor = np.random.default_rng(0).standard_normal(SHAPE)
        if kind == "masked":
            tensor[::3, ::2] = np.nan
        chunked = uncached(in_chunks("zarr", tmp_path, tensor))
        self.chunk_file(tmp_path / "a.zarr", 3).unlink()
        with pytest.raises(ValueError, match=r"rows 10:20 of .* but had \d+ when the fit began"):
            BRTF(**FEW).fit(chunked)

    def test_a_file_that_was_cut_short(self, tmp_path):
        chunked = uncached(in_chunks("memmap", tmp_path, np.random.default_rng(0).standard_normal(SHAPE)))
        os.truncate(tmp_path / "a.npy", 2000)
        with pytest.raises(ValueError, match=r"a\.npy cannot be read: the file has been cut short"):
            BRTF(**FEW).fit(chunked)

    def test_a_store_without_checksums_is_read_with_a_warning(self, tmp_path):
        tensor = np.random.default_rng(0).standard_normal(SHAPE)
        with pytest.warns(UserWarning, match="has no checksums"):
            Observations.from_chunks(stored(tmp_path / "a.zarr", tensor, checksum=False))

    def test_infinite_values(self, tmp_path):
        tensor = np.random.default_rng(0).standard_normal(SHAPE)
        tensor[33, 2, 1], tensor[40, 0, 0] = np.inf, -np.inf
        with pytest.raises(ValueError, match=r"Y\[33, 2, 1\] is inf \(2 infinite entries in all\)"):
            in_chunks("zarr", tmp_path, tensor)

    def test_a_mask_that_calls_nan_observed(self):
        tensor = np.random.default_rng(0).standard_normal(SHAPE)
        tensor[30, 3, 2] = np.nan
        chunks = (7, -1, -1)
        mask = da.ones(SHAPE, chunks=chunks, dtype=bool)
        with pytest.raises(ValueError, match=r"mask says that Y\[30, 3, 2\] is observed, but it is NaN"):
            observe(da.from_array(tensor, chunks=chunks), mask)

    def test_nothing_observed(self):
        with pytest.raises(ValueError, match="no observed entry"):
            observe(da.full(SHAPE, np.nan, chunks=(7, -1, -1)))

    def test_empty_slices_are_warned_of(self, tmp_path):
        tensor = np.random.default_rng(0).standard_normal(SHAPE)
        tensor[:, 4], tensor[12] = np.nan, np.nan
        with pytest.warns(UserWarning, match=r"Mode [01] has 1 empty slice \(index (4|12)\)") as caught:
            BRTF(**FEW).fit(in_chunks("zarr", tmp_path, tensor))
        assert len([w for w in caught if "empty slice" in str(w.message)]) == 2

    def test_masks_of_another_kind_type_or_shape(self):
        array = da.ones(SHAPE, chunks=(7, -1, -1))
        with pytest.raises(TypeError, match="Give a mask of that kind"):
            observe(array, np.ones(SHAPE, bool))
        with pytest.raises(TypeError, match="mask must be boolean"):
            observe(array, da.ones(SHAPE))
        with pytest.raises(ValueError, match="they must agree"):
            observe(array, da.ones((3, 3), dtype=bool))

    def test_types_that_are_no_numbers(self):
        with pytest.raises(TypeError, match="must hold real numbers"):
            observe(da.ones(SHAPE, dtype=complex))

    def test_dask_arrays_that_are_cut_otherwise_are_rechunked_with_a_warning(self):
        tensor = np.random.default_rng(0).standard_normal(SHAPE)
        with pytest.warns(UserWarning, match="split along 1 mode other than the first"):
            chunked = observe(da.from_array(tensor, chunks=(9, 8, -1)))
        assert chunked.scale == observe(tensor).scale


class TestParts:
    def test_an_entry_in_two_files(self, tmp_path):
        pandas = pytest.importorskip("pandas")
        directory = as_parts(tmp_path / "parts", np.random.default_rng(0).standard_normal(SHAPE))
        pandas.DataFrame({"i": [3], "j": [4], "k": [5], "value": [1.0]}).to_parquet(directory / "9.parquet")
        with pytest.raises(ValueError, match=r"Two files hold an entry at \[i=3, j=4, k=5\]"):
            Observations.from_parts(directory)

    def test_files_that_do_not_overlap_need_no_comparison(self, tmp_path, monkeypatch):
        monkeypatch.setattr(
            brtf.data.coordinate_files, "_check_duplicates", lambda observations: pytest.fail("compared")
        )
        tensor = np.random.default_rng(0).standard_normal(SHAPE)
        chunked = Observations.from_parts(as_parts(tmp_path / "parts", tensor, shuffled=False))
        assert chunked.n_observed == tensor.size

    @pytest.mark.parametrize("suffix", [".parquet", ".csv"])
    def test_values_are_read_to_the_last_digit(self, suffix, tmp_path):
        tensor = np.random.default_rng(0).standard_normal(SHAPE)
        chunked = Observations.from_parts(as_parts(tmp_path / "parts", tensor, suffix=suffix))
        for chunk in chunked.chunks:
            for block in chunked.cut(chunk, chunk.read):
                np.testing.assert_array_equal(block.values, tensor[tuple(block.coords)])

    @pytest.mark.parametrize("indexed", [True, False])
    def test_the_index_of_a_pandas_table(self, tmp_path, indexed):
        """Levels with names are positions, though they come last in the file; one without only numbers the rows."""
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame({"i": [0, 1, 2], "j": [1, 0, 1], "value": [1.0, 2.0, 4.0]}, index=[7, 3, 5])
        (frame.set_index(["i", "j"]) if indexed else frame).to_parquet(tmp_path / "0.parquet")
        chunked = Observations.from_parts(tmp_path)
        (chunk,) = chunked.chunks
        (block,) = chunked.cut(chunk, chunk.read)
        assert chunked.shape == (3, 2)
        assert sorted(zip(*block.coords.tolist(), block.values.tolist(), strict=True)) == [
            (0, 1, 1.0),
            (1, 0, 2.0),
            (2, 1, 4.0),
        ]

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ({"i": [0, 0], "j": [1, 1], "value": [1.0, 2.0]}, r"two entries at \[0, 1\]"),
            ({"i": [0, 1], "j": [1, 1], "value": [1.0, np.inf]}, r"at \[1, 1\] is infinite"),
            ({"i": [0, -1], "j": [1, 1], "value": [1.0, 2.0]}, "reach from -1 to 0"),
            ({"i": [0.5, 1], "j": [1, 1], "value": [1.0, 2.0]}, "'i' must hold positions"),
            ({"i": [0, 1], "j": [1, 1], "value": ["a", "b"]}, "'value' must hold numbers"),
            ({"i": [0, 1], "j": [1, 1], "value": [np.nan, np.nan]}, "no observed entry|length 0"),
        ],
    )
    def test_wrong_content(self, columns, message, tmp_path):
        pandas = pytest.importorskip("pandas")
        pandas.DataFrame(columns).to_csv(tmp_path / "0.csv", index=False)
        with pytest.raises((ValueError, TypeError), match=message):
            Observations.from_parts(tmp_path)

    def test_an_empty_directory(self, tmp_path):
        with pytest.raises(ValueError, match="holds no table"):
            Observations.from_parts(tmp_path)


class TestResults:
    def test_written_arrays_are_those_in_memory(self, tensor, tmp_path):
        model = BRTF(**FEW).fit(in_chunks("zarr", tmp_path, tensor))
        path = tmp_path / "out.zarr"
        model.write(path, what=("low_rank", "std", "outliers", "outlier_probability", "imputed"))
        group = zarr.open_group(path, mode="r")
        assert group.attrs["complete"] is True
        in_memory = BRTF(**FEW)
        in_memory._adopt(
            type(model.result_)(**{**vars_of(model.result_), "observations": rescaled(tensor, model.result_.scale)})
        )
        expected = {
            "low_rank": model.low_rank(),
            "std": model.predict(return_std=True)[1],
            "outliers": in_memory.outliers(),
            "outlier_probability": in_memory.outlier_probability(),
            "imputed": in_memory.impute(),
        }
        for name, values in expected.items():
            np.testing.assert_allclose(group[name][...], values, rtol=1e-12, atol=1e-12, err_msg=name)

    def test_written_parts(self, tmp_path):
        tensor = np.array(brtf.datasets.synthetic(SHAPE, 2, outliers=0.1, missing=0.5, seed=0).observed)
        chunked = Observations.from_parts(as_parts(tmp_path / "parts", tensor), shape=SHAPE)
        model = BRTF(**FEW).fit(chunked)
        model.write(tmp_path / "out.zarr", what=("low_rank", "outlier_probability", "imputed"))
        group, n_seen = zarr.open_group(tmp_path / "out.zarr", mode="r"), 0
        low_rank = model.low_rank()
        for name in ("part-00000", "part-00001", "part-00002", "part-00003"):
            coords = tuple(group[name]["coords"][...])
            np.testing.assert_allclose(group[name]["low_rank"][...], low_rank[coords], rtol=1e-12, atol=1e-12)
            np.testing.assert_array_equal(group[name]["imputed"][...], tensor[coords])
            n_seen += coords[0].size
        assert n_seen == chunked.n_observed

    @pytest.mark.filterwarnings("ignore::brtf.FitWarning")
    def test_what_is_not_written(self, tmp_path):
        model = BRTF(**FEW).fit(np.random.default_rng(0).standard_normal((6, 5)))
        with pytest.raises(ValueError, match="these are in memory"):
            model.write(tmp_path / "out.zarr")
        model = BRTF(**FEW).fit(in_chunks("zarr", tmp_path, np.random.default_rng(0).standard_normal(SHAPE)))
        with pytest.raises(ValueError, match="what must be some of"):
            model.write(tmp_path / "out.zarr", what=("factors",))
        (tmp_path / "out.zarr").mkdir()
        with pytest.raises(ValueError, match="exists already"):
            model.write(tmp_path / "out.zarr")

    def test_saved_without_the_entries(self, tensor, tmp_path):
        model = BRTF(**FEW).fit(in_chunks("zarr", tmp_path, tensor))
        model.save(tmp_path / "a.brtf")
        loaded = brtf.load(tmp_path / "a.brtf")
        assert Path(tmp_path / "a.brtf").stat().st_size < tensor.nbytes
        for name in ("rank_", "bound_", "noise_variance_", "outlier_rate_", "n_observed_", "shape_in_"):
            assert getattr(loaded, name) == getattr(model, name)
        np.testing.assert_array_equal(loaded.low_rank(), model.low_rank())
        for part, wrong in (("n_observed", 10**9), ("layout", "sparse"), ("dtype", "object"), ("largest", -1.0)):
            with pytest.raises(ValueError):
                unpack(*with_outline(model.result_, **{part: wrong}))
        assert str(loaded.summary()) == str(model.summary())
        with pytest.raises(ValueError, match="does not contain the data"):
            loaded.write(tmp_path / "out.zarr")

    def test_a_checkpoint_goes_on(self, tmp_path):
        tensor = np.array(brtf.datasets.synthetic(SHAPE, 3, outliers=0.05, missing=0.2, seed=1).observed)
        chunked = in_chunks("zarr", tmp_path, tensor)
        whole = BRTF(**FEW).fit(chunked)
        kept = tmp_path / "fit.ckpt"
        seen = iter(range(4))

        class Interrupted(brtf.io.checkpoint.Keeper):
            def keep(self, moment):
                super().keep(moment)
                if next(seen, None) is None:
                    raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(brtf.io.checkpoint, "Keeper", Interrupted)
            with pytest.raises(KeyboardInterrupt):
                BRTF(**FEW).fit(chunked, checkpoint=kept, every=0)
        resumed = BRTF(**FEW).fit(chunked, resume=kept)
        assert resumed.bound_ == whole.bound_
        assert all(map(np.array_equal, resumed.factors_, whole.factors_))
        in_memory = BRTF(**FEW).fit(tensor, resume=kept)  # the same data, to rounding
        np.testing.assert_allclose(in_memory.bound_, whole.bound_, rtol=ROUNDING)
        other = in_chunks("memmap", tmp_path, tensor + 1.0)
        with pytest.raises(ValueError, match="checkpoint of other data"):
            BRTF(**FEW).fit(other, resume=kept)


def digest_of(Y, mask=None):
    rng = np.random.default_rng(0)
    return Origin.of(observe(Y, mask), Settings(), rng).data


def test_a_checkpoint_knows_the_data_by_their_entries(tensor, tmp_path):
    """Whatever the chunks and their order; any entry that moves or changes by one bit is noticed."""
    expected = digest_of(tensor)
    assert digest_of(in_chunks("zarr", tmp_path, tensor)) == expected
    assert digest_of(in_chunks("dask", tmp_path, tensor)) == expected
    other = tensor.copy()
    other[3, 4, 5] = np.nextafter(np.nan_to_num(other[3, 4, 5]), 9.0)
    assert digest_of(other) != expected
    assert digest_of(tensor[::-1].copy())["digest"] != expected["digest"]
    seen = np.nonzero(~np.isnan(tensor))
    coordinates = digest_of(Observations.from_coords(seen, tensor[seen], SHAPE))
    parts = Observations.from_parts(as_parts(tmp_path / "parts", tensor), shape=SHAPE)
    assert digest_of(parts) == coordinates
    assert coordinates["digest"] == expected["digest"]


class TestStreaming:
    @pytest.fixture
    def blocks(self):
        data = brtf.datasets.synthetic((60, 16, 12), 2, outliers=0.05, missing=0.2, noise=0.1, seed=5)
        return np.split(np.array(data.observed), 4)

    def one_by_one(self, blocks):
        model = BRTF(max_rank=4, random_state=0)
        for block in blocks:
            model.partial_fit(block)
        return model

    @pytest.mark.parametrize("kind", ["iterator", "dask", "xarray", "masked"])
    def test_block_after_block(self, kind, blocks):
        whole, mask = np.concatenate(blocks), None
        lazy = da.from_array(whole, chunks=(15, -1, -1))
        if kind == "iterator":
            stream = iter(blocks)
        elif kind == "dask":
            stream = lazy
        elif kind == "xarray":
            stream = pytest.importorskip("xarray").DataArray(lazy, dims=("time", "row", "column"))
        else:
            stream, mask = da.from_array(np.nan_to_num(whole), chunks=(15, -1, -1)), ~np.isnan(lazy)
        model, expected = BRTF(max_rank=4, random_state=0).partial_fit(stream, mask=mask), self.one_by_one(blocks)
        assert model.shape_in_ == whole.shape
        assert all(map(np.array_equal, model.factors_, expected.factors_))

    def test_a_store_is_read_in_whole_chunks(self, blocks, tmp_path):
        whole = np.concatenate(blocks)
        array = stored(tmp_path / "a.zarr", whole, rows=15)
        streamed = list(row_blocks(array, None, n_entries=20 * 16 * 12))
        for (rows, mask), block in zip(streamed, blocks, strict=True):
            assert mask is None
            np.testing.assert_array_equal(rows, block)
        model, expected = (BRTF(max_rank=4, random_state=0).partial_fit(Y) for Y in (array, whole))
        assert all(map(np.array_equal, model.factors_, expected.factors_))

    def test_holds_one_block_at_a_time(self, blocks):
        held = []

        def stream():
            for block in blocks:
                assert sum(reference() is not None for reference in held) <= 2  # the last one, and this one
                fresh = block.copy()
                held.append(weakref.ref(fresh))
                yield fresh
                del fresh
                gc.collect()

        BRTF(max_rank=4, random_state=0).partial_fit(stream())
        assert len(held) == 4

    def test_a_mask_of_an_iterator(self, blocks):
        with pytest.raises(ValueError, match="does not apply to an iterator"):
            BRTF().partial_fit(iter(blocks), mask=np.ones(3, bool))


def with_outline(result, **changed):
    header, arrays = pack(result)
    return header | {"chunked": header["chunked"] | changed}, arrays


def vars_of(result):
    return {name: getattr(result, name) for name in result.__dataclass_fields__}


def rescaled(tensor, scale):
    return replace(observe(tensor), scale=scale)


def add_values(sums, block):
    sums[0][...] += block.values.sum()


def test_chunks_are_held_up_to_a_share_of_the_memory(tmp_path, monkeypatch):
    tensor = np.random.default_rng(0).standard_normal(SHAPE)
    reads = []
    original = brtf.data.chunks.StoredRows.read
    monkeypatch.setattr(brtf.data.chunks.StoredRows, "read", lambda self, *given: (reads.append(1), original(self))[1])
    for share in (0.0, 0.25):
        chunked = in_chunks("memmap", tmp_path, tensor)
        chunked = chunked if share else uncached(chunked)
        reads.clear()
        (total,) = add_up(chunked, lambda: (np.zeros(()),), add_values)
        np.testing.assert_allclose(total, tensor.sum(), rtol=1e-10)
        assert len(reads) == (0 if share else len(chunked.chunks))
